// Package wire is generated from the schema beside its parent folder's codec
// (go generate ipufarm/protocol/profile); only that codec uses it.
package wire
