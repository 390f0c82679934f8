// SPDX-License-Identifier: BSD-2-Clause

package patches

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// ErrPackages: the packages of a kernel's source and headers are not both
// installed, or are not of one version.
var ErrPackages = errors.New("packages to build the patched modules from")

// Packages are a packaged kernel's source and headers on this machine, both of
// one version.
type Packages struct {
	Version string // of both: "6.1.192-3"
	Release string // of the kernel that modules will fit: "6.1.0-57-amd64"
	Source  string // linux-source-6.1.tar.xz
	Headers string // directory of the headers package
}

const usrSrc = "/usr/src"

// FindPackages asks dpkg for them. There must be a series of patches for them.
func FindPackages(ctx context.Context) (Packages, error) {
	args := []string{"-W", "-f", "${db:Status-Status} ${Package} ${Version}\n", "linux-headers-*"}
	for _, v := range Versions() {
		args = append(args, "linux-source-"+v)
	}
	out, err := exec.CommandContext(ctx, "dpkg-query", args...).Output()
	var none *exec.ExitError // it knows nothing of one of them; what it knows it has printed
	if err != nil && !errors.As(err, &none) {
		return Packages{}, fmt.Errorf("%w: %w: they are Debian's", ErrPackages, err)
	}
	return matching(string(out))
}

// headersRE is a headers package of Debian's ordinary kernel, not the cloud or the
// real-time one.
var headersRE = regexp.MustCompile(`^linux-headers-[0-9][0-9a-z.+~]*-(?:[0-9][0-9a-z.]*-)?amd64$`)

// matching finds source and headers of one version in what dpkg-query printed.
func matching(installed string) (Packages, error) {
	var sources, headers [][2]string // name and version
	for line := range strings.Lines(installed) {
		f := strings.Fields(line)
		if len(f) != 3 || f[0] != "installed" {
			continue
		}
		switch {
		case strings.HasPrefix(f[1], "linux-source-"):
			sources = append(sources, [2]string{strings.TrimPrefix(f[1], "linux-source-"), f[2]})
		case headersRE.MatchString(f[1]):
			headers = append(headers, [2]string{strings.TrimPrefix(f[1], "linux-headers-"), f[2]})
		}
	}
	series := Versions()
	if len(sources) == 0 {
		return Packages{}, fmt.Errorf("%w: linux-source-%s is not installed; as root, on Debian 12: apt-get install linux-source-%[2]s linux-headers-amd64", ErrPackages, series[len(series)-1])
	}
	have := "none is installed"
	if len(headers) > 0 {
		have = ""
	}
	for _, h := range headers {
		have += fmt.Sprintf("linux-headers-%s is %s; ", h[0], h[1])
		for _, s := range sources {
			if h[1] == s[1] {
				return Packages{Version: s[1], Release: h[0], Source: filepath.Join(usrSrc, "linux-source-"+s[0]+".tar.xz"), Headers: filepath.Join(usrSrc, "linux-headers-"+h[0])}, nil
			}
		}
	}
	return Packages{}, fmt.Errorf("%w: linux-source-%s is %s, and the headers must be of the same version: %s; as root: apt-get update && apt-get install linux-source-%[2]s linux-headers-amd64",
		ErrPackages, sources[0][0], sources[0][1], strings.TrimSuffix(have, "; "))
}

// Unpack writes what the modules are built from into a directory: of a whole
// kernel it is a hundredth.
func (p Packages) Unpack(ctx context.Context, dir string) (*Tree, error) {
	top := strings.TrimSuffix(filepath.Base(p.Source), ".tar.xz")
	args := []string{"-xf", p.Source, "-C", dir, "--strip-components=1", top + "/Makefile", top + "/include/uapi/rdma"}
	for _, m := range modules {
		for _, d := range []string{m.dir, m.beside} {
			if d != "" && !slices.Contains(args, top+"/"+d) {
				args = append(args, top+"/"+d)
			}
		}
	}
	cmd := exec.CommandContext(ctx, "tar", args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", p.Source, err, out)
	}
	return OpenTree(dir)
}
