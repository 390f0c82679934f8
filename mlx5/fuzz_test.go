// SPDX-License-Identifier: BSD-2-Clause

package mlx5

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"testing"
)

// readers read the members of a transition from a command, through the views.
var readers = map[string]func(QPC) Attr{
	"Port":          func(q QPC) Attr { return Set(q.PrimaryAddressPath().VHCAPortNum()) },
	"PkeyIndex":     func(q QPC) Attr { return Set(q.PrimaryAddressPath().PkeyIndex()) },
	"QKey":          func(q QPC) Attr { return Set(q.QKey()) },
	"CounterSetID":  func(q QPC) Attr { return Set(q.CounterSetID()) },
	"LAGTXAffinity": func(q QPC) Attr { return Set(q.LAGTXPortAffinity()) },
	"PMState":       func(q QPC) Attr { return Set(q.PMState()) },
	"AtomicMode":    func(q QPC) Attr { return Set(q.AtomicMode()) },
	"MTU":           func(q QPC) Attr { return Set(q.MTU()) },
	"LogMsgMax":     func(q QPC) Attr { return Set(q.LogMsgMax()) },
	"RemoteQPN":     func(q QPC) Attr { return Set(q.RemoteQPN()) },
	"NextRcvPSN":    func(q QPC) Attr { return Set(q.NextRcvPSN()) },
	"LogRRAMax":     func(q QPC) Attr { return Set(q.LogRRAMax()) },
	"MinRNRNak":     func(q QPC) Attr { return Set(q.MinRNRNak()) },
	"AckTimeout":    func(q QPC) Attr { return Set(q.PrimaryAddressPath().AckTimeout()) },
	"RetryCount":    func(q QPC) Attr { return Set(q.RetryCount()) },
	"RNRRetry":      func(q QPC) Attr { return Set(q.RNRRetry()) },
	"NextSendPSN":   func(q QPC) Attr { return Set(q.NextSendPSN()) },
	"LogSRAMax":     func(q QPC) Attr { return Set(q.LogSRAMax()) },
	"SrcAddrIndex":  func(q QPC) Attr { return Set(q.PrimaryAddressPath().SrcAddrIndex()) },
	"HopLimit":      func(q QPC) Attr { return Set(q.PrimaryAddressPath().HopLimit()) },
	"TClass":        func(q QPC) Attr { return Set(q.PrimaryAddressPath().Tclass()) },
	"FlowLabel":     func(q QPC) Attr { return Set(q.PrimaryAddressPath().FlowLabel()) },
	"UDPSport":      func(q QPC) Attr { return Set(q.PrimaryAddressPath().UDPSport()) },
	"StatRate":      func(q QPC) Attr { return Set(q.PrimaryAddressPath().StatRate()) },
	"RLID":          func(q QPC) Attr { return Set(q.PrimaryAddressPath().RLID()) },
	"SL": func(q QPC) Attr { // in one of two fields, by the port's type
		return Set(q.PrimaryAddressPath().SL() | q.PrimaryAddressPath().EthPrio())
	},
	"Access": func(q QPC) Attr {
		var a Access
		for bit, on := range map[Access]bool{RemoteWrite: q.RWE(), RemoteRead: q.RRE(), RemoteAtomic: q.RAE()} {
			if on {
				a |= bit
			}
		}
		return Set(a)
	},
}

// fill gives the members of a struct values from a stream: for each attribute
// one byte that says how many bytes of value follow, 0xff for none.
func fill(v reflect.Value, data *[]byte) {
	take := func() byte {
		if len(*data) == 0 {
			return 0xff
		}
		b := (*data)[0]
		*data = (*data)[1:]
		return b
	}
	for i := range v.NumField() {
		switch f := v.Field(i); f.Type() {
		case reflect.TypeFor[Attr]():
			n := take()
			if n == 0xff {
				continue
			}
			var x int64
			for range n % 9 {
				x = x<<8 | int64(take())
			}
			f.Set(reflect.ValueOf(Set(x)))
		case reflect.TypeFor[Path]():
			fill(f, data)
		default: // RGID, RMAC
			if take()%2 == 0 {
				for j := range f.Len() {
					f.Index(j).SetUint(uint64(take()))
				}
			}
		}
	}
}

// record is the opposite of fill.
func record(v reflect.Value) (out []byte) {
	for i := range v.NumField() {
		switch f := v.Field(i); f.Type() {
		case reflect.TypeFor[Attr]():
			x, ok := f.Interface().(Attr).Get()
			if !ok {
				out = append(out, 0xff)
				continue
			}
			out = binary.BigEndian.AppendUint64(append(out, 8), uint64(x))
		case reflect.TypeFor[Path]():
			out = append(out, record(f)...)
		default:
			out = append(out, 0)
			for j := range f.Len() {
				out = append(out, byte(f.Index(j).Uint()))
			}
		}
	}
	return out
}

