// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"devxlab.example/cm"
)

// StaleStorm is what happened when several connections were asked for at once for a
// remote queue pair that a live one has, and one for another queue pair.
type StaleStorm struct {
	How      string          `json:"how"`        // plain: before the limit was ever on; off, on: in turn
	Refused  []time.Duration `json:"refused_ns"` // when each was, sorted
	Innocent time.Duration   `json:"innocent_ns"`
	REJ      int64           `json:"rej"`     // sent
	DREQ     int64           `json:"dreq"`    // received: one that is not answered counts as sent only after its last repetition
	Retries  int64           `json:"retries"` // requests that were sent again
}

const (
	stormRequests = 3 // conflicts at once: with the limit, each but the first waits for a repetition
	stormsPlain   = 5 // storms in a boot before the limit is ever on
	stormPairs    = 2 // of storms with the limit on and off, in turn: one with it takes 6 to 12 s
	stormSetups   = 24
	stormFirstQPN = 0x100000
	stormTimeout  = 90 * time.Second
	stormBacklog  = 64

	// Reject reason of the InfiniBand Architecture Specification, volume 1, 12.6.7.2:
	// stale connection.
	staleConnection = 10
)

// stormName is the name of a series of a storm: "p50" or "max" of when conflicts were
// refused, or "innocent", until the other connection was there.
func stormName(how, what string) string { return PatchedStale + "/" + how + "/" + what }

// setupName is the series of set-ups without a conflict.
const setupName = PatchedStale + "/set-up"

