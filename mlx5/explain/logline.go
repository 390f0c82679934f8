// SPDX-License-Identifier: BSD-2-Clause

package explain

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"devxlab.example/mlx5"
	"golang.org/x/sys/unix"
)

var (
	opRE        = regexp.MustCompile(`(?i)\b([0-9a-z]+(?:_[0-9a-z]+)+|NOP|unknown command opcode)\((0x[0-9a-f]{3,4})\)`)
	opModRE     = regexp.MustCompile(`(?i)\bop_mod\s*(?:\((0x[0-9a-f]+)\)|=\s*(0x[0-9a-f]+)\b)`)
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
	if m := hexNumberRE.FindStringSubmatch(s); m != nil {
		return bareNumber(m[1])
	}
	a := Answer{Kind: KindCommand}
	s, notes := a.readOp(s)
	low := strings.ToLower(s)
	switch {
	case a.HasOp && canceledRE.MatchString(s):
		return a.gaveUp(unix.ECANCELED, "was withdrawn: it never got a command slot", commandCanceled), true, nil
	case a.HasOp && timeoutRE.MatchString(s):
		return a.gaveUp(unix.ETIMEDOUT, "timed out: firmware did not answer", commandTimeout), true, nil
	case !a.HasOp && !strings.Contains(low, "failed") && !strings.Contains(low, "syndrome") && !strings.Contains(low, "op_mod") && !strings.Contains(low, "--status"):
		return a, false, nil
	case !a.HasOp:
		a.Op, a.HasOp = opInWords(s)
	}
	recognised, more := a.readFields(s)
	notes = append(notes, more...)
	e, hasErrno := errnoIn(s)
	switch {
	case a.HasSyndrome:
	case len(recognised) == 0:
		return a, false, nil
	case hasErrno && a.HasOp && !strings.Contains(low, "status"): // create_qp failed: Cannot allocate memory
		x := Errno(e)
		x.Op, x.HasOp, x.OpMod = a.Op, a.HasOp, a.OpMod
		x.Summary = opText(a.Op) + " gave " + x.Summary
		return x, true, nil
	default:
		var missing []string
		if !a.HasOp {
			missing = append(missing, "the command")
		}
		if !a.HasStatus {
			missing = append(missing, "the status with its number")
		}
		return a, true, &InputError{Recognised: recognised, Missing: append(missing, "the syndrome"), Example: exampleLine}
	}

	a.command()
	if hasErrno {
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

// bareNumber takes a hexadecimal number without a word for a syndrome, unless
// it is so small that it can be anything.
func bareNumber(digits string) (Answer, bool, error) {
	v, _ := strconv.ParseUint(digits, 16, 32) // hexNumberRE allows 8 digits
	if v <= 0xff {
		return Answer{}, true, &InputError{Recognised: []string{fmt.Sprintf("the number %#x", v)}, Missing: []string{"what it is: a status, a syndrome, an errno or a vendor error"}, Example: "syndrome 0x65b500, or errno 22, or 12/0x81"}
	}
	a := Answer{Kind: KindCommand, Syndrome: uint32(v), HasSyndrome: true}
	a.command()
	return a, true, nil
}

func (a *Answer) gaveUp(e unix.Errno, what, meaning string) Answer {
	a.Errno, a.Summary = e, opText(a.Op)+" "+what
	a.Meaning = append(a.Meaning, meaning, fmt.Sprintf("The caller gets %s.", errnoText(e)))
	a.check(hungFirst, healthCheck)
	return *a
}

// readOp finds NAME(0x…) and returns the text without the commands after it.
func (a *Answer) readOp(s string) (rest string, notes []string) {
	found := slices.DeleteFunc(opRE.FindAllStringSubmatchIndex(s, -1), func(m []int) bool { return strings.EqualFold(s[m[2]:m[3]], "op_mod") })
	if len(found) == 0 {
		return s, nil
	}
	name := s[found[0][2]:found[0][3]]
	v, _ := strconv.ParseUint(s[found[0][4]:found[0][5]], 0, 16) // opRE allows 4 digits
	a.Op, a.HasOp = mlx5.Op(v), true
	if named, ok := mlx5.ParseOp(name); ok && named != a.Op || knownOp(a.Op) && !ok && !strings.Contains(name, " ") {
		notes = append(notes, fmt.Sprintf("The line names %s, but the number is that of %s; the number decides.", name, opText(a.Op)))
	}
	if len(found) > 1 {
		s = s[:found[1][0]]
		notes = append(notes, fmt.Sprintf("The text has %d commands; this is the first.", len(found)))
	}
	return s, notes
}

// readFields finds op_mod, status and syndrome. A number whose parenthesis is
// cut off may itself be cut, and does not count.
func (a *Answer) readFields(s string) (recognised, notes []string) {
	if a.HasOp {
		recognised = append(recognised, "command "+opText(a.Op))
	}
	if m := opModRE.FindStringSubmatch(s); m != nil {
		if v, ok := number(firstOf(m[1:]...), 16); ok {
			a.OpMod = uint16(v)
			recognised = append(recognised, fmt.Sprintf("op_mod %#x", v))
		}
	}
	if m := statusRE.FindStringSubmatch(s); m != nil {
		if v, ok := number(firstOf(m[2:]...), 8); ok {
			a.Status, a.HasStatus = mlx5.Status(v), true
			if w := strings.TrimSpace(m[1]); w != "" && !strings.EqualFold(w, statusWords(a.Status)) {
				notes = append(notes, fmt.Sprintf("The line says %q beside status %s; the number decides.", w, statusText(a.Status)))
			}
		}
	} else if m := statusWord.FindStringSubmatch(s); m != nil {
		a.Status, a.HasStatus = mlx5.ParseStatus(m[1])
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
	return recognised, notes
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
