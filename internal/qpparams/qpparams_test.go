// SPDX-License-Identifier: BSD-2-Clause

package qpparams

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"devxlab.example/mlx5"
)

// all returns the mistakes that were joined.
func all(err error) (out []*Error) {
	switch e := err.(type) {
	case nil:
	case *Error:
		out = append(out, e)
	case interface{ Unwrap() []error }:
		for _, x := range e.Unwrap() {
			out = append(out, all(x)...)
		}
	default:
		panic(fmt.Sprintf("%T is no *Error: %v", err, err))
	}
	return out
}

func TestDefault(t *testing.T) {
	want := Params{65535, 14, 7, 7}
	if Default() != want {
		t.Errorf("%+v", Default())
	}
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
	if w := Default().Warnings(); w != nil {
		t.Error(w)
	}
}

func TestParse(t *testing.T) {
	d := Default()
	for text, want := range map[string]Params{
		"[qp_params]":   d,
		"[qp_params]\n": d,
		"[qp_params]\nmax_qp = 65535\nqp_timeout = 14\nretry_cnt = 7\nrnr_retry = 7\n": d,
		"[qp_params]\nmax_qp=1\nqp_timeout=0\nretry_cnt=0\nrnr_retry=0":                {1, 0, 0, 0},
		"[qp_params]\nmax_qp=16777215\nqp_timeout=31\nretry_cnt=7\nrnr_retry=7":        {1<<24 - 1, 31, 7, 7},
		"\ufeff[qp_params]\r\nretry_cnt = 3\r\n":                                       {65535, 14, 3, 7},
		"# a\n; b \"c\" `d`\n\n  [qp_params] # e\n\tretry_cnt\t=\t3\t# f \"g\"\n":      {65535, 14, 3, 7},
		"[qp_params]\nretry_cnt: 3 ; f=g\n":                                            {65535, 14, 3, 7},
		"[qp_params]\nretry_cnt = 3 \\\n":                                              {}, // no continuation
	} {
		got, err := Parse("x", []byte(text))
		if want == (Params{}) != (err != nil) || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
}

// Each mistake, with what its message must tell.
func TestMistakes(t *testing.T) {
	const s = "[qp_params]\n"
	for _, c := range []struct {
		text string
		want []string // one for each message, words separated by "…"
	}{
		{"", []string{"lab.ini: there is no section [qp_params]…--write FILE…\n[qp_params]\nmax_qp = 65535\nqp_timeout = 14\nretry_cnt = 7\nrnr_retry = 7"}},
		{"# nothing\n\n", []string{"lab.ini: there is no section"}},
		{"[qp_param]\nmax_qp = x\n", []string{"lab.ini:1: unknown section [qp_param]: the only one is [qp_params]", "lab.ini: there is no section"}},
		{"[QP_PARAMS]\n", []string{"lab.ini:1: unknown section [QP_PARAMS]", "no section"}},
		{s + "[other]\nmax_qp = 0\nwhat = ever\n", []string{"lab.ini:2: unknown section [other]"}},
		{s + "[DEFAULT]\nmax_qp = 0\n", []string{"lab.ini:2: unknown section [DEFAULT]"}},
		{s + "[qp_params.child]\n", []string{"lab.ini:2: unknown section [qp_params.child]"}},
		{s + "[]\n", []string{"lab.ini:2: [] is no section: write [qp_params]"}},
		{s + "[other\n", []string{"lab.ini:2: [other is no section"}},
		{s + s, []string{"lab.ini:2: [qp_params] begins again: it is in line 1 already"}},
		{"[qp_params] max_qp = 5\n", []string{"lab.ini:1: \"max_qp = 5\" stands behind [qp_params]: write it on a line of its own"}},
		{"max_qp = 5\n" + s, []string{"lab.ini:1: max_qp = 5 stands before the section: write [qp_params] above it"}},
		{"max_qp = 5\n", []string{"lab.ini:1: max_qp = 5 stands before", "lab.ini: there is no section"}},
		{s + "timeout = 14\n", []string{"lab.ini:2: unknown key timeout: the keys are max_qp, qp_timeout, retry_cnt, rnr_retry"}},
		{s + "MAX_QP = 14\n", []string{"lab.ini:2: unknown key MAX_QP"}},
		{s + "- = 14\n", []string{"lab.ini:2: unknown key -:"}},
		{s + "max_qp = 5\n\nmax_qp = 5\n", []string{"lab.ini:4: max_qp = 5 is given twice: line 2 has it already"}},
		{s + "max_qp = x\nmax_qp = 5\n", []string{"lab.ini:2: max_qp = x is not a decimal number", "lab.ini:3: max_qp = 5 is given twice"}},
		{s + "max_qp\n", []string{"lab.ini:2: max_qp is neither a section nor a key with a value"}},
		{s + "= 5\n", []string{"lab.ini:2: \"= 5\" is neither"}},
		{s + "max_qp = \"5\"\n", []string{"lab.ini:2: \"max_qp = \\\"5\\\"\" has quotes: write the number alone"}},
		{s + "max_qp = '5'\n", []string{"has quotes"}},
		{s + "max_qp = `5` 6\n", []string{"has quotes"}},
		{s + "max_qp = \"\"\"5\nretry_cnt = 3\"\"\"\n", []string{"lab.ini:2…has quotes", "lab.ini:3…has quotes"}},
		{s + "\"max_qp\" = 5\n", []string{"has quotes"}},

		{s + "max_qp =\n", []string{"lab.ini:2: max_qp = \"\" has no value: write a number, or remove the line for the default (1 to 16777215: queue pairs at once"}},
		{s + "max_qp = many\n", []string{"lab.ini:2: max_qp = many is not a decimal number (1 to 16777215: queue pairs at once; a queue pair number has 24 bits, Linux allows 2^18 = 262144 at most, and `devxlab info DEVICE` says"}},
		{s + "max_qp = 5.5\n", []string{"5.5 is not a decimal number"}},
		{s + "max_qp = 65,535\n", []string{"65,535 is not a decimal number"}},
		{s + "max_qp = 65;535\n", []string{"65;535 is not a decimal number"}},
		{s + "max_qp = 64 k\n", []string{"\"64 k\" is not a decimal number"}},
		{s + "max_qp = 5 6\n", []string{"\"5 6\" is not a decimal number"}},
		{s + "max_qp = ٣\n", []string{"٣ is not a decimal number"}},
		{s + "max_qp = -\n", []string{"- is not a decimal number"}},
		{s + "max_qp = %(max_qp)s\n", []string{"%(max_qp)s is not a decimal number"}},
		{s + "max_qp = 0x10\n", []string{"0x10 is not a plain decimal number: it would be 16"}},
		{s + "max_qp = 1_000\n", []string{"1_000 is not a plain decimal number: it would be 1000"}},
		{s + "max_qp = +5\n", []string{"+5 is not a plain decimal number: it would be 5"}},
		{s + "max_qp = 017\n", []string{"017 begins with 0, which other programs read as octal"}},
		{s + "max_qp = -1\n", []string{"max_qp = -1 is negative (1 to 16777215"}},
		{s + "max_qp = -0x1\n", []string{"-0x1 is negative"}},
		{s + "max_qp = -99999999999999999999\n", []string{"is negative"}},
		{s + "max_qp = 0\n", []string{"max_qp = 0 is out of range (1 to 16777215"}},
		{s + "max_qp = 16777216\n", []string{"max_qp = 16777216 is out of range (1 to 16777215…24 bits…262144…devxlab info DEVICE"}},
		{s + "max_qp = 18446744073709551617\n", []string{"max_qp = 18446744073709551617 is out of range (1 to 16777215"}},
		{s + "max_qp = 9223372036854775807\n", []string{"is out of range"}},
		{s + "max_qp = " + strings.Repeat("9", 1000) + "\n", []string{strings.Repeat("9", 40) + "… is out of range"}},

		{s + "qp_timeout = 32\n", []string{"lab.ini:2: qp_timeout = 32 is out of range (0 to 31: the exponent n of the local ACK time-out 4.096 µs · 2^n, 5 bits; 14 is 67.1 ms, 0 is no time-out at all): mlx5: RTR2RTS_QP (RC): ack_timeout 32"}},
		{s + "qp_timeout = -1\n", []string{"qp_timeout = -1 is negative"}},
		{s + "qp_timeout = 4294967310\n", []string{"is out of range"}}, // 14 in 32 bits
		{s + "qp_timeout = 67ms\n", []string{"67ms is a time, and qp_timeout is an exponent: the least that reaches it is 14, 67.1 ms (0 to 31"}},
		{s + "qp_timeout = 67 ms\n", []string{"\"67 ms\" is a time…14, 67.1 ms"}},
		{s + "qp_timeout = 10h\n", []string{"10h is a time…the longest is 31, 2h26m36s"}},
		{s + "qp_timeout = -10h\n", []string{"-10h is not a decimal number"}},
		{s + "retry_cnt = 67ms\n", []string{"67ms is not a decimal number (0 to 7: tries after the first"}},
		{s + "retry_cnt = 8\n", []string{"retry_cnt = 8 is out of range (0 to 7: tries after the first that got no answer, 3 bits): mlx5: RTR2RTS_QP (RC): retry_count 8"}},
		{s + "rnr_retry = 8\n", []string{"rnr_retry = 8 is out of range (0 to 7: tries after a receiver that was not ready, 3 bits; 7 is for ever): mlx5: RTR2RTS_QP (RC): rnr_retry 8"}},

		// All of one file.
		{"a = 1\n[qp_params\n[qp_params]\nmax_qp = 0\nqp_timeout = 32\nretry_cnt = 8\nrnr_retry = 8\nb = 2\n", []string{
			"lab.ini:1: unknown key a", "lab.ini:2: ", "lab.ini:4: max_qp = 0", "lab.ini:5: qp_timeout = 32", "lab.ini:6: retry_cnt = 8", "lab.ini:7: rnr_retry = 8", "lab.ini:8: unknown key b"}},
		{s + strings.Repeat("x\n", 1000), append(slices.Repeat([]string{"is neither"}, maxErrors), "lab.ini: there may be more mistakes: these are the first 20")},

		// What is no text, and nothing else.
		{"max_qp = 5\n[qp_params]\nmax_qp = 0\x00\n", []string{"lab.ini:3: is not a text in UTF-8: byte 0x00 in column 11; is it the right file?"}},
		{"\x7fELF\x02\x01\x01\x00", []string{"lab.ini:1: is not a text in UTF-8: byte 0x7f in column 1"}},
		{"\xff\xfe[\x00q\x00", []string{"lab.ini:1: is not a text in UTF-8: byte 0xff in column 1"}}, // UTF-16
		{s + "# caf\xe9\n", []string{"lab.ini:2: is not a text in UTF-8: byte 0xe9 in column 6"}},    // Latin-1
		{s + "max_qp = 5\rretry_cnt = 3\n", []string{"lab.ini:2: is not a text"}},                    // line ends of old
		{s + "\ufeffmax_qp = 5\n", []string{"lab.ini:2: is not a text"}},                             // the library would drop it
		{s + strings.Repeat("#", maxSize), []string{"lab.ini: is larger than 64 KiB; is it the right file?"}},
	} {
		p, err := Parse("lab.ini", []byte(c.text))
		got := all(err)
		if len(got) != len(c.want) || p != (Params{}) {
			t.Errorf("%.80q: %d errors, want %d, and %+v: %v", c.text, len(got), len(c.want), p, err)
			continue
		}
		for i, want := range c.want {
			rest := got[i].Error()
			for w := range strings.SplitSeq(strings.ReplaceAll(want, "9… is", "9\x01 is"), "…") {
				_, after, ok := strings.Cut(rest, strings.ReplaceAll(w, "\x01", "…"))
				if !ok {
					t.Errorf("%.80q: error %d has no %q: %v", c.text, i+1, w, got[i])
				}
				rest = after
			}
		}
	}
}

// The largest file that is read, in its worst forms.
func TestLargeFile(t *testing.T) {
	head := "[qp_params]\nretry_cnt = 3\n"
	for _, c := range []string{"\n", "#\n", "[x]\n", "#", "=\n", "a=\n"} {
		text := head + strings.Repeat(c, (maxSize-len(head))/len(c))
		p, err := Parse("x", []byte(text))
		if ok := c[0] == '#' || c == "\n"; ok != (err == nil) || ok && p.RetryCnt != 3 || len(all(err)) > maxErrors+1 {
			t.Errorf("%q: %+v, %d errors", c, p, len(all(err)))
		}
	}
}

func TestErrors(t *testing.T) {
	_, err := Parse("lab.ini", []byte("[qp_params]\nretry_cnt = 15\n"))
	e, ok := errors.AsType[*Error](err)
	if !ok || e.File != "lab.ini" || e.Line != 2 || e.Key != "retry_cnt" || e.Value != "15" {
		t.Errorf("%+v", e)
	}
	if attr, ok := errors.AsType[*mlx5.AttrError](err); !ok || attr.Attr != mlx5.AttrRetryCount {
		t.Errorf("no AttrError in %v", err)
	}
	if _, err := Parse("", []byte("[qp_params]\nx\n")); err == nil || !strings.HasPrefix(err.Error(), "line 2: x is") {
		t.Error(err)
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		p    Params
		keys string
	}{
		{Params{1, 0, 0, 0}, ""},
		{Params{1<<24 - 1, 31, 7, 7}, ""},
		{Params{}, "max_qp"},
		{Params{1 << 24, 32, 8, 8}, "max_qp qp_timeout retry_cnt rnr_retry"},
		{Params{-1, -1, -1, -1}, "max_qp qp_timeout retry_cnt rnr_retry"},
		{Params{math.MinInt, math.MinInt, math.MaxInt, math.MaxInt}, "max_qp qp_timeout retry_cnt rnr_retry"},
		{Params{1 << 32, 1 << 32, 1 << 32, 1 << 32}, "max_qp qp_timeout retry_cnt rnr_retry"},
	} {
		err := c.p.Validate()
		var got []string
		for _, e := range all(err) {
			got = append(got, e.Key)
		}
		if strings.Join(got, " ") != c.keys {
			t.Errorf("%+v: %v", c.p, err)
		}
		var b bytes.Buffer
		if werr := c.p.Write(&b); fmt.Sprint(werr) != fmt.Sprint(err) || err != nil && b.Len() > 0 {
			t.Errorf("%+v: Write says %v and writes %d bytes", c.p, werr, b.Len())
		}
		if err != nil && !strings.Contains(strings.Join(c.p.Describe(), "\n"), "is out of range") {
			t.Errorf("%+v: %q", c.p, c.p.Describe())
		}
	}
}

// The ranges of a message are those of the encoder.
func TestRanges(t *testing.T) {
	for name, id := range map[string]mlx5.AttrID{"qp_timeout": mlx5.AttrAckTimeout, "retry_cnt": mlx5.AttrRetryCount, "rnr_retry": mlx5.AttrRNRRetry} {
		k := keyOf(name)
		least, most := id.Range()
		if k.min != int(least) || k.max != int(most) {
			t.Errorf("%s: %d to %d, not %d to %d", name, k.min, k.max, least, most)
		}
		for v := k.min; v <= k.max; v++ {
			if e := k.check(v); e != nil {
				t.Error(e)
			}
		}
	}
}

func TestWarnings(t *testing.T) {
	for _, c := range []struct {
		p    Params
		want []string
	}{
		{Params{KernelMaxQP, 1, 0, 0}, nil},
		{Params{KernelMaxQP + 1, 14, 7, 7}, []string{"max_qp = 262145 is more than Linux lets any device have, 2^18 = 262144"}},
		{Params{5, 0, 7, 7}, []string{"qp_timeout = 0 is no time-out at all"}},
		{Params{1 << 20, 0, 7, 7}, []string{"max_qp", "qp_timeout"}},
	} {
		got := c.p.Warnings()
		if len(got) != len(c.want) {
			t.Errorf("%+v: %q", c.p, got)
			continue
		}
		for i := range got {
			if !strings.HasPrefix(got[i], c.want[i]) {
				t.Errorf("%+v: %q", c.p, got)
			}
		}
	}
}

func TestMeaning(t *testing.T) {
	for _, c := range []struct {
		p    Params
		want string
	}{
		{Params{5, 1, 0, 7}, "at most 5 queue pairs"},
		{Params{5, 1, 0, 7}, "4.096 µs · 2^1 = 8.2 µs"},
		{Params{5, 8, 0, 7}, "4.096 µs · 2^8 = 1.0 ms"},
		{Params{5, 14, 0, 7}, "2^14 = 67.1 ms"},
		{Params{5, 18, 0, 7}, "2^18 = 1.1 s"},
		{Params{5, 31, 0, 7}, "2^31 = 2h26m36s"},
		{Params{5, 31, 7, 7}, "noticed after 19h32m49s by the formula"},
		{Params{5, 14, 7, 7}, "7 tries after the first; a dead peer is noticed after 536.9 ms by the formula, time-out × (retry_cnt + 1); cards differ: a ConnectX-6 with retry_cnt 7 was measured to need 3.5 to 3.8 s for every qp_timeout from 10 to 16"},
		{Params{5, 14, 0, 7}, "no second try: one lost packet ends the queue pair; a dead peer is noticed after 67.1 ms"},
		{Params{5, 14, 1, 7}, "1 try after the first; a dead peer is noticed after 134.2 ms"},
		{Params{5, 0, 7, 7}, "no time-out at all"},
		{Params{5, 0, 7, 7}, "7 tries after the first; without a time-out a dead peer is never noticed"},
		{Params{5, 32, 7, 7}, "without a time-out"},
		{Params{5, 14, 7, 7}, "for ever"},
		{Params{5, 14, 7, 6}, "6 more tries after a receiver that was not ready; then the work request fails with IBV_WC_RNR_RETRY_EXC_ERR (13)"},
		{Params{5, 14, 7, 1}, "1 more try after"},
		{Params{5, 14, 7, 0}, "no second try after a receiver that was not ready"},
	} {
		if got := strings.Join(c.p.Describe(), "\n"); !strings.Contains(got, c.want) {
			t.Errorf("%+v: no %q in\n%s", c.p, c.want, got)
		}
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing")
	for path, want := range map[string]string{
		file("good", "[qp_params]\nretry_cnt = 3\n"):                   "",
		file("full", "[qp_params]\n"+strings.Repeat("#", maxSize-12)):  "",
		file("large", "[qp_params]\n"+strings.Repeat("#", maxSize-11)): "large: is larger than 64 KiB",
		file("huge", strings.Repeat("#", 10*maxSize)):                  "huge: is larger than 64 KiB",
		file("empty", ""): "empty: there is no section [qp_params]",
		file("bad", "[qp_params]\nretry_cnt = 15\n"): "bad:2: retry_cnt = 15 is out of range",
		missing:                         "missing: cannot be opened; `devxlab qp params --write " + missing + "` makes it: no such file or directory",
		dir:                             "is no regular file",
		fifo:                            "fifo: is no regular file: name an INI file",
		"/dev/zero":                     "/dev/zero: is no regular file",
		filepath.Join(dir, "good", "x"): "cannot be opened: not a directory",
		"a\x00b":                        "cannot be opened: invalid argument",
		filepath.Join(dir, strings.Repeat("x", 300)): "file name too long",
	} {
		p, err := Load(path)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || p != (Params{}) || len(all(err)) != 1) {
			t.Errorf("%s: %+v, %v; want %q", path, p, err, want)
		}
	}
	if _, err := Load(missing); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is not ErrNotExist", err)
	}
}

