// SPDX-License-Identifier: BSD-2-Clause

package ebpf

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"os"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"devxlab.example/mlx5"
)

// Record is one command that has ended.
type Record struct {
	Began    time.Duration // CLOCK_MONOTONIC
	Process  uint32
	Thread   uint32
	Name     string // of the thread
	Op       mlx5.Op
	OpMod    uint16
	UID      uint16
	QPN      uint32      // 0: the command is not about a queue pair
	Status   mlx5.Status // of the firmware
	Syndrome uint32
	Errno    unix.Errno // with which the driver gave up; then there is no status
	Parts    [partCount]time.Duration
}

// NotSeen is a part whose beginning or end was not seen.
const NotSeen time.Duration = -1

// ErrNoRecords says that Options.Records was 0.
var ErrNoRecords = errors.New("the tracer was attached without records")

// Records returns commands as they end, until ctx is done or the caller has enough.
// Records of one CPU come in order. What is not read in time is lost, and counted in
// Lost.Records. One caller at a time.
func (t *Tracer) Records(ctx context.Context) iter.Seq2[Record, error] {
	return records(ctx, t, "records", parseRecord)
}

// patience is how long records lie before they are read, unless there are many: to
// wake a reader for each costs the command that it is about.
const patience = 100 * time.Millisecond

// records returns what comes through a ring buffer.
func records[R any](ctx context.Context, t *Tracer, buffer string, parse func(b []byte) (R, error)) iter.Seq2[R, error] {
	return func(yield func(R, error) bool) {
		var none R
		if !t.records {
			yield(none, ErrNoRecords)
			return
		}
		r, err := ringbuf.NewReader(t.objects.Maps[buffer])
		if err != nil {
			yield(none, err)
			return
		}
		defer r.Close()
		defer context.AfterFunc(ctx, func() { _ = r.Flush() })() // what is there is still read
		var raw ringbuf.Record
		r.SetDeadline(time.Now().Add(patience))
		for {
			err := r.ReadInto(&raw)
			switch {
			case errors.Is(err, ringbuf.ErrFlushed):
				return
			case errors.Is(err, os.ErrDeadlineExceeded): // and what there was has been read
				r.SetDeadline(time.Now().Add(patience))
				continue
			}
			var rec R
			if err == nil {
				rec, err = parse(raw.RawSample)
			}
			if !yield(rec, err) || err != nil {
				return
			}
		}
	}
}

func parseRecord(b []byte) (Record, error) {
	var c commandRecord
	if err := binary.Read(bytes.NewReader(b), binary.NativeEndian, &c); err != nil {
		return Record{}, fmt.Errorf("record of %d bytes: %w", len(b), err)
	}
	r := Record{Began: time.Duration(c.Began), Process: c.Tgid, Thread: c.Tid, Op: mlx5.Op(c.Op), OpMod: c.OpMod, UID: c.Uid, QPN: c.Qpn,
		Status: mlx5.Status(c.Status), Syndrome: c.Syndrome}
	for i, v := range c.Parts {
		r.Parts[i] = time.Duration(v) // all bits set: NotSeen
	}
	if c.Returned < 0 {
		r.Errno = unix.Errno(-c.Returned)
	}
	r.Name = text(c.Comm[:])
	return r, nil
}

// text is what stands before the zero byte.
func text(chars []int8) string {
	b := make([]byte, 0, len(chars))
	for _, v := range chars {
		if v == 0 {
			break
		}
		b = append(b, byte(v))
	}
	return string(b)
}
