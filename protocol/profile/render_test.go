package profile

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func render(t testing.TB, p *Profile, meta RenderMeta) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := Render(&out, p, meta); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// element returns the text of a script element of a page.
func element(t *testing.T, html []byte, id string) string {
	t.Helper()
	m := regexp.MustCompile(`(?s)<script[^>]* id="` + id + `">\n(.*?)\n</script>`).FindSubmatch(html)
	if m == nil {
		t.Fatalf("the page has no %s", id)
	}
	return string(m[1])
}

// hostile is the example with a name that would be markup anywhere.
func hostile() *Profile {
	p := example()
	p.Tiles[0].Samples[0].Step.Operation = `</script><img src=x onerror="document.title='owned'">`
	p.Tiles[0].Samples[0].Step.Metadata = []Metadata{{"<b>", `"&'`}}
	return p
}

func TestPageIsSelfContainedAndEscaped(t *testing.T) {
	p := hostile()
	html := render(t, p, RenderMeta{Title: "<title>&", Device: "model", Facts: []Metadata{{"package", "<script>"}}})
	if !bytes.Equal(html, render(t, p, RenderMeta{Title: "<title>&", Device: "model", Facts: []Metadata{{"package", "<script>"}}})) {
		t.Error("two renderings of one profile differ")
	}
	if !bytes.Contains(html, []byte("<title>&lt;title&gt;&amp;</title>")) {
		t.Error("the title is not escaped")
	}
	for _, never := range []string{"http:", "https:", "url(", "@import", "<img", "<link", "{{", "</script><img"} {
		if bytes.Contains(html, []byte(never)) {
			t.Errorf("the page contains %q", never)
		}
	}
	if n := bytes.Count(html, []byte("</script>")); n != 3 {
		t.Errorf("%d script elements end, want 3", n)
	}
	for measured, want := range map[bool]string{false: "modelled cycles, simulated device", true: "measured cycles"} {
		data := element(t, render(t, p, RenderMeta{Measured: measured}), "data")
		if !strings.Contains(data, `"origin":"`+want+`"`) {
			t.Errorf("measured %v: the page does not say %q", measured, want)
		}
	}
}

// TestPageHoldsEverySample unpacks the data as the page's script does.
func TestPageHoldsEverySample(t *testing.T) {
	p := example()
	html := render(t, p, RenderMeta{})
	var d page
	if err := json.Unmarshal([]byte(element(t, html, "data")), &d); err != nil {
		t.Fatal(err)
	}
	packed, err := base64.StdEncoding.DecodeString(element(t, html, "samples"))
	if err != nil {
		t.Fatal(err)
	}
	next := func() uint32 {
		v, n := binary.Uvarint(packed)
		if n <= 0 {
			t.Fatal("the packed samples end early")
		}
		packed = packed[n:]
		return uint32(v)
	}
	for _, tile := range p.Tiles {
		if n := int(next()); n != len(tile.Samples) {
			t.Fatalf("tile %d: %d samples, want %d", tile.PhysicalTile, n, len(tile.Samples))
		}
		now := d.Base
		for _, want := range tile.Samples {
			start := now + next()
			now = start + next()
			c := d.Classes[7*next():]
			got := fmt.Sprint(start, now, d.Strings[c[0]], d.Strings[c[1]], StepKind(c[2]), c[4])
			if want := fmt.Sprint(want.StartCycle, want.EndCycle, want.Step.Operation, want.Step.Kernel, want.Step.Kind, want.Step.Phase); got != want {
				t.Errorf("tile %d: sample %s, want %s", tile.PhysicalTile, got, want)
			}
			if meta := d.Metas[c[6]]; len(meta) != 2*len(want.Step.Metadata) {
				t.Errorf("tile %d: %d properties, want %d", tile.PhysicalTile, len(meta)/2, len(want.Step.Metadata))
			}
		}
	}
	if len(packed) != 0 || d.Samples != 13 {
		t.Errorf("%d bytes left, %d samples promised", len(packed), d.Samples)
	}
	sum := d.MeanKinds.Compute + d.MeanKinds.Exchange + d.MeanKinds.Synchronization + d.MeanKinds.Idle
	if sum < 389.9 || sum > 390.1 || d.CriticalPathKinds.Total() != 390 || d.CriticalTileKinds.Total() != 390 {
		t.Errorf("kinds %+v, %+v, %+v, each should sum to 390", d.MeanKinds, d.CriticalPathKinds, d.CriticalTileKinds)
	}
	operations := 0.0
	for _, o := range d.Operations {
		operations += o.Mean.Compute + o.Mean.Exchange + o.Mean.Synchronization + o.Mean.Idle
	}
	if operations < 389.9 || operations > 390.1 {
		t.Errorf("operations sum to %v cycles of an average tile, want 390", operations)
	}
}

