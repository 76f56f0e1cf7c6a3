package device_test

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"ipufarm/protocol/machine"
	"ipufarm/protocol/profile"
	"ipufarm/protocol/program"
	"ipufarm/runner/device"
)

// busy is a job of 40 tiles in which every tile computes, exchanges twice and
// computes again.
func busy() *job {
	j := newJob()
	var ids []int
	for l := range 40 {
		ids = append(ids, machine.Physical(l))
	}
	for phase := range uint32(2) {
		for k, s := range ids {
			n := 16 + 8*k
			m := j.tile(s)
			if phase == 0 {
				m.put(standard, pattern(uint64(s), 512))
			}
			m.call(program.KernelGELU, standard, standard2, uint32(64+16*k), 0, 0)
			if k%2 == 1 { // odd tiles receive from the even one before them
				m.exchange(phase, receiver(ids[k-1], s, sentAt, n-8, inter)...)
			} else {
				m.exchange(phase, new(row).send(sentAt, n, standard2, uint32(machine.Direction(s, ids[k+1]))).end(sentAt+n)...)
			}
		}
	}
	for k, s := range ids {
		j.tile(s).call(program.KernelAdd, standard, standard2, inter2, 64)
		if k%2 == 1 {
			j.out(s, inter, 64)
		}
		j.out(s, inter2, 128)
	}
	return j
}

func TestSameAtAnyNumberOfWorkers(t *testing.T) {
	p := busy().build()
	var want *device.Result
	for _, workers := range []int{1, 2, 3, 16, 0} {
		got, err := start(p, device.Options{Workers: workers, CollectSamples: true})
		if err != nil {
			t.Fatal(err)
		}
		if want == nil {
			want = got
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%d workers give another result", workers)
		}
	}
}

func TestSamples(t *testing.T) {
	p := busy().build()
	bare, err := start(p, device.Options{CollectSamples: true})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(bare.Profile.Tiles); n != 40 || bare.Profile.ClockHz != machine.ClockHz || bare.Profile.SchemaVersion != profile.SchemaVersion {
		t.Fatalf("profile of %d tiles: %+v", n, bare.Profile)
	}
	last := uint64(0)
	for _, tile := range bare.Profile.Tiles {
		at := uint32(0)
		for k, s := range tile.Samples {
			if s.StartCycle != at || s.EndCycle <= s.StartCycle || s.Step.LocalIndex != uint32(k) {
				t.Fatalf("tile %d, sample %d: %+v after cycle %d", tile.PhysicalTile, k, s, at)
			}
			at = s.EndCycle
		}
		kinds := []profile.StepKind{profile.KindCompute, profile.KindExchange, profile.KindCompute, profile.KindExchange, profile.KindCompute}
		for k, s := range tile.Samples {
			if s.Step.Kind != kinds[k] || s.Step.Phase != uint32(k/2) {
				t.Errorf("sample %d is of kind %d, phase %d", k, s.Step.Kind, s.Step.Phase)
			}
		}
		if tile.Samples[0].Step.Kernel != "gelu" || tile.Samples[4].Step.Kernel != "add" {
			t.Errorf("tile %d: %+v", tile.PhysicalTile, tile.Samples)
		}
		last = max(last, uint64(at))
	}
	if last != bare.Cycles {
		t.Errorf("last sample ends at %d, run at %d", last, bare.Cycles)
	}
	if k := bare.ByKind; k.Compute+k.Exchange+k.Synchronization != bare.Cycles {
		t.Errorf("%+v does not sum to %d", k, bare.Cycles)
	}

	// The plan names samples and changes nothing else.
	p.ProfileTiles = []program.TileProfilePlan{{PhysicalTile: 0, Steps: []profile.Step{{Operation: "first", Kernel: "gelu", Phase: 7}}}, {PhysicalTile: 1471}}
	named, err := start(p, device.Options{CollectSamples: true})
	if err != nil {
		t.Fatal(err)
	}
	if s := named.Profile.Tiles[0].Samples; s[0].Step.Operation != "first" || s[0].Step.Phase != 7 || s[1].Step.Kind != profile.KindExchange {
		t.Errorf("named samples %+v", s[:2])
	}
	named.Profile, bare.Profile = nil, nil
	if !reflect.DeepEqual(named, bare) {
		t.Error("the plan changed the run")
	}
	if r, err := start(p, device.Options{}); err != nil || r.Profile != nil {
		t.Errorf("unasked profile: %v, %v", r.Profile, err)
	}
}

