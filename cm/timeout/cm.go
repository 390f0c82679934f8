// SPDX-License-Identifier: BSD-2-Clause

package timeout

import "time"

// Settings of rdma_cm (drivers/infiniband/core/cma.c: CMA_CM_RESPONSE_TIMEOUT,
// CMA_MAX_CM_RETRIES, CMA_CM_MRA_SETTING, CMA_IBOE_PACKET_LIFETIME), of which a
// program can set none but the life time, by RDMA_OPTION_ID_ACK_TIMEOUT.
const (
	CMAResponseTimeout = 20
	CMARetries         = 15
	CMAServiceTimeout  = 24 // of MRAs
	CMALifetime        = 18 // Linux 5.15 and 6.1
	CMALifetimeNew     = 16 // 6.12; changed by a patch of November 2022
	// MLX5AckDelay is the local_ca_ack_delay that ConnectX-5 and 6 report.
	MLX5AckDelay = 16
)

// CM is what decides when a connection manager gives up.
type CM struct {
	ResponseTimeout int // of either side's CM, 0 to 31
	Retries         int // max_cm_retries, 0 to 15: a message is sent once more than that
	Lifetime        int // packet life time of the path, 0 to 31
	AckDelay        int // local_ca_ack_delay of the devices, 0 to 31
	ServiceTimeout  int // that an MRA asks for, 0 to 31
}

// CMA is what rdma_cm of Linux 5.15 takes.
var CMA = CM{CMAResponseTimeout, CMARetries, CMALifetime, MLX5AckDelay, CMAServiceTimeout}

// Check finds values that do not fit.
func (c CM) Check() error {
	const field = "the message has 5 bits for it"
	return firstOf(
		inRange("CM response time-out", c.ResponseTimeout, MaxExponent, field),
		inRange("max_cm_retries", c.Retries, MaxCMRetries, "the message has 4 bits for it"),
		inRange("packet life time", c.Lifetime, MaxExponent, field),
		inRange("local_ca_ack_delay", c.AckDelay, MaxExponent, field),
		inRange("service time-out of an MRA", c.ServiceTimeout, MaxExponent, field))
}

// KernelMS is what the kernel takes for 4.096 µs · 2^n: milliseconds that are powers
// of two, and at least one (cm.c, cm_convert_to_ms).
func KernelMS(n int) time.Duration { return time.Millisecond << max(n-8, 0) }

// ackTimeout joins a path's life time and a device's delay into an ACK time-out
// (cm.c, cm_ack_timeout): the greater of delay and twice the life time, and one
// more if the other is not far behind.
func ackTimeout(delay, lifetime int) int {
	n, other := lifetime+1, delay
	if n < other {
		n, other = other, n
	}
	if other >= n-1 {
		n++
	}
	return min(n, MaxExponent)
}

// AckTimeout is the local ACK time-out of the queue pairs that this CM connects, at
// the client; a program that has set RDMA_OPTION_ID_ACK_TIMEOUT gets that.
func (c CM) AckTimeout() int { return ackTimeout(c.AckDelay, c.Lifetime) }

// Phase is one thing that a connection manager waits for.
type Phase struct {
	Name  string        `json:"name"`
	Each  time.Duration `json:"each_ns"`  // until a message is sent again
	Tries int           `json:"tries"`    // how often it is sent in all
	Total time.Duration `json:"total_ns"` // until the end
	Event string        `json:"event"`    // that comes then
	From  string        `json:"from"`     // the kernel's formula, of 5.15
}

// Phases are those of a connection, in their order. The time of a message begins
// anew with each: a server that answers a repeated REQ with MRAs is waited for with
// the MRA's time for all repetitions that are left.
func (c CM) Phases() ([]Phase, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	request, answer := 2*KernelMS(c.Lifetime)+KernelMS(c.ResponseTimeout), KernelMS(c.ResponseTimeout)
	wait, afterMRA := KernelMS(c.AckTimeout()), KernelMS(c.ServiceTimeout)+KernelMS(c.Lifetime+1)
	tries := c.Retries + 1
	const unreachable = "UNREACHABLE, status -110 (ETIMEDOUT)"
	phases := []Phase{
		{"client: no REP to a REQ", request, tries, request * time.Duration(tries), unreachable, "cm.c ib_send_cm_req: 2 · life time + response time-out"},
		{"client: an MRA to the first repetition, no REP", afterMRA, tries, request + afterMRA*time.Duration(tries-1), unreachable,
			"cm.c cm_mra_handler: service time-out + ACK time-out of the path, for each repetition left (mad.c ib_modify_mad)"},
		{"server: no RTU to a REP", answer, tries, answer * time.Duration(tries), unreachable, "cm.c cm_req_handler: response time-out and retries of the REQ"},
		{"client: no DREP to a DREQ", request, tries, request * time.Duration(tries), "DISCONNECTED, status -110", "cm.c cm_send_dreq_locked: as the REQ"},
		{"server: no DREP to a DREQ", answer, tries, answer * time.Duration(tries), "DISCONNECTED, status -110", "cm.c cm_send_dreq_locked: as the REP"},
		{"datagrams: no SIDR_REP to a SIDR_REQ", answer, tries, answer * time.Duration(tries), unreachable, "cma.c cma_resolve_ib_udp"},
		{"either: time wait after a disconnect", wait, 1, wait, "TIMEWAIT_EXIT; until then the QP number must not be used again", "cm.c cm_enter_timewait: ACK time-out of the path"},
	}
	if c.Retries == 0 { // nothing is repeated, so that no MRA comes
		phases[1].Total, phases[1].Tries = request, 1
	}
	return phases, nil
}
