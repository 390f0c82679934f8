// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"devxlab.example/cm"
	churn "devxlab.example/cm/load"
)

// c3 makes connections through the kernel's connection manager, one block idle, one
// congested, and looks at what the slowest waited for.
var c3 = Experiment{
	Name:       "c3",
	Question:   "What makes the slowest connection set-ups slow, idle and congested?",
	run:        runC3,
	text:       c3Text,
	queuePairs: c3Most,
	plan: func(r *Run) string {
		congest := "There is no congested part, since no --congest was given."
		if len(r.Options.Congest) > 0 {
			congest = fmt.Sprintf("In every second block it runs %q, and ends it with SIGTERM.", strings.Join(r.Options.Congest, " "))
		}
		return fmt.Sprintf("makes up to %s connections to %s, %d at a time, with queue pairs made by verbs, and ends each at once. No work request. %s",
			count(2*r.c3Connections()), r.Options.Peer, r.c3Workers(), congest)
	},
}

const (
	c3Pairs       = 20
	c3Connections = minForP999 // of each kind
	c3Workers     = 8
	c3Most        = 64              // workers
	c3Calibrate   = 100             // connections of each kind, that do not count
	c3Stale       = 3               // how often a set-up that was rejected as stale is tried again
	c3Timeout     = 2 * time.Minute // of a set-up: longer than 16 requests
	c3Start       = time.Minute     // for the congestion to build up
	c3Tail        = 0.999
)

// ErrNoPeer is in the error of a run that was not told whom to connect to.
var ErrNoPeer = errors.New("needs a peer")

// Setups is what c3 found besides the distributions.
type Setups struct {
	Workers    int              `json:"workers"`
	Block      int              `json:"block"` // connections
	Conditions []SetupCondition `json:"conditions"`
}

// SetupCondition is one of "idle" and "congested".
type SetupCondition struct {
	Name     string           `json:"name"`
	Done     int              `json:"done"`
	Failed   int              `json:"failed"`
	Stale    int              `json:"stale"` // requests rejected for a stale connection: the conflicts of the claim
	Rate     float64          `json:"rate_per_s"`
	Failures map[string]int   `json:"failures"`
	Ends     map[string]int   `json:"ended_badly"`
	Counters map[string]int64 `json:"counters,omitempty"` // of the connection manager on this port, by how much they grew
	Tail     SetupTail        `json:"tail"`
}

// SetupTail are the slowest 0.1 % of the set-ups.
type SetupTail struct {
	N     int                `json:"n"`
	From  time.Duration      `json:"from_ns"` // the fastest of them
	Stale int                `json:"stale"`   // that met a conflict
	Share map[string]float64 `json:"share"`   // of their time, by step; "waiting": for a worker's turn, and tries that were rejected
}

func (r *Run) c3Connections() int { return cmp.Or(r.Options.Connections, c3Connections) }

func (r *Run) c3Workers() int { return cmp.Or(r.Options.Workers, c3Workers) }

