// SPDX-License-Identifier: BSD-2-Clause

package qpparams

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"gopkg.in/ini.v1"

	"devxlab.example/mlx5"
)

const (
	maxSize   = 64 << 10 // bytes; the file that Write makes has less than one KiB
	maxErrors = 20       // of one file
)

// Load reads a file of at most 64 KiB. See Parse.
func Load(path string) (Params, error) {
	p, _, err := load(path)
	return p, err
}

func load(path string) (Params, map[string]int, error) {
	data, err := read(path)
	if err != nil {
		return Params{}, nil, err
	}
	return parse(path, data)
}

func read(path string) ([]byte, error) {
	fail := func(reason string, err error) ([]byte, error) {
		return nil, &Error{File: path, Reason: reason, Err: err}
	}
	// O_NONBLOCK: opening a FIFO that nobody writes to would hang.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fail(fmt.Sprintf("cannot be opened; `devxlab qp params --write %s` makes it", path), pathError(err))
	case err != nil:
		return fail("cannot be opened", pathError(err))
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fail("cannot be read", pathError(err))
	}
	if !info.Mode().IsRegular() {
		return fail("is no regular file: name an INI file", nil)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return fail("cannot be read", pathError(err))
	}
	return data, nil
}

// pathError is err without the file's name, which stands in front already.
func pathError(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}

// Parse reads an INI file that has the section [qp_params] and no other. A key
// that is absent has its value of Default. Errors are *Error, joined, and name
// the file as name; there is one for each mistake, up to the first 20.
//
// Numbers are decimal, without sign, leading 0 or quotes. A comment begins with
// # or ; and, behind a value, with a space in front. What is allowed but seldom
// meant is told by Params.Warnings.
func Parse(name string, data []byte) (Params, error) {
	p, _, err := parse(name, data)
	return p, err
}

// parser reads a file line by line, each with the INI library of its own:
// without continuation lines and quotes no value needs a second line, and the
// library tells no line numbers.
type parser struct {
	file    string
	line    int
	section string // where the line is; "": before the first
	began   int    // the line of [qp_params], 0: there is none
	p       Params
	lines   map[string]int // of each key
	errs    []error
}

// options leave nothing of a line to the next one, and 65;535 is not 65.
var options = ini.LoadOptions{IgnoreContinuation: true, SpaceBeforeInlineComment: true}

func parse(name string, data []byte) (Params, map[string]int, error) {
	p := &parser{file: name, p: Default(), lines: map[string]int{}}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if len(data) > maxSize {
		p.fail("", "", "is larger than %d KiB; is it the right file?", maxSize>>10)
		return Params{}, nil, p.errs[0]
	}
	for line := range strings.Lines(string(data)) {
		p.line++
		line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
		if i := strings.IndexFunc(line, notText); i >= 0 {
			p.errs = nil // of what else was taken for text
			p.fail("", "", "is not a text in UTF-8: byte 0x%02x in column %d; is it the right file?", line[i], i+1)
			return Params{}, nil, p.errs[0]
		}
		if len(p.errs) < maxErrors {
			// The library knows no tab in front of a comment.
			p.parseLine(strings.TrimSpace(strings.ReplaceAll(line, "\t", " ")))
		}
	}
	p.line = 0
	switch {
	case len(p.errs) >= maxErrors:
		p.fail("", "", "there may be more mistakes: these are the first %d", maxErrors)
	case p.began == 0:
		p.fail("", "", "there is no section [%s]; write as much of this as is not the default, or make a file with `devxlab qp params --write FILE`:\n%s", Section, template())
	}
	if p.errs != nil {
		return Params{}, nil, errors.Join(p.errs...)
	}
	return p.p, p.lines, nil
}

// notText is true for what no INI file has, and for a byte that is no UTF-8.
// A second byte order mark would be dropped in silence by the library.
func notText(r rune) bool {
	return r == utf8.RuneError || r == '\ufeff' || unicode.IsControl(r) && r != '\t'
}

func (p *parser) fail(key, value, format string, args ...any) {
	p.errs = append(p.errs, &Error{File: p.file, Line: p.line, Key: key, Value: value, Reason: fmt.Sprintf(format, args...)})
}

