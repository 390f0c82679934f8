// SPDX-License-Identifier: BSD-2-Clause

package patches

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"devxlab.example/internal/require"
)

const dpkgSays = `installed linux-headers-6.1.0-50-amd64 6.1.176-1
installed linux-headers-6.1.0-57-rt-amd64 6.1.192-3
installed linux-headers-6.1.0-57-amd64 6.1.192-3
installed linux-headers-6.1.0-57-common 6.1.192-3
installed linux-headers-amd64 6.1.192-3
installed linux-headers-rt-amd64 6.1.192-3
not-installed linux-headers-generic 
`

// Of what is installed, source and headers of one version are taken; and what is
// missing is named.
func TestMatchingPackages(t *testing.T) {
	p, err := matching(dpkgSays + "installed linux-source-6.1 6.1.192-3\n")
	want := Packages{Version: "6.1.192-3", Release: "6.1.0-57-amd64", Source: "/usr/src/linux-source-6.1.tar.xz", Headers: "/usr/src/linux-headers-6.1.0-57-amd64"}
	if err != nil || p != want {
		t.Errorf("%+v, %v", p, err)
	}
	for text, want := range map[string]string{
		"":       "linux-source-6.1 is not installed; as root, on Debian 12: apt-get install linux-source-6.1 linux-headers-amd64",
		dpkgSays: "linux-source-6.1 is not installed",
		"config-files linux-source-6.1 6.1.192-3\n":                                                   "linux-source-6.1 is not installed",
		"installed linux-source-6.1 6.1.192-3\ninstalled linux-headers-6.1.0-57-common 6.1.192-3\n":   "the headers must be of the same version: none is installed; as root",
		dpkgSays + "installed linux-source-6.1 6.1.187-1\n":                                           "linux-source-6.1 is 6.1.187-1, and the headers must be of the same version: linux-headers-6.1.0-50-amd64 is 6.1.176-1; linux-headers-6.1.0-57-amd64 is 6.1.192-3; as root",
		"installed linux-source-6.1 6.1.192-3\nremoved-config linux-headers-6.1.0-57-amd64 6.1.192-3": "none is installed",
	} {
		if p, err := matching(text); !errors.Is(err, ErrPackages) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v", text, p, err)
		}
	}
}

// The tarball of a source package: only what is built is unpacked.
func TestUnpack(t *testing.T) {
	_, err := exec.LookPath("xz") // as tar calls it
	require.Have(t, "xz", err)
	top := t.TempDir()
	const name = "linux-source-6.1"
	put(t, top, name+"/Makefile", "VERSION = 6\nPATCHLEVEL = 1\nSUBLEVEL = 7\n")
	put(t, top, name+"/include/uapi/rdma/a.h", "")
	put(t, top, name+"/kernel/other.c", "")
	for _, m := range modules {
		put(t, top, name+"/"+m.dir+"/a.c", "")
		if m.beside != "" {
			put(t, top, name+"/"+m.beside+"/a.h", "")
		}
	}
	p := Packages{Source: filepath.Join(top, name+".tar.xz")}
	if out, err := exec.CommandContext(t.Context(), "tar", "-C", top, "-cJf", p.Source, name).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
	dir := t.TempDir()
	tree, err := p.Unpack(t.Context(), dir)
	if err != nil || tree.Full != "6.1.7" {
		t.Fatalf("%+v, %v", tree, err)
	}
	if got := contents(t, dir); len(got) != 6 {
		t.Errorf("%v", got)
	}
	p.Source = filepath.Join(top, "none.tar.xz")
	if _, err := p.Unpack(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "none.tar.xz") {
		t.Error(err)
	}
}
