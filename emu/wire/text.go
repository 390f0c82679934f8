// SPDX-License-Identifier: BSD-2-Clause

package wire

import (
	"errors"
	"fmt"
	"math/big"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// keys are the parameters in their text form, in the order in which String
// writes them. get returns "" for what is not to be written; a flag has none.
var keys = []struct {
	name, form string
	set        func(p *Params, args []string) error
	get        func(p *Params) string
}{
	{"rate", "rate=BITS", func(p *Params, a []string) error { return sizes(a, 1, &p.Rate) },
		func(p *Params) string { return formatSize(p.Rate) }},
	{"delay", "delay=TIME", func(p *Params, a []string) (err error) { p.Delay, err = parseTime(a[0]); return one(a, err) },
		func(p *Params) string { return formatTime(p.Delay) }},
	{"jitter", "jitter=TIME[:uniform|normal|exp]", setJitter, getJitter},
	{"loss", "loss=P", func(p *Params, a []string) error { return probabilities(a, &p.Loss) },
		func(p *Params) string { return formatP(p.Loss) }},
	{"burst", "burst=BEGIN:END[:LOSS]", setBurst, getBurst},
	{"corrupt", "corrupt=P", func(p *Params, a []string) error { return probabilities(a, &p.Corrupt) },
		func(p *Params) string { return formatP(p.Corrupt) }},
	{"dup", "dup=P", func(p *Params, a []string) error { return probabilities(a, &p.Duplicate) },
		func(p *Params) string { return formatP(p.Duplicate) }},
	{"reorder", "reorder=P:TIME", setReorder, getReorder},
	{"queue", "queue=BYTES", func(p *Params, a []string) error { return sizes(a, 1, &p.Queue) },
		func(p *Params) string { return formatSize(p.Queue) }},
	{"flight", "flight=BYTES", func(p *Params, a []string) error { return sizes(a, 1, &p.Flight) },
		func(p *Params) string { return formatSize(p.Flight) }},
	{"ecn", "ecn=MIN:MAX:P", setECN, getECN},
	{"pfc", "pfc or pfc=0+3+7", setPFC, getPFC},
	{"xoff", "xoff=BYTES", func(p *Params, a []string) error { return sizes(a, 1, &p.PFC.XOFF) },
		func(p *Params) string { return formatSize(p.PFC.XOFF) }},
	{"xon", "xon=BYTES", func(p *Params, a []string) error { return sizes(a, 1, &p.PFC.XON) },
		func(p *Params) string { return formatSize(p.PFC.XON) }},
	{"headroom", "headroom=BYTES", func(p *Params, a []string) error { return sizes(a, 1, &p.PFC.Headroom) },
		func(p *Params) string { return formatSize(p.PFC.Headroom) }},
}

var errForm = errors.New("malformed")

// Parse reads parameters from text such as
//
//	rate=100G,delay=5us,loss=1%,jitter=1us,dup=0.1%,reorder=1%:10us,ecn=100K:400K:10%,pfc
//
// Each key stands at most once; what is not there is 0. Rates are bit/s and
// sizes bytes, with K, M, G, T for powers of 1000 or Ki, Mi, Gi, Ti for powers of
// 1024; times have a unit (ns, us, ms, s); probabilities are 0.01 or 1%. An empty
// text is an ideal wire. docs/wire.md says more.
func Parse(text string) (Params, error) {
	var p Params
	if text == "" {
		return p, nil
	}
	seen := map[string]bool{}
	for item := range strings.SplitSeq(text, ",") {
		key, value, hasValue := strings.Cut(item, "=")
		if seen[key] {
			return Params{}, fmt.Errorf("wire: %q: %s stands there twice", text, key)
		}
		seen[key] = true
		if err := p.set(key, value, hasValue); err != nil {
			return Params{}, fmt.Errorf("wire: %q: %w", text, err)
		}
	}
	if err := p.Validate(); err != nil {
		return Params{}, fmt.Errorf("wire: %q: %w", text, err)
	}
	return p, nil
}

func (p *Params) set(key, value string, hasValue bool) error {
	var names []string
	for _, k := range keys {
		names = append(names, k.name)
		if k.name != key {
			continue
		}
		var args []string
		if hasValue {
			args = strings.Split(value, ":")
		} else if key != "pfc" {
			return fmt.Errorf("%s has no value: %s", key, k.form)
		}
		if err := k.set(p, args); err == errForm {
			return fmt.Errorf("%s=%s is not %s", key, value, k.form)
		} else if err != nil {
			return fmt.Errorf("%s=%s: %w: %s", key, value, err, k.form)
		}
		return nil
	}
	return fmt.Errorf("no parameter %q: there are %s", key, strings.Join(names, ", "))
}

// String returns the text form, which Parse reads back to the same parameters.
func (p Params) String() string {
	var b strings.Builder
	for _, k := range keys {
		value := k.get(&p)
		if value == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(k.name)
		if value != k.name { // a flag
			b.WriteString("=" + value)
		}
	}
	return b.String()
}

// MarshalText returns the text form.
func (p Params) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText is Parse, for packages that read flags.
func (p *Params) UnmarshalText(text []byte) (err error) {
	*p, err = Parse(string(text))
	return err
}

func setJitter(p *Params, a []string) (err error) {
	if len(a) > 2 {
		return errForm
	}
	if p.Jitter.Scale, err = parseTime(a[0]); err != nil || len(a) == 1 {
		return err
	}
	for i, name := range distributions {
		if a[1] == name {
			p.Jitter.Dist = Distribution(i)
			return nil
		}
	}
	return errForm
}

func getJitter(p *Params) string {
	if p.Jitter.Dist == Uniform {
		return formatTime(p.Jitter.Scale)
	}
	return formatTime(p.Jitter.Scale) + ":" + p.Jitter.Dist.String()
}

func setBurst(p *Params, a []string) error {
	if len(a) == 2 {
		a = append(a, "100%")
	}
	return probabilities(a, &p.Burst.Begin, &p.Burst.End, &p.Burst.Loss)
}

func getBurst(p *Params) string {
	if p.Burst == (Burst{}) {
		return ""
	}
	return or0(formatP(p.Burst.Begin)) + ":" + or0(formatP(p.Burst.End)) + ":" + or0(formatP(p.Burst.Loss))
}

func setReorder(p *Params, a []string) (err error) {
	if len(a) != 2 {
		return errForm
	}
	if p.ReorderDelay, err = parseTime(a[1]); err != nil {
		return err
	}
	return probabilities(a[:1], &p.Reorder)
}

func getReorder(p *Params) string {
	if p.Reorder == 0 {
		return ""
	}
	return formatP(p.Reorder) + ":" + formatTime(p.ReorderDelay)
}

func setECN(p *Params, a []string) error {
	if len(a) != 3 {
		return errForm
	}
	if err := probabilities(a[2:], &p.ECN.P); err != nil {
		return err
	}
	return sizes(a[:2], 2, &p.ECN.Min, &p.ECN.Max)
}

func getECN(p *Params) string {
	if p.ECN.Max == 0 {
		return ""
	}
	return or0(formatSize(p.ECN.Min)) + ":" + formatSize(p.ECN.Max) + ":" + or0(formatP(p.ECN.P))
}

func setPFC(p *Params, a []string) error {
	if a == nil {
		p.PFC.Priorities = 1<<Priorities - 1
		return nil
	}
	for digit := range strings.SplitSeq(a[0], "+") {
		if len(a) != 1 || len(digit) != 1 || digit[0] < '0' || digit[0] >= '0'+Priorities {
			return errForm
		}
		bit := uint8(1) << (digit[0] - '0')
		if p.PFC.Priorities&bit != 0 {
			return fmt.Errorf("priority %s stands there twice", digit)
		}
		p.PFC.Priorities |= bit
	}
	return nil
}

func getPFC(p *Params) string {
	switch p.PFC.Priorities {
	case 0:
		return ""
	case 1<<Priorities - 1:
		return "pfc"
	}
	var list []string
	for rest := p.PFC.Priorities; rest != 0; rest &= rest - 1 {
		list = append(list, strconv.Itoa(bits.TrailingZeros8(rest)))
	}
	return strings.Join(list, "+")
}

func one(a []string, err error) error {
	if len(a) != 1 {
		return errForm
	}
	return err
}

func or0(s string) string {
	if s == "" {
		return "0"
	}
	return s
}

var units = []struct {
	name string
	n    uint64
}{{"Ti", 1 << 40}, {"T", 1e12}, {"Gi", 1 << 30}, {"G", 1e9}, {"Mi", 1 << 20}, {"M", 1e6}, {"Ki", 1 << 10}, {"K", 1e3}}

// maxDigits is enough for the shortest form of each probability from
// MinProbability on.
const maxDigits = 40

// number reads digits and at most one point, exactly.
func number(s string) (*big.Rat, error) {
	whole, fraction, point := strings.Cut(s, ".")
	if len(s) > maxDigits || whole == "" || point && fraction == "" || strings.Trim(whole+fraction, "0123456789") != "" {
		return nil, fmt.Errorf("%q is no number", s)
	}
	r, _ := new(big.Rat).SetString(s)
	return r, nil
}

func sizes[T int | uint64](a []string, n int, to ...*T) error {
	if len(a) != n {
		return errForm
	}
	for i, s := range a {
		unit := uint64(1)
		digits := s
		for _, u := range units {
			if rest, ok := strings.CutSuffix(s, u.name); ok {
				digits, unit = rest, u.n
				break
			}
		}
		r, err := number(digits)
		if err != nil {
			return err
		}
		r.Mul(r, new(big.Rat).SetFrac(new(big.Int).SetUint64(unit), big.NewInt(1)))
		if !r.IsInt() || !r.Num().IsInt64() {
			return fmt.Errorf("%s is no whole number of bits or bytes, or too large", s)
		}
		*to[i] = T(r.Num().Int64())
	}
	return nil
}

// formatSize writes a number with the unit that makes it shortest; "" for 0.
func formatSize[T int | uint64](n T) string {
	if n == 0 {
		return ""
	}
	best := strconv.FormatUint(uint64(n), 10)
	for _, u := range units {
		if uint64(n)%u.n != 0 {
			continue
		}
		if s := strconv.FormatUint(uint64(n)/u.n, 10) + u.name; len(s) < len(best) {
			best = s
		}
	}
	return best
}

// probabilities reads one for each of to.
func probabilities(a []string, to ...*float64) error {
	if len(a) != len(to) {
		return errForm
	}
	for i, s := range a {
		digits, percent := strings.CutSuffix(s, "%")
		r, err := number(digits)
		if err != nil {
			return err
		}
		if percent {
			r.Quo(r, big.NewRat(100, 1))
		}
		*to[i], _ = r.Float64()
	}
	return nil
}

// formatP writes a probability as per cent, exactly; "" for 0.
func formatP(p float64) string {
	if p == 0 {
		return ""
	}
	plain := strconv.FormatFloat(p, 'f', -1, 64) // read back as p, and no exponent
	r, ok := new(big.Rat).SetString(plain)
	if !ok { // not a number, which Validate refuses
		return plain
	}
	_, fraction, _ := strings.Cut(plain, ".")
	return r.Mul(r, big.NewRat(100, 1)).FloatString(max(len(fraction)-2, 0)) + "%"
}

func parseTime(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || s[0] == '-' || s[0] == '+' {
		return 0, fmt.Errorf("%q is no time such as 500ns, 5us, 1.5ms or 1s", s)
	}
	return d, nil
}

func formatTime(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return strings.Replace(d.String(), "µ", "u", 1)
}
