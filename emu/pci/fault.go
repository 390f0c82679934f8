// SPDX-License-Identifier: BSD-2-Clause

package pci

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"devxlab.example/mlx5"
)

// ErrFault is a fault that cannot be.
var ErrFault = errors.New("fault")

// FaultKind is what goes wrong.
type FaultKind uint8

// Kinds of faults. The first three are of single commands, Times of them; the
// others happen once.
const (
	FaultSilent   FaultKind = iota + 1 // the command is never answered, or late
	FaultStatus                        // it is refused with Status and Syndrome
	FaultDelivery                      // its delivery fails with Delivery: wrong token, wrong signature, …
	FaultHealth                        // the health buffer shows Syndrome
	FaultEQ                            // the event queue EQ overflows at its next event
	FaultPages                         // the device asks for Pages pages more
	FaultReset                         // the device resets itself: a firmware that has died and begins again
	FaultUnplug                        // the function is gone from the bus, for For
	FaultKill                          // the device's process ends
)

var faultNames = [...]string{"", "silent", "status", "delivery", "health", "eq", "pages", "reset", "unplug", "kill"}

func (k FaultKind) String() string {
	if int(k) < len(faultNames) {
		return faultNames[k]
	}
	return fmt.Sprintf("FaultKind(%d)", uint8(k))
}

// ofCommands reports whether it is a fault of single commands.
func (k FaultKind) ofCommands() bool { return k <= FaultDelivery }

// EQKind names an event queue by what the driver uses it for (driver, eq.c
// create_async_eqs). Those of completions are not among them.
type EQKind uint8

// The driver's event queues.
const (
	EQCommands EQKind = iota + 1
	EQAsync
	EQPages
)

var eqNames = [...]string{"", "cmd", "async", "pages"}

// eqTypes are event types that stand for a queue: each is in the mask of one
// only.
var eqTypes = [...]mlx5.EventType{EQCommands: mlx5.EventCmd, EQAsync: mlx5.EventPortChange, EQPages: mlx5.EventPageRequest}

// Fault is something that is made to go wrong. Its text is
// KIND[:NAME=VALUE[,NAME=VALUE…]]: see ParseFault.
type Fault struct {
	Kind FaultKind

	// It happens at the Nth of the commands with opcode Op, counted from when the
	// fault was armed. A fault that is not of commands and has none of Op, User and
	// Nth happens After the device was plugged in, or after it was armed if that was
	// later.
	Op    mlx5.Op // 0: any
	User  bool    // only of commands that a program issued through DevX: those with a uid
	Nth   int     // 0: the first
	After time.Duration
	Times int // of silent, status and delivery: how many commands from the Nth on; 0: one

	Done     bool          // of silent: it is executed all the same
	For      time.Duration // of silent: it is answered so late; of unplug: then it is plugged in again. 0: never
	Status   mlx5.Status
	Syndrome uint32 // of status; of health the byte in the health buffer, 0 clears it
	Delivery Delivery
	Fatal    bool // of health: the device asks for a reset and executes nothing until it gets one
	EQ       EQKind
	Pages    int
	Refuse   bool // of pages: what the driver gives is refused
}

// Limits of what a fault says.
const (
	maxCount = 1 << 30
	maxWait  = 24 * time.Hour
	maxPages = 1 << 16 // 256 MiB
)

// deliveryNames are the names of delivery statuses.
var deliveryNames = map[Delivery]string{DeliverySignature: "signature", DeliveryToken: "token", DeliveryBlockNumber: "block",
	DeliveryOutAlign: "out-align", DeliveryInAlign: "in-align", DeliveryFirmware: "firmware", DeliveryInLength: "in-length",
	DeliveryOutLength: "out-length", DeliveryReserved: "reserved", DeliveryDescriptor: "descriptor"}

// parameter is one that a fault's text may have.
type parameter struct {
	name  string
	kinds []FaultKind // nil: all
	set   func(f *Fault, v string) error
	get   func(f *Fault) string // empty: the default, not written
}

// statusesBelow is beyond every status that has a name.
const statusesBelow = 0x52

