// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"bytes"
	"cmp"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"devxlab.example/mlx5"
)

// Bounds of a profile.
const (
	maxProfileBytes = 1 << 20
	maxNameBytes    = 200 // the options of an emulated device are added to the name of its profile
	maxShown        = 64  // of text from outside in an error
	maxSlots        = 31  // a command queue has at most 32 entries, and one serves pages
	maxThreads      = 64
	maxAckTimeout   = 31
	maxCached       = 1 << 22 // no device has more queue pairs

	// MaxLatency is the longest a command may take: the driver's time-out of
	// 60 s and the 5 s in which it looks for a completion whose event was lost
	// (mlx5_core cmd.c). What is to take longer is to hang.
	MaxLatency = 65 * time.Second
)

// Profile is what the emulated device's commands cost. It is told, never
// measured: whatever a run says about firmware time repeats these figures, so
// a report names its profile, and a verdict sweeps over what is a guess.
//
// A profile that LoadProfile or ProfileByName returned is ready for use by any
// number of goroutines. To vary one, copy it and change Slots or Threads; after
// a change of anything else (give the copy a map and a cache of its own) call
// Compile. JSON keys are the fields' names in lower case, and per_1000_qps and
// context_cache; see the built-in profiles.
type Profile struct {
	Name   string // one line of at most 200 bytes
	Source string // where the figures come from, unless an entry says otherwise
	Note   string // optional

	Card, Firmware string // optional

	// Slots is the number of ordinary commands that the device holds, 1 to 31.
	// In memory any number will do; a PCI function offers 2^log_sz entries and
	// so can show only 1, 3, 7, 15 or 31.
	Slots     int
	SlotsFrom Evidence

	// Threads is the number of commands that firmware executes at once, 1 to 64.
	Threads     int
	ThreadsFrom Evidence

	// Submit is what handing over one command costs. One worker per device pays
	// it, so it is serial. Behind a real driver it must not be added: there the
	// driver's own worker takes that time.
	Submit Dist

	// Per1000QPs is how much longer each command on a queue pair (CREATE_QP,
	// DESTROY_QP, QUERY_QP and the transitions) takes for every thousand that are
	// alive when it arrives, 0 to MaxLatency. It grows linearly, also below a
	// thousand. In JSON it is "1us", or an object with "value", "source" and "note".
	Per1000QPs     time.Duration
	Per1000QPsFrom Evidence

	// ContextCache is the device's memory for contexts of queue pairs; nil: all fit.
	ContextCache *ContextCache

	// AckTimeout is how long the device waits for an acknowledgement; nil: exactly
	// as long as the queue pair's attribute says.
	AckTimeout *AckTimeout

	// Latency from doorbell to completion, without Submit, Per1000QPs and a miss
	// in the ContextCache. The sum without Submit never exceeds MaxLatency.
	Default Dist             // of an opcode that Ops does not name
	Ops     map[mlx5.Op]Dist // JSON key: the kernel's name, "RTR2RTS_QP" or "RTR2RTS"

	table []*Dist // by opcode; nil: Default. Set by Compile.
}

// ContextCache is what it costs that a device keeps only some contexts of queue
// pairs at hand: exactly those that were used last. A command on a queue pair
// whose context is not among them takes Miss longer, and brings it in. CREATE_QP
// brings its own in for nothing; DESTROY_QP takes it out.
type ContextCache struct {
	QueuePairs int  // contexts that fit, 1 to 4194304; JSON key queue_pairs
	Miss       Dist // 0 to MaxLatency
	Evidence
}

// AckTimeout is how a device takes the local ACK time-out n of a queue pair, which
// is 4.096 µs · 2^n: a sender notices a dead peer after retry_cnt + 1 of them. The
// specification lets it wait up to four times as long (IBTA specification, volume
// 1, 9.7.6.1.3).
type AckTimeout struct {
	Floor   int // a smaller n that is not 0 counts as this, 0 to 31
	Percent int // of 4.096 µs · 2^n, 100 to 400
	Evidence
}

// after returns what the device waits for an attribute that is not 0.
func (a *AckTimeout) after(n uint8) time.Duration {
	if a == nil {
		return ackUnit << n
	}
	return (ackUnit << max(n, uint8(a.Floor))) * time.Duration(a.Percent) / 100
}

