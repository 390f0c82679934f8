// SPDX-License-Identifier: BSD-2-Clause

#include "textflag.h"

// func storeFence()
// DSB ST: also orders normal memory against device memory, outside of the
// inner shareable domain.
TEXT ·storeFence(SB), NOSPLIT, $0-0
	DSB	$14
	RET
