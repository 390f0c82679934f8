// SPDX-License-Identifier: BSD-2-Clause

package devx

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"

	"devxlab.example/mlx5"
)

// PD is a protection domain.
type PD struct{ obj Object }

// PD allocates a protection domain.
func (d *Device) PD() (*PD, error) {
	p := new(PD)
	var in [mlx5.AllocPDInSize]byte
	var out [mlx5.AllocPDOutSize]byte
	mlx5.PutHeader(in[:], mlx5.OpAllocPD, 0)
	if err := d.create(&p.obj, in[:], out[:]); err != nil {
		return nil, err
	}
	return p, nil
}

// Number returns the number by which commands name it.
func (p *PD) Number() uint32 { return p.obj.id }

// Close frees the protection domain.
func (p *PD) Close() error { return p.obj.Close() }

// MKey is a memory key.
type MKey struct{ obj Object }

// MKey makes a memory key for the whole of u.
func (d *Device) MKey(p *PD, u *Umem, access mlx5.Access) (*MKey, error) {
	if p.obj.d != d || u.d != d {
		return nil, fmt.Errorf("devx: memory key: PD or user memory %w than %s", ErrForeign, d.info.Name)
	}
	m := new(MKey)
	var in [mlx5.CreateMKeyInSize]byte
	var out [mlx5.CreateMKeyOutSize]byte
	_, err := mlx5.CreateMKey{
		PD: p.Number(), Buf: mlx5.UmemRef{ID: u.ID()}, Addr: u.Addr(), Len: uint64(len(u.Bytes())),
		LogPageSize: 12, LocalWrite: true, Access: access,
	}.Encode(in[:])
	if err == nil {
		err = d.create(&m.obj, in[:], out[:])
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Key returns the lkey and rkey: index << 8 | variant 0.
func (m *MKey) Key() uint32 { return m.obj.id << 8 }

// Close destroys the key.
func (m *MKey) Close() error { return m.obj.Close() }

// CQ is a completion queue.
type CQ struct {
	obj   Object
	mem   ref
	size  int
	uar   *UAR
	verbs queueMem // in the place of mem, if verbs made it
}

const cqeSize = 64

// markCQEs gives every entry to the device, with an opcode that stands for none.
func markCQEs(buf []byte) {
	const invalid, ownedByDevice = 0xf0, 1
	for i := 0; i < len(buf); i += cqeSize {
		buf[i+cqeSize-1] = invalid | ownedByDevice
	}
}

// CQ makes a completion queue of at least n entries of 64 bytes, whose events
// go to completion vector 0. The buffer is user memory of its own, the doorbell
// record behind it.
func (d *Device) CQ(n int) (*CQ, error) {
	if n < 1 || n > 1<<22 {
		return nil, fmt.Errorf("devx: a CQ of %d entries: 1 to 4194304", n)
	}
	if !d.enter() { // Close unmaps the memory that is written below
		return nil, d.closedError()
	}
	defer d.exit()
	uar, err := d.parts.sharedUAR(d)
	if err != nil {
		return nil, err
	}
	eqn, err := d.EQN(0)
	if err != nil {
		return nil, err
	}
	log := bits.Len(uint(n - 1))
	if err := uar.use(); err != nil {
		return nil, err
	}
	c := &CQ{size: cqeSize<<log + dbrSize, uar: uar}
	if c.mem, err = d.parts.arena.carve(d, c.size); err != nil {
		uar.unuse()
		return nil, err
	}
	markCQEs(c.mem.umem.Bytes()[c.mem.at:][:cqeSize<<log])
	var in [mlx5.CreateCQInSize]byte
	var out [mlx5.CreateCQOutSize]byte
	_, err = mlx5.CreateCQ{
		Buf:            mlx5.UmemRef{ID: c.mem.umem.ID(), Offset: uint64(c.mem.at)},
		DoorbellRecord: mlx5.UmemRef{ID: c.mem.umem.ID(), Offset: uint64(c.mem.at + cqeSize<<log)},
		LogSize:        uint8(log),
		UARPage:        uar.PageID(),
		EQN:            eqn,
	}.Encode(in[:])
	if err == nil {
		err = d.create(&c.obj, in[:], out[:])
	}
	if err != nil {
		c.giveBack(d, err)
		return nil, err
	}
	return c, nil
}

// giveBack ends the queue's use of memory and page, after its destruction or a
// create that failed with err. If it is unknown whether the queue exists, both
// stay with it until the device is closed.
func (c *CQ) giveBack(d *Device, err error) {
	if Unknown(err) {
		return
	}
	if c.verbs.buf.b != nil {
		d.parts.pool.giveBack(c.verbs)
	} else {
		d.parts.arena.release(c.mem, c.size)
	}
	c.uar.unuse()
}

// Number returns the CQN.
func (c *CQ) Number() uint32 { return c.obj.id }

// Close destroys the queue.
func (c *CQ) Close() error {
	done, err := c.obj.close()
	if done {
		c.giveBack(c.obj.d, nil)
	}
	return err
}

// parts are what queue pairs share unless they are given their own: made at
// first use.
type parts struct {
	arena   arena
	pool    pool
	mu      sync.Mutex
	uar     *UAR
	pd      *PD
	cq      *CQ
	verbsPD *PD
	verbsCQ *CQ
}

// sharedCQE is the size of the shared completion queue. It is for control-path
// work: many busy queue pairs would overrun it.
const sharedCQE = 64

func shared[T any](p *parts, place **T, make func() (*T, error)) (*T, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if *place == nil {
		t, err := make()
		if err != nil {
			return nil, err
		}
		*place = t
	}
	return *place, nil
}

func (p *parts) sharedUAR(d *Device) (*UAR, error) { return shared(p, &p.uar, d.UAR) }

func (p *parts) sharedPD(d *Device) (*PD, error) { return shared(p, &p.pd, d.PD) }

func (p *parts) sharedVerbsPD(d *Device) (*PD, error) { return shared(p, &p.verbsPD, d.VerbsPD) }

func (p *parts) sharedCQ(d *Device) (*CQ, error) { return p.cqOnce(d, &p.cq, d.CQ) }

func (p *parts) sharedVerbsCQ(d *Device) (*CQ, error) { return p.cqOnce(d, &p.verbsCQ, d.VerbsCQ) }

// cqOnce is shared for a CQ, which needs the shared UAR itself: so it is made
// without the lock.
func (p *parts) cqOnce(d *Device, place **CQ, make func(n int) (*CQ, error)) (*CQ, error) {
	p.mu.Lock()
	c := *place
	p.mu.Unlock()
	if c != nil {
		return c, nil
	}
	c, err := make(sharedCQE)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	if *place == nil {
		*place, c = c, nil
	}
	kept := *place
	p.mu.Unlock()
	if c != nil { // another goroutine was first
		err = c.Close()
	}
	return kept, err
}

// free unmaps the memory. The objects went with the file.
func (p *parts) free() error {
	var errs []error
	for _, u := range append(p.arena.chunks, p.arena.single...) {
		errs = append(errs, u.mem.Free())
	}
	return errors.Join(append(errs, p.pool.release())...)
}
