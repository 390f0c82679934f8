// SPDX-License-Identifier: BSD-2-Clause

package batch_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"devxlab.example/batch"
	"devxlab.example/devx"
	"devxlab.example/mlx5"
)

func TestOptions(t *testing.T) {
	d := open(t)
	for want, o := range map[string]batch.Options{
		"batch: Options.Group 65 is out of range: 1 to 64, or 0 for 32":                        {Group: 65},
		"batch: Options.Group -1 is out of range: 1 to 64, or 0 for 32":                        {Group: -1},
		"batch: Options.Depth 65 is out of range: 1 to 64, or 0 for the device's 31 slots":     {Depth: 65},
		"batch: Options.Depth -1 is out of range: 1 to 64, or 0 for the device's 31 slots":     {Depth: -1},
		"batch: parallel-0: depth 0 is out of range: 1 to 64":                                  {Strategy: batch.Parallel(0)},
		"batch: parallel-65: depth 65 is out of range: 1 to 64":                                {Strategy: batch.Parallel(65)},
		"batch: Options.Depth and Options.Strategy are both set: a strategy has its own depth": {Depth: 1, Strategy: batch.Serial()},
		"batch: broken: the test wants it":                                                     {Strategy: brokenStrategy{}},
	} {
		b, err := batch.New(d, o)
		if b != nil {
			t.Errorf("%+v makes a batch", o)
		}
		text(t, err, want)
		if mistake := o.Strategy == nil || o.Depth != 0; errors.Is(err, batch.ErrOptions) != mistake {
			t.Errorf("%v is a mistake in the options: %v", err, !mistake)
		}
	}
	for _, o := range []batch.Options{{}, {Group: 1}, {Group: 64, Depth: 64}, {Depth: 1}} {
		newBatch(t, d, o)
	}
}

type brokenStrategy struct{}

func (brokenStrategy) Name() string                              { return "broken" }
func (brokenStrategy) Start(*devx.Device) (batch.Carrier, error) { return nil, errTest }

