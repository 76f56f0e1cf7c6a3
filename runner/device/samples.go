package device

import (
	"math"

	"ipufarm/protocol/machine"
	"ipufarm/protocol/profile"
	"ipufarm/protocol/program"
)

// profile names the samples of a run: one for each call and exchange that a tile
// executed. Names come from the package's plan; a record that the plan does not
// know gets its kind, kernel and number from the record itself.
func (d *Device) profile() (*profile.Profile, error) {
	p := &profile.Profile{SchemaVersion: profile.SchemaVersion, ClockHz: machine.ClockHz}
	for i, t := range d.tiles {
		if t.clock > math.MaxUint32 {
			return nil, t.fault(RulePhase, "run takes %d cycles, a profile counts %d", t.clock, uint32(math.MaxUint32))
		}
		samples := make([]profile.CycleSample, len(t.samples))
		for k, s := range t.samples {
			step := &samples[k].Step
			if k < len(d.plan[i]) {
				*step = d.plan[i][k]
			} else {
				*step = stepOf(&t.commands[k])
			}
			step.LocalIndex = uint32(k)
			samples[k].StartCycle, samples[k].EndCycle = uint32(s.start), uint32(s.end)
		}
		p.Tiles = append(p.Tiles, profile.TileProfile{PhysicalTile: uint32(t.physical), Samples: samples})
	}
	return p, nil
}

// stepOf describes a record without a plan. Every record before End is one step.
func stepOf(c *program.Command) profile.Step {
	if c.Kind == program.Exchange {
		return profile.Step{Kind: profile.KindExchange, Phase: c.Label}
	}
	return profile.Step{Kind: profile.KindCompute, Kernel: c.Kernel.String()}
}
