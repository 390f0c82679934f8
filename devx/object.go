// SPDX-License-Identifier: BSD-2-Clause

package devx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"devxlab.example/devx/abi"
	"devxlab.example/mlx5"
)

// Object is a firmware object that this context owns: whatever a CREATE or
// ALLOC command makes.
type Object struct {
	d      *Device
	handle uint32
	id     uint32
	op     mlx5.Op
	drop   abi.WriteCmd // the verbs command that destroys it, if verbs made it
	state  atomic.Int32 // closedObject, or the calls that use it
}

// ID returns the object's number: bits 0x48 to 0x5f of the answer that made it
// (QPN, CQN, PD number, mkey index, …).
func (o *Object) ID() uint32 { return o.id }

// Create issues a command that makes an object (devx_is_obj_create_cmd in the
// driver). out gets the answer. The kernel sets the uid and, for queues, the
// umem valid bits.
func (d *Device) Create(in, out []byte) (*Object, error) {
	o := new(Object)
	if err := d.create(o, in, out); err != nil {
		return nil, err
	}
	return o, nil
}

func (d *Device) create(o *Object, in, out []byte) error {
	return d.with(func(s *Submitter) error {
		if err := s.load(in, len(out)); err != nil {
			return err
		}
		s.begin(abi.MLX5_IB_OBJECT_DEVX_OBJ, abi.MLX5_IB_METHOD_DEVX_OBJ_CREATE)
		h := s.handle(abi.MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE, 0)
		s.input(abi.MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN, len(in))
		s.output(abi.MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT, len(out))
		err := s.command(0, len(in), len(out))
		copy(out, s.out)
		if err != nil {
			return err
		}
		o.d, o.handle, o.op = d, uint32(h.Data()), mlx5.OpOf(in)
		o.id = binary.BigEndian.Uint32(s.out[8:]) & 0xffffff
		return nil
	})
}

// closedObject is the state of an object that is destroyed, or being destroyed;
// otherwise the state counts the calls that use it. The kernel gives handles to
// new objects again, so no call may go out with the handle of a closed one.
const closedObject = -1

// use counts a call that uses the object; unuse ends it.
func (o *Object) use() error {
	for {
		n := o.state.Load()
		if n == closedObject {
			return fmt.Errorf("devx: object of %s: %w", o.op, ErrClosed)
		}
		if o.state.CompareAndSwap(n, n+1) {
			return nil
		}
	}
}

func (o *Object) unuse() { o.state.Add(-1) }

// useWith is use, by a call of d.
func (o *Object) useWith(d *Device) error {
	if o.d != d {
		return fmt.Errorf("the object %w than %s", ErrForeign, d.info.Name)
	}
	return o.use()
}

// Modify issues a command that changes the object (devx_is_obj_modify_cmd in
// the driver). The object's number in the command must be this object's: the
// kernel answers EINVAL otherwise.
func (o *Object) Modify(in, out []byte) error {
	if err := o.use(); err != nil {
		return err
	}
	defer o.unuse()
	return o.d.with(func(s *Submitter) error {
		if err := s.load(in, len(out)); err != nil {
			return err
		}
		err := s.modify(o, 0, len(in), len(out))
		copy(out, s.out)
		return err
	})
}

// Query issues a command that reads the object (devx_is_obj_query_cmd in the
// driver).
func (o *Object) Query(in, out []byte) error {
	if err := o.use(); err != nil {
		return err
	}
	defer o.unuse()
	return o.d.with(func(s *Submitter) error {
		if err := s.load(in, len(out)); err != nil {
			return err
		}
		s.begin(abi.MLX5_IB_OBJECT_DEVX_OBJ, abi.MLX5_IB_METHOD_DEVX_OBJ_QUERY)
		s.handle(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_HANDLE, o.handle)
		s.input(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN, len(in))
		s.output(abi.MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT, len(out))
		err := s.command(0, len(in), len(out))
		copy(out, s.out)
		return err
	})
}

// Close destroys the object. The kernel passes no firmware answer on here, on
// any version: an object that another one uses gives EINVAL, and it stays; so
// does one that a call uses, with EBUSY. A second call does nothing, nor does one after the
// device was closed, which has destroyed it.
func (o *Object) Close() error {
	_, err := o.close()
	return err
}

// close also reports whether it was this call that destroyed the object.
func (o *Object) close() (bool, error) {
	if !o.state.CompareAndSwap(0, closedObject) {
		n := o.state.Load()
		if n == closedObject {
			return false, nil
		}
		return false, fmt.Errorf("devx: %s: the object %#x of %s is in use by %d calls: %w; close it when they have returned", o.d.info.Name, o.id, o.op, n, unix.EBUSY)
	}
	if err := o.destroy(); err != nil {
		o.state.Store(0)
		return false, err
	}
	return true, nil
}

func (o *Object) destroy() error {
	if o.drop != 0 {
		return o.d.verbsDestroy(o.drop, o.handle)
	}
	return o.d.destroy(abi.MLX5_IB_OBJECT_DEVX_OBJ, abi.MLX5_IB_METHOD_DEVX_OBJ_DESTROY, abi.MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE, o.handle,
		"destroy the object %#x of %s", o.id, o.op)
}

// destroy issues a method whose only argument is the handle that it drops. If
// the device was closed, it was dropped with it.
func (d *Device) destroy(object, method, attr uint16, handle uint32, format string, args ...any) error {
	err := d.with(func(s *Submitter) error {
		s.begin(object, method)
		s.handle(attr, handle)
		errno, err := s.call()
		return d.callError(errno, err, format, args...)
	})
	if errors.Is(err, ErrClosed) {
		return nil
	}
	return err
}
