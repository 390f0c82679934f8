# SPDX-License-Identifier: BSD-2-Clause
#
# make bench   runs the experiments: on the emulated device, or on hardware that
#              is named: make bench DEV=mlx5_0
# make test    runs the tests, with those in the lab's virtual machine if it can run
#              here: the first time it fetches QEMU and a kernel into the user's cache
# make lab     a shell in a virtual machine whose own mlx5 driver drives the emulated
#              HCA, or without a terminal what that device is; the first time it
#              fetches QEMU and a kernel into the user's cache
# make lab-test     the tests of that
# make lab-faults   the faults of the lab that take minutes: 60 s without an answer, two
#              CPUs, each kernel
# make lab-wire     two cards in a guest, two guests, and bad wires between them, with
#              those that take minutes
# make lab-trace    devxlab trace on each kernel
# make lab-matrix   tries the emulated HCA under each kernel that Debian packages
# make conformance  runs rdma-core's own tests on it and writes docs/conformance.md
# make patches-check LINUX=DIR   do the kernel patches apply to this source? Changes nothing
# make patches-build LINUX=DIR   builds the modules that they change into OUT
#              (results/modules); KBUILD=DIR: the headers package of a packaged kernel.
#              Without LINUX: from Debian's packages, and with the kernel they fit
# make patches-test   builds them so, boots that kernel with them and runs their tests
#              in it; BUILT=DIR: what patches-build has built already
# make patches-seeded   does the test of the first patch find faults that are put into it?
# make patches-compare LINUX=DIR   boots the stock kernel and one with each patch and all,
#              in turn in the lab, and compares them (KERNEL=, MODULES=, KBUILD=, ROUNDS=)
# make lint    gofmt, vet, staticcheck, govulncheck
# make race    the tests under the race detector, and with a collector that runs
#              all the time (needs a C compiler)
# make fuzz    every fuzz target for FUZZTIME: executions (20000x), or a time (30s)
# make cross   builds for linux/amd64 and linux/arm64
# make bpf     compiles the programs of ebpf/ again (Debian 12: clang llvm libbpf-dev)
# make generate   makes the generated files again from the installed kernel headers
# make module PATH=example.org/devxlab   renames the module

GO      ?= go
NEED    := 1.26
DEV     ?=
FUZZTIME ?= 20000x
export CGO_ENABLED ?= 0

COMMIT   = $(shell git rev-parse --short HEAD 2>/dev/null || echo unknown)$(shell git diff --quiet HEAD 2>/dev/null || echo +changes)
LDFLAGS  = -X devxlab.example/bench.commit=$(COMMIT)
BENCHFLAGS ?=

.PHONY: bench test lab lab-test lab-faults lab-wire lab-trace lab-matrix conformance patches-check patches-build patches-test patches-seeded patches-compare lint race fuzz cross bpf generate module gocheck

# The first thing that any target does: with too old a Go, say what to install.
gocheck:
	@have=$$(GOTOOLCHAIN=local $(GO) version 2>/dev/null | sed -n 's/^go version go\([0-9]*\.[0-9]*\).*/\1/p'); \
	case "$$have" in \
	"") echo "devxlab needs Go $(NEED) or newer and found none: install it from https://go.dev/dl/ and put its bin directory into PATH"; exit 1;; \
	esac; \
	oldest=$$(printf '%s\n%s\n' "$(NEED)" "$$have" | sort -V | head -n 1); \
	if [ "$$oldest" != "$(NEED)" ]; then \
	echo "devxlab needs Go $(NEED) or newer and found $$have: install it from https://go.dev/dl/ (Debian 12's package is too old)"; exit 1; fi

bench: gocheck
	@echo "devxlab bench: place: $(if $(DEV),hw; device $(DEV),emu; the device is emulated inside the process and no hardware is touched)"
	@echo "building; on a new machine this fetches the modules first, about half a minute"
	@DEV=$(or $(DEV),emu:) $(GO) run -ldflags "$(LDFLAGS)" ./cmd/devxlab bench $(BENCHFLAGS)

# Where the lab can run, its tests must; where it cannot, the first line says why.
test: gocheck
	@$(GO) vet ./...
	@if $(GO) run ./cmd/devxlab lab fetch --image full; then DEVXLAB_REQUIRE="$$DEVXLAB_REQUIRE,lab,lab-full"; export DEVXLAB_REQUIRE; \
	else echo "the lab cannot run here, for the reason above: its tests are left out"; fi; \
	$(GO) test -timeout 60m ./...

lab: gocheck
	@if [ -t 0 ] && [ -t 1 ]; then $(GO) run ./cmd/devxlab lab; else $(GO) run ./cmd/devxlab lab run -- devxlab info mlx5_0; fi

lab-test: gocheck
	@DEVXLAB_REQUIRE=lab,lab-full $(GO) test -count=1 -timeout 40m -run '^TestLab' -v ./lab

lab-faults: gocheck
	@DEVXLAB_REQUIRE=lab,faults,long-faults $(GO) test -count=1 -timeout 40m -run '^TestLabFault' -v ./lab

lab-wire: gocheck
	@DEVXLAB_REQUIRE=lab-full,long-wire,rxe,tshark $(GO) test -count=1 -timeout 60m -run '^TestLab(Connections|Setups|Traffic|Two|Mixed|LossyManagers|WireFaults|LossyWire|RXE)' -v ./lab

