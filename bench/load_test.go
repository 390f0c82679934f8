// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// putFile writes a file below dir.
func putFile(t *testing.T, dir, name, text string) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func getFile(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// What was written comes back: the same JSON, the same distributions, the same
// text.
func TestLoad(t *testing.T) {
	all := synthetic()
	all["logged"] = logged()
	for name, r := range all {
		r.Format = Format
		dir := t.TempDir()
		if err := r.WriteFiles(dir); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, r.Experiment+".json")
		back, err := Load(file)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var b bytes.Buffer
		if err := back.writeJSON(&b); err != nil || b.String() != getFile(t, file) {
			t.Errorf("%s: %v, came back as\n%s", name, err, b.String())
		}
		for i, s := range r.Series {
			if h := back.Series[i].Histogram; s.Histogram == nil != (h == nil) || h != nil && !h.Equals(s.Histogram) {
				t.Errorf("%s: the distribution %q came back as %v", name, s.Name, h)
			}
		}
		var x, y bytes.Buffer
		if err := errors.Join(r.WriteText(&x), back.WriteText(&y)); err != nil || x.String() != y.String() {
			t.Errorf("%s: %v, text is\n%s\nwant\n%s", name, err, y.String(), x.String())
		}
	}
}

// Files of earlier runs come back as they are.
func TestLoadReal(t *testing.T) {
	files, err := filepath.Glob("testdata/load/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		r, err := Load(file)
		if err != nil {
			t.Error(err)
			continue
		}
		var b bytes.Buffer
		if err := r.writeJSON(&b); err != nil || b.String() != getFile(t, file) {
			t.Errorf("%s: %v, came back as\n%s", file, err, b.String())
		}
	}
}

// A parameter has the type that it had.
func TestParams(t *testing.T) {
	r := logged()
	r.Params = Params{"n": 1_000_000, "f": 0.5, "whole": 1e21, "s": "x", "list": []int{1, 2}, "nan": nan, "deep": map[string]any{"n": 3, "bad": nil}, "b": true}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	back, err := decode(b)
	if err != nil {
		t.Fatal(err)
	}
	want := Params{"n": 1_000_000, "f": 0.5, "whole": 1e21, "s": "x", "list": []any{1, 2}, "nan": nil, "deep": map[string]any{"n": 3, "bad": nil}, "b": true}
	if !reflect.DeepEqual(back.Params, want) {
		t.Errorf("%#v", back.Params)
	}
}

// edited is a good result with one thing changed.
func edited(t *testing.T, old, changed string) string {
	t.Helper()
	b, err := json.Marshal(logged())
	if err != nil {
		t.Fatal(err)
	}
	s := strings.Replace(string(b), old, changed, 1)
	if s == string(b) {
		t.Fatalf("no %q in %s", old, b)
	}
	return s
}

