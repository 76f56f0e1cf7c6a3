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
			return nil, t.fault(RuleLimit, "run takes %d cycles, a profile counts %d", t.clock, uint32(math.MaxUint32))
		}
		samples := make([]profile.CycleSample, len(t.samples))
		phase := t.segments() // counts down to the phase that a record belongs to or comes before
		for k := len(samples) - 1; k >= 0; k-- {
			c := &t.commands[k]
			if c.Kind == program.Exchange {
				phase = c.Label
			}
			step := &samples[k].Step
			if k < len(d.plan[i]) {
				*step = d.plan[i][k]
			} else {
				*step = stepOf(c, phase)
			}
			step.LocalIndex = uint32(k)
			samples[k].StartCycle, samples[k].EndCycle = uint32(t.samples[k].start), uint32(t.samples[k].end)
		}
		p.Tiles = append(p.Tiles, profile.TileProfile{PhysicalTile: uint32(t.physical), Samples: samples})
	}
	return p, nil
}

// segments is the number of the compute segment after the last exchange.
func (t *tile) segments() uint32 {
	n := uint32(0)
	for i := range t.commands {
		if t.commands[i].Kind == program.Exchange {
			n = t.commands[i].Label + 1
		}
	}
	return n
}

// stepOf describes a record without a plan. Every record before End is one step.
func stepOf(c *program.Command, phase uint32) profile.Step {
	if c.Kind == program.Exchange {
		return profile.Step{Kind: profile.KindExchange, Phase: phase}
	}
	return profile.Step{Kind: profile.KindCompute, Phase: phase, Kernel: c.Kernel.String()}
}
