// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"slices"
	"sync"
	"sync/atomic"

	"devxlab.example/mlx5"
)

// Wire takes the frames that a port sends: Ethernet without the FCS. A frame
// belongs to the wire from then on. Send must not block.
type Wire interface {
	Send(frame []byte)
}

// PacedWire is a wire that has a rate, or may be told to pause, and says how much
// waits for it, by priority. The port does not send faster than it takes: a queue
// whose last frame had a priority of which much waits has its next turn when there
// is room, as a port's transmit queue has credit. Its methods must not call the
// device back at once: a send queue's lock may be held.
type PacedWire interface {
	Wire
	PriorityOf(frame []byte) int // 0 to 7
	Backlog(priority int) int    // bytes that wait
	// OnRoom names a function that is called when the bytes that wait of a priority
	// were more than low and are not any more.
	OnRoom(low int, room func(priority int))
}

// Looper is what a Wire may be too: it is shown each frame that the port sends to
// its own address, which goes to no wire. Looped must neither block nor keep or
// change the frame.
type Looper interface {
	Looped(frame []byte)
}

// Limits of the port.
const (
	// maxWaiting is how many frames may wait to be looked at; more are dropped, as
	// a port without pause frames does.
	maxWaiting = 1 << 14
	// maxFrame is the longest frame that the port takes: its MTU and a VLAN tag.
	maxFrame = maxMTU + vlanBytes
	// turnPackets is how many packets a queue sends before others have a turn, and
	// turnBytes how many bytes of frames of an SQ.
	turnPackets = 16
	turnBytes   = 64 << 10
	// backlogHigh is how many bytes of a priority may wait for the wire before queues
	// that send them have to, and backlogLow how few must be left then.
	backlogHigh = 256 << 10
	backlogLow  = 128 << 10
)

// lane is a priority of a paced wire; noLane is where nothing waits.
type lane int8

const noLane lane = -1

const numLanes = 8

// runner is a queue that may have something to do.
type runner interface {
	// turn does a little of it and reports whether there may be more.
	turn(h *HCA) (more bool)
	queued() *bool // whether it waits for a turn, under the port's lock
	lane() lane    // of the frame that it sent last; for the port's goroutine only
}

// port is where frames and queues with work wait for the one goroutine that
// deals with them. It ends when there is nothing left, so an idle device has
// none. What a queue sends to the device itself waits here too and is received
// before the next queue's turn: nothing can send faster than it is received.
type port struct {
	mu      sync.Mutex
	wire    Wire
	paced   PacedWire // the same, or nil
	full    [numLanes]bool
	parked  [numLanes][]runner // queues that wait until theirs is not full
	in      [][]byte
	run     []runner
	running bool
	closed  bool

	free struct { // of the goroutine: what in and run were before
		in  [][]byte
		run []runner
	}
	stats portCounters
}

// portCounters is what passed the port, without the FCS.
type portCounters struct {
	rx, tx  [numTraffic]traffic
	dropped atomic.Uint64 // received and not taken: too many, too long, broken
}

// traffic counts packets and bytes.
type traffic struct{ packets, bytes atomic.Uint64 }

// Kinds of traffic, as QUERY_VPORT_COUNTER has them.
const (
	trafficUnicast = iota
	trafficMulticast
	trafficBroadcast
	trafficRDMA // of these two, unicast and multicast
	trafficRDMAMulticast
	numTraffic
)

func (c *traffic) add(n int) {
	c.packets.Add(1)
	c.bytes.Add(uint64(n))
}

// Connect gives the port a wire; nil takes it away. Frames for the port's own
// addresses do not leave it.
func (h *HCA) Connect(w Wire) {
	p := &h.port
	paced, _ := w.(PacedWire)
	p.mu.Lock()
	p.wire, p.paced = w, paced
	p.mu.Unlock()
	if paced != nil {
		paced.OnRoom(backlogLow, func(priority int) { h.room(lane(priority)) })
	}
	for l := range lane(numLanes) {
		h.room(l)
	}
}

// room gives the queues that wait for a lane their turn.
func (h *HCA) room(l lane) {
	if l < 0 || l >= numLanes {
		return
	}
	p := &h.port
	p.mu.Lock()
	p.full[l] = false
	if len(p.parked[l]) == 0 || p.closed {
		p.mu.Unlock()
		return
	}
	p.run = append(p.run, p.parked[l]...)
	clear(p.parked[l])
	p.parked[l] = p.parked[l][:0]
	h.start()
}

