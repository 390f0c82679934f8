// SPDX-License-Identifier: BSD-2-Clause

package explain

import (
	"fmt"
	"regexp"
	"strings"
)

var (
	cqErrorRE = regexp.MustCompile(`(?i)CQ error on CQN (0x[0-9a-f]+), syndrome (0x[0-9a-f]+)`)
	healthRE  = regexp.MustCompile(`(?i)\bext_synd\b|\bassert_var\[|health compromised|\bsynd 0x[0-9a-f]+: ?([a-z ]*)`)
)

// parseEvent keeps syndromes of other kinds away from those of commands.
func parseEvent(s string) (Answer, bool, error) {
	if m := cqErrorRE.FindStringSubmatch(s); m != nil {
		a := Answer{Kind: KindEvent, Summary: fmt.Sprintf("asynchronous error of CQ %s, syndrome %s", m[1], m[2])}
		switch v, _ := number(m[2], 32); v {
		case 1:
			a.Summary += ": overrun"
			a.mean("The CQ was full when a completion arrived (syndrome 1 of mlx5_ifc.h). The CQ is unusable now.")
			a.check("The CQ's size against all that can complete into it at once: send queues, receive queues and SRQs; how often it is polled.")
		case 2:
			a.Summary += ": access violation"
			a.mean("The device was not allowed to use the CQ's memory (syndrome 2 of mlx5_ifc.h).")
			a.check("That its memory is still registered and mapped; IOMMU faults in dmesg.")
		default:
			a.mean("mlx5_ifc.h has no name for this syndrome.")
		}
		return a, true, nil
	}
	if m := healthRE.FindStringSubmatch(s); m != nil {
		a := Answer{Kind: KindEvent, Summary: "health report of the device: firmware or hardware failed"}
		if m[1] != "" {
			a.Summary = "health report of the device: " + strings.TrimSpace(m[1])
		}
		a.mean("Health syndromes are numbers of their own and have nothing to do with those of commands; the driver prints the name that it knows.")
		a.mean("Commands in flight fail or time out; later ones give EIO (Linux 5.15) or ENXIO (6.1 and later).")
		a.check("`devlink health show`, the whole report in dmesg with its fw_ver, and the vendor.", "After `health recovery succeeded` open the device again; if there is no recovery, reset the function.")
		return a, true, nil
	}
	return Answer{}, false, nil
}
