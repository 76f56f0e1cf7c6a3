package protocol

import (
	"fmt"
	"time"
)

// Timers are the durations by which the parties of a farm notice each other's
// silence. They are one value, given to every process of a farm: their sizes
// only make sense together.
type Timers struct {
	Heartbeat    time.Duration // an owner confirms its ticket and its record this often
	AckWait      time.Duration // a ticket without confirmation is delivered again
	RunHeartbeat time.Duration // the same two for runs
	RunAckWait   time.Duration
	Renew        time.Duration // presence and device leases are renewed this often
	LeaseTTL     time.Duration // and are gone this long after the last renewal
	SelfFence    time.Duration // a runner without a confirmed renewal for this long stops its device
	AskOwner     time.Duration // how long a silent owner is asked before its task is taken over
	Reap         time.Duration // the coordinator looks for lost tickets and records this often
	Poll         time.Duration // an idle slot looks for tickets this often, bell or not
	Retry        time.Duration // a ticket given back after a fault waits about this long
}

// DefaultTimers suit a farm of several hosts.
func DefaultTimers() Timers {
	return Timers{
		Heartbeat: 10 * time.Second, AckWait: 90 * time.Second,
		RunHeartbeat: 5 * time.Second, RunAckWait: 60 * time.Second,
		Renew: 5 * time.Second, LeaseTTL: 30 * time.Second, SelfFence: 20 * time.Second,
		AskOwner: 10 * time.Second, Reap: time.Minute, Poll: time.Second, Retry: time.Second,
	}
}

// Check reports timers that would make a healthy owner look silent.
func (t *Timers) Check() error {
	for _, rule := range []struct {
		ok   bool
		text string
	}{
		{t.Heartbeat > 0 && t.RunHeartbeat > 0 && t.Renew > 0 && t.AskOwner > 0 && t.Reap > 0 && t.Poll > 0 && t.Retry > 0, "every timer must be positive"},
		{3*t.Heartbeat < t.AckWait, "three heartbeats must fit into the ack wait"},
		{3*t.RunHeartbeat < t.RunAckWait, "three heartbeats of a run must fit into its ack wait"},
		{t.LeaseTTL >= 6*t.Renew, "a lease must outlive five missed renewals"},
		{t.SelfFence+t.RunHeartbeat < t.LeaseTTL, "a runner must fence itself a heartbeat before its lease ends"},
	} {
		if !rule.ok {
			return fmt.Errorf("timers %+v: %s", *t, rule.text)
		}
	}
	return nil
}
