package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"ipufarm/protocol"
	"ipufarm/protocol/atomicfile"
	"ipufarm/protocol/bus"
	"ipufarm/protocol/ticket"
)

// errFenced says that the device may belong to somebody else by now.
var errFenced = errors.New("the device's lease was lost")

// epoch is the token of a holder of a device, in order of time. The revision
// grows over all leases of the farm; the generation grows when the farm's
// messages were lost and revisions start over.
type epoch struct {
	Gen      int    `json:"gen"`
	Revision uint64 `json:"revision"`
}

func (e epoch) before(o epoch) bool {
	return e.Gen < o.Gen || e.Gen == o.Gen && e.Revision < o.Revision
}

// acquire takes the device: lease, then file lock, then epoch. The returned
// context ends when the lease is lost or could not be renewed for too long; the
// returned function gives everything back.
func (r *runner) acquire(ctx context.Context, w ticket.Work) (release func(), deviceCtx context.Context, err error) {
	lease := &protocol.Lease{Version: protocol.Version, Owner: r.owner, Run: w.Task.Key, Gen: w.Gen}
	rev, err := r.Bus.TakeLease(ctx, r.DeviceName, lease)
	if errors.Is(err, bus.ErrConflict) {
		return nil, nil, fmt.Errorf("%w: device %s is leased to another runner", ticket.ErrBusy, r.DeviceName)
	}
	if err != nil {
		return nil, nil, err
	}
	k := &keeper{runner: r, lease: lease, rev: rev}
	lock, err := r.lock(epoch{w.Gen, rev})
	if err != nil {
		k.drop(ctx)
		return nil, nil, err
	}
	r.journal("start", w.Task.Key, epoch{w.Gen, rev})
	deviceCtx, cancel := context.WithCancelCause(ctx)
	var group sync.WaitGroup
	group.Go(func() { k.renew(deviceCtx, cancel) })
	return func() {
		cancel(nil)
		group.Wait()
		r.journal("end", w.Task.Key, epoch{w.Gen, rev})
		lock.Close()
		k.drop(ctx)
	}, deviceCtx, nil
}

// lock takes the kernel's lock of the device and raises its epoch.
func (r *runner) lock(e epoch) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(r.Dir, r.DeviceName+".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("%w: device %s is locked by another process of this host", ticket.ErrBusy, r.DeviceName)
	}
	if err := raiseEpoch(filepath.Join(r.Dir, r.DeviceName+".epoch"), e); err != nil {
		f.Close()
		return nil, fmt.Errorf("device %s: %w", r.DeviceName, err)
	}
	return f, nil
}

// raiseEpoch writes an epoch over an earlier one, and refuses to do so over a
// later one: then we are the stale runner.
func raiseEpoch(path string, e epoch) error {
	var last epoch
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &last)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("epoch file %s: %w", path, err)
	}
	if err == nil && !last.before(e) {
		return fmt.Errorf("%w: epoch %+v is not after %+v", errFenced, e, last)
	}
	if data, err = json.Marshal(e); err != nil {
		return err
	}
	return atomicfile.Write(path, data)
}

// journal notes on disk what the device was used for, to be read after a crash.
func (r *runner) journal(what, run string, e epoch) {
	f, err := os.OpenFile(filepath.Join(r.Dir, r.DeviceName+".journal"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err == nil {
		_, err = fmt.Fprintf(f, "%s %s run %s epoch %d.%d\n", time.Now().UTC().Format(time.RFC3339Nano), what, run, e.Gen, e.Revision)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		r.log.Warn("journal", "error", err)
	}
}

// keeper renews a lease.
type keeper struct {
	*runner
	lease *protocol.Lease
	rev   uint64
}

// renew keeps the lease until ctx ends, and ends it when the lease is lost, or
// when so much time has passed since the sending of the last good renewal that it
// may soon be. The clock is the one that also runs while the host is suspended.
func (k *keeper) renew(ctx context.Context, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(k.Timers.Renew)
	defer tick.Stop()
	good := bootTime()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		sent := bootTime()
		if sent-good > k.Timers.SelfFence {
			cancel(fmt.Errorf("%w: no renewal for %v", errFenced, sent-good))
			return
		}
		rev, err := k.Bus.RenewLease(ctx, k.DeviceName, k.lease, k.rev)
		switch {
		case err == nil:
			k.rev, good = rev, sent
		case errors.Is(err, bus.ErrConflict):
			cancel(fmt.Errorf("%w: %w", errFenced, err))
			return
		case ctx.Err() == nil:
			k.log.Warn("renewal of the lease", "error", err)
		}
	}
}

func (k *keeper) drop(ctx context.Context) {
	if err := k.Bus.DropLease(context.WithoutCancel(ctx), k.DeviceName, k.rev); err != nil {
		k.log.Warn("lease", "error", err) // it expires
	}
}
