// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"devxlab.example/mlx5"
)

// profileText is a profile that is valid until something is added or replaced:
// pairs of a key and its JSON value; an empty value leaves the key out.
func profileText(pairs ...string) string {
	fields := [][2]string{
		{"name", `"x"`}, {"source", `"test"`}, {"slots", "31"}, {"threads", "8"},
		{"submit", `"37us"`}, {"default", `"300us"`},
	}
	for i := 0; i < len(pairs); i += 2 {
		f := [2]string{pairs[i], pairs[i+1]}
		if j := slices.IndexFunc(fields, func(g [2]string) bool { return g[0] == f[0] }); j >= 0 {
			fields[j] = f
		} else {
			fields = append(fields, f)
		}
	}
	var members []string
	for _, f := range fields {
		if f[1] != "" {
			members = append(members, `"`+f[0]+`": `+f[1])
		}
	}
	return "{\n" + strings.Join(members, ",\n") + "\n}\n"
}

var badProfiles = []struct{ name, text, want string }{
	{"no JSON", "", `profile: line 1: unexpected end of JSON input`},
	{"syntax", "{\n\"name\": \"x\",\n}", `profile: line 3: invalid character '}' looking for beginning of object key string`},
	{"trailing data", profileText() + "{}", `profile: line 9: invalid character '{' after top-level value`},
	{"no object", `[1]`, `profile: want an object, not "[1]"`},
	{"null", `null`, `profile: want an object, not "null"`},
	{"unknown field", profileText("latency", `"1us"`), `profile "x": latency: unknown field (known: name, source, note, card, firmware, slots, threads, submit, per_1000_qps, context_cache, ack_timeout, default, ops)`},
	{"another case", profileText("Slots", "1"), `profile "x": Slots: unknown field (known: name, source, note, card, firmware, slots, threads, submit, per_1000_qps, context_cache, ack_timeout, default, ops)`},
	{"field twice", `{"name": "x", "slots": 1, "slots": 2}`, `profile: slots: given twice`},
	{"no name", profileText("name", ""), `profile: name is missing`},
	{"empty name", profileText("name", `""`), `profile: name is empty`},
	{"name of two lines", profileText("name", `"x\ny"`), `profile "x\ny": name is not one line of at most 200 bytes`},
	{"long name", profileText("name", `"`+strings.Repeat("x", 201)+`"`), `profile "` + strings.Repeat("x", 64) + `"…: name is not one line of at most 200 bytes`},
	{"name not text", profileText("name", "1"), `profile: name: want a string, not "1"`},
	{"no source", profileText("source", ""), `profile "x": source is missing`},
	{"empty source", profileText("source", `""`), `profile "x": source is empty`},
	{"blank source", profileText("source", `" \n"`), `profile "x": source is empty`},
	{"null source", profileText("source", `null`), `profile "x": source: want a string, not "null"`},
	{"empty card", profileText("card", `""`), `profile "x": card is empty`},
	{"several missing", `{"name": "x", "source": "s"}`, `profile "x": slots, threads, submit, default is missing`},
	{"no slots", profileText("slots", "0"), `profile "x": slots: 0 is not within 1 to 31 (a command queue has at most 32 entries, and one serves pages)`},
	{"32 slots", profileText("slots", "32"), `profile "x": slots: 32 is not within 1 to 31 (a command queue has at most 32 entries, and one serves pages)`},
	{"slots not whole", profileText("slots", "1.5"), `profile "x": slots: "1.5" is not a whole number`},
	{"slots null", profileText("slots", "null"), `profile "x": slots: "null" is not a whole number`},
	{"slots too large for int", profileText("slots", strings.Repeat("9", 99)), `profile "x": slots: "` + strings.Repeat("9", 64) + `"… is not a whole number`},
	{"slots without value", profileText("slots", `{"note": "n"}`), `profile "x": slots.value is missing`},
	{"slots' value an object", profileText("slots", `{"value": {"value": 3}}`), `profile "x": slots.value: want a whole number, not an object`},
	{"slots' unknown field", profileText("slots", `{"value": 3, "sauce": "s"}`), `profile "x": slots.sauce: unknown field (known: value, source, note)`},
	{"slots' source empty", profileText("slots", `{"value": 3, "source": ""}`), `profile "x": slots.source is empty`},
	{"no threads", profileText("threads", "0"), `profile "x": threads: 0 is not within 1 to 64`},
	{"65 threads", profileText("threads", `{"value": 65}`), `profile "x": threads: 65 is not within 1 to 64`},
	{"submit a number", profileText("submit", "37"), `profile "x": submit: want a string, not "37"`},
	{"default no duration", profileText("default", `"fast"`), `profile "x": default: "fast" is not a duration such as "200us"`},
	{"default without unit", profileText("default", `"200"`), `profile "x": default: "200" is not a duration such as "200us"`},
	{"default of 300 years", profileText("default", `"2629800h"`), `profile "x": default: "2629800h" is not a duration such as "200us"`},
	{"default too long", profileText("default", `"65.000000001s"`), `profile "x": default: latency 1m5.000000001s is above 1m5s (the driver's time-out of 60 s and its recovery of 5 s)`},
	{"default empty", profileText("default", `{}`), `profile "x": default: neither fixed nor quantiles`},
	{"both forms", profileText("default", `{"fixed": "0s", "quantiles": {"0.5": "1us"}}`), `profile "x": default: both fixed and quantiles`},
	{"fixed twice", profileText("default", `{"fixed": "0s", "fixed": "1s"}`), `profile "x": default.fixed: given twice`},
	{"entry's unknown field", profileText("default", `{"median": "1us"}`), `profile "x": default.median: unknown field (known: fixed, quantiles, source, note)`},
	{"entry's source empty", profileText("default", `{"fixed": "1us", "source": ""}`), `profile "x": default.source is empty`},
	{"entry's note empty", profileText("default", `{"fixed": "1us", "note": " "}`), `profile "x": default.note is empty`},
	{"negative", profileText("ops", `{"CREATE_QP": "-3us"}`), `profile "x": ops.CREATE_QP: latency -3us is negative`},
	{"negative quantile", profileText("ops", `{"RTR2RTS": {"quantiles": {"0.5": "-3us"}}}`), `profile "x": ops.RTR2RTS.quantiles.0.5: latency -3us is negative`},
	{"no quantile", profileText("ops", `{"CREATE_QP": {"quantiles": {}}}`), `profile "x": ops.CREATE_QP.quantiles: names no quantile`},
	{"quantiles no object", profileText("ops", `{"CREATE_QP": {"quantiles": ["1us"]}}`), `profile "x": ops.CREATE_QP.quantiles: want an object, not "[\"1us\"]"`},
	{"quantile 0", profileText("ops", `{"CREATE_QP": {"quantiles": {"0": "1us"}}}`), `profile "x": ops.CREATE_QP.quantiles.0: a quantile lies between 0 and 1, both excluded`},
	{"quantile 1", profileText("ops", `{"CREATE_QP": {"quantiles": {"1": "1us"}}}`), `profile "x": ops.CREATE_QP.quantiles.1: a quantile lies between 0 and 1, both excluded`},
	{"quantile 99", profileText("ops", `{"CREATE_QP": {"quantiles": {"99": "1us"}}}`), `profile "x": ops.CREATE_QP.quantiles.99: a quantile lies between 0 and 1, both excluded`},
	{"quantile NaN", profileText("ops", `{"CREATE_QP": {"quantiles": {"NaN": "1us"}}}`), `profile "x": ops.CREATE_QP.quantiles.NaN: a quantile lies between 0 and 1, both excluded`},
	{"quantile no number", profileText("ops", `{"CREATE_QP": {"quantiles": {"p 50": "1us"}}}`), `profile "x": ops.CREATE_QP.quantiles."p 50": a quantile lies between 0 and 1, both excluded`},
	{"quantile twice", profileText("ops", `{"CREATE_QP": {"quantiles": {"0.5": "1us", "0.50": "2us"}}}`), `profile "x": ops.CREATE_QP.quantiles.0.5: given twice`},
	{"decreasing", profileText("ops", `{"CREATE_QP": {"quantiles": {"0.9": "200us", "0.5": "300us"}}}`), `profile "x": ops.CREATE_QP.quantiles.0.9: latency 200us is below the 300us of quantile 0.5`},
	{"unknown opcode", profileText("ops", `{"CRAETE_QP": "1us"}`), `profile "x": ops.CRAETE_QP: unknown opcode; did you mean CREATE_QP?`},
	{"unknown transition", profileText("ops", `{"RTR2RST": "1us"}`), `profile "x": ops.RTR2RST: unknown opcode; did you mean RTR2RTS_QP?`},
	{"opcode like no other", profileText("ops", `{"make tea": "1us"}`), `profile "x": ops."make tea": unknown opcode`},
	{"opcode of 1000 bytes", profileText("ops", `{"`+strings.Repeat("Q", 1000)+`": "1us"}`), `profile "x": ops."` + strings.Repeat("Q", 64) + `"…: unknown opcode`},
	{"opcode by two names", profileText("ops", `{"RTR2RTS_QP": "1us", "RTR2RTS": "1us"}`), `profile "x": ops.RTR2RTS: the same opcode as ops.RTR2RTS_QP`},
	{"opcode twice", profileText("ops", `{"CREATE_QP": "1us", "CREATE_QP": "1us"}`), `profile "x": ops.CREATE_QP: given twice`},
	{"per_1000_qps a number", profileText("per_1000_qps", "1"), `profile "x": per_1000_qps: want a string, not "1"`},
	{"per_1000_qps negative", profileText("per_1000_qps", `"-1us"`), `profile "x": per_1000_qps: latency -1us is negative`},
	{"per_1000_qps too long", profileText("per_1000_qps", `{"value": "66s"}`), `profile "x": per_1000_qps: latency 1m6s is above 1m5s (the driver's time-out of 60 s and its recovery of 5 s)`},
	{"per_1000_qps a distribution", profileText("per_1000_qps", `{"fixed": "1us"}`), `profile "x": per_1000_qps.fixed: unknown field (known: value, source, note)`},
	{"per_1000_qps without value", profileText("per_1000_qps", `{"source": "s"}`), `profile "x": per_1000_qps.value is missing`},
	{"per_1000_qps' value an object", profileText("per_1000_qps", `{"value": {}}`), `profile "x": per_1000_qps.value: want a string, not "{}"`},
	{"per_1000_qps' note empty", profileText("per_1000_qps", `{"value": "1us", "note": ""}`), `profile "x": per_1000_qps.note is empty`},
	{"cache a number", profileText("context_cache", "1"), `profile "x": context_cache: want an object, not "1"`},
	{"cache null", profileText("context_cache", "null"), `profile "x": context_cache: want an object, not "null"`},
	{"cache of nothing", profileText("context_cache", `{}`), `profile "x": context_cache.queue_pairs is missing`},
	{"cache without miss", profileText("context_cache", `{"queue_pairs": 1}`), `profile "x": context_cache.miss is missing`},
	{"cache of 0", profileText("context_cache", `{"queue_pairs": 0, "miss": "1us"}`), `profile "x": context_cache.queue_pairs: 0 is not within 1 to 4194304; leave context_cache out if all contexts fit`},
	{"cache too large", profileText("context_cache", `{"queue_pairs": 4194305, "miss": "1us"}`), `profile "x": context_cache.queue_pairs: 4194305 is not within 1 to 4194304; leave context_cache out if all contexts fit`},
	{"cache of a half", profileText("context_cache", `{"queue_pairs": 0.5, "miss": "1us"}`), `profile "x": context_cache.queue_pairs: "0.5" is not a whole number`},
	{"cache's size an object", profileText("context_cache", `{"queue_pairs": {"value": 1}, "miss": "1us"}`), `profile "x": context_cache.queue_pairs: want a whole number, not an object`},
	{"miss negative", profileText("context_cache", `{"queue_pairs": 1, "miss": "-1us"}`), `profile "x": context_cache.miss: latency -1us is negative`},
	{"miss too long", profileText("context_cache", `{"queue_pairs": 1, "miss": {"quantiles": {"0.5": "66s"}}}`), `profile "x": context_cache.miss.quantiles.0.5: latency 1m6s is above 1m5s (the driver's time-out of 60 s and its recovery of 5 s)`},
	{"cache's unknown field", profileText("context_cache", `{"queue_pairs": 1, "miss": "1us", "hit": "0s"}`), `profile "x": context_cache.hit: unknown field (known: queue_pairs, miss, source, note)`},
	{"miss twice", profileText("context_cache", `{"queue_pairs": 1, "miss": "1us", "miss": "1us"}`), `profile "x": context_cache.miss: given twice`},
	{"ACK time-out a number", profileText("ack_timeout", "16"), `profile "x": ack_timeout: want an object, not "16"`},
	{"ACK time-out's floor", profileText("ack_timeout", `{"floor": 32}`), `profile "x": ack_timeout.floor: 32 is not within 0 to 31`},
	{"ACK time-out too short", profileText("ack_timeout", `{"percent": 99}`), `profile "x": ack_timeout.percent: 99 is not within 100 to 400`},
	{"ACK time-out's unknown field", profileText("ack_timeout", `{"n": 1}`), `profile "x": ack_timeout.n: unknown field (known: floor, percent, source, note)`},
	{"cache's source empty", profileText("context_cache", `{"queue_pairs": 1, "miss": "1us", "source": ""}`), `profile "x": context_cache.source is empty`},
	{"ops null", profileText("ops", `null`), `profile "x": ops: want an object, not "null"`},
}

