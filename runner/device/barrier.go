package device

// The time of an exchange phase beyond its rows. Only the sum was measured: 229 to
// 295 cycles from the last arrival to the end beyond the scheduled horizon, in
// twelve phases on a C600 (exchange slack and profile layout notes, 2026-08 and
// 2026-09). It is split in halves (assumed).
const (
	// releaseCycles pass from the last arrival of any tile to event 0 of every row.
	releaseCycles = 120
	// leaveCycles pass from the end of a tile's row to its next command.
	leaveCycles = 120
)

// A tile without a row leaves with the last arrival (assumed: its ANS does not
// wait for the rows of others).

// pass moves a tile's clock over a barrier whose last arrival was at cycle last. A
// tile without a row has horizon 0.
func (t *tile) pass(last uint64, active bool, horizon int32, sampling bool) {
	end := last
	if active {
		end += releaseCycles + uint64(horizon) + leaveCycles
	}
	if sampling {
		t.samples = append(t.samples, sample{t.clock, end})
	}
	t.spent.Exchange += uint64(horizon)
	t.spent.Synchronization += end - t.clock - uint64(horizon)
	t.clock = end
	t.next++
}
