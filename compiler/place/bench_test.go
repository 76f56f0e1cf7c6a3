package place

import (
	"math/rand/v2"
	"testing"
)

// A whole card of tiles as the vision model's lowering makes them: some 60
// requests, a dozen of them resident, with room to spare.
func BenchmarkCard(b *testing.B) {
	var tiles []Problem
	for seed := range uint64(1472) {
		rng := rand.New(rand.NewPCG(seed, 1))
		p, _ := randomProblem(rng, shape{requests: 40 + rng.IntN(40), steps: 50, slack: 0.45, separate: 12})
		tiles = append(tiles, p)
	}
	for _, workers := range []int{1, 2} {
		b.Run([]string{"", "1 worker", "2 workers"}[workers], func(b *testing.B) {
			for b.Loop() {
				if _, err := SolveAll(tiles, workers); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// One tile of 230 requests, the largest that was published, with less room.
func BenchmarkLargeTile(b *testing.B) {
	p, _ := randomProblem(rand.New(rand.NewPCG(3, 2)), shape{requests: 230, steps: 200, slack: 0.3, separate: 30})
	var s Solver
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Reset(&p); err != nil {
			b.Fatal(err)
		}
		if _, err := s.Solve(); err != nil {
			b.Fatal(err)
		}
	}
}
