// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cavaliergopher/cpio"

	"devxlab.example/lab/guest"
)

// unpackInitrd returns the files of an archive, and where its links lead.
func unpackInitrd(r io.Reader) (files map[string]string, order []string, err error) {
	files = map[string]string{}
	a := cpio.NewReader(r)
	for {
		h, err := a.Next()
		if errors.Is(err, io.EOF) {
			return files, order, nil
		}
		if err != nil {
			return nil, nil, err
		}
		b, err := io.ReadAll(a)
		if err != nil {
			return nil, nil, err
		}
		order = append(order, h.Name)
		files[h.Name] = string(b)
		if h.Mode&cpio.ModeType == cpio.TypeSymlink {
			files[h.Name] = "-> " + h.Linkname
		}
	}
}

func jobOf(initrd string) (job guest.Job, err error) {
	f, err := os.Open(initrd)
	if err != nil {
		return job, err
	}
	defer f.Close()
	files, _, err := unpackInitrd(f)
	if err != nil {
		return job, err
	}
	return job, json.Unmarshal([]byte(files[strings.TrimPrefix(guest.JobFile, "/")]), &job)
}

func TestPlace(t *testing.T) {
	for in, want := range map[string]string{
		"/bin/sh": "usr/bin/sh", "lib64": "usr/lib64", "/lib/x/../y": "usr/lib/y", "/usr/bin/x": "usr/bin/x",
		"/libexec/x": "libexec/x", "/": ".", "../../etc/passwd": "etc/passwd", "//tmp//a": "tmp/a",
	} {
		if got := place(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

func TestInitrd(t *testing.T) {
	dir := t.TempDir()
	writeFiles(t, dir, fakeModules())
	static := elfFile(2, ".text", []byte("busybox"))
	writeFiles(t, dir, map[string][]byte{"bb": static, "devxlab": elfFile(2, ".text", []byte("devxlab")), "data/a/b": []byte("ab"), "data/empty": nil, "script": []byte("#!/bin/sh\n")})
	if err := os.Symlink("a/b", filepath.Join(dir, "data/link")); err != nil {
		t.Fatal(err)
	}
	tree, err := openModules(dir)
	if err != nil {
		t.Fatal(err)
	}
	c := contents{busybox: filepath.Join(dir, "bb"), applets: []string{"sh", "busybox", "ls"}, devxlab: filepath.Join(dir, "devxlab"), release: "6.1.0", tree: tree,
		params: map[string]string{"mlx5_core": "debug_mask=1"},
		put:    []Copy{{From: filepath.Join(dir, "data"), To: "/srv/data"}, {From: filepath.Join(dir, "script"), To: "/bin/script"}},
		job:    guest.Job{Args: []string{"ls"}, Dir: "/srv/x", Get: []guest.Get{{Path: "/out/deep/file"}}}}
	var b bytes.Buffer
	if err := c.write(&b, 1<<20); err != nil {
		t.Fatal(err)
	}
	if b.Len()%4 != 0 {
		t.Errorf("%d bytes: what is appended would be lost", b.Len())
	}
	files, order, err := unpackInitrd(bytes.NewReader(b.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"bin": "-> usr/bin", "init": "-> usr/bin/devxlab", "usr/bin/sh": "-> busybox", "usr/bin/busybox": string(static),
		"srv/data/a/b": "ab", "srv/data/link": "-> a/b", "srv/data/empty": "", "usr/bin/script": "#!/bin/sh\n",
		"usr/lib/modules/6.1.0/mlx5_ib.ko": string(fakeModule("ib_core", "mlx5_core", "ib_uverbs")),
	} {
		if got, ok := files[name]; !ok || got != want {
			t.Errorf("%s: %q (there: %v), want %q", name, got, ok, want)
		}
	}
	for _, d := range []string{"proc", "sys", "dev", "tmp", "srv/x", "out/deep"} {
		if _, ok := files[d]; !ok {
			t.Errorf("no directory %s", d)
		}
	}
	seen := map[string]bool{".": true}
	for _, n := range order { // the kernel makes no parents
		if !seen[filepath.Dir(n)] {
			t.Errorf("%s comes before its directory", n)
		}
		if seen[n] {
			t.Errorf("%s is there twice", n)
		}
		seen[n] = true
	}
	dep := files["usr/lib/modules/6.1.0/modules.dep"]
	if got := parseDep([]byte(dep)); !slices.Contains(got["mlx5_ib"], "mlx5_core") || !slices.Contains(got["mlx5_ib"], "ib_core") || len(got) != 11 {
		t.Errorf("modules.dep:\n%s", dep)
	}
	var job guest.Job
	if err := json.Unmarshal([]byte(files["lab/job.json"]), &job); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range job.Modules {
		names = append(names, moduleName(m.Path))
		if (m.Params != "") != (moduleName(m.Path) == "mlx5_core") {
			t.Errorf("parameters of %s: %q", m.Path, m.Params)
		}
	}
	after(t, names, "mlx5_core mlx5_ib", "virtio_pci mlx5_core")

	c.params = map[string]string{"siw": "x=1"}
	if err := c.write(io.Discard, 1<<20); !errors.Is(err, ErrNoModule) || !strings.Contains(err.Error(), "--module siw") {
		t.Errorf("parameters of a module that is not loaded: %v", err)
	}
	c.params, c.put = nil, []Copy{{From: filepath.Join(dir, "none"), To: "/x"}}
	if err := c.write(io.Discard, 1<<20); err == nil {
		t.Error("a file that is not there")
	}
}

// A program that is linked dynamically gets its libraries, and one of another
// architecture is refused.
func TestLibraries(t *testing.T) {
	dir := t.TempDir()
	arm := elfFile(2, ".text", nil)
	arm[18] = 183
	writeFiles(t, dir, map[string][]byte{"arm": arm, "script": []byte("#!/bin/sh\n"), "empty": nil, "cut": arm[:30], "static": elfFile(2, ".text", nil)})
	for _, n := range []string{"script", "empty", "static", "cut"} {
		if libs, err := libraries(filepath.Join(dir, n)); err != nil || len(libs) > 0 {
			t.Errorf("%s: %v, %v", n, libs, err)
		}
	}
	if _, err := libraries(filepath.Join(dir, "arm")); err == nil || !strings.Contains(err.Error(), "GOARCH=amd64") {
		t.Errorf("arm: %v", err)
	}
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	libs, err := libraries(sh)
	if err != nil && !strings.Contains(err.Error(), "GOARCH=amd64") {
		t.Error(err)
	}
	for _, l := range libs {
		if !exists(l) {
			t.Errorf("%s is not there", l)
		}
	}
}
