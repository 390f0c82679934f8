// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"io/fs"
	"testing"
)

func TestRunRefuses(t *testing.T) {
	for _, args := range [][]string{nil, {"mlx5"}, {"mlx5", ".", "."}} {
		if err := run(args); err == nil || err.Error() != "usage: headergen mlx5|abi|cm|ucm DIR" {
			t.Errorf("%q: %v", args, err)
		}
	}
	if err := run([]string{"verbs", t.TempDir()}); err == nil || err.Error() != `unknown package "verbs"` {
		t.Errorf("unknown package: %v", err)
	}
	if err := run([]string{"mlx5", t.TempDir()}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no overlay: %v", err)
	}
}