func runC3(ctx context.Context, r *Run) (err error) {
	if r.emulated() {
		return fmt.Errorf("bench: c3 %w and a kernel with a connection manager, and %s is inside this process: --device mlx5_0, on a card or in the lab", ErrNoPeer, r.Device)
	}
	to, err := netip.ParseAddrPort(r.Options.Peer)
	if err != nil {
		return fmt.Errorf("bench: c3 %w: --peer ADDRESS:PORT, where devxlab cm server runs", ErrNoPeer)
	}
	if w := r.c3Workers(); w > c3Most {
		return fmt.Errorf("bench: c3: %d workers: at most %d", w, c3Most)
	}
	ch, err := cm.Open()
	if err != nil {
		return err
	}
	defer closed(&err, ch)
	dev := new(cm.Devices)
	defer closed(&err, dev)
	c := &c3Run{Run: r, dialer: &cm.Dialer{Channel: ch, Make: dev.Make, Param: cm.Param{Responder: 1, Initiator: 1, Retry: 7, RNRRetry: 7}}, to: to}
	if err := c.check(ctx); err != nil {
		return err
	}
	setProcs(r.c3Workers() + 2)
	r.Setups = &Setups{Workers: r.c3Workers()}
	kinds := []*c3Kind{newC3Kind("idle", nil)}
	if len(r.Options.Congest) > 0 {
		kinds = append(kinds, newC3Kind("congested", r.Options.Congest))
	}
	if err := c.calibrate(ctx, kinds); err != nil {
		return err
	}
	r.Method = fmt.Sprintf("Churn: %d workers connect, and disconnect at once, through rdma_cm; queue pairs by verbs. Blocks of %s connections, %s in turn; each set-up is timed by step.",
		r.Setups.Workers, count(r.Setups.Block), strings.Join(c3Names(kinds), " and "))
	var turns []*contender
	for _, k := range kinds {
		turns = append(turns, c.contender(k))
	}
	err = r.inTurn(ctx, r.pairs(c3Pairs), turns...)
	for _, k := range kinds {
		c.conclude(k)
	}
	if err != nil {
		return err
	}
	if len(kinds) == 2 {
		for i := range turns[0].parts {
			r.compare(turns[1].parts[i], turns[0].parts[i])
		}
		r.compare(turns[1], turns[0])
	}
	r.Verdicts = append(r.Verdicts, c3Verdict(r.Setups))
	return nil
}

// c3Kind is one of the conditions, as far as it was measured.
type c3Kind struct {
	name    string
	congest []string
	round   int
	all     *churn.Result // all blocks together
	samples []churn.Sample
	counted map[string]int64
	note    SetupCondition
}

func newC3Kind(name string, congest []string) *c3Kind {
	return &c3Kind{name: name, congest: congest, counted: map[string]int64{},
		note: SetupCondition{Name: name, Failures: map[string]int{}, Ends: map[string]int{}}}
}