func TestLoadProfileRefuses(t *testing.T) {
	for _, c := range badProfiles {
		t.Run(c.name, func(t *testing.T) {
			p, err := LoadProfile(strings.NewReader(c.text))
			if err == nil {
				t.Fatalf("taken: %+v", p)
			}
			if err.Error() != c.want {
				t.Errorf("\n got %s\nwant %s", err, c.want)
			}
		})
	}
	t.Run("1 MiB", func(t *testing.T) {
		text := profileText()
		fits := text + strings.Repeat(" ", 1<<20-len(text))
		if _, err := LoadProfile(strings.NewReader(fits)); err != nil {
			t.Error(err)
		}
		_, err := LoadProfile(strings.NewReader(fits + " "))
		if err == nil || err.Error() != "profile: longer than 1 MiB" {
			t.Error(err)
		}
	})
	t.Run("reader", func(t *testing.T) {
		broken := errors.New("broken")
		if _, err := LoadProfile(iotest.ErrReader(broken)); !errors.Is(err, broken) {
			t.Error(err)
		}
	})
}

func TestLoadProfile(t *testing.T) {
	got, err := LoadProfile(strings.NewReader(profileText(
		"note", `"n"`, "card", `"c"`, "firmware", `"f"`,
		"threads", `{"value": 3, "source": "s", "note": "guess"}`,
		"per_1000_qps", `{"value": "1us", "source": "p"}`,
		"context_cache", `{"note": "c", "miss": {"fixed": "2us", "source": "m"}, "queue_pairs": 32768}`,
		"ops", `{"RTR2RTS": {"quantiles": {"0.9": "2ms", "5e-1": "1ms"}, "source": "o"}, "2ERR_QP": {"fixed": "65s"}}`)))
	if err != nil {
		t.Fatal(err)
	}
	want := &Profile{
		Name: "x", Source: "test", Note: "n", Card: "c", Firmware: "f",
		Slots: 31, Threads: 3, ThreadsFrom: Evidence{"s", "guess"},
		Per1000QPs: time.Microsecond, Per1000QPsFrom: Evidence{Source: "p"},
		ContextCache: &ContextCache{32768, Dist{Fixed: 2 * time.Microsecond, Evidence: Evidence{Source: "m"}}, Evidence{Note: "c"}},
		Submit:       Dist{Fixed: 37 * time.Microsecond},
		Default:      Dist{Fixed: 300 * time.Microsecond},
		Ops: map[mlx5.Op]Dist{
			mlx5.OpRTR2RTS: {Points: []Point{{0.5, time.Millisecond}, {0.9, 2 * time.Millisecond}}, Evidence: Evidence{Source: "o"}},
			mlx5.Op2ERR:    {Fixed: MaxLatency},
		},
	}
	for _, c := range []struct {
		op   mlx5.Op
		want time.Duration
	}{
		{mlx5.OpRTR2RTS, 1500 * time.Microsecond}, {mlx5.Op2ERR, MaxLatency},
		{mlx5.OpCreateQP, 300 * time.Microsecond}, {mlx5.OpModifyVHCAState, 300 * time.Microsecond},
		{0, 300 * time.Microsecond}, {0xffff, 300 * time.Microsecond},
	} {
		for _, p := range []*Profile{got, want} { // compiled, and not
			if d := p.Latency(c.op, 0.7); d != c.want {
				t.Errorf("%v takes %v, want %v", c.op, d, c.want)
			}
		}
	}
	if err := want.Compile(); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}
}

