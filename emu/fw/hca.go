// SPDX-License-Identifier: BSD-2-Clause

// Package fw is the firmware of the emulated HCA: it executes mlx5 commands on
// objects in memory, refuses what firmware is known to refuse (see Checks), and
// takes the time that its profile tells it to.
//
// It knows neither the kernel nor PCI: a front end (emu/uverbs in process,
// a PCI function in a virtual machine) hands it a command's bytes, and memory in
// which its queues lie and move data: everything between queue pairs travels as
// Ethernet frames with RoCE in them, and so do the frames of a network
// interface. Connect gives its port a wire, Receive is the wire's end.
package fw

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"devxlab.example/mlx5"
)

// Config says what device to make. Its zero value is a device that adds no
// latency on a real clock, with the limits of a ConnectX-6 Dx.
type Config struct {
	Profile  *Profile // nil: the built-in "zero"
	Clock    Clock    // nil: a RealClock
	LogMaxQP int      // log2 of the queue pairs alive at once, 1 to 22; 0: 17
	LogMaxUC int      // log2 of the user contexts alive at once, 1 to 15; 0: 8; -1: none, a device without DevX
	Seed     uint64   // of the latencies that are drawn: the same for commands that arrive in the same order

	// With Memory queues move: they and what memory keys name lie there. Without,
	// they are contexts only.
	Memory Memory
	MAC    [6]byte // of the port

	// With Interrupt, which needs Memory, the device is a function that a driver
	// boots: it offers the driver's commands too. Without, it is one that a kernel
	// has already booted, with RoCE enabled; its events go to Notify.
	Interrupt func(vector int) // how an event queue wakes the driver; must not block
	Vectors   int              // 1 to 2048
	UARs      int              // doorbell pages, from the sixth on; 0: 65536

	HealthPoll time.Duration // how often the driver is told to look at the health buffer; 0: DefaultHealthPoll
	Overflow   func()        // called when an event queue other than one of completions has overflowed; must not block
}

// HCA is an emulated device. Its methods may be called at the same time.
type HCA struct {
	profile  *Profile
	clock    Clock
	engine   *engine
	zero     bool
	contexts *lru // of queue pairs that the device has at hand; nil: all
	logMaxQP uint8
	logMaxUC uint8

	pds      *table[pd]
	uars     *table[uar]
	uctxs    *table[uctx]
	umems    *table[umem]
	mkeys    *table[mkey]
	eqs      *table[eq]
	cqs      *table[cq]
	qps      *table[qp]
	counters *table[counterSet]

	roceMu   sync.Mutex
	roce     [roceTableSize]roceAddress
	roceUsed int // places of it up to the last that was ever set

	// objects is held by commands that create or destroy, so that none sees what
	// another has half done. Transitions and queries take only the lock of their
	// object. Order: objects, a queue pair, anything else.
	objects sync.Mutex

	mem  Memory        // nil: queues are contexts only
	down chan struct{} // closed by Shut

	// The next are nil or zero unless a driver boots the device.
	driver     *driverCaps
	interrupt  func(vector int)
	vectors    int
	healthPoll time.Duration
	overflow   func()
	boot       boot
	pages      pagePool
	alive      atomic.Int64                // objects that the pages are for
	routes     [256]atomic.Pointer[eqRing] // by event type
	rootTable  [numDirections]uint32       // under objects

	vport    vport
	port     port
	timers   timers
	cong     congestion
	steering [numDirections]atomic.Pointer[matchTable]
	gsi      atomic.Pointer[qp]
	groups   groups
	requests requestPool
	umrBytes atomic.Int64 // that UMR work requests made translations take

	xrcds, tds, tiss, tirs, rqts, sqs, rqs, srqs, fts, fgs *table[resource]
	flowCounters                                           *table[flowCounter]

	doorbells atomic.Uint64
	events    atomic.Pointer[func(Event)]
	trace     atomic.Pointer[func(in, out []byte, took time.Duration)]
}

