// SPDX-License-Identifier: BSD-2-Clause

package headergen

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// cmHeader has the messages of the communication manager.
const cmHeader = "ibta_vol1_c12.h"

// cmBytes is what a MAD has behind its header, in bytes: each message fills it.
const cmBytes = 256 - 24

// A cmField is a number of bits, counted from the most significant bit of a
// message's first byte.
type cmField struct {
	name      string // "LOCAL_COMM_ID"
	at, width int
	bytes     bool // an array or the private data
	gid       bool
}

type cmMessage struct {
	name   string // "REQ"
	table  string // "Table 106"
	fields []cmField
}

// cmDoc says what each message is for.
var cmDoc = map[string]string{
	"REQ":      "asks for a connection",
	"MRA":      "says that an answer will take longer",
	"REJ":      "refuses, or gives up",
	"REP":      "accepts a connection",
	"RTU":      "completes it",
	"DREQ":     "asks to end a connection",
	"DREP":     "ends it",
	"LAP":      "offers an alternate path",
	"APR":      "answers that",
	"SIDR_REQ": "asks for the queue pair of a datagram service",
	"SIDR_REP": "names it",
}

var (
	cmDefine = regexp.MustCompile(`(?m)^#define CM_(\w+?)\s+CM_FIELD(8_LOC|16_LOC|32_LOC|64_LOC|_BLOC|_MLOC)\(struct cm_(\w+)_msg, ([^)]*)\)`)
	cmStruct = regexp.MustCompile(`(?m)^CM_STRUCT\(struct cm_(\w+)_msg, (\d+) \* 8 \+ (\d+)\)`)
	cmTable  = regexp.MustCompile(`/\* (Table \d+) (\w+) Message Contents \*/`)
)

// CM returns the generated files of package cm/roce by name.
func CM() (map[string][]byte, error) {
	dir, err := KernelHeaders()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "../../rdma", cmHeader)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	messages, err := cmMessages(strings.ReplaceAll(string(text), "\\\n", " "))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var b strings.Builder
	b.WriteString(head + "package roce\n\nimport (\n\"encoding/binary\"\n\n\"github.com/google/gopacket\"\n\"github.com/google/gopacket/layers\"\n)\n")
	for _, m := range messages {
		m.write(&b)
	}
	return formatted(map[string]string{"cm_gen.go": b.String()})
}

func cmMessages(text string) ([]*cmMessage, error) {
	var messages []*cmMessage
	byName := map[string]*cmMessage{}
	for _, m := range cmTable.FindAllStringSubmatch(text, -1) {
		byName[m[2]] = &cmMessage{name: m[2], table: m[1]}
		messages = append(messages, byName[m[2]])
	}
	for _, d := range cmDefine.FindAllStringSubmatch(text, -1) {
		m := byName[strings.ToUpper(d[3])]
		if m == nil {
			return nil, fmt.Errorf("a field of struct cm_%s_msg, which no comment names", d[3])
		}
		f, err := cmFieldOf(strings.TrimPrefix(d[1], m.name+"_"), d[2], strings.Split(d[4], ","))
		if err != nil {
			return nil, fmt.Errorf("CM_%s: %w", d[1], err)
		}
		m.fields = append(m.fields, f)
	}
	sizes := map[string]bool{}
	for _, s := range cmStruct.FindAllStringSubmatch(text, -1) {
		start, _ := strconv.Atoi(s[2])
		rest, _ := strconv.Atoi(s[3])
		if start+rest/8 != cmBytes {
			return nil, fmt.Errorf("struct cm_%s_msg has %d bytes, not %d", s[1], start+rest/8, cmBytes)
		}
		sizes[strings.ToUpper(s[1])] = true
	}
	for _, m := range messages {
		if !sizes[m.name] || len(m.fields) == 0 || cmDoc[m.name] == "" {
			return nil, fmt.Errorf("%s: no size, no field, or not known", m.name)
		}
	}
	if len(messages) != len(cmDoc) {
		return nil, fmt.Errorf("%d messages, not %d", len(messages), len(cmDoc))
	}
	return messages, nil
}

