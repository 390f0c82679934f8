// SPDX-License-Identifier: BSD-2-Clause

package explain

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"devxlab.example/mlx5"
	"golang.org/x/sys/unix"
)

// MaxInput is the longest text that Line reads, in bytes.
const MaxInput = 64 << 10

// InputError says what Line recognised in a text, and what is missing from it.
type InputError struct {
	Input      string
	Recognised []string // empty: nothing at all
	Missing    []string
	Example    string // a complete text of this kind
}

func (e *InputError) Error() string {
	if len(e.Recognised) == 0 {
		return fmt.Sprintf("explain: nothing recognised in %q: give a line of dmesg (%s), the bytes of a reply (05000000 0065b500), an errno (EREMOTEIO, 121), a completion (12/0x81), an attribute (timeout=14) or a transition (RTS→SQD)", printable(clip(e.Input, 80)), exampleLine)
	}
	return fmt.Sprintf("explain: recognised %s; missing: %s; a complete one: %s", strings.Join(e.Recognised, ", "), strings.Join(e.Missing, ", "), e.Example)
}

const exampleLine = "mlx5_core 0000:08:00.0: mlx5_cmd_out_err:808:(pid 1234): CREATE_MKEY(0x200) op_mod(0x0) failed, status bad parameter(0x3), syndrome (0x38a711), err(-22)"

// Line explains free text: a line of dmesg about a command (any kernel, with
// or without prefixes, also wrapped or quoted by a mail program), the bytes of
// a request, a reply or both, an error CQE, an errno by name, number or text,
// a completion (12/0x81, or as UCX and NCCL print it), name=value of a queue
// pair attribute, or a state transition (RTS→SQD). Of several it explains the
// first. The error is an *InputError or, for a value that no attribute can
// have, an error that says which it can have.
func Line(s string) (Answer, error) {
	a, err := line(s)
	if e, ok := err.(*InputError); ok {
		e.Input = s
	}
	if err != nil {
		return Answer{}, err
	}
	a.Input = s
	return a, nil
}

func line(s string) (Answer, error) {
	if len(s) > MaxInput {
		return Answer{}, fmt.Errorf("explain: the text has %d bytes, more than %d: give the line that reports the failure", len(s), MaxInput)
	}
	text := flatten(s)
	for _, try := range []func(string) (Answer, bool, error){
		parseTransition, parseBytes(s), parseCompletion, parseEvent, parseCommand, parseAttribute, parseName, parseErrno,
	} {
		if a, ok, err := try(text); ok || err != nil {
			return a, err
		}
	}
	return Answer{}, &InputError{}
}

// flatten joins wrapped lines and drops a mail program's quotation marks.
func flatten(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = strings.TrimLeft(l, "> \t")
	}
	return strings.Join(strings.Fields(strings.Join(lines, " ")), " ")
}

const stateNames = `(?:IBV?_QPS_)?(RESET|RST|INIT|RTR|RTS|SQD|SQERR|SQER|SQE|ERROR|ERR)`

var (
	transitionRE = regexp.MustCompile(`(?i)^` + stateNames + `(?:_QP)?\s*(?:->|→|=>|2|\bto\b)\s*` + stateNames + `(?:_QP)?(?:$|[\s:,;.(]+(.*)$)`)
	avRE         = regexp.MustCompile(`(?i)\b(?:av|ibv?_qp_av|address[ _]vector|ah_attr)\b`)
	rtsRE        = regexp.MustCompile(`(?i)\bRTS\b`)
)

func parseTransition(s string) (Answer, bool, error) {
	m := transitionRE.FindStringSubmatch(s)
	if m == nil && !(avRE.MatchString(s) && rtsRE.MatchString(s)) {
		return Answer{}, false, nil
	}
	from, to, rest := mlx5.StateRTS, mlx5.StateRTS, s
	if m != nil {
		from, to, rest = states[strings.ToUpper(m[1])], states[strings.ToUpper(m[2])], m[3]
	}
	a := transition(from, to)
	if from == mlx5.StateRTS && to == mlx5.StateRTS && avRE.MatchString(rest) {
		a = avInRTS()
	}
	a.addErrno(rest)
	return a, true, nil
}

