// Solve schedules a problem. The result depends on the problem alone. It fails
// only on problems that Check refuses or whose phase would exceed the longest
// row that machine.DecodeRow accepts.
func Solve(p *Problem) (*Schedule, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	order, same := streamOrder(p)
	units := cutUnits(p, order, same, int32(wBatch))
	l := newLister(p, order)
	if len(p.Transfers) == len(p.Receivers) {
		if wRounds == 1 {
			l.rounds(units)
		} else {
			g := newGreedy(p, order, units)
			g.run()
			l = g.lister
		}
	} else {
		l.soonest(units)
	}
	return l.schedule(), nil
}

var wRounds = env("ROUNDS", 0)
var wBatch = env("BATCH", 144)

func env(name string, def int64) int64 {
	if s := os.Getenv(name); s != "" {
		fmt.Sscan(s, &def)
	}
	return def
}
