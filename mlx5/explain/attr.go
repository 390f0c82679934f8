// SPDX-License-Identifier: BSD-2-Clause

package explain

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"devxlab.example/mlx5"
)

// field is an attribute whose values deserve words. The width is that of the
// QP context.
type field struct {
	name    string
	bits    int
	spilled bool // older mlx5_ib shifted it in without a mask (params1 of its QP context)
	explain func(a *Answer, v uint8)
}

var (
	ackTimeout  = &field{"timeout", 5, false, explainTimeout}
	retryCount  = &field{"retry_cnt", 3, true, explainRetry}
	rnrRetry    = &field{"rnr_retry", 3, true, explainRNRRetry}
	minRNRTimer = &field{"min_rnr_timer", 5, false, explainMinRNR}
)

// fields by the names that verbs, rdma_cm, the QP context and NCCL use.
var fields = map[string]*field{
	"timeout": ackTimeout, "ack_timeout": ackTimeout, "alt_timeout": ackTimeout, "local_ack_timeout": ackTimeout,
	"retry_cnt": retryCount, "retry_count": retryCount,
	"rnr_retry": rnrRetry, "rnr_retry_cnt": rnrRetry, "rnr_retry_count": rnrRetry,
	"min_rnr_timer": minRNRTimer, "min_rnr_nak": minRNRTimer, "min_rnr_nak_timer": minRNRTimer,
}

// attribute explains name=value. ok is false for a name that is no attribute.
func attribute(name, value string) (a Answer, ok bool, err error) {
	n := strings.ToLower(name)
	for _, p := range []string{"attr.", "attr->", "qp_attr.", "qp_attr->", "conn_param.", "conn_param->", "param.", "ibv_qp_", "ib_qp_", "nccl_ib_"} {
		n = strings.TrimPrefix(n, p)
	}
	a = Answer{Kind: KindAttribute}
	f := fields[n]
	if f == nil && n != "path_mtu" && n != "mtu" && n != "max_rd_atomic" && n != "max_dest_rd_atomic" {
		id, known := attrID(n)
		if !known {
			return a, false, nil
		}
		return plainAttribute(id, value)
	}

	v, err := strconv.ParseInt(value, 0, 64)
	switch {
	case err == nil:
	case f == ackTimeout || f == minRNRTimer:
		if f == ackTimeout && strings.Contains(value, "random()") {
			a.Summary = "timeout = " + value
			a.mean("The range begins at 0, and timeout 0 is no time-out at all: some QPs would wait for ever for a lost packet. Begin at 1.")
			return a, true, nil
		}
		d, derr := time.ParseDuration(value)
		if derr != nil {
			return a, true, notANumber(n, value)
		}
		return durationAttribute(f, d)
	case strings.HasPrefix(strings.ToUpper(value), "IBV_MTU_"):
		bytes, _ := strconv.Atoi(value[len("IBV_MTU_"):])
		m, merr := mlx5.MTUOf(bytes)
		if merr != nil {
			return a, true, merr
		}
		v = int64(m)
	default:
		return a, true, notANumber(n, value)
	}

	switch {
	case f != nil:
		a.fieldValue(f, n, v)
	case strings.HasSuffix(n, "mtu"):
		a.pathMTU(v)
	default:
		a.rdAtomic(n, v)
	}
	return a, true, nil
}

func notANumber(name, value string) error {
	return &InputError{Recognised: []string{"attribute " + name}, Missing: []string{fmt.Sprintf("a number instead of %q", printable(clip(value, 40)))}, Example: "timeout=14"}
}

