// SPDX-License-Identifier: BSD-2-Clause

package devx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"devxlab.example/devx/abi"
	"devxlab.example/mlx5"
)

// ErrNoModifyBatch: the kernel lacks the patch that modifies many queue pairs in
// one call.
var ErrNoModifyBatch = errors.New("no ioctl that modifies a batch of queue pairs")

// MaxModifyBatch is the most modifications of one SendBatch.
const MaxModifyBatch = abi.QPModifyBatchMax

// Where lengths and handles stand in the input, behind the commands.
const (
	batchLens    = MaxModifyBatch * mlx5.TransitionSize
	batchHandles = batchLens + 8*MaxModifyBatch
)

// Modification is one command of SendBatch.
type Modification struct {
	QP  *QP
	Cmd []byte // an encoded transition of QP: what Transition.Encode wrote
	Err error  // of SendBatch: nil if done, as of Send
}

// HasModifyBatch asks the kernel whether it has the patch for SendBatch
// (patches/README.md). The error is nil if it has, wraps ErrNoModifyBatch if it
// has not, and is another one if the kernel did not say.
func (d *Device) HasModifyBatch() error {
	return d.with(func(s *Submitter) error {
		// Without attributes: who knows the method, misses the mandatory ones.
		s.begin(abi.MLX5_IB_OBJECT_DEVX_OBJ, abi.MLX5_IB_METHOD_DEVX_QP_MODIFY_BATCH)
		errno, err := s.call()
		if err == nil && errno == unix.EINVAL {
			return nil
		}
		return s.batchError(errno, err)
	})
}

// SendBatch issues one to 32 encoded transitions, each of another queue pair, by
// one ioctl of a patched kernel, which holds up to half of the device's command
// slots and returns when the last answer is in. It checks all of them first: with
// an error, nothing was sent, and it wraps ErrNoModifyBatch if the kernel lacks
// the patch. Otherwise the Err of each says what became of it. It allocates
// nothing if all succeed.
func (s *Submitter) SendBatch(m []Modification) error {
	if len(m) < 1 || len(m) > MaxModifyBatch {
		return fmt.Errorf("devx: %s: a batch of %d modifications: 1 to %d", s.d.info.Name, len(m), MaxModifyBatch)
	}
	if s.in == nil {
		return fmt.Errorf("devx: submitter: %w", ErrClosed)
	}
	for i := range m {
		if err := m[i].use(s.d); err != nil {
			unuse(m[:i])
			return err
		}
	}
	defer unuse(m)
	at := 0
	for i := range m {
		at += copy(s.in[at:batchLens], m[i].Cmd)
		binary.LittleEndian.PutUint16(s.in[batchLens+2*i:], uint16(len(m[i].Cmd)))
		binary.LittleEndian.PutUint32(s.in[batchHandles+4*i:], m[i].QP.obj.handle)
	}
	s.begin(abi.MLX5_IB_OBJECT_DEVX_OBJ, abi.MLX5_IB_METHOD_DEVX_QP_MODIFY_BATCH)
	s.inputAt(abi.MLX5_IB_ATTR_DEVX_QP_MODIFY_BATCH_HANDLES, batchHandles, 4*len(m))
	s.inputAt(abi.MLX5_IB_ATTR_DEVX_QP_MODIFY_BATCH_CMD_LENS, batchLens, 2*len(m))
	s.input(abi.MLX5_IB_ATTR_DEVX_QP_MODIFY_BATCH_CMDS, at)
	s.output(abi.MLX5_IB_ATTR_DEVX_QP_MODIFY_BATCH_RESULTS, abi.QPModifyResultSize*len(m))
	start := time.Now()
	if errno, err := s.call(); errno != 0 || err != nil {
		return s.batchError(errno, err)
	}
	s.batchResults(m, time.Since(start))
	return nil
}

// use checks a modification and counts the call that uses its queue pair.
func (m *Modification) use(d *Device) error {
	switch n := len(m.Cmd); {
	case m.QP.obj.d != d:
		return fmt.Errorf("devx: QP %#x %w than %s", m.QP.qpn, ErrForeign, d.info.Name)
	case n < mlx5.CmdOutSize || n > mlx5.TransitionSize:
		return fmt.Errorf("devx: QP %#x: a transition of %d bytes: %d to %d", m.QP.qpn, n, mlx5.CmdOutSize, mlx5.TransitionSize)
	}
	if err := m.QP.obj.use(); err != nil {
		return fmt.Errorf("devx: QP %#x: %w", m.QP.qpn, ErrClosed)
	}
	return nil
}

func unuse(m []Modification) {
	for i := range m {
		m[i].QP.obj.unuse()
	}
}

// batchError says why the kernel took no batch.
func (s *Submitter) batchError(errno unix.Errno, err error) error {
	if err == nil && errno == unix.EPROTONOSUPPORT {
		return fmt.Errorf("devx: %s: %w (%w): it takes a kernel with the patches of patches/README.md", s.d.info.Name, ErrNoModifyBatch, errno)
	}
	return s.d.callError(errno, err, "modify a batch of queue pairs")
}

// batchResults reads what became of each.
func (s *Submitter) batchResults(m []Modification, took time.Duration) {
	for i := range m {
		r := abi.QPModifyResult(s.out[abi.QPModifyResultSize*i:][:abi.QPModifyResultSize])
		errno := unix.Errno(-r.Err())
		if m[i].Err = nil; errno == unix.ECANCELED {
			m[i].Err = fmt.Errorf("devx: %s: QP %#x: not sent: one before it was not answered in time, after which the device gets no batch until its driver is loaded anew, or the process is being killed (%w)", s.d.info.Name, m[i].QP.qpn, errno)
			continue
		}
		out := r.Outbox()
		if f := s.d.trace; f != nil {
			answer := out
			if errno != 0 && out[0] == 0 {
				answer = nil // there was none
			}
			f(m[i].Cmd, answer, took)
		}
		if errno != 0 || out[0] != 0 {
			m[i].Err = s.failed(m[i].Cmd, out, m[i].QP.qpn, errno)
		}
	}
}
