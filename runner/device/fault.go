package device

import "fmt"

// Rule names what a fault broke. The words are stable: tests and reports use them.
type Rule string

const (
	// Packages and command streams.
	RulePackage Rule = "package" // the package cannot be loaded
	RuleHost    Rule = "host"    // a file does not fit the bindings
	RuleCommand Rule = "command" // a record is not one the device knows
	RulePhase   Rule = "phase"   // tiles meet at different exchanges, or not at all
	RuleLimit   Rule = "limit"   // more than the model can hold or count

	// Kernels.
	RuleArgument  Rule = "argument"  // a count, flag or scale that the kernel cannot take
	RuleAlignment Rule = "alignment" // an address that the access width does not allow
	RuleRange     Rule = "range"     // outside of tile memory
	RuleClass     Rule = "class"     // wrong memory region
	RuleElement   Rule = "element"   // two streams in one effective element
	RuleOverlap   Rule = "overlap"   // a result on top of an operand
	RuleCode      Rule = "code"      // a write to code, tables or commands
	RuleFetch     Rule = "fetch"     // data in an element that code runs from

	// Exchange phases.
	RuleRow       Rule = "row"       // a row that cannot be decoded
	RuleSource    Rule = "source"    // the mux selects a tile that sends nothing then
	RuleDirection Rule = "direction" // the word leaves by the other side
	RuleCollision Rule = "collision" // two things at one event
	RuleConnected Rule = "connected" // a receive left connected at the end of a row
	RuleClash     Rule = "clash"     // a send and a receive in one element
	RuleBase      Rule = "base"      // base registers used as no card accepts them
	RulePointer   Rule = "pointer"   // a word without a receive pointer
	RuleFormat    Rule = "format"    // 32-bit and 64-bit halves do not match
	RuleLane      Rule = "lane"      // a borrowed transmit lane is in use
	RuleLoopback  Rule = "loopback"  // a tile is the only receiver of its own words
	RuleHorizon   Rule = "horizon"   // a row ends before its words have landed
)

// none stands for an unknown number in a Fault.
const none = -1

// Fault is a rule of the hardware or of the command stream that a package broke.
// Numbers that do not apply are -1.
type Fault struct {
	Tile    int // physical id
	Logical int // logical id
	Record  int // index in the command stream
	Phase   int // label of the exchange
	Event   int // in the exchange, on the tile's own timeline
	Call    string
	Rule    Rule
	Detail  string
}

func (f *Fault) Error() string {
	s := ""
	if f.Tile >= 0 {
		s = fmt.Sprintf("tile %d (logical %d): ", f.Tile, f.Logical)
	}
	if f.Phase >= 0 {
		s += fmt.Sprintf("phase %d: ", f.Phase)
	}
	if f.Event >= 0 {
		s += fmt.Sprintf("event %d: ", f.Event)
	}
	if f.Record >= 0 {
		s += fmt.Sprintf("record %d", f.Record)
		if f.Call != "" {
			s += " (" + f.Call + ")"
		}
		s += ": "
	}
	return s + string(f.Rule) + ": " + f.Detail
}

// fault makes a fault of a tile outside of any record.
func (t *tile) fault(rule Rule, format string, args ...any) *Fault {
	return &Fault{t.physical, t.logical, none, none, none, "", rule, fmt.Sprintf(format, args...)}
}

// deviceFault makes a fault that belongs to no tile.
func deviceFault(rule Rule, format string, args ...any) *Fault {
	return &Fault{none, none, none, none, none, "", rule, fmt.Sprintf(format, args...)}
}
