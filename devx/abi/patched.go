// SPDX-License-Identifier: BSD-2-Clause

package abi

import "encoding/binary"

// The ioctl of a kernel with the patch "mlx5 DevX: modify up to 32 QPs in one
// ioctl" (patches/), which no header of a distribution has. It is a method of
// MLX5_IB_OBJECT_DEVX_OBJ; a kernel without it answers EPROTONOSUPPORT. It is not
// in the table of methods, which says what stock kernels have.
const (
	MLX5_IB_METHOD_DEVX_QP_MODIFY_BATCH = 0x1007

	MLX5_IB_ATTR_DEVX_QP_MODIFY_BATCH_HANDLES  = 0x1000 // 1 to 32 handles, 32 bits each
	MLX5_IB_ATTR_DEVX_QP_MODIFY_BATCH_CMD_LENS = 0x1001 // as many lengths in bytes, 16 bits each
	MLX5_IB_ATTR_DEVX_QP_MODIFY_BATCH_CMDS     = 0x1002 // the commands, one behind the other
	MLX5_IB_ATTR_DEVX_QP_MODIFY_BATCH_RESULTS  = 0x1003 // as many QPModifyResult
)

// QPModifyBatchMax is the most commands of one call.
const QPModifyBatchMax = 32

// QPModifyResultSize is that of struct mlx5_ib_uapi_devx_qp_modify_result in bytes.
const QPModifyResultSize = 24

// QPModifyResult is a view of struct mlx5_ib_uapi_devx_qp_modify_result: an errno,
// 32 reserved bits, and the answer of the firmware.
type QPModifyResult []byte

// Err returns the errno: 0 or negative. -EREMOTEIO means that the outbox says
// more, -ECANCELED that the command was not sent.
func (r QPModifyResult) Err() int32 { return int32(binary.LittleEndian.Uint32(r)) }

// Outbox returns the 16 bytes that the firmware answered, zero if it did not.
func (r QPModifyResult) Outbox() []byte { return r[8:QPModifyResultSize:QPModifyResultSize] }