// fieldValue explains v in f, which may be too narrow for it.
func (a *Answer) fieldValue(f *field, name string, v int64) {
	most := int64(1)<<f.bits - 1
	kept := uint8(v) & uint8(most)
	if v >= 0 && v <= most {
		a.Summary = fmt.Sprintf("%s = %d", name, v)
		f.explain(a, kept)
		return
	}
	a.Summary = fmt.Sprintf("%s = %d does not fit: the field has %d bits, 0 to %d", name, v, f.bits, most)
	a.mean("ibv_modify_qp on mlx5 refuses nothing here. Linux 5.15 keeps the low %d bits: the QP gets %d.", f.bits, kept)
	if f.spilled {
		a.mean("Older drivers shifted the value in without a mask, so that it reached the neighbouring field. A public report of retry_cnt 20 then is RTR2RTS_QP(0x504), bad parameter(0x3), syndrome 0x4bb88f (charmplusplus/charm #2532, #2712).")
		a.mean("rdma_connect and rdma_accept cap it at 7.")
	}
	a.mean("devxlab's encoder refuses it.")
	a.check(fmt.Sprintf("Set it to a value from 0 to %d; what %d would mean: `devxlab explain %s=%d`.", most, kept, name, kept))
	if f == ackTimeout && kept == 0 {
		a.mean("And 0 is no time-out at all: a lost packet would never be noticed.")
	}
}

// measured is from a published study of a ConnectX-6.
const measured = "Measured on a ConnectX-6 with retry_cnt 7: a dead peer is noticed after 3.5 to 3.8 s for every timeout from 10 to 16 (the card takes 16 as the least and adapts), after 58 s at 20."

func explainTimeout(a *Answer, v uint8) {
	if v == 0 {
		a.Summary += ": no time-out at all, the longest of all values"
		a.mean("A lost packet or a dead peer is never noticed by this QP: its work requests stay without a completion.")
		a.mean("`timeout = random() %% 15` is a way to get here: its range begins at 0.")
		a.check("Use 14 (67 ms) unless you have measured something better.")
		return
	}
	a.Summary += fmt.Sprintf(": %s, 4.096 µs · 2^%d", short(mlx5.AckTimeout(v)), v)
	a.mean("It is an exponent, not a number of milliseconds: 14 is 67 ms, not 2^14 ms. 0 is no time-out.")
	a.mean("It is the least time for one try; retry_cnt more follow before the completion 12/0x81.")
	a.mean(measured)
}

func explainRetry(a *Answer, v uint8) {
	if v == 0 {
		a.Summary += ": no retransmission, the first lost packet ends the QP"
	} else {
		a.Summary += fmt.Sprintf(": %d more tries after a time-out or a sequence error", v)
	}
	a.mean("3 bits, 0 to 7; 7 is a number here, not for ever. When they are used up the completion is 12/0x81.")
	a.mean(measured)
}

func explainRNRRetry(a *Answer, v uint8) {
	switch v {
	case mlx5.RNRRetryForever:
		a.Summary += ": for ever"
		a.mean("A responder that never posts a receive then hangs the requester without any error; 13/0x87 does not come.")
	case 0:
		a.Summary += ": the first RNR NAK ends the QP"
	default:
		a.Summary += fmt.Sprintf(": %d more tries when the responder has no receive posted", v)
	}
	a.mean("3 bits, 0 to 7; 7 is for ever, unlike in retry_cnt. The responder's min_rnr_timer sets the wait between two tries.")
	a.check(rnrCounters)
}

func explainMinRNR(a *Answer, v uint8) {
	a.Summary += ": " + short(mlx5.MinRNRTimer(v))
	if v == 0 {
		a.Summary += ", the longest wait, not the shortest"
	}
	a.mean("An index into a table of 32 times: 0 is 655.36 ms, 1 is 0.01 ms, 12 is 0.64 ms, 14 is 1.28 ms, 31 is 491.52 ms.")
	a.mean("The responder sets it; the requester waits that long after an RNR NAK.")
}

func durationAttribute(f *field, d time.Duration) (Answer, bool, error) {
	code, back, err := uint8(0), mlx5.AckTimeout, error(nil)
	if f == ackTimeout {
		code, err = mlx5.AckTimeoutFor(d)
	} else {
		code, err = mlx5.MinRNRTimerFor(d)
		back = mlx5.MinRNRTimer
	}
	if err != nil {
		return Answer{}, true, err
	}
	a := Answer{Kind: KindAttribute}
	a.Summary = fmt.Sprintf("%s is a code, not a time: the least that reaches %v is %d, %s", f.name, d, code, short(back(code)))
	a.check(fmt.Sprintf("`devxlab explain %s=%d`.", f.name, code))
	return a, true, nil
}