func c3Names(kinds []*c3Kind) (names []string) {
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// c3Run is the experiment under way.
type c3Run struct {
	*Run
	dialer *cm.Dialer
	to     netip.AddrPort
}

// check makes one connection, which also opens the device, and looks whether it is on
// the device that was named.
func (c *c3Run) check(ctx context.Context) error {
	limit, cancel := context.WithTimeout(ctx, c3Timeout)
	defer cancel()
	conn, err := c.dialer.Dial(limit, c.to)
	if err != nil {
		return err
	}
	name := ""
	if q, ok := conn.QP.(cm.VerbsQP); ok {
		name = q.Device().Name()
	}
	if err := conn.Close(limit); err != nil {
		return err
	}
	if name != c.Device {
		return fmt.Errorf("bench: c3: the way to %s is over %s, not over %s: ip route get %s", c.to, name, c.Device, c.to.Addr())
	}
	return nil
}

// calibrate finds out how many connections fit into the time, if there is one.
func (c *c3Run) calibrate(ctx context.Context, kinds []*c3Kind) error {
	rounds := c.pairs(c3Pairs)
	block := (c.c3Connections() + rounds - 1) / rounds
	each := 0.0 // seconds, for one connection of each kind
	for _, k := range kinds {
		res, err := c.block(ctx, k, min(block, c.repeats(c3Calibrate)), nil)
		if err != nil {
			return err
		}
		each += 1 / max(res.Rate(), 1e-3)
	}
	if d := c.Options.Duration; d > 0 {
		left := d - time.Since(c.Started)
		fit := int(left.Seconds() / each / float64(rounds+1))
		if fit < 1 {
			return fmt.Errorf("bench: c3: %v is too short for %d blocks of each kind: the first %d connections took %.3g s for one of each", d, rounds, c3Calibrate, each)
		}
		if fit < block {
			c.Findings = append(c.Findings, fmt.Sprintf("Of the %s connections of each kind that were asked for, %s fit into %v.", count(c.c3Connections()), count(fit*rounds), d))
			block = fit
		}
	}
	c.Setups.Block = block
	return nil
}

// contender samples a condition: the median of a block's set-ups, and as a part of it
// their P99.
func (c *c3Run) contender(k *c3Kind) *contender {
	s := func(what string, name string) Series {
		return Series{Name: k.name + "/block=" + name, What: what + " of a block's set-ups", Ops: 1}
	}
	p99 := &contender{Series: s("P99", "p99")}
	return &contender{
		Series: s("the median", "median"),
		parts:  []*contender{p99},
		sample: func(ctx context.Context) (sample, error) {
			var each []churn.Sample
			before := cmCounters(c.Device)
			res, err := c.block(ctx, k, c.Setups.Block, func(s churn.Sample) { each = append(each, s) })
			if err != nil {
				return sample{}, err
			}
			if len(each) == 0 {
				return sample{}, fmt.Errorf("none of %d connections was made: %v", res.Failed, slices.Sorted(maps.Keys(res.Failures)))
			}
			if k.round++; k.round > 1 { // the first round does not count
				k.add(res, each, before, cmCounters(c.Device))
			}
			took := make([]float64, len(each))
			for i, s := range each {
				took[i] = float64(s.Setup)
			}
			return sample{ns: quantile(took, 0.5), more: []float64{quantile(took, 0.99)}}, nil
		},
	}
}

// block makes so many connections under a condition.
func (c *c3Run) block(ctx context.Context, k *c3Kind, n int, each func(churn.Sample)) (res *churn.Result, err error) {
	if len(k.congest) > 0 {
		stop, err := congest(ctx, k.congest)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	res, err = churn.Run(ctx, churn.Config{
		Dialer: c.dialer, To: c.to, Connections: n, Workers: c.c3Workers(), Timeout: c3Timeout, Stale: c3Stale, Each: each,
		Progress: func(done int) { c.progress("%s: %d of %d connections", k.name, done, n) },
	})
	if err == nil {
		err = ctx.Err()
	}
	return res, err
}

// add adds a block to a condition.
func (k *c3Kind) add(res *churn.Result, each []churn.Sample, before, after map[string]int64) {
	k.samples = append(k.samples, each...)
	if k.all == nil {
		k.all = res
	} else {
		k.all.Merge(res)
	}
	for name, n := range after {
		k.counted[name] += n - before[name]
	}
}

// conclude puts a condition into the result.
func (c *c3Run) conclude(k *c3Kind) {
	if k.all == nil {
		return
	}
	for _, i := range churn.Parts() {
		if h := k.all.Parts[i]; h.TotalCount() > 0 {
			name := c3Series(k.name, i)
			c.Series = append(c.Series, Series{Name: name, What: churn.PartName(i) + ", " + k.name, GOMAXPROCS: c.c3Workers() + 2, Ops: 1, Log: name, Histogram: h, Summary: SummarizeHistogram(h)})
		}
	}
	n := &k.note
	n.Done, n.Failed, n.Stale, n.Rate, n.Failures, n.Ends, n.Counters = k.all.Done, k.all.Failed, k.all.Stale, k.all.Rate(), k.all.Failures, k.all.Ends, k.counted
	n.Tail = tailOf(k.samples)
	c.Setups.Conditions = append(c.Setups.Conditions, *n)
}

// c3Series is the name of a part's series.
func c3Series(kind string, part int) string {
	return kind + "/step=" + strings.ReplaceAll(churn.PartName(part), "→", "-")
}

// tailOf looks at the slowest set-ups: what their time was spent on.
func tailOf(samples []churn.Sample) SetupTail {
	s := slices.SortedFunc(slices.Values(samples), func(a, b churn.Sample) int { return cmp.Compare(a.Setup, b.Setup) })
	s = s[min(int(float64(len(s))*c3Tail), max(len(s)-1, 0)):]
	t := SetupTail{N: len(s), Share: map[string]float64{}}
	if len(s) == 0 {
		return t
	}
	t.From = s[0].Setup
	var all time.Duration
	for _, x := range s {
		all += x.Setup
		if x.Stale > 0 {
			t.Stale++
		}
		t.Share["waiting"] += float64(x.Setup - x.Steps.Total())
		for _, step := range cm.ClientSteps() {
			t.Share[step.String()] += float64(x.Steps[step])
		}
	}
	for name := range t.Share {
		t.Share[name] /= float64(all)
	}
	return t
}

// cmCounters reads the connection manager's counters of a device's first port
// (counter_attribute groups in drivers/infiniband/core/cm.c): messages sent,
// repeated, received, and received twice. Before Linux 5.14 they are in a class of
// their own.
func cmCounters(device string) map[string]int64 {
	all := map[string]int64{}
	for _, dir := range []string{"/sys/class/infiniband/" + device + "/ports/1", "/sys/class/infiniband_cm/" + device + "/1"} {
		files, _ := filepath.Glob(dir + "/cm_*/*")
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				continue
			}
			if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
				all[filepath.Base(filepath.Dir(f))+"/"+filepath.Base(f)] = n
			}
		}
	}
	return all
}

