package exchange

import (
	"slices"
	"testing"
)

// Ratios of horizon to lower bound, and the cost of each stage, over the bench
// families:
//
//	go test -run - -bench . ./compiler/exchange
func BenchmarkSolve(b *testing.B)  { bench(b, "solve") }
func BenchmarkEncode(b *testing.B) { bench(b, "encode") }
func BenchmarkVerify(b *testing.B) { bench(b, "verify") }

func bench(b *testing.B, stage string) {
	families, err := Families()
	if err != nil {
		b.Fatal(err)
	}
	loadRoutes()
	for _, f := range families {
		b.Run(f.Name, func(b *testing.B) {
			p, err := f.Problem()
			if err != nil {
				b.Fatal(err)
			}
			s, err := Solve(p)
			if err != nil {
				b.Fatal(err)
			}
			rows, err := Encode(p, s)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				switch stage {
				case "solve":
					_, err = Solve(p)
				case "encode":
					_, err = Encode(p, s)
				case "verify":
					err = Verify(p, rows)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(s.Horizon)/float64(s.LowerBound(p)), "horizon/bound")
			b.ReportMetric(float64(len(p.Transfers)), "transfers")
			most := 0
			for _, r := range rows.Tile {
				most = max(most, 4*len(r.Words))
			}
			b.ReportMetric(float64(most), "row-bytes")
		})
	}
}

// The families keep their promises: every one is solved and verified, and the
// median ratio of those with a bound of at least 2,000 events is that of a good
// schedule. Families of over 100,000 transfers are left to the benchmarks.
func TestFamilies(t *testing.T) {
	families, err := Families()
	if err != nil {
		t.Fatal(err)
	}
	var ratios []float64
	for _, f := range families {
		p, err := f.Problem()
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Transfers) > 100_000 || len(p.Receivers) > 300_000 {
			continue
		}
		s, _ := solve(t, p)
		bound := s.LowerBound(p)
		t.Logf("%-22s %7d transfers, horizon %6d, bound %6d, ratio %.3f", f.Name, len(p.Transfers), s.Horizon, bound, float64(s.Horizon)/float64(bound))
		if bound >= 2000 {
			ratios = append(ratios, float64(s.Horizon)/float64(bound))
		}
	}
	slices.Sort(ratios)
	if len(ratios) < 5 {
		t.Fatalf("only %d families count", len(ratios))
	}
	if m, worst := ratios[len(ratios)/2], ratios[len(ratios)-1]; m > 1.10 || worst > 1.20 {
		t.Errorf("median ratio %.3f, worst %.3f, want at most 1.10 and 1.20", m, worst)
	}
}
