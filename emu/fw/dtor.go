// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"time"

	"devxlab.example/mlx5"
)

// regDTOR is the register of the device's default time-outs (MLX5_REG_DTOR in
// linux/mlx5/driver.h). Linux 5.16 and later read it at probe if cmdq_init_to in
// the initialisation segment is not 0, and refuse a device that does not have it
// (lib/tout.c, main.c mlx5_function_setup).
const regDTOR = 0xc00e

// DefaultHealthPoll is how often the driver looks at the health buffer by itself
// (MLX5_TO_HEALTH_POLL_INTERVAL_MS in lib/tout.c).
const DefaultHealthPoll = 2 * time.Second

// MaxTimeout is what a time-out of the register or of the initialisation segment
// can say in milliseconds, 20 bits.
const MaxTimeout = (1<<20 - 1) * time.Millisecond

// readDTOR answers the time-outs that the driver has by itself, and the interval
// of the health poll. A field of 0 would be no time at all.
func (h *HCA) readDTOR(_, out []byte) check {
	r := mlx5.DtorReg(out)
	for _, t := range []struct {
		field mlx5.DefaultTimeout
		value time.Duration
	}{
		{r.PcieToggleTo(), 2 * time.Second},
		{r.HealthPollTo(), h.healthPoll},
		{r.FullCrdumpTo(), time.Minute},
		{r.FwResetTo(), time.Minute},
		{r.FlushOnErrTo(), 2 * time.Second},
		{r.PCISyncUpdateTo(), 5 * time.Second},
		{r.TearDownTo(), 3 * time.Second},
		{r.FsmReactivateTo(), 5 * time.Second},
		{r.ReclaimPagesTo(), 5 * time.Second},
		{r.ReclaimVfsPagesTo(), 2 * time.Minute},
		{mlx5.DefaultTimeout(out[resetUnloadAt : resetUnloadAt+mlx5.DefaultTimeoutSize]), 5 * time.Minute},
	} {
		t.field.SetToValue(uint32(t.value.Milliseconds())) // to_multiplier 0: milliseconds
	}
	return ok
}

// resetUnloadAt is the offset of reset_unload_to, which is younger than the
// header that the layouts are made from.
const resetUnloadAt = 56