lab-trace: gocheck
	@DEVXLAB_REQUIRE=lab,lab-full,trace $(GO) test -count=1 -timeout 60m -run '^TestLabTrace' -v ./lab

lab-matrix: gocheck
	@$(GO) run ./cmd/devxlab lab matrix

conformance: gocheck
	@$(GO) run ./cmd/devxlab lab conformance --rdma-core bookworm@6.1 --rdma-core bookworm@6.12 --rdma-core trixie@newest --write docs/conformance.md

patches-check: gocheck
	@test -n "$(LINUX)" || { echo "usage: make patches-check LINUX=DIR, the source of a kernel"; exit 2; }
	@$(GO) run ./cmd/devxlab patches check "$(LINUX)"

OUT ?= results/modules
patches-build: gocheck
	@$(GO) run ./cmd/devxlab patches build --out "$(OUT)" $(BUILDFLAGS) $(if $(KBUILD),--kbuild "$(KBUILD)") $(if $(LINUX),"$(LINUX)",--packaged)

BUILT ?=
patches-test: gocheck
	@dir="$(abspath $(BUILT))"; if [ -z "$$dir" ]; then dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && $(GO) run ./cmd/devxlab patches build --packaged --out "$$dir" || exit 1; fi; \
	$(GO) run ./cmd/devxlab lab fetch --image full && \
	DEVXLAB_REQUIRE=lab,lab-full,patched DEVXLAB_PATCHED_KERNEL="$$dir/vmlinux" DEVXLAB_PATCHED_MODULES="$$dir" DEVXLAB_STOCK_MODULES="$$dir/stock" \
	$(GO) test -count=1 -timeout 30m -run '^TestLabPatched' -v ./lab

patches-seeded: gocheck
	@DEVXLAB_REQUIRE=lab,seeded $(GO) test -count=1 -timeout 60m -run '^TestLabSeeded' -v ./lab

ROUNDS ?= 20
patches-compare: gocheck
	@test -n "$(LINUX)" || { echo "usage: make patches-compare LINUX=DIR [KERNEL=FILE] [MODULES=DIR] [KBUILD=DIR] [ROUNDS=N]"; exit 2; }
	@$(GO) run -ldflags "$(LDFLAGS)" ./cmd/devxlab patches compare --rounds "$(ROUNDS)" $(if $(KBUILD),--kbuild "$(KBUILD)") \
		$(if $(KERNEL),--kernel "$(KERNEL)") $(if $(MODULES),--modules "$(MODULES)") $(COMPAREFLAGS) "$(LINUX)"

lint: gocheck
	@bad=$$("$$($(GO) env GOROOT)/bin/gofmt" -l .) || exit 1; test -z "$$bad" || { echo "not gofmt-clean: $$bad"; exit 1; }
	$(GO) vet ./...
	GOARCH=arm64 $(GO) vet ./...
	$(GO) tool -modfile=tools/go.mod staticcheck ./...
	@$(GO) build -modfile=tools/go.mod -o /dev/null golang.org/x/vuln/cmd/govulncheck
	@$(GO) tool -modfile=tools/go.mod govulncheck ./... || { rc=$$?; [ $$rc -ne 3 ] || exit 3; echo "vulnerabilities: not checked, their database was out of reach"; }

race: export CGO_ENABLED = 1
race: gocheck
	$(GO) test -race -skip '^TestLab' ./...
	GOGC=1 $(GO) test -gcflags=all=-d=checkptr ./devx/... ./emu/... ./batch/...

fuzz: gocheck
	@dirs=$$($(GO) list -f '{{.Dir}}' ./...) || exit 1; n=0; \
	for dir in $$dirs; do \
	  for target in $$(cat "$$dir"/*_test.go 2>/dev/null | sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p'); do \
	    echo "fuzz $$target in $$dir"; n=$$((n+1)); \
	    $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x "$$dir" || exit 1; \
	  done; \
	done; \
	test $$n -gt 0 || { echo "no fuzz target found"; exit 1; }

cross: gocheck
	GOOS=linux GOARCH=amd64 $(GO) build ./...
	GOOS=linux GOARCH=arm64 $(GO) build ./...

generate: gocheck
	$(GO) generate -skip bpf2go ./...

bpf: gocheck
	$(GO) generate -run bpf2go ./ebpf

# PATH on make's command line also becomes the recipe's PATH; the one that make
# itself was started with is in its environment.
module:
	@set -e; new='$(PATH)'; \
	PATH=$$(/usr/bin/tr '\0' '\n' < /proc/$$PPID/environ | /usr/bin/sed -n 's/^PATH=//p'); export PATH; \
	case "$$new" in /*|""|*[!A-Za-z0-9./_~-]*) echo "usage: make module PATH=example.org/devxlab"; exit 2;; esac; \
	old=$$(sed -n 's/^module //p' go.mod); \
	git ls-files | xargs grep -lF "$$old" | xargs sed -i "s|$$(printf '%s' "$$old" | sed 's/[.]/\\./g')|$$new|g"; \
	gofmt -w $$(git ls-files '*.go'); \
	echo "module $$old is now $$new"; go build ./...