var parameters = []parameter{
	{"op", nil, func(f *Fault, v string) error {
		op, known := mlx5.ParseOp(v)
		if !known {
			return errors.New("no such opcode; it is named as in the kernel's messages: RTR2RTS_QP")
		}
		f.Op = op
		return nil
	}, func(f *Fault) string {
		if f.Op == 0 {
			return ""
		}
		return f.Op.String()
	}},
	{"user", nil, truth(func(f *Fault) *bool { return &f.User }), yes(func(f *Fault) bool { return f.User })},
	{"nth", nil, count(func(f *Fault) *int { return &f.Nth }, maxCount), number(func(f *Fault) int { return f.Nth })},
	{"times", []FaultKind{FaultSilent, FaultStatus, FaultDelivery}, count(func(f *Fault) *int { return &f.Times }, maxCount), number(func(f *Fault) int { return f.Times })},
	{"after", []FaultKind{FaultHealth, FaultEQ, FaultPages, FaultReset, FaultUnplug, FaultKill}, wait(func(f *Fault) *time.Duration { return &f.After }), span(func(f *Fault) time.Duration { return f.After })},
	{"done", []FaultKind{FaultSilent}, truth(func(f *Fault) *bool { return &f.Done }), yes(func(f *Fault) bool { return f.Done })},
	{"for", []FaultKind{FaultSilent, FaultUnplug}, wait(func(f *Fault) *time.Duration { return &f.For }), span(func(f *Fault) time.Duration { return f.For })},
	{"status", []FaultKind{FaultStatus}, func(f *Fault, v string) error {
		for s := mlx5.Status(1); s < statusesBelow; s++ {
			if strings.EqualFold(s.String(), v) {
				f.Status = s
				return nil
			}
		}
		n, err := strconv.ParseUint(v, 0, 8)
		if err != nil || n == 0 {
			return errors.New("a status such as LIM or 0x8")
		}
		f.Status = mlx5.Status(n)
		return nil
	}, func(f *Fault) string {
		if s := f.Status.String(); !strings.ContainsRune(s, '(') {
			return s
		}
		return fmt.Sprintf("%#x", uint8(f.Status))
	}},
	{"status", []FaultKind{FaultDelivery}, func(f *Fault, v string) error {
		for d, name := range deliveryNames {
			if v == name {
				f.Delivery = d
				return nil
			}
		}
		names := slices.Sorted(func(yield func(string) bool) {
			for _, n := range deliveryNames {
				if !yield(n) {
					return
				}
			}
		})
		return fmt.Errorf("one of %s", strings.Join(names, ", "))
	}, func(f *Fault) string { return deliveryNames[f.Delivery] }},
	{"syndrome", []FaultKind{FaultStatus, FaultHealth}, func(f *Fault, v string) error {
		bits := 32
		if f.Kind == FaultHealth {
			bits = 8
		}
		n, err := strconv.ParseUint(v, 0, bits)
		f.Syndrome = uint32(n)
		if err != nil {
			return fmt.Errorf("a number of %d bits", bits)
		}
		return nil
	}, func(f *Fault) string {
		if f.Syndrome == 0 {
			return ""
		}
		return fmt.Sprintf("%#x", f.Syndrome)
	}},
	{"fatal", []FaultKind{FaultHealth}, truth(func(f *Fault) *bool { return &f.Fatal }), yes(func(f *Fault) bool { return f.Fatal })},
	{"queue", []FaultKind{FaultEQ}, func(f *Fault, v string) error {
		i := slices.Index(eqNames[:], v)
		if i <= 0 {
			return errors.New("cmd, async or pages")
		}
		f.EQ = EQKind(i)
		return nil
	}, func(f *Fault) string { return eqNames[f.EQ] }},
	{"pages", []FaultKind{FaultPages}, count(func(f *Fault) *int { return &f.Pages }, maxPages), number(func(f *Fault) int { return f.Pages })},
	{"refuse", []FaultKind{FaultPages}, truth(func(f *Fault) *bool { return &f.Refuse }), yes(func(f *Fault) bool { return f.Refuse })},
}

func count(at func(*Fault) *int, most int) func(*Fault, string) error {
	return func(f *Fault, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > most {
			return fmt.Errorf("a number, 1 to %d", most)
		}
		*at(f) = n
		return nil
	}
}

func number(of func(*Fault) int) func(*Fault) string {
	return func(f *Fault) string {
		if of(f) == 0 {
			return ""
		}
		return strconv.Itoa(of(f))
	}
}

func wait(at func(*Fault) *time.Duration) func(*Fault, string) error {
	return func(f *Fault, v string) error {
		t, err := time.ParseDuration(v)
		if err != nil || t <= 0 || t > maxWait {
			return fmt.Errorf("a time above 0, at most %v, such as 1500ms", maxWait)
		}
		*at(f) = t
		return nil
	}
}

func span(of func(*Fault) time.Duration) func(*Fault) string {
	return func(f *Fault) string {
		if of(f) == 0 {
			return ""
		}
		return of(f).String()
	}
}

func truth(at func(*Fault) *bool) func(*Fault, string) error {
	return func(f *Fault, v string) error {
		b, err := strconv.ParseBool(v)
		if err != nil {
			return errors.New("true or false")
		}
		*at(f) = b
		return nil
	}
}

func yes(of func(*Fault) bool) func(*Fault) string {
	return func(f *Fault) string {
		if of(f) {
			return "true"
		}
		return ""
	}
}

