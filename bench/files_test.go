// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"devxlab.example/internal/require"
)

// timedSeries is a series in which every operation was timed by itself.
func timedSeries(name string, values ...int64) Series {
	h := hdrhistogram.New(1, 120e9, 3)
	for _, v := range values {
		if err := h.RecordValue(v); err != nil {
			panic(err)
		}
	}
	return Series{Name: name, What: "one operation", Ops: 1, Log: name, Histogram: h, Samples: Samples{},
		Summary: Summary{N: h.TotalCount(), Min: h.Min(), P50: h.ValueAtQuantile(50), P90: h.ValueAtQuantile(90), Max: h.Max()}}
}

// logged is a result with samples and two distributions.
func logged() *Result {
	r := build(micro, PlaceEmu)
	r.Format, r.Result.Command = Format, "devxlab bench micro --device emu:"
	r.add(Series{Name: "encode", What: "encoding", Ops: 2000, GOMAXPROCS: 2}, 59, 50)
	r.Series = append(r.Series, timedSeries("setup/cold", 5, 5, 7, 1e6), timedSeries("setup/warm", 3))
	r.Verdicts, r.Findings, r.Comparisons = []Verdict{}, []string{}, []Comparison{}
	return &r.Result
}

// filesIn returns what is in dir, temporary files too.
func filesIn(t *testing.T, dir string) string {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var s []string
	for _, e := range all {
		s = append(s, e.Name())
	}
	return strings.Join(s, " ")
}

func TestWriteFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "below", "it") // which is made
	r := logged()
	for range 2 { // the second time over the first
		if err := r.WriteFiles(dir); err != nil {
			t.Fatal(err)
		}
		if got := filesIn(t, dir); got != "micro.hlog micro.json micro.txt" {
			t.Fatalf("files: %s", got)
		}
	}
	if r.Series[1].Histogram.Tag() != "" {
		t.Error("writing changed the histogram")
	}
	// A log that is not this result's does not stay beside it.
	r.Series = r.Series[:1]
	if err := r.WriteFiles(dir); err != nil || filesIn(t, dir) != "micro.json micro.txt" {
		t.Errorf("%v, files: %s", err, filesIn(t, dir))
	}
}

// The log is one that the HdrHistogram tools read: with its own reader here,
// and as text.
func TestWriteLog(t *testing.T) {
	var b bytes.Buffer
	if err := logged().WriteLog(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, w := range []string{"#[devxlab micro, place emu, device emu: zero:", "#[Histogram log format version 1.3]\n", "#[StartTime: 1767323045 (seconds since epoch), 2026-01-02T03:04:05Z]\n",
		"\nTag=setup/cold,1767323045.000000,4.321000,1.000447,HIST", "\nTag=setup/warm,"} {
		if !strings.Contains(text, w) {
			t.Errorf("no %q in\n%s", w, text)
		}
	}
	lr := hdrhistogram.NewHistogramLogReader(&b)
	h, err := lr.NextIntervalHistogram()
	if err != nil || h.Tag() != "setup/cold" || h.TotalCount() != 4 || h.ValueAtQuantile(50) != 5 || h.StartTimeMs() != 1767323045000 || h.EndTimeMs() < 1767323049320 {
		t.Errorf("%v, %+v", err, h)
	}
	for _, tag := range []string{"", "a b", "a,b", "a\nb", "setup/warm"} {
		r := logged()
		r.Series[1].Log = tag
		if err := r.WriteLog(&b); err == nil || !strings.Contains(err.Error(), "no tag of its own") {
			t.Errorf("tag %q: %v", tag, err)
		}
	}
	old := logged()
	old.Started = old.Started.AddDate(-3000, 0, 0)
	if err := old.WriteLog(&b); err != nil {
		t.Error(err)
	}
}

// If one file cannot be written the others are, and the error says what is
// where and what to do.
func TestWriteFilesInPart(t *testing.T) {
	for _, c := range []struct {
		blocked string // files whose names directories have
		left    string
		words   []string
	}{
		{".json", "micro.hlog micro.txt", []string{"not written to", "micro.json (is a directory)", "Besides micro.txt and micro.hlog, what this run prints is all that is left", "run devxlab bench micro --device emu:"}},
		{".txt", "micro.hlog micro.json", []string{"micro.txt (", "Nothing measured is lost: it is in micro.json"}},
		{".hlog", "micro.json micro.txt", []string{"micro.hlog (", "The distributions of single operations are lost", "are in micro.json"}},
		{".json .txt .hlog", "", []string{"micro.json (", "micro.txt (", "micro.hlog (", "saved nowhere: what this run prints is all that is left"}},
	} {
		dir := t.TempDir()
		for _, ext := range strings.Fields(c.blocked) {
			if err := os.Mkdir(filepath.Join(dir, "micro"+ext), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		err := logged().WriteFiles(dir)
		var w *WriteError
		if !errors.As(err, &w) || len(w.Missing) != len(strings.Fields(c.blocked)) || !errors.Is(err, unix.EISDIR) {
			t.Fatalf("%s: %v", c.blocked, err)
		}
		for _, word := range c.words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: no %q in: %v", c.blocked, word, err)
			}
		}
		for _, ext := range strings.Fields(c.blocked) {
			if err := os.Remove(filepath.Join(dir, "micro"+ext)); err != nil {
				t.Error(err)
			}
		}
		if got := filesIn(t, dir); got != c.left {
			t.Errorf("%s: left %q, want %q", c.blocked, got, c.left)
		}
	}
	r := logged()
	r.Params["x"] = []float64{inf} // which JSON does not have
	dir := t.TempDir()
	if err := r.WriteFiles(dir); err == nil || filesIn(t, dir) != "micro.hlog micro.txt" {
		t.Errorf("%v, left %s", err, filesIn(t, dir))
	}
}

// A directory that went away while the experiment ran is made again.
func TestDirectoryGone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	gone := false
	r, err := Do(context.Background(), micro, Options{Dir: dir, Quick: true, small: true, step: func(string) {
		if !gone {
			gone = true
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		}
	}})
	if err != nil || r == nil || !gone || filesIn(t, dir) != "micro.json micro.txt" {
		t.Errorf("%v, files %s", err, filesIn(t, dir))
	}
}