// congest starts a command that makes the wire busy, and waits for the line by which
// it says that it does. stop ends it and all that it has started.
func congest(ctx context.Context, command []string) (stop func() error, err error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("bench: c3: --congest: %w", err)
	}
	said, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		lines := bufio.NewReader(out)
		if _, err := lines.ReadString('\n'); err == nil {
			close(said)
		}
		_, _ = io.Copy(io.Discard, lines)
		ended <- cmd.Wait()
	}()
	byItself := func(err error) error {
		return fmt.Errorf("bench: c3: --congest %q ended by itself: %v", strings.Join(command, " "), err)
	}
	stop = func() error {
		select {
		case err := <-ended:
			return byItself(err)
		default:
		}
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGTERM)
		select {
		case <-ended:
		case <-time.After(c3Patience):
			_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
			<-ended
		}
		return nil
	}
	select {
	case <-said:
		return stop, nil
	case err := <-ended:
		return nil, byItself(err)
	case <-time.After(c3Start):
		err = fmt.Errorf("bench: c3: --congest %q has not said a line in %v: it has to when the wire is busy", strings.Join(command, " "), c3Start)
	case <-ctx.Done():
		err = ctx.Err()
	}
	return nil, errors.Join(err, stop())
}

// c3Patience is how long the command has to end.
const c3Patience = 5 * time.Second

// c3Verdict judges the half of the claim that a stock kernel can: whether the
// slowest set-ups are slow because of conflicts. Whether a window would shorten
// them only a kernel that has one can say.
func c3Verdict(s *Setups) Verdict {
	const other = "the same on a kernel that limits conflicts in a window, beside the stock one"
	v := Verdict{Claim: "C3", Answer: NotDecidable, Where: other}
	t := s.Conditions[len(s.Conditions)-1]
	switch {
	case len(s.Conditions) < 2:
		v.Why = "Nothing made the wire busy: --congest COMMAND runs one that does."
		return v
	case t.Done < minForP999:
		v.Why = fmt.Sprintf("P99.9 needs %s connections, and there are %s.", count(minForP999), count(t.Done))
		return v
	}
	steps := slices.SortedFunc(maps.Keys(t.Tail.Share), func(a, b string) int { return cmp.Compare(t.Tail.Share[b], t.Tail.Share[a]) })
	where := fmt.Sprintf("%s makes %.0f %% of their time", steps[0], 100*t.Tail.Share[steps[0]])
	conflicts := fmt.Sprintf("Of the slowest %d of %s congested set-ups %d met a conflict (a request rejected for a stale connection; %d in all); %s.",
		t.Tail.N, count(t.Done), t.Tail.Stale, t.Stale, where)
	if repeated := t.Counters["cm_tx_retries/req"]; repeated > 0 {
		conflicts += fmt.Sprintf(" The kernel repeated %d requests, each after 4 s or more.", repeated)
	}
	if 2*t.Tail.Stale > t.Tail.N {
		v.Why = conflicts + " So conflicts do make the tail; whether a window shortens it is another question."
		return v
	}
	v.Answer, v.kernel = Refuted, true
	v.Why = conflicts + " So the tail does not come from conflict detection, and a window that suppresses it has nothing to shorten."
	return v
}

