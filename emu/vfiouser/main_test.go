// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

import (
	"os"
	"strings"
	"testing"

	"devxlab.example/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m, mappings) }

// memName is the name of the memory that the tests let the server map.
const memName = "vfiouser-test"

// mappings returns those of the process that are of the tests' memory.
func mappings() (found []string) {
	maps, _ := os.ReadFile("/proc/self/maps")
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "/memfd:"+memName) {
			found = append(found, "mapping "+strings.TrimSpace(line))
		}
	}
	return found
}