// Evidence says where a figure comes from and how sure it is. Both parts are
// optional; an empty Source means the profile's.
type Evidence struct {
	Source, Note string
}

// Dist is the distribution of a duration, 0 to MaxLatency: fixed, or known at
// some quantiles. In JSON it is "200us", or an object with either "fixed" or
// "quantiles", and "source" and "note":
//
//	{"quantiles": {"0.5": "300us", "0.99": "2ms"}, "source": "…", "note": "…"}
type Dist struct {
	Fixed  time.Duration // if Points is empty
	Points []Point       // by rising Q
	Evidence
}

// Point is one quantile of a Dist: a share Q of all commands, 0 < Q < 1, takes
// at most Latency.
type Point struct {
	Q       float64
	Latency time.Duration
}

// At returns the quantile u. Between two points it is interpolated linearly in
// u; below the first point it is the first's latency and above the last the
// last's, because a tail that nobody gave is not to be invented.
func (d *Dist) At(u float64) time.Duration {
	n := len(d.Points)
	if n == 0 {
		return d.Fixed
	}
	if !(u > d.Points[0].Q) { // NaN, too
		return d.Points[0].Latency
	}
	i, _ := slices.BinarySearchFunc(d.Points, u, func(p Point, u float64) int { return cmp.Compare(p.Q, u) })
	if i == n {
		return d.Points[n-1].Latency
	}
	a, b := d.Points[i-1], d.Points[i]
	return a.Latency + time.Duration(math.Round((u-a.Q)/(b.Q-a.Q)*float64(b.Latency-a.Latency)))
}

func (d *Dist) zero() bool {
	// Points rise, so the last one is the largest.
	return d.Fixed == 0 && (len(d.Points) == 0 || d.Points[len(d.Points)-1].Latency == 0)
}

// Latency returns the quantile u, in [0,1), of what op takes from doorbell to
// completion. A number drawn evenly from [0,1) gives a sample.
func (p *Profile) Latency(op mlx5.Op, u float64) time.Duration {
	if int(op) < len(p.table) && p.table[op] != nil {
		return p.table[op].At(u)
	}
	if p.table == nil { // made by hand and not compiled
		if d, ok := p.Ops[op]; ok {
			return d.At(u)
		}
	}
	return p.Default.At(u)
}

// SubmitCost returns the quantile u, in [0,1), of Submit.
func (p *Profile) SubmitCost(u float64) time.Duration { return p.Submit.At(u) }

// Zero reports whether the profile adds no latency at all.
func (p *Profile) Zero() bool {
	for _, d := range p.Ops {
		if !d.zero() {
			return false
		}
	}
	return p.Submit.zero() && p.Default.zero() && p.Per1000QPs == 0 && (p.ContextCache == nil || p.ContextCache.Miss.zero())
}

// Compile checks a profile that was made or changed by hand, and prepares it
// for Latency. Its errors are LoadProfile's.
func (p *Profile) Compile() error {
	if err := p.check(); err != nil {
		return p.wrap(err)
	}
	table := []*Dist{}
	for op, d := range p.Ops {
		if n := int(op) + 1 - len(table); n > 0 {
			table = append(table, make([]*Dist, n)...)
		}
		table[op] = &d
	}
	p.table = table
	return nil
}

func (p *Profile) wrap(err error) error {
	if p.Name == "" {
		return fmt.Errorf("profile: %w", err)
	}
	return fmt.Errorf("profile %s: %w", clipped(p.Name), err)
}