func (p *parser) parseLine(line string) {
	if line == "" {
		return
	}
	// The library drops what stands behind a closing quote.
	if end := strings.IndexAny(line+"#", "#;"); strings.ContainsAny(line[:end], "\"'`") {
		p.fail("", "", "%s has quotes: write the number alone, max_qp = 65535", printable(line))
		return
	}
	f, err := ini.LoadSources(options, []byte(line))
	switch {
	case err != nil && line[0] == '[':
		p.fail("", "", "%s is no section: write [%s]", printable(line), Section)
	case err != nil:
		p.fail("", "", "%s is neither a section nor a key with a value: write max_qp = 65535", printable(line))
	case line[0] == '[':
		all := f.SectionStrings()
		p.enter(line, all[len(all)-1])
	default:
		for _, k := range f.Section("").Keys() { // none, or one
			p.value(k.Name(), k.Value())
		}
	}
}

// enter begins a section. The keys of one that is unknown are not looked at.
func (p *parser) enter(line, name string) {
	p.section = name
	// The library drops what stands behind the bracket.
	after := strings.TrimSpace(line[strings.LastIndexByte(line, ']')+1:])
	switch {
	case name != Section:
		p.fail("", "", "unknown section [%s]: the only one is [%s]", printable(name), Section)
	case after != "" && after[0] != '#' && after[0] != ';':
		p.fail("", "", "%s stands behind [%s]: write it on a line of its own", printable(after), Section)
	case p.began != 0:
		p.fail("", "", "[%s] begins again: it is in line %d already", Section, p.began)
	}
	if name == Section && p.began == 0 {
		p.began = p.line
	}
}

func (p *parser) value(name, value string) {
	k := keyOf(name)
	switch {
	case p.section != "" && p.section != Section:
	case k == nil:
		if name == "#1" { // the library counts keys that are "-"
			name = "-"
		}
		p.fail("", "", "unknown key %s: the keys are %s", printable(name), names())
	case p.section == "":
		p.fail(name, value, "stands before the section: write [%s] above it", Section)
	case p.lines[name] != 0:
		p.fail(name, value, "is given twice: line %d has it already", p.lines[name])
	default:
		p.lines[name] = p.line
		if e := k.set(&p.p, value); e != nil {
			e.File, e.Line = p.file, p.line
			p.errs = append(p.errs, e)
		}
	}
}

// set sets a value to what a user wrote.
func (k *key) set(p *Params, text string) *Error {
	v, reason := k.number(text)
	if reason != "" {
		return &Error{Key: k.name, Value: text, Reason: reason}
	}
	if e := k.check(v); e != nil {
		e.Value = text
		return e
	}
	*k.field(p) = v
	return nil
}

// number reads a decimal number, or says why it is none.
func (k *key) number(s string) (v int, reason string) {
	digits := strings.Trim(s, "0123456789") == ""
	other, err := strconv.ParseInt(s, 0, 64)
	switch {
	case s == "":
		return 0, "has no value: write a number, or remove the line for the default"
	case digits && len(s) > 1 && s[0] == '0':
		return 0, "begins with 0, which other programs read as octal: write it without"
	case digits:
		if v, err = strconv.Atoi(s); err != nil {
			return 0, "is out of range"
		}
		return v, ""
	case s[0] == '-' && strings.Trim(s[1:], "0123456789") == "" && len(s) > 1, err == nil && other < 0:
		return 0, "is negative"
	case err == nil:
		return 0, fmt.Sprintf("is not a plain decimal number: it would be %d", other)
	}
	if d, err := time.ParseDuration(strings.ReplaceAll(s, " ", "")); err == nil && d > 0 && k.name == "qp_timeout" {
		if n, err := mlx5.AckTimeoutFor(d); err == nil {
			return 0, fmt.Sprintf("is a time, and qp_timeout is an exponent: the least that reaches it is %d, %s", n, short(mlx5.AckTimeout(n)))
		}
		return 0, fmt.Sprintf("is a time, and qp_timeout is an exponent: the longest is 31, %s", short(mlx5.AckTimeout(31)))
	}
	return 0, "is not a decimal number"
}

// template is the section with the defaults, without comments.
func template() string {
	s := "[" + Section + "]"
	p := Default()
	for _, k := range keys {
		s += fmt.Sprintf("\n%s = %d", k.name, *k.field(&p))
	}
	return s
}

// Write writes a file with comments that Parse reads back as p. It refuses
// values that Parse would refuse.
func (p Params) Write(w io.Writer) error {
	if err := p.Validate(); err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString("# Queue pair parameters of devxlab. A key that is absent has its default.\n" +
		"# What the values mean: devxlab qp params --config FILE\n\n[" + Section + "]\n")
	for _, k := range keys {
		b.WriteByte('\n')
		for line := range strings.SplitSeq(k.comment, "\n") {
			b.WriteString("# " + line + "\n")
		}
		fmt.Fprintf(&b, "%s = %d\n", k.name, *k.field(&p))
	}
	_, err := io.WriteString(w, b.String())
	return err
}