func (p *parameter) of(k FaultKind) bool { return p.kinds == nil || slices.Contains(p.kinds, k) }

// ParseFault reads a fault: its kind, and behind a colon what it needs and when it
// happens, separated by commas.
//
//	silent:op=RTR2RTS_QP,nth=3             the third is never answered, and not executed
//	silent:op=RTR2RTS_QP,user,done         the first of a program is executed and not answered
//	silent:op=RTR2RTS_QP,times=2,for=5s    two are answered 5 s late
//	status:op=CREATE_QP,status=LIM         refused
//	delivery:status=token                  the next command's token is wrong
//	health:syndrome=0x1,fatal=true,after=3s
//	eq:queue=cmd                           no event for completed commands any more
//	pages:pages=64,refuse=true             asks for pages and does not take them
//	reset   unplug:for=5s   kill:op=RTR2RTS_QP,nth=100
//
// A flag may stand without a value: fatal is fatal=true. Errors are ErrFault.
func ParseFault(text string) (Fault, error) {
	bad := func(format string, args ...any) (Fault, error) {
		return Fault{}, fmt.Errorf("%w %q: "+format, append([]any{ErrFault, text}, args...)...)
	}
	kind, rest, _ := strings.Cut(text, ":")
	i := slices.Index(faultNames[:], kind)
	if i <= 0 {
		return bad("%q is none of %s", kind, strings.Join(faultNames[1:], ", "))
	}
	f := Fault{Kind: FaultKind(i)}
	seen := map[string]bool{}
	for rest != "" {
		var word string
		word, rest, _ = strings.Cut(rest, ",")
		name, value, given := strings.Cut(word, "=")
		if !given {
			value = "true"
		}
		at := slices.IndexFunc(parameters, func(p parameter) bool { return p.name == name && p.of(f.Kind) })
		if at < 0 {
			return bad("%s has no %q; it has %s", f.Kind, name, strings.Join(namesOf(f.Kind), ", "))
		}
		if seen[name] {
			return bad("%s twice", name)
		}
		seen[name] = true
		if err := parameters[at].set(&f, value); err != nil {
			return bad("%s=%s: %w", name, value, err)
		}
	}
	if err := f.check(); err != nil {
		return bad("%w", err)
	}
	return f, nil
}

func namesOf(k FaultKind) (names []string) {
	for i := range parameters {
		if parameters[i].of(k) {
			names = append(names, parameters[i].name)
		}
	}
	return names
}

// check says what is missing, or contradicts.
func (f *Fault) check() error {
	switch {
	case f.Kind < FaultSilent || f.Kind > FaultKill:
		return fmt.Errorf("there is no %v", f.Kind)
	case f.Nth < 0 || f.Nth > maxCount || f.Times < 0 || f.Times > maxCount || f.After < 0 || f.After > maxWait || f.For < 0 || f.For > maxWait:
		return errors.New("a number is out of range")
	case f.After > 0 && (f.atCommand() || f.Kind.ofCommands()):
		return errors.New("either after a time, or at a command (op, user, nth)")
	case f.Kind == FaultStatus && f.Status == 0:
		return errors.New("which status? status=LIM")
	case f.Kind == FaultDelivery && deliveryNames[f.Delivery] == "":
		return errors.New("which status? status=token")
	case f.Kind == FaultEQ && (f.EQ < EQCommands || f.EQ > EQPages):
		return errors.New("which queue? queue=cmd")
	case f.Kind == FaultPages && (f.Pages < 1 || f.Pages > maxPages):
		return errors.New("how many? pages=64")
	case f.Kind == FaultHealth && f.Syndrome > 0xff:
		return errors.New("a syndrome of health has 8 bits")
	case f.Kind == FaultHealth && f.Fatal && f.Syndrome == 0:
		return errors.New("fatal without a syndrome, which the driver would not see (health.c sensor_fw_synd_rfr)")
	case f.Done && f.For > 0:
		return errors.New("executed at once, or late: done or for")
	}
	return nil
}

// atCommand reports whether a command makes it happen.
func (f *Fault) atCommand() bool { return f.Kind.ofCommands() || f.Op != 0 || f.User || f.Nth > 0 }

// String is what ParseFault reads.
func (f Fault) String() string {
	var words []string
	for i := range parameters {
		if p := &parameters[i]; p.of(f.Kind) {
			if v := p.get(&f); v != "" {
				words = append(words, p.name+"="+v)
			}
		}
	}
	if len(words) == 0 {
		return f.Kind.String()
	}
	return f.Kind.String() + ":" + strings.Join(words, ",")
}

// armed is a fault that waits for its commands.
type armed struct {
	Fault
	seen int // commands that it is about
}