func TestBuiltinProfiles(t *testing.T) {
	if got := ProfileNames(); !slices.Equal(got, []string{"published", "zero"}) {
		t.Fatal(got)
	}
	for _, name := range ProfileNames() {
		p, err := ProfileByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if p.Name != name {
			t.Errorf("%s calls itself %s", name, p.Name)
		}
		if p.Zero() != (name == "zero") {
			t.Errorf("%s: Zero is %v", name, p.Zero())
		}
		from := map[string]Evidence{
			"slots": p.SlotsFrom, "threads": p.ThreadsFrom,
			"submit": p.Submit.Evidence, "default": p.Default.Evidence,
		}
		for op, d := range p.Ops {
			from["ops."+op.String()] = d.Evidence
		}
		for path, e := range from {
			if e.Source == "" || name == "published" && e.Note == "" {
				t.Errorf("%s: %s has no source or no note", name, path)
			}
		}
	}

	p, _ := ProfileByName("published")
	for _, op := range mlx5.Transitions() {
		if _, ok := p.Ops[op]; !ok {
			t.Errorf("published does not name %v", op)
		}
	}
	// The figures must add up to what the study saw, both ends at once.
	var recovery time.Duration
	for _, op := range []mlx5.Op{mlx5.Op2RST, mlx5.OpRST2INIT, mlx5.OpINIT2RTR, mlx5.OpRTR2RTS} {
		recovery += p.SubmitCost(0.5) + p.Latency(op, 0.5)
	}
	if recovery < 780*time.Microsecond || recovery > 920*time.Microsecond {
		t.Errorf("recovery takes %v", recovery)
	}

	z, _ := ProfileByName("zero")
	if z.Slots != maxSlots || z.Threads <= maxSlots {
		t.Errorf("zero limits: %d slots, %d threads", z.Slots, z.Threads)
	}
}

