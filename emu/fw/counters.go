// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"sync/atomic"

	"devxlab.example/mlx5"
)

// counter is one of a Q counter set.
type counter uint8

// Counters, named after their fields in query_q_counter_out.
const (
	ctrRXWrite counter = iota
	ctrRXRead
	ctrRXAtomic
	ctrOutOfBuffer
	ctrOutOfSequence
	ctrDuplicate
	ctrRNR
	ctrPacketSeq
	ctrImpliedNak
	ctrAckTimeout
	ctrRespLength
	ctrReqLength
	ctrLocalOperation
	ctrRespProtection
	ctrReqProtection
	ctrRespCQEError
	ctrReqCQEError
	ctrReqBind
	ctrReqBadResponse
	ctrReqRemoteInvalid
	ctrRespRemoteInvalid
	ctrReqRemoteAccess
	ctrRespRemoteAccess
	ctrReqRemoteOp
	ctrReqRetries
	ctrRespFlush
	ctrReqFlush

	numCounters
)

type counterValues [numCounters]atomic.Uint32

// count moves a counter of the queue pair's set.
func (e *endpoint) count(c counter) {
	if e.counters != nil {
		e.counters.values[c].Add(1)
	}
}

// read fills in the answer to QUERY_Q_COUNTER, and sets the set to zero if that
// is asked for.
func (v *counterValues) read(o mlx5.QueryQCounterOut, clear bool) {
	for c, set := range [numCounters]func(uint32){
		ctrRXWrite:           o.SetRXWriteRequests,
		ctrRXRead:            o.SetRXReadRequests,
		ctrRXAtomic:          o.SetRXAtomicRequests,
		ctrOutOfBuffer:       o.SetOutOfBuffer,
		ctrOutOfSequence:     o.SetOutOfSequence,
		ctrDuplicate:         o.SetDuplicateRequest,
		ctrRNR:               o.SetRNRNakRetryErr,
		ctrPacketSeq:         o.SetPacketSeqErr,
		ctrImpliedNak:        o.SetImpliedNakSeqErr,
		ctrAckTimeout:        o.SetLocalAckTimeoutErr,
		ctrRespLength:        o.SetRespLocalLengthError,
		ctrReqLength:         o.SetReqLocalLengthError,
		ctrLocalOperation:    o.SetLocalOperationError,
		ctrRespProtection:    o.SetRespLocalProtection,
		ctrReqProtection:     o.SetReqLocalProtection,
		ctrRespCQEError:      o.SetRespCQEError,
		ctrReqCQEError:       o.SetReqCQEError,
		ctrReqBind:           o.SetReqMwBinding,
		ctrReqBadResponse:    o.SetReqBadResponse,
		ctrReqRemoteInvalid:  o.SetReqRemoteInvalidRequest,
		ctrRespRemoteInvalid: o.SetRespRemoteInvalidRequest,
		ctrReqRemoteAccess:   o.SetReqRemoteAccessErrors,
		ctrRespRemoteAccess:  o.SetRespRemoteAccessErrors,
		ctrReqRemoteOp:       o.SetReqRemoteOperationErrors,
		ctrReqRetries:        o.SetReqTransportRetriesExceeded,
		ctrRespFlush:         o.SetRespCQEFlushError,
		ctrReqFlush:          o.SetReqCQEFlushError,
	} {
		if clear {
			set(v[c].Swap(0))
		} else {
			set(v[c].Load())
		}
	}
}
