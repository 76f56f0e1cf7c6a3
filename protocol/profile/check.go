package profile

import (
	"fmt"

	"ipufarm/protocol/machine"
)

// TileName names a physical tile for people, with its logical number.
func TileName(physical uint32) string {
	if physical >= machine.Tiles {
		return fmt.Sprintf("tile %d", physical)
	}
	return fmt.Sprintf("tile %d (logical %d)", physical, machine.Logical(int(physical)))
}

func (k StepKind) String() string {
	switch k {
	case KindExchange:
		return "exchange"
	case KindCompute:
		return "compute"
	case KindSynchronization:
		return "synchronization"
	case KindIdle:
		return "idle"
	}
	return fmt.Sprintf("kind %d", uint16(k))
}

func (k ActivityKind) String() string {
	switch k {
	case ActivitySend:
		return "send"
	case ActivityReceive:
		return "receive"
	case ActivityPartnerBusy:
		return "partner-busy"
	}
	return fmt.Sprintf("activity %d", uint16(k))
}

// hasControl reports what would break a table or command a terminal. Full-size
// profiles have millions of texts, so it looks at bytes only.
func hasControl(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] == 0x7F {
			return true
		}
	}
	return false
}

// Check reports what is wrong with a planned step, but for its index.
func (s *Step) Check() error {
	if s.Kind > KindIdle {
		return fmt.Errorf("unknown kind %d, want 0 to %d", uint16(s.Kind), KindIdle)
	}
	if hasControl(s.Operation) || hasControl(s.Kernel) {
		return fmt.Errorf("operation %.60q or kernel %.60q has a control character", s.Operation, s.Kernel)
	}
	for _, m := range s.Metadata {
		if hasControl(m.Name) || hasControl(m.Value) {
			return fmt.Errorf("property %.60q = %.60q has a control character", m.Name, m.Value)
		}
	}
	for i, a := range s.ExchangeActivities {
		if a.Kind > ActivityPartnerBusy {
			return fmt.Errorf("exchange activity %d: unknown kind %d, want 0 to %d", i, uint16(a.Kind), ActivityPartnerBusy)
		}
		if a.EndCycle < a.StartCycle {
			return fmt.Errorf("exchange activity %d: ends at cycle %d before its start at %d", i, a.EndCycle, a.StartCycle)
		}
	}
	return nil
}

// Check states every promise of a profile: known version, a clock, tiles that
// exist and ascend, samples in order that do not overlap on a tile.
func (p *Profile) Check() error {
	if p.SchemaVersion < 1 || p.SchemaVersion > SchemaVersion {
		return fmt.Errorf("profile: schema version %d, want 1 to %d", p.SchemaVersion, SchemaVersion)
	}
	if p.ClockHz == 0 {
		return fmt.Errorf("profile: clock of 0 Hz")
	}
	for i := range p.Tiles {
		t := &p.Tiles[i]
		if t.PhysicalTile >= machine.Tiles {
			return fmt.Errorf("profile: tile %d does not exist, the device has tiles 0 to %d", t.PhysicalTile, machine.Tiles-1)
		}
		if i > 0 && t.PhysicalTile <= p.Tiles[i-1].PhysicalTile {
			return fmt.Errorf("profile: %s follows %s, tiles must ascend without repetition", TileName(t.PhysicalTile), TileName(p.Tiles[i-1].PhysicalTile))
		}
		if j, err := t.check(); err != nil {
			return fmt.Errorf("profile: %s: sample %d: %w", TileName(t.PhysicalTile), j, err)
		}
	}
	return nil
}

func (t *TileProfile) check() (int, error) {
	last := uint32(0)
	for j := range t.Samples {
		s := &t.Samples[j]
		if err := s.Step.Check(); err != nil {
			return j, err
		}
		if s.EndCycle < s.StartCycle {
			return j, fmt.Errorf("ends at cycle %d before its start at %d", s.EndCycle, s.StartCycle)
		}
		if s.StartCycle < last {
			return j, fmt.Errorf("starts at cycle %d before the end of the one before it at %d", s.StartCycle, last)
		}
		last = s.EndCycle
	}
	return 0, nil
}

// Verify is Decode and Check.
func Verify(b []byte) (*Profile, error) {
	p, err := Decode(b)
	if err != nil {
		return nil, err
	}
	return p, p.Check()
}
