// SPDX-License-Identifier: BSD-2-Clause

package cm_test

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"devxlab.example/cm"
	"devxlab.example/cm/abi"
	"devxlab.example/internal/leaktest"
	"devxlab.example/internal/ucmfake"
	"devxlab.example/mlx5"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var (
	serverAt = netip.MustParseAddrPort("192.0.2.2:7471")
	bg       = context.Background()
)

// lab is a kernel with a client's and a server's channel.
type lab struct {
	t              testing.TB
	k              *ucmfake.Kernel
	client, server *cm.Channel
	qps            qps
}

func newLab(t testing.TB) *lab {
	k := ucmfake.New()
	l := &lab{t: t, k: k, client: cm.NewChannel(k.Open()), server: cm.NewChannel(k.Open())}
	t.Cleanup(func() {
		if err := errors.Join(l.client.Close(), l.server.Close()); err != nil {
			t.Error(err)
		}
		l.gone()
	})
	return l
}

// gone checks that no ID and no queue pair is left.
func (l *lab) gone() {
	l.t.Helper()
	if ids := l.k.IDs(); len(ids) != 0 {
		l.t.Errorf("IDs left in the kernel: %v", ids)
	}
	if made, closed := l.qps.made.Load(), l.qps.closed.Load(); made != closed {
		l.t.Errorf("%d queue pairs made, %d closed", made, closed)
	}
}

func (l *lab) listen(backlog int) *cm.Listener {
	l.t.Helper()
	ln, err := l.server.Listen(serverAt, backlog, l.qps.make)
	if err != nil {
		l.t.Fatal(err)
	}
	return ln
}

func (l *lab) dialer() *cm.Dialer {
	return &cm.Dialer{Channel: l.client, Make: l.qps.make, Param: cm.Param{Responder: 4, Initiator: 2, Retry: 7, RNRRetry: 6}}
}

// fault lets the commands with this number fail.
func (l *lab) fault(cmd uint32, f ucmfake.Fault) {
	l.k.Fault = func(c ucmfake.Call) ucmfake.Fault {
		if c.Cmd == cmd {
			return f
		}
		return ucmfake.Fault{}
	}
}

// connected returns both ends of a connection.
func (l *lab) connected(ln *cm.Listener) (client, server *cm.Conn) {
	l.t.Helper()
	var wg sync.WaitGroup
	var serr, cerr error
	wg.Go(func() { server, serr = ln.Accept(bg) })
	client, cerr = l.dialer().Dial(bg, serverAt)
	wg.Wait()
	if err := errors.Join(serr, cerr); err != nil {
		l.t.Fatal(err)
	}
	return client, server
}

// qps makes queue pairs, and counts them.
type qps struct {
	next, made, closed atomic.Int32
	fail               error      // of make
	refuse             mlx5.State // that To fails to reach
}

type qp struct {
	all    *qps
	n      uint32
	states []mlx5.State
}

var errQP = errors.New("the queue pair is out of order")

func (a *qps) make(*cm.ID) (cm.QP, error) {
	if a.fail != nil {
		return nil, a.fail
	}
	a.made.Add(1)
	return &qp{all: a, n: 0x1000 + uint32(a.next.Add(1))}, nil
}

func (q *qp) Number() uint32 { return q.n }

func (q *qp) To(id *cm.ID, s mlx5.State) error {
	if q.all.refuse == s {
		return errQP
	}
	if id != nil {
		if _, _, err := id.QPAttr(s); err != nil {
			return err
		}
	}
	q.states = append(q.states, s)
	return nil
}

func (q *qp) Close() error {
	q.all.closed.Add(1)
	return nil
}

// commands counts those that were written.
func (l *lab) commands(cmd uint32) (n int) {
	for _, c := range l.k.Calls() {
		if c.Cmd == cmd {
			n++
		}
	}
	return n
}

// create makes a client's ID.
func (l *lab) create() *cm.ID {
	l.t.Helper()
	id, err := l.client.NewID(cm.Connected)
	if err != nil {
		l.t.Fatal(err)
	}
	return id
}

const destroyID = abi.RDMA_USER_CM_CMD_DESTROY_ID
