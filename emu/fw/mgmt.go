// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"fmt"

	"devxlab.example/mlx5"
)

// Version of the firmware: the reference card's.
const (
	VersionMajor = 22
	VersionMinor = 36
	VersionSub   = 1010
)

// Management registers (MLX5_REG_* in linux/mlx5/driver.h).
const (
	regPCAM = 0x507f
	regMCQS = 0x9060
	regMCQI = 0x9061
	regMCAM = 0x907f
)

// A capability mask has 128 bits, one for each register of its group or each
// feature, the lowest one last (mlx5_ifc.h, mcam_access_reg_bits).
const (
	maskBits   = 128
	portGroup  = 0x5000 // PCAM's group 0
	mgmtGroups = 3      // MCAM's: 0x9000, 0x9080 and 0x9100
	mgmtGroup  = 0x9000
)

func setMask(mask []byte, n int) { mask[len(mask)-1-n/8] |= 1 << (n % 8) }

// registerMask marks the registers of a group that the device has.
func registerMask(mask []byte, first int) {
	for id := range registers {
		if n := int(id) - first; n >= 0 && n < maskBits {
			setMask(mask, n)
		}
	}
}

// featureICRC is rx_icrc_encapsulated_counter in PCAM's features.
const featureICRC = maskBits - 1 - 0x6d

// readPCAM and readMCAM answer that of groups beyond these the device has
// nothing: Linux 6.12 asks for one that 6.1 does not know.
func readPCAM(_ *HCA, in, out []byte) check {
	i, o := mlx5.PcamReg(in), mlx5.PcamReg(out)
	o.SetFeatureGroup(i.FeatureGroup())
	o.SetAccessRegGroup(i.AccessRegGroup())
	if i.AccessRegGroup() == 0 {
		registerMask(o.PortAccessRegCapMask(), portGroup)
	}
	if i.FeatureGroup() == 0 {
		setMask(o.FeatureCapMask(), featureICRC) // of PPCNT: such packets do not come, and it counts none
	}
	return ok
}

func readMCAM(_ *HCA, in, out []byte) check {
	i, o := mlx5.McamReg(in), mlx5.McamReg(out)
	o.SetFeatureGroup(i.FeatureGroup())
	o.SetAccessRegGroup(i.AccessRegGroup())
	if g := int(i.AccessRegGroup()); g < mgmtGroups {
		registerMask(o.MngAccessRegCapMask(), mgmtGroup+g*maskBits)
	}
	return ok
}

// The one component of the firmware's image (driver, fw.c: MCQS_IDENTIFIER_*,
// MCQS_UPDATE_STATE_*, MCQI_INFO_TYPE_*).
const (
	componentBoot  = 0
	identifierBoot = 1
	updateIdle     = 0
	infoVersion    = 1
)

// readMCQS answers that the boot image is the only component, and that none is
// waiting for a reset.
func readMCQS(_ *HCA, in, out []byte) check {
	if mlx5.McqsReg(in).ComponentIndex() != componentBoot {
		return badComponent
	}
	o := mlx5.McqsReg(out)
	o.SetLastIndexFlag(true)
	o.SetIdentifier(identifierBoot)
	o.SetComponentUpdateState(updateIdle)
	return ok
}

func readMCQI(_ *HCA, in, out []byte) check {
	i := mlx5.McqiReg(in)
	if i.ComponentIndex() != componentBoot || i.ReadPendingComponent() || i.InfoType() != infoVersion {
		return badComponent
	}
	var data [mlx5.McqiVersionSize]byte
	v := mlx5.McqiVersion(data[:])
	v.SetVersion(VersionMajor<<24 | VersionMinor<<16 | VersionSub)
	v.SetVersionStringLength(uint8(copy(v.VersionString(), fmt.Sprintf("%d.%d.%04d", VersionMajor, VersionMinor, VersionSub))))
	o := mlx5.McqiReg(out)
	copy(o, in[:mlx5.McqiRegSize])
	o.SetInfoSize(mlx5.McqiVersionSize)
	o.SetDataSize(uint16(copy(o.Data()[:min(len(o.Data()), int(i.DataSize()))], data[min(int(i.Offset()), len(data)):])))
	return ok
}
