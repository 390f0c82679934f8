// SPDX-License-Identifier: BSD-2-Clause

// Package headergen makes the generated files of packages mlx5, devx/abi, cm/abi and
// cm/roce from the kernel headers that a distribution installs.
//
// The result is committed, so that users need no headers; a test of each
// package makes it again and compares.
package headergen

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
)

// Series is the kernel series whose headers the committed files come from.
const Series = "6.1"

// ErrNoHeaders is returned when the kernel headers are not installed.
var ErrNoHeaders = errors.New("kernel headers not found")

// KernelHeaders returns the directory include/linux/mlx5 of the newest
// installed headers of Series. DEVXLAB_KERNEL_HEADERS names a header tree (the
// directory that has include/) to use instead.
func KernelHeaders() (string, error) {
	if d := os.Getenv("DEVXLAB_KERNEL_HEADERS"); d != "" {
		return filepath.Join(d, "include/linux/mlx5"), nil
	}
	dirs, _ := filepath.Glob("/usr/src/linux-headers-" + Series + ".*-common/include/linux/mlx5")
	if len(dirs) == 0 {
		return "", fmt.Errorf("%w: no /usr/src/linux-headers-%s.*-common (apt-get install linux-headers-amd64 on Debian 12, or set DEVXLAB_KERNEL_HEADERS)", ErrNoHeaders, Series)
	}
	sort.Slice(dirs, func(i, j int) bool {
		return len(dirs[i]) < len(dirs[j]) || len(dirs[i]) == len(dirs[j]) && dirs[i] < dirs[j]
	})
	return dirs[len(dirs)-1], nil
}

// UAPIHeaders returns the directory of the uverbs headers of package
// linux-libc-dev.
func UAPIHeaders() (string, error) {
	const dir = "/usr/include/rdma"
	if _, err := os.Stat(filepath.Join(dir, "mlx5_user_ioctl_cmds.h")); err != nil {
		return "", fmt.Errorf("%w: no %s/mlx5_user_ioctl_cmds.h (apt-get install linux-libc-dev)", ErrNoHeaders, dir)
	}
	return dir, nil
}

func read(dir string, names ...string) ([]string, error) {
	var out []string
	for _, n := range names {
		b, err := os.ReadFile(filepath.Join(dir, n))
		if err != nil {
			return nil, err
		}
		out = append(out, string(b))
	}
	return out, nil
}
