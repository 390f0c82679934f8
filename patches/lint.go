// SPDX-License-Identifier: BSD-2-Clause

package patches

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// ErrWarnings: a patched source has warnings that the one in the tree has not.
var ErrWarnings = errors.New("the patches add warnings")

// Lint compiles the sources that patches change, as they are in the tree and
// patched, with make W=1 and sparse. It returns how many warnings of gcc and sparse
// they have in the tree, and ErrWarnings with those that the patches add.
// Out, Modules and Release of the options mean nothing to it.
func Lint(ctx context.Context, t *Tree, o BuildOptions) (had int, err error) {
	if _, err := exec.LookPath("sparse"); err != nil {
		return 0, fmt.Errorf("%w (apt-get install sparse)", err)
	}
	_, patched, err := o.patched(t)
	if err != nil {
		return 0, err
	}
	stock := map[string][]byte{}
	for p := range patched {
		if stock[p], err = os.ReadFile(filepath.Join(t.Dir, p)); err != nil {
			return 0, err
		}
	}
	var said [2]string
	for i, contents := range []map[string][]byte{stock, patched} {
		if said[i], err = lint(ctx, t, o, contents); err != nil {
			return 0, err
		}
	}
	added, had := addedWarnings(said[0], said[1])
	if len(added) > 0 {
		return had, fmt.Errorf("%w:\n%s", ErrWarnings, strings.Join(added, "\n"))
	}
	return had, nil
}

// lint returns what gcc and sparse say about the changed sources with these
// contents.
func lint(ctx context.Context, t *Tree, o BuildOptions, contents map[string][]byte) (string, error) {
	work, err := os.MkdirTemp("", workPrefix)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	if err := copies(t, work, contents); err != nil {
		return "", err
	}
	var said bytes.Buffer
	if o.Log == nil {
		o.Log = io.Discard
	}
	o.Log = io.MultiWriter(o.Log, &said)
	for _, m := range modules {
		var objects []string
		for p := range contents {
			if source, ok := strings.CutSuffix(p, ".c"); ok && within(p, m.dir) {
				objects = append(objects, strings.TrimPrefix(source, m.dir+"/")+".o")
			}
		}
		if len(objects) == 0 {
			continue
		}
		if err := kbuild(ctx, o, work, m.dir, append(objects, "C=2")...); err != nil {
			return "", fmt.Errorf("make %s: %w", strings.Join(objects, " "), err)
		}
		if n := strings.Count(said.String(), "  CHECK   "+filepath.Join(work, m.dir)+"/"); n < len(objects) {
			return "", fmt.Errorf("sparse has read %d of %s", n, strings.Join(objects, " "))
		}
	}
	return said.String(), nil
}

// warningRE takes a warning apart: directory of the build, file, line, text.
var warningRE = regexp.MustCompile(`(?m)^\S*?` + workPrefix + `[0-9]+/(\S+?):[0-9]+(?::[0-9]+)?: ((?:warning|error): .*)$`)

// addedWarnings returns those of the second text that the first has not, or less
// often, and how many the first has. Lines move by a patch, so their numbers do
// not count.
func addedWarnings(before, after string) (added []string, had int) {
	count := map[string]int{}
	for _, m := range warningRE.FindAllStringSubmatch(before, -1) {
		count[m[1]+": "+m[2]]++
		had++
	}
	for _, m := range warningRE.FindAllStringSubmatch(after, -1) {
		w := m[1] + ": " + m[2]
		if count[w]--; count[w] < 0 {
			added = append(added, w)
		}
	}
	return added, had
}
