// Package wire is generated from the schema beside its parent folder's codec
// (go generate ipufarm/protocol/program); only that codec uses it.
package wire
