// SPDX-License-Identifier: BSD-2-Clause

package abi

// Kind is what an attribute's data stands for and in which direction it goes.
type Kind uint8

// Kinds of attributes (enum uverbs_attr_type and enum uverbs_obj_access in
// include/rdma/uverbs_ioctl.h and uverbs_types.h).
const (
	PtrIn      Kind = iota // bytes to the kernel, inline up to 8
	PtrOut                 // address of bytes from the kernel
	NewHandle              // handle of an object that the call makes
	UseHandle              // handle of an object of this file
	DropHandle             // handle of an object that the call destroys
	NewFD                  // file descriptor that the call makes
	UseFD                  // file descriptor of this device
)

// AttrSpec describes one attribute of a method.
type AttrSpec struct {
	ID        uint16
	Name      string
	Kind      Kind
	Min, Max  uint16 // bytes of data; handles and descriptors have 0
	Mandatory bool
	Object    uint16 // of a handle or descriptor; AnyObject accepts each
}

// AnyObject is UVERBS_IDR_ANY_OBJECT.
const AnyObject = 0xffff

// Method describes one method of an object.
type Method struct {
	Object, ID uint16
	Name       string
	Attrs      []AttrSpec
}

const most = 0xffff // USHRT_MAX: no upper bound but the field's