// A directory that cannot be written to any more: as root it can, so the child
// gives root up first.
func TestReadOnlyDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(dir, 0o755) })
	out := child(t, "readonly", dir)
	if !strings.Contains(out, "permission denied") || !strings.Contains(out, "saved nowhere") || !strings.Contains(out, "make "+dir+" writable and run devxlab bench micro") || filesIn(t, dir) != "" {
		t.Errorf("files %s, %s", filesIn(t, dir), out)
	}
}

// A disk that is full in the middle of a file: a limit on the size of files
// needs no rights. The long file is not there, not even half, and the short
// ones are.
func TestDiskFull(t *testing.T) {
	for _, c := range []struct {
		limit int
		left  string
		words []string
	}{
		{0, "", []string{"micro.json (file too large)", "micro.txt (", "micro.hlog (", "saved nowhere", "free space there (or raise quota or ulimit -f) and run devxlab bench micro --device emu:"}},
		{1200, "micro.hlog", []string{"micro.json (file too large)", "micro.txt (", "Besides micro.hlog, what this run prints is all that is left"}},
		{1 << 20, "micro.hlog micro.json micro.txt", []string{"no error"}},
	} {
		dir := t.TempDir()
		out := child(t, "full "+strconv.Itoa(c.limit), dir)
		for _, w := range c.words {
			if !strings.Contains(out, w) {
				t.Errorf("limit %d: no %q in %s", c.limit, w, out)
			}
		}
		if got := filesIn(t, dir); got != c.left {
			t.Errorf("limit %d: left %q, want %q", c.limit, got, c.left)
		}
		for _, f := range strings.Fields(c.left) {
			if strings.HasSuffix(f, ".json") {
				if _, err := Load(filepath.Join(dir, f)); err != nil {
					t.Errorf("limit %d: %v", c.limit, err)
				}
			}
		}
	}
}

// The same on a file system that really is full, which only root can make.
func TestTmpfsFull(t *testing.T) {
	if os.Geteuid() != 0 {
		require.Have(t, "tmpfs", errors.New("a file system of its own needs root; TestDiskFull tests the same with a limit"))
	}
	dir := t.TempDir()
	// In a mount namespace of its own: nothing of it stays, whatever happens.
	out := child(t, "tmpfs", dir)
	for _, w := range []string{"micro.json (no space left on device); micro.txt (no space left on device)", "Besides micro.hlog, what this run prints is all that is left", "free space there"} {
		if !strings.Contains(out, w) && !strings.Contains(out, "no mount:") {
			t.Errorf("no %q in %s", w, out)
		}
	}
	if i := strings.Index(out, "no mount:"); i >= 0 {
		require.Have(t, "tmpfs", errors.New(out[i:]))
	}
}

const childEnv = "DEVXLAB_BENCH_TEST_CHILD"

// child runs TestChild in a process of its own.
func child(t *testing.T, what, dir string) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestChild$", "-test.v")
	cmd.Env = append(os.Environ(), childEnv+"="+what+" "+dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", what, err, out)
	}
	return string(out)
}

// TestChild is what the tests above run in a process of their own.
func TestChild(t *testing.T) {
	words := strings.Fields(os.Getenv(childEnv))
	if len(words) == 0 {
		return // nobody's child
	}
	dir := words[len(words)-1]
	switch words[0] {
	case "full":
		limit, err := strconv.ParseUint(words[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		signal.Ignore(unix.SIGXFSZ) // so that the write returns EFBIG
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			t.Fatal(err)
		}
	case "readonly":
		if os.Geteuid() == 0 {
			runtime.LockOSThread() // the file system user is the thread's, and dies with it
			if err := unix.Setfsuid(65534); err != nil {
				t.Fatal(err)
			}
		}
	case "tmpfs":
		runtime.LockOSThread() // a namespace is the thread's
		err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS)
		if err == nil {
			err = unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4k")
		}
		if err != nil {
			t.Log("no mount:", err)
			return
		}
		r := logged()
		r.Series[0].Samples = repeat(1.5, 5000)
		t.Log(r.WriteFiles(dir))
		if left := filesIn(t, dir); left != "micro.hlog" {
			t.Errorf("left %s", left)
		}
		return
	}
	if err := logged().WriteFiles(dir); err != nil {
		t.Log(err)
	} else {
		t.Log("no error")
	}
}