// check returns what LoadProfile would not take, by its JSON path.
func (p *Profile) check() error {
	switch {
	case strings.TrimSpace(p.Name) == "":
		return errors.New("name is empty")
	case len(p.Name) > maxNameBytes || !utf8.ValidString(p.Name) || strings.ContainsFunc(p.Name, notPrint):
		return fmt.Errorf("name is not one line of at most %d bytes", maxNameBytes)
	case strings.TrimSpace(p.Source) == "":
		return errors.New("source is empty: say where the figures come from")
	case p.Slots < 1 || p.Slots > maxSlots:
		return fmt.Errorf("slots: %d is not within 1 to %d (a command queue has at most 32 entries, and one serves pages)", p.Slots, maxSlots)
	case p.Threads < 1 || p.Threads > maxThreads:
		return fmt.Errorf("threads: %d is not within 1 to %d", p.Threads, maxThreads)
	}
	for _, f := range []struct{ path, text string }{{"note", p.Note}, {"card", p.Card}, {"firmware", p.Firmware}} {
		if blank(f.text) {
			return fmt.Errorf("%s is empty: leave it out", f.path)
		}
	}
	if err := p.SlotsFrom.check("slots"); err != nil {
		return err
	}
	if err := p.ThreadsFrom.check("threads"); err != nil {
		return err
	}
	if err := p.Submit.check("submit"); err != nil {
		return err
	}
	if err := checkLatency("per_1000_qps", p.Per1000QPs); err != nil {
		return err
	}
	if err := p.Per1000QPsFrom.check("per_1000_qps"); err != nil {
		return err
	}
	if p.ContextCache != nil {
		if err := p.ContextCache.check("context_cache"); err != nil {
			return err
		}
	}
	if p.AckTimeout != nil {
		if err := p.AckTimeout.check("ack_timeout"); err != nil {
			return err
		}
	}
	if err := p.Default.check("default"); err != nil {
		return err
	}
	for _, op := range slices.Sorted(maps.Keys(p.Ops)) {
		if _, ok := mlx5.ParseOp(op.String()); !ok {
			return fmt.Errorf("ops: %v is not a known opcode", op)
		}
		d := p.Ops[op]
		if err := d.check("ops." + op.String()); err != nil {
			return err
		}
	}
	return nil
}

func (c *ContextCache) check(path string) error {
	if c.QueuePairs < 1 || c.QueuePairs > maxCached {
		return fmt.Errorf("%s.queue_pairs: %d is not within 1 to %d; leave %s out if all contexts fit", path, c.QueuePairs, maxCached, path)
	}
	if err := c.Miss.check(path + ".miss"); err != nil {
		return err
	}
	return c.Evidence.check(path)
}

func (a *AckTimeout) check(path string) error {
	switch {
	case a.Floor < 0 || a.Floor > maxAckTimeout:
		return fmt.Errorf("%s.floor: %d is not within 0 to %d", path, a.Floor, maxAckTimeout)
	case a.Percent < 100 || a.Percent > 400:
		return fmt.Errorf("%s.percent: %d is not within 100 to 400", path, a.Percent)
	}
	return a.Evidence.check(path)
}

func (e *Evidence) check(path string) error {
	if blank(e.Source) {
		return fmt.Errorf("%s.source is empty: leave it out, and the profile's counts", path)
	}
	if blank(e.Note) {
		return fmt.Errorf("%s.note is empty: leave it out", path)
	}
	return nil
}

func (d *Dist) check(path string) error {
	if len(d.Points) > 0 && d.Fixed != 0 {
		return fmt.Errorf("%s: both fixed and quantiles", path)
	}
	if err := checkLatency(path, d.Fixed); err != nil {
		return err
	}
	for i, b := range d.Points {
		at := path + ".quantiles." + formatQuantile(b.Q)
		if !(b.Q > 0 && b.Q < 1) {
			return fmt.Errorf("%s: a quantile lies between 0 and 1, both excluded", at)
		}
		if err := checkLatency(at, b.Latency); err != nil {
			return err
		}
		if i == 0 {
			continue
		}
		switch a := d.Points[i-1]; {
		case a.Q == b.Q:
			return fmt.Errorf("%s: given twice", at)
		case a.Q > b.Q:
			return fmt.Errorf("%s: comes after %s", at, formatQuantile(a.Q))
		case a.Latency > b.Latency:
			return fmt.Errorf("%s: latency %s is below the %s of quantile %s",
				at, formatLatency(b.Latency), formatLatency(a.Latency), formatQuantile(a.Q))
		}
	}
	return d.Evidence.check(path)
}

func checkLatency(path string, d time.Duration) error {
	switch {
	case d < 0:
		return fmt.Errorf("%s: latency %s is negative", path, formatLatency(d))
	case d > MaxLatency:
		return fmt.Errorf("%s: latency %s is above %v (the driver's time-out of 60 s and its recovery of 5 s)", path, formatLatency(d), MaxLatency)
	}
	return nil
}

//go:embed profiles/*.json
var builtinProfiles embed.FS

// ProfileNames returns the names of the built-in profiles, sorted.
func ProfileNames() []string {
	entries, err := builtinProfiles.ReadDir("profiles")
	if err != nil {
		panic(err) // embedded: cannot fail
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = strings.TrimSuffix(e.Name(), ".json")
	}
	return names
}

