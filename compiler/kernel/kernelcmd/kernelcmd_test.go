package kernelcmd

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func run(t *testing.T, line string) (string, error) {
	t.Helper()
	c := Command()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(strings.Fields(line))
	err := c.Execute()
	return out.String(), err
}

func TestCostJSON(t *testing.T) {
	out, err := run(t, "cost --kernel gemm --precision f8 --rows 244 --inner 128 --cols 64 --json")
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{
		"kernel": "gemm", "precision": "f8", "rows": 244.0, "inner": 128.0, "cols": 64.0, "weights": "interleaved",
		"output": "native", "cycles": 18568.0, "code_bytes": 2048.0, "basis": "cycles modelled, code bytes assumed",
	} {
		if got[key] != want {
			t.Errorf("%s is %v, want %v", key, got[key], want)
		}
	}
}

func TestCostText(t *testing.T) {
	for line, want := range map[string]string{
		"cost --kernel gemm --precision f16 --rows 48 --inner 240 --cols 64 --weights standard --output packed": "gemm f16 standard weights packed output rows 48 inner 240 cols 64: 35022 cycles (modelled), 23.348 µs at 1.5 GHz",
		"cost --kernel reduce --elements 2208 --partials 4":                                                     "reduce elements 2208 partials 4: 4974 cycles (modelled)",
		"cost --kernel reduce --elements 96 --partials 2 --add-a --gelu":                                        "reduce elements 96 partials 2 gelu add-a: ",
		"cost --kernel layernorm --rows 1 --cols 1152 --f8-out":                                                 "9936 cycles (modelled)",
		"cost --kernel softmax --rows 8 --keys 729 --padded 768":                                                "19356 cycles",
		"cost --kernel fill --bytes 38912":                                                                      "5106 cycles",
		"cost --kernel copy-strided --rows 7 --words 3":                                                         "438 cycles",
	} {
		out, err := run(t, line)
		if err != nil || !strings.Contains(out, want) || strings.Count(out, "\n") != 1 {
			t.Errorf("%s: got %q, %v, want %q", line, out, err, want)
		}
	}
}

func TestCostRefuses(t *testing.T) {
	for line, want := range map[string]string{
		"cost":                                   `--kernel "": accepted: gemm, reduce, add, add-rows, layernorm`,
		"cost --kernel conv --rows 3":            `--kernel "conv": accepted: gemm`,
		"cost --kernel gemm --rows 3 --inner 16": "--cols is missing; accepted for gemm: 1 to 319488",
		"cost --kernel gemm --rows 0 --inner 16 --cols 16":                 "--rows 0; accepted for gemm: 1 to 319488",
		"cost --kernel gemm --rows -3 --inner 16 --cols 16":                "--rows -3; accepted",
		"cost --kernel gemm --rows many --inner 16 --cols 16":              `invalid argument "many" for "--rows" flag: accepted: whole numbers`,
		"cost --kernel gemm --rows 1 --inner 16 --cols 16 --precision f32": `"--precision" flag: accepted: f16, f8`,
		"cost --kernel gemm --rows 1 --inner 16 --cols 16 --weights slow":  `"--weights" flag: accepted: interleaved, standard`,
		"cost --kernel gemm --rows 1 --inner 16 --cols 16 --output x":      `"--output" flag: accepted: native, packed`,
		"cost --kernel add --elements 8 --precision f16":                   "--precision does not apply to add; it takes --elements",
		"cost --kernel add --elements 8 --rows 2":                          "--rows does not apply to add; it takes --elements",
		"cost --kernel reduce --elements 12 --partials 2":                  "--elements 12; accepted for reduce: multiples of 8, 8 to 319488",
		"cost --kernel softmax --rows 1 --keys 65 --padded 64":             "--padded 64; accepted for softmax: at least keys (65)",
		"cost --kernel gemm extra":                                         "extra",
		"list extra":                                                       "extra",
	} {
		out, err := run(t, line)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %q, %v, want %q", line, out, err, want)
		}
	}
}

func TestList(t *testing.T) {
	out, err := run(t, "list")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"MODELLED", "gemm", "pack-right", "464 + n (4 rows + 155.5", "assumed"} {
		if !strings.Contains(out, want) {
			t.Errorf("the table lacks %q", want)
		}
	}
	out, err = run(t, "list --json")
	if err != nil {
		t.Fatal(err)
	}
	var got table
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Kernels) != len(names()) || got.Kernels[0].Separate[0] != [2]string{"left", "out"} || !strings.Contains(got.Basis, "modelled") {
		t.Errorf("got %+v", got)
	}
}
