// SPDX-License-Identifier: BSD-2-Clause

package wire

import (
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		text string
		want Params
		back string // "": the same
	}{
		{"", Params{}, ""},
		{"rate=100G,delay=5us,loss=1%,jitter=1us,dup=0.1%,reorder=1%:10us,ecn=100K:400K:10%,pfc",
			Params{Rate: 100e9, Delay: 5 * time.Microsecond, Loss: 0.01, Jitter: Jitter{Scale: time.Microsecond}, Duplicate: 0.001, Reorder: 0.01,
				ReorderDelay: 10 * time.Microsecond, ECN: ECN{100_000, 400_000, 0.1}, PFC: PFC{Priorities: 0xff}},
			"rate=100G,delay=5us,jitter=1us,loss=1%,dup=0.1%,reorder=1%:10us,ecn=100K:400K:10%,pfc"},
		{"rate=2.5G,queue=64Ki,flight=1M", Params{Rate: 2.5e9, Queue: 65536, Flight: 1e6}, "rate=2500M,queue=64Ki,flight=1M"},
		{"jitter=1.5ms:exp", Params{Jitter: Jitter{1500 * time.Microsecond, Exp}}, ""},
		{"jitter=100ns:normal", Params{Jitter: Jitter{100, Normal}}, ""},
		{"jitter=1us:uniform", Params{Jitter: Jitter{Scale: 1000}}, "jitter=1us"},
		{"burst=0.1%:30%", Params{Burst: Burst{0.001, 0.3, 1}}, "burst=0.1%:30%:100%"},
		{"burst=1:0:0.5", Params{Burst: Burst{1, 0, 0.5}}, "burst=100%:0:50%"},
		{"corrupt=0.000001", Params{Corrupt: 1e-6}, "corrupt=0.0001%"},
		{"pfc=3+0,xoff=1M,xon=500K,headroom=100K", Params{PFC: PFC{9, 1e6, 500_000, 100_000}}, "pfc=0+3,xoff=1M,xon=500K,headroom=100K"},
		{"loss=0,rate=0,delay=0s", Params{}, ""},
	} {
		p, err := Parse(c.text)
		if err != nil || p != c.want {
			t.Errorf("%q: %+v, %v", c.text, p, err)
			continue
		}
		if c.back == "" && c.want != (Params{}) {
			c.back = c.text
		}
		if s := p.String(); s != c.back {
			t.Errorf("%q: back as %q, not %q", c.text, s, c.back)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{",", `no parameter "": there are rate, delay,`},
		{"speed=1", `no parameter "speed": there are rate, delay,`},
		{"Rate=1G", `no parameter "Rate"`},
		{" rate=1G", `no parameter " rate"`},
		{"rate=1G,", `no parameter ""`},
		{"rate=1G,rate=2G", "rate stands there twice"},
		{"rate", "rate has no value: rate=BITS"},
		{"rate=", `"" is no number`},
		{"rate=1g", `"1g" is no number`},
		{"rate=-1G", `"-1" is no number`},
		{"rate=1e9", `"1e9" is no number`},
		{"rate=1/2", `"1/2" is no number`},
		{"rate=.5G", `".5" is no number`},
		{"rate=5.G", `"5." is no number`},
		{"rate=1:2", "rate=1:2 is not rate=BITS"},
		{"rate=1", "rate: 1 is not between 1K and 10T bit/s"},
		{"rate=11T", "rate: 11T is not between"},
		{"rate=1.5", "1.5 is no whole number"},
		{"rate=9999999999999T", "too large"},
		{"rate=" + strings.Repeat("9", 50), "is no number"},
		{"delay=5", `"5" is no time such as`},
		{"delay=-5us", `"-5us" is no time`},
		{"delay=+5us", `"+5us" is no time`},
		{"delay=", `"" is no time`},
		{"delay=2m", "delay: 2m0s is not between 0 and 1m0s"},
		{"delay=1us:2us", "is not delay=TIME"},
		{"jitter=1us:gauss", "is not jitter=TIME[:uniform|normal|exp]"},
		{"jitter=0s:exp", "jitter: a distribution of 0"},
		{"loss=101%", "loss: 1.01 is neither 0 nor a probability"},
		{"loss=NaN", `"NaN" is no number`},
		{"loss=1%%", `"1%" is no number`},
		{"loss=0.0000000000001", "loss: 1e-13 is neither"},
		{"burst=1%", "is not burst=BEGIN:END[:LOSS]"},
		{"burst=0:1%", "burst: needs a probability to begin"},
		{"reorder=1%", "is not reorder=P:TIME"},
		{"reorder=1%:0s", "reorder: needs"},
		{"reorder=0%:1us", "reorder: needs"},
		{"ecn=1:2", "is not ecn=MIN:MAX:P"},
		{"ecn=2K:1K:1%", "ecn: marking begins at 2000 bytes, above"},
		{"ecn=0:0:1%", "ecn: a threshold of 0"},
		{"pfc=8", "is not pfc or pfc=0+3+7"},
		{"pfc=", "is not pfc or pfc=0+3+7"},
		{"pfc=3:4", "is not pfc or pfc=0+3+7"},
		{"pfc=3+3", "priority 3 stands there twice"},
		{"xoff=1M", "say nothing without pfc"},
		{"pfc,xoff=1K", "xon (400000) is above xoff (1000)"},
		{"queue=2T", "queue: 2000000000000 is not between"},
	} {
		p, err := Parse(c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "wire: ") {
			t.Errorf("%q: %v; it lacks %q", c.text, err, c.want)
		}
		if p != (Params{}) {
			t.Errorf("%q: %+v beside the error", c.text, p)
		}
	}
}

func TestValidateWhatTextCannotSay(t *testing.T) {
	for _, p := range []Params{{Delay: -1}, {Queue: -1}, {Loss: -0.1}, {Jitter: Jitter{1, 3}}, {Burst: Burst{End: 1}}, {PFC: PFC{Headroom: -1}}} {
		if p.Validate() == nil {
			t.Errorf("%+v is valid", p)
		}
	}
	if s := Distribution(9).String(); s != "Distribution(9)" {
		t.Error(s)
	}
}

// Whatever Parse accepts, String gives back.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "rate=100G,delay=5us,loss=1%,jitter=1us,dup=0.1%,reorder=1%:10us,ecn=100K:400K:10%,pfc",
		"burst=0.1%:30%:50%,corrupt=1%,queue=1Mi,flight=1G", "pfc=0+3,xoff=1M,xon=500K,headroom=100K", "jitter=1us:exp,loss=0.123456789012345"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Parse(text)
		if err != nil {
			return
		}
		if err := p.Validate(); err != nil {
			t.Fatalf("%q: accepted and not valid: %v", text, err)
		}
		again, err := Parse(p.String())
		if err != nil || again != p {
			t.Fatalf("%q: %+v; back from %q: %+v, %v", text, p, p.String(), again, err)
		}
		b, _ := p.MarshalText()
		var q Params
		if err := q.UnmarshalText(b); err != nil || q != p {
			t.Fatalf("%q: as text %q, %v", text, b, err)
		}
	})
}