// addErrno adds what an errno in s means, if there is one.
func (a *Answer) addErrno(s string) {
	if e, ok := errnoIn(s); ok {
		a.Errno = e
		x := Errno(e)
		a.mean("%s", x.Summary)
		a.Meaning = append(a.Meaning, x.Meaning...)
		a.check(x.Check...)
	}
}

var (
	vendorRE   = regexp.MustCompile(`(?i)\bvend(?:or)?[_ ]?(?:err(?:or)?|synd(?:rome)?)?\b[\s:=(]*(0x[0-9a-f]+\b|[0-9a-f]+\b)?`)
	wcPairRE   = regexp.MustCompile(`(?i)^(?:status )?(\d+|0x[0-9a-f]+) ?[/ ] ?(0x[0-9a-f]+|\d+)$`)
	wcStatusRE = regexp.MustCompile(`(?i)\b(?:status|error)\b[\s:=(]*(0x[0-9a-f]+\b|\d+\b)`)
	wcAloneRE  = regexp.MustCompile(`(?i)^status ?[=:]? ?(\d+|0x[0-9a-f]+)$`)
	wcContext  = regexp.MustCompile(`(?i)\bcompletion\b|\bwc\b|\bcq\b`)
	wcNameRE   = regexp.MustCompile(`(?i)\bIBV?(_WC_[A-Z_]+)`)
	syndRE     = regexp.MustCompile(`(?i)\bsynd (0x[0-9a-f]+)`)
)

const exampleCompletion = "status 12 vendor_err 0x81, or 12/0x81"

func parseCompletion(s string) (Answer, bool, error) {
	if m := wcPairRE.FindStringSubmatch(s); m != nil {
		st, ok := number(m[1], 8)
		if v, vok := number(m[2], 32); ok && vok {
			return completionOf(uint8(st), m[2], uint32(v)), true, nil
		}
		return Answer{}, false, nil
	}
	if m := wcAloneRE.FindStringSubmatch(s); m != nil {
		return Answer{}, true, &InputError{Recognised: []string{"status " + m[1]}, Missing: []string{"the vendor error, if it is a completion's status, or command and syndrome, if it is a firmware command's"}, Example: exampleCompletion + "; " + exampleLine}
	}
	vm := vendorRE.FindStringSubmatch(s)
	st, certain, found := wcStatusIn(vendorRE.ReplaceAllString(s, " "))
	switch {
	case vm == nil && found && (certain || wcContext.MatchString(s)):
		return completionOf(st, "", 0), true, nil
	case vm == nil, !found && vm[1] == "":
		return Answer{}, false, nil
	case vm[1] == "":
		return Answer{}, true, &InputError{Recognised: []string{fmt.Sprintf("completion status %s", wcLabel(st))}, Missing: []string{"the number of the vendor error"}, Example: exampleCompletion}
	}
	v, ok := number(vm[1], 32)
	switch {
	case !ok:
		return Answer{}, true, &InputError{Recognised: []string{"a completion's vendor error"}, Missing: []string{"a vendor error of 32 bits"}, Example: exampleCompletion}
	case !found:
		return Answer{}, true, &InputError{Recognised: []string{fmt.Sprintf("vendor error %#x of a completion", v)}, Missing: []string{"the completion's status"}, Example: exampleCompletion}
	}
	return completionOf(st, vm[1], uint32(v)), true, nil
}

// completionOf watches for a vendor error whose 0x was lost: NCCL prints it in
// decimal, most others in hexadecimal.
func completionOf(st uint8, vendorText string, vendor uint32) Answer {
	a := Completion(st, vendor)
	if x, err := strconv.ParseUint(vendorText, 16, 32); err == nil && len(a.Reports) == 0 && uint32(x) != vendor {
		if len(Completion(st, uint32(x)).Reports) > 0 {
			a.mean("The vendor error was read as decimal. If it is hexadecimal (%#x), it has public reports with this status: write 0x%x.", x, x)
		}
	}
	return a
}