func TestProfileByName(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mine.json")
	if err := os.WriteFile(file, []byte(profileText()), 0o600); err != nil {
		t.Fatal(err)
	}
	if p, err := ProfileByName(file); err != nil || p.Name != "x" {
		t.Error(p, err)
	}
	if err := os.WriteFile(file, []byte(profileText("slots", "0")), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ProfileByName(file); err == nil || !strings.HasPrefix(err.Error(), file+`: profile "x": slots: 0 `) {
		t.Error(err)
	}
	for _, name := range []string{"publishd", "", "../zero", filepath.Dir(file)} {
		_, err := ProfileByName(name)
		if err == nil {
			t.Errorf("%q taken", name)
		} else if name != filepath.Dir(file) && (!errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "neither built in (published, zero)")) {
			t.Error(err)
		}
	}
}

func TestDistAt(t *testing.T) {
	d := Dist{Points: []Point{{0.5, 300}, {0.9, 500}, {0.99, 2000}}}
	for _, c := range []struct {
		u    float64
		want time.Duration
	}{
		{0, 300}, {0.5, 300}, {0.7, 400}, {0.9, 500}, {0.945, 1250}, {0.99, 2000}, {0.999, 2000},
		{-1, 300}, {2, 2000}, {math.NaN(), 300}, {math.Inf(1), 2000},
	} {
		if got := d.At(c.u); got != c.want {
			t.Errorf("At(%v) = %d, want %d", c.u, got, c.want)
		}
	}
}

