// SPDX-License-Identifier: BSD-2-Clause

package headergen

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Compare returns an error for each of a package's files that the generator made
// otherwise; dir is where the committed ones are.
func Compare(dir string, made map[string][]byte) error {
	var all []error
	for name, want := range made {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil && !bytes.Equal(got, want) {
			err = fmt.Errorf("%s differs from what the installed headers give: run go generate in its package and look at the difference", name)
		}
		all = append(all, err)
	}
	return errors.Join(all...)
}
