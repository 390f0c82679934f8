// SPDX-License-Identifier: BSD-2-Clause

package guest

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

func TestFrames(t *testing.T) {
	long := bytes.Repeat([]byte("0123456789"), MaxFrame/4)
	var b bytes.Buffer
	w := NewWriter(&b)
	if _, err := w.Stream(Stdout).Write(nil); err != nil || b.Len() != 0 {
		t.Fatalf("an empty write is a frame: %v, %d bytes", err, b.Len())
	}
	if err := errors.Join(w.Frame(Exit, []byte{7}), w.Frame(Stdin, nil), w.Frame(Data, long)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		kind byte
		n    int
	}{{Exit, 1}, {Stdin, 0}} {
		if kind, p, err := ReadFrame(&b); err != nil || kind != want.kind || len(p) != want.n {
			t.Errorf("%q with %d bytes, %v; want %q with %d", kind, len(p), err, want.kind, want.n)
		}
	}
	var got []byte
	for {
		kind, p, err := ReadFrame(&b)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || kind != Data || len(p) > MaxFrame {
			t.Fatalf("%q with %d bytes, %v", kind, len(p), err)
		}
		got = append(got, p...)
	}
	if !bytes.Equal(got, long) {
		t.Error("a long payload does not come back whole")
	}
}

func TestBadFrames(t *testing.T) {
	for _, c := range []struct {
		in   string
		want error
	}{
		{"", io.EOF},
		{"q\x00", io.ErrUnexpectedEOF},
		{"q\x00\x00\x00\x05abc", io.ErrUnexpectedEOF},
		{"q\xff\xff\xff\xff", ErrFrame},
		{"Kernel panic - not syncing", ErrFrame},
	} {
		if _, _, err := ReadFrame(bytes.NewReader([]byte(c.in))); !errors.Is(err, c.want) {
			t.Errorf("%q: %v, want %v", c.in, err, c.want)
		}
	}
}

// Init must not power off the machine of somebody who runs it by hand.
func TestInitRefuses(t *testing.T) {
	if err := Init(); err == nil {
		t.Error("Init took a process that is not process 1 for one that is")
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add([]byte("q\x00\x00\x00\x01\x00"))
	f.Add([]byte("i\x00\x00\x00\x00h\x00\x01\x00\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		for {
			kind, p, err := ReadFrame(r)
			if err != nil {
				return
			}
			var w bytes.Buffer
			if err := NewWriter(&w).Frame(kind, p); err != nil {
				t.Fatal(err)
			}
			if k, q, err := ReadFrame(&w); err != nil || k != kind || !bytes.Equal(p, q) {
				t.Fatalf("%q %x came back as %q %x, %v", kind, p, k, q, err)
			}
		}
	})
}