// wcStatusIn finds a completion's status: by name, by UCX's syndrome, as a
// number, or by the words of ibv_wc_status_str. certain is false where the
// number or the words could be about something else.
func wcStatusIn(s string) (status uint8, certain, ok bool) {
	if m := wcNameRE.FindStringSubmatch(s); m != nil {
		want := "IBV" + strings.ToUpper(m[1])
		if i := slices.IndexFunc(wcStatuses[:], func(w wcInfo) bool { return w.name == want }); i >= 0 {
			return uint8(i), true, true
		}
	}
	if m := syndRE.FindStringSubmatch(s); m != nil { // UCX: (synd 0x15 vend 0x81 hw_synd 0/0)
		if v, vok := number(m[1], 8); vok {
			return fromCQE(uint8(v)), false, true
		}
	}
	if m := wcStatusRE.FindStringSubmatch(s); m != nil {
		if v, vok := number(m[1], 8); vok {
			return uint8(v), false, true
		}
	}
	low := strings.ToLower(s)
	for i, w := range wcStatuses {
		if t := strings.ToLower(w.text); i > 0 && strings.Contains(low, t) {
			return uint8(i), low == t, true
		}
	}
	return 0, false, false
}

func wcLabel(st uint8) string {
	if n := wcName(st); n != "" {
		return fmt.Sprintf("%d (%s)", st, n)
	}
	return strconv.Itoa(int(st))
}

var (
	cqErrorRE = regexp.MustCompile(`(?i)CQ error on CQN (0x[0-9a-f]+), syndrome (0x[0-9a-f]+)`)
	healthRE  = regexp.MustCompile(`(?i)\bext_synd\b|\bassert_var\[|health compromised|\bsynd 0x[0-9a-f]+: ?([a-z ]*)`)
)

// parseEvent keeps syndromes of other kinds away from those of commands.
func parseEvent(s string) (Answer, bool, error) {
	if m := cqErrorRE.FindStringSubmatch(s); m != nil {
		a := Answer{Kind: KindEvent, Summary: fmt.Sprintf("asynchronous error of CQ %s, syndrome %s", m[1], m[2])}
		switch v, _ := number(m[2], 32); v {
		case 1:
			a.Summary += ": overrun"
			a.mean("The CQ was full when a completion arrived (syndrome 1 of mlx5_ifc.h). It and its QPs are unusable now.")
			a.check("The CQ's size against all that can complete into it at once: send queues, receive queues and SRQs; how often it is polled.")
		case 2:
			a.Summary += ": access violation"
			a.mean("The device could not reach the CQ's buffer or doorbell record (syndrome 2 of mlx5_ifc.h).")
			a.check("That its memory is still registered and mapped; IOMMU faults in dmesg.")
		default:
			a.mean("mlx5_ifc.h has no name for this syndrome.")
		}
		return a, true, nil
	}
	if m := healthRE.FindStringSubmatch(s); m != nil {
		a := Answer{Kind: KindEvent, Summary: "health report of the device: firmware or hardware failed"}
		if m[1] != "" {
			a.Summary = "health report of the device: " + strings.TrimSpace(m[1])
		}
		a.mean("Health syndromes are numbers of their own and have nothing to do with those of commands; the driver prints the name that it knows.")
		a.mean("Commands in flight fail or time out; later ones give EIO (Linux 5.15) or ENXIO (6.1 and later).")
		a.check("`devlink health show`, the whole report in dmesg with its fw_ver, and the vendor.", "After `health recovery succeeded` open the device again; if there is no recovery, reset the function.")
		return a, true, nil
	}
	return Answer{}, false, nil
}

