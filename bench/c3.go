// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
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
	"gonum.org/v1/gonum/stat/distuv"

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
		kinds := 1 + min(len(r.Options.Congest), 1)
		rounds := r.pairs(c3Pairs) + 1
		block := (r.c3Connections() + rounds - 2) / (rounds - 1)
		return fmt.Sprintf("makes up to %s connections to %s, %d at a time, with queue pairs made by verbs, and ends each at once. No work request. %s",
			count(kinds*(rounds*block+c3Calibrate)+1), r.Options.Peer, r.c3Workers(), congest)
	},
}

const (
	c3Pairs       = 20
	c3Connections = minForP999 // of each kind
	c3Workers     = 8
	c3Most        = 64              // workers
	c3Calibrate   = 100             // connections of each kind, that do not count
	c3Stale       = 3               // how often a set-up that was rejected as stale is tried again
	c3Timeout     = 2 * time.Minute // of a set-up and of its end: longer than 16 requests
	c3Limit       = 0.4             // the least share of the tail that conflicts make, if the claim is right: taking them away is to shorten P99.9 by 40 %
	c3Lost        = 0.001           // share of set-ups that may fail: more could be a tail of their own
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
	Share map[string]float64 `json:"share"`   // of their time, by step; "else": between steps, until a worker's turn came, tries that were rejected

	Setups []time.Duration `json:"setups_ns"` // each of them
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
	kinds := []*c3Kind{{name: "idle", counted: map[string]int64{}}}
	if len(r.Options.Congest) > 0 {
		kinds = append(kinds, &c3Kind{name: "congested", congest: r.Options.Congest, counted: map[string]int64{}})
	}
	if err := c.calibrate(ctx, kinds); err != nil {
		return err
	}
	loop := "Closed loop: each worker begins the next when one has ended, so a set-up that hangs keeps others from coming."
	if r.Options.Rate > 0 {
		loop = fmt.Sprintf("Open loop: %g a second; a set-up counts from when it was meant to begin.", r.Options.Rate)
	}
	r.Method = fmt.Sprintf("Churn: %d workers connect, and disconnect at once, through rdma_cm; queue pairs by verbs. %s Blocks of %s connections, %s in turn; each set-up is timed by step.",
		r.Setups.Workers, loop, count(r.Setups.Block), strings.Join(c3Names(kinds), " and "))
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
	r.Verdicts = append(r.Verdicts, c3Verdict(&r.Result))
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
	limit, cancel := context.WithTimeout(ctx, churn.DefaultTimeout)
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
	var each, begin time.Duration // of one connection of each kind, and of what comes before a block of each
	for _, k := range kinds {
		start := time.Now()
		res, err := c.block(ctx, k, min(block, c.repeats(c3Calibrate)), nil)
		if err != nil {
			return err
		}
		each += res.Took / time.Duration(max(res.Done, 1))
		begin += time.Since(start) - res.Took
	}
	if d := c.Options.Duration; d > 0 {
		left := d - time.Since(c.Started) - time.Duration(rounds+1)*begin
		fit := int(left / max(each, 1) / time.Duration(rounds+1))
		if fit < 1 {
			return fmt.Errorf("bench: c3: %v is too short for %d blocks of each kind: what comes before each takes %.3g s, and one connection of each %.3g s", d, rounds, begin.Seconds(), each.Seconds())
		}
		if fit < block {
			c.Findings = append(c.Findings, fmt.Sprintf("Of the %s connections of each kind that were asked for, about %s fit into %v.", count(c.c3Connections()), count(fit*rounds), d))
			block = fit
		}
	}
	c.Setups.Block = block
	return nil
}

// contender samples a condition: the median of a block's set-ups, and as a part of it
// their P90.
func (c *c3Run) contender(k *c3Kind) *contender {
	s := func(what string, name string) Series {
		return Series{Name: k.name + "/block=" + name, What: what + " of a block's set-ups", Ops: 1}
	}
	p90 := &contender{Series: s("P90", "p90")}
	return &contender{
		Series: s("the median", "median"),
		parts:  []*contender{p90},
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
			return sample{ns: quantile(took, 0.5), more: []float64{quantile(took, 0.9)}}, nil
		},
	}
}