func TestPageWithoutSamples(t *testing.T) {
	for _, p := range []*Profile{
		{SchemaVersion: SchemaVersion, ClockHz: 1},
		{SchemaVersion: SchemaVersion, ClockHz: 1, Tiles: []TileProfile{{PhysicalTile: 3}}},
	} {
		if data := element(t, render(t, p, RenderMeta{}), "data"); strings.Contains(data, "null") {
			t.Errorf("the page's data has a null: %s", data)
		}
	}
	if err := Render(&bytes.Buffer{}, &Profile{}, RenderMeta{}); err == nil || !strings.Contains(err.Error(), "schema version 0") {
		t.Errorf("a broken profile: %v", err)
	}
}

func TestPageOfAFullSizeRun(t *testing.T) {
	p := fullSize()
	html := render(t, p, RenderMeta{})
	if len(html) > 25<<20 {
		t.Errorf("page of %d bytes, the limit is 25 MB", len(html))
	}
	t.Logf("page of %d bytes", len(html))

	// Properties that differ everywhere are left out, and the page says so.
	n := 0
	for i := range p.Tiles {
		for j := range p.Tiles[i].Samples {
			n++
			p.Tiles[i].Samples[j].Step.Metadata = []Metadata{{"number", fmt.Sprint(n)}}
		}
	}
	html = render(t, p, RenderMeta{})
	if len(html) > 25<<20 || !bytes.Contains(html, []byte("Left out")) {
		t.Errorf("page of %d bytes with %d different properties", len(html), n)
	}
}

// TestPageInABrowser opens the page and uses it by keyboard.
func TestPageInABrowser(t *testing.T) {
	browser := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			browser = path
			break
		}
	}
	if browser == "" {
		t.Skip("Chromium (Debian package chromium) is not installed")
	}
	// The script of the test runs after the page's own and leaves what it sees in attributes.
	const probe = `<script>
addEventListener("error", (e) => { document.documentElement.dataset.error = e.message; });
(() => {
  const $ = (id) => document.getElementById(id), key = (k) => $("timeline").dispatchEvent(new KeyboardEvent("keydown", { key: k }));
  const seen = document.documentElement.dataset;
  $("find").value = "reduce";
  $("find").oninput();
  seen.found = $("found").textContent;
  key("Home"); key("n"); key("p"); key("p"); key("p"); key("p"); key("n");
  seen.selected = $("selected").textContent;
  key("j");
  seen.below = $("selected").textContent;
  for (const k of ["+", "]", "-", "[", "ArrowLeft", "ArrowDown", "f", "c", "0"]) key(k);
  for (const v of ["operation", "kernel"]) { $("colour").value = v; $("colour").onchange(); }
  document.querySelector("#barriers td button").click();
  seen.operations = $("operations").rows.length - 1;
  seen.barriers = $("barriers").rows.length - 1;
  seen.heading = $("title").textContent;
  seen.origin = $("origin").textContent;
})();
</script>
</body>`
	html := render(t, hostile(), RenderMeta{Title: "a <b> title", Device: "model"})
	dir, err := os.MkdirTemp("", "page")
	if err != nil {
		t.Fatal(err)
	}
	// The browser's last processes may still write, so TempDir's check would be flaky.
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "profile.html")
	if err := os.WriteFile(file, bytes.Replace(html, []byte("</body>"), []byte(probe), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--user-data-dir="+filepath.Join(dir, "user"),
		"--window-size=1300,1000", "--virtual-time-budget=3000", "--dump-dom", "file://"+file)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", browser, err)
	}
	dom := string(out)
	root, _, _ := strings.Cut(dom[max(0, strings.Index(dom, "<html")):], ">")
	for _, want := range []string{
		`data-ready="13"`,
		`data-found="2 samples"`,
		`data-selected="gather · exchange · phase 0 · tile 2 (logical 1)`,
		`data-below="load · copy · compute · phase 0 · tile 64 (logical 2)`,
		`waits 50 for the last tile, then 80`,
		`data-operations="7"`,
		`data-barriers="2"`,
		`data-heading="a &lt;b&gt; title"`,
		`data-origin="modelled cycles, simulated device model"`,
	} {
		// The element's own > of "<b>" is escaped in attributes by some versions only.
		if !strings.Contains(dom, want) && !strings.Contains(dom, strings.NewReplacer("&lt;", "<", "&gt;", ">").Replace(want)) {
			t.Errorf("after its script the page's root has no %s: %.1500s", want, root)
		}
	}
	if strings.Contains(root, "data-error") || strings.Contains(dom, "owned</title>") {
		t.Errorf("the page's script failed, or a name ran as markup: %.1500s", root)
	}
}

func BenchmarkRender(b *testing.B) {
	p := fullSize()
	for b.Loop() {
		b.SetBytes(int64(len(render(b, p, RenderMeta{}))))
	}
}