// Whatever is not a whole result is refused: the error names the file, says
// what is wrong and what to do.
func TestLoadRefuses(t *testing.T) {
	good := edited(t, `"question"`, `"question"`+" ")
	if _, err := decode([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct{ text, want string }{
		"empty":          {"", "is empty: copy it again"},
		"blank":          {" \n\t", "is empty"},
		"HTML":           {"<!DOCTYPE html><html></html>", `begins with "<!DOCTYPE`},
		"binary":         {"\x7fELF\x02\x01\x01\x00\xff\xfe", `begins with "\x7fELF`},
		"list":           {"[" + good + "]", "holds a JSON list, as `devxlab bench -o json` prints it"},
		"truncated":      {good[:len(good)/2], "ends in the middle, after"},
		"nearly whole":   {good[:len(good)-1], "ends in the middle, after"},
		"zeros":          {good[:len(good)/2] + strings.Repeat("\x00", 100), "is damaged, or no JSON: invalid character '\\x00'"},
		"twice":          {good + good, "is damaged, or no JSON: invalid character '{' after top-level value"},
		"other JSON":     {`{"name": "devxlab", "version": 1}`, `is JSON, but no result of ` + "`devxlab bench`" + `: it has no "format"`},
		"profile":        {`{"format": 1, "provenance": 5}`, "is JSON, but no result"},
		"newer format":   {edited(t, "devxlab-result-1", "devxlab-result-2"), `has format "devxlab-result-2", and this devxlab reads "devxlab-result-1" only: read it with a newer one, with the devxlab that wrote it (commit "2d114f3")`},
		"number format":  {edited(t, `"devxlab-result-1"`, "7"), `has format "7"`},
		"unknown field":  {edited(t, `"question"`, `"colour": 1, "question"`), `unknown field "colour": a newer devxlab wrote it`},
		"NaN":            {edited(t, `"load":0.5`, `"load":NaN`), "is damaged, or no JSON: invalid character 'N'"},
		"NaN in quotes":  {edited(t, `"load":0.5`, `"load":"NaN"`), "cannot unmarshal string"},
		"infinity":       {edited(t, `"load":0.5`, `"load":1e999`), "cannot unmarshal number 1e999"},
		"negative ops":   {edited(t, `"ops":2000`, `"ops":-1`), "series encode: -1 is below zero"},
		"negative n":     {edited(t, `"n":50`, `"n":-50`), "-50 is below zero"},
		"fraction":       {edited(t, `"ops":2000`, `"ops":1.5`), "cannot unmarshal number 1.5"},
		"overflow":       {edited(t, `"ops":2000`, `"ops":99999999999999999999`), "cannot unmarshal number 99999999999999999999"},
		"steal":          {edited(t, `"steal":0.0123`, `"steal":1.5`), "steal 1.5"},
		"place":          {edited(t, `"place":"emu"`, `"place":"moon"`), `place "moon"`},
		"doubled series": {edited(t, `"name":"setup/warm"`, `"name":"setup/cold"`), `two series are named "setup/cold"`},
		"doubled log":    {edited(t, `"log":"setup/warm"`, `"log":"setup/cold"`), `log "setup/cold" is no tag of its own`},
		"no name":        {edited(t, `"name":"encode"`, `"name":""`), "a series without a name"},
		"path":           {edited(t, `"experiment":"micro"`, `"experiment":"../x"`), `experiment "../x" is no name`},
		"answer":         {edited(t, `"verdicts":[]`, `"verdicts":[{"claim":"C1","answer":"yes","why":""}]`), `verdict on C1: answer "yes"`},
		"claim":          {edited(t, `"verdicts":[]`, `"verdicts":[{"claim":"","answer":"refuted","why":""}]`), "a verdict on no claim"},
		"interrupted":    {edited(t, `"verdicts":[]`, `"interrupted":true,"verdicts":[{"claim":"C1","answer":"refuted","why":""}],"x":[]`), `unknown field "x"`},
		"pairs":          {edited(t, `"comparisons":[]`, `"comparisons":[{"a":"x","b":"y","ratio":{"pairs":-1,"answer":"better"}}]`), "comparison x: -1 is below zero"},
		"interval":       {edited(t, `"comparisons":[]`, `"comparisons":[{"a":"x","b":"y","ratio":{"median":1,"low":2,"high":1,"answer":"better"}}]`), "ratio 1 [2, 1]"},
		"sweep":          {edited(t, `"comparisons":[]`, `"comparisons":[],"sweeps":[{"name":"s","points":[{"x":2},{"x":1}]}]`), `sweep "s": 1 comes after 2`},
		"break-even":     {edited(t, `"comparisons":[]`, `"comparisons":[],"break_even":[{"command_ns":1,"p":-3}]`), "break-even: -3 is below zero"},
		"took":           {edited(t, `"took_ns":4321000000`, `"took_ns":-4321000000`), "took_ns: -4321000000 is below zero"},
		"time":           {edited(t, `"started":"2026-01-02T03:04:05Z"`, `"started":"yesterday"`), "yesterday"},
		"deep":           {edited(t, `"params":{}`, `"params":{"x":`+strings.Repeat("[", 20000)+strings.Repeat("]", 20000)+"}"), "exceeded max depth"},
		"many values":    {edited(t, `"findings":[]`, `"findings":["",`+strings.Repeat(`"",`, maxValues)+`""]`), "more than 8388608 values"},
		"many objects":   {edited(t, `"series":[`, `"series":[`+strings.Repeat("{},", maxNested)), "or 262144 objects and lists"},
	} {
		file := putFile(t, t.TempDir(), "micro.json", c.text)
		r, err := Load(file)
		if err == nil || r != nil {
			t.Errorf("%s: taken for a result", what)
			continue
		}
		if s := err.Error(); !strings.Contains(s, c.want) || !strings.HasPrefix(s, "bench: "+file+": ") {
			t.Errorf("%s: no %q in: %v", what, c.want, err)
		}
	}
}

// What is no file that could be one is not opened, and not read on and on.
func TestLoadNoFile(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe.json")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	huge := putFile(t, dir, "huge.json", "")
	if err := os.Truncate(huge, maxFile+1); err != nil { // a hole: it takes no room
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		dir: "is a directory: give a NAME.json", pipe: "is no regular file", "/dev/zero": "is no regular file", huge: "is longer than 256 MiB", filepath.Join(dir, "not-there"): "no such file",
	} {
		if _, err := Load(file); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v, want %q", file, err, want)
		}
	}
}

// A log that is not whole, or not this result's, takes the distributions away
// and nothing else.
func TestLoadLog(t *testing.T) {
	var b bytes.Buffer
	if err := logged().WriteLog(&b); err != nil {
		t.Fatal(err)
	}
	good := b.String()
	lines := strings.SplitAfter(strings.TrimSuffix(good, "\n"), "\n")
	last := len(lines) - 1
	for what, c := range map[string]struct{ text, want string }{
		"empty":       {"", `has no distribution "setup/cold"`},
		"cut":         {good[:len(good)-20], "is damaged or cut short"},
		"less":        {strings.Join(lines[:last], ""), `has no distribution "setup/warm": it is cut short`},
		"twice":       {good + lines[last], `has two distributions "setup/warm"`},
		"other":       {strings.Replace(good, "Tag=setup/warm", "Tag=x", 1), `has a distribution "x" that no series`},
		"swapped":     {strings.NewReplacer("Tag=setup/warm", "Tag=setup/cold", "Tag=setup/cold", "Tag=setup/warm").Replace(good), "it belongs to another result"},
		"binary":      {"\x00\x01\x02,,,,", "is damaged or cut short"},
		"not base64":  {"Tag=setup/cold,1,2,3,!!!!\n", "is damaged or cut short"},
		"huge number": {"Tag=setup/cold," + strings.Repeat("9", 1000) + ",2,3,HIST\n", "is damaged or cut short"},
	} {
		dir := t.TempDir()
		if err := logged().WriteFiles(dir); err != nil {
			t.Fatal(err)
		}
		log := putFile(t, dir, "micro.hlog", c.text)
		r, err := Load(filepath.Join(dir, "micro.json"))
		if r == nil || r.Series[1].Histogram != nil || err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), log) || !strings.Contains(err.Error(), "used without its distributions") {
			t.Errorf("%s: %v, %v", what, r != nil, err)
		}
	}
	dir := t.TempDir()
	if err := logged().WriteFiles(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "micro.hlog")); err != nil {
		t.Fatal(err)
	}
	if r, err := Load(filepath.Join(dir, "micro.json")); err != nil || r.Series[1].Histogram != nil {
		t.Error(err)
	}
}

