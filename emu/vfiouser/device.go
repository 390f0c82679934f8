// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// tooSmall refuses an argsz, the room for a reply's payload, that is too small.
func tooSmall(argsz uint32, need int) error {
	if argsz < uint32(need) {
		return refuse(unix.EINVAL, "argsz %d: the reply has %d bytes", argsz, need)
	}
	return nil
}

func (s *session) getInfo(payload []byte) error {
	m := decode[deviceInfo](payload)
	if m.Flags|m.Regions|m.IRQs != 0 {
		return refuse(unix.EINVAL, "fields that must be zero: %+v", m)
	}
	if err := tooSmall(m.Argsz, deviceInfoSize); err != nil {
		return err
	}
	s.add(deviceInfo{deviceInfoSize, deviceReset | devicePCI, numRegions, numIRQs})
	return nil
}

// getRegionInfo answers for a region that is not there with size 0, as the
// kernel does: QEMU asks for all of them.
func (s *session) getRegionInfo(payload []byte) error {
	m := decode[regionInfo](payload)
	if m.Flags|m.CapOffset != 0 || m.Size|m.Offset != 0 {
		return refuse(unix.EINVAL, "fields that must be zero: %+v", m)
	}
	if m.Index >= numRegions {
		return refuse(unix.EINVAL, "region %d of %d", m.Index, numRegions)
	}
	if err := tooSmall(m.Argsz, regionInfoSize); err != nil {
		return err
	}
	info := regionInfo{Argsz: regionInfoSize, Index: m.Index, Size: s.shape.size(m.Index)}
	if info.Size > 0 {
		info.Flags = regionCanRead | regionCanWrite
	}
	s.add(info)
	return nil
}

// getRegionIOFDs refuses: a reply would have a descriptor in it, and no region
// has one.
func (s *session) getRegionIOFDs(payload []byte) error {
	m := decode[regionIOFDs](payload)
	if m.Flags|m.Count != 0 {
		return refuse(unix.EINVAL, "fields that must be zero: %+v", m)
	}
	if m.Index >= numRegions {
		return refuse(unix.EINVAL, "region %d of %d", m.Index, numRegions)
	}
	if err := tooSmall(m.Argsz, regionIOFDsSize); err != nil {
		return err
	}
	return refuse(unix.EOPNOTSUPP, "region %d has no I/O event descriptors", m.Index)
}

func (s *session) getIRQInfo(payload []byte) error {
	m := decode[irqInfo](payload)
	if m.Flags|m.Count != 0 {
		return refuse(unix.EINVAL, "fields that must be zero: %+v", m)
	}
	if m.Index >= numIRQs {
		return refuse(unix.EINVAL, "interrupt index %d of %d", m.Index, numIRQs)
	}
	if err := tooSmall(m.Argsz, irqInfoSize); err != nil {
		return err
	}
	info := irqInfo{Argsz: irqInfoSize, Index: m.Index, Count: s.shape.irqs(m.Index)}
	if info.Count > 0 {
		info.Flags = irqEventFD
	}
	s.add(info)
	return nil
}

func (s *session) reset([]byte) error {
	s.f.Reset()
	return nil
}

// check refuses an access that is not within a region.
func (s *session) check(a regionAccess) error {
	size := s.shape.size(a.Region)
	switch {
	case size == 0:
		return refuse(unix.EINVAL, "there is no region %d", a.Region)
	case a.Count == 0 || a.Count > s.xfer:
		return refuse(unix.EINVAL, "%d bytes: not 1 to %d", a.Count, s.xfer)
	case a.Offset >= size || uint64(a.Count) > size-a.Offset:
		return refuse(unix.EINVAL, "%d bytes at %#x of region %d, which has %#x", a.Count, a.Offset, a.Region, size)
	}
	return nil
}

func (s *session) regionRead(payload []byte) error {
	a := decode[regionAccess](payload)
	if err := s.check(a); err != nil {
		return err
	}
	s.add(a)
	at := len(s.out)
	s.out = append(s.out, make([]byte, a.Count)...)
	if b := s.out[at:]; a.Region == regionConfig {
		s.f.ReadConfig(int(a.Offset), b)
	} else {
		s.f.ReadBAR(int(a.Region-regionBAR0), int64(a.Offset), b)
	}
	return nil
}

func (s *session) regionWrite(payload []byte) error {
	a := decode[regionAccess](payload)
	if err := s.check(a); err != nil {
		return err
	}
	data := payload[regionAccessSize:]
	if len(data) != int(a.Count) {
		return refuse(unix.EINVAL, "%d bytes of data for a count of %d", len(data), a.Count)
	}
	s.write(a, data)
	s.add(a)
	return nil
}

func (s *session) write(a regionAccess, data []byte) {
	if a.Region == regionConfig {
		s.f.WriteConfig(int(a.Offset), data)
	} else {
		s.f.WriteBAR(int(a.Region-regionBAR0), int64(a.Offset), data)
	}
}

// writeMulti does all of the writes or, if one is wrong, none. QEMU sends it
// while more than 128 messages wait in its queue.
func (s *session) writeMulti(payload []byte) error {
	if !s.multi {
		return refuse(unix.EOPNOTSUPP, "write_multiple was not agreed on")
	}
	n, writes := binary.NativeEndian.Uint64(payload), payload[multiHeaderSize:]
	if n == 0 || len(writes)%multiWriteSize != 0 || n != uint64(len(writes)/multiWriteSize) {
		return refuse(unix.EINVAL, "%d writes in %d bytes", n, len(payload))
	}
	for at := 0; at < len(writes); at += multiWriteSize {
		w := decode[multiWrite](writes[at:])
		if int(w.Count) > len(w.Data) {
			return refuse(unix.EINVAL, "write %d has %d bytes", at/multiWriteSize, w.Count)
		}
		if err := s.check(w.regionAccess); err != nil {
			return err
		}
	}
	for at := 0; at < len(writes); at += multiWriteSize {
		w := decode[multiWrite](writes[at:])
		s.write(w.regionAccess, w.Data[:w.Count])
	}
	s.add(n)
	return nil
}