func text(s string) *string { return &s }

func TestResolve(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lab.ini")
	if err := os.WriteFile(path, []byte("[qp_params]\nqp_timeout = 16\nretry_cnt = 3\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	def, flag := Source{Kind: FromDefault}, func(name string) Source { return Source{FromFlag, name} }
	line := func(n int) Source { return Source{FromFile, fmt.Sprintf("%s:%d", path, n)} }
	for _, c := range []struct {
		f    Flags
		want Params
		from map[string]Source
	}{
		{Flags{}, Default(), map[string]Source{"max_qp": def, "qp_timeout": def, "retry_cnt": def, "rnr_retry": def}},
		{Flags{Config: &path}, Params{65535, 16, 3, 7}, map[string]Source{"max_qp": def, "qp_timeout": line(2), "retry_cnt": line(3), "rnr_retry": def}},
		{Flags{Config: &path, MaxQP: text("5"), RetryCnt: text("0")}, Params{5, 16, 0, 7}, map[string]Source{"max_qp": flag("--max-qp"), "qp_timeout": line(2), "retry_cnt": flag("--retry-cnt"), "rnr_retry": def}},
		// A flag that says what holds anyway was given nevertheless.
		{Flags{QPTimeout: text("14"), RNRRetry: text("7")}, Default(), map[string]Source{"max_qp": def, "qp_timeout": flag("--qp-timeout"), "retry_cnt": def, "rnr_retry": flag("--rnr-retry")}},
	} {
		p, from, err := c.f.Resolve()
		if err != nil || p != c.want || !reflect.DeepEqual(from, c.from) {
			t.Errorf("%+v: %+v, %v, %v", c.f, p, from, err)
		}
	}
	if got := fmt.Sprint(def, " ", flag("--max-qp"), " ", line(2)); got != "default flag --max-qp file "+path+":2" {
		t.Error(got)
	}
}

// The variable that is looked at is the one that kong reads; if it is empty,
// there is none.
func TestEmptyVariable(t *testing.T) {
	field, _ := reflect.TypeFor[Flags]().FieldByName("Config")
	if field.Tag.Get("env") != configEnv {
		t.Errorf("%q is not %q", field.Tag.Get("env"), configEnv)
	}
	t.Setenv(configEnv, "")
	if p, _, err := (Flags{Config: text("")}).Resolve(); err != nil || p != Default() {
		t.Errorf("%+v, %v", p, err)
	}
}

// The mistakes of the file and those of all flags, at once.
func TestResolveMistakes(t *testing.T) {
	t.Setenv(configEnv, "x") // kong reads it, Resolve does not
	path := filepath.Join(t.TempDir(), "lab.ini")
	if err := os.WriteFile(path, []byte("[qp_params]\nretry_cnt = 15\nx = 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	// A mistake in the file counts also where a flag overrides it.
	p, from, err := Flags{Config: &path, MaxQP: text("16777216"), QPTimeout: text("67ms"), RetryCnt: text("3"), RNRRetry: text("")}.Resolve()
	want := []string{
		path + ":2: retry_cnt = 15 is out of range", path + ":3: unknown key x", "--max-qp 16777216 is out of range (1 to 16777215",
		"--qp-timeout 67ms is a time", "--rnr-retry \"\" has no value",
	}
	got := all(err)
	if len(got) != len(want) || p != (Params{}) || from != nil {
		t.Fatalf("%+v, %v, %v", p, from, err)
	}
	for i := range want {
		if !strings.HasPrefix(got[i].Error(), want[i]) {
			t.Errorf("%v; want %q", got[i], want[i])
		}
	}
	for _, c := range []struct {
		f    Flags
		want string
	}{
		{Flags{Config: text("")}, "--config \"\" names no file; leave it out for the defaults"},
		{Flags{Config: text("/nonexistent")}, "/nonexistent: cannot be opened"},
		{Flags{MaxQP: text("-1")}, "--max-qp -1 is negative"},
		{Flags{MaxQP: text("0x1")}, "--max-qp 0x1 is not a plain decimal number"},
		{Flags{MaxQP: text("\x1b[2J\n")}, `--max-qp "\x1b[2J\n" is not a decimal number`},
		{Flags{MaxQP: text("\xff")}, `is not a decimal number`},
		{Flags{RetryCnt: text("15")}, "--retry-cnt 15 is out of range"},
	} {
		if _, _, err := c.f.Resolve(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v; want %q", err, c.want)
		}
	}
}

// What Write writes, Parse reads, with any line end.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Params{
			rapid.IntRange(1, 1<<24-1).Draw(t, "max_qp"), rapid.IntRange(0, 31).Draw(t, "qp_timeout"),
			rapid.IntRange(0, 7).Draw(t, "retry_cnt"), rapid.IntRange(0, 7).Draw(t, "rnr_retry"),
		}
		var b bytes.Buffer
		if err := want.Write(&b); err != nil {
			t.Fatal(err)
		}
		data := b.Bytes()
		if rapid.Bool().Draw(t, "crlf") {
			data = bytes.ReplaceAll(data, []byte("\n"), []byte("\r\n"))
		}
		got, err := Parse("x", data)
		if err != nil || got != want {
			t.Fatalf("%+v, %v; want %+v", got, err, want)
		}
	})
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, unix.ENOSPC }