var (
	opRE        = regexp.MustCompile(`(?i)\b([0-9a-z]+(?:_[0-9a-z]+)+|NOP|unknown command opcode)\((0x[0-9a-f]{3,4})\)`)
	opModRE     = regexp.MustCompile(`(?i)\bop_mod\s*[=(]\s*(0x[0-9a-f]+)\b`)
	uidRE       = regexp.MustCompile(`(?i)\buid\s*[=(]\s*(\d+|0x[0-9a-f]+)\b`)
	statusRE    = regexp.MustCompile(`(?i)\bstatus[\s:=]*([a-z][a-z ]*(?:\(discarded\))?)?\s*\((0x[0-9a-f]+)\)|\bstatus[\s:=]+(0x[0-9a-f]+\b|\d+\b)|\((0x[0-9a-f]+)\), ?syndrome`)
	statusWord  = regexp.MustCompile(`(?i)\bstatus ([a-z][a-z ]+)`)
	syndromeRE  = regexp.MustCompile(`(?i)\bsyndrome\s*\((?:0x)?([0-9a-f]+)\)|\bsyndrome[\s:=]+(?:0x)?([0-9a-f]+)\b`)
	devxRE      = regexp.MustCompile(`(?i)\bmlx5dv_devx_\w+\((?:0x)?([0-9a-z_]+)\)`)
	bareOpRE    = regexp.MustCompile(`(?i)\b[0-9a-z]+(?:_[0-9a-z]+)+\b`)
	timeoutRE   = regexp.MustCompile(`(?i)timeout\. Will cause|No done completion|Async, timeout`)
	canceledRE  = regexp.MustCompile(`(?i)canceled on out of queue`)
	fromDriver  = regexp.MustCompile(`mlx5_cmd_check|mlx5_cmd_out_err|cmd_status_(?:print|log|err)`)
	hexNumberRE = regexp.MustCompile(`(?i)^0x([0-9a-f]{1,8})$`)
)