// randomProfile is one that LoadProfile would take.
func randomProfile(r *rand.Rand) *Profile {
	evidence := func() (e Evidence) {
		if r.IntN(2) == 0 {
			e.Source = "source <a> & “b”"
		}
		if r.IntN(2) == 0 {
			e.Note = "note\n\"c\""
		}
		return e
	}
	dist := func() (d Dist) {
		d.Evidence = evidence()
		latencies := make([]time.Duration, r.IntN(6))
		for i := range latencies {
			latencies[i] = time.Duration(r.Int64N(int64(MaxLatency)+1)) >> r.IntN(36)
		}
		if len(latencies) == 0 {
			d.Fixed = time.Duration(r.Int64N(int64(MaxLatency) + 1))
			return d
		}
		slices.Sort(latencies)
		q := 0.0
		for _, l := range latencies {
			if q += (1 - q) * (1e-6 + 0.9*r.Float64()); q < 1 {
				d.Points = append(d.Points, Point{q, l})
			}
		}
		return d
	}
	p := &Profile{
		Name: "random", Source: "rand", Slots: 1 + r.IntN(maxSlots), Threads: 1 + r.IntN(maxThreads),
		SlotsFrom: evidence(), ThreadsFrom: evidence(), Submit: dist(), Default: dist(), Ops: map[mlx5.Op]Dist{},
	}
	if r.IntN(2) == 0 {
		p.Per1000QPs, p.Per1000QPsFrom = time.Duration(r.Int64N(int64(MaxLatency)+1)), evidence()
	}
	if r.IntN(2) == 0 {
		p.ContextCache = &ContextCache{1 + r.IntN(maxCached), dist(), evidence()}
		p.AckTimeout = &AckTimeout{r.IntN(maxAckTimeout + 1), 100 + r.IntN(301), evidence()}
	}
	for range r.IntN(20) {
		op, _ := mlx5.ParseOp(opNames()[r.IntN(len(opNames()))])
		p.Ops[op] = dist()
	}
	return p
}

