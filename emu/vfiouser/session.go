// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// session is one client.
type session struct {
	*conn
	f     Function
	shape shape
	log   func(error)

	host  *host
	xfer  uint32 // the most data in a message
	multi bool   // VFIO_USER_REGION_WRITE_MULTI was agreed on
}

// host is a session's Host.
type host struct {
	memory
	vectors
}

func newSession(f Function, s shape, c *net.UnixConn, log func(error)) *session {
	return &session{
		conn:  newConn(c),
		f:     f,
		shape: s,
		log:   log,
		host:  &host{vectors: newVectors(s.vectors)},
		xfer:  defaultMaxXfer,
	}
}

// command is a row of the table of commands.
type command struct {
	name   string
	size   int  // of the payload's fixed part
	longer bool // more may follow
	fds    int  // that may come with it
	do     func(*session, []byte) error
}

// commands is indexed by a command's number. What has no function is refused.
var commands = [...]command{
	cmdVersion:        {"VERSION", versionSize, true, 0, (*session).again},
	cmdDMAMap:         {"DMA_MAP", dmaMapSize, false, 1, (*session).dmaMap},
	cmdDMAUnmap:       {"DMA_UNMAP", dmaUnmapSize, false, 0, (*session).dmaUnmap},
	cmdGetInfo:        {"DEVICE_GET_INFO", deviceInfoSize, false, 0, (*session).getInfo},
	cmdGetRegionInfo:  {"DEVICE_GET_REGION_INFO", regionInfoSize, false, 0, (*session).getRegionInfo},
	cmdGetRegionIOFDs: {"DEVICE_GET_REGION_IO_FDS", regionIOFDsSize, false, 0, (*session).getRegionIOFDs},
	cmdGetIRQInfo:     {"DEVICE_GET_IRQ_INFO", irqInfoSize, false, 0, (*session).getIRQInfo},
	cmdSetIRQs:        {"DEVICE_SET_IRQS", irqSetSize, true, maxFDs, (*session).setIRQs},
	cmdRegionRead:     {"REGION_READ", regionAccessSize, false, 0, (*session).regionRead},
	cmdRegionWrite:    {"REGION_WRITE", regionAccessSize, true, 0, (*session).regionWrite},
	cmdDMARead:        {name: "DMA_READ"},  // the server's to send
	cmdDMAWrite:       {name: "DMA_WRITE"}, // the same
	cmdReset:          {"DEVICE_RESET", 0, false, 0, (*session).reset},
	cmdDirtyPages:     {name: "DIRTY_PAGES"},
	cmdWriteMulti:     {"REGION_WRITE_MULTI", multiHeaderSize, true, 0, (*session).writeMulti},
	cmdFeature:        {name: "DEVICE_FEATURE"},
	cmdMigDataRead:    {name: "MIG_DATA_READ"},
	cmdMigDataWrite:   {name: "MIG_DATA_WRITE"},
}

func commandName(n uint16) string {
	if int(n) < len(commandNames) && commandNames[n] != "" {
		return commandNames[n]
	}
	return fmt.Sprintf("command %d", n)
}

// commandNames is filled at the start: the functions in commands lead back to
// commandName.
var commandNames [len(commands)]string

func init() {
	for i, c := range commands {
		commandNames[i] = c.name
	}
}

