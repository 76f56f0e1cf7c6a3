# What a step of a tile is: shared by the plan in a package (.ipuexe), which names
# steps before a run, and by a profile (.ipuprof), which says when they ran.
#
# File id, names, ordinals and types are those of the published schema (IPU21
# package notes, 2026-08), so files of either side can be read by the other.
# Append fields, never renumber them.
@0xf3c4b874bcfe20c9;

using Golang = import "golang.capnp";
$Golang.package("wire");
$Golang.import("ipufarm/protocol/profile/wire");

enum StepKind {
  exchange @0;
  compute @1;
  synchronization @2;
  idle @3;
}

enum ExchangeActivityKind {
  send @0;
  receive @1;
  partnerBusy @2;  # the other tile of the pair borrows this tile's transmit lane
}

# A busy interval of one tile inside an exchange row.
struct ExchangeActivity {
  kind @0 :ExchangeActivityKind;
  startCycle @1 :UInt32;  # from the release of the barrier
  endCycle @2 :UInt32;    # exclusive
}

# A property of a step, for people and queries.
struct Metadata {
  name @0 :Text;
  value @1 :Text;
}

struct Step {
  localIndex @0 :UInt32;  # 0, 1, 2.. on each tile
  phase @1 :UInt32;
  epoch @2 :UInt32;
  operation @3 :Text;
  kind @4 :StepKind;
  kernel @5 :Text;
  metadata @6 :List(Metadata);
  exchangeActivities @7 :List(ExchangeActivity);
  exchangeEventCycles @8 :UInt32;  # scheduled length of the row
}
