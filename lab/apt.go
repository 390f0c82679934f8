// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
)

// ErrNoMirror means that this machine has no apt, or none that knows a Debian
// mirror, so that nothing can be brought.
var ErrNoMirror = errors.New("no Debian mirror in this machine's apt configuration")

// suites are the names under which a source counts as one of Debian's own
// archive where apt has not yet read its Release file.
var suites = []string{"bullseye", "bookworm", "trixie", "forky", "sid", "oldoldstable", "oldstable", "stable", "testing", "unstable", "experimental"}

// archives are the labels of Debian's archives.
var archives = []string{"Debian", "Debian-Security", "Debian Backports"}

// stanza is a paragraph of a Debian control file: single-line fields only.
type stanza map[string]string

// stanzas parses control data (deb822(5)). Continuation lines are left out.
func stanzas(b []byte) []stanza {
	var all []stanza
	var s stanza
	for line := range strings.Lines(string(b)) {
		line = strings.TrimRight(line, "\r\n")
		if line == "" {
			s = nil
			continue
		}
		k, v, ok := strings.Cut(line, ":")
		if !ok || k == "" || strings.ContainsAny(k, " \t") {
			continue
		}
		if s == nil {
			s = stanza{}
			all = append(all, s)
		}
		s[k] = strings.TrimSpace(v)
	}
	return all
}

// source is one suite of an archive, as a line of a sources.list names it.
type source struct{ site, suite string }

// sourcesOf finds the suites of Debian's own archives, with those of security
// updates, in what "apt-get indextargets" printed.
func sourcesOf(indextargets []byte) (all []source) {
	for _, s := range stanzas(indextargets) {
		if s["Created-By"] != "Packages" || !slices.Contains(archives, s["Label"]) || s["Origin"] != "Debian" || s["Component"] != "main" {
			continue
		}
		all = addSource(all, s["Repo-URI"], s["Release"])
	}
	return all
}

var inRelease = regexp.MustCompile(`^'([^']+/)dists/([^/']+)/InRelease' `)

// sourcesOfUpdate does the same with the output of "apt-get update --print-uris",
// which also has the sources that apt has not read yet.
func sourcesOfUpdate(uris []byte) (all []source) {
	for line := range strings.Lines(string(uris)) {
		if m := inRelease.FindStringSubmatch(line); m != nil {
			all = addSource(all, m[1], m[2])
		}
	}
	return all
}

// addSource adds a suite of Debian that is not there yet.
func addSource(all []source, site, suite string) []source {
	name, _, _ := strings.Cut(suite, "-") // bookworm-security
	site, ok := checkSite(site)
	if s := (source{site, suite}); ok && slices.Contains(suites, name) && !slices.Contains(all, s) {
		return append(all, s)
	}
	return all
}

// mainSite returns the site of Debian's main archive.
func mainSite(all []source) (string, bool) {
	for _, s := range all {
		if !strings.HasSuffix(s.suite, "-security") {
			return s.site, true
		}
	}
	return "", false
}

// checkSite refuses what would not stand for a single word in a sources.list.
func checkSite(s string) (string, bool) {
	u, err := url.Parse(s)
	if err != nil || strings.ContainsAny(s, " \t\n[]#") {
		return "", false
	}
	switch u.Scheme {
	case "http", "https", "file", "copy", "ftp", "tor+http", "tor+https", "mirror+http", "mirror+https", "mirror+file":
		return s, true
	}
	return "", false
}

// findSources asks apt for the suites of Debian that this machine uses.
func findSources(ctx context.Context) ([]source, error) {
	for _, p := range []string{"apt-get", "apt-cache", "dpkg", "dpkg-deb"} {
		if _, err := exec.LookPath(p); err != nil {
			return nil, fmt.Errorf("%w: %s is not installed", ErrNoMirror, p)
		}
	}
	out, err := command(ctx, "apt-get", "indextargets")
	if err != nil {
		return nil, err
	}
	all := sourcesOf(out)
	if _, ok := mainSite(all); ok {
		return all, nil
	}
	if out, err = command(ctx, "apt-get", "update", "--print-uris"); err != nil {
		return nil, err
	}
	if all = sourcesOfUpdate(out); len(all) > 0 {
		return all, nil
	}
	return nil, fmt.Errorf(`%w: "apt-get indextargets" shows none with the label Debian`, ErrNoMirror)
}

// archive is a set of suites of a mirror, with a package index of its own below
// the cache. It needs no privilege and does not touch the system's apt.
type archive struct {
	dir    string
	suites []string
}

