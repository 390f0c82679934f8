// SPDX-License-Identifier: BSD-2-Clause

package devx_test

import (
	"fmt"
	"slices"

	"devxlab.example/devx"
	_ "devxlab.example/emu/uverbs" // for names that begin with "emu:"
	"devxlab.example/mlx5"
)

// An RC queue pair, addressed to itself, from RESET to RTS.
func Example() {
	d, err := devx.Open("emu:") // or "mlx5_0"
	if err != nil {
		fmt.Println(err)
		return
	}
	defer d.Close()
	q, err := d.NewQP(devx.QPConfig{Transport: mlx5.STRC})
	if err != nil {
		fmt.Println(err)
		return
	}
	path, err := d.OwnPath(-1)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = devx.Modify(q, mlx5.RST2INIT{Port: mlx5.Set(1), PkeyIndex: mlx5.Set(0), Access: mlx5.Set(mlx5.RemoteWrite)})
	if err == nil {
		err = devx.Modify(q, mlx5.INIT2RTR{
			MTU: mlx5.Set(mlx5.MTU1024), RemoteQPN: mlx5.Set(q.Number()), NextRcvPSN: mlx5.Set(0),
			LogRRAMax: mlx5.Set(0), MinRNRNak: mlx5.Set(12), Path: path,
		})
	}
	if err == nil {
		err = devx.Modify(q, mlx5.RTR2RTS{
			AckTimeout: mlx5.Set(14), RetryCount: mlx5.Set(7), RNRRetry: mlx5.Set(mlx5.RNRRetryForever),
			NextSendPSN: mlx5.Set(0), LogSRAMax: mlx5.Set(0),
		})
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	c, err := q.Query()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%v, path MTU %d bytes, local ACK time-out %v\n",
		mlx5.State(c.State()), mlx5.MTU(c.MTU()).Bytes(), mlx5.AckTimeout(c.PrimaryAddressPath().AckTimeout()))
	// Output: RTS, path MTU 1024 bytes, local ACK time-out 67.108864ms
}

// Two RC queue pairs of one device, a SEND and an RDMA WRITE from one to the other.
// The program writes work requests into the queues, rings the doorbell and polls
// the completion queue, as on a card.
func ExampleQP_Post() {
	d, err := devx.Open("emu:") // or "mlx5_0"
	if err != nil {
		fmt.Println(err)
		return
	}
	defer d.Close()
	if err := exchange(d); err != nil {
		fmt.Println(err)
	}
	// Output:
	// completion 2 of QP 2: 5 bytes: "hello"
	// completion 0 of QP 1: request 0
	// completion 0 of QP 1: request 1
	// written: "world"
}

const everything = mlx5.RemoteWrite | mlx5.RemoteRead

func exchange(d *devx.Device) error {
	pd, err := d.PD()
	if err != nil {
		return err
	}
	mem, err := d.Umem(4096, everything)
	if err != nil {
		return err
	}
	defer mem.Close()
	key, err := d.MKey(pd, mem, everything)
	if err != nil {
		return err
	}
	defer key.Close() // first: it holds the memory
	cq, err := d.CQ(16)
	if err != nil {
		return err
	}
	var qps [2]*devx.QP
	for i := range qps {
		if qps[i], err = d.NewQP(devx.QPConfig{PD: pd, SendCQ: cq, SendWQEBBs: 16, RecvWQEs: 16}); err != nil {
			return err
		}
	}
	for i, q := range qps {
		if err := toRTS(d, q, qps[1-i]); err != nil {
			return err
		}
	}

	// A receive entry of the second, requests of the first.
	place := func(off, n int) []mlx5.SGE {
		return []mlx5.SGE{{Addr: mem.Addr() + uint64(off), Bytes: uint32(n), LKey: key.Key()}}
	}
	copy(mem.Bytes(), "helloworld")
	recv := qps[1].Queues()
	if err := mlx5.EncodeRecv(recv.Recv[:recv.RecvStride], place(64, 64)); err != nil {
		return err
	}
	if err := qps[1].PostRecv(1); err != nil {
		return err
	}
	var pi uint16
	var doorbell uint64
	for _, w := range []mlx5.SendWQE{
		{Op: mlx5.WQESend, Signaled: true, Data: place(0, 5)},
		{Op: mlx5.WQEWrite, Signaled: true, RemoteAddr: mem.Addr() + 128, RKey: key.Key(), Data: place(5, 5)},
	} {
		units, bell, err := w.Encode(qps[0].Queues().Send, pi, qps[0].Number())
		if err != nil {
			return err
		}
		pi, doorbell = pi+uint16(units), bell
	}
	if err := qps[0].Post(pi, doorbell); err != nil {
		return err
	}

	for ci := uint32(0); ci < 3; {
		c, ok := cq.Entry(ci)
		if !ok {
			continue
		}
		which := 1 + slices.IndexFunc(qps[:], func(q *devx.QP) bool { return q.Number() == c.QPN() })
		switch {
		case c.Failed():
			return fmt.Errorf("QP %d: syndrome %#x, vendor %#x", which, c.Syndrome(), c.VendorSyndrome())
		case c.Opcode() == mlx5.CQERecvSend:
			fmt.Printf("completion %d of QP %d: %d bytes: %q\n", c.Opcode(), which, c.Bytes(), mem.Bytes()[64:][:c.Bytes()])
		default:
			fmt.Printf("completion %d of QP %d: request %d\n", c.Opcode(), which, c.WQECounter())
		}
		ci++
		if err := cq.Consume(ci); err != nil {
			return err
		}
	}
	fmt.Printf("written: %q\n", mem.Bytes()[128:][:5])
	return nil
}

// toRTS connects q to a queue pair of the same device.
func toRTS(d *devx.Device, q, to *devx.QP) error {
	path, err := d.OwnPath(-1)
	if err == nil {
		err = devx.Modify(q, mlx5.RST2INIT{Port: mlx5.Set(1), PkeyIndex: mlx5.Set(0), Access: mlx5.Set(everything)})
	}
	if err == nil {
		err = devx.Modify(q, mlx5.INIT2RTR{
			MTU: mlx5.Set(mlx5.MTU1024), RemoteQPN: mlx5.Set(to.Number()), NextRcvPSN: mlx5.Set(0),
			LogRRAMax: mlx5.Set(0), MinRNRNak: mlx5.Set(12), Path: path,
		})
	}
	if err == nil {
		err = devx.Modify(q, mlx5.RTR2RTS{
			AckTimeout: mlx5.Set(14), RetryCount: mlx5.Set(7), RNRRetry: mlx5.Set(mlx5.RNRRetryForever),
			NextSendPSN: mlx5.Set(0), LogSRAMax: mlx5.Set(0),
		})
	}
	return err
}
