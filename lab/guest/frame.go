// SPDX-License-Identifier: BSD-2-Clause

package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Kinds of frames, from the guest.
const (
	Hello  = 'h' // Greeting as JSON: the guest is up and about to run its program
	Stdout = 'o'
	Stderr = 'e'
	File   = 'f' // FileHeader as JSON: what Data follows belongs to this file
	Data   = 'd' // a piece of the file
	Fault  = 'x' // text: why the program cannot be run
	Lost   = 'l' // text: a file that was asked for and cannot be sent
	Exit   = 'q' // one byte: the program's exit status; the last frame
)

// Kinds of frames, from the host.
const (
	Stdin = 'i' // empty: end of file
	Size  = 'w' // WindowSize as JSON
	Bye   = 'b' // the answer to Exit: power off
)

// MaxFrame is the longest payload.
const MaxFrame = 64 << 10

// ErrFrame is a stream that is not one of frames.
var ErrFrame = errors.New("not a frame of devxlab's guest")

// Greeting is the payload of Hello.
type Greeting struct {
	Release string  // uname -r
	Uptime  float64 // seconds since the kernel started, when Init began
	Ready   float64 // the same, when the program began
}

// FileHeader is the payload of File.
type FileHeader struct {
	Index int    // into Job.Get
	Path  string // below it, if it is a directory; empty: the file itself
	Perm  uint32
}

// WindowSize is that of the host's terminal, in characters.
type WindowSize struct{ Rows, Cols uint16 }

// Writer writes frames, each whole, from any number of goroutines.
type Writer struct {
	mu sync.Mutex
	w  io.Writer
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Frame writes a frame, or several where the payload is longer than MaxFrame.
func (w *Writer) Frame(kind byte, payload []byte) error {
	for first := true; first || len(payload) > 0; first = false {
		n := min(len(payload), MaxFrame)
		b := make([]byte, 0, 5+n)
		b = append(b, kind)
		b = binary.BigEndian.AppendUint32(b, uint32(n))
		b = append(b, payload[:n]...)
		payload = payload[n:]
		w.mu.Lock()
		_, err := w.w.Write(b)
		w.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// Stream returns a writer whose bytes become frames of one kind.
func (w *Writer) Stream(kind byte) io.Writer { return stream{w, kind} }

type stream struct {
	w    *Writer
	kind byte
}

func (s stream) Write(p []byte) (int, error) {
	if len(p) == 0 { // an empty frame means something
		return 0, nil
	}
	if err := s.w.Frame(s.kind, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// ReadFrame reads one frame. At the end of the stream the error is io.EOF, in the
// middle of a frame io.ErrUnexpectedEOF.
func ReadFrame(r io.Reader) (kind byte, payload []byte, err error) {
	var h [5]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(h[1:])
	if n > MaxFrame {
		return 0, nil, fmt.Errorf("%w: %q with %d bytes", ErrFrame, h[0], n)
	}
	payload = make([]byte, n)
	if _, err := io.ReadFull(r, payload); err != nil {
		return 0, nil, io.ErrUnexpectedEOF
	}
	return h[0], payload, nil
}