func parseCommand(s string) (Answer, bool, error) {
	a := Answer{Kind: KindCommand}
	if m := hexNumberRE.FindStringSubmatch(s); m != nil {
		v, _ := strconv.ParseUint(m[1], 16, 32)
		if v <= 0xff {
			return a, true, &InputError{Recognised: []string{"the number " + s}, Missing: []string{"what it is: a status, a syndrome, an errno or a vendor error"}, Example: "syndrome 0x65b500, or errno 22, or 12/0x81"}
		}
		a.Syndrome, a.HasSyndrome = uint32(v), true
		a.command()
		return a, true, nil
	}
	var notes, recognised []string
	commands := slices.DeleteFunc(opRE.FindAllStringSubmatchIndex(s, -1), func(m []int) bool { return strings.EqualFold(s[m[2]:m[3]], "op_mod") })
	if len(commands) > 0 {
		m := commands[0]
		name := s[m[2]:m[3]]
		v, _ := strconv.ParseUint(s[m[4]:m[5]], 0, 16)
		a.Op, a.HasOp = mlx5.Op(v), true
		if named, ok := mlx5.ParseOp(name); ok && named != a.Op || knownOp(a.Op) && !ok && !strings.Contains(name, " ") {
			notes = append(notes, fmt.Sprintf("The line names %s, but the number is that of %s; the number decides.", name, opText(a.Op)))
		}
		if len(commands) > 1 {
			s = s[:commands[1][0]]
			notes = append(notes, fmt.Sprintf("The text has %d commands; this is the first.", len(commands)))
		}
	}
	low := strings.ToLower(s)
	failed := strings.Contains(low, "failed") || strings.Contains(low, "syndrome")
	switch {
	case !a.HasOp && !failed && !strings.Contains(low, "op_mod") && !strings.Contains(low, "--status"):
		return a, false, nil
	case a.HasOp && (timeoutRE.MatchString(s) || canceledRE.MatchString(s)):
		e, what, meaning := unix.ETIMEDOUT, "timed out: firmware did not answer", commandTimeout
		if canceledRE.MatchString(s) {
			e, what, meaning = unix.ECANCELED, "was withdrawn: it never got a command slot", commandCanceled
		}
		a.Errno, a.Summary = e, opText(a.Op)+" "+what
		a.Meaning = append(a.Meaning, meaning, fmt.Sprintf("The caller gets %s.", errnoText(e)))
		a.check(hungFirst, healthCheck)
		return a, true, nil
	case !a.HasOp:
		a.Op, a.HasOp = opInWords(s)
	}
	if a.HasOp {
		recognised = append(recognised, "command "+opText(a.Op))
	}
	if m := opModRE.FindStringSubmatch(s); m != nil {
		if v, ok := number(m[1], 16); ok {
			a.OpMod = uint16(v)
			recognised = append(recognised, fmt.Sprintf("op_mod %#x", v))
		}
	}
	status := statusRE.FindStringSubmatch(s)
	if status != nil {
		if v, ok := number(firstOf(status[2:]...), 8); ok {
			a.Status, a.HasStatus = mlx5.Status(v), true
			if w := strings.TrimSpace(status[1]); w != "" && !strings.EqualFold(w, statusWords(a.Status)) {
				notes = append(notes, fmt.Sprintf("The line says %q beside status %s; the number decides.", w, statusText(a.Status)))
			}
		}
	} else if m := statusWord.FindStringSubmatch(s); m != nil {
		if st, ok := mlx5.ParseStatus(strings.TrimSuffix(m[1], " syndrome")); ok {
			a.Status, a.HasStatus = st, true
		}
	}
	if a.HasStatus {
		recognised = append(recognised, "status "+statusText(a.Status))
	}
	if m := syndromeRE.FindStringSubmatch(s); m != nil {
		if v, err := strconv.ParseUint(firstOf(m[1:]...), 16, 32); err == nil {
			a.Syndrome, a.HasSyndrome = uint32(v), true
			recognised = append(recognised, fmt.Sprintf("syndrome %#x", v))
		}
	}
	if !a.HasSyndrome {
		if len(recognised) == 0 {
			return a, false, nil
		}
		if e, ok := errnoIn(s); ok && len(recognised) == 1 && !a.HasStatus { // create_qp failed: Cannot allocate memory
			x := Errno(e)
			x.Op, x.HasOp, x.OpMod = a.Op, a.HasOp, a.OpMod
			return x, true, nil
		}
		var missing []string
		if !a.HasOp {
			missing = append(missing, "the command")
		}
		if !a.HasStatus {
			missing = append(missing, "the status with its number")
		}
		missing = append(missing, "the syndrome")
		return a, true, &InputError{Recognised: recognised, Missing: missing, Example: exampleLine}
	}

	a.command()
	if e, ok := errnoIn(s); ok {
		a.Errno = e
		switch {
		case !a.HasStatus:
			a.addErrno(s)
		case e != statusErrno(a.Status) && e != unix.EREMOTEIO && a.Status != mlx5.StatusOK:
			notes = append(notes, fmt.Sprintf("The line has %s, where the driver maps this status to %s.", errnoText(e), errnoText(statusErrno(a.Status))))
		}
	}
	if m := uidRE.FindStringSubmatch(s); m != nil {
		a.mean("The command came from user context %s; 0 is the kernel itself.", m[1])
	} else if fromDriver.MatchString(s) {
		a.mean("The driver logs such a failure for uid 0 only: the kernel itself, or verbs of a library without DevX. DevX programs, and verbs programs of today's rdma-core, fail without a line in dmesg.")
	}
	if a.HasOp && a.OpMod != 0 {
		a.mean("op_mod is %#x.", a.OpMod)
	}
	a.Meaning = append(a.Meaning, notes...)
	if !a.HasStatus {
		a.check("The status that belongs to the syndrome: byte 0 of the output, or the line in dmesg.")
	}
	return a, true, nil
}

// opInWords finds a command without its number, as libraries and devxlab's own
// flags name it.
func opInWords(s string) (mlx5.Op, bool) {
	if m := devxRE.FindStringSubmatch(s); m != nil {
		if v, err := strconv.ParseUint(m[1], 16, 16); err == nil && knownOp(mlx5.Op(v)) {
			return mlx5.Op(v), true
		}
		for _, p := range []string{"", "CREATE_"} {
			if op, ok := mlx5.ParseOp(p + m[1]); ok {
				return op, true
			}
		}
	}
	for _, w := range bareOpRE.FindAllString(s, -1) {
		if op, ok := mlx5.ParseOp(w); ok {
			return op, true
		}
	}
	return 0, false
}

// message is one side of a command.
type message struct {
	dir byte // 'i' request, 'o' reply, 0 not told
	op  mlx5.Op
	b   []byte
}

