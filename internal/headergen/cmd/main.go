// SPDX-License-Identifier: BSD-2-Clause

// Command cmd writes the generated files of a package: cmd mlx5|abi|cm|ucm DIR.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"devxlab.example/internal/headergen"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "headergen:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: headergen mlx5|abi|cm|ucm DIR")
	}
	var files map[string][]byte
	var err error
	switch args[0] {
	case "mlx5":
		var overlay []byte
		if overlay, err = os.ReadFile(filepath.Join(args[1], "overlay.txt")); err != nil {
			return err
		}
		files, err = headergen.MLX5(string(overlay))
	case "abi":
		files, err = headergen.ABI()
	case "cm":
		files, err = headergen.CM()
	case "ucm":
		files, err = headergen.UCM()
	default:
		err = fmt.Errorf("unknown package %q", args[0])
	}
	for name, b := range files {
		if err == nil {
			err = os.WriteFile(filepath.Join(args[1], name), b, 0o644)
		}
	}
	return err
}
