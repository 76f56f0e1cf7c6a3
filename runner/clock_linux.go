package runner

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootTime is the time since the host was started, including the time that it
// was suspended, which Go's monotonic clock leaves out.
func bootTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return time.Duration(time.Now().UnixNano())
	}
	return time.Duration(t.Nano())
}