func TestProgress(t *testing.T) {
	var seen []string
	d := device.New(device.Options{Progress: func(p device.Progress) { seen = append(seen, fmt.Sprint(p.Done, "/", p.Total, " ", p.Cycles > 0)) }})
	if err := d.Load(busy().build()); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Run(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	if want := []string{"1/2 true", "2/2 true"}; !reflect.DeepEqual(seen, want) {
		t.Errorf("progress %v, want %v", seen, want)
	}
}

// TestReload: a device forgets the package before.
func TestReload(t *testing.T) {
	d := device.New(device.Options{})
	ctx := context.Background()
	for range 2 {
		if err := d.Load(busy().build()); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Run(ctx, nil); err != nil {
			t.Fatal(err)
		}
		j := newJob()
		j.tile(0)
		j.out(0, inter2, 8)
		if err := d.Load(j.build()); err != nil {
			t.Fatal(err)
		}
		r, err := d.Run(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		if x := unhalf(r.Outputs)[0]; x == x || r.Cycles != 0 || len(r.Phases) != 0 {
			t.Errorf("memory holds %v after a new load, run %+v", x, r)
		}
	}
	zero := device.New(device.Options{ZeroMemory: true})
	j := newJob()
	j.tile(0)
	j.out(0, inter2, 8)
	for range 2 {
		if err := zero.Load(j.build()); err != nil {
			t.Fatal(err)
		}
		if r, err := zero.Run(ctx, nil); err != nil || r.Outputs[0] != 0 {
			t.Errorf("zero memory holds % x, %v", r.Outputs, err)
		}
	}
}

// FuzzCommands executes hostile records: they end or fault, and never take the
// process down.
func FuzzCommands(f *testing.F) {
	valid := newJob()
	valid.tile(0).call(program.KernelGEMM, standard, inter2, inter, 4, 2, 1, 0, 0).
		call(program.KernelCopyStrided, standard, inter, 2, 4, 16, 16).
		call(program.KernelReduce, standard, standard2, 64, 2, inter, 16, program.ReduceAddA, inter2, 0, 0).
		exchange(3, receiver(1, 0, sentAt, 4, inter)...)
	f.Add(valid.tile(0).stream, valid.tile(0).rows, uint32(0))
	f.Add([]byte{2, 1, 0, 0}, []byte{}, uint32(64))
	f.Add(make([]byte, 640), []byte{0, 0, 0xA0, 0x43}, uint32(0))
	paired := newJob()
	paired.tile(0).exchange(1, new(row).send(131, 4, standard, 5).xpic(180, machine.Neutral, true).format(190, 1).format(200, 0).end(220)...)
	f.Add(paired.tile(0).stream, paired.tile(0).rows, uint32(0))
	d := device.New(device.Options{Workers: 1})
	f.Fuzz(func(t *testing.T, stream, rows []byte, offset uint32) {
		if len(stream) > 0x3000 || len(rows) > 0x3000 {
			return
		}
		j := newJob()
		j.tile(0).stream, j.tile(0).rows = stream, rows
		// Another tile that sends and listens, so that exchanges have a partner.
		j.tile(1).exchange(3, new(row).send(sentAt, 64, standard, 3).end(250)...)
		p := j.build()
		p.HostExchange.Calls = []program.HostCall{{Name: "run", Command: 0}}
		p.Tiles[0].CommandAddress += offset
		if err := d.Load(p); err != nil {
			if _, ok := err.(*device.Fault); !ok {
				t.Fatalf("load: %v is no fault", err)
			}
			return
		}
		if _, err := d.Run(context.Background(), nil); err != nil {
			if _, ok := err.(*device.Fault); !ok {
				t.Fatalf("run: %v is no fault", err)
			}
		}
	})
}

// FuzzRows executes rows made of valid instructions with arbitrary fields on two
// pairs of tiles: whatever they do to each other, the phase ends or faults, and in
// the same way with any number of workers.
func FuzzRows(f *testing.F) {
	f.Add([]byte{1, 0, 129, 0, 3, 4, 9, 1, 1, 2, 113, 0, 4, 3, 5, 0})
	f.Add([]byte{0x43, 4, 30, 0, 5, 63, 1, 5, 1, 1, 6, 2, 2, 1, 8, 8, 7, 7, 7, 7})
	tiles := []int{0, 2, machine.Physical(4), machine.Physical(5)}
	one, many := device.New(device.Options{Workers: 1}), device.New(device.Options{Workers: 3})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 4000 {
			return
		}
		rows := make([][]uint32, len(tiles))
		for len(data) >= 4 {
			// Kind of instruction and tile, a count, a value of two bytes.
			kind, tile := data[0]&7, data[0]>>3&3
			count, v := uint32(data[1]), uint32(data[2])|uint32(data[3])<<8
			data = data[4:]
			source := uint32(machine.Neutral)
			if v&3 != 0 {
				source = uint32(tiles[v>>2&3])
			}
			address := uint32(inter)/4 + v&0x3FFF
			w := &rows[tile]
			switch kind {
			case 0:
				*w = append(*w, 0x40A00000|count)
			case 1:
				*w = append(*w, 0x60000000|count&0x7F<<19|address)
			case 2:
				*w = append(*w, 0x60000000|count&0x7F<<19|1<<18|v&3)
			case 3:
				*w = append(*w, 0x64000000|count<<14|v>>15<<13|source)
			case 4:
				*w = append(*w, 0x78000000|count&0x3F<<21|address/(1+v&1)<<3|count>>5&4|(1+v%3))
			case 5:
				*w = append(*w, 0x70000000|count&0x3F<<21|v>>8&7)
			case 6:
				*w = append(*w, 0x70100000|count&0x3F<<21|v>>14<<18|source)
			case 7:
				if len(*w)%2 == 1 {
					*w = append(*w, 0x40A00000)
				}
				*w = append(*w, 0xF0000000|count&0x3F<<21|address<<3|v&3, v>>15<<31|source<<18|address)
			}
		}
		j := newJob()
		for i, p := range tiles {
			if len(rows[i]) == 0 {
				j.tile(p).exchange(0)
			} else {
				j.tile(p).exchange(0, append(rows[i], 0x40A000FF, 0x43A00000)...)
			}
			j.out(p, inter, 0x10000)
		}
		p := j.build()
		run := func(d *device.Device) ([]byte, string) {
			if err := d.Load(p); err != nil {
				t.Fatal(err)
			}
			r, err := d.Run(context.Background(), nil)
			if err == nil {
				return r.Outputs, ""
			}
			if _, ok := err.(*device.Fault); !ok {
				t.Fatalf("%v is no fault", err)
			}
			return nil, err.Error()
		}
		a, fault := run(one)
		b, fault2 := run(many)
		if fault != fault2 || !bytes.Equal(a, b) {
			t.Fatalf("1 worker: %q, 3 workers: %q, same memory %v", fault, fault2, bytes.Equal(a, b))
		}
	})
}

