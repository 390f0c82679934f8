// SPDX-License-Identifier: BSD-2-Clause

package explain

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"devxlab.example/mlx5"
	"golang.org/x/sys/unix"
)

const (
	oldLine = "mlx5_core 0000:81:00.0: mlx5_cmd_check:810:(pid 1234): CREATE_QP(0x500) op_mod(0x0) failed, status limits exceeded(0x8), syndrome (0x19c6d6)"
	newLine = "mlx5_core 0000:08:00.0: mlx5_cmd_out_err:808:(pid 1234): CREATE_MKEY(0x200) op_mod(0x0) failed, status bad parameter(0x3), syndrome (0x38a711), err(-22)"
)

// cases are what users paste; want is text that the answer must have, -text
// what it must not have.
var cases = []struct {
	name, in string
	kind     Kind
	want     []string
}{
	{"old dmesg line", oldLine, KindCommand, []string{
		"CREATE_QP(0x500) failed: limits exceeded(0x8), syndrome 0x19c6d6", "Count QPs and contexts", "Do not retry",
		"130,763 QPs and 98 contexts", "ofiwg/libfabric #7368", "ENOMEM (12)", "uid 0 only"}},
	{"new dmesg line", newLine, KindCommand, []string{
		"CREATE_MKEY(0x200) failed: bad parameter(0x3), syndrome 0x38a711", "page size in the mkey context above the capability", "linux-rdma f5c664caae82", "EINVAL (22)", "-The line has"}},
	{"time stamp in front", "[ 1899.678848] " + oldLine, KindCommand, []string{"0x19c6d6", "libfabric"}},
	{"syslog in front", "Nov 29 15:12:01 node7 kernel: [12.5] " + newLine, KindCommand, []string{"0x38a711"}},
	{"without function, line and pid", "CREATE_QP(0x500) op_mod(0x0) failed, status limits exceeded(0x8), syndrome (0x123456)", KindCommand, []string{
		"firmware-internal, not public: no report of it is known here", "-Publicly reported", "-uid 0 only"}},
	{"with uid and err", "INIT2RTR_QP(0x503) op_mod(0x0) uid(3) failed, status bad parameter(0x3), syndrome (0x123456), err(-22)", KindCommand, []string{
		"user context 3", "INIT2RTR_QP starts in INIT", "min_rnr_nak", "not public"}},
	{"wrapped and quoted by mail", "> > [  952.881401] mlx5_core 0000:02:00.0: mlx5_cmd_check:827:(pid 4323):\n> > CREATE_QP(0x500) op_mod(0x0) failed, status bad resource(0x5), syndrome\n> > (0x65b500)\n", KindCommand, []string{
		"bad resource(0x5), syndrome 0x65b500", "261,935 QPs existed of max_qp 262,144", "Count QPs"}},
	{"lower case", "create_mkey(0x200) op_mod(0x0) failed, status bad parameter(0x3), syndrome (0x35e6ec)", KindCommand, []string{"CREATE_MKEY(0x200)", "openucx/ucx #9488"}},
	{"destroy", "DEALLOC_PD(0x801) op_mod(0x0) failed, status bad resource state(0x9), syndrome (0x31b635)", KindCommand, []string{"mkeys and QPs before their PD", "an mkey or QP of the PD"}},
	{"another command's syndrome", "CREATE_CQ(0x400) op_mod(0x0) failed, status limits exceeded(0x8), syndrome (0x19c6d6)", KindCommand, []string{
		"for another command or status", "another command or status than yours"}},
	{"contradicting names", "CREATE_QP(0x200) op_mod(0x1) failed, status limits exceeded(0x3), syndrome (0x1), err(-12)", KindCommand, []string{
		"names CREATE_QP, but the number is that of CREATE_MKEY(0x200)", `"limits exceeded" beside status bad parameter(0x3)`, "ENOMEM (12), where the driver maps this status to EINVAL (22)", "op_mod is 0x1"}},
	{"two lines", oldLine + "\n" + newLine, KindCommand, []string{"CREATE_QP(0x500) failed", "has 2 commands; this is the first", "-0x38a711"}},
	{"unknown opcode", "unknown command opcode(0xb16) op_mod(0x0) failed, status bad operation(0x2), syndrome (0x88f347)", KindCommand, []string{"command 0xb16 failed: bad operation(0x2)", "cross GVMI"}},
	{"status of newer drivers", "CREATE_EQ(0x301) op_mod(0x0) failed, status FW not ready(0x7), syndrome (0x5), err(-11)", KindCommand, []string{"FW not ready(0x7)", "EAGAIN (11)", "-none that the driver knows", "-the number decides"}},
	{"packet status", "MAD_IFC(0x50d) op_mod(0x1) failed, status bad packet (discarded)(0x30), syndrome (0x0)", KindCommand, []string{"bad packet (discarded)(0x30)", "Syndrome 0: firmware gave none"}},
	{"device in error", "CREATE_QP(0x500) op_mod(0x0) failed, status unknown status(0xfe), syndrome (0xbadd00de)", KindCommand, []string{"driver's own", "was not sent", "-not public"}},
	{"emulated HCA", "CREATE_QP(0x500) op_mod(0x0) failed, status bad resource(0x5), syndrome (0xde000101)", KindCommand, []string{"devxlab's emulated HCA, not from real firmware", "-not public"}},
	{"our own error", (&mlx5.CommandError{Op: mlx5.OpRTR2RTS, QPN: 0x41, Status: mlx5.StatusBadQPState, Syndrome: 0xde000002, HasOutbox: true, Errno: unix.EREMOTEIO}).Error(), KindCommand, []string{"RTR2RTS_QP(0x504) failed: bad QP state(0x10)", "RTR2RTS_QP starts in RTR", "-The line has"}},
	{"our own error without outbox", (&mlx5.CommandError{Op: mlx5.OpINIT2RTR, Errno: unix.EINVAL}).Error(), KindErrno, []string{"INIT2RTR_QP(0x503) gave EINVAL (22)", "bad parameter(0x3)"}},
	{"our own flags", "--op CREATE_QP --status 0x8 --syndrome 0x19c6d6", KindCommand, []string{"libfabric #7368"}},
	{"UCX without outbox", "ib_mlx5_dv.c:217  UCX  ERROR mlx5dv_devx_qp_modify(503) failed, syndrome 0: Invalid argument", KindCommand, []string{"INIT2RTR_QP(0x503) failed, status not told", "printed its own zeros", "EINVAL (22)"}},
	{"UCX with outbox", "mlx5dv_devx_obj_create(QP) failed on mlx5_0, syndrome 0x2c4154: Remote I/O error", KindCommand, []string{"CREATE_QP(0x500) failed, status not told, syndrome 0x2c4154", "openucx/ucx #10451", "EREMOTEIO (121)"}},
	{"front cut off", "ceeded(0x8), syndrome (0x19c6d6)", KindCommand, []string{"a firmware command failed: limits exceeded(0x8)", "libfabric #7368"}},
	{"syndrome alone", "0x65b500", KindCommand, []string{"status not told", "QP pool used up"}},
	{"command time-out", "mlx5_core 0000:61:00.0: wait_func:1132:(pid 141181): CREATE_DCT(0x710) timeout. Will cause a leak of a command resource", KindCommand, []string{"CREATE_DCT(0x710) timed out", "60 s", "ETIMEDOUT (110)", "-ARP"}},
	{"command withdrawn", "CREATE_QP(0x500) canceled on out of queue timeout.", KindCommand, []string{"never got a command slot", "ECANCELED (125)"}},

	{"failed reply", "05000000 0065b500", KindCommand, []string{"bad resource(0x5), syndrome 0x65b500", "QP pool used up"}},
	{"failed reply, whole", "05000000 0065b500 00000000 00000000", KindCommand, []string{"bad resource(0x5)"}},
	{"reply as bytes", "05 00 00 00 00 65 b5 00", KindCommand, []string{"bad resource(0x5), syndrome 0x65b500"}},
	{"request", "05000002", KindCommand, []string{"request CREATE_QP(0x500) of uid 0x2"}},
	{"request with op_mod", "01000000 00000040", KindCommand, []string{"internal error(0x1)", "If these are the first bytes of a request, it is QUERY_HCA_CAP(0x100)"}},
	{"request that says so", "request 01000000 00000040", KindCommand, []string{"request QUERY_HCA_CAP(0x100) of uid 0x0", "op_mod is 0x40"}},
	{"good reply", "00000000 00000000 00040121", KindCommand, []string{"a firmware command succeeded", "0x40121", "for CREATE_QP the QPN"}},
	{"good exchange", "05000002 00000000 -> 00000000 00000000 00040121", KindCommand, []string{"CREATE_QP(0x500) succeeded: QPN 0x40121", "uid 0x2"}},
	{"failed exchange", "request begins 05000002; failure 05000000 0065b500", KindCommand, []string{"CREATE_QP(0x500) failed: bad resource(0x5), syndrome 0x65b500", "Count QPs", "uid 0x2"}},
	{"driver's dump", "mlx5_core 0000:02:00.0: dump_command:880:(pid 0): cmd[0]: dump command data CREATE_QP(0x500) OUTPUT\n[  952.881360] cmd[0]: 000: 05000000 0065b500 00000000 00000000\n", KindCommand, []string{"CREATE_QP(0x500) failed: bad resource(0x5), syndrome 0x65b500"}},

	{"EREMOTEIO", "EREMOTEIO", KindErrno, []string{"EREMOTEIO (121)", "look in the outbox", "5.18", "UMEM_REG", "byte 0 is the status"}},
	{"121", "121", KindErrno, []string{"EREMOTEIO (121)"}},
	{"err -22", "err -22", KindErrno, []string{"EINVAL (22)", "bad parameter(0x3)", "bad QP state(0x10)", "-limits exceeded", "mlx5:mlx5_cmd"}},
	{"errno 110", "errno 110", KindErrno, []string{"ETIMEDOUT (110)", "ARP", "GID is dead", "60 s"}},
	{"ENOMEM", "-12", KindErrno, []string{"ENOMEM (12)", "limits exceeded(0x8)", "RLIMIT_MEMLOCK", "12/0x81"}},
	{"ENXIO", "enxio", KindErrno, []string{"ENXIO (6)", "device is in error", "6.1"}},
	{"EIO", "ibv_modify_qp returned 5", KindErrno, []string{"EIO (5)", "gone or in error", "2ERR", "internal error(0x1)", "bad input length(0x50)"}},
	{"EPROTONOSUPPORT", "EPROTONOSUPPORT", KindErrno, []string{"no such object, method or mandatory attribute"}},
	{"EOPNOTSUPP", "EOPNOTSUPP", KindErrno, []string{"EOPNOTSUPP (95)", "BlueFlame", "emu:"}},
	{"EPERM", "EPERM", KindErrno, []string{"CAP_NET_RAW", "An RC QP, by verbs or DevX, needs none"}},
	{"EACCES", "EACCES", KindErrno, []string{"/dev/infiniband/uverbsN", "credentials"}},
	{"ENOSPC", "ENOSPC", KindErrno, []string{"room for the answer is too small", "INVOKE_WRITE"}},
	{"EBUSY", "EBUSY", KindErrno, []string{"resource busy(0x6)", "60 s"}},
	{"EAGAIN", "EAGAIN", KindErrno, []string{"no resources(0xf)"}},
	{"by text", "rdma_create_qp: Cannot allocate memory", KindErrno, []string{"ENOMEM (12)"}},
	{"command and text", "create_qp failed: Cannot allocate memory", KindErrno, []string{"ENOMEM (12)"}},
	{"text and number", "Failed to modify QP to RTR, check mtu, gid, peer lid, peer qp num: Connection timed out [110]", KindErrno, []string{"ETIMEDOUT (110)", "ip neigh"}},
	{"without a meaning here", "EDOM", KindErrno, []string{"no meaning of their own"}},

	{"retry exceeded", "status 12 vendor_err 0x81", KindCompletion, []string{"IBV_WC_RETRY_EXC_ERR (12)", "cannot tell a QP in ERR from a dead process", "openucx/ucx #2434"}},
	{"short form", "12/0x81", KindCompletion, []string{"IBV_WC_RETRY_EXC_ERR (12)", "vendor error 0x81"}},
	{"flush", "Got bad completion with status 0x5, vendor syndrome 0xf5", KindCompletion, []string{"IBV_WC_WR_FLUSH_ERR (5)", "vendor error 0xf5", "ConnectX-6", "consequence, not a cause"}},
	{"flush, other dumps", "5/0xf9", KindCompletion, []string{"nvme-cli #3268"}},
	{"NCCL, decimal", "NCCL WARN NET/IB : Got completion from peer fe80::1%ib0<33397> with error 4, opcode 32611, len 32611, vendor err 81 (Send)", KindCompletion, []string{"IBV_WC_LOC_PROT_ERR (4)", "vendor error 0x51", "GPU"}},
	{"UCX", "ib_mlx5_log.c:139  Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 vend 0x81 hw_synd 0/0)", KindCompletion, []string{"IBV_WC_RETRY_EXC_ERR (12)", "vendor error 0x81"}},
	{"RNR", "IBV_WC_RNR_RETRY_EXC_ERR vendor_err=0x87", KindCompletion, []string{"out_of_buffer", "hw_counters (not under counters)", "655.36 ms"}},
	{"name alone", "wc.status: IBV_WC_REM_ACCESS_ERR", KindCompletion, []string{"IBV_WC_REM_ACCESS_ERR (10)", "rkey", "vendor_err of the completion"}},
	{"lost 0x", "12/81", KindCompletion, []string{"vendor error 0x51", "not public", "write 0x81"}},
	{"raw CQE syndrome", "0x12/0x8a", KindCompletion, []string{"mlx5 does not report it", "IBV_WC_REM_INV_REQ_ERR (9)", "probably it is meant"}},
	{"unknown vendor error", "9/0x44", KindCompletion, []string{"firmware-internal, not public"}},
	{"no such status", "77/0x81", KindCompletion, []string{"not one of ibv_wc_status"}},
	{"libmlx5's dump", "mlx5: c101-011.frontera.tacc.utexas.edu: got completion with error:\n00000000 00000000 00000000 00000000\n00000000 00000000 00000000 00000000\n00000002 00000000 00000000 00000000\n00000000 00008a12 0a03eb2b 0026c1d2\n", KindCompletion, []string{"IBV_WC_REM_INV_REQ_ERR (9)", "vendor error 0x8a", "QPN 0x3eb2b", "requester"}},
	{"last row of a dump", "00000000 a9005604 000001e9 0054e8e2", KindCompletion, []string{"IBV_WC_LOC_PROT_ERR (4)", "IOMMU", "hardware syndrome in byte 52 (0xa9)", "responder"}},

	{"CQ error is no command", "mlx5_core 0000:08:00.0: CQ error on CQN 0x407, syndrome 0x1", KindEvent, []string{"overrun", "-not public"}},
	{"health is no command", "mlx5_core 0000:5e:00.0: synd 0x7: irisc not responding", KindEvent, []string{"irisc not responding", "numbers of their own"}},

	{"retry_cnt=15", "retry_cnt=15", KindAttribute, []string{"does not fit: the field has 3 bits, 0 to 7", "the QP gets 7"}},
	{"retry_cnt=20", "attr.retry_cnt = 20;", KindAttribute, []string{"the QP gets 4", "0x4bb88f", "charmplusplus/charm"}},
	{"retry_cnt=7", "NCCL_IB_RETRY_CNT=7", KindAttribute, []string{"7 more tries", "not for ever", "12/0x81"}},
	{"rnr_retry=7", "rnr_retry=7", KindAttribute, []string{"for ever", "out_of_buffer"}},
	{"timeout=14", "timeout=14", KindAttribute, []string{"67.1 ms", "4.096 µs · 2^14", "not 2^14 ms"}},
	{"timeout=0", "IBV_QP_TIMEOUT=0", KindAttribute, []string{"no time-out at all"}},
	{"timeout=32", "timeout: 32", KindAttribute, []string{"does not fit", "the QP gets 0", "no time-out at all"}},
	{"timeout at random", "timeout = random() % 15", KindAttribute, []string{"begins at 0", "no time-out at all"}},
	{"timeout as a time", "ack_timeout=500ms", KindAttribute, []string{"the least that reaches 500ms is 17"}},
	{"min_rnr_timer=0", "min_rnr_timer=0", KindAttribute, []string{"655.36 ms, the longest wait, not the shortest"}},
	{"min_rnr_timer=12", "min_rnr_nak=12", KindAttribute, []string{"640 µs"}},
	{"path_mtu=0", "path_mtu=0", KindAttribute, []string{"EINVAL", "invalid mtu"}},
	{"path_mtu=3", "path_mtu=IBV_MTU_1024", KindAttribute, []string{"1024 bytes"}},
	{"path_mtu in bytes", "path_mtu=1024", KindAttribute, []string{"the code is 3", "arrives as 0"}},
	{"max_rd_atomic", "max_rd_atomic=16", KindAttribute, []string{"logarithm", "max_dest_rd_atomic"}},
	{"context field", "log_sra_max=9", KindAttribute, []string{"out of range, 0 to 7", "IBV_QP_MAX_QP_RD_ATOMIC"}},

	{"RESET->RESET", "RESET->RESET", KindTransition, []string{"returns 0 on mlx5, without a command", "kernel's copy", "2RST_QP"}},
	{"RESET→RESET", "IBV_QPS_RESET→IBV_QPS_RESET", KindTransition, []string{"returns 0 on mlx5"}},
	{"AV in RTS", "AV in RTS", KindTransition, []string{"EINVAL", "qp_state_table", "opt_mask", "ETIMEDOUT"}},
	{"AV in RTS→RTS", "RTS->RTS with IBV_QP_AV", KindTransition, []string{"address vector in RTS→RTS: EINVAL"}},
	{"in words", "changing the address vector in RTS", KindTransition, []string{"EINVAL"}},
	{"RTS->SQD", "RTS->SQD", KindTransition, []string{"EINVAL, mlx5 has no such transition", "signature errors"}},
	{"SQD->SQD", "SQD => SQD", KindTransition, []string{"mlx5 has no such transition"}},
	{"SQD->RTS", "SQD2RTS", KindTransition, []string{"SQD_RTS_QP(0x50c)", "DevX OBJ_MODIFY does not let"}},
	{"RESET->ERR", "reset to err", KindTransition, []string{"EINVAL by ibv_modify_qp; DevX 2ERR_QP(0x507) does it"}},
	{"ERR->INIT", "ERR->INIT", KindTransition, []string{"no such transition", "The only way on from ERR is RESET"}},
	{"INIT->RTR with errno", "INIT->RTR failed: Connection timed out [110]", KindTransition, []string{"INIT2RTR_QP(0x503)", "IBV_QP_AV", "ETIMEDOUT (110)", "ARP"}},
	{"by command", "RTR2RTS_QP", KindTransition, []string{"RTR2RTS_QP(0x504)", "ack_timeout", "IBV_QP_TIMEOUT"}},

	{"counter elsewhere", "cat: /sys/class/infiniband/mlx5_0/ports/1/counters/out_of_buffer: No such file or directory", KindName, []string{"hw_counters/out_of_buffer"}},
	{"no such file", "/sys/class/infiniband/mlx5_0/msi_vectors", KindName, []string{"device/msi_irqs"}},
	{"no such function", "ibv_query_qp_state", KindName, []string{"ibv_query_qp, with IBV_QP_STATE"}},
	{"stale connection", "rejected: stale connection", KindName, []string{"remote QPN", "second connection"}},
	{"RFC 5049", "QP states of RFC 5049", KindName, []string{"seven"}},
}