func TestWriteFails(t *testing.T) {
	if err := Default().Write(brokenWriter{}); !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
}

// The file in the document is the one that Write makes.
func TestDoc(t *testing.T) {
	doc, err := os.ReadFile("../../docs/qp_params.md")
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := Default().Write(&b); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(doc), "```ini\n"+b.String()+"```\n") {
		t.Errorf("docs/qp_params.md does not have this file in a block marked ini:\n%s", b.String())
	}
	for _, k := range keys {
		if row := fmt.Sprintf("| `%s` | `%s` | %d to %d | %d |", k.name, k.flag, k.min, k.max, *k.field(new(Default()))); !strings.Contains(string(doc), row) {
			t.Errorf("docs/qp_params.md has no row %q", row)
		}
	}
}

// Any file gives valid values or mistakes that can be printed.
func FuzzParse(f *testing.F) {
	var b bytes.Buffer
	if err := Default().Write(&b); err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{
		b.String(), "", "[qp_params]", "[qp_params]\r\nmax_qp=5\r\n", "\ufeff[qp_params]\nqp_timeout: 0 ; x\n", "[qp_params]\nmax_qp = 0x10\nretry_cnt = -1\nrnr_retry = 18446744073709551616\n",
		"[qp_params]\nqp_timeout = 67 ms\n", "max_qp = 5\n[other]\nx = \"\"\"y\nz\n`w", "[qp_params] ]\n[]\n[\n]\n=\n:\n- = 1\n- = 2\n", "[qp_params]\nmax_qp = %(max_qp)s\\\nmax_qp = 1\n",
		"\xff\xfe[\x00", "\x7fELF", "[qp_params]\nmax_qp = ٣\n", "[DEFAULT]\nmax_qp = 1\n[qp_params]\n[qp_params]\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Parse("lab.ini", data)
		if err != nil {
			n := all(err)
			if len(n) == 0 || len(n) > maxErrors+1 || p != (Params{}) {
				t.Fatalf("%d errors, %+v", len(n), p)
			}
			for _, e := range n {
				if s := e.Error(); !strings.HasPrefix(s, "lab.ini:") || e.Reason == "" || len(s) > 1000 || strings.ContainsAny(s, "\x00\x1b\r") {
					t.Fatalf("%q", s)
				}
			}
			return
		}
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := p.Write(&b); err != nil {
			t.Fatal(err)
		}
		if again, err := Parse("x", b.Bytes()); err != nil || again != p {
			t.Fatalf("%+v, %v; want %+v", again, err, p)
		}
	})
}
