// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestTrouble(t *testing.T) {
	for _, l := range []string{
		"[    7.1] ------------[ cut here ]------------",
		"[    7.1] WARNING: CPU: 0 PID: 62 at drivers/infiniband/hw/mlx5/umr.c:121 mlx5r_umr_set_umr_ctrl_seg+0x5c/0x90 [mlx5_ib]",
		"[    7.1] WARNING: drivers/infiniband/hw/mlx5/umr.c:121 at mlx5r_umr+0x5c/0x90, CPU#0: ibv/62",
		"[    7.1] WARNING: possible circular locking dependency detected",
		"[    7.1] WARNING: suspicious RCU usage",
		"[    7.1] BUG: kernel NULL pointer dereference, address: 0000000000000000",
		"[    7.1] BUG: sleeping function called from invalid context at kernel/locking/mutex.c:580",
		"[    7.1] kernel BUG at mm/slub.c:440!",
		"[    7.1] BUG kmalloc-64 (Not tainted): Poison overwritten",
		"[    7.1] Oops: 0000 [#1] PREEMPT SMP NOPTI",
		"[    7.1] general protection fault, probably for non-canonical address 0xdead000000000122: 0000 [#1]",
		"[    7.1] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000200",
		"[  243.1] INFO: task devx:71 blocked for more than 120 seconds.",
		"[   43.1] watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [x:71]",
		"[   43.1] rcu: INFO: rcu_preempt self-detected stall on CPU",
		"[   43.1] rcu: INFO: rcu_sched detected stalls on CPUs/tasks:",
		"[    7.1] Call Trace:",
		"Call Trace:",
		"[    7.1] UBSAN: array-index-out-of-bounds in drivers/net/ethernet/mellanox/mlx5/core/eq.c:1:2",
		"[    7.1] refcount_t: underflow; use-after-free.",
		"[    7.1] list_del corruption, ffff8880 ->next is LIST_POISON1",
	} {
		if !trouble.MatchString(l) {
			t.Errorf("not seen: %s", l)
		}
	}
	for _, l := range []string{
		"[    0.0] Linux version 6.1.0-50-amd64",
		"[    0.1] Spectre V2 : WARNING: Unprivileged eBPF is enabled with eIBRS on, data leaks possible via Spectre v2 BHB attacks!",
		"[    6.9] mlx5_core 0000:00:02.0: firmware version: 22.35.1012",
		"[    6.9] mlx5_core 0000:00:02.0: mlx5_cmd_out_err:803:(pid 62): CREATE_QP(0x500) op_mod(0x0) failed, status bad parameter(0x3), syndrome (0xde0001), err(-22)",
		"[    6.9] debug: unmapping init [mem 0xffffffff]",
		"[    0.5] NET: Registered PF_NETLINK/PF_ROUTE protocol family",
		"[    0.5] kworker: BUGGY firmware",
		"[    7.9] reboot: Power down",
	} {
		if trouble.MatchString(l) {
			t.Errorf("taken for trouble: %s", l)
		}
	}
}

func TestWatcher(t *testing.T) {
	var w watcher
	text := "[ 1.0] fine\r\n[ 2.0] ------------[ cut here ]------------\r\n[ 2.0] WARNING: CPU: 0 PID: 1 at x.c:1\r\n"
	for i := range 40 {
		text += fmt.Sprintf("[ 2.1] line %d\r\n", i)
	}
	text += "[ 3.0] BUG: another"
	for i := range text { // as a serial port delivers it
		if n, err := w.Write([]byte(text[i : i+1])); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	var k *KernelError
	if err := w.err(); !errors.As(err, &k) {
		t.Fatal(err)
	}
	if len(k.Lines) != around || k.Lines[0] != "[ 2.0] ------------[ cut here ]------------" || k.More != 1 {
		t.Errorf("%d lines from %q, %d more", len(k.Lines), k.Lines[0], k.More)
	}
	if !strings.Contains(k.Error(), "WARNING: CPU: 0") || !strings.HasSuffix(w.tail(), "BUG: another") {
		t.Errorf("%v\n%s", k, w.tail())
	}

	var long watcher
	for range 100 {
		_, _ = long.Write(make([]byte, 10<<10))
	}
	if long.err() != nil || len(long.partial) > longest {
		t.Error("a line without an end is kept whole")
	}
	var none watcher
	if _, err := none.Write([]byte("all well\n")); err != nil || none.err() != nil {
		t.Error(none.err())
	}
}

func FuzzWatcher(f *testing.F) {
	f.Add([]byte("[ 1] Call Trace:\n\r\n\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var whole, parts watcher
		_, _ = whole.Write(b)
		for i := range b {
			_, _ = parts.Write(b[i : i+1])
		}
		if a, b := whole.err(), parts.err(); (a == nil) != (b == nil) || a != nil && a.Error() != b.Error() {
			t.Errorf("in one piece %v, in many %v", a, b)
		}
	})
}
