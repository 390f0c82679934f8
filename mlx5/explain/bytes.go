// SPDX-License-Identifier: BSD-2-Clause

package explain

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"devxlab.example/mlx5"
)

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

// request explains the first bytes of a command's input.
func request(m []byte) Answer {
	op := mlx5.Op(be16(m))
	a := Answer{Kind: KindCommand, Op: op, HasOp: true}
	uid := be16(m[2:])
	a.Summary = fmt.Sprintf("request %s of uid %#x", opText(op), uid)
	a.mean("A request begins with the opcode (2 bytes), the uid (2), 2 reserved bytes and op_mod (2).")
	if uid == 0 {
		a.mean("uid 0 is the kernel's own; in a DevX call the kernel replaces it.")
	} else {
		a.mean("The uid is that of a user context; in a DevX call the kernel writes it, whatever the program put there.")
	}
	if len(m) >= 8 {
		a.OpMod = be16(m[6:])
		a.mean("op_mod is %#x.", a.OpMod)
	}
	a.check("The reply: its first byte is the status, bytes 4 to 7 are the syndrome.")
	return a
}

// reply explains a command's output, 8 bytes at least. op is 0 where the
// request is not known.
func reply(op mlx5.Op, m []byte) Answer {
	a := Status(op, mlx5.Status(m[0]), be32(m[4:]))
	if a.Status != mlx5.StatusOK {
		if x := mlx5.Op(be16(m)); op == 0 && knownOp(x) && be32(m[4:])>>16 == 0 {
			a.mean("Read as a reply. If these are the first bytes of a request, it is %s of uid 0: put `request` in front.", opText(x))
		}
		return a
	}
	if len(m) >= 12 {
		id := be32(m[8:]) & 0xffffff
		switch {
		case op == mlx5.OpCreateQP:
			a.Summary += fmt.Sprintf(": QPN %#x", id)
		case op == 0 || hasPrefix(op.String(), "CREATE_", "ALLOC_"):
			a.mean("Bytes 9 to 11 are %#x: the number of the new object, if the command made one (for CREATE_QP the QPN).", id)
		}
	}
	return a
}

// isCQE reports whether m is the last 16 bytes of an error CQE or a whole one
// of 64. In an output of the same first bytes status 0 would stand beside a
// syndrome, which does not happen.
func isCQE(m []byte) bool {
	if len(m) != 16 && len(m) != 64 {
		return false
	}
	if be32(m) != 0 {
		return false
	}
	t := m[len(m)-16:]
	op := t[15] >> 4
	return be32(t) == 0 && t[7] != 0 && (op == 0xd || op == 0xe)
}

// cqe explains an error CQE as libmlx5 and the kernel dump it.
func cqe(m []byte) Answer {
	t := m[len(m)-16:]
	a := Completion(fromCQE(t[7]), uint32(t[6]))
	side := "requester"
	if t[15]>>4 == 0xe {
		side = "responder"
	}
	a.mean("The dump is an error CQE: vendor error in byte 54 (%#x), syndrome in byte 55 (%#x), hardware syndrome in byte 52 (%#x), opcode of the WQE %#x, QPN %#x, WQE counter %#x; of the %s.",
		t[6], t[7], t[4], t[8], be32(t[8:])&0xffffff, be16(t[12:]), side)
	return a
}

func be16(b []byte) uint16 { return binary.BigEndian.Uint16(b) }
func be32(b []byte) uint32 { return binary.BigEndian.Uint32(b) }
