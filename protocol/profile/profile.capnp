# The profile of one run (.ipuprof): when each tile entered and left each step.
# One unpacked stream message whose root is Profile; ipufarm stores it inside a
# zstd frame by default (zstd -dc FILE gives the message).
#
# File id, names, ordinals and types are those of the published schema (IPU21
# package notes, 2026-08).
@0xbadb9c24f7721fa3;

using Golang = import "golang.capnp";
using Common = import "profile_common.capnp";
$Golang.package("wire");
$Golang.import("ipufarm/protocol/profile/wire");

struct CycleSample {
  step @0 :Common.Step;
  startCycle @1 :UInt32;
  endCycle @2 :UInt32;
}

struct TileProfile {
  physicalTile @0 :UInt32;
  samples @1 :List(CycleSample);
}

struct Profile {
  schemaVersion @0 :UInt32;  # 1..5 can be read
  clockHz @1 :UInt64;
  tiles @2 :List(TileProfile);
}