// Inject arms a fault. One that waits for nothing happens before it returns.
// What is armed outlives resets, and commands are counted across them; it
// ends when the function is plugged in or pulled out.
func (f *Function) Inject(x Fault) error {
	if err := x.check(); err != nil {
		return fmt.Errorf("%w %v: %w", ErrFault, x, err)
	}
	if x.Kind == FaultKill && f.config.Kill == nil {
		return fmt.Errorf("%w %v: this device is no process of its own", ErrFault, x)
	}
	if x.atCommand() {
		f.faults.Lock()
		f.armed = append(f.armed, &armed{Fault: x})
		f.faults.Unlock()
		f.config.Log("fault armed: %v", x)
		return nil
	}
	if x.After > 0 {
		f.later(x.After, func() {
			if err := f.happen(x); err != nil {
				f.config.Log("%v", err)
			}
		})
		return nil
	}
	return f.happen(x)
}

// later calls do after a time, unless the function is plugged in or pulled out
// before that.
func (f *Function) later(after time.Duration, do func()) {
	f.faults.Lock()
	defer f.faults.Unlock()
	stay := f.stay
	var t *time.Timer
	t = time.AfterFunc(after, func() {
		f.faults.Lock()
		there := f.stay == stay
		delete(f.timers, t)
		f.faults.Unlock()
		if there {
			do()
		}
	})
	f.timers[t] = struct{}{}
}

// disarm takes back all that is armed.
func (f *Function) disarm() {
	f.faults.Lock()
	defer f.faults.Unlock()
	f.stay++
	f.armed = nil
	for t := range f.timers {
		t.Stop()
	}
	clear(f.timers)
}

// meet counts a command for all faults and returns those whose turn it is.
func (f *Function) meet(op mlx5.Op, user bool) (now []Fault) {
	f.faults.Lock()
	defer f.faults.Unlock()
	f.armed = slices.DeleteFunc(f.armed, func(a *armed) bool {
		if a.Op != 0 && a.Op != op || a.User && !user {
			return false
		}
		a.seen++
		nth := cmp.Or(a.Nth, 1)
		if a.seen >= nth {
			now = append(now, a.Fault)
		}
		return a.seen >= nth+cmp.Or(a.Times, 1)-1
	})
	return now
}

// happen is a fault that is not of single commands.
func (f *Function) happen(x Fault) error {
	f.config.Log("fault: %v", x)
	switch x.Kind {
	case FaultHealth:
		f.RaiseHealth(uint8(x.Syndrome), x.Fatal)
	case FaultEQ:
		if !f.HCA().OverflowEQ(eqTypes[x.EQ]) {
			return fmt.Errorf("%w %v: the driver has no such queue now", ErrFault, x)
		}
	case FaultPages:
		f.HCA().WantPages(x.Pages, x.Refuse)
	case FaultReset:
		f.mu.Lock()
		f.replace()
		f.mu.Unlock()
	case FaultUnplug:
		f.unplug(x.For)
	case FaultKill:
		f.config.Kill()
	}
	return nil
}

// unplug takes the function from the bus: its accesses read ones, and it reaches
// the host no more.
func (f *Function) unplug(back time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gone {
		return
	}
	f.gone = true
	f.replace()
	if back > 0 {
		f.later(back, f.replug)
	}
}

// replug is its return, as new.
func (f *Function) replug() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gone {
		f.gone = false
		f.renew("plugged in again")
	}
}

// fate is what faults make of one command.
type fate struct {
	silent   bool
	done     bool
	late     time.Duration
	delivery Delivery
	status   mlx5.Status
	syndrome uint32
}

// fate makes the faults happen whose turn a command is, and returns what becomes
// of it.
func (f *Function) fate(in []byte) (w fate) {
	if len(in) < mlx5.CmdInSize {
		return w // no command, as the firmware will say
	}
	op := mlx5.OpOf(in)
	for _, x := range f.meet(op, mlx5.CmdIn(in).UID() != 0) {
		f.config.Log("fault at %v: %v", op, x)
		switch x.Kind {
		case FaultSilent:
			w.silent, w.done, w.late = true, x.Done, x.For
		case FaultStatus:
			w.status, w.syndrome = x.Status, x.Syndrome
		case FaultDelivery:
			w.delivery = x.Delivery
		case FaultKill:
			w.silent = true
			fallthrough
		default:
			if err := f.happen(x); err != nil {
				f.config.Log("%v", err)
			}
		}
	}
	return w
}

// asyncOverrun is the syndrome of an event queue that overflowed
// (MLX5_HEALTH_SYNDR_ASYNC_EQ_OVERRUN_ERR in the driver's health.c). Whether a card
// asks for a reset then is not public; this one does not.
const asyncOverrun = 0xc

// overflowed is called by the firmware of d.
func (d *device) overflowed() {
	d.f.config.Log("an event queue has overflowed")
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.fatal {
		d.syndrome = asyncOverrun
	}
}
