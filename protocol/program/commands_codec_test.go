package program_test

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"ipufarm/protocol/program"
)

func TestCommandRecord(t *testing.T) {
	gemm := program.Command{Kind: program.Call, Kernel: program.KernelGEMM, Label: 7}
	copy(gemm.Args[:], []uint32{0x60000, 0x80000, 0x88000, 5, 2, 3, program.GEMMF8, 0xFFFFFFF8})
	exchange := program.Command{Kind: program.Exchange, Label: 3}
	exchange.Args[program.ArgRow], exchange.Args[program.ArgRowBytes] = 0x64040, 24
	exchange.Args[program.ArgIncomingBase], exchange.Args[program.ArgOutgoingBase] = 0x70000, 8
	for _, c := range []struct {
		name    string
		command program.Command
		record  string // leading bytes, the rest is zero
	}{
		{"end", program.Command{}, ""},
		{"exchange", exchange, "01000000 03000000 40400600 18000000 00000700 08000000"},
		{"gemm", gemm, "02010000 07000000 00000600 00000800 00800800 05000000 02000000 03000000 01000000 f8ffffff"},
	} {
		want := make([]byte, program.CommandBytes)
		prefix, err := hex.DecodeString(strings.ReplaceAll(c.record, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		copy(want, prefix)
		got := make([]byte, program.CommandBytes)
		program.EncodeCommand(got, c.command)
		if !bytes.Equal(got, want) {
			t.Errorf("%s encodes to\n%x, want\n%x", c.name, got, want)
		}
		back, err := program.DecodeCommand(want)
		if err != nil || back != c.command {
			t.Errorf("%s decodes to %+v, %v", c.name, back, err)
		}
	}
}

func TestDecodeCommandRefuses(t *testing.T) {
	record := func(words ...byte) []byte { return append(words, make([]byte, program.CommandBytes-len(words))...) }
	late := record(2, byte(program.KernelAdd))
	late[8+4*program.KernelAdd.Args()] = 1
	for want, src := range map[string][]byte{
		"63 bytes":           make([]byte, 63),
		"unknown kind 3":     record(3),
		"unknown kind 128":   record(0x80, 0xFF, 0x80),
		"bits 24-31":         record(1, 0, 0, 1),
		"with a kernel":      record(1, 1),
		"unknown kernel 0":   record(2),
		"unknown kernel 999": record(2, 999&0xFF, 999>>8),
		"unused word 6":      late,
		"unused word 2":      record(0, 0, 0, 0, 0, 0, 0, 0, 1),
	} {
		if _, err := program.DecodeCommand(src); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("% x...: error %v, want one with %q", src[:12], err, want)
		}
	}
}

func TestEveryKernelHasANameAndArguments(t *testing.T) {
	seen := map[string]bool{}
	for k := program.KernelNone + 1; k < program.KernelCount; k++ {
		if name := k.String(); name == "" || seen[name] {
			t.Errorf("kernel %d is named %q", k, name)
		} else {
			seen[name] = true
		}
		if n := k.Args(); n < 2 || n > program.CommandArgs {
			t.Errorf("%v has %d arguments", k, n)
		}
	}
	if program.KernelCount.Args() != 0 || program.KernelCount.String() != "kernel 20" {
		t.Errorf("past the end: %v with %d arguments", program.KernelCount, program.KernelCount.Args())
	}
}

func FuzzDecodeCommand(f *testing.F) {
	f.Add(make([]byte, program.CommandBytes))
	f.Add(bytes.Repeat([]byte{2, 1}, 32))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, src []byte) {
		c, err := program.DecodeCommand(src)
		if err != nil {
			return
		}
		back := make([]byte, program.CommandBytes)
		program.EncodeCommand(back, c)
		if !bytes.Equal(back, src[:program.CommandBytes]) {
			t.Fatalf("% x decodes to %+v, which encodes to % x", src[:program.CommandBytes], c, back)
		}
	})
}