// methods follows the DECLARE_UVERBS_NAMED_METHOD tables of
// drivers/infiniband/core/uverbs_std_types_device.c and
// drivers/infiniband/hw/mlx5/{devx,main}.c (Linux 5.15). UVERBS_ATTR_CONST_IN
// takes exactly 8 bytes and UVERBS_ATTR_FLAGS_IN 4 to 8, whatever the C type is.
var methods = []Method{
	{UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE, "INVOKE_WRITE", []AttrSpec{
		{ID: UVERBS_ATTR_CORE_IN, Name: "CORE_IN", Kind: PtrIn, Min: 4, Max: most},
		{ID: UVERBS_ATTR_CORE_OUT, Name: "CORE_OUT", Kind: PtrOut, Max: most},
		{ID: UVERBS_ATTR_WRITE_CMD, Name: "WRITE_CMD", Kind: PtrIn, Min: 8, Max: 8, Mandatory: true},
		{ID: UVERBS_ATTR_UHW_IN, Name: "UHW_IN", Kind: PtrIn, Max: most},
		{ID: UVERBS_ATTR_UHW_OUT, Name: "UHW_OUT", Kind: PtrOut, Max: most},
	}},
	{UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT, "GET_CONTEXT", []AttrSpec{
		{ID: UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, Name: "NUM_COMP_VECTORS", Kind: PtrOut, Min: 4, Max: 4},
		{ID: UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, Name: "CORE_SUPPORT", Kind: PtrOut, Min: 8, Max: 8},
		{ID: UVERBS_ATTR_UHW_IN, Name: "UHW_IN", Kind: PtrIn, Max: most},
		{ID: UVERBS_ATTR_UHW_OUT, Name: "UHW_OUT", Kind: PtrOut, Max: most},
	}},
	{MLX5_IB_OBJECT_DEVX, MLX5_IB_METHOD_DEVX_OTHER, "DEVX_OTHER", []AttrSpec{
		{ID: MLX5_IB_ATTR_DEVX_OTHER_CMD_IN, Name: "CMD_IN", Kind: PtrIn, Min: 16, Max: most, Mandatory: true},
		{ID: MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT, Name: "CMD_OUT", Kind: PtrOut, Min: 16, Max: most, Mandatory: true},
	}},
	{MLX5_IB_OBJECT_DEVX, MLX5_IB_METHOD_DEVX_QUERY_UAR, "DEVX_QUERY_UAR", []AttrSpec{
		{ID: MLX5_IB_ATTR_DEVX_QUERY_UAR_USER_IDX, Name: "USER_IDX", Kind: PtrIn, Min: 4, Max: 4, Mandatory: true},
		{ID: MLX5_IB_ATTR_DEVX_QUERY_UAR_DEV_IDX, Name: "DEV_IDX", Kind: PtrOut, Min: 4, Max: 4, Mandatory: true},
	}},
	{MLX5_IB_OBJECT_DEVX, MLX5_IB_METHOD_DEVX_QUERY_EQN, "DEVX_QUERY_EQN", []AttrSpec{
		{ID: MLX5_IB_ATTR_DEVX_QUERY_EQN_USER_VEC, Name: "USER_VEC", Kind: PtrIn, Min: 4, Max: 4, Mandatory: true},
		{ID: MLX5_IB_ATTR_DEVX_QUERY_EQN_DEV_EQN, Name: "DEV_EQN", Kind: PtrOut, Min: 4, Max: 4, Mandatory: true},
	}},
	{MLX5_IB_OBJECT_DEVX, MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT, "DEVX_SUBSCRIBE_EVENT", []AttrSpec{
		{ID: MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_HANDLE, Name: "FD_HANDLE", Kind: UseFD, Mandatory: true, Object: MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD},
		{ID: MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_OBJ_HANDLE, Name: "OBJ_HANDLE", Kind: UseHandle, Object: MLX5_IB_OBJECT_DEVX_OBJ},
		{ID: MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_TYPE_NUM_LIST, Name: "TYPE_NUM_LIST", Kind: PtrIn, Min: 2, Max: most, Mandatory: true},
		{ID: MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_COOKIE, Name: "COOKIE", Kind: PtrIn, Min: 8, Max: 8},
		{ID: MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_NUM, Name: "FD_NUM", Kind: PtrIn, Min: 4, Max: 4},
	}},
	{MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_CREATE, "DEVX_OBJ_CREATE", []AttrSpec{
		{ID: MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE, Name: "HANDLE", Kind: NewHandle, Mandatory: true, Object: MLX5_IB_OBJECT_DEVX_OBJ},
		{ID: MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN, Name: "CMD_IN", Kind: PtrIn, Min: 16, Max: most, Mandatory: true},
		{ID: MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT, Name: "CMD_OUT", Kind: PtrOut, Min: 16, Max: most, Mandatory: true},
	}},
	{MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_DESTROY, "DEVX_OBJ_DESTROY", []AttrSpec{
		{ID: MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE, Name: "HANDLE", Kind: DropHandle, Mandatory: true, Object: MLX5_IB_OBJECT_DEVX_OBJ},
	}},
	{MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_MODIFY, "DEVX_OBJ_MODIFY", []AttrSpec{
		{ID: MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE, Name: "HANDLE", Kind: UseHandle, Mandatory: true, Object: AnyObject},
		{ID: MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN, Name: "CMD_IN", Kind: PtrIn, Min: 16, Max: most, Mandatory: true},
		{ID: MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT, Name: "CMD_OUT", Kind: PtrOut, Min: 16, Max: most, Mandatory: true},
	}},
	{MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_QUERY, "DEVX_OBJ_QUERY", []AttrSpec{
		{ID: MLX5_IB_ATTR_DEVX_OBJ_QUERY_HANDLE, Name: "HANDLE", Kind: UseHandle, Mandatory: true, Object: AnyObject},
		{ID: MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN, Name: "CMD_IN", Kind: PtrIn, Min: 16, Max: most, Mandatory: true},
		{ID: MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT, Name: "CMD_OUT", Kind: PtrOut, Min: 16, Max: most, Mandatory: true},
	}},
	{MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_ASYNC_QUERY, "DEVX_OBJ_ASYNC_QUERY", []AttrSpec{
		{ID: MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_HANDLE, Name: "HANDLE", Kind: UseHandle, Mandatory: true, Object: AnyObject},
		{ID: MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_CMD_IN, Name: "CMD_IN", Kind: PtrIn, Min: 16, Max: most, Mandatory: true},
		{ID: MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_OUT_LEN, Name: "OUT_LEN", Kind: PtrIn, Min: 8, Max: 8, Mandatory: true},
		{ID: MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_FD, Name: "FD", Kind: UseFD, Mandatory: true, Object: MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD},
		{ID: MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_WR_ID, Name: "WR_ID", Kind: PtrIn, Min: 8, Max: 8, Mandatory: true},
	}},
	{MLX5_IB_OBJECT_DEVX_UMEM, MLX5_IB_METHOD_DEVX_UMEM_REG, "DEVX_UMEM_REG", []AttrSpec{
		{ID: MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE, Name: "HANDLE", Kind: NewHandle, Mandatory: true, Object: MLX5_IB_OBJECT_DEVX_UMEM},
		{ID: MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR, Name: "ADDR", Kind: PtrIn, Min: 8, Max: 8, Mandatory: true},
		{ID: MLX5_IB_ATTR_DEVX_UMEM_REG_LEN, Name: "LEN", Kind: PtrIn, Min: 8, Max: 8, Mandatory: true},
		{ID: MLX5_IB_ATTR_DEVX_UMEM_REG_ACCESS, Name: "ACCESS", Kind: PtrIn, Min: 4, Max: 8},
		{ID: MLX5_IB_ATTR_DEVX_UMEM_REG_PGSZ_BITMAP, Name: "PGSZ_BITMAP", Kind: PtrIn, Min: 8, Max: 8},
		{ID: MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID, Name: "OUT_ID", Kind: PtrOut, Min: 4, Max: 4, Mandatory: true},
	}},
	{MLX5_IB_OBJECT_DEVX_UMEM, MLX5_IB_METHOD_DEVX_UMEM_DEREG, "DEVX_UMEM_DEREG", []AttrSpec{
		{ID: MLX5_IB_ATTR_DEVX_UMEM_DEREG_HANDLE, Name: "HANDLE", Kind: DropHandle, Mandatory: true, Object: MLX5_IB_OBJECT_DEVX_UMEM},
	}},
	{MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD, MLX5_IB_METHOD_DEVX_ASYNC_CMD_FD_ALLOC, "DEVX_ASYNC_CMD_FD_ALLOC", []AttrSpec{
		{ID: MLX5_IB_ATTR_DEVX_ASYNC_CMD_FD_ALLOC_HANDLE, Name: "HANDLE", Kind: NewFD, Mandatory: true, Object: MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD},
	}},
	{MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD, MLX5_IB_METHOD_DEVX_ASYNC_EVENT_FD_ALLOC, "DEVX_ASYNC_EVENT_FD_ALLOC", []AttrSpec{
		{ID: MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_HANDLE, Name: "HANDLE", Kind: NewFD, Mandatory: true, Object: MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD},
		{ID: MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_FLAGS, Name: "FLAGS", Kind: PtrIn, Min: 4, Max: 8, Mandatory: true},
	}},
	{MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_ALLOC, "UAR_OBJ_ALLOC", []AttrSpec{
		{ID: MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE, Name: "HANDLE", Kind: NewHandle, Mandatory: true, Object: MLX5_IB_OBJECT_UAR},
		{ID: MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE, Name: "TYPE", Kind: PtrIn, Min: 8, Max: 8, Mandatory: true},
		{ID: MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, Name: "MMAP_OFFSET", Kind: PtrOut, Min: 8, Max: 8, Mandatory: true},
		{ID: MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, Name: "MMAP_LENGTH", Kind: PtrOut, Min: 4, Max: 4, Mandatory: true},
		{ID: MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, Name: "PAGE_ID", Kind: PtrOut, Min: 4, Max: 4, Mandatory: true},
	}},
	{MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_DESTROY, "UAR_OBJ_DESTROY", []AttrSpec{
		{ID: MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE, Name: "HANDLE", Kind: DropHandle, Mandatory: true, Object: MLX5_IB_OBJECT_UAR},
	}},
}

// Methods returns the table. It must not be changed.
func Methods() []Method { return methods }

// Lookup returns the method, or nil. The result must not be changed.
func Lookup(object, method uint16) *Method {
	for i := range methods {
		if methods[i].Object == object && methods[i].ID == method {
			return &methods[i]
		}
	}
	return nil
}
