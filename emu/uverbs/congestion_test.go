// SPDX-License-Identifier: BSD-2-Clause

package uverbs_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"testing"
	"time"

	"devxlab.example/emu/wire"
	"devxlab.example/mlx5"
)

// cong returns what the device says of congestion.
func (n *node) cong(clear bool) mlx5.QueryCongStatisticsOut {
	n.t.Helper()
	in, out := make(mlx5.QueryCongStatisticsIn, mlx5.QueryCongStatisticsInSize), make([]byte, mlx5.QueryCongStatisticsOutSize)
	mlx5.PutHeader(in, mlx5.OpQueryCongStatistics, 0)
	in.SetClear(clear)
	must(n.t, n.d.Exec(in, out))
	return out
}

// Packets that the wire marks make their receiver send CNPs, one in 50 µs at
// most for each queue pair, which the sender counts.
func TestCongestion(t *testing.T) {
	const size, messages, interval = 64 << 10, 50, 50 * time.Microsecond
	a, b := newNode(t, size, "clock=virtual:ecn"), newNode(t, size, "clock=virtual:ecn", "addr=2")
	clock := a.hca.Clock()
	a.d.Busy(1)
	defer a.d.Busy(-1)
	p := wire.Params{Rate: 10_000_000_000, ECN: wire.ECN{Min: 30_000, Max: 60_000, P: 0.5}}
	l := wireOf(t, a, b, p, wire.Params{}, 1)
	var cnps [][]byte
	l.B.SetFilter(wire.Out, func(f wire.Frame) wire.Verdict {
		const bth = 14 + 20 + 8
		if f.Data[bth] == 0x81 {
			cnps = append(cnps, bytes.Clone(f.Data))
		}
		return wire.Verdict{}
	})
	const ect0 = 2
	a.path.TClass, b.path.TClass = mlx5.Set(ect0), mlx5.Set(ect0)
	x, y := a.end(mlx5.STRC), b.end(mlx5.STRC)
	connect(x, y, link{mlx5.MTU1024, 18, 7})
	start := clock.Now()
	for range messages {
		x.post(mlx5.SendWQE{Op: mlx5.WQEWrite, Signaled: true, RemoteAddr: b.mem.Addr(), RKey: b.key.Key(), Data: []mlx5.SGE{a.sge(0, size)}})
	}
	for range messages {
		x.completes(mlx5.CQERequest, 0)
	}
	took := clock.Now() - start

	marked := l.A.Stats(wire.Out).Marked
	if got := b.cong(false).NpECNMarkedRoCEPacketsLow(); marked == 0 || uint64(got) != marked {
		t.Errorf("%d marked packets counted, the wire marked %d", got, marked)
	}
	sent := b.cong(false).NpCNPSentLow()
	if most := uint32(took/interval) + 1; sent < most/2 || sent > most || int(sent) != len(cnps) {
		t.Errorf("%d CNPs counted, %d on the wire; one in %v of %v is %d", sent, len(cnps), interval, took, most)
	}
	if got := a.cong(true).RpCNPHandledLow(); got != sent {
		t.Errorf("%d CNPs handled of %d", got, sent)
	}
	if c := a.cong(false); c.RpCNPHandledLow() != 0 || c.RpCNPIgnoredLow() != 0 || c.NpCNPSentLow() != 0 {
		t.Errorf("after they were set to zero: %x", []byte(c))
	}

	// As the recorded one of a ConnectX-4 Lx: TOS, UDP source port, BTH, nothing behind it.
	f := cnps[0]
	want, _ := hex.DecodeString("8100ffff40" + hex.EncodeToString(binary.BigEndian.AppendUint32(nil, x.q.Number())[1:]) + "00000000" + "00000000000000000000000000000000")
	if f[15] != 0xc2 || f[34] != 0 || f[35] != 0 || !bytes.Equal(f[42:42+28], want) || binary.BigEndian.Uint16(f[16:]) != 0x3c {
		t.Errorf("CNP %x", f)
	}
	must(t, x.q.Close())
	a.hca.Receive(f)
	clock.SleepUntil(clock.Now() + time.Microsecond)
	if c := a.cong(false); c.RpCNPHandledLow() != 0 || c.RpCNPIgnoredLow() != 1 {
		t.Errorf("a CNP for a queue pair that is gone: %d handled, %d ignored", c.RpCNPHandledLow(), c.RpCNPIgnoredLow())
	}
}