// cmFieldOf reads a field's arguments: byte and width, and of _BLOC the bit in
// the byte between them.
func cmFieldOf(name, kind string, args []string) (cmField, error) {
	n := make([]int, len(args))
	for i, a := range args {
		n[i], _ = strconv.Atoi(strings.TrimSpace(a)) // not a number: the type of _MLOC
	}
	switch {
	case kind == "64_LOC" && len(n) == 1:
		return cmField{name: name, at: n[0] * 8, width: 64}, nil
	case kind == "_BLOC" && len(n) == 3:
		return cmField{name: name, at: n[0]*8 + n[1], width: n[2]}, nil
	case kind == "_MLOC" && len(n) == 3:
		return cmField{name: name, at: n[0] * 8, width: n[1], bytes: true, gid: strings.Contains(args[2], "gid")}, nil
	case strings.HasSuffix(kind, "_LOC") && len(n) == 2:
		return cmField{name: name, at: n[0] * 8, width: n[1]}, nil
	}
	return cmField{}, fmt.Errorf("CM_FIELD%s with %d arguments", kind, len(n))
}

// cmWords are capitals in the names of messages and fields, besides those of
// every header.
var cmWords = map[string]bool{"REQ": true, "MRA": true, "REJ": true, "REP": true, "RTU": true, "DREQ": true, "DREP": true, "LAP": true, "APR": true, "SIDR": true,
	"GUID": true, "CA": true, "CM": true, "EE": true, "EECN": true, "RDC": true, "SAP": true, "ARI": true, "AR": true}

// cmOdd are words that the header runs together.
var cmOdd = map[string]string{"REQUESTID": "RequestID", "SERVICEID": "ServiceID", "MRAED": "MRAed"}

// cmName turns LOCAL_CA_GUID into LocalCAGUID, and SIDR_REQ into SIDRReq.
func cmName(s string) string {
	var b strings.Builder
	for i, w := range strings.Split(s, "_") {
		if odd := cmOdd[w]; odd != "" {
			b.WriteString(odd)
		} else if cmWords[w] && (i == 0 || !strings.HasPrefix(s, "SIDR_")) {
			b.WriteString(w)
		} else {
			b.WriteString(camel(w))
		}
	}
	return b.String()
}

func (m *cmMessage) write(b *strings.Builder) {
	name := cmName(m.name)
	fmt.Fprintf(b, "\n// %s %s (IBTA specification, volume 1, %s; struct cm_%s_msg in the kernel's %s).\ntype %s struct {\nlayers.BaseLayer\n",
		name, cmDoc[m.name], strings.ToLower(m.table), strings.ToLower(m.name), cmHeader, name)
	for _, f := range m.fields {
		fmt.Fprintf(b, "%s %s%s\n", cmName(f.name), f.goType(), f.comment())
	}
	fmt.Fprintf(b, "}\n\n// LayerType is %s.\nfunc (*%s) LayerType() gopacket.LayerType { return %[1]s }\n", layerType(name), name)
	fmt.Fprintf(b, "\n// CanDecode is %s.\nfunc (*%s) CanDecode() gopacket.LayerClass { return %[1]s }\n", layerType(name), name)
	fmt.Fprintf(b, "\n// NextLayerType is none.\nfunc (*%s) NextLayerType() gopacket.LayerType { return gopacket.LayerTypeZero }\n", name)
	fmt.Fprintf(b, "\n// DecodeFromBytes reads the %d bytes behind a MAD's header. Byte slices of m are parts of data.\nfunc (m *%s) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {\n", cmBytes, name)
	fmt.Fprintf(b, "if len(data) < cmBytes {\nreturn tooShort(%q, len(data), cmBytes, df)\n}\nm.Contents, m.Payload = data[:cmBytes], nil\n", name)
	for _, f := range m.fields {
		fmt.Fprintf(b, "%s\n", f.decode())
	}
	fmt.Fprintf(b, "return nil\n}\n\n// SerializeTo prepends the %d bytes. Private data and the like may be shorter than their place.\nfunc (m *%s) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {\n", cmBytes, name)
	fmt.Fprintf(b, "p, err := prependCM(b)\nif err != nil {\nreturn err\n}\n")
	for _, f := range m.fields {
		fmt.Fprintf(b, "%s\n", f.encode(name))
	}
	b.WriteString("return nil\n}\n")
}