// Limits of the device; those that the reference card has in ibv_devinfo -v
// are the same (ConnectX-6 Dx, firmware 22.36.1010).
const (
	numPorts      = 1
	logMaxQPSize  = 15
	logMaxCQ      = 24
	logMaxCQSize  = 22
	logMaxEQSize  = 22
	logMaxPD      = 23
	logMaxMKey    = 24 // what the 24 bits of an index hold, less the reserved keys
	logMaxUmem    = 22
	logMaxRA      = 4
	logMaxMsg     = 30
	maxPageShift  = 31
	roceTableSize = 255
	maxCounters   = 255
	firstQPN      = 0x40
	firstMKey     = 4 // indexes up to 3 are the reserved physical keys
	firstCQN      = 0x400

	// QPs and SQs share one number space: doorbells name either.
	firstSQN = 0x800000
	firstRQN = 0x800000
)

// sharedUID marks what the kernel makes for all contexts: completion event
// queues and Q counter sets. Everyone may use it, and the kernel (uid 0)
// destroys it (MLX5_SHARED_RESOURCE_UID in linux/mlx5/mlx5_ifc.h; mlx5_core
// eq.c, mlx5_ib counters.c).
const sharedUID = 0xffff

type (
	pd         struct{ entry }
	counterSet struct {
		entry
		values counterValues
	}
	uar  struct{ entry }
	uctx struct{ entry }
	eq   struct {
		entry
		ctx  []byte
		ring atomic.Pointer[eqRing]
	}
	umem struct {
		entry
		bytes  uint64
		offset uint64 // in its first page
		buf    buffer
	}
	mkey struct {
		entry
		ctx  [mlx5.MKCSize]byte
		umem uint32 // 0: none
		at   translation
		umr  int // bytes of it that UMR made
	}
	cq struct {
		entry
		ctx  [mlx5.CQCSize]byte
		buf  uint32 // umem; 0: none
		ring atomic.Pointer[cqRing]
	}
	qp struct {
		entry
		wqUmem  uint32 // 0: none
		pmState uint8  // as created: what a transition sets lasts until 2RST
		qpc     [mlx5.QPCSize]byte
		queue   atomic.Pointer[sendQueue]
		ep      *endpoint // nil: without Memory
		held    []*entry  // beyond those that every queue pair uses
	}
	roceAddress [mlx5.RoCEAddrLayoutSize]byte
)

// New makes a device.
func New(c Config) (*HCA, error) {
	p := c.Profile
	if p == nil {
		var err error
		if p, err = ProfileByName("zero"); err != nil {
			return nil, err
		}
	} else if err := p.check(); err != nil {
		return nil, p.wrap(err)
	}
	clock := c.Clock
	if clock == nil {
		clock = NewRealClock()
	}
	if c.LogMaxQP == 0 {
		c.LogMaxQP = 17
	}
	if c.LogMaxQP < 1 || c.LogMaxQP > 22 {
		return nil, fmt.Errorf("emu: log_max_qp %d is out of range: 1 to 22", c.LogMaxQP)
	}
	if c.LogMaxUC == 0 {
		c.LogMaxUC = 8
	}
	if c.LogMaxUC < -1 || c.LogMaxUC > 15 {
		return nil, fmt.Errorf("emu: log_max_uctx %d is out of range: 1 to 15, or -1 for none", c.LogMaxUC)
	}
	h := &HCA{
		profile:  p,
		clock:    clock,
		engine:   newEngine(p, c.Seed),
		zero:     p.Zero(),
		logMaxQP: uint8(c.LogMaxQP),
		logMaxUC: uint8(max(c.LogMaxUC, 0)),
		pds:      newTable[pd](1, 1<<logMaxPD),
		uars:     newTable[uar](6, 1<<16), // page 6 is the first behind the initialisation segment
		umems:    newTable[umem](1, 1<<logMaxUmem),
		mkeys:    newTable[mkey](firstMKey, 1<<logMaxMKey-firstMKey),
		eqs:      newTable[eq](4, 64),
		cqs:      newTable[cq](firstCQN, 1<<logMaxCQ-firstCQN),
		qps:      newTable[qp](firstQPN, 1<<c.LogMaxQP),
		counters: newTable[counterSet](1, maxCounters),
	}
	contexts := uint32(0)
	if h.logMaxUC > 0 {
		contexts = 1 << h.logMaxUC
	}
	h.uctxs = newTable[uctx](1, contexts)
	h.requests.most = maxRequests
	h.vport.init(c.MAC)
	h.mem, h.down, h.timers.clock = c.Memory, make(chan struct{}), h.clock
	if c.Interrupt != nil || c.Vectors != 0 || c.UARs != 0 {
		if err := h.host(c); err != nil {
			return nil, err
		}
	} else if c.Memory != nil {
		mlx5.NICVPortContext(h.vport.ctx[:]).SetRoCEEn(true)
	}
	if c := p.ContextCache; c != nil && !c.Miss.zero() {
		h.contexts = newLRU(c.QueuePairs)
	}
	return h, nil
}

