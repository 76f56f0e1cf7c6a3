// Package wire is generated from the application schema (go generate
// ipufarm/protocol/program); only the codec of packages uses it.
package wire