// ProfileByName returns a built-in profile, or else the one in the file of that
// name ("./zero" is a file even though "zero" is built in).
func ProfileByName(name string) (*Profile, error) {
	var f fs.File
	var err error
	if slices.Contains(ProfileNames(), name) {
		f, err = builtinProfiles.Open("profiles/" + name + ".json")
	} else {
		f, err = os.Open(name)
	}
	if err != nil {
		return nil, fmt.Errorf("profile %s is neither built in (%s) nor a file that can be read: %w",
			clipped(name), strings.Join(ProfileNames(), ", "), err)
	}
	defer f.Close()
	p, err := LoadProfile(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

// LoadProfile reads one profile of at most 1 MiB of JSON. It is strict: an
// unknown or repeated key, data after the profile and a value out of bounds are
// errors, each with its path in the file ("ops.CREATE_QP"). Name, source, slots,
// threads, submit and default must be there.
func LoadProfile(r io.Reader) (*Profile, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxProfileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	if len(b) > maxProfileBytes {
		return nil, errors.New("profile: longer than 1 MiB")
	}
	p := new(Profile)
	if err := p.UnmarshalJSON(b); err != nil {
		return nil, err
	}
	return p, nil
}

// UnmarshalJSON does what LoadProfile does. On an error it leaves p alone.
func (p *Profile) UnmarshalJSON(b []byte) error {
	var raw json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		if se, ok := errors.AsType[*json.SyntaxError](err); ok {
			line := 1 + bytes.Count(b[:min(int(se.Offset), len(b))], []byte("\n"))
			return fmt.Errorf("profile: line %d: %w", line, err)
		}
		return fmt.Errorf("profile: %w", err)
	}
	var q Profile
	if err := q.parse(raw); err != nil {
		return q.wrap(err)
	}
	if err := q.Compile(); err != nil {
		return err
	}
	*p = q
	return nil
}

func (p *Profile) parse(raw json.RawMessage) error {
	ms, err := splitObject("", raw)
	if err != nil {
		return err
	}
	// The name first: it stands in the other fields' errors.
	if i := slices.IndexFunc(ms, func(m member) bool { return m.key == "name" }); i > 0 {
		ms[0], ms[i] = ms[i], ms[0]
	}
	missing := []string{"name", "source", "slots", "threads", "submit", "default"}
	p.Ops = map[mlx5.Op]Dist{}
	for _, m := range ms {
		switch m.key {
		case "name":
			p.Name, err = parseText(m.key, m.val)
		case "source":
			p.Source, err = parseText(m.key, m.val)
		case "note":
			p.Note, err = parseText(m.key, m.val)
		case "card":
			p.Card, err = parseText(m.key, m.val)
		case "firmware":
			p.Firmware, err = parseText(m.key, m.val)
		case "slots":
			p.Slots, p.SlotsFrom, err = parseValue(m.key, m.val, parseWhole)
		case "threads":
			p.Threads, p.ThreadsFrom, err = parseValue(m.key, m.val, parseWhole)
		case "submit":
			p.Submit, err = parseDist(m.key, m.val)
		case "per_1000_qps":
			p.Per1000QPs, p.Per1000QPsFrom, err = parseValue(m.key, m.val, parseLatency)
		case "context_cache":
			p.ContextCache, err = parseCache(m.key, m.val)
		case "ack_timeout":
			p.AckTimeout, err = parseAckTimeout(m.key, m.val)
		case "default":
			p.Default, err = parseDist(m.key, m.val)
		case "ops":
			err = p.parseOps(m.key, m.val)
		default:
			err = unknownField("", m.key, "name, source, note, card, firmware, slots, threads, submit, per_1000_qps, context_cache, ack_timeout, default, ops")
		}
		if err != nil {
			return err
		}
		missing = slices.DeleteFunc(missing, func(k string) bool { return k == m.key })
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s is missing", strings.Join(missing, ", "))
	}
	return nil
}

func (p *Profile) parseOps(path string, raw json.RawMessage) error {
	ms, err := splitObject(path, raw)
	if err != nil {
		return err
	}
	first := map[mlx5.Op]string{} // the opcode's key
	for _, m := range ms {
		at := join(path, m.key)
		op, ok := mlx5.ParseOp(m.key)
		if !ok {
			return fmt.Errorf("%s: unknown opcode%s", at, didYouMean(m.key))
		}
		if k, ok := first[op]; ok {
			return fmt.Errorf("%s: the same opcode as %s", at, join(path, k))
		}
		first[op] = m.key
		if p.Ops[op], err = parseDist(at, m.val); err != nil {
			return err
		}
	}
	return nil
}

// parseValue reads 31 or {"value": 31, "source": …, "note": …}.
func parseValue[T any](path string, raw json.RawMessage, scalar func(string, json.RawMessage) (T, error)) (v T, e Evidence, err error) {
	if raw[0] != '{' {
		v, err = scalar(path, raw)
		return v, e, err
	}
	ms, err := splitObject(path, raw)
	if err != nil {
		return v, e, err
	}
	given := false
	for _, m := range ms {
		at := join(path, m.key)
		switch m.key {
		case "value":
			given = true
			v, err = scalar(at, m.val)
		case "source":
			e.Source, err = parseText(at, m.val)
		case "note":
			e.Note, err = parseText(at, m.val)
		default:
			err = unknownField(path, m.key, "value, source, note")
		}
		if err != nil {
			return v, e, err
		}
	}
	if !given {
		return v, e, fmt.Errorf("%s.value is missing", path)
	}
	return v, e, nil
}

func parseWhole(path string, raw json.RawMessage) (int, error) {
	if raw[0] == '{' {
		return 0, fmt.Errorf("%s: want a whole number, not an object", path)
	}
	n, err := strconv.Atoi(string(raw))
	if err != nil {
		return 0, fmt.Errorf("%s: %s is not a whole number", path, clipped(string(raw)))
	}
	return n, nil
}

// parseCache reads {"queue_pairs": 32768, "miss": "2us", "source": …, "note": …}.
func parseCache(path string, raw json.RawMessage) (*ContextCache, error) {
	ms, err := splitObject(path, raw)
	if err != nil {
		return nil, err
	}
	c := new(ContextCache)
	missing := []string{"queue_pairs", "miss"}
	for _, m := range ms {
		at := join(path, m.key)
		switch m.key {
		case "queue_pairs":
			c.QueuePairs, err = parseWhole(at, m.val)
		case "miss":
			c.Miss, err = parseDist(at, m.val)
		case "source":
			c.Source, err = parseText(at, m.val)
		case "note":
			c.Note, err = parseText(at, m.val)
		default:
			err = unknownField(path, m.key, "queue_pairs, miss, source, note")
		}
		if err != nil {
			return nil, err
		}
		missing = slices.DeleteFunc(missing, func(k string) bool { return k == m.key })
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%s.%s is missing", path, missing[0])
	}
	return c, nil
}

// parseAckTimeout reads {"floor": 16, "percent": 169, "source": …, "note": …}.
func parseAckTimeout(path string, raw json.RawMessage) (*AckTimeout, error) {
	ms, err := splitObject(path, raw)
	if err != nil {
		return nil, err
	}
	a := &AckTimeout{Percent: 100}
	for _, m := range ms {
		at := join(path, m.key)
		switch m.key {
		case "floor":
			a.Floor, err = parseWhole(at, m.val)
		case "percent":
			a.Percent, err = parseWhole(at, m.val)
		case "source":
			a.Source, err = parseText(at, m.val)
		case "note":
			a.Note, err = parseText(at, m.val)
		default:
			err = unknownField(path, m.key, "floor, percent, source, note")
		}
		if err != nil {
			return nil, err
		}
	}
	return a, nil
}

func parseDist(path string, raw json.RawMessage) (d Dist, err error) {
	if raw[0] != '{' {
		if d.Fixed, err = parseLatency(path, raw); err != nil {
			return d, err
		}
		return d, d.check(path)
	}
	ms, err := splitObject(path, raw)
	if err != nil {
		return d, err
	}
	fixed, quantiles := false, false
	for _, m := range ms {
		at := join(path, m.key)
		switch m.key {
		case "fixed":
			fixed = true
			d.Fixed, err = parseLatency(at, m.val)
		case "quantiles":
			quantiles = true
			d.Points, err = parseQuantiles(at, m.val)
		case "source":
			d.Source, err = parseText(at, m.val)
		case "note":
			d.Note, err = parseText(at, m.val)
		default:
			err = unknownField(path, m.key, "fixed, quantiles, source, note")
		}
		if err != nil {
			return d, err
		}
	}
	switch {
	case fixed && quantiles:
		return d, fmt.Errorf("%s: both fixed and quantiles", path)
	case !fixed && !quantiles:
		return d, fmt.Errorf("%s: neither fixed nor quantiles", path)
	}
	return d, d.check(path)
}

func parseQuantiles(path string, raw json.RawMessage) ([]Point, error) {
	ms, err := splitObject(path, raw)
	if err != nil {
		return nil, err
	}
	if len(ms) == 0 {
		return nil, fmt.Errorf("%s: names no quantile", path)
	}
	points := make([]Point, len(ms))
	for i, m := range ms {
		at := join(path, m.key)
		q, err := strconv.ParseFloat(m.key, 64)
		if err != nil || !(q > 0 && q < 1) {
			return nil, fmt.Errorf("%s: a quantile lies between 0 and 1, both excluded", at)
		}
		l, err := parseLatency(at, m.val)
		if err != nil {
			return nil, err
		}
		points[i] = Point{q, l}
	}
	slices.SortFunc(points, func(a, b Point) int { return cmp.Compare(a.Q, b.Q) })
	return points, nil
}

func parseLatency(path string, raw json.RawMessage) (time.Duration, error) {
	s, err := parseString(path, raw)
	if err != nil {
		return 0, err
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%s: %s is not a duration such as \"200us\"", path, clipped(s))
	}
	return d, nil
}