func BenchmarkGEMM(b *testing.B) {
	for _, f8 := range []bool{false, true} {
		b.Run(map[bool]string{false: "F16", true: "F8"}[f8], func(b *testing.B) {
			flags, k := uint32(0), 16
			if f8 {
				flags, k = program.GEMMF8, 32
			}
			const rows, inner, cols = 82, 192, 160
			j := newJob()
			for i := range 4 {
				j.tile(i).put(standard, make([]byte, rows*inner*16/k*2)).put(0xC0000, make([]byte, inner*cols*16/k*2)).
					call(program.KernelGEMM, standard, 0xC0000, inter, rows, uint32(inner/k), cols/16, flags, 0)
			}
			d := device.New(device.Options{Workers: 1})
			if err := d.Load(j.build()); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, err := d.Run(context.Background(), nil); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(4*2*rows*inner*cols*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}

// BenchmarkExchange is a phase in which half the tiles of a card send 64 messages
// of 8 words each to their partner.
func BenchmarkExchange(b *testing.B) {
	const messages, n, gap = 64, 8, 23
	type control struct {
		at     int
		source int // a mux select; -1: none
		to     uint32
	}
	j := newJob()
	for l := 0; l < machine.Tiles; l += 2 {
		s, d := machine.Physical(l), machine.Physical(l+1)
		tx, rx := new(row), new(row)
		var list []control
		for k := range messages {
			event := sentAt + gap*k
			tx.send(event, n, standard+uint32(64*k), uint32(machine.Direction(s, d)))
			x := mux(s, d, event)
			p := write(s, d, event)
			for p%gap == x%gap || p%gap == (x+n)%gap {
				p-- // the word before goes astray, which is no fault
			}
			list = append(list, control{x, s, 0}, control{x + n, machine.Neutral, 0}, control{p, -1, inter + uint32(64*k)})
		}
		slices.SortFunc(list, func(a, b control) int { return a.at - b.at })
		for _, c := range list {
			if c.source < 0 {
				rx.pointer(c.at, c.to)
			} else {
				rx.source(c.at, uint32(c.source))
			}
		}
		j.tile(s).exchange(0, tx.end(tx.now)...)
		j.tile(d).exchange(0, rx.end(rx.now+200)...)
	}
	d := device.New(device.Options{})
	if err := d.Load(j.build()); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := d.Run(context.Background(), nil); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*messages*machine.Tiles/2/b.Elapsed().Seconds(), "receives/s")
}