var (
	bracketRE = regexp.MustCompile(`\[[^\]]*\]`)
	dumpPreRE = regexp.MustCompile(`^.*\bcmd\[\d+\]:`)
	arrows    = strings.NewReplacer("->", " → ", "=>", " → ", "→", " → ", ";", " → ", "|", " → ", ",", " ", "`", " ")
)

var messageWords = map[string]byte{
	"in": 'i', "input": 'i', "inbox": 'i', "request": 'i',
	"out": 'o', "output": 'o', "outbox": 'o', "reply": 'o', "response": 'o', "success": 'o', "failure": 'o',
	"raw": 0, "hex": 0, "cqe": 0, "begins": 0,
}

// messages reads hexadecimal dumps: plain, of the driver's command dump, or of
// libmlx5. ok is false for any other text.
func messages(s string) (out []message, ok bool) {
	var cur message
	flush := func() {
		if len(cur.b) > 0 {
			out = append(out, cur)
		}
		cur = message{}
	}
	for _, l := range strings.Split(arrows.Replace(s), "\n") {
		low := strings.ToLower(l)
		if strings.Contains(low, "dump") || strings.Contains(low, "got completion with error") {
			if strings.Contains(l, "INPUT") || strings.Contains(l, "OUTPUT") {
				flush()
				cur.dir = 'i'
				if strings.Contains(l, "OUTPUT") {
					cur.dir = 'o'
				}
				if m := opRE.FindStringSubmatch(l); m != nil {
					v, _ := strconv.ParseUint(m[2], 0, 16)
					cur.op = mlx5.Op(v)
				}
			}
			continue
		}
		l = bracketRE.ReplaceAllString(dumpPreRE.ReplaceAllString(l, ""), "")
		for _, w := range strings.Fields(strings.TrimLeft(l, "> \t")) {
			if w == "→" {
				flush()
				continue
			}
			if dir, known := messageWords[strings.ToLower(strings.TrimSuffix(w, ":"))]; known {
				if dir != 0 {
					flush()
					cur.dir = dir
				}
				continue
			}
			if strings.HasSuffix(w, ":") {
				continue // an offset, or a host's name
			}
			b, err := hex.DecodeString(strings.TrimPrefix(w, "0x"))
			if err != nil {
				return nil, false
			}
			cur.b = append(cur.b, b...)
		}
	}
	flush()
	for _, m := range out {
		if len(m.b) < 4 {
			return nil, false
		}
	}
	return out, len(out) > 0
}

// isSyndrome tells a syndrome from four bytes of a command.
func isSyndrome(digits string) bool {
	v, err := strconv.ParseUint(digits, 16, 32)
	return err == nil && (v < 1<<24 || v>>24 == emulatedMark || uint32(v) == driverSyndrome)
}

const exampleBytes = "05000000 0065b500"

// parseBytes needs the line ends, which the other forms do not.
func parseBytes(s string) func(string) (Answer, bool, error) {
	return func(string) (Answer, bool, error) {
		if m := hexNumberRE.FindStringSubmatch(strings.TrimSpace(s)); m != nil && isSyndrome(m[1]) {
			return Answer{}, false, nil // see parseCommand
		}
		ms, ok := messages(s)
		if !ok {
			return Answer{}, false, nil
		}
		first := ms[0]
		if len(ms) > 1 && first.dir != 'o' && ms[1].dir != 'i' && len(ms[1].b) >= 8 && knownOp(mlx5.Op(be16(first.b))) {
			q := request(first.b)
			a := reply(q.Op, ms[1].b)
			a.OpMod = q.OpMod
			a.mean("The request was %s of uid %#x.", opText(q.Op), be16(first.b[2:]))
			return a, true, nil
		}
		a, err := oneMessage(first)
		return a, true, err
	}
}

