// Package wire is generated from the profile schema (go generate
// ipufarm/protocol/profile); only the codecs of profiles and packages use it.
package wire