// reread replaces the values of the members that are present by what the
// command says.
func reread(v reflect.Value, q QPC) {
	for i := range v.NumField() {
		switch f, name := v.Field(i), v.Type().Field(i).Name; name {
		case "Path":
			reread(f, q)
		case "RGID":
			reflect.Copy(f, reflect.ValueOf(q.PrimaryAddressPath().RGIDRip()))
		case "RMAC":
			p := q.PrimaryAddressPath()
			mac := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(nil, p.RMAC4732()), p.RMAC310())
			reflect.Copy(f, reflect.ValueOf(mac))
		default:
			if _, ok := f.Interface().(Attr).Get(); ok {
				f.Set(reflect.ValueOf(readers[name](q)))
			}
		}
	}
}

// FuzzTransitions encodes a transition, reads it back through the views and
// encodes that again.
func FuzzTransitions(f *testing.F) {
	for _, x := range table {
		t := x.good()
		f.Add(uint16(x.op), uint8(x.st), uint32(0x123456), record(t.Elem()))
		for i := range t.Elem().NumField() {
			put(t, t.Elem().Type().Field(i).Name)
		}
		f.Add(uint16(x.op), uint8(x.st), uint32(1<<24), record(t.Elem()))
	}
	full := rocePath()
	full.SL, full.TClass, full.FlowLabel, full.HopLimit, full.UDPSport, full.StatRate = Set(7), Set(255), Set(0xfffff), Set(255), Set(0xffff), Set(15)
	for _, p := range []Path{full, {RLID: Set(0xffff), SL: Set(15)}, {RLID: Set(1), SL: Set(16)}} {
		r := INIT2RTR{MTU: Set(1), RemoteQPN: Set(1), NextRcvPSN: Set(1), LogRRAMax: Set(1), MinRNRNak: Set(1), Path: p, Access: Set(7)}
		f.Add(uint16(OpINIT2RTR), uint8(STRC), uint32(1), record(reflect.ValueOf(r)))
	}
	f.Fuzz(func(t *testing.T, op uint16, st uint8, qpn uint32, data []byte) {
		if transitionIndex(Op(op)) < 0 {
			return
		}
		v := zeroOf(Op(op))
		fill(v.Elem(), &data)
		cmd, err := encode(t, v.Elem().Interface().(Transition), qpn, ServiceType(st))
		if err != nil {
			var attr *AttrError
			if RuleOf(Op(op), ServiceType(st)) != nil && qpn < 1<<24 && !errors.As(err, &attr) {
				t.Fatalf("%#v: %v", v, err)
			}
			return
		}
		in := RST2INITQPIn(cmd)
		if in.Opcode() != op || in.QPN() != qpn {
			t.Fatalf("opcode %#x, QPN %#x in %x", in.Opcode(), in.QPN(), cmd[:16])
		}
		before := v.Elem().Interface()
		if len(cmd) == TransitionSize {
			reread(v.Elem(), in.QPC())
		}
		if after := v.Elem().Interface(); after != before {
			t.Fatalf("encoded %+v, reads %+v", before, after)
		}
		again, err := encode(t, v.Elem().Interface().(Transition), in.QPN(), ServiceType(st))
		if err != nil || !bytes.Equal(again, cmd) {
			t.Fatalf("%v\n got %x\nwant %x", err, again, cmd)
		}
	})
}

