package program

// Regenerating wire/ needs the same tools as protocol/profile/generate.go.
//go:generate sh -c "cd ../.. && capnp compile -o- protocol/program/application.capnp | capnpc-go -promises=false -schemas=false -structstrings=false && mv protocol/program/*.capnp.go protocol/program/wire/"