// text is the rendered answer on one line.
func text(t *testing.T, a Answer) string {
	t.Helper()
	var b strings.Builder
	if err := a.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

func TestLine(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			a, err := Line(c.in)
			if err != nil {
				t.Fatal(err)
			}
			if a.Kind != c.kind {
				t.Errorf("kind %s, want %s", a.Kind, c.kind)
			}
			got := text(t, a)
			for _, w := range c.want {
				if not, ok := strings.CutPrefix(w, "-"); ok {
					if strings.Contains(got, not) {
						t.Errorf("must not have %q:\n%s", not, got)
					}
				} else if !strings.Contains(got, w) {
					t.Errorf("no %q in:\n%s", w, got)
				}
			}
		})
	}
}

func TestLineFields(t *testing.T) {
	a, err := Line(newLine)
	if err != nil {
		t.Fatal(err)
	}
	if !a.HasOp || a.Op != mlx5.OpCreateMKey || !a.HasStatus || a.Status != mlx5.StatusBadParam || !a.HasSyndrome || a.Syndrome != 0x38a711 || a.Errno != unix.EINVAL || a.Input != newLine {
		t.Errorf("%+v", a)
	}
	if a, err = Line("12/0x81"); err != nil || !a.HasWCStatus || a.WCStatus != 12 || !a.HasVendorErr || a.VendorErr != 0x81 || a.HasStatus {
		t.Errorf("%+v, %v", a, err)
	}
}