// FuzzCreate does the same for CREATE_QP, CREATE_CQ and CREATE_MKEY.
func FuzzCreate(f *testing.F) {
	f.Add(uint32(1), uint32(2), uint32(3), uint32(4), uint64(0x1000), uint64(0x2000), uint8(4), uint8(5), uint8(6), uint8(0), uint8(0))
	f.Add(uint32(0xffffff), uint32(0xffffff), uint32(0xffffff), uint32(0xffffff), uint64(math.MaxUint64), uint64(math.MaxUint64), uint8(15), uint8(11), uint8(15), uint8(31), uint8(0xff))
	f.Add(uint32(1<<24), uint32(0), uint32(0), uint32(0), uint64(1), uint64(math.MaxUint64), uint8(31), uint8(3), uint8(16), uint8(32), uint8(3))
	f.Add(uint32(7), uint32(0), uint32(0), uint32(0), uint64(0xfff), uint64(0x1002), uint8(12), uint8(0), uint8(0), uint8(12), uint8(0x23))
	f.Fuzz(func(t *testing.T, a, b, c, d uint32, x, y uint64, l1, l2, l3, page, bits uint8) {
		qp := CreateQP{
			ST: ServiceType(l3), PD: a, UARPage: b, CQNSend: c, CQNRecv: d, Buf: UmemRef{d, x}, DoorbellRecord: UmemRef{c, y},
			LogRQSize: l1, LogRQStride: l2, LogSQSize: l3, RQType: bits & 7, NoSQ: bits&8 != 0, SRQN: b, UserIndex: c, LogPageSize: page, TsFormat: bits >> 5,
		}
		if cmd := encodeCreate(t, qp.Encode); cmd != nil {
			in := CreateQPIn(cmd)
			q := in.QPC()
			got := CreateQP{
				ST: ServiceType(q.St()), PD: q.PD(), UARPage: q.UARPage(), CQNSend: q.CQNSnd(), CQNRecv: q.CQNRcv(),
				Buf: UmemRef{in.WQUmemID(), in.WQUmemOffset()}, DoorbellRecord: UmemRef{q.DBRUmemID(), q.DBRAddr()},
				LogRQSize: q.LogRQSize(), LogRQStride: q.LogRQStride() + 4, LogSQSize: q.LogSQSize(), RQType: q.RQType(), NoSQ: q.NoSQ(),
				SRQN: q.SRQNRMPNXRQN(), UserIndex: q.UserIndex(), LogPageSize: q.LogPageSize(), TsFormat: q.TsFormat(),
			}
			if qp.RQType != RQNormal {
				got.LogRQStride = l2 // means nothing there, and is left out
			}
			if got != qp || q.PMState() != 3 || in.Opcode() != uint16(OpCreateQP) || in.WQUmemValid() || q.DBRUmemValid() {
				t.Fatalf("encoded %+v, reads %+v\n%x", qp, got, cmd)
			}
			again(t, got.Encode, cmd)
		}
		cq := CreateCQ{Buf: UmemRef{a, x}, DoorbellRecord: UmemRef{b, y}, LogSize: l1, UARPage: c, EQN: d, CQE128: bits&1 != 0, LogPageSize: page}
		if cmd := encodeCreate(t, cq.Encode); cmd != nil {
			in := CreateCQIn(cmd)
			q := in.CQContext()
			got := CreateCQ{
				Buf: UmemRef{in.CQUmemID(), in.CQUmemOffset()}, DoorbellRecord: UmemRef{q.DBRUmemID(), q.DBRAddr()},
				LogSize: q.LogCQSize(), UARPage: q.UARPage(), EQN: q.CEQNOrApuElement(), CQE128: q.CQESz() == 1, LogPageSize: q.LogPageSize(),
			}
			if got != cq || q.CQESz() > 1 || in.Opcode() != uint16(OpCreateCQ) || in.CQUmemValid() {
				t.Fatalf("encoded %+v, reads %+v\n%x", cq, got, cmd)
			}
			again(t, got.Encode, cmd)
		}
		mkey := CreateMKey{PD: a, Buf: UmemRef{b, x}, Addr: x, Len: y, LogPageSize: page, LocalWrite: bits&0x80 != 0, Access: Access(bits & 7), Variant: l1}
		if cmd := encodeCreate(t, mkey.Encode); cmd != nil {
			in := CreateMKeyIn(cmd)
			m := in.MemoryKeyMKeyEntry()
			got := CreateMKey{
				PD: m.PD(), Buf: UmemRef{in.MKeyUmemID(), in.MKeyUmemOffset()}, Addr: m.StartAddr(), Len: m.Len(),
				LogPageSize: m.LogPageSize(), LocalWrite: m.Lw(), Variant: m.MKey70(),
			}
			for bit, on := range map[Access]bool{RemoteRead: m.Rr(), RemoteWrite: m.Rw(), RemoteAtomic: m.A()} {
				if on {
					got.Access |= bit
				}
			}
			first, last := x>>page, (x+y-1)>>page
			octwords := (last-first)/2 + 1
			if got != mkey || !m.Lr() || m.AccessMode10() != 1 || m.QPN() != 0xffffff || in.Opcode() != uint16(OpCreateMKey) || in.MKeyUmemValid() ||
				uint64(m.TranslationsOctwordSize()) != octwords || m.TranslationsOctwordSize() != in.TranslationsOctwordActualSize() {
				t.Fatalf("encoded %+v (%d octwords), reads %+v\n%x", mkey, octwords, got, cmd)
			}
			again(t, got.Encode, cmd)
		}
	})
}

// encodeCreate returns the command, or nil if it was refused.
func encodeCreate(t *testing.T, f func([]byte) (int, error)) []byte {
	t.Helper()
	dst := make([]byte, 272+8)
	n, err := f(dst)
	if err != nil {
		var field *FieldError
		if n != 0 || !allZero(dst) || !errors.As(err, &field) {
			t.Fatalf("%v: n = %d, dst = %x", err, n, dst)
		}
		return nil
	}
	if n != 272 || !allZero(dst[n:]) {
		t.Fatalf("%d bytes: %x", n, dst)
	}
	return dst[:n]
}

func again(t *testing.T, f func([]byte) (int, error), want []byte) {
	t.Helper()
	if got := encodeCreate(t, f); !bytes.Equal(got, want) {
		t.Fatalf("a second time\n got %x\nwant %x", got, want)
	}
}