// parseText reads a string that says something.
func parseText(path string, raw json.RawMessage) (string, error) {
	s, err := parseString(path, raw)
	if err == nil && strings.TrimSpace(s) == "" {
		err = fmt.Errorf("%s is empty", path)
	}
	return s, err
}

func parseString(path string, raw json.RawMessage) (s string, err error) {
	if raw[0] != '"' { // json.Unmarshal takes null for a string
		return "", fmt.Errorf("%s: want a string, not %s", path, clipped(string(raw)))
	}
	err = json.Unmarshal(raw, &s)
	return s, err
}

// member is one key of a JSON object and its value.
type member struct {
	key string
	val json.RawMessage // valid JSON without space around it
}

// splitObject returns the members of an object, raw being valid JSON. A decoder
// into a struct or a map would take a key twice, or in another case.
func splitObject(path string, raw json.RawMessage) ([]member, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		if path == "" {
			return nil, fmt.Errorf("want an object, not %s", clipped(string(raw)))
		}
		return nil, fmt.Errorf("%s: want an object, not %s", path, clipped(string(raw)))
	}
	var ms []member
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, err
		}
		m := member{key: t.(string)}
		if seen[m.key] {
			return nil, fmt.Errorf("%s: given twice", join(path, m.key))
		}
		seen[m.key] = true
		if err := dec.Decode(&m.val); err != nil {
			return nil, err
		}
		ms = append(ms, m)
	}
	return ms, nil
}