// A line cut anywhere says what it has and what it lacks.
func TestLineCut(t *testing.T) {
	for _, full := range []string{oldLine, newLine} {
		from := strings.Index(full, "op_mod")
		to := strings.Index(full, "syndrome (") + len("syndrome (0x19c6d6")
		for n := from; n <= to; n++ {
			_, err := Line(full[:n])
			var e *InputError
			if !errors.As(err, &e) {
				t.Fatalf("%q: %v", full[:n], err)
			}
			msg := err.Error()
			if !strings.Contains(msg, "recognised command CREATE_") || !strings.Contains(msg, "missing: ") || !strings.Contains(msg, "the syndrome") || !strings.Contains(msg, exampleLine) {
				t.Fatalf("%q: %v", full[:n], err)
			}
		}
	}
	for in, want := range map[string]string{
		"CREATE_QP(0x500) op_mod(0x0) failed, status limits exceeded(0x8), synd": "recognised command CREATE_QP(0x500), op_mod 0x0, status limits exceeded(0x8); missing: the syndrome;",
		"CREATE_QP(0x500) op_mod(0x0) failed, status limits exc":                 "missing: the status with its number, the syndrome;",
		"status 12 vendor_err":          "recognised completion status 12 (IBV_WC_RETRY_EXC_ERR); missing: the number of the vendor error; a complete one: status 12 vendor_err 0x81",
		"vendor_err 0x81":               "missing: the completion's status",
		"status 12":                     "missing: the vendor error, if it is a completion's status, or command and syndrome",
		"05000000":                      "status bad resource(0x5) (or of a request CREATE_QP(0x500) of uid 0); missing: bytes 4 to 7, the syndrome",
		"deadbeef 00000000":             "a known status in byte 0 (it is 0xde)",
		"0x8":                           "missing: what it is",
		"timeout=soon":                  `a number instead of "soon"`,
		"path_mtu=IBV_MTU_9":            "no path MTU of 9 bytes",
		"timeout=10h":                   "no ack_timeout reaches 10h",
		"":                              "nothing recognised",
		"hello\x1b[31mworld":            "nothing recognised",
		strings.Repeat("a", MaxInput+1): "65537 bytes, more than 65536",
	} {
		a, err := Line(in)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v (%s), want %q", in, err, a.Summary, want)
		}
		if err != nil && strings.ContainsFunc(err.Error(), unicode.IsControl) {
			t.Errorf("%.40q: control characters in %q", in, err)
		}
	}
}