// checkProfile is what holds for any valid profile.
func checkProfile(t *testing.T, p *Profile) {
	t.Helper()
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	q, err := LoadProfile(bytes.NewReader(b))
	if err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	if err := p.Compile(); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(p, q) {
		t.Fatalf("\n got %+v\nwant %+v", q, p)
	}
	if again, err := json.Marshal(*q); err != nil || !bytes.Equal(b, again) {
		t.Fatalf("%v\n%s\n%s", err, b, again)
	}
	for _, op := range append(slices.Collect(maps.Keys(p.Ops)), 0) {
		d, ok := p.Ops[op]
		if !ok {
			d = p.Default
		}
		last := time.Duration(0)
		us := []float64{0, math.Nextafter(1, 0)}
		for i := range 100 {
			us = append(us, float64(i)/100)
		}
		for _, pt := range d.Points {
			us = append(us, math.Nextafter(pt.Q, 0), pt.Q, math.Nextafter(pt.Q, 1))
			if got := p.Latency(op, pt.Q); got != pt.Latency {
				t.Fatalf("%v: quantile %v is %v, want %v", op, pt.Q, got, pt.Latency)
			}
		}
		slices.Sort(us)
		for _, u := range us {
			l := p.Latency(op, u)
			if l < last || l > MaxLatency || p.Zero() && l != 0 {
				t.Fatalf("%v: quantile %v is %v, after %v", op, u, l, last)
			}
			last = l
		}
	}
}

func TestProfileRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		checkProfile(t, randomProfile(r))
	}
	for _, name := range ProfileNames() {
		p, err := ProfileByName(name)
		if err != nil {
			t.Fatal(err)
		}
		checkProfile(t, p)
	}
}

// What was changed by hand is refused when it is compiled and when it is written.
func TestProfileByHand(t *testing.T) {
	for want, change := range map[string]func(*Profile){
		`profile: name is empty`:                                                                                            func(p *Profile) { p.Name = "" },
		`profile "\xff": name is not one line of at most 200 bytes`:                                                         func(p *Profile) { p.Name = "\xff" },
		`profile "x": source is empty: say where the figures come from`:                                                     func(p *Profile) { p.Source = "" },
		`profile "x": firmware is empty: leave it out`:                                                                      func(p *Profile) { p.Firmware = " " },
		`profile "x": threads: 65 is not within 1 to 64`:                                                                    func(p *Profile) { p.Threads = 65 },
		`profile "x": threads.note is empty: leave it out`:                                                                  func(p *Profile) { p.ThreadsFrom.Note = " " },
		`profile "x": submit: latency -3us is negative`:                                                                     func(p *Profile) { p.Submit.Fixed = -3 * time.Microsecond },
		`profile "x": default: both fixed and quantiles`:                                                                    func(p *Profile) { p.Default.Points = []Point{{0.5, 1}} },
		`profile "x": ops: Op(0x1) is not a known opcode`:                                                                   func(p *Profile) { p.Ops[1] = Dist{} },
		`profile "x": ops.RTR2RTS_QP.quantiles.0.5: comes after 0.9`:                                                        func(p *Profile) { p.Ops[mlx5.OpRTR2RTS] = Dist{Points: []Point{{0.9, 1}, {0.5, 2}}} },
		`profile "x": ops.RTR2RTS_QP.source is empty: leave it out, and the profile's counts`:                               func(p *Profile) { p.Ops[mlx5.OpRTR2RTS] = Dist{Evidence: Evidence{Source: "\t"}} },
		`profile "x": per_1000_qps: latency -1ns is negative`:                                                               func(p *Profile) { p.Per1000QPs = -1 },
		`profile "x": per_1000_qps.source is empty: leave it out, and the profile's counts`:                                 func(p *Profile) { p.Per1000QPsFrom.Source = " " },
		`profile "x": context_cache.queue_pairs: 0 is not within 1 to 4194304; leave context_cache out if all contexts fit`: func(p *Profile) { p.ContextCache = &ContextCache{} },
		`profile "x": context_cache.miss: both fixed and quantiles`: func(p *Profile) {
			p.ContextCache = &ContextCache{QueuePairs: 1, Miss: Dist{Fixed: 1, Points: []Point{{0.5, 1}}}}
		},
		`profile "x": context_cache.note is empty: leave it out`: func(p *Profile) { p.ContextCache = &ContextCache{QueuePairs: 1, Evidence: Evidence{Note: " "}} },
	} {
		p, err := LoadProfile(strings.NewReader(profileText()))
		if err != nil {
			t.Fatal(err)
		}
		change(p)
		if err := p.Compile(); err == nil || err.Error() != want {
			t.Errorf("\n got %v\nwant %s", err, want)
		}
		if _, err := json.Marshal(p); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("written: %v", err)
		}
	}

	p, err := ProfileByName("published")
	if err != nil {
		t.Fatal(err)
	}
	q := *p
	q.Ops = map[mlx5.Op]Dist{mlx5.OpRTR2RTS: {Fixed: 1}}
	if err := q.Compile(); err != nil {
		t.Fatal(err)
	}
	if q.Latency(mlx5.OpRTR2RTS, 0) != 1 || p.Latency(mlx5.OpRTR2RTS, 0) == 1 || q.Latency(mlx5.OpCreateQP, 0) != p.Default.Fixed {
		t.Error("a copy and its original are mixed up")
	}
}