// stale has connections set up, and refused.
func (p *patched) stale(ctx context.Context) (err error) {
	to, err := netip.ParseAddrPort(p.Options.Peer)
	if err != nil {
		return fmt.Errorf("an address of this machine on %s: %w", p.Device, err)
	}
	ch, err := cm.Open()
	if err != nil {
		return err
	}
	defer closed(&err, ch)
	s, err := newStormBed(ch, to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := p.setups(ctx, s); err != nil {
		return err
	}
	// One that does not count, as elsewhere.
	if err := p.storm(ctx, s, howOff); err != nil {
		return fmt.Errorf("first storm: %w", err)
	}
	p.PatchedBoot.Storms = nil
	return p.storms(func(how string) error { return p.storm(ctx, s, how) })
}

// storms makes those that are compared with another kernel's, before the limit is ever
// on, and then, where this kernel has it, those with the limit on and off.
func (p *patched) storms(storm func(how string) error) (err error) {
	for range stormsPlain {
		if err := storm(howPlain); err != nil {
			return err
		}
	}
	p.stormSeries(howPlain)
	if !p.has("ib_cm", limitStale) {
		return nil
	}
	defer func() { err = errors.Join(err, p.set("ib_cm", limitStale, "N")) }()
	for _, how := range stormOrder(p.onFirst) {
		value := "N"
		if how == howOn {
			value = "Y"
		}
		if err := p.set("ib_cm", limitStale, value); err != nil {
			return err
		}
		if err := storm(how); err != nil {
			return fmt.Errorf("storm, limit %s: %w", how, err)
		}
	}
	p.stormSeries(howOff)
	p.stormSeries(howOn)
	return nil
}

// stormOrder is the order of storms with the limit on and off. A storm leaves something
// to the next one, DREQs that are repeated and a CPU that is warm: which of the two comes
// first is the boot's to be told, and alternates.
func stormOrder(onFirst bool) (order []string) {
	first, second := howOff, howOn
	if onFirst {
		first, second = second, first
	}
	for range stormPairs {
		order = append(order, first, second)
	}
	return order
}

// stormSeries makes series of the storms of a way.
func (p *patched) stormSeries(how string) {
	var half, most, innocent Samples
	for _, s := range p.PatchedBoot.Storms {
		if s.How == how {
			half = append(half, float64(s.Refused[len(s.Refused)/2]))
			most = append(most, float64(s.Refused[len(s.Refused)-1]))
			innocent = append(innocent, float64(s.Innocent))
		}
	}
	for _, x := range []struct {
		what, words string
		samples     Samples
	}{
		{"p50", "until the middle one of the conflicts was refused", half}, {"max", "until the last of the conflicts was refused", most},
		{"innocent", "until the connection without a conflict was there, in a storm", innocent},
	} {
		p.Series = append(p.Series, Series{Name: stormName(how, x.what), What: x.words, Ops: 1, Samples: x.samples, Summary: Summarize(x.samples)})
	}
}

// setups times set-ups by the CM, without queue pairs and without a conflict.
func (p *patched) setups(ctx context.Context, s *stormBed) error {
	c := &contender{Series: Series{Name: setupName, What: "REQ to RTU of a connection without a conflict", Ops: 1}}
	c.sample = func(ctx context.Context) (sample, error) {
		id, err := s.ready(ctx)
		if err != nil {
			return sample{}, err
		}
		start := time.Now()
		err = s.connect(ctx, id, s.number())
		return sample{ns: float64(time.Since(start))}, err
	}
	return p.inTurn(ctx, p.repeats(stormSetups), c)
}

// storm asks for connections for the queue pair of a live one, and for one more.
func (p *patched) storm(ctx context.Context, s *stormBed, how string) error {
	ctx, cancel := context.WithTimeout(ctx, stormTimeout)
	defer cancel()
	live, err := s.ready(ctx)
	if err != nil {
		return err
	}
	number := s.number()
	if err := s.connect(ctx, live, number); err != nil {
		return fmt.Errorf("the live connection: %w", err)
	}
	var ids []*cm.ID // the innocent's first
	for range stormRequests + 1 {
		id, err := s.ready(ctx)
		if err != nil {
			return err
		}
		ids = append(ids, id)
	}
	took, errs := make([]time.Duration, len(ids)), make([]error, len(ids))
	before := cmCounters(p.Device)
	var all sync.WaitGroup
	start := time.Now()
	for i, id := range ids {
		all.Go(func() {
			if i == 0 {
				errs[i] = s.connect(ctx, id, s.number())
			} else {
				errs[i] = s.refused(ctx, id, number)
			}
			took[i] = time.Since(start)
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	after := cmCounters(p.Device)
	grew := func(name string) int64 { return after[name] - before[name] }
	slices.Sort(took[1:])
	p.PatchedBoot.Storms = append(p.PatchedBoot.Storms, StaleStorm{
		How: how, Innocent: took[0], Refused: took[1:],
		REJ: grew("cm_tx_msgs/rej"), DREQ: grew("cm_rx_msgs/dreq"), Retries: grew("cm_tx_retries/req"),
	})
	return nil
}

// stormBed is both ends of connections, whose queue pairs are numbers only: the CM
// does not look for them.
type stormBed struct {
	ch     *cm.Channel
	to     netip.AddrPort
	listen *cm.ID
	stop   context.CancelFunc
	ended  chan struct{} // closed when nobody accepts any more

	mu   sync.Mutex
	next uint32
	ids  []*cm.ID
	err  error // of accepting
}

func newStormBed(ch *cm.Channel, to netip.AddrPort) (*stormBed, error) {
	listen, err := ch.NewID(cm.Connected)
	if err != nil {
		return nil, err
	}
	s := &stormBed{ch: ch, to: to, listen: listen, next: stormFirstQPN, ended: make(chan struct{})}
	if err := errors.Join(listen.Bind(to), listen.Listen(stormBacklog)); err != nil {
		return nil, errors.Join(err, listen.Close())
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	go s.accept(ctx)
	return s, nil
}

// accept accepts whoever comes.
func (s *stormBed) accept(ctx context.Context) {
	defer close(s.ended)
	for {
		id, _, err := s.listen.Request(ctx)
		if err != nil {
			if ctx.Err() == nil {
				s.fail(err)
			}
			return
		}
		s.keep(id)
		if err := id.Answer(stormParam(s.number())); err != nil {
			s.fail(err)
		}
	}
}

func (s *stormBed) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = errors.Join(s.err, err)
}

func (s *stormBed) keep(id *cm.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids = append(s.ids, id)
}

// number is that of a queue pair which no other connection has.
func (s *stormBed) number() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	return s.next
}

func stormParam(qpn uint32) cm.Param {
	return cm.Param{QPN: qpn, Responder: 1, Initiator: 1, Retry: 7, RNRRetry: 7}
}

// ready returns an ID with address and route.
func (s *stormBed) ready(ctx context.Context) (*cm.ID, error) {
	id, err := s.ch.NewID(cm.Connected)
	if err != nil {
		return nil, err
	}
	s.keep(id)
	if err := id.ResolveAddr(ctx, netip.AddrPort{}, s.to); err != nil {
		return nil, err
	}
	return id, id.ResolveRoute(ctx)
}

// connect makes a connection.
func (s *stormBed) connect(ctx context.Context, id *cm.ID, qpn uint32) error {
	if _, err := id.Connect(ctx, stormParam(qpn)); err != nil {
		return err
	}
	return id.Establish()
}

// refused asks for one, and fails if it is not refused.
func (s *stormBed) refused(ctx context.Context, id *cm.ID, qpn uint32) error {
	_, err := id.Connect(ctx, stormParam(qpn))
	switch {
	case err == nil:
		return fmt.Errorf("a second connection for QP %#x was let in", qpn)
	case errors.Is(err, &cm.RejectError{Reason: staleConnection}):
		return nil
	}
	return err
}

// close ends all connections and returns what went wrong while accepting.
func (s *stormBed) close() error {
	s.stop()
	<-s.ended
	err := s.err
	for _, id := range append(s.ids, s.listen) {
		err = errors.Join(err, id.Close())
	}
	return err
}
