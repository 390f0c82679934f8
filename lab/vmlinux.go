// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/therootcompany/xz"
)

// ErrNotKernel is a file that is neither a bzImage nor an ELF kernel.
var ErrNotKernel = errors.New("not an x86-64 kernel (bzImage or vmlinux)")

// errPayload is a bzImage whose compression is unknown here (lzma, lzo): it can
// be booted as it is.
var errPayload = errors.New("compression unknown")

// maxKernel bounds what a kernel decompresses to.
const maxKernel = 512 << 20

// Offsets in the setup header of a bzImage, which has magic at 0x202: the number
// of setup sectors, the version, and where the payload is, from protocol 2.08 on
// (Documentation/arch/x86/boot.rst).
const (
	setupSects    = 0x1f1
	setupMagic    = 0x202
	setupVersion  = 0x206
	payloadOffset = 0x248
	payloadLength = 0x24c
	setupEnd      = 0x250
)

// Vmlinux returns the ELF kernel in a bzImage, or the kernel itself if it is one.
// QEMU starts such a kernel through its PVH entry, which under emulation spares
// the 11 s in which a bzImage unpacks itself.
func Vmlinux(b []byte) ([]byte, error) {
	if bytes.HasPrefix(b, []byte(elf.ELFMAG)) {
		return b, checkVmlinux(b)
	}
	if len(b) < setupEnd || string(b[setupMagic:setupMagic+4]) != "HdrS" {
		return nil, ErrNotKernel
	}
	le := binary.LittleEndian
	if v := le.Uint16(b[setupVersion:]); v < 0x208 {
		return nil, fmt.Errorf("%w: boot protocol %#x is older than Linux 2.6.26", ErrNotKernel, v)
	}
	sects := uint64(b[setupSects])
	if sects == 0 {
		sects = 4 // boot.rst: for old loaders
	}
	from := (sects+1)*512 + uint64(le.Uint32(b[payloadOffset:]))
	to := from + uint64(le.Uint32(b[payloadLength:]))
	if to > uint64(len(b)) || to < from+8 {
		return nil, fmt.Errorf("%w: its payload, bytes %d to %d, is cut off at %d", ErrNotKernel, from, to, len(b))
	}
	out, err := decompress(b[from:to], true)
	if err != nil {
		return nil, fmt.Errorf("payload of the bzImage: %w", err)
	}
	return out, checkVmlinux(out)
}

func checkVmlinux(b []byte) error {
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotKernel, err)
	}
	if f.Machine != elf.EM_X86_64 || f.Type != elf.ET_EXEC {
		return fmt.Errorf("%w: %v %v", ErrNotKernel, f.Machine, f.Type)
	}
	return nil
}

// decompress reads what Linux compresses kernels and modules with. The build of
// a kernel appends the size, which gzip has anyway, to the other formats; in an
// initrd or a module it is not there.
func decompress(b []byte, sized bool) ([]byte, error) {
	var r io.Reader
	var err error
	body := b
	if sized && len(b) > 4 {
		body = b[:len(b)-4]
	}
	switch {
	case bytes.HasPrefix(b, []byte{0x1f, 0x8b}):
		var z *gzip.Reader
		if z, err = gzip.NewReader(bytes.NewReader(b)); err == nil {
			z.Multistream(false)
			r = z
		}
	case bytes.HasPrefix(b, []byte{0xfd, '7', 'z', 'X', 'Z', 0}):
		// Not ulikunitz/xz, which lacks the x86 filter that kernels use.
		var z *xz.Reader
		if z, err = xz.NewReader(bytes.NewReader(body), xz.DefaultDictMax); err == nil {
			z.Multistream(false)
			r = z
		}
	case bytes.HasPrefix(b, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		var z *zstd.Decoder
		if z, err = zstd.NewReader(bytes.NewReader(body), zstd.WithDecoderMaxMemory(maxKernel), zstd.WithDecoderMaxWindow(256<<20), zstd.WithDecoderConcurrency(1)); err == nil {
			defer z.Close()
			r = z
		}
	case bytes.HasPrefix(b, []byte{0x02, 0x21, 0x4c, 0x18}), bytes.HasPrefix(b, []byte{0x04, 0x22, 0x4d, 0x18}):
		r = lz4.NewReader(bytes.NewReader(body))
	case bytes.HasPrefix(b, []byte("BZh")):
		r = bzip2.NewReader(bytes.NewReader(body))
	default:
		return nil, fmt.Errorf("%w: it begins % x", errPayload, b[:min(len(b), 6)])
	}
	if err != nil {
		return nil, err
	}
	out, err := io.ReadAll(io.LimitReader(r, maxKernel+1))
	if err != nil {
		return nil, err
	}
	if len(out) > maxKernel {
		return nil, fmt.Errorf("more than %d bytes", maxKernel)
	}
	return out, nil
}
