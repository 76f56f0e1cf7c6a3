package profile

// Regenerating wire/ needs Debian's capnproto package and the generator of the
// library version in go.mod (go install capnproto.org/go/capnp/v3/capnpc-go).
// The flags leave out what nothing here uses: remote calls and embedded schemas.
//go:generate sh -c "cd ../.. && capnp compile -o- protocol/profile/profile_common.capnp protocol/profile/profile.capnp | capnpc-go -promises=false -schemas=false -structstrings=false && mv protocol/profile/*.capnp.go protocol/profile/wire/"
