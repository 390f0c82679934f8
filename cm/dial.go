// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

// QP is a queue pair that can be brought where the connection manager wants it.
type QP interface {
	Number() uint32
	To(id *ID, state mlx5.State) error // INIT, RTR, RTS, and, without an ID, ERR
	Close() error
}

// VerbsQP is a queue pair made by verbs: ibv_modify_qp, as programs of rdma-core
// do it.
type VerbsQP struct{ *devx.VerbsQP }

// To brings the queue pair to a state.
func (q VerbsQP) To(id *ID, state mlx5.State) error {
	if state == mlx5.StateErr {
		return q.Modify(devx.QPAttr{State: state}, devx.MaskState)
	}
	a, mask, err := id.QPAttr(state)
	if err != nil {
		return err
	}
	return q.Modify(a, mask)
}

// DevXQP is a queue pair made through DevX.
type DevXQP struct{ *devx.QP }

// To brings the queue pair to a state.
func (q DevXQP) To(id *ID, state mlx5.State) error {
	switch state {
	case mlx5.StateInit:
		return modify(q.QP, id.INIT)
	case mlx5.StateRTR:
		return modify(q.QP, func() (mlx5.INIT2RTR, error) { return id.RTR(q.Number()) })
	case mlx5.StateRTS:
		return modify(q.QP, id.RTS)
	case mlx5.StateErr:
		return devx.Modify(q.QP, mlx5.ToERR{})
	}
	return fmt.Errorf("cm: %s is no state on the way to a connection", state)
}

func modify[T mlx5.Transition](q *devx.QP, transition func() (T, error)) error {
	t, err := transition()
	if err != nil {
		return err
	}
	return devx.Modify(q, t)
}

// Step is a part of the way to a connection.
type Step uint8

// Steps, in their order. A client takes all but StepAccept; a server StepCreate to
// StepInit, StepRTR, StepRTS and StepAccept.
const (
	StepID      Step = iota // the ID is made, and Dialer.Options are set
	StepAddress             // ResolveAddr
	StepRoute               // ResolveRoute
	StepCreate              // the queue pair is made
	StepInit                // and brought to INIT
	StepConnect             // REQ is sent, REP comes
	StepRTR                 // the queue pair is brought to RTR
	StepRTS                 // and to RTS
	StepRTU                 // RTU is sent
	StepAccept              // REP is sent, RTU comes
	StepCount               // how many there are
)

var stepNames = [...]string{"id", "address", "route", "create", "INIT", "REQ→REP", "RTR", "RTS", "RTU", "REP→RTU"}

// String returns the step's name: "REQ→REP".
func (s Step) String() string {
	if int(s) < len(stepNames) {
		return stepNames[s]
	}
	return fmt.Sprintf("step %d", uint8(s))
}

// Steps is how long each step took; 0 if it was not taken.
type Steps [StepCount]time.Duration

// Total is how long all of them took.
func (s *Steps) Total() (sum time.Duration) {
	for _, d := range s {
		sum += d
	}
	return sum
}

// StepError says at which step a connection failed. Unwrap gives why.
type StepError struct {
	Step Step
	Err  error // why: a *CallError, *EventError, *RejectError, the context's or the queue pair's error
}

func (e *StepError) Error() string { return fmt.Sprintf("cm: at %s: %v", e.Step, e.Err) }

// Unwrap returns why.
func (e *StepError) Unwrap() error { return e.Err }

// Conn is a connection.
type Conn struct {
	ID    *ID   // its end of the connection
	QP    QP    // what Maker has made
	Peer  Param // what the peer said: in REP to a client, in REQ to a server
	Steps Steps // how long they took

	destroyed atomic.Bool
}

// Maker makes a queue pair for an ID, which knows its device (Route).
type Maker func(*ID) (QP, error)

// Dialer makes connections.
type Dialer struct {
	Channel *Channel        // whose IDs the connections are; it has to be open
	Make    Maker           // makes each connection's queue pair
	Source  netip.AddrPort  // own address, of the destination's family; zero: the kernel chooses
	Param   Param           // what REQ says; QPN is filled in
	Options func(*ID) error // called in StepID, when the ID is made: SetTOS and the like; nil: none
}

// Dial takes all steps to a connection. If one fails, a *StepError says which.
func (d *Dialer) Dial(ctx context.Context, dst netip.AddrPort) (*Conn, error) {
	g := d.Begin(dst)
	for _, s := range clientSteps {
		if err := g.Step(ctx, s); err != nil {
			return nil, err
		}
	}
	return g.Conn(), nil
}

// Dialing is a connection on its way.
type Dialing struct {
	b     builder
	d     *Dialer
	dst   netip.AddrPort
	taken int // steps
}

// Begin returns a connection whose steps the caller takes one by one.
func (d *Dialer) Begin(dst netip.AddrPort) *Dialing {
	return &Dialing{b: builder{Conn: &Conn{}}, d: d, dst: dst}
}

var clientSteps = [...]Step{StepID, StepAddress, StepRoute, StepCreate, StepInit, StepConnect, StepRTR, StepRTS, StepRTU}

// ClientSteps returns the steps of a client, in their order.
func ClientSteps() []Step { return clientSteps[:] }

// Waits reports whether a step waits for an event.
func (s Step) Waits() bool {
	return s == StepAddress || s == StepRoute || s == StepConnect || s == StepAccept
}