func TestLoadDir(t *testing.T) {
	dir := t.TempDir()
	all := synthetic()
	other := *all["micro"]
	other.Experiment = "zz-new"
	for _, r := range []*Result{all["scale"], all["c6"], &other, all["micro"]} {
		r.Format = Format
		if err := r.WriteFiles(dir); err != nil {
			t.Fatal(err)
		}
	}
	putFile(t, dir, ".micro.json.0123.tmp", "{")
	putFile(t, dir, "notes.txt", "mine")
	results, broken := LoadDir(dir)
	var order []string
	for _, r := range results {
		order = append(order, r.Experiment)
	}
	if got := strings.Join(order, " "); got != "micro c6 scale zz-new" || len(broken) > 0 {
		t.Errorf("%s, %v", got, broken)
	}
	// What cannot be read keeps nothing else from being read.
	putFile(t, dir, "c6.json", "{")
	putFile(t, dir, "c6 (copy).json", getFile(t, filepath.Join(dir, "micro.json")))
	if err := os.Remove(filepath.Join(dir, "scale.json")); err != nil {
		t.Fatal(err)
	}
	results, broken = LoadDir(dir)
	text := fmt.Sprint(broken)
	if len(results) != 2 || len(broken) != 3 {
		t.Errorf("%d results, %v", len(results), broken)
	}
	for _, w := range []string{"c6.json: ends in the middle", "micro.json: is a second result of micro, beside c6 (copy).json", "scale.json: is missing, but scale.txt is there"} {
		if !strings.Contains(text, w) {
			t.Errorf("no %q in %s", w, text)
		}
	}
	// Nothing at all.
	if _, broken := LoadDir(filepath.Join(dir, "not-there")); len(broken) != 1 || !errors.Is(broken[0], fs.ErrNotExist) {
		t.Error(broken)
	}
	up := t.TempDir()
	if _, broken := LoadDir(up); len(broken) != 1 || !strings.Contains(broken[0].Error(), "holds no result: give the directory") {
		t.Error(broken)
	}
	if err := os.Mkdir(filepath.Join(up, "20260102-030405"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, broken := LoadDir(up); len(broken) != 1 || !strings.Contains(broken[0].Error(), "give a run below it, such as "+filepath.Join(up, "20260102-030405")) {
		t.Error(broken)
	}
}

// FuzzLoad: whatever stands in the two files, reading them ends, with a result
// that is written and read again as the same, or with an error.
func FuzzLoad(f *testing.F) {
	files, err := filepath.Glob("testdata/load/*.json")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		js, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		log, err := os.ReadFile(strings.TrimSuffix(file, ".json") + ".hlog")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			f.Fatal(err)
		}
		f.Add(js, log)
	}
	for name, r := range synthetic() {
		if name == "failed" || name == "scale" {
			r.Format = Format
			js, err := json.Marshal(r)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(js, []byte("Tag=x,1,2,3,HISTFAAAAA==\n"))
		}
	}
	f.Fuzz(func(t *testing.T, js, log []byte) {
		r, err := decode(js)
		if err != nil {
			return
		}
		_ = r.readLog(log)
		once, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		again, err := decode(once)
		if err != nil {
			t.Fatalf("%v in %s", err, once)
		}
		if twice, err := json.Marshal(again); err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("%v, %s came back as %s", err, once, twice)
		}
		var b bytes.Buffer
		if err := errors.Join(r.WriteText(&b), r.WriteBenchmarks(&b), WriteVerdicts(&b, []*Result{r})); err != nil {
			t.Fatal(err)
		}
	})
}
