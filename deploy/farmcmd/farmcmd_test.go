package farmcmd

import (
	"bytes"
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"ipufarm/protocol"
)

// Everything that a person may get wrong before anybody is called is one line that
// names the flag or key and says what is accepted.
func TestBadInput(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := l.Addr().String() // nobody listens there any more
	l.Close()
	t.Chdir(t.TempDir())
	scratch := t.TempDir()
	t.Setenv("TMPDIR", scratch)
	for name, text := range map[string]string{
		"unknown.json": `{"nats":{"url":"x"}}`, "type.json": `{"slots":"four"}`, "twice.json": `{"name":"a","name":"b"}`, "text.json": "NATS", "timer.json": `{"timers":{"renew":"often"}}`,
		"nats.json": `{"nats":{"urls":["nats://` + closed + `"]}}`,
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	job := strings.Repeat("a", 32)
	good := "--nats nats://" + closed + " --s3 " + closed + " --s3-access-key a --s3-secret-key b "
	for _, c := range []struct{ args, want string }{
		{"watch", "0 arguments: one job's id"},
		{"watch " + job + " more", "2 arguments: one job's id"},
		{"explain xyz", `job "xyz" is not 32 hexadecimal digits`},
		{"watch " + job, "--nats (config key nats.urls): missing; addresses such as nats://host:4222"},
		{"cancel " + job + " --nats http://x", `--nats (config key nats.urls) "http://x": addresses such as`},
		{"cancel " + job + " --nats nats://u:p@x", "--nats-user and --nats-password (config keys"},
		{"watch " + job + " --nats nats://x --nats-user u", "--nats-user and --nats-password (config keys nats.user, nats.password): one is missing"},
		{"watch " + job + " --nats nats://" + closed, "--nats (config key nats.urls): "},
		{"watch " + job + " --config nats.json", "a NATS server with JetStream"},
		{"watch " + job + " --timeout 0s", "--timeout 0s: durations above 0"},
		{"watch " + job + " --timeout soon", `--timeout "soon"`},
		{"watch " + job + " --config absent.json", "--config absent.json: "},
		{"watch " + job + " --config=", "--config: the path is empty"},
		{"watch " + job + " --config unknown.json", `--config unknown.json: key "nats.url" is unknown; accepted are nats.urls, nats.user`},
		{"watch " + job + " --config type.json", `--config type.json: key "slots": a string is not accepted`},
		{"watch " + job + " --config twice.json", `--config twice.json: canonical JSON: key "name" occurs twice`},
		{"watch " + job + " --config text.json", "--config text.json: "},
		{"watch " + job + " --config timer.json", `config key timers.renew "often": durations such as`},
		{"fetch " + job + " " + good, "-o, --output: missing"},
		{"fetch " + job + " -o x --nats nats://x", "--s3 (config key s3.endpoint): missing; an address host:port"},
		{"fetch " + job + " -o x --nats nats://x --s3 https://x", "--s3 (config key s3.endpoint) \"https://x\": an address host:port"},
		{"fetch " + job + " -o x --nats nats://x --s3 x:9000", "--s3-access-key (config key s3.access_key): missing"},
		{"fetch " + job + " -o x --nats nats://x --s3 x:9000 --s3-access-key a", "--s3-secret-key (config key s3.secret_key): missing"},
		{"retry", "0 arguments: one job's id"},
		{"top all", `argument "all": only flags are accepted`},
		{"top --device-class IPU", "--device-class (config key device.class): name \"IPU\""},
		{"submit --priority 3", "--priority 3: 0 (first) to 2 (last)"},
		{"submit --device A", "--device: name \"A\""},
		{"submit --tool 12 --workload mlp-smoke --tiles 64", "--tool (config key tool): \"12\" is not 64"},
		{"submit --tiles 65", "--tiles 65: "},
		{"submit x", `argument "x": only flags are accepted`},
		{"coordinator " + good, "--state (config key state): missing"},
		{"coordinator --state s --replicas 2 " + good, "--replicas 2 (config key nats.replicas): 1 is accepted"},
		{"coordinator --state s --devices A " + good, "--devices (config key devices): name \"A\""},
		{"coordinator --state s " + good, "--nats (config key nats.urls): "},
		{"coordinator --state text.json " + good, "(config key state): "},
		{"worker --slots 5000 " + good, "--slots 5000 (config key slots): 1 to 1024"},
		{"worker --slots many " + good, `--slots "many": a whole number is accepted`},
		{"worker " + good, "--nats (config key nats.urls): "},
		{"worker --name Me " + good, "--name (config key name): name \"Me\""},
		{"worker --nats nats://x", "--s3 (config key s3.endpoint): missing"},
		{"runner --state s " + good, "--device (config key device.name): missing"},
		{"runner --state s --device any " + good, "--device any (config key device.name): any other name"},
		{"runner --device card0 " + good, "--state (config key state): missing"},
		{"up --workers 1000", "--workers 1000: 1 to 256"},
		{"up --nats-port 70000", "--nats-port 70000: 1 to 65535"},
		{"up --nats-port 7000 --s3-port 7000", "--nats-port and --s3-port 7000: two different ports"},
		{"up --client-config text.json", "it exists and was not written by an embedded farm"},
		{"up --client-config no/such/x.json", "a file in a folder that exists is accepted"},
		{"up --client-config=", "--client-config: the path is empty"},
	} {
		t.Run(c.args, func(t *testing.T) {
			var out bytes.Buffer
			root := &cobra.Command{Use: "ipufarm", SilenceErrors: true, SilenceUsage: true}
			root.AddCommand(Commands()...)
			root.SetArgs(strings.Fields(c.args))
			root.SetOut(&out)
			root.SetErr(&bytes.Buffer{})
			err := root.ExecuteContext(context.Background())
			if err == nil {
				t.Fatal("no error")
			}
			if text := err.Error(); !strings.Contains(text, c.want) || strings.Contains(text, "\n") {
				t.Errorf("%q, want one line with %q", text, c.want)
			}
			if out.Len() > 0 {
				t.Errorf("standard output %q", &out)
			}
		})
	}
	// What was refused left no temporary folder of a process behind.
	if left, err := os.ReadDir(scratch); err != nil || len(left) > 0 {
		t.Errorf("left in the folder for temporary files: %v %v", left, err)
	}
}

func presence(name, tool string, slots int, device string) protocol.Presence {
	return protocol.Presence{Owner: protocol.Owner{Name: name, Boot: "b-" + name}, Tool: tool, Slots: slots, Device: device}
}

func TestWhyTask(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	mine, other := strings.Repeat("1", 64), strings.Repeat("2", 64)
	a := presence("a", mine, 2, "")
	for _, c := range []struct {
		name   string
		kind   protocol.Kind
		device string
		record protocol.Record
		fleet  []protocol.Presence
		want   string
	}{
		{"nobody", protocol.KindPlan, "any", protocol.Record{State: protocol.Queued}, nil, "no worker is there"},
		{"only a runner", protocol.KindPlan, "any", protocol.Record{State: protocol.Queued}, []protocol.Presence{presence("r", "", 0, "sim0")}, "no worker is there"},
		{"other tool", protocol.KindPlan, "any", protocol.Record{State: protocol.Queued}, []protocol.Presence{presence("b", other, 1, "")}, "none of the 1 workers has the tool " + mine},
		{"busy", protocol.KindPlan, "any", protocol.Record{State: protocol.Queued}, []protocol.Presence{a, presence("b", other, 1, "")}, "1 workers with 2 slots have the job's tool"},
		{"given back", protocol.KindPlan, "any", protocol.Record{State: protocol.Queued, Infra: 2, Crash: 1, Why: "disk full"}, []protocol.Presence{a}, "after 2 faults of the infrastructure and 1 crashes, the last: disk full"},
		{"running", protocol.KindPlan, "any", protocol.Record{State: protocol.Running, Owner: &a.Owner, Since: now.Add(-90 * time.Second)}, []protocol.Presence{a}, "being executed, for 1m30s"},
		{"clocks differ", protocol.KindPlan, "any", protocol.Record{State: protocol.Running, Owner: &a.Owner, Since: now.Add(time.Hour)}, []protocol.Presence{a}, "being executed, for 0s"},
		{"silent", protocol.KindPlan, "any", protocol.Record{State: protocol.Running, Owner: &protocol.Owner{Name: "a", Boot: "earlier"}}, []protocol.Presence{a}, "has not been heard of"},
		{"no runner", protocol.KindRun, "any", protocol.Record{State: protocol.Queued}, []protocol.Presence{a}, "no runner is there"},
		{"other device", protocol.KindRun, "card1", protocol.Record{State: protocol.Queued}, []protocol.Presence{presence("r", "", 0, "card0")}, "no runner has the device card1; there are card0"},
		{"device busy", protocol.KindRun, "any", protocol.Record{State: protocol.Queued}, []protocol.Presence{presence("r", "", 0, "card0")}, "devices there: card0"},
		{"done", protocol.KindPlan, "any", protocol.Record{State: protocol.Done}, nil, "has not taken its verdict in yet"},
	} {
		t.Run(c.name, func(t *testing.T) {
			key := strings.Repeat("3", 64)
			r := &protocol.JobReport{Winner: protocol.NoCandidate, Submission: &protocol.Job{Tool: mine, DeviceClass: "ipu21", Device: c.device},
				Pending: []protocol.PendingTask{{Kind: c.kind, Candidate: protocol.NoCandidate, Key: key}}}
			e := explain(r, map[string]protocol.Record{key: c.record}, c.fleet, now)
			if len(e.Tasks) != 1 || !strings.Contains(e.Tasks[0].Why, c.want) {
				t.Errorf("%+v, want %q", e.Tasks, c.want)
			}
		})
	}
}

func TestWhyFinalists(t *testing.T) {
	refusal := func(constraint string, needed, free, hole int64) *protocol.Refusal {
		return &protocol.Refusal{Constraint: constraint, Tile: 7, Step: 2, Needed: needed, Free: free, LargestHole: hole, Allocation: "qkv.weight",
			Message: constraint + " on tile 7: no place", Live: []protocol.Live{{Name: "x", Bytes: 1000}, {Name: "y", Bytes: 2000}}}
	}
	feasible := func(rank int, cycles uint64) protocol.FinalistReport {
		return protocol.FinalistReport{Rank: rank, Family: "rows", Verdict: "feasible", ExactCycles: cycles}
	}
	infeasible := func(rank int, r *protocol.Refusal) protocol.FinalistReport {
		return protocol.FinalistReport{Rank: rank, Family: "rows", Verdict: "infeasible", Constraint: r.Constraint, Refusal: r}
	}
	for _, c := range []struct {
		name      string
		policy    protocol.PolicyName
		winner    int
		finalists []protocol.FinalistReport
		want      []string
	}{
		{"capacity", protocol.FirstFeasible, 1, []protocol.FinalistReport{infeasible(0, refusal(protocol.Capacity, 700_000, 600_000, 500_000)), feasible(1, 10), {Rank: 2, Verdict: "cancelled"}}, []string{
			"finalist 0 (rows), infeasible, estimated 0 modelled cycles: capacity on tile 7: no place; 100,000 bytes too much, however they are arranged; live then: y with 2,000 bytes, x with 1,000 bytes\n", "finalist 1 (rows), feasible, exact 10 modelled cycles: won", "could not win any more", "finalist 0 (rows) would have won if it were feasible"}},
		{"fragmentation", protocol.FirstFeasible, 1, []protocol.FinalistReport{infeasible(0, refusal(protocol.Fragmentation, 4096, 9000, 2048)), feasible(1, 10)}, []string{"2,048 bytes short of a hole in one piece, though 9,000 bytes are free"}},
		{"budget", protocol.FirstFeasible, 1, []protocol.FinalistReport{infeasible(0, refusal(protocol.Budget, 4096, 9000, 2048)), feasible(1, 10)}, []string{"there may be an arrangement"}},
		{"first", protocol.FirstFeasible, 0, []protocol.FinalistReport{feasible(0, 10)}, []string{"the winner has the lowest rank"}},
		{"next has a higher rank", protocol.BestExact, 0, []protocol.FinalistReport{feasible(0, 10), feasible(1, 12)}, []string{"finalist 1 (rows) is next with 12 modelled cycles: it would have won with 3 fewer", "feasible, but policy best-exact chose finalist 0"}},
		{"next has a lower rank", protocol.BestExact, 1, []protocol.FinalistReport{feasible(0, 12), feasible(1, 10)}, []string{"it would have won with 2 fewer"}},
		{"alone", protocol.BestExact, 0, []protocol.FinalistReport{feasible(0, 10)}, []string{"no other finalist was found feasible"}},
		{"beyond k", protocol.FirstK, 0, []protocol.FinalistReport{feasible(0, 10), feasible(1, 9)}, []string{"has fewer modelled cycles, 9, but was not among"}},
		{"none", protocol.FirstFeasible, -1, []protocol.FinalistReport{{Rank: 0, Verdict: "failed", Message: "a \x1b[2Jbug"}, {Rank: 1, Verdict: "waiting"}}, []string{"a ·[2Jbug", "not started: policy first-feasible"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &protocol.JobReport{State: protocol.JobDone, Policy: protocol.Policy{Name: c.policy}, Winner: c.winner, Finalists: c.finalists}
			var out bytes.Buffer
			if err := explain(r, nil, nil, time.Time{}).print(&out); err != nil {
				t.Fatal(err)
			}
			for _, want := range c.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("lacks %q:\n%s", want, &out)
				}
			}
		})
	}
}