// Step takes the next of ClientSteps, unless the context has ended. After a
// *StepError there is nothing left of the connection, and all further steps return it.
func (g *Dialing) Step(ctx context.Context, s Step) error {
	b := &g.b
	if b.err != nil {
		return b.err
	}
	if g.taken == len(clientSteps) {
		return &StepError{s, errors.New("all steps are taken")}
	}
	if next := clientSteps[g.taken]; s != next {
		b.err = &StepError{s, fmt.Errorf("%s comes first", next)}
		return b.undo()
	}
	if err := ctx.Err(); err != nil {
		b.err = &StepError{s, err}
		return b.undo()
	}
	g.taken++
	switch s {
	case StepID:
		b.step(s, g.makeID)
	case StepAddress:
		b.step(s, func() error { return b.ID.ResolveAddr(ctx, g.d.Source, g.dst) })
	case StepRoute:
		b.step(s, func() error { return b.ID.ResolveRoute(ctx) })
	case StepCreate:
		b.create(g.d.Make)
	case StepInit:
		b.state(s, mlx5.StateInit)
	case StepConnect:
		b.step(s, func() (err error) {
			p := g.d.Param
			p.QPN = b.QP.Number()
			b.Peer, err = b.ID.Connect(ctx, p)
			return err
		})
	case StepRTR:
		b.state(s, mlx5.StateRTR)
	case StepRTS:
		b.state(s, mlx5.StateRTS)
	case StepRTU:
		b.step(s, b.ID.Establish)
	}
	return b.undo()
}

func (g *Dialing) makeID() (err error) {
	if g.b.ID, err = g.d.Channel.NewID(Connected); err == nil && g.d.Options != nil {
		err = g.d.Options(g.b.ID)
	}
	return err
}

// Conn returns the connection, after the last step.
func (g *Dialing) Conn() *Conn { return g.b.Conn }

// builder takes steps until one fails.
type builder struct {
	*Conn
	err error
}

func (b *builder) step(s Step, f func() error) {
	if b.err != nil {
		return
	}
	start := time.Now()
	if err := f(); err != nil {
		b.err = &StepError{s, err}
	}
	b.Steps[s] = time.Since(start)
}

func (b *builder) state(s Step, state mlx5.State) {
	b.step(s, func() error { return b.QP.To(b.ID, state) })
}

func (b *builder) create(make Maker) {
	b.step(StepCreate, func() (err error) {
		b.QP, err = make(b.ID)
		return err
	})
}

// undo takes back what there is of a connection that failed.
func (b *builder) undo() error {
	if b.err == nil {
		return nil
	}
	return errors.Join(b.err, b.Destroy())
}

// Disconnect brings the queue pair to ERR, tells the peer, and waits for its
// answer. After Destroy it returns ErrClosed.
func (c *Conn) Disconnect(ctx context.Context) error {
	if c.destroyed.Load() {
		return errConnDestroyed
	}
	return errors.Join(c.QP.To(nil, mlx5.StateErr), c.ID.Disconnect(ctx))
}

// Destroy destroys what there is of ID and queue pair. A second call does nothing.
func (c *Conn) Destroy() error {
	if c.destroyed.Swap(true) {
		return nil
	}
	var err error
	if c.ID != nil {
		err = c.ID.Close()
	}
	if c.QP != nil {
		err = errors.Join(err, c.QP.Close())
	}
	return err
}

var errConnDestroyed = fmt.Errorf("cm: connection: %w", ErrClosed)

// Close ends the connection: Disconnect, and Destroy whether that went well or
// not. After Destroy it does nothing.
func (c *Conn) Close(ctx context.Context) error {
	if c.destroyed.Load() {
		return nil
	}
	return errors.Join(c.Disconnect(ctx), c.Destroy())
}

// Listener takes connections.
type Listener struct {
	ID   *ID   // bound and listening
	Make Maker // makes each connection's queue pair
}

// Listen makes a listener on an address; port 0 lets the kernel choose one, which
// ID.Route tells.
func (c *Channel) Listen(addr netip.AddrPort, backlog int, make Maker) (*Listener, error) {
	id, err := c.NewID(Connected)
	if err != nil {
		return nil, err
	}
	if err = id.Bind(addr); err == nil {
		err = id.Listen(backlog)
	}
	if err != nil {
		return nil, errors.Join(err, id.Close())
	}
	return &Listener{id, make}, nil
}

// Accept waits for a request and takes all steps to the connection, with as many
// reads and atomics as the peer asks for. Several goroutines may call it. A
// *StepError is a connection that failed: the listener goes on.
func (l *Listener) Accept(ctx context.Context) (*Conn, error) {
	c, err := l.Answer(ctx)
	if err == nil {
		err = c.Established(ctx)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Answer is Accept without its last step: the peer has been answered, and what
// Established returns says whether it has completed the connection.
func (l *Listener) Answer(ctx context.Context) (*Conn, error) {
	id, peer, err := l.ID.Request(ctx)
	if err != nil {
		return nil, err
	}
	b := builder{Conn: &Conn{ID: id, Peer: peer}}
	b.create(l.Make)
	b.state(StepInit, mlx5.StateInit)
	b.state(StepRTR, mlx5.StateRTR)
	b.state(StepRTS, mlx5.StateRTS)
	b.step(StepAccept, func() error {
		return id.Answer(Param{QPN: b.QP.Number(), Responder: peer.Responder, Initiator: peer.Initiator, RNRRetry: peer.RNRRetry, FlowControl: peer.FlowControl})
	})
	if err := b.undo(); err != nil {
		return nil, err
	}
	return b.Conn, nil
}

// Established waits for the peer's RTU, after Listener.Answer. If it fails, nothing
// is left of the connection.
func (c *Conn) Established(ctx context.Context) error {
	b := builder{Conn: c}
	answered := c.Steps[StepAccept]
	b.step(StepAccept, func() error { return c.ID.Established(ctx) })
	c.Steps[StepAccept] += answered
	return b.undo()
}

// Close ends the listener; its connections stay.
func (l *Listener) Close() error { return l.ID.Close() }