func (a *Answer) pathMTU(v int64) {
	a.Summary = fmt.Sprintf("path_mtu = %d", v)
	if v >= 1 && v <= 5 {
		a.Summary += fmt.Sprintf(": %d bytes", mlx5.MTU(v).Bytes())
		a.mean("A code, 1 to 5, for 256, 512, 1024, 2048, 4096 bytes. It must not be more than the port's active_mtu and must be the same at both ends.")
		return
	}
	a.Summary += ": refused with EINVAL"
	a.mean("The field takes a code, 1 to 5, for 256, 512, 1024, 2048, 4096 bytes. mlx5_ib returns EINVAL for an RC or UC QP and prints `invalid mtu` in dmesg; for UD it sets 4096 itself.")
	if m, err := mlx5.MTUOf(int(min(max(v, 0), math.MaxInt32))); err == nil {
		a.mean("You gave bytes: the code is %d (IBV_MTU_%d, mlx5.MTU%d). The kernel sees 8 bits, so that %d arrives as %d.", m, v, v, v, v&0xff)
	} else {
		a.mean("0 is also what an ibv_qp_attr holds in which nobody set it.")
	}
	a.check("The port's active_mtu: `ibv_devinfo`.")
}

func (a *Answer) rdAtomic(name string, v int64) {
	a.Summary = fmt.Sprintf("%s = %d outstanding RDMA reads and atomics", name, v)
	a.mean("verbs takes a number and mlx5_ib rounds it up to a power of two; the QP context (log_sra_max, log_rra_max) and so DevX takes the logarithm.")
	a.mean("The requester's max_rd_atomic must not be more than the responder's max_dest_rd_atomic. More than the device has is EINVAL, before firmware sees it.")
	if v == 0 {
		a.mean("0 leaves the field at 0, which is the logarithm of 1.")
	}
	a.check("max_qp_rd_atom and max_qp_init_rd_atom of `ibv_devinfo -v`, at both ends.")
}

// attrID finds an attribute of the QP context by its own or its verbs name.
func attrID(name string) (mlx5.AttrID, bool) {
	for id := mlx5.AttrID(0); !strings.HasPrefix(id.String(), "AttrID("); id++ {
		if id.String() == name || name != "av" && id.VerbsName() == "IBV_QP_"+strings.ToUpper(name) {
			return id, true
		}
	}
	return 0, false
}

// plainAttribute says what fits into a field of the QP context.
func plainAttribute(id mlx5.AttrID, value string) (Answer, bool, error) {
	a := Answer{Kind: KindAttribute}
	least, most := id.Range()
	v, err := strconv.ParseInt(value, 0, 64)
	if err != nil || most == 0 {
		return a, true, notANumber(id.String(), value)
	}
	a.Summary = fmt.Sprintf("%s = %d: in the range of %d to %d", id, v, least, most)
	if v < least || v > most {
		a.Summary = fmt.Sprintf("%s = %d: out of range, %d to %d", id, v, least, most)
		a.mean("devxlab's encoder refuses it.")
	}
	a.mean("A field of the QP context (mlx5_ifc.h).")
	if n := id.VerbsName(); n != "" {
		a.mean("In verbs it belongs to %s.", n)
	}
	return a, true, nil
}

// short gives a time three significant digits.
func short(d time.Duration) string {
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{time.Second, "s"}, {time.Millisecond, "ms"}} {
		if d >= u.unit {
			x := float64(d) / float64(u.unit)
			return strconv.FormatFloat(x, 'f', decimals(x), 64) + " " + u.name
		}
	}
	return strconv.FormatFloat(float64(d)/1e3, 'f', -1, 64) + " µs"
}

// decimals keeps the RNR table exact (655.36) and a time-out readable (67.1).
func decimals(x float64) int {
	for n := range 2 {
		if s := math.Pow10(n); math.Abs(x*s-math.Round(x*s)) < 1e-9 {
			return n
		}
	}
	if s := 100.0; math.Abs(x*s-math.Round(x*s)) < 1e-9 {
		return 2
	}
	return 1
}

var attributeRE = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_.>-]*?)\s*[=:]\s*([^\s;,].*?)[;,]?$`)

func parseAttribute(s string) (Answer, bool, error) {
	m := attributeRE.FindStringSubmatch(s)
	if m == nil {
		return Answer{}, false, nil
	}
	return attribute(m[1], m[2])
}
