package place

import (
	"fmt"

	"ipufarm/protocol/machine"
)

// Check judges a placement by the rules alone, pair by pair, and says which rule
// is broken by which buffers. It shares nothing with the solver.
func Check(p *Problem, addresses []uint32) error {
	if len(addresses) != len(p.Requests) {
		return fmt.Errorf("place: %d addresses for %d requests", len(addresses), len(p.Requests))
	}
	for i := range p.Requests {
		if err := checkOne(p, &p.Requests[i], addresses[i]); err != nil {
			return err
		}
	}
	for i := range p.Requests {
		a, from := &p.Requests[i], int64(addresses[i])
		for j := range i {
			b, start := &p.Requests[j], int64(addresses[j])
			together := a.First <= b.Last && b.First <= a.Last
			if together && from < start+int64(b.Bytes) && start < from+int64(a.Bytes) {
				return fmt.Errorf("place: buffers %d [%#x, %#x) and %d [%#x, %#x) overlap and are live together",
					a.ID, from, from+int64(a.Bytes), b.ID, start, start+int64(b.Bytes))
			}
		}
	}
	for _, pair := range p.Separate {
		a, b := &p.Requests[pair[0]], &p.Requests[pair[1]]
		common := machine.ElementMask(addresses[pair[0]], uint32(a.Bytes)) & machine.ElementMask(addresses[pair[1]], uint32(b.Bytes))
		if common != 0 {
			return fmt.Errorf("place: buffers %d at %#x and %d at %#x must be separate and share elements %#x",
				a.ID, addresses[pair[0]], b.ID, addresses[pair[1]], common)
		}
	}
	return nil
}

// checkOne judges one request by itself.
func checkOne(p *Problem, r *Request, address uint32) error {
	start, end := int64(address), int64(address)+int64(r.Bytes)
	fail := func(rule string) error {
		return fmt.Errorf("place: buffer %d [%#x, %#x) %s", r.ID, start, end, rule)
	}
	switch {
	case start%int64(r.Align) != 0:
		return fail(fmt.Sprintf("is not aligned to %d", r.Align))
	case start < machine.Region1Base && end > machine.Region1Base:
		return fail("crosses the region boundary 0x80000")
	case r.Class == Interleaved && start < machine.Region1Base:
		return fail("is interleaved and outside region 1")
	case !r.Transient && start < machine.ApertureEnd && end > machine.ApertureBase:
		return fail("is resident and in the host aperture")
	}
	// Every byte must be free; adjacent ranges count as one.
	at := start
	for _, free := range p.Free {
		if at >= int64(free.Start) && at < int64(free.End) {
			at = int64(free.End)
		}
	}
	if at < end {
		return fail("is not in free memory")
	}
	return nil
}

// PeakLive returns the largest number of bytes that are live at one step.
func PeakLive(p *Problem) int64 {
	peak := int64(0)
	for i := range p.Requests { // the peak is reached when some request begins
		live, step := int64(0), p.Requests[i].First
		for _, r := range p.Requests {
			if r.First <= step && r.Last >= step {
				live += int64(r.Bytes)
			}
		}
		peak = max(peak, live)
	}
	return peak
}