// host makes the device one that a driver boots.
func (h *HCA) host(c Config) error {
	if c.HealthPoll == 0 {
		c.HealthPoll = DefaultHealthPoll
	}
	if c.HealthPoll < time.Millisecond || c.HealthPoll > MaxTimeout {
		return fmt.Errorf("emu: health poll interval %v is not within 1ms to %v", c.HealthPoll, MaxTimeout)
	}
	if c.Overflow == nil {
		c.Overflow = func() {}
	}
	h.healthPoll, h.overflow = c.HealthPoll, c.Overflow
	if c.Memory == nil || c.Interrupt == nil || c.Vectors < 1 || c.Vectors > 2048 || c.UARs < 0 || c.UARs > 1<<16 {
		return fmt.Errorf("emu: a device that a driver boots needs Memory, Interrupt, 1 to 2048 vectors and at most 65536 UARs, not %d and %d", c.Vectors, c.UARs)
	}
	h.interrupt, h.vectors = c.Interrupt, c.Vectors
	h.driver = newDriverCaps(h)
	h.pages = pagePool{has: map[uint64]bool{}, change: make(chan struct{})}
	if c.UARs > 0 {
		h.uars = newTable[uar](6, uint32(c.UARs))
	}
	h.xrcds = newTable[resource](1, 1<<logMaxXRCD)
	h.tds = newTable[resource](0, 1<<logMaxTD)
	h.tiss = newTable[resource](1, 1<<logMaxTIS)
	h.tirs = newTable[resource](1, 1<<logMaxTIR)
	h.rqts = newTable[resource](1, 1<<logMaxRQT)
	h.sqs = newTable[resource](firstSQN, 1<<logMaxSQ)
	h.rqs = newTable[resource](firstRQN, 1<<logMaxRQ)
	h.srqs = newTable[resource](1, 1<<logMaxSRQ-1)
	h.fts = newTable[resource](1, 1<<logMaxFlowTables)
	h.fgs = newTable[resource](1, 1<<logMaxFlow)
	h.flowCounters = newTable[flowCounter](1, maxFlowCounters)
	return nil
}

// Shut ends the waits of a device that was reset, those for pages and its
// timers, and what its port does. Whoever gave it the memory has taken that away.
func (h *HCA) Shut() {
	close(h.down)
	h.port.shut()
	h.timers.close()
}

// resources returns the tables of a driver's objects, none in process.
func (h *HCA) resources() []*table[resource] {
	if h.driver == nil {
		return nil
	}
	return []*table[resource]{h.xrcds, h.tds, h.tiss, h.tirs, h.rqts, h.sqs, h.rqs, h.srqs, h.fts, h.fgs}
}

