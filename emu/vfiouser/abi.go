// SPDX-License-Identifier: BSD-2-Clause

package vfiouser

// This file mirrors the messages of docs/interop/vfio-user.rst in QEMU's source
// and the constants that they take from linux/vfio.h. Fields are in the byte
// order of the host, without padding.

// Commands of section "Commands". 14 was VFIO_USER_DIRTY_PAGES.
const (
	cmdVersion        = 1
	cmdDMAMap         = 2
	cmdDMAUnmap       = 3
	cmdGetInfo        = 4
	cmdGetRegionInfo  = 5
	cmdGetRegionIOFDs = 6
	cmdGetIRQInfo     = 7
	cmdSetIRQs        = 8
	cmdRegionRead     = 9
	cmdRegionWrite    = 10
	cmdDMARead        = 11
	cmdDMAWrite       = 12
	cmdReset          = 13
	cmdDirtyPages     = 14
	cmdWriteMulti     = 15
	cmdFeature        = 16
	cmdMigDataRead    = 17
	cmdMigDataWrite   = 18
)

// header is the start of each message (section "Header"). Size counts it.
type header struct {
	ID      uint16
	Command uint16
	Size    uint32
	Flags   uint32
	Errno   uint32
}

const headerSize = 16

// Flags of a header.
const (
	flagType    = 0xf // 0 command, 1 reply
	flagReply   = 0x1
	flagNoReply = 0x10
	flagError   = 0x20
)

// The protocol version that QEMU asks for and that is spoken here.
const (
	versionMajor = 0
	versionMinor = 0
)

// version is followed by JSON text that ends with a zero byte.
type version struct{ Major, Minor uint16 }

const versionSize = 4

// What an absent capability stands for (section "VFIO_USER_VERSION").
const defaultMaxXfer = 1 << 20

// capabilities is the "capabilities" object; those that are absent are nil. The
// types are those of the section's table.
type capabilities struct {
	MaxMsgFDs       *uint64 `json:"max_msg_fds,omitempty"`
	MaxDataXferSize *uint64 `json:"max_data_xfer_size,omitempty"`
	MaxDMAMaps      *uint64 `json:"max_dma_maps,omitempty"`
	PageSizes       *uint64 `json:"pgsizes,omitempty"`
	WriteMultiple   *bool   `json:"write_multiple,omitempty"`
}

type versionData struct {
	Capabilities *capabilities `json:"capabilities,omitempty"`
}

type dmaMap struct {
	Argsz, Flags         uint32
	Offset, Addr, Length uint64
}

type dmaUnmap struct {
	Argsz, Flags uint32
	Addr, Length uint64
}

const dmaMapSize, dmaUnmapSize = 32, 24

// VFIO_DMA_MAP_FLAG_* and VFIO_DMA_UNMAP_FLAG_ALL.
const (
	dmaMapRead  = 1 << 0
	dmaMapWrite = 1 << 1
	dmaUnmapAll = 1 << 1
)

// deviceInfo is struct vfio_device_info, as far as the protocol has it.
type deviceInfo struct{ Argsz, Flags, Regions, IRQs uint32 }

// VFIO_DEVICE_FLAGS_*.
const (
	deviceReset = 1 << 0
	devicePCI   = 1 << 1
)

// regionInfo is struct vfio_region_info.
type regionInfo struct {
	Argsz, Flags, Index, CapOffset uint32
	Size, Offset                   uint64
}

// VFIO_REGION_INFO_FLAG_*.
const (
	regionCanRead  = 1 << 0
	regionCanWrite = 1 << 1
)

// VFIO_PCI_*_REGION_INDEX: the BARs, then ROM, config space and VGA.
const (
	regionBAR0   = 0
	numBARs      = 6
	regionConfig = 7
	numRegions   = 9
)

// configSize is PCI Express's configuration space.
const configSize = 4096

type regionIOFDs struct{ Argsz, Flags, Index, Count uint32 }

// irqInfo is struct vfio_irq_info.
type irqInfo struct{ Argsz, Flags, Index, Count uint32 }

const deviceInfoSize, regionInfoSize, regionIOFDsSize, irqInfoSize = 16, 32, 16, 16

// VFIO_IRQ_INFO_EVENTFD. Without VFIO_IRQ_INFO_NORESIZE QEMU sets vectors one by
// one; with it, it takes all away before it sets one more, and interrupts that
// come between are lost (vfio_msix_vector_do_use in QEMU's hw/vfio/pci.c).
const irqEventFD = 1 << 0

// VFIO_PCI_*_IRQ_INDEX: INTx, MSI, MSI-X, error and request.
const (
	irqMSIX = 2
	numIRQs = 5
)

// maxVectors is the most that MSI-X has (PCI Local Bus 3.0, 6.8.2.3).
const maxVectors = 2048

// irqSet is struct vfio_irq_set; with irqDataBool, Count bytes follow.
type irqSet struct{ Argsz, Flags, Index, Start, Count uint32 }

const irqSetSize = 20

// VFIO_IRQ_SET_DATA_* and VFIO_IRQ_SET_ACTION_*.
const (
	irqDataNone    = 1 << 0
	irqDataBool    = 1 << 1
	irqDataEventFD = 1 << 2
	irqMask        = 1 << 3
	irqUnmask      = 1 << 4
	irqTrigger     = 1 << 5

	irqData   = irqDataNone | irqDataBool | irqDataEventFD
	irqAction = irqMask | irqUnmask | irqTrigger
)

// regionAccess is followed by the data, in a write's command and in a read's
// reply.
type regionAccess struct {
	Offset        uint64
	Region, Count uint32
}

const regionAccessSize = 16

// multiWrite is one write of VFIO_USER_REGION_WRITE_MULTI, which begins with
// their number.
type multiWrite struct {
	regionAccess
	Data [8]byte
}

const multiHeaderSize, multiWriteSize = 8, 24