func unknownField(path, key, known string) error {
	return fmt.Errorf("%s: unknown field (known: %s)", join(path, key), known)
}

// join appends a key to a path. A key that is no plain word is quoted.
func join(path, key string) string {
	plain := len(key) > 0 && len(key) <= maxShown && !strings.ContainsFunc(key, func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_-+.", r)
	})
	if !plain {
		key = clipped(key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// clipped quotes text from outside, so that an error stays one short line.
func clipped(s string) string {
	if len(s) > maxShown {
		n := maxShown
		for n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
		return strconv.Quote(s[:n]) + "…"
	}
	return strconv.Quote(s)
}

func blank(s string) bool { return s != "" && strings.TrimSpace(s) == "" }

func notPrint(r rune) bool { return !unicode.IsPrint(r) }

var opNames = sync.OnceValue(func() (names []string) {
	for op := range 1 << 16 {
		if s := mlx5.Op(op).String(); !strings.HasPrefix(s, "Op(") {
			names = append(names, s)
		}
	}
	return names
})

// didYouMean names the opcodes nearest to an unknown name.
func didYouMean(name string) string {
	if len(name) > maxShown { // bounds the work, too
		return ""
	}
	name = strings.ToUpper(strings.TrimSpace(name))
	best := max(2, len(name)/3) // nothing further away than that is meant
	var found []string
	for _, s := range opNames() {
		d := min(editDistance(name, s), editDistance(name, strings.TrimSuffix(s, "_QP")))
		if d < best {
			best, found = d, found[:0]
		}
		if d == best && len(found) < 3 {
			found = append(found, s)
		}
	}
	if len(found) == 0 {
		return ""
	}
	return "; did you mean " + strings.Join(found, ", ") + "?"
}

// editDistance is Levenshtein's, in bytes.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			d := diagonal
			if a[i] != b[j] {
				d = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], d
		}
	}
	return row[len(b)]
}

