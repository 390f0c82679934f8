// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestVersion(t *testing.T) {
	const everything = `{"capabilities":{"max_msg_fds":16,"max_data_xfer_size":1048576,"max_dma_maps":4096,"pgsizes":4096,"write_multiple":true}}` + "\x00"
	for _, c := range []struct{ what, sent, want string }{
		{"QEMU", qemuVersion, everything},
		{"nothing", "", ""},
		{"no capabilities", "{}\x00", `{"capabilities":{}}` + "\x00"},
		{"unknown ones", `{"capabilities":{"twin_socket":{"supported":true},"x":[1]},"y":2}` + "\x00", `{"capabilities":{}}` + "\x00"},
		{"less than ours", `{"capabilities":{"max_data_xfer_size":4096,"max_dma_maps":7,"write_multiple":false}}` + "\x00",
			`{"capabilities":{"max_data_xfer_size":4096,"max_dma_maps":7,"write_multiple":false}}` + "\x00"},
		{"more than ours", `{"capabilities":{"max_data_xfer_size":18446744073709551615,"max_msg_fds":1}}` + "\x00",
			`{"capabilities":{"max_msg_fds":16,"max_data_xfer_size":1048576}}` + "\x00"},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := newRig(t)
			cl := r.dial()
			reply := cl.ok(cmdVersion, pack(version{0, 3}, c.sent))
			if got, want := string(reply), string(pack(version{0, 0}, c.want)); got != want {
				t.Errorf("reply\n%q, want\n%q", got, want)
			}
			if c.what == "QEMU" && len(reply) > versionSize+len(c.sent) {
				t.Errorf("the reply has %d bytes; QEMU has room for %d", len(reply), versionSize+len(c.sent))
			}
			<-r.dev.attached
		})
	}
}

// A client that cannot be agreed with is told why, and dropped; the function
// does not hear of it.
func TestVersionRefused(t *testing.T) {
	hello := pack(version{}, qemuVersion)
	for _, c := range []struct {
		what    string
		h       header
		payload []byte
		fds     bool
		why     string
	}{
		{"another command", header{Command: cmdGetInfo}, pack(deviceInfo{}), false, "first message must be VERSION"},
		{"an unknown command", header{Command: 99}, nil, false, "first message must be VERSION"},
		{"a major version", header{Command: cmdVersion}, pack(version{1, 0}), false, "version 1.0"},
		{"short", header{Command: cmdVersion}, []byte{0, 0, 0}, false, "3 bytes"},
		{"no reply", header{Command: cmdVersion, Flags: flagNoReply}, hello, false, "flags 0x10"},
		{"flags", header{Command: cmdVersion, Flags: 0x40}, hello, false, "flags 0x40"},
		{"errno", header{Command: cmdVersion, Errno: 1}, hello, false, "error 1"},
		{"no zero byte", header{Command: cmdVersion}, pack(version{}, "{}"), false, "zero byte"},
		{"only a zero byte", header{Command: cmdVersion}, pack(version{}, "\x00"), false, "JSON"},
		{"not JSON", header{Command: cmdVersion}, pack(version{}, "{}}\x00"), false, "after top-level value"},
		{"zero byte within", header{Command: cmdVersion}, pack(version{}, "{}\x00\x00"), false, "capabilities"},
		{"negative", header{Command: cmdVersion}, pack(version{}, `{"capabilities":{"max_msg_fds":-1}}`+"\x00"), false, "max_msg_fds"},
		{"type", header{Command: cmdVersion}, pack(version{}, `{"capabilities":{"pgsizes":"4096"}}`+"\x00"), false, "pgsizes"},
		{"not an object", header{Command: cmdVersion}, pack(version{}, `{"capabilities":[]}`+"\x00"), false, "capabilities"},
		{"deep", header{Command: cmdVersion}, pack(version{}, strings.Repeat("[", 15000)+"\x00"), false, "depth"},
		{"a descriptor", header{Command: cmdVersion}, hello, true, "1 file descriptors"},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := newRig(t)
			cl := r.dial()
			var fds []int
			if c.fds {
				fds = []int{memfd(t, 0)}
			}
			cl.write(message(c.h, c.payload), fds...)
			if h, _ := cl.read(); h.Errno != uint32(unix.EINVAL) || h.Command != c.h.Command {
				t.Errorf("reply %+v", h)
			}
			cl.dropped()
			if why := r.refused(); !strings.Contains(why, c.why) {
				t.Errorf("%q, want %q in it", why, c.why)
			}
			r.connect() // the next one is served
		})
	}
}

func TestVersionTwice(t *testing.T) {
	c := connect(t)
	c.fails(unix.EINVAL, cmdVersion, pack(version{}, qemuVersion))
	c.sync()
}