// crowded looks whether too much waits in a lane that a queue has just sent to.
func (h *HCA) crowded(l lane) {
	p := &h.port
	p.mu.Lock()
	w := p.paced
	if l == noLane || w == nil || p.full[l] {
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	if w.Backlog(int(l)) <= backlogHigh {
		return
	}
	p.mu.Lock()
	p.full[l] = p.paced == w // or it was taken away, and nobody tells of room
	p.mu.Unlock()
	// It may have drained before it was called full, and then nobody tells.
	if w.Backlog(int(l)) <= backlogLow {
		h.room(l)
	}
}

// park makes a queue wait if its lane is full. Its place stays queued.
func (p *port) park(r runner) bool {
	l := r.lane()
	if l == noLane {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.full[l] || p.closed {
		return false
	}
	p.parked[l] = append(p.parked[l], r)
	return true
}

// unpark gives a queue that waits for a lane its turn nevertheless: it has
// something to do that sends nothing.
func (h *HCA) unpark(r runner) {
	p := &h.port
	p.mu.Lock()
	for l := range p.parked {
		if i := slices.Index(p.parked[l], r); i >= 0 {
			p.parked[l] = slices.Delete(p.parked[l], i, i+1)
			p.run = append(p.run, r)
			h.start()
			return
		}
	}
	p.mu.Unlock()
}

// Receive takes a frame that arrives at the port. The frame belongs to the
// device from then on. It does not block.
func (h *HCA) Receive(frame []byte) {
	p := &h.port
	p.mu.Lock()
	if p.closed || len(p.in) >= maxWaiting || len(frame) > maxFrame {
		p.mu.Unlock()
		p.stats.dropped.Add(1)
		return
	}
	p.in = append(p.in, frame)
	h.start()
}

// wake gives a queue a turn.
func (h *HCA) wake(r runner) {
	p := &h.port
	p.mu.Lock()
	if q := r.queued(); *q || p.closed {
		p.mu.Unlock()
		return
	} else {
		*q = true
	}
	p.run = append(p.run, r)
	h.start()
}

// start makes the goroutine run; the port is locked, and unlocked by this.
func (h *HCA) start() {
	p := &h.port
	was := p.running
	p.running = true
	p.mu.Unlock()
	if !was {
		h.clock.Busy(1)
		go h.serve()
	}
}

// serve is the goroutine.
func (h *HCA) serve() {
	p := &h.port
	for {
		p.mu.Lock()
		in, run := p.in, p.run
		if p.closed || len(in) == 0 && len(run) == 0 {
			p.running, p.in, p.run = false, nil, nil
			p.mu.Unlock()
			h.clock.Busy(-1)
			return
		}
		p.in, p.run = p.free.in[:0], p.free.run[:0]
		p.mu.Unlock()
		in = h.receiveAll(in)
		for i, r := range run {
			run[i] = nil
			if p.park(r) {
				continue
			}
			p.mu.Lock()
			*r.queued() = false
			p.mu.Unlock()
			if r.turn(h) {
				h.wake(r)
			}
			h.crowded(r.lane())
			in = h.receiveAll(p.arrived(in))
		}
		p.free.in, p.free.run = in, run
	}
}

func (h *HCA) receiveAll(in [][]byte) [][]byte {
	for i, f := range in {
		h.receive(f)
		in[i] = nil
	}
	return in[:0]
}

// arrived returns the frames that wait, for room in their place.
func (p *port) arrived(room [][]byte) [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.in) == 0 {
		return room[:0]
	}
	in := p.in
	p.in = room[:0]
	return in
}

// shut ends the port's work, for ever.
func (p *port) shut() {
	p.mu.Lock()
	p.closed, p.in, p.run, p.parked = true, nil, nil, [numLanes][]runner{}
	p.mu.Unlock()
}

func (p *port) idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.running
}

// Addresses of frames.
const groupBit = 1 // of the first byte: multicast