// wipe ends every object, as a reset does.
func (h *HCA) wipe() {
	end := func(e *entry) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.refs = 0
		e.live.Store(false)
	}
	stop := func(p *atomic.Pointer[sendQueue]) {
		if q := p.Swap(nil); q != nil {
			h.run(q, false, false)
		}
	}
	h.eqs.wipe(func(e *eq) {
		if r := e.ring.Swap(nil); r != nil {
			h.unroute(r)
		}
		end(&e.entry)
	})
	h.cqs.wipe(func(q *cq) {
		if r := q.ring.Swap(nil); r != nil {
			r.kill()
		}
		end(&q.entry)
	})
	h.qps.wipe(func(q *qp) {
		h.endEndpoint(q)
		end(&q.entry)
	})
	h.gsi.Store(nil)
	h.groups.clear()
	for d := range h.steering {
		h.steering[d].Store(nil)
	}
	for _, t := range h.resources() {
		t.wipe(func(r *resource) {
			stop(&r.queue)
			if r.recv != nil {
				r.recv.kill()
			}
			end(&r.entry)
		})
	}
	h.pds.wipe(func(p *pd) { end(&p.entry) })
	h.uars.wipe(func(p *uar) { end(&p.entry) })
	h.umems.wipe(func(p *umem) { end(&p.entry) })
	h.mkeys.wipe(func(p *mkey) {
		end(&p.entry)
		p.at, p.umr = translation{}, 0
	})
	h.umrBytes.Store(0)
	h.counters.wipe(func(p *counterSet) { end(&p.entry) })
	if h.flowCounters != nil {
		h.flowCounters.wipe(func(f *flowCounter) { end(&f.entry) })
	}
	h.uctxs.wipe(func(p *uctx) { end(&p.entry) })
	h.rootTable = [numDirections]uint32{}
	h.alive.Store(0)
}

// Profile returns what the device's commands cost.
func (h *HCA) Profile() *Profile { return h.profile }

// Clock returns the clock that the device's commands take their time on.
func (h *HCA) Clock() Clock { return h.clock }

// Stats returns what the device has done.
func (h *HCA) Stats() Stats {
	return Stats{
		Commands:     h.engine.commands.Load(),
		InFlight:     h.engine.inFlight.Load(),
		MostInFlight: h.engine.most.Load(),
		QPs:          h.qps.count(),
		Doorbells:    h.doorbells.Load(),
	}
}

// Trace makes the device call f with each command when it is done, from the
// goroutine that issued it; in and out must not be kept. nil ends it.
func (h *HCA) Trace(f func(in, out []byte, took time.Duration)) {
	if f == nil {
		h.trace.Store(nil)
		return
	}
	h.trace.Store(&f)
}

// Event is something that the device tells its driver.
type Event struct {
	Type   mlx5.EventType
	Object uint32 // QPN or CQN; 0 for an event of the whole device
}

// Notify makes the device call f with each event. f must not block. nil ends
// it.
func (h *HCA) Notify(f func(Event)) {
	if f == nil {
		h.events.Store(nil)
		return
	}
	h.events.Store(&f)
}

// Raise makes a device that no driver boots report an event: its data path does,
// and a fault campaign may.
func (h *HCA) Raise(e Event) {
	if f := h.events.Load(); f != nil {
		(*f)(e)
	}
}

