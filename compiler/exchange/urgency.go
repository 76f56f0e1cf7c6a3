package exchange

import "math"

// urgency weighs tiles by how soon they would finish if they never waited again:
// an event lost by a tile without slack delays the whole phase, one lost by a
// tile with plenty delays nobody.
type urgency struct {
	latest int32 // event at which the last tile would finish
	scale  int32 // events of slack for one step in the table
	steps  [256]int32
}

const (
	urgencyTop   = 1024 // weight of a tile without slack, beside the floor
	urgencyFloor = 100  // weight of a tile with plenty
	slackSteps   = 8    // steps of the table that halve the weight
)

// newUrgency returns weights that halve with every 64th of the phase in slack.
func newUrgency(l *lister) *urgency {
	g := &urgency{}
	for i := range g.steps {
		g.steps[i] = urgencyFloor + int32(math.Exp2(-float64(i)/slackSteps)*urgencyTop)
	}
	g.update(l)
	g.scale = max(1, g.latest/(64*slackSteps))
	return g
}

// update brings latest up to date.
func (g *urgency) update(l *lister) {
	g.latest = 0
	for t := range l.sendFree {
		g.latest = max(g.latest, l.sendFree[t]+l.sendLeft[t], l.recvFree[t]+l.recvLeft[t])
	}
}

// of is the weight of a tile that would finish at an event.
func (g *urgency) of(finish int32) int32 {
	return g.steps[min(max(0, g.latest-finish)/g.scale, int32(len(g.steps)-1))]
}