func layerType(name string) string { return "LayerType" + name }

func (f cmField) goType() string {
	switch {
	case f.gid:
		return "GID"
	case f.bytes:
		return "[]byte"
	case f.width == 1:
		return "bool"
	case f.width <= 8:
		return "uint8"
	case f.width <= 16:
		return "uint16"
	case f.width <= 32:
		return "uint32"
	}
	return "uint64"
}

func (f cmField) comment() string {
	switch {
	case f.gid:
	case f.bytes:
		return fmt.Sprintf(" // %d bytes", f.width/8)
	case f.width != 1 && f.width%8 != 0 || f.width == 24:
		return fmt.Sprintf(" // %d bits", f.width)
	}
	return ""
}

// word returns the size in bits of the least word of 1, 2, 4 or 8 bytes that has
// the field and begins at one of its bytes, and how far the field is from its end.
func (f cmField) word() (bits, first, shift int) {
	first = f.at / 8
	for bits = 8; f.at-first*8+f.width > bits; bits *= 2 {
	}
	return bits, first, bits - (f.at - first*8) - f.width
}

func (f cmField) decode() string {
	to := "m." + cmName(f.name)
	bits, first, shift := f.word()
	switch {
	case f.gid:
		return fmt.Sprintf("copy(%s[:], data[%d:])", to, first)
	case f.bytes:
		return fmt.Sprintf("%s = data[%d:%d]", to, first, first+f.width/8)
	}
	v := fmt.Sprintf("data[%d]", first)
	if bits > 8 {
		v = fmt.Sprintf("binary.BigEndian.Uint%d(data[%d:])", bits, first)
	}
	if shift > 0 {
		v += fmt.Sprintf(" >> %d", shift)
	}
	if f.width+shift < bits {
		v += fmt.Sprintf(" & %#x", uint64(1)<<f.width-1)
	}
	if f.width == 1 {
		return fmt.Sprintf("%s = %s != 0", to, v)
	}
	if t := f.goType(); t != fmt.Sprintf("uint%d", bits) {
		v = fmt.Sprintf("%s(%s)", t, v)
	}
	return fmt.Sprintf("%s = %s", to, v)
}

func (f cmField) encode(message string) string {
	from := "m." + cmName(f.name)
	bits, first, shift := f.word()
	switch {
	case f.gid:
		return fmt.Sprintf("copy(p[%d:], %s[:])", first, from)
	case f.bytes:
		return fmt.Sprintf("if len(%s) > %d {\nreturn tooLong(%q, %q, len(%[1]s), %[2]d)\n}\ncopy(p[%[5]d:], %[1]s)", from, f.width/8, message, cmName(f.name), first)
	case f.width == 1:
		return fmt.Sprintf("if %s {\np[%d] |= %#x\n}", from, first, 1<<shift)
	}
	var check string
	if t := f.goType(); t != fmt.Sprintf("uint%d", f.width) {
		check = fmt.Sprintf("if %s >= 1<<%d {\nreturn tooWide(%q, %q, uint64(%[1]s), %[2]d)\n}\n", from, f.width, message, cmName(f.name))
	}
	v := from
	if t := fmt.Sprintf("uint%d", bits); f.goType() != t {
		v = fmt.Sprintf("%s(%s)", t, from)
	}
	if shift > 0 {
		v += fmt.Sprintf("<<%d", shift)
	}
	switch {
	case bits == 8:
		return fmt.Sprintf("%sp[%d] |= %s", check, first, v)
	case f.width == bits:
		return fmt.Sprintf("%sbinary.BigEndian.PutUint%d(p[%d:], %s)", check, bits, first, v)
	}
	return fmt.Sprintf("%sbinary.BigEndian.PutUint%d(p[%d:], binary.BigEndian.Uint%[2]d(p[%[3]d:])|%[4]s)", check, bits, first, v)
}
