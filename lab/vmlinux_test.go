// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// compressed returns a kernel's payload in each format, with the size that the
// kernel's build appends.
func compressed(t testing.TB, b []byte) map[string][]byte {
	size := binary.LittleEndian.AppendUint32(nil, uint32(len(b)))
	out := map[string][]byte{}
	add := func(name string, tail []byte, make func(io.Writer) (io.WriteCloser, error)) {
		var buf bytes.Buffer
		w, err := make(&buf)
		if err == nil {
			_, err = w.Write(b)
		}
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			t.Fatal(name, err)
		}
		out[name] = append(buf.Bytes(), tail...)
	}
	add("gzip", nil, func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriter(w), nil })
	add("zstd", size, func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w) })
	add("lz4", size, func(w io.Writer) (io.WriteCloser, error) {
		z := lz4.NewWriter(w)
		return z, z.Apply(lz4.LegacyOption(true))
	})
	// xz --check=crc32 --x86 --lzma2=dict=32MiB, as scripts/xz_wrap.sh has it: of
	// fakeVmlinux.
	x, err := os.ReadFile("testdata/vmlinux.xz")
	if err != nil {
		t.Fatal(err)
	}
	out["xz"] = append(x, size...)
	return out
}

func TestVmlinux(t *testing.T) {
	want := fakeVmlinux()
	for name, payload := range compressed(t, want) {
		got, err := Vmlinux(bzImage(payload))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v; want %d", name, len(got), err, len(want))
		}
	}
	if got, err := Vmlinux(want); err != nil || !bytes.Equal(got, want) {
		t.Errorf("a vmlinux: %v", err)
	}
}

func TestVmlinuxBad(t *testing.T) {
	ok := bzImage(compressed(t, fakeVmlinux())["gzip"])
	change := func(at int, v ...byte) []byte {
		b := bytes.Clone(ok)
		copy(b[at:], v)
		return b
	}
	other := elfFile(elf.ET_EXEC, ".text", nil)
	binary.LittleEndian.PutUint16(other[18:], uint16(elf.EM_AARCH64))
	for name, c := range map[string]struct {
		b    []byte
		want error
	}{
		"empty":               {nil, ErrNotKernel},
		"text":                {bytes.Repeat([]byte("text "), 1000), ErrNotKernel},
		"cut in the header":   {ok[:0x240], ErrNotKernel},
		"cut in the payload":  {ok[:2100], ErrNotKernel},
		"old protocol":        {change(setupVersion, 0x07, 2), ErrNotKernel},
		"payload beyond":      {change(payloadLength, 0xff, 0xff, 0xff, 0xff), ErrNotKernel},
		"payload of nothing":  {change(payloadLength, 0, 0, 0, 0), ErrNotKernel},
		"lzo":                 {change(4*512+16, 0x89, 'L', 'Z', 'O'), errPayload},
		"broken gzip":         {change(4*512+16+40, 0xff, 0xff, 0xff, 0xff), nil},
		"not a kernel inside": {bzImage(compressed(t, []byte("hello, hello, hello"))["zstd"]), ErrNotKernel},
		"ELF of another CPU":  {other, ErrNotKernel},
		"ELF, cut":            {fakeVmlinux()[:60], ErrNotKernel},
	} {
		if _, err := Vmlinux(c.b); err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func FuzzVmlinux(f *testing.F) {
	f.Add(fakeVmlinux())
	for _, p := range compressed(f, fakeVmlinux()) {
		f.Add(bzImage(p))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if out, err := Vmlinux(b); err == nil && !bytes.HasPrefix(out, []byte(elf.ELFMAG)) {
			t.Error("not ELF, and no error")
		}
	})
}