func c3Text(r *Result, p *page) {
	if r.Setups == nil {
		return
	}
	p.section(fmt.Sprintf("Connection set-ups (%s)", r.Provenance.Place), r.Method)
	for _, c := range r.Setups.Conditions {
		p.para(fmt.Sprintf("%s: %s connections, %.3g a second; %d failed; %d rejected as stale", c.Name, count(c.Done), c.Rate, c.Failed, c.Stale), indent)
		var rows [][]string
		for _, i := range churn.Parts() {
			s := r.SeriesOf(c3Series(c.Name, i))
			if s == nil {
				continue
			}
			rows = append(rows, append([]string{churn.PartName(i), nanos(float64(s.Summary.Min))}, c3Quantiles(s.Histogram)...))
		}
		p.table("lrllllr", []string{"step", "least", "P50 [95 %]", "P90", "P99", "P99.9", "greatest"}, rows...)
		for _, x := range []struct {
			what string
			why  map[string]int
		}{{"failed", c.Failures}, {"ended badly", c.Ends}} {
			for _, why := range slices.Sorted(maps.Keys(x.why)) {
				p.para(fmt.Sprintf("%s %d: %s", x.what, x.why[why], why), indent)
			}
		}
		var share []string
		for _, name := range slices.SortedFunc(maps.Keys(c.Tail.Share), func(a, b string) int { return cmp.Compare(c.Tail.Share[b], c.Tail.Share[a]) })[:min(4, len(c.Tail.Share))] {
			share = append(share, fmt.Sprintf("%s %.0f %%", name, 100*c.Tail.Share[name]))
		}
		p.para(fmt.Sprintf("The slowest %d, from %s on, spent their time on: %s; %d of them met a conflict.", c.Tail.N, nanos(float64(c.Tail.From)), strings.Join(share, ", "), c.Tail.Stale), indent)
		var grew []string
		for _, name := range slices.Sorted(maps.Keys(c.Counters)) {
			if n := c.Counters[name]; n > 0 && (strings.HasPrefix(name, "cm_tx_retries/") || strings.HasPrefix(name, "cm_rx_duplicates/")) {
				grew = append(grew, fmt.Sprintf("%s %d", name, n))
			}
		}
		p.para("The kernel's counters of repeated messages: "+cmp.Or(strings.Join(grew, ", "), "none grew")+".", indent)
		p.b.WriteByte('\n')
	}
	var rows [][]string
	for _, what := range []string{"median", "p99"} {
		ratio, answer, pairs := r.ratioCells("congested/block="+what, "idle/block="+what)
		rows = append(rows, []string{what + " of a block", ratio, answer, pairs})
	}
	if len(r.Setups.Conditions) == 2 {
		p.table("llll", []string{"set-up", "congested / idle [95 %]", "congested is", "pairs"}, rows...)
	}
}

// c3Quantiles are the cells of a histogram's quantiles.
func c3Quantiles(h *hdrhistogram.Histogram) []string {
	cells := []string{"-", "-", "-", "-"}
	if h == nil {
		return append(cells, "-")
	}
	for i, q := range churn.Quantiles(h) {
		cells[i] = fmt.Sprintf("%s [%s, %s]", nanos(float64(q.Value)), nanos(float64(q.Low)), nanos(float64(q.High)))
	}
	return append(cells, nanos(float64(h.Max())))
}
