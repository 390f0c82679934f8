// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func recorded(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/apt/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Recorded on Debian 12, hosts replaced: its suites are found, those of security
// updates too, but not another vendor's; the main archive is none of the former.
func TestSources(t *testing.T) {
	const main, security = "http://mirror.example/debian/", "http://mirror.example/debian-security/"
	want := []source{{main, "bookworm"}, {main, "bookworm-updates"}, {security, "bookworm-security"}} // in the targets without the empty one
	targets := string(recorded(t, "indextargets.txt"))
	if all := sourcesOf([]byte(targets)); !slices.Equal(all, []source{want[0], want[2]}) {
		t.Errorf("indextargets: %q", all)
	}
	if all := sourcesOfUpdate(recorded(t, "print-uris.txt")); !slices.Equal(all, want) {
		t.Errorf("print-uris: %q", all)
	}
	if site, ok := mainSite([]source{want[2], want[0]}); !ok || site != main {
		t.Errorf("main archive: %q, %v", site, ok)
	}
	if site, ok := mainSite(want[2:]); ok {
		t.Errorf("main archive of security updates alone: %q", site)
	}
	for name, bad := range map[string]string{
		"none":           "",
		"other vendor":   strings.ReplaceAll(targets, "Origin: Debian", "Origin: Example"),
		"CDs":            strings.ReplaceAll(targets, "Repo-URI: http://mirror.example/", "Repo-URI: cdrom://x/"),
		"two words":      strings.ReplaceAll(strings.ReplaceAll(targets, "/debian/\n", "/ evil main\n"), "/debian-security/\n", "/ evil main\n"),
		"no colon":       "Repo-URI",
		"other":          "\x00\xff: \n\n : x\n",
		"not a Packages": strings.ReplaceAll(targets, "Created-By: Packages", "Created-By: Sources"),
	} {
		if all := sourcesOf([]byte(bad)); len(all) > 0 {
			t.Errorf("%s: %q", name, all)
		}
	}
	for name, bad := range map[string]string{
		"Ubuntu": "'http://mirror.example/ubuntu/dists/noble/InRelease' x 0 \n",
		"a CD":   "'cdrom:[x]/dists/bookworm/InRelease' x 0 \n",
	} {
		if all := sourcesOfUpdate([]byte(bad)); len(all) > 0 {
			t.Errorf("%s: %q", name, all)
		}
	}
}

func TestStanzas(t *testing.T) {
	got := stanzas([]byte("Package: a\nDescription: x\n continued: no\nVersion: 1\n\n\nPackage: b\n"))
	if len(got) != 2 || got[0]["Version"] != "1" || got[0]["Description"] != "x" || got[1]["Package"] != "b" || len(got[0]) != 3 {
		t.Errorf("%v", got)
	}
}

func TestParseURIs(t *testing.T) {
	out := "Reading package lists...\n'http://mirror.example/pool/a_1_amd64.deb' a_1_amd64.deb 100 SHA256:00\n'http://mirror.example/pool/b_1%3a2_all.deb' b_1%3a2_all.deb 23 MD5Sum:0\n"
	if n, size := parseURIs([]byte(out)); n != 2 || size != 123 {
		t.Errorf("%d packages, %d bytes", n, size)
	}
	if v := madison([]byte("qemu-system-x86 | 1:11.1.3+ds-1~bpo13+1 | http://mirror.example/debian trixie-backports/main amd64 Packages\nqemu-system-x86 | 1:10.0.13+ds-0+deb13u1 | x\n")); v != "1:11.1.3+ds-1~bpo13+1" {
		t.Errorf("madison: %q", v)
	}
	if v := madison(nil); v != "" {
		t.Errorf("madison of nothing: %q", v)
	}
}
