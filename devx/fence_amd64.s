// SPDX-License-Identifier: BSD-2-Clause

#include "textflag.h"

// func storeFence()
TEXT ·storeFence(SB), NOSPLIT, $0-0
	SFENCE
	RET