func TestWrongOrderOfCalls(t *testing.T) {
	d, e := emulate(t, virtual)
	b := newBatch(t, d, batch.Options{})
	q := newQP(t, d, mlx5.STUD)
	ctx := context.Background()
	addToERR(t, b, []*devx.QP{q})

	h := hold(ctx, t, b, e, 1)
	text(t, b.Run(ctx), "batch: it is running: wait for Run to return, or make another one with New")
	if n, err := h.end(); err != nil || n != 1 {
		t.Error(err, n)
	}
	text(t, b.Run(ctx), "batch: it has run: Reset it first")
	text(t, batch.Add(b, q, mlx5.ToERR{}, 1), "batch: it has run: Reset it before adding")
	if b.Len() != 1 || outcomes(b) != "D" {
		t.Errorf("%d entries, %s", b.Len(), outcomes(b))
	}
	_, err := b.ToRTS(ctx, nil)
	text(t, err, "batch: ToRTS needs an empty batch: Reset it first")

	b.Reset()
	if b.Len() != 0 || outcomes(b) != "" {
		t.Errorf("after Reset: %d entries, %s", b.Len(), outcomes(b))
	}
	if err := b.Run(ctx); err != nil { // of nothing
		t.Error(err)
	}
	b.Reset()
	addToERR(t, b, []*devx.QP{q, q})
	if err := b.Run(ctx); err != nil || outcomes(b) != "DD" {
		t.Error(err, outcomes(b))
	}

	for range 2 {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	b.Reset()
	const closed = "batch: closed: make another one with New"
	text(t, batch.Add(b, q, mlx5.ToERR{}, 0), closed)
	text(t, b.Run(ctx), closed)
	if err := b.Run(ctx); !errors.Is(err, devx.ErrClosed) {
		t.Error(err)
	}
	reached, err := b.ToRTS(ctx, []batch.Endpoint{{QP: q}})
	text(t, err, closed)
	text(t, reached[0].Err, closed)
}

func TestAddRefuses(t *testing.T) {
	d, e := emulate(t, "")
	other := open(t)
	b := newBatch(t, d, batch.Options{})
	q, foreign := newQP(t, d, mlx5.STRC), newQP(t, other, mlx5.STRC)

	err := batch.Add(b, foreign, mlx5.ToERR{}, 0)
	text(t, err, fmt.Sprintf("batch: QP %#x belongs to another context than %s", foreign.Number(), d.Name()))
	if !errors.Is(err, devx.ErrForeign) {
		t.Error(err)
	}
	text(t, batch.Add(b, nil, mlx5.ToERR{}, 0), "batch: no queue pair given: it is nil")
	text(t, batch.Add(b, q, oddSize(15), 0), "batch: batch_test.oddSize encoded 15 bytes: a transition has 16 to 272")
	text(t, batch.Add(b, q, oddSize(273), 0), "batch: batch_test.oddSize encoded 273 bytes: a transition has 16 to 272")

	var attr *mlx5.AttrError
	err = batch.Add(b, q, mlx5.RST2INIT{Port: mlx5.Set(1), PkeyIndex: mlx5.Set(0)}, 0)
	text(t, err, "mlx5: RST2INIT_QP (RC): rre/rwe/rae is missing (ibv_modify_qp: IBV_QP_ACCESS_FLAGS); required: pkey_index vhca_port_num rre/rwe/rae")
	if !errors.As(err, &attr) || attr.Attr != mlx5.AttrAccess {
		t.Errorf("%#v", err)
	}
	text(t, batch.Add(b, q, oddSize(-1), 0), "batch: batch_test.oddSize encoded -1 bytes: a transition has 16 to 272")

	// None of them has left anything in the buffer that the next one gets.
	before := e.HCA().Stats().Commands
	if err := b.Run(context.Background()); err != nil || b.Len() != 0 || e.HCA().Stats().Commands != before {
		t.Error(err, b.Len())
	}
	b.Reset()
	add(t, b, q, mustBeClear{t}, 0)
}

// oddSize claims a length that no transition has, and leaves bytes behind.
type oddSize int

func (oddSize) Op() mlx5.Op { return mlx5.Op2ERR }
func (n oddSize) Encode(dst []byte, _ uint32, _ mlx5.ServiceType) (int, error) {
	for i := range dst {
		dst[i] = 0xff
	}
	return int(n), nil
}

// mustBeClear checks that it gets a buffer of zeros.
type mustBeClear struct{ t *testing.T }

func (mustBeClear) Op() mlx5.Op { return mlx5.Op2ERR }
func (c mustBeClear) Encode(dst []byte, qpn uint32, st mlx5.ServiceType) (int, error) {
	for i, x := range dst {
		if x != 0 {
			c.t.Fatalf("byte %d of the buffer is %#x", i, x)
		}
	}
	return mlx5.ToERR{}.Encode(dst, qpn, st)
}

// Entries are used again after Reset: a short command after a long one has
// nothing of it, and results start anew.
func TestResetClears(t *testing.T) {
	d := open(t)
	b := newBatch(t, d, batch.Options{})
	q := newQP(t, d, mlx5.STUD)
	add(t, b, q, toInit(), 7)
	if err := b.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	b.Reset()
	add(t, b, q, mustBeClear{t}, 0)
	if r := results(b)[0]; r != (batch.Result{QP: q, Op: mlx5.Op2ERR}) {
		t.Errorf("%+v", r)
	}
}

func toInit() mlx5.RST2INIT {
	return mlx5.RST2INIT{Port: mlx5.Set(1), PkeyIndex: mlx5.Set(0), QKey: mlx5.Set(0x1234)}
}

// A queue pair that its owner has closed is not sent to; the others are.
func TestClosedQP(t *testing.T) {
	for _, s := range strategies {
		d, e := emulate(t, "")
		qps := newQPs(t, d, 3)
		b := newBatch(t, d, batch.Options{Strategy: s})
		addToERR(t, b, append(qps, qps...))
		if err := qps[1].Close(); err != nil {
			t.Fatal(err)
		}
		before := e.HCA().Stats().Commands
		err := b.Run(context.Background())
		if got := outcomes(b); got != "DNDDND" || e.HCA().Stats().Commands-before != 4 {
			t.Errorf("%s: %s", s.Name(), got)
		}
		text(t, err, fmt.Sprintf("batch: 0 failed, 2 not sent (devx: QP %#x: closed), 0 unknown", qps[1].Number()))
		text(t, results(b)[1].Err, fmt.Sprintf("batch: not sent: devx: QP %#x: closed", qps[1].Number()))
		if !errors.Is(err, devx.ErrClosed) || !errors.Is(results(b)[1].Err, devx.ErrClosed) {
			t.Error(err)
		}
	}
	// It counts as a failure for StopOnError.
	d := open(t)
	qps := newQPs(t, d, 3)
	b := newBatch(t, d, batch.Options{StopOnError: true, Strategy: batch.Serial()})
	addToERR(t, b, qps)
	if err := qps[1].Close(); err != nil {
		t.Fatal(err)
	}
	err := b.Run(context.Background())
	text(t, err, fmt.Sprintf("batch: 0 failed, 2 not sent (devx: QP %#x: closed), 0 unknown", qps[1].Number()))
	if got := outcomes(b); got != "DNN" {
		t.Error(got)
	}
}

func TestNewOnAClosedDevice(t *testing.T) {
	d := open(t)
	q := newQP(t, d, mlx5.STUD)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	b := newBatch(t, d, batch.Options{})
	addToERR(t, b, []*devx.QP{q, q})
	text(t, b.Run(context.Background()), "batch: 0 failed, 2 not sent (devx: "+d.Name()+": closed), 0 unknown")
}

func TestOutcomeNames(t *testing.T) {
	for o, want := range []string{"pending", "done", "failed", "not sent", "unknown", "Outcome(5)"} {
		if got := batch.Outcome(o).String(); got != want {
			t.Errorf("%d: %s", o, got)
		}
	}
}

func TestStrategyNames(t *testing.T) {
	if s, p := batch.Serial().Name(), batch.Parallel(16).Name(); s != "serial-devx" || p != "parallel-16" {
		t.Error(s, p)
	}
}

// A reader may stop at any result.
func TestResultsStop(t *testing.T) {
	d := open(t)
	b := newBatch(t, d, batch.Options{})
	addToERR(t, b, newQPs(t, d, 3))
	var got []uint64
	for r := range b.Results() {
		if r.Outcome != batch.Pending {
			t.Errorf("%v before Run", r.Outcome)
		}
		if got = append(got, r.Tag); r.Tag == 1 {
			break
		}
	}
	if len(got) != 2 {
		t.Error(got)
	}
}
