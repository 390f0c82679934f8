// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const recordedDep = `kernel/drivers/infiniband/hw/mlx5/mlx5_ib.ko.xz: kernel/drivers/infiniband/core/ib_uverbs.ko.xz kernel/drivers/net/ethernet/mellanox/mlx5/core/mlx5_core.ko.xz kernel/drivers/infiniband/core/ib_core.ko.xz kernel/drivers/pci/controller/pci-hyperv-intf.ko.xz
kernel/drivers/pci/controller/pci-hyperv-intf.ko.xz:
not a line
`

func TestParseDep(t *testing.T) {
	got := parseDep([]byte(recordedDep))
	if want := []string{"ib_uverbs", "mlx5_core", "ib_core", "pci_hyperv_intf"}; !slices.Equal(got["mlx5_ib"], want) || len(got) != 2 {
		t.Errorf("%v", got)
	}
	if d, ok := got["pci_hyperv_intf"]; !ok || len(d) != 0 {
		t.Errorf("one that needs nothing: %v, %v", d, ok)
	}
}

// after says whether each module comes after what it needs.
func after(t *testing.T, order []string, pairs ...string) {
	t.Helper()
	for _, p := range pairs {
		first, second, _ := strings.Cut(p, " ")
		i, j := slices.Index(order, first), slices.Index(order, second)
		if i < 0 || j < 0 || i > j {
			t.Errorf("%s is not before %s in %v", first, second, order)
		}
	}
}

func TestClosure(t *testing.T) {
	dir := t.TempDir()
	files := fakeModules()
	writeFiles(t, dir, files)
	tree, err := openModules(dir)
	if err != nil {
		t.Fatal(err)
	}
	order, err := tree.closure(slices.Concat(channelModules, rdmaModules)...)
	if err != nil {
		t.Fatal(err)
	}
	if len(order) != 11 {
		t.Errorf("%d modules: %v", len(order), order)
	}
	link := filepath.Join(t.TempDir(), "stock")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if linked, err := openModules(link); err != nil || len(linked.files) != len(tree.files) {
		t.Errorf("by a symbolic link: %v", err)
	}
	after(t, order, "virtio_ring virtio_pci", "pci_hyperv_intf mlx5_core", "mlx5_core mlx5_ib", "ib_core ib_uverbs", "ib_uverbs mlx5_ib", "rdma_cm rdma_ucm", "virtio_console mlx5_core")
	if slices.Contains(order, "psample") {
		t.Error("what is built in is to be loaded")
	}

	// modules.dep, where there is one, is believed, and compressed modules read.
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	if _, err := w.Write(fakeModule()); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	writeFiles(t, dir, map[string][]byte{"modules.dep": []byte("kernel/drivers/infiniband/core/ib_umad.ko: extra/siw.ko.gz\n"), "extra/siw.ko.gz": z.Bytes()})
	if tree, err = openModules(dir); err != nil {
		t.Fatal(err)
	}
	if order, err = tree.closure("ib_umad"); err != nil || !slices.Equal(order, []string{"siw", "ib_umad"}) {
		t.Errorf("%v, %v", order, err)
	}
	if b, err := tree.read("siw"); err != nil || !bytes.Equal(b, fakeModule()) {
		t.Errorf("siw: %d bytes, %v", len(b), err)
	}
}

func TestClosureBad(t *testing.T) {
	dir := t.TempDir()
	if _, err := openModules(dir); !errors.Is(err, ErrNoModule) || !strings.Contains(err.Error(), "--modules") {
		t.Errorf("an empty directory: %v", err)
	}
	writeFiles(t, dir, map[string][]byte{
		"a.ko": fakeModule("b"), "b.ko": fakeModule("c"), "c.ko": fakeModule("a"),
		"lost.ko": fakeModule("not_there"), "text.ko": []byte("text"), "plain.ko.xz": []byte("plain"), "none.ko": elfFile(1, ".text", nil),
	})
	tree, err := openModules(dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"a": "a, b, c, a", "lost": "not_there (needed by lost)", "nobody": "nobody", "text": "text.ko", "plain": "plain.ko.xz", "none": ".modinfo",
	} {
		if _, err := tree.closure(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}