func TestStatus(t *testing.T) {
	for s := range 256 {
		st := mlx5.Status(s)
		a := Status(mlx5.OpCreateQP, st, 0x19c6d6)
		if a.Summary == "" || st != 0 && len(a.Meaning) == 0 {
			t.Errorf("status %#x: %+v", s, a)
		}
		if st.Text() != "unknown status" && !knownStatus(st) {
			t.Errorf("status %s(%#x) has no explanation", st, s)
		}
	}
	if got := text(t, Status(0, mlx5.StatusLIM, 0)); !strings.Contains(got, "a firmware command failed") || !strings.Contains(got, "Do not retry") {
		t.Error(got)
	}
	if a := Status(mlx5.OpSetHCACap, mlx5.StatusBadParam, 0); len(a.Reports) != 1 {
		t.Errorf("syndrome 0 of a command with such a report: %v", a.Reports)
	}
	if a := Status(mlx5.OpCreateQP, mlx5.StatusBadParam, 0); len(a.Reports) != 0 {
		t.Errorf("syndrome 0 identifies nothing: %v", a.Reports)
	}
	if a := Status(mlx5.OpCreateQP, mlx5.StatusBadRes, 0xde012345); !a.Emulated() {
		t.Error("an emulated syndrome is not recognised")
	}
}

