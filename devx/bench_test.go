// SPDX-License-Identifier: BSD-2-Clause

package devx_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

// BenchmarkGetpid is the yardstick: one system call that does nothing. unix
// does not cache it.
func BenchmarkGetpid(b *testing.B) {
	for b.Loop() {
		_, _, _ = unix.RawSyscall(unix.SYS_GETPID, 0, 0, 0)
	}
}

// BenchmarkModify is a whole transition of 272 bytes on an emulated device that
// adds no latency: encoded, sent, decoded, executed and answered.
func BenchmarkModify(b *testing.B) {
	q := rts(b, open(b, name(b)))
	t := mlx5.RTS2RTS{Access: mlx5.Set(mlx5.RemoteRead), MinRNRNak: mlx5.Set(12)}
	b.ReportAllocs()
	for b.Loop() {
		if err := devx.Modify(q, t); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSend is the same transition, encoded once.
func BenchmarkSend(b *testing.B) {
	d := open(b, name(b))
	q := rts(b, d)
	s, err := d.NewSubmitter()
	must(b, err)
	defer s.Close()
	cmd := make([]byte, mlx5.TransitionSize)
	_, err = mlx5.RTS2RTS{MinRNRNak: mlx5.Set(12)}.Encode(cmd, q.Number(), q.Transport())
	must(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Send(q, cmd); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkModifyParallel has GOMAXPROCS goroutines modify a queue pair each.
func BenchmarkModifyParallel(b *testing.B) {
	d := open(b, name(b))
	t := mlx5.RTS2RTS{MinRNRNak: mlx5.Set(12)}
	b.RunParallel(func(pb *testing.PB) {
		q := rts(b, d)
		for pb.Next() {
			if err := devx.Modify(q, t); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