// Fault puts a queue pair that is in RTS into state s (SQER, SQD or ERR), as a
// device does by itself after an error in its data path. It reports whether it
// did.
func (h *HCA) Fault(qpn uint32, s mlx5.State) bool {
	q := h.qps.get(qpn)
	if q == nil {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	qpc := mlx5.QPC(q.qpc[:])
	if !q.live.Load() || qpc.State() != uint8(mlx5.StateRTS) || s != mlx5.StateSQER && s != mlx5.StateSQD && s != mlx5.StateErr {
		return false
	}
	qpc.SetState(uint8(s))
	h.follow(q, s)
	return true
}

// command is one command under execution.
type command struct {
	in, out []byte
	uid     uint16
}

type handler struct {
	run   func(h *HCA, c command) check
	in    int // least bytes of input
	out   int // least bytes of output
	flags flags
}

// handler returns what executes an opcode, or nil.
func (h *HCA) handler(op mlx5.Op) *handler {
	switch {
	case int(op) >= len(handlers):
	case handlers[op].run != nil:
		return &handlers[op]
	case h.driver != nil && driverHandlers[op].run != nil:
		return &driverHandlers[op]
	}
	return nil
}

type flags uint16

const (
	anyMod  flags = 1 << iota // the handler looks at op_mod itself
	objects                   // it makes or ends one
	context                   // it is about a queue pair
	alloc                     // it makes an object
	early                     // allowed before INIT_HCA
	driver                    // only for uid 0
	steers                    // it changes flow tables
)

// opTableSize is beyond the last opcode: general commands end at 0xd00
// (MLX5_CMD_OP_GENERAL_END).
const opTableSize = 0xd00

// handlers has what the device offers; an opcode that is not here is refused.
// driverHandlers has what it offers besides to a driver.
var handlers, driverHandlers [opTableSize]handler

func init() {
	offer := func(op mlx5.Op, run func(*HCA, command) check, f flags) {
		in, out := op.Layouts()
		handlers[op] = handler{run, in.Bytes, out.Bytes, f}
	}
	offer(mlx5.OpNOP, func(*HCA, command) check { return ok }, early)
	offer(mlx5.OpQueryHCACap, (*HCA).queryHCACap, anyMod|early)
	offer(mlx5.OpQueryAdapter, (*HCA).queryAdapter, early)
	offer(mlx5.OpQueryISSI, (*HCA).queryISSI, early)
	offer(mlx5.OpQueryRoCEAddress, (*HCA).queryRoCEAddress, 0)
	offer(mlx5.OpSetRoCEAddress, (*HCA).setRoCEAddress, 0)
	offer(mlx5.OpCreateUCTX, (*HCA).createUCTX, objects|alloc)
	offer(mlx5.OpDestroyUCTX, (*HCA).destroyUCTX, objects)
	offer(mlx5.OpAllocPD, (*HCA).allocPD, objects|alloc)
	offer(mlx5.OpDeallocPD, (*HCA).deallocPD, objects)
	offer(mlx5.OpAllocUAR, (*HCA).allocUAR, objects|alloc)
	offer(mlx5.OpDeallocUAR, (*HCA).deallocUAR, objects)
	offer(mlx5.OpAllocQCounter, (*HCA).allocQCounter, objects|alloc)
	offer(mlx5.OpDeallocQCounter, (*HCA).deallocQCounter, objects)
	offer(mlx5.OpQueryQCounter, (*HCA).queryQCounter, 0)
	offer(mlx5.OpCreateUmem, (*HCA).createUmem, objects|alloc)
	offer(mlx5.OpDestroyUmem, (*HCA).destroyUmem, objects)
	offer(mlx5.OpCreateMKey, (*HCA).createMKey, objects|alloc)
	offer(mlx5.OpQueryMKey, (*HCA).queryMKey, 0)
	offer(mlx5.OpDestroyMKey, (*HCA).destroyMKey, objects)
	offer(mlx5.OpQueryNICVPortContext, (*HCA).queryNICVPort, 0)
	offer(mlx5.OpQueryVPortState, (*HCA).queryVPortState, anyMod)
	offer(mlx5.OpQueryVPortCounter, (*HCA).queryVPortCounter, 0)
	offer(mlx5.OpQueryCongStatistics, (*HCA).queryCongStatistics, 0)
	offer(mlx5.OpCreateEQ, (*HCA).createEQ, objects|alloc)
	offer(mlx5.OpDestroyEQ, (*HCA).destroyEQ, objects)
	offer(mlx5.OpCreateCQ, (*HCA).createCQ, objects|alloc)
	offer(mlx5.OpQueryCQ, (*HCA).queryCQ, 0)
	offer(mlx5.OpDestroyCQ, (*HCA).destroyCQ, objects)
	offer(mlx5.OpCreateQP, (*HCA).createQP, objects|context|alloc)
	offer(mlx5.OpQueryQP, (*HCA).queryQP, context)
	offer(mlx5.OpDestroyQP, (*HCA).destroyQP, objects|context)
	handlers[mlx5.OpQueryHCACap].out = capAnswer
	for _, op := range mlx5.Transitions() {
		offer(op, (*HCA).transition, context)
	}
	for _, d := range driverCommands {
		in, out := d.op.Layouts()
		if d.layout != "" { // structs that are not named like their opcode
			in, out = mlx5.LayoutOf(d.layout+"_in"), mlx5.LayoutOf(d.layout+"_out")
		}
		driverHandlers[d.op] = handler{d.run, in.Bytes, out.Bytes, d.flags}
	}
}

// Exec executes one command and writes its answer, status and syndrome first,
// into out, which it clears before. It blocks for as long as the command takes
// on the device's clock. The uid in the command's bytes is taken as the
// caller's: a front end sets it.
//
// An out of fewer than 8 bytes has no room for an answer and gets none.
func (h *HCA) Exec(in, out []byte) {
	h.engine.enter()
	trace := h.trace.Load()
	start := time.Duration(0)
	if trace != nil {
		start = h.clock.Now()
	}
	op := mlx5.OpOf(in)
	if !h.zero {
		extra, miss := h.contextCost(op, in)
		h.clock.SleepUntil(h.engine.reserve(h.clock.Now(), op, extra, miss))
	}
	clear(out)
	if refused := h.execute(op, in, out); refused != ok && len(out) >= 8 {
		out[0] = byte(checks[refused].Status)
		binary.BigEndian.PutUint32(out[4:], checks[refused].Syndrome())
	}
	if trace != nil {
		(*trace)(in, out, h.clock.Now()-start)
	}
	h.engine.leave()
}

// contextCost returns how much longer a command that arrives now takes for the
// queue pairs that are alive, and whether the context that it is about is not at
// hand; afterwards it is. A queue pair that is not there, or not the caller's,
// has none.
func (h *HCA) contextCost(op mlx5.Op, in []byte) (extra time.Duration, miss bool) {
	if h.profile.Per1000QPs == 0 && h.contexts == nil {
		return 0, false
	}
	if hd := h.handler(op); hd == nil || hd.flags&context == 0 || len(in) < hd.in {
		return 0, false
	}
	if op != mlx5.OpCreateQP {
		id := id24(command{in: in})
		q := h.qps.get(id)
		uid := mlx5.RST2INITQPIn(in).UID()
		if q == nil || !(op == mlx5.OpQueryQP && q.see(uid) || op != mlx5.OpQueryQP && q.own(uid)) {
			return 0, false
		}
		if h.contexts != nil {
			miss = !h.contexts.use(id - firstQPN) // under the lock: DESTROY_QP drops it after this
		}
		q.mu.Unlock()
	}
	return h.profile.Per1000QPs * time.Duration(h.qps.count()) / 1000, miss
}

// execute runs the command; it writes into out only if it refuses nothing.
func (h *HCA) execute(op mlx5.Op, in, out []byte) check {
	hd := h.handler(op)
	if hd == nil {
		return badOp
	}
	if len(in) < hd.in {
		return shortIn
	}
	if len(out) < hd.out {
		return shortOut
	}
	hdr := mlx5.RST2INITQPIn(in) // opcode, uid and op_mod stand at the same place in every command
	if hd.flags&anyMod == 0 && hdr.OpMod() != 0 {
		return badOpMod
	}
	if h.driver == nil {
		return h.perform(hd, op, command{in: in, out: out, uid: hdr.UID()})
	}
	refused := h.admit(hd, in, hdr.UID())
	if refused != ok {
		return refused
	}
	refused = h.perform(hd, op, command{in: in, out: out, uid: hdr.UID()})
	if hd.flags&alloc != 0 && refused != ok {
		h.reserve(-cost(in))
	}
	return refused
}

// perform runs a command that was let in.
func (h *HCA) perform(hd *handler, op mlx5.Op, c command) check {
	if hd.flags&objects != 0 {
		h.objects.Lock()
		defer h.objects.Unlock()
	}
	if c.uid != 0 && c.uid != sharedUID && op != mlx5.OpCreateUCTX && op != mlx5.OpDestroyUCTX {
		if u := h.uctxs.get(uint32(c.uid)); u == nil || !u.live.Load() {
			return badUID
		}
	}
	refused := hd.run(h, c)
	if refused == ok && hd.flags&steers != 0 {
		h.resteer()
	}
	return refused
}

// admit checks whether a command may run at all now, and makes room for what it
// alloc.
func (h *HCA) admit(hd *handler, in []byte, uid uint16) check {
	switch {
	case hd.flags&driver != 0 && uid != 0:
		return badUID
	case hd.flags&early == 0 && h.phaseNow() != phaseRunning:
		return badPhase
	case hd.flags&alloc != 0:
		return h.reserve(cost(in))
	}
	return ok
}