var broadcast = [macBytes]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func kindOf(frame []byte, rdma bool) int {
	switch {
	case rdma && frame[0]&groupBit != 0:
		return trafficRDMAMulticast
	case rdma:
		return trafficRDMA
	case [macBytes]byte(frame) == broadcast:
		return trafficBroadcast
	case frame[0]&groupBit != 0:
		return trafficMulticast
	}
	return trafficUnicast
}

// transmit sends a frame: to the port itself if it is its own or a multicast
// that the sender wants to hear, and to the wire. It returns where it waits.
func (h *HCA) transmit(frame []byte, rdma, loop bool) lane {
	p := &h.port
	p.stats.tx[kindOf(frame, rdma)].add(len(frame))
	group := frame[0]&groupBit != 0
	p.mu.Lock()
	w, paced := p.wire, p.paced
	p.mu.Unlock()
	if h.vport.is(frame) {
		if l, ok := w.(Looper); ok {
			l.Looped(frame)
		}
		h.Receive(frame)
		return noLane
	}
	if group && loop {
		if w == nil {
			h.Receive(frame)
			return noLane
		}
		h.Receive(append([]byte(nil), frame...))
	}
	l := noLane
	if paced != nil {
		l = lane(paced.PriorityOf(frame) & (numLanes - 1))
	}
	if w != nil {
		w.Send(frame)
	}
	return l
}

// laneOf returns where the frames of a queue pair's path wait. That of datagrams is
// not known before they are sent.
func (h *HCA) laneOf(e *endpoint) lane {
	h.port.mu.Lock()
	paced := h.port.paced
	h.port.mu.Unlock()
	if paced == nil || !e.connected() {
		return noLane
	}
	frame, _ := e.route.frame(&header{qpn: e.remote}, 0)
	if h.vport.is(frame) {
		return noLane
	}
	return lane(paced.PriorityOf(frame) & (numLanes - 1))
}

// loopback gives a multicast frame of a send queue to the receive queues that
// user programs have for it: a kernel's interface does not want to hear itself.
// (mlx5_ib allows it with mlx5_ib_enable_lb; whom it reaches is assumed.)
func (h *HCA) loopback(frame []byte) {
	if frame[0]&groupBit != 0 {
		h.steerFrame(frame, true)
	}
}

// receive deals with a frame: RDMA is for a queue pair, everything else for
// the flow tables.
func (h *HCA) receive(frame []byte) {
	p := &h.port
	if len(frame) < etherBytes || !h.vport.takes(frame) {
		return
	}
	var k packet
	v := notRoCE
	if h.vport.roce() {
		if v = k.parse(frame); v == isRoCE && !h.local(&k) {
			v = notRoCE
		}
	}
	switch v {
	case badRoCE:
		p.stats.dropped.Add(1)
	case isRoCE:
		p.stats.rx[kindOf(frame, true)].add(len(frame))
		h.deliver(&k)
	default:
		p.stats.rx[kindOf(frame, false)].add(len(frame))
		h.steerFrame(frame, false)
	}
}

// local reports whether a packet is for a GID of this port.
func (h *HCA) local(k *packet) bool {
	if k.dmac[0]&groupBit != 0 {
		return true // whether a queue pair has joined, it decides
	}
	return !zero(k.dgid[:]) && h.hasGID(&k.dgid, k.v2)
}

// is reports whether a frame is for an address of the port's own.
func (v *vport) is(frame []byte) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.owns(frame)
}

func (v *vport) owns(frame []byte) bool {
	mac := [macBytes]byte(frame)
	if mac[0]&groupBit != 0 {
		return false
	}
	if [macBytes]byte(mlx5.NICVPortContext(v.ctx[:]).PermanentAddress()[2:]) == mac {
		return true
	}
	for l := v.lists[listUC]; len(l) >= addressBytes; l = l[addressBytes:] {
		if [macBytes]byte(l[2:]) == mac {
			return true
		}
	}
	return false
}

// takes reports whether the port takes a frame: it is up, and the address is
// one of its own, a group's, or it takes all.
func (v *vport) takes(frame []byte) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	c := mlx5.NICVPortContext(v.ctx[:])
	return v.up() && (frame[0]&groupBit != 0 || c.PromiscAll() || c.PromiscUC() || v.owns(frame))
}

// roce reports whether the driver wants RoCE.
func (v *vport) roce() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return mlx5.NICVPortContext(v.ctx[:]).RoCEEn()
}