// openArchive reads the index of the suites.
func openArchive(ctx context.Context, cache, arch string, from []source) (*archive, error) {
	var names []string
	for _, s := range from {
		names = append(names, s.suite)
	}
	a := &archive{dir: filepath.Join(cache, "apt", arch+"-"+strings.Join(names, "+")), suites: names}
	for _, d := range []string{"lists/partial", "cache/archives/partial", "empty"} {
		if err := os.MkdirAll(filepath.Join(a.dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	by := ""
	if keyring := "/usr/share/keyrings/debian-archive-keyring.gpg"; exists(keyring) {
		by = " signed-by=" + keyring
	}
	var list strings.Builder
	for _, s := range from {
		fmt.Fprintf(&list, "deb [arch=%s%s] %s %s main\n", arch, by, s.site, s.suite)
	}
	conf := fmt.Sprintf(`Dir::State "%[1]s";
Dir::State::lists "%[1]s/lists";
Dir::State::status "%[1]s/status";
Dir::State::extended_states "%[1]s/extended";
Dir::Cache "%[1]s/cache";
Dir::Etc::sourcelist "%[1]s/sources.list";
Dir::Etc::sourceparts "%[1]s/empty";
Dir::Etc::preferences "%[1]s/none";
Dir::Etc::preferencesparts "%[1]s/empty";
Dir::Log "%[1]s";
APT::Architecture "%[2]s";
#clear APT::Architectures;
#clear APT::Default-Release;
APT::Sandbox::User "";
APT::Install-Recommends "false";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "false";
Acquire::Retries "3";
`, a.dir, arch)
	for name, text := range map[string]string{"sources.list": list.String(), "apt.conf": conf, "status": ""} {
		if err := os.WriteFile(filepath.Join(a.dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	_, err := a.apt(ctx, "apt-get", "update", "-q", "--error-on=any")
	return a, err
}

// apt runs one of apt's programs on this index. Files named on its command line
// are read after the system's configuration, which is how a proxy stays known.
func (a *archive) apt(ctx context.Context, args ...string) ([]byte, error) {
	args = append([]string{args[0], "-c", filepath.Join(a.dir, "apt.conf")}, args[1:]...)
	return command(ctx, args...)
}

var packageName = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)

// show returns the newest version of a package in this index.
func (a *archive) show(ctx context.Context, name string) (stanza, error) {
	out, err := a.apt(ctx, "apt-cache", "show", "--no-all-versions", name)
	if err != nil {
		return nil, err
	}
	for _, s := range stanzas(out) {
		if s["Package"] == name && s["Version"] != "" {
			return s, nil
		}
	}
	return nil, fmt.Errorf("package %s is not in %s", name, strings.Join(a.suites, ", "))
}

// download brings packages, which apt checks against the signed index, and
// unpacks them below dir. With their dependencies if deps is set; then the last
// suite wins.
func (a *archive) download(ctx context.Context, dir string, deps bool, progress io.Writer, packages ...string) error {
	debs := filepath.Join(a.dir, "cache/archives")
	defer removeGlob(filepath.Join(debs, "*.deb"))
	removeGlob(filepath.Join(debs, "*.deb"))
	args := []string{"apt-get", "-q", "-y", "--download-only", "-t", a.suites[len(a.suites)-1], "install"}
	if !deps {
		args = []string{"apt-get", "-q", "download"}
	}
	size := ""
	if out, err := a.apt(ctx, slices.Concat(args[:1], []string{"--print-uris"}, args[1:], packages)...); err == nil {
		n, bytes := parseURIs(out)
		size = fmt.Sprintf(" (%d packages, %s)", n, humanize.Bytes(bytes))
	}
	fmt.Fprintf(progress, "devxlab: downloading %s%s from the apt mirror of this machine\n", strings.Join(packages, ", "), size)
	args = append(slices.Clone(args), packages...)
	cmd := aptCommand(ctx, append([]string{args[0], "-c", filepath.Join(a.dir, "apt.conf")}, args[1:]...)...)
	cmd.Dir = debs // where "apt-get download" puts them
	if _, err := output(cmd); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("apt-get downloaded none of %s", strings.Join(packages, ", "))
	}
	fmt.Fprintf(progress, "devxlab: unpacking %d packages\n", len(files))
	for _, f := range files {
		if _, err := command(ctx, "dpkg-deb", "-x", f, dir); err != nil {
			return err
		}
	}
	return nil
}

var uriLine = regexp.MustCompile(`(?m)^'[^']*' \S+\.deb (\d+) `)

// parseURIs adds up what apt-get --print-uris lists.
func parseURIs(out []byte) (n int, size uint64) {
	for _, m := range uriLine.FindAllSubmatch(out, -1) {
		var s uint64
		if _, err := fmt.Sscan(string(m[1]), &s); err == nil {
			n, size = n+1, size+s
		}
	}
	return n, size
}

func removeGlob(pattern string) {
	files, _ := filepath.Glob(pattern)
	for _, f := range files {
		_ = os.Remove(f)
	}
}

// aptCommand is a program in the C locale, whose messages are the ones that are
// parsed. It is killed with all its children when ctx ends.
func aptCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive")
	ownGroup(cmd)
	return cmd
}

func command(ctx context.Context, args ...string) ([]byte, error) {
	return output(aptCommand(ctx, args...))
}

// output runs a program; its error is the last that it said.
func output(cmd *exec.Cmd) ([]byte, error) {
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		said := strings.TrimSpace(errOut.String())
		const most = 2000
		if len(said) > most {
			said = said[len(said)-most:]
		}
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, said)
	}
	return out.Bytes(), nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// newer says whether a Debian version is higher than another (dpkg(1)).
func newer(ctx context.Context, a, b string) bool {
	_, err := command(ctx, "dpkg", "--compare-versions", a, "gt", b)
	return err == nil
}