// One term is enough for a profile that adds latency.
func TestProfileZero(t *testing.T) {
	for _, c := range []struct {
		fields []string
		want   bool
	}{
		{nil, true},
		{[]string{"per_1000_qps", `"0s"`, "context_cache", `{"queue_pairs": 1, "miss": "0s"}`, "ops", `{"2ERR": "0s"}`}, true},
		{[]string{"per_1000_qps", `"1ns"`}, false},
		{[]string{"context_cache", `{"queue_pairs": 1, "miss": {"quantiles": {"0.5": "0s", "0.9": "1ns"}}}`}, false},
		{[]string{"ops", `{"2ERR": "1ns"}`}, false},
		{[]string{"submit", `"1ns"`}, false},
		{[]string{"default", `"1ns"`}, false},
	} {
		p, err := LoadProfile(strings.NewReader(profileText(append([]string{"submit", `"0s"`, "default", `"0s"`}, c.fields...)...)))
		if err != nil {
			t.Fatal(err)
		}
		if p.Zero() != c.want {
			t.Errorf("%v: Zero is %v", c.fields, p.Zero())
		}
	}
}

func TestLatencyAllocatesNothing(t *testing.T) {
	p, err := ProfileByName("published")
	if err != nil {
		t.Fatal(err)
	}
	var sum time.Duration
	if n := testing.AllocsPerRun(1000, func() {
		sum += p.SubmitCost(0.3) + p.Latency(mlx5.OpCreateQP, 0.3) + p.Latency(mlx5.OpRTR2RTS, 0.3) + p.Latency(mlx5.OpNOP, 0.3)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkLatency(b *testing.B) {
	p, err := ProfileByName("published")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		p.Latency(mlx5.OpCreateQP, 0.6)
	}
}

func FuzzLoadProfile(f *testing.F) {
	for _, name := range ProfileNames() {
		b, err := builtinProfiles.ReadFile("profiles/" + name + ".json")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(profileText("per_1000_qps", `{"value": "1us", "note": "n"}`, "context_cache", `{"queue_pairs": 3, "miss": {"quantiles": {"0.5": "1us"}}, "source": "s"}`)))
	f.Add([]byte(profileText("ops", `{"RTR2RTS": {"quantiles": {"0.5": "1ms", "0.9": "2ms"}}}`)))
	for _, c := range badProfiles {
		f.Add([]byte(c.text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := LoadProfile(bytes.NewReader(b))
		if err == nil {
			checkProfile(t, p)
			return
		}
		if s := err.Error(); p != nil || len(s) > 1000 || strings.ContainsRune(s, '\n') {
			t.Errorf("profile %v with error of %d bytes: %s", p, len(s), s)
		}
	})
}