// MarshalJSON writes what LoadProfile reads, and refuses what it would not.
func (p Profile) MarshalJSON() ([]byte, error) {
	if err := p.check(); err != nil {
		return nil, p.wrap(err)
	}
	ops := make(map[string]Dist, len(p.Ops))
	for op, d := range p.Ops {
		ops[op.String()] = d
	}
	b, err := json.Marshal(struct {
		Name     string          `json:"name"`
		Source   string          `json:"source"`
		Note     string          `json:"note,omitempty"`
		Card     string          `json:"card,omitempty"`
		Firmware string          `json:"firmware,omitempty"`
		Slots    any             `json:"slots"`
		Threads  any             `json:"threads"`
		Submit   Dist            `json:"submit"`
		PerQPs   any             `json:"per_1000_qps,omitempty"`
		Cache    any             `json:"context_cache,omitempty"`
		Ack      any             `json:"ack_timeout,omitempty"`
		Default  Dist            `json:"default"`
		Ops      map[string]Dist `json:"ops,omitempty"`
	}{
		p.Name, p.Source, p.Note, p.Card, p.Firmware,
		valueJSON(p.Slots, p.SlotsFrom), valueJSON(p.Threads, p.ThreadsFrom),
		p.Submit, p.perQPsJSON(), p.ContextCache.json(), p.AckTimeout.json(), p.Default, ops,
	})
	if len(b) > maxProfileBytes {
		return nil, p.wrap(errors.New("longer than 1 MiB"))
	}
	return b, err
}

func valueJSON[T any](v T, e Evidence) any {
	if e == (Evidence{}) {
		return v
	}
	return struct {
		Value  T      `json:"value"`
		Source string `json:"source,omitempty"`
		Note   string `json:"note,omitempty"`
	}{v, e.Source, e.Note}
}

func (p *Profile) perQPsJSON() any {
	if p.Per1000QPs == 0 && p.Per1000QPsFrom == (Evidence{}) {
		return nil
	}
	return valueJSON(formatLatency(p.Per1000QPs), p.Per1000QPsFrom)
}

func (c *ContextCache) json() any {
	if c == nil {
		return nil
	}
	return struct {
		QueuePairs int    `json:"queue_pairs"`
		Miss       Dist   `json:"miss"`
		Source     string `json:"source,omitempty"`
		Note       string `json:"note,omitempty"`
	}{c.QueuePairs, c.Miss, c.Source, c.Note}
}

func (a *AckTimeout) json() any {
	if a == nil {
		return nil
	}
	return struct {
		Floor   int    `json:"floor"`
		Percent int    `json:"percent"`
		Source  string `json:"source,omitempty"`
		Note    string `json:"note,omitempty"`
	}{a.Floor, a.Percent, a.Source, a.Note}
}

// MarshalJSON writes the short form, "200us", where it says all.
func (d Dist) MarshalJSON() ([]byte, error) {
	if len(d.Points) == 0 && d.Evidence == (Evidence{}) {
		return json.Marshal(formatLatency(d.Fixed))
	}
	out := struct {
		Fixed     string            `json:"fixed,omitempty"`
		Quantiles map[string]string `json:"quantiles,omitempty"` // sorted as text, and so as numbers
		Source    string            `json:"source,omitempty"`
		Note      string            `json:"note,omitempty"`
	}{Source: d.Source, Note: d.Note}
	if len(d.Points) == 0 {
		out.Fixed = formatLatency(d.Fixed)
	} else {
		out.Quantiles = make(map[string]string, len(d.Points))
		for _, p := range d.Points {
			out.Quantiles[formatQuantile(p.Q)] = formatLatency(p.Latency)
		}
	}
	return json.Marshal(out)
}

// formatLatency is exact and ASCII; time.ParseDuration reads it back.
func formatLatency(d time.Duration) string {
	return strings.ReplaceAll(d.String(), "µ", "u")
}

func formatQuantile(q float64) string { return strconv.FormatFloat(q, 'f', -1, 64) }