func TestErrno(t *testing.T) {
	for e := unix.Errno(0); e < 200; e++ {
		a := Errno(e)
		if a.Summary == "" || errnoName(e) != "" && len(a.Meaning) == 0 {
			t.Errorf("%d: %+v", int(e), a)
		}
		if n := errnoName(e); n != "" {
			if b, err := Line(n); err != nil || b.Errno != e {
				t.Errorf("%s: %v %v", n, b.Errno, err)
			}
			if b, err := Line(fmt.Sprintf("errno %d", int(e))); err != nil || b.Errno != e {
				t.Errorf("errno %d: %v %v", int(e), b.Errno, err)
			}
		}
	}
	for e := range errnos {
		if errnoName(e) == "" || int(e) > maxErrno {
			t.Errorf("%d is no errno", int(e))
		}
	}
}

func TestCompletion(t *testing.T) {
	for s := range len(wcStatuses) + 2 {
		if a := Completion(uint8(s), 0); a.Summary == "" || a.HasVendorErr {
			t.Errorf("status %d: %+v", s, a)
		}
	}
	never := 0
	for _, w := range wcStatuses {
		if w.meaning == mlx5Never {
			never++
		}
	}
	reached := map[uint8]bool{0: true, 21: true, 22: true, 23: true} // 22, 23: libmlx5's tag matching
	for _, st := range cqeStatus {
		reached[st] = true
	}
	if never+len(reached) != len(wcStatuses) {
		t.Errorf("%d statuses never reported, %d reported, of %d", never, len(reached), len(wcStatuses))
	}
	for _, c := range completions() {
		a := Completion(c.status, c.vendorErr)
		if len(a.Reports) == 0 {
			t.Errorf("%d/%#x: no report", c.status, c.vendorErr)
		}
	}
}

