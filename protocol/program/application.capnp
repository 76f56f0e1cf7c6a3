# The loadable package (.ipuexe): one unpacked stream message whose root is
# Application, schemaVersion 5, target "ipu21".
#
# File id, names, ordinals and types are those of the published schema (IPU21
# package notes, 2026-08), so files of either side can be read by the other.
# Append fields, never renumber them. Addresses are byte addresses of tile
# memory, sizes are bytes, tiles are physical tile ids.
@0xd3bce605d3d25b4f;

using Golang = import "../profile/golang.capnp";
using Common = import "../profile/profile_common.capnp";
$Golang.package("wire");
$Golang.import("ipufarm/protocol/program/wire");

# An initialised piece of tile memory.
struct Segment {
  address @0 :UInt32;
  memorySize @1 :UInt32;
  data @2 :Data;      # may be shorter than memorySize; zeros follow
  flags @3 :UInt32;   # 1 read, 2 write, 4 execute
}

struct TileImage {
  physicalTile @0 :UInt32;
  entryPoint @1 :UInt32;
  segments @2 :List(Segment);
  commandAddress @3 :UInt32;
  diagnosticAddress @4 :UInt32;
}

# Where a piece of an artifact lives on the device.
struct RegionSlice {
  tile @0 :UInt32;
  tileAddress @1 :UInt32;
  fileOffset @2 :UInt64;
  size @3 :UInt64;
}

# A named tensor outside the device.
struct Binding {
  name @0 :Text;
  dtype @1 :Text;
  shape @2 :List(UInt32);
  slices @3 :List(RegionSlice);
}

struct HostPage {
  index @0 :UInt32;
  size @1 :UInt64;
}

struct HostSlice {
  page @0 :UInt32;
  pageOffset @1 :UInt64;
  fileOffset @2 :UInt64;
  size @3 :UInt64;
}

# One conversation with the host while the device runs.
struct HostCall {
  name @0 :Text;
  command @1 :UInt32;
  phases @2 :UInt32;
  inputs @3 :List(HostSlice);
  outputs @4 :List(HostSlice);
  invocations @5 :UInt32 = 1;
  inputBatchEnds @6 :List(UInt32);
  outputBatchEnds @7 :List(UInt32);
}

struct HostExchange {
  startupMark @0 :UInt32;
  commandPage @1 :UInt32;
  commandOffset @2 :UInt64;
  pages @3 :List(HostPage);
  attachOrder @4 :List(UInt32);
  calls @5 :List(HostCall);
}

struct EntryPoint {
  name @0 :Text;
  command @1 :UInt32;
  externalSyncs @2 :UInt32;
}

struct DeviceConfigWrite {
  offset @0 :UInt32;
  value @1 :UInt32;
}

# The names of a tile's steps, in execution order. No effect on a run.
struct TileProfilePlan {
  physicalTile @0 :UInt32;
  steps @1 :List(Common.Step);
}

struct DebugSymbol {
  name @0 :Text;
  address @1 :UInt32;
}

struct DebugRegion {
  physicalTile @0 :UInt32;  # 0xFFFFFFFF: every tile
  address @1 :UInt32;
  size @2 :UInt32;
  name @3 :Text;
}

struct Application {
  schemaVersion @0 :UInt32;
  compilerVersion @1 :Text;
  target @2 :Text;
  tileMemoryBase @3 :UInt32;
  tileMemorySize @4 :UInt32;
  tiles @5 :List(TileImage);
  inputs @6 :List(Binding);
  outputs @7 :List(Binding);
  weights @8 :List(Binding);
  hostExchange @9 :HostExchange;
  entryPoints @10 :List(EntryPoint);
  deviceConfigWrites @11 :List(DeviceConfigWrite);
  profileTiles @12 :List(TileProfilePlan);
  debugSymbols @13 :List(DebugSymbol);
  debugRegions @14 :List(DebugRegion);
}