// run serves the client until it is gone. The error says why it was dropped.
func (s *session) run() error {
	defer s.closeFDs()
	if err := s.handshake(); err != nil {
		if err == errGone {
			return nil
		}
		return fmt.Errorf("handshake: %w", err)
	}
	s.f.Attach(s.host)
	defer s.end()
	for {
		h, payload, err := s.receive(maxMessage)
		if err == nil {
			err = s.serve(h, payload)
		}
		if err == errGone {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// end ends the function's use of the client, then gives up what it holds.
func (s *session) end() {
	s.f.Detach()
	s.host.unmapAll()
	s.host.disable()
}

// serve executes a command and replies. A refused one is not an error.
func (s *session) serve(h header, payload []byte) error {
	s.out = s.out[:headerSize]
	var errno unix.Errno
	err := s.execute(h, payload)
	s.closeFDs()
	if err != nil {
		var r *RequestError
		if !errors.As(err, &r) {
			return err
		}
		r.Command, r.ID = commandName(h.Command), h.ID
		s.log(r)
		errno = r.Errno
	}
	if h.Flags&flagNoReply != 0 {
		return nil
	}
	return s.reply(h, errno)
}

// execute checks what all commands have in common and executes one.
func (s *session) execute(h header, payload []byte) error {
	var c command
	if int(h.Command) < len(commands) {
		c = commands[h.Command]
	}
	switch {
	case h.Flags&^(flagType|flagNoReply) != 0 || h.Errno != 0:
		return refuse(unix.EINVAL, "flags %#x, error %d", h.Flags, h.Errno)
	case c.do == nil:
		return refuse(unix.EOPNOTSUPP, "not a command that this server has")
	case len(payload) < c.size || len(payload) > c.size && !c.longer:
		return refuse(unix.EINVAL, "%d bytes instead of %d", len(payload), c.size)
	case len(s.fds) > c.fds:
		return refuse(unix.EINVAL, "%d file descriptors", len(s.fds))
	}
	return c.do(s, payload)
}

// handshake takes the first message, VFIO_USER_VERSION, and replies to it.
func (s *session) handshake() error {
	if err := s.expect(); err != nil {
		return err
	}
	h, payload, err := s.receive(maxVersion)
	if err != nil {
		return err
	}
	r := s.negotiate(h, payload)
	s.closeFDs()
	if r == nil {
		return s.reply(h, 0)
	}
	r.Command, r.ID = commandName(h.Command), h.ID
	if err := s.reply(h, r.Errno); err != nil {
		return err
	}
	return r
}

// negotiate puts the reply to VFIO_USER_VERSION together. It has the
// capabilities that the client has named, so that it does not become longer than
// the command: that is the room QEMU has for it.
func (s *session) negotiate(h header, payload []byte) *RequestError {
	switch {
	case h.Command != cmdVersion:
		return refuse(unix.EINVAL, "the first message must be VERSION")
	case h.Flags != 0 || h.Errno != 0:
		return refuse(unix.EINVAL, "flags %#x, error %d", h.Flags, h.Errno)
	case len(payload) < versionSize:
		return refuse(unix.EINVAL, "%d bytes instead of %d", len(payload), versionSize)
	case len(s.fds) > 0:
		return refuse(unix.EINVAL, "%d file descriptors", len(s.fds))
	}
	v := decode[version](payload)
	if v.Major != versionMajor {
		return refuse(unix.EINVAL, "version %d.%d; this server has %d.%d", v.Major, v.Minor, versionMajor, versionMinor)
	}
	s.out = s.out[:headerSize]
	s.add(version{versionMajor, min(v.Minor, versionMinor)})
	text := payload[versionSize:]
	if len(text) == 0 {
		return nil
	}
	text, found := bytes.CutSuffix(text, []byte{0})
	if !found {
		return refuse(unix.EINVAL, "the capabilities do not end with a zero byte")
	}
	var d versionData
	if err := json.Unmarshal(text, &d); err != nil {
		return refuse(unix.EINVAL, "capabilities %.200q: %v", text, err)
	}
	var ours capabilities
	if theirs := d.Capabilities; theirs != nil {
		if theirs.MaxMsgFDs != nil {
			ours.MaxMsgFDs = new(uint64(maxFDs))
		}
		if n := theirs.MaxDataXferSize; n != nil {
			s.xfer = uint32(min(*n, maxXfer))
			ours.MaxDataXferSize = new(uint64(s.xfer))
		}
		if theirs.MaxDMAMaps != nil {
			ours.MaxDMAMaps = new(uint64(min(*theirs.MaxDMAMaps, maxRegions)))
		}
		if theirs.PageSizes != nil {
			ours.PageSizes = new(uint64(pageSize))
		}
		if m := theirs.WriteMultiple; m != nil {
			s.multi = *m
			ours.WriteMultiple = m
		}
	}
	reply, err := json.Marshal(versionData{&ours})
	if err != nil {
		panic(err) // numbers and booleans
	}
	s.out = append(append(s.out, reply...), 0)
	return nil
}

// again refuses a second VFIO_USER_VERSION.
func (s *session) again([]byte) error {
	return refuse(unix.EINVAL, "the version is negotiated already")
}
