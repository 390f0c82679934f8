// SPDX-License-Identifier: BSD-2-Clause

package wire

// Way is a direction, as an endpoint sees its port.
type Way int

// Ways.
const (
	Out Way = iota // from what is connected to the port
	In             // to it
)

// Port is where an endpoint is connected: an end of a link, or a port of a
// switch with its cable. Its methods may be called from any goroutine.
type Port struct {
	e       *engine
	ways    [2]*direction
	receive func(frame []byte)
	roomFor func(priority int)
	low     int
	tap     *tapPort
}

func newPort(e *engine, out, in *direction) *Port {
	p := &Port{e: e, ways: [2]*direction{out, in}}
	out.near, in.far = p, p
	out.peer, in.peer = in, out
	return p
}

// Connect names the function that gets the frames that arrive, each of which is
// then its own. It is called on the goroutine of the link or switch, one frame
// after the other, and must not wait: everything else of the same wire waits for
// it. It may call Send. Nil disconnects.
func (p *Port) Connect(receive func(frame []byte)) {
	p.e.enter()
	defer p.e.leave()
	p.receive = receive
	if receive == nil {
		p.disown()
	}
}

// disown drops what waits for a receiver that is gone.
func (p *Port) disown() {
	var kept fifo
	for f := p.e.due.pop(); f != nil; f = p.e.due.pop() {
		if f.room || f.dir.far != p {
			kept.push(f)
			continue
		}
		f.dir.stats.Flying--
		f.dir.drop(f, NoReceiver, p.e.clock.Now())
	}
	p.e.due = kept
}

// Send gives a frame to the wire, Ethernet header first, without FCS. The wire
// owns its memory from now on. Send never waits: what does not fit is dropped
// and counted.
func (p *Port) Send(frame []byte) {
	now := p.e.enter()
	p.ways[Out].send(frame, nil, now)
	p.e.leave()
}

// Backlog returns how many bytes of a priority wait to be sent.
func (p *Port) Backlog(priority int) int {
	p.e.enter()
	defer p.e.leave()
	return p.ways[Out].queued[priority]
}

// PriorityOf returns a frame's priority: by Priority, or what took its place.
func (p *Port) PriorityOf(frame []byte) int {
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	return p.e.priority(frame) % Priorities
}

// OnRoom names a function that is called when the bytes of a priority that wait
// to be sent were more than low and are not any more. With it and Backlog an
// endpoint sends as fast as the wire takes it, and loses nothing when it is
// paused. It is called as receivers are.
func (p *Port) OnRoom(low int, room func(priority int)) {
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	p.low, p.roomFor = low, room
}

// SetParams changes a direction's parameters for all frames that have not begun
// to leave.
func (p *Port) SetParams(w Way, params Params) error {
	if err := validate(params); err != nil {
		return err
	}
	now := p.e.enter()
	defer p.e.leave()
	p.ways[w].set(params, now)
	return nil
}

// Params returns a direction's parameters.
func (p *Port) Params(w Way) Params {
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	return p.ways[w].params
}

// SetFilter sets a direction's filter; nil is none.
func (p *Port) SetFilter(w Way, f Filter) {
	p.e.enter()
	defer p.e.leave()
	p.ways[w].filter = f
}

// Stats returns a direction's counters.
func (p *Port) Stats(w Way) Stats {
	now := p.e.enter()
	defer p.e.leave()
	d := p.ways[w]
	d.settle(now)
	return d.stats
}

// Link is a cable between two ports.
type Link struct {
	A, B *Port
	e    *engine
}

// NewLink lays a cable: what A sends goes to B by the parameters ab, and back by
// ba. Close ends it.
func NewLink(clock Clock, ab, ba Params, seed uint64) (*Link, error) {
	if err := validate(ab, ba); err != nil {
		return nil, err
	}
	e, err := newEngine(clock, seed)
	if err != nil {
		return nil, err
	}
	to, back := e.add(ab), e.add(ba)
	l := &Link{A: newPort(e, to, back), B: newPort(e, back, to), e: e}
	go e.run()
	return l, nil
}

// SetPriority replaces Priority as the function that tells a frame's priority, 0
// to 7; nil puts it back. It is called with locks held.
func (l *Link) SetPriority(f func(frame []byte) int) { l.e.setPriority(f) }

// Close drops what is on its way. No receiver runs when it returns, and none is
// called any more; frames that are sent are dropped. It must not be called from
// a receiver. The goroutine ends when the clock lets it: a virtual one when its
// other goroutines wait.
func (l *Link) Close() { l.e.close() }