func oneMessage(m message) (Answer, error) {
	op := mlx5.Op(be16(m.b))
	if m.dir == 0 && isCQE(m.b) {
		return cqe(m.b), nil
	}
	clean := m.b[1]|m.b[2]|m.b[3] == 0 // a reply's bytes 1 to 3 are reserved
	isReply := m.dir == 'o' || m.dir == 0 && clean
	switch {
	case !isReply && knownOp(op):
		return request(m.b), nil
	case isReply && len(m.b) >= 8 && (knownStatus(mlx5.Status(m.b[0])) || m.dir == 'o' || mlx5.Status(m.b[0]) == driverStatusAborted):
		return reply(m.op, m.b), nil
	case isReply && len(m.b) < 8:
		got := "the first bytes of a reply, status " + statusText(mlx5.Status(m.b[0]))
		if knownOp(op) {
			got += fmt.Sprintf(" (or of a request %s of uid 0)", opText(op))
		}
		return Answer{}, &InputError{Recognised: []string{got}, Missing: []string{"bytes 4 to 7, the syndrome"}, Example: exampleBytes}
	}
	return Answer{}, &InputError{
		Recognised: []string{fmt.Sprintf("%d bytes in hexadecimal", len(m.b))},
		Missing:    []string{fmt.Sprintf("a known status in byte 0 (it is %#x) or a known opcode in bytes 0 and 1 (it is %#x)", m.b[0], uint16(op))},
		Example:    exampleBytes,
	}
}

var attributeRE = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_.>-]*?)\s*[=:]\s*([^\s;,].*?)[;,]?$`)

func parseAttribute(s string) (Answer, bool, error) {
	m := attributeRE.FindStringSubmatch(s)
	if m == nil {
		return Answer{}, false, nil
	}
	return attribute(m[1], m[2])
}

var (
	errnoNameRE = regexp.MustCompile(`\bE[A-Z0-9]{2,}\b`)
	errnoNumRE  = regexp.MustCompile(`(?i)(?:\b(?:errno|err|error|ret|rc|returns?|with|failed)\b[\s:=(]*-?|\(-|\[-?)(\d{1,3})\b|^-?(\d{1,3})$`)
)

// errnoIn finds an error number by name, by number where the words around it
// say that it is one, or by the text that strerror gives.
func errnoIn(s string) (unix.Errno, bool) {
	byName, byText := errnoNames()
	for _, w := range errnoNameRE.FindAllString(s, -1) {
		if e, ok := byName[w]; ok {
			return e, true
		}
	}
	var best string
	low := strings.ToLower(s)
	for t := range byText {
		if (len(t) > len(best) || len(t) == len(best) && t < best) && strings.Contains(low, t) {
			best = t
		}
	}
	if best != "" {
		return byText[best], true
	}
	if m := errnoNumRE.FindStringSubmatch(s); m != nil {
		if v, err := strconv.Atoi(m[1] + m[2]); err == nil && v > 0 && errnoName(unix.Errno(v)) != "" {
			return unix.Errno(v), true
		}
	}
	return 0, false
}

func parseErrno(s string) (Answer, bool, error) {
	e, ok := errnoIn(strings.ToUpper(s))
	if !ok {
		return Answer{}, false, nil
	}
	a := Errno(e)
	if n, err := strconv.Atoi(strings.TrimPrefix(s, "-")); err == nil && n < len(wcStatuses) {
		a.check(fmt.Sprintf("If %d was a completion's status (%s), give it with its vendor error: %d/0x81.", n, wcName(uint8(n)), n))
	}
	return a, true, nil
}

// number reads 0x… as hexadecimal, digits as decimal and anything else with
// letters as hexadecimal.
func number(s string, bits int) (uint64, bool) {
	base := 10
	if t, ok := strings.CutPrefix(strings.ToLower(s), "0x"); ok {
		s, base = t, 16
	} else if strings.ContainsAny(strings.ToLower(s), "abcdef") {
		base = 16
	}
	v, err := strconv.ParseUint(s, base, bits)
	return v, err == nil
}

func firstOf(ss ...string) string {
	for _, s := range ss {
		if s != "" {
			return s
		}
	}
	return ""
}

func hasPrefix(s string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}

// printable keeps control characters of a log away from the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(s, "?"))
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

func be16(b []byte) uint16 { return binary.BigEndian.Uint16(b) }
func be32(b []byte) uint32 { return binary.BigEndian.Uint32(b) }
