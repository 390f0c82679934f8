// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// elfFile is an x86-64 ELF file with one section beside the names of sections.
func elfFile(kind elf.Type, section string, data []byte) []byte {
	names := "\x00.shstrtab\x00" + section + "\x00"
	const header, entry = 64, 64
	dataAt := uint64(header)
	namesAt := dataAt + uint64(len(data))
	sectionsAt := (namesAt + uint64(len(names)) + 7) &^ 7
	var b bytes.Buffer
	h := elf.Header64{Type: uint16(kind), Machine: uint16(elf.EM_X86_64), Version: 1, Shoff: sectionsAt, Ehsize: header, Shentsize: entry, Shnum: 3, Shstrndx: 1}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	put := func(v any) {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			panic(err)
		}
	}
	put(h)
	b.Write(data)
	b.WriteString(names)
	b.Write(make([]byte, sectionsAt-uint64(b.Len())))
	put(elf.Section64{})
	put(elf.Section64{Name: 1, Type: uint32(elf.SHT_STRTAB), Off: namesAt, Size: uint64(len(names))})
	put(elf.Section64{Name: 11, Type: uint32(elf.SHT_PROGBITS), Off: dataAt, Size: uint64(len(data))})
	return b.Bytes()
}

func fakeModule(depends ...string) []byte {
	return elfFile(elf.ET_REL, ".modinfo", []byte("license=GPL\x00depends="+strings.Join(depends, ",")+"\x00name=x\x00"))
}

func fakeVmlinux() []byte {
	return elfFile(elf.ET_EXEC, ".text", bytes.Repeat([]byte{0x90, 0xe8, 1, 2, 3, 4}, 500))
}

// bzImage wraps a payload as the kernel's build does.
func bzImage(payload []byte) []byte {
	const sects, into = 3, 16
	b := make([]byte, (sects+1)*512+into)
	b[setupSects] = sects
	copy(b[setupMagic:], "HdrS")
	binary.LittleEndian.PutUint16(b[setupVersion:], 0x20f)
	binary.LittleEndian.PutUint32(b[payloadOffset:], into)
	binary.LittleEndian.PutUint32(b[payloadLength:], uint32(len(payload)))
	return append(append(b, payload...), "what comes after it"...)
}

// writeFiles writes files below dir, named by paths.
func writeFiles(t testing.TB, dir string, files map[string][]byte) {
	t.Helper()
	for name, b := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// fakeModules is a tree with all that a run needs.
func fakeModules() map[string][]byte {
	return map[string][]byte{
		"kernel/drivers/virtio/virtio_pci.ko":                         fakeModule("virtio_ring"),
		"kernel/drivers/virtio/virtio_ring.ko":                        fakeModule(),
		"kernel/drivers/char/virtio_console.ko":                       fakeModule("virtio_ring"),
		"kernel/drivers/net/ethernet/mellanox/mlx5/core/mlx5_core.ko": fakeModule("pci-hyperv-intf", "psample"),
		"kernel/drivers/pci/controller/pci-hyperv-intf.ko":            fakeModule(),
		"kernel/drivers/infiniband/hw/mlx5/mlx5_ib.ko":                fakeModule("ib_core", "mlx5_core", "ib_uverbs"),
		"kernel/drivers/infiniband/core/ib_core.ko":                   fakeModule(),
		"kernel/drivers/infiniband/core/ib_uverbs.ko":                 fakeModule("ib_core"),
		"kernel/drivers/infiniband/core/rdma_cm.ko":                   fakeModule("ib_core"),
		"kernel/drivers/infiniband/core/rdma_ucm.ko":                  fakeModule("rdma_cm", "ib_uverbs"),
		"kernel/drivers/infiniband/core/ib_umad.ko":                   fakeModule("ib_core"),
		"modules.builtin": []byte("kernel/net/psample/psample.ko\n"),
		"kernel/drivers/net/ethernet/mellanox/mlx5/core/mlx5_core.ko.order": nil,
	}
}
