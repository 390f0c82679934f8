// SPDX-License-Identifier: BSD-2-Clause

package batch_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"devxlab.example/internal/testdev"
)

// A module elsewhere imports this one with two go mod edit lines, without a
// network. Its program is the package's example.
func TestImportFromAnotherModule(t *testing.T) {
	repository := testdev.Sources(t)
	example, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	program := strings.NewReplacer("package batch_test", "package main", "func Example()", "func main()").Replace(string(example))
	_, output, _ := strings.Cut(program, "// Output: ")
	output, _, _ = strings.Cut(output, "\n")

	dir := t.TempDir()
	for name, content := range map[string]string{
		"main.go":     program,
		"lean/doc.go": "package lean\n\nimport _ \"devxlab.example/batch\"\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOSUMDB=off", "GOWORK=off", "PWD="+dir)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, stderr.String())
		}
		return string(out)
	}
	run("go", "mod", "init", "example.com/elsewhere")
	run("go", "mod", "edit", "-require", "devxlab.example@v0.0.0")
	run("go", "mod", "edit", "-replace", "devxlab.example="+repository)
	if got := run("go", "run", "."); output == "" || got != output+"\n" {
		t.Errorf("the program prints %q, not %q", got, output)
	}

	// Who does not use the emulated device, the command line or the reports does
	// not carry them.
	carried := false
	for _, p := range strings.Fields(run("go", "list", "-deps", "./lean")) {
		carried = carried || p == "devxlab.example/batch"
		own, ours := strings.CutPrefix(p, "devxlab.example/")
		room, _, _ := strings.Cut(own, "/")
		first, _, _ := strings.Cut(p, "/")
		switch {
		case ours && (room == "batch" || room == "devx" || room == "mlx5" || room == "internal"):
		case !ours && !strings.Contains(first, "."): // the standard library
		case strings.HasPrefix(p, "golang.org/x/sys/"):
		case p == "example.com/elsewhere/lean":
		default:
			t.Errorf("importing batch brings %s along", p)
		}
	}
	if !carried {
		t.Error("go list does not list batch")
	}
}

// README's program is the package's example.
func TestREADMEProgram(t *testing.T) {
	testdev.Sources(t)
	example, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(string(example), "func Example() {\n")
	body, _, _ = strings.Cut(body, "\t// Output:")
	if body == "" || !strings.Contains(string(readme), body) {
		t.Errorf("README.md does not have the example's body:\n%s", body)
	}
}