// block makes so many connections under a condition.
func (c *c3Run) block(ctx context.Context, k *c3Kind, n int, each func(churn.Sample)) (res *churn.Result, err error) {
	if len(k.congest) > 0 {
		busy, failed := congest(ctx, k.congest)
		if failed != nil {
			return nil, failed
		}
		defer func() { err = errors.Join(err, busy.stop()) }()
	}
	res, err = churn.Run(ctx, churn.Config{
		Dialer: c.dialer, To: c.to, Connections: n, Workers: c.c3Workers(), Rate: c.Options.Rate, Timeout: c3Timeout, Stale: c3Stale, Each: each,
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
	c.Setups.Conditions = append(c.Setups.Conditions, SetupCondition{
		Name: k.name, Done: k.all.Done, Failed: k.all.Failed, Stale: k.all.Stale, Rate: k.all.Rate(), Failures: k.all.Failures, Ends: k.all.Ends,
		Counters: k.counted, Tail: tailOf(k.samples),
	})
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
		t.Share["else"] += float64(x.Setup - x.Steps.Total())
		t.Setups = append(t.Setups, x.Setup)
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

// congestion is a program that makes the wire busy.
type congestion struct {
	cmd   *exec.Cmd
	said  chan struct{} // closed when it has said a line
	ended chan struct{} // closed when it has ended: err is why
	err   error
}

// congest starts a command that makes the wire busy, and waits for the line by which
// it says that it does. stop ends it, and what it has started in its process group.
func congest(ctx context.Context, command []string) (c *congestion, err error) {
	c = &congestion{cmd: exec.Command(command[0], command[1:]...), said: make(chan struct{}), ended: make(chan struct{})}
	c.cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	c.cmd.Stdout, c.cmd.Stderr = &firstLine{said: c.said}, os.Stderr
	c.cmd.WaitDelay = c3Patience // for whoever has left the group and keeps the output open
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("bench: c3: --congest: %w", err)
	}
	go func() {
		c.err = c.cmd.Wait()
		close(c.ended)
	}()
	select {
	case <-c.said:
		return c, nil
	case <-c.ended:
		return nil, c.stop()
	case <-time.After(c3Start):
		err = fmt.Errorf("bench: c3: --congest %s has not said a line in %v: it has to when the wire is busy", c, c3Start)
	case <-ctx.Done():
		err = ctx.Err()
	}
	return nil, errors.Join(err, c.stop())
}

func (c *congestion) String() string { return strconv.Quote(strings.Join(c.cmd.Args, " ")) }

// stop ends the program. That it has ended by itself is an error: for how long the
// wire was busy nobody knows.
func (c *congestion) stop() error {
	select {
	case <-c.ended:
		why := "with exit status 0"
		if c.err != nil {
			why = c.err.Error()
		}
		return fmt.Errorf("bench: c3: --congest %s ended by itself (%s): it has to go on until SIGTERM", c, why)
	default:
	}
	_ = unix.Kill(-c.cmd.Process.Pid, unix.SIGTERM)
	select {
	case <-c.ended:
	case <-time.After(c3Patience):
		_ = unix.Kill(-c.cmd.Process.Pid, unix.SIGKILL)
		<-c.ended
	}
	return nil
}

// firstLine closes a channel when a line has been written to it, and forgets what is
// written.
type firstLine struct {
	said chan struct{}
	done bool
}

func (l *firstLine) Write(p []byte) (int, error) {
	if !l.done && bytes.IndexByte(p, '\n') >= 0 {
		l.done = true
		close(l.said)
	}
	return len(p), nil
}

// c3Patience is how long the command has to end.
const c3Patience = 5 * time.Second

// c3Verdict judges the half of the claim that a stock kernel can answer: whether the
// slowest set-ups are slow because of conflicts. It refutes only where conflicts could
// have been: on a card, whose firmware chooses the queue pairs' numbers; where the
// wire was busy, hardly any set-up failed, neither side rejected anything, and the
// share of the tail that met a conflict is certainly below what the claim needs.
// Whether a window would shorten the tail only a kernel that has one can say.
func c3Verdict(r *Result) Verdict {
	v := Verdict{Claim: "C3", Answer: NotDecidable, Where: "devxlab bench c3 on a kernel with patches/…-limit-what-is-sent-on-stale-connection-conflicts, beside the stock one"}
	s := r.Setups
	if len(s.Conditions) < 2 {
		v.Why = "Nothing made the wire busy: --congest COMMAND runs one that does."
		return v
	}
	c := s.Conditions[1]
	if c.Done < minForP999 {
		v.Why = fmt.Sprintf("P99.9 needs %s congested connections, and there are %s.", count(minForP999), count(c.Done))
		return v
	}
	steps := slices.SortedFunc(maps.Keys(c.Tail.Share), func(a, b string) int { return cmp.Compare(c.Tail.Share[b], c.Tail.Share[a]) })
	_, most := share(c.Tail.Stale, c.Tail.N)
	facts := fmt.Sprintf("Of the slowest %d of %s congested set-ups %d met a conflict (a request rejected for a stale connection; %d in all), so at most %.0f %% with 95 %% confidence, if they are independent; %s makes %.0f %% of their time; %d requests and %d answers were repeated by this side's kernel.",
		c.Tail.N, count(c.Done), c.Tail.Stale, c.Stale, 100*most, steps[0], 100*c.Tail.Share[steps[0]], c.Counters["cm_tx_retries/req"], c.Counters["cm_tx_retries/rep"])
	busy := r.ComparisonOf("congested/block=p90", "idle/block=p90")
	rejects := c.Counters["cm_tx_msgs/rej"] + c.Counters["cm_rx_msgs/rej"]
	switch {
	case busy == nil || busy.Ratio.Answer != Worse:
		v.Why = facts + " But set-ups were not slower than on the idle wire: it was not congested."
	case float64(c.Failed) > c3Lost*float64(c.Done+c.Failed):
		v.Why = facts + fmt.Sprintf(" But %d set-ups failed, which may be the tail itself.", c.Failed)
	case rejects > int64(c.Stale):
		v.Why = facts + fmt.Sprintf(" But %d REJ were sent or received, and this program has seen %d of them: the others may be conflicts between the kernels.", rejects, c.Stale)
	case most >= c3Limit:
		v.Why = facts + fmt.Sprintf(" Too many, or too few samples, to say that conflicts make less than %.0f %% of the tail.", 100*c3Limit)
	default:
		v.Answer, v.Where = Refuted, ""
		v.Why = facts + " So the tail does not come from conflict detection, and a window that suppresses it has nothing to shorten. Here a number is used again only after its connection has ended at both sides: programs that die leave others."
	}
	return v
}

// share returns the interval that covers k of n with 95 % confidence from each side
// (Clopper and Pearson).
func share(k, n int) (low, high float64) {
	if n == 0 {
		return 0, 1
	}
	if k > 0 {
		low = distuv.Beta{Alpha: float64(k), Beta: float64(n - k + 1)}.Quantile(0.05)
	}
	if high = 1; k < n {
		high = distuv.Beta{Alpha: float64(k + 1), Beta: float64(n - k)}.Quantile(0.95)
	}
	return low, high
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
		p.table("lrllllr", []string{"step", "least", "P50 [95 %, if independent]", "P90", "P99", "P99.9", "greatest"}, rows...)
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
			if n := c.Counters[name]; n > 0 && (strings.HasPrefix(name, "cm_tx_retries/") || strings.HasPrefix(name, "cm_rx_duplicates/") || strings.HasSuffix(name, "/rej")) {
				grew = append(grew, fmt.Sprintf("%s %d", name, n))
			}
		}
		p.para("This side's counters of messages that were repeated, came twice, or reject: "+cmp.Or(strings.Join(grew, ", "), "none grew")+".", indent)
		p.b.WriteByte('\n')
	}
	var rows [][]string
	for _, what := range []string{"median", "p90"} {
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