// The tables of transitions agree with the rules that the encoder follows.
func TestTransitions(t *testing.T) {
	all := []mlx5.State{mlx5.StateRST, mlx5.StateInit, mlx5.StateRTR, mlx5.StateRTS, mlx5.StateSQD, mlx5.StateSQER, mlx5.StateErr}
	for _, from := range all {
		for _, to := range all {
			a := transition(from, to)
			if a.Summary == "" || len(a.Meaning)+len(a.Summary) == 0 {
				t.Errorf("%v→%v: %+v", from, to, a)
			}
			if op, ok := opOf(from, to); ok {
				if r := mlx5.RuleOf(op, mlx5.STRC); r != nil && (!r.AcceptsFrom(from) || r.To != to) {
					t.Errorf("%v→%v: %s is from %v to %v", from, to, op, r.From, r.To)
				}
			}
			if b, err := Line(stateName(from) + "→" + stateName(to)); err != nil || b.Summary != a.Summary {
				t.Errorf("%v→%v: %q, %v", from, to, b.Summary, err)
			}
		}
	}
}

func TestData(t *testing.T) {
	notInHeaders := map[mlx5.Op]bool{0xb16: true} // ALLOW_OTHER_VHCA_ACCESS
	rows, err := parseSyndromes(syndromesTSV)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, r := range rows {
		if r.op != 0 && !notInHeaders[r.op] && r.op.String() != r.command {
			t.Errorf("%#x: %s is not %s(%#x)", r.syndrome, r.command, r.op, uint16(r.op))
		}
		if r.hasStatus && (!knownStatus(r.status) || r.status == mlx5.StatusOK) {
			t.Errorf("%#x: unknown status %#x", r.syndrome, uint8(r.status))
		}
		if r.syndrome>>24 != 0 || r.circumstance == "" || r.source == "" || r.source == "-" {
			t.Errorf("%+v", r)
		}
		key := fmt.Sprint(r.syndrome, r.op)
		if seen[key] {
			t.Errorf("%#x of %s twice", r.syndrome, r.command)
		}
		seen[key] = true
	}
	if len(rows) < 60 {
		t.Errorf("%d syndromes", len(rows))
	}
	comps, err := parseCompletions(completionsTSV)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range comps {
		if int(r.status) >= len(wcStatuses) || r.status == 0 || r.vendorErr == 0 || r.vendorErr > 0xff || r.circumstance == "" || r.source == "" || r.source == "-" {
			t.Errorf("%+v", r)
		}
	}
	for _, bad := range []string{"0x1\t0x500\t0x5\tCREATE_QP", "x\t-\t-\ta\tb\tc\td", "0x1\t0x50000\t-\ta\tb\tc\td"} {
		if _, err := parseSyndromes(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func TestJSON(t *testing.T) {
	b, err := json.Marshal(Status(mlx5.OpCreateQP, mlx5.StatusLIM, 0x19c6d6))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []string{`"kind":"command"`, `"op":"CREATE_QP"`, `"opcode":1280`, `"status":8`, `"status_text":"limits exceeded"`, `"syndrome":1689302`, `"source":"ofiwg/libfabric #7368"`, `"same":true`} {
		if !strings.Contains(string(b), w) {
			t.Errorf("no %s in %s", w, b)
		}
	}
	if b, _ = json.Marshal(Errno(unix.EREMOTEIO)); !strings.Contains(string(b), `"errno":121,"errno_name":"EREMOTEIO"`) || strings.Contains(string(b), "syndrome\":") || !strings.Contains(string(b), `"reports":[]`) {
		t.Errorf("%s", b)
	}
}

func FuzzLine(f *testing.F) {
	for _, c := range cases {
		f.Add(c.in)
	}
	f.Add("CREATE_QP(0x500) op_mod(0x0) failed, status limits exceeded(0x8), syndrome (0x19c6")
	f.Add("timeout=-1")
	f.Add("path_mtu=9223372036854775807")
	f.Add("INPUT 0500 OUTPUT 0x")
	f.Add("\xff\x00/0x\x1b[2J")
	f.Fuzz(func(t *testing.T, s string) {
		a, err := Line(s)
		if err != nil {
			if msg := err.Error(); msg == "" || strings.ContainsFunc(msg, unicode.IsControl) {
				t.Fatalf("error %q", msg)
			}
			return
		}
		if a.Kind == "" || a.Summary == "" || a.Input != s {
			t.Fatalf("empty answer: %+v", a)
		}
		var b strings.Builder
		if err := a.WriteText(&b); err != nil {
			t.Fatal(err)
		}
		if out := strings.ReplaceAll(b.String(), "\n", ""); !utf8.ValidString(out) || strings.ContainsFunc(out, unicode.IsControl) {
			t.Fatalf("control characters: %q", out)
		}
		if j, err := json.Marshal(a); err != nil || !json.Valid(j) {
			t.Fatalf("json: %v", err)
		}
	})
}
