//! Types of the driver API whose fields the hooks and the simulated GPU read or write. The names
//! are those of the headers.
//!
//! Handles, enumerations and flags come from the generated `constants`. All other types that
//! functions take by pointer are opaque (`c_void`). The layouts are those of x86-64 Linux.
#![expect(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    reason = "names are NVIDIA's; its driver API reference documents the fields under the same names"
)]

pub use core::ffi::{c_char, c_void};

pub use super::constants::*;
pub use super::result::CUresult;

/// An address in device memory.
pub type CUdeviceptr = u64;
/// A device's ordinal in this process.
pub type CUdevice = i32;
/// A function that `cuLaunchHostFunc` runs on a thread of the driver.
pub type CUhostFn = Option<unsafe extern "C" fn(userData: *mut c_void)>;
/// A function that `cuStreamAddCallback` runs on a thread of the driver.
pub type CUstreamCallback =
    Option<unsafe extern "C" fn(hStream: CUstream, status: CUresult, userData: *mut c_void)>;
/// A function that returns the dynamic shared memory that a kernel needs at a block size.
pub type CUoccupancyB2DSize = Option<unsafe extern "C" fn(blockSize: i32) -> usize>;

// Codegen does not read the headers of the profiler, OpenGL, EGL and VDPAU, so this file declares
// these types itself.
pub type CUoutput_mode = u32;
pub type GLuint = u32;
pub type GLenum = u32;
pub type EGLint = i32;
pub type EGLImageKHR = *mut c_void;
pub type EGLStreamKHR = *mut c_void;
pub type EGLSyncKHR = *mut c_void;
pub type VdpDevice = u32;
pub type VdpOutputSurface = u32;
pub type VdpVideoSurface = u32;

/// The legacy default stream, which waits for all blocking streams of the context.
pub const CU_STREAM_LEGACY: CUstream = 0x1 as CUstream;
/// The calling thread's own default stream.
pub const CU_STREAM_PER_THREAD: CUstream = 0x2 as CUstream;
/// The host, in place of a device.
pub const CU_DEVICE_CPU: CUdevice = -1;
/// The value that stands for no device.
pub const CU_DEVICE_INVALID: CUdevice = -2;

/// Identifies a device.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CUuuid {
    pub bytes: [u8; 16],
}

/// A handle by which another process opens an allocation.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUipcMemHandle {
    pub reserved: [u8; 64],
}

/// A handle by which another process opens an event.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUipcEventHandle {
    pub reserved: [u8; 64],
}

/// The result of `cuDeviceGetProperties`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUdevprop {
    pub maxThreadsPerBlock: i32,
    pub maxThreadsDim: [i32; 3],
    pub maxGridSize: [i32; 3],
    pub sharedMemPerBlock: i32,
    pub totalConstantMemory: i32,
    pub SIMDWidth: i32,
    pub memPitch: i32,
    pub regsPerBlock: i32,
    pub clockRate: i32,
    pub textureAlign: i32,
}

/// A place of memory. `id` is a device ordinal, or a NUMA node for the host kinds. For the
/// localized kinds, the low byte of `id` is the device, and the next byte the locality domain.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUmemLocation {
    pub r#type: CUmemLocationType,
    pub id: i32,
}

/// The last field of [`CUmemAllocationProp`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUmemAllocationProp_allocFlags {
    pub compressionType: u8,
    pub gpuDirectRDMACapable: u8,
    pub usage: u16,
    pub reserved: [u8; 4],
}

/// The properties of an allocation by `cuMemCreate`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUmemAllocationProp {
    pub r#type: CUmemAllocationType,
    pub requestedHandleTypes: CUmemAllocationHandleType,
    pub location: CUmemLocation,
    pub win32HandleMetaData: *mut c_void,
    pub allocFlags: CUmemAllocationProp_allocFlags,
}

/// The access of one place to a mapping.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUmemAccessDesc {
    pub location: CUmemLocation,
    pub flags: CUmemAccess_flags,
}

/// The properties of a pool by `cuMemPoolCreate`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUmemPoolProps {
    pub allocType: CUmemAllocationType,
    pub handleTypes: CUmemAllocationHandleType,
    pub location: CUmemLocation,
    pub win32SecurityAttributes: *mut c_void,
    pub maxSize: usize,
    pub usage: u16,
    pub gpuDirectRDMACapable: u8,
    pub reserved: [u8; 53],
}

/// A one- or two-dimensional array, before CUDA 3.2.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_ARRAY_DESCRIPTOR_v1 {
    pub Width: u32,
    pub Height: u32,
    pub Format: CUarray_format,
    pub NumChannels: u32,
}

/// A one- or two-dimensional array.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_ARRAY_DESCRIPTOR {
    pub Width: usize,
    pub Height: usize,
    pub Format: CUarray_format,
    pub NumChannels: u32,
}

/// A three-dimensional array, before CUDA 3.2.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_ARRAY3D_DESCRIPTOR_v1 {
    pub Width: u32,
    pub Height: u32,
    pub Depth: u32,
    pub Format: CUarray_format,
    pub NumChannels: u32,
    pub Flags: u32,
}

/// A three-dimensional array.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_ARRAY3D_DESCRIPTOR {
    pub Width: usize,
    pub Height: usize,
    pub Depth: usize,
    pub Format: CUarray_format,
    pub NumChannels: u32,
    pub Flags: u32,
}

/// A two-dimensional copy, before CUDA 3.2.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_MEMCPY2D_v1 {
    pub srcXInBytes: u32,
    pub srcY: u32,
    pub srcMemoryType: CUmemorytype,
    pub srcHost: *const c_void,
    pub srcDevice: CUdeviceptr_v1,
    pub srcArray: CUarray,
    pub srcPitch: u32,
    pub dstXInBytes: u32,
    pub dstY: u32,
    pub dstMemoryType: CUmemorytype,
    pub dstHost: *mut c_void,
    pub dstDevice: CUdeviceptr_v1,
    pub dstArray: CUarray,
    pub dstPitch: u32,
    pub WidthInBytes: u32,
    pub Height: u32,
}

/// A two-dimensional copy.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_MEMCPY2D {
    pub srcXInBytes: usize,
    pub srcY: usize,
    pub srcMemoryType: CUmemorytype,
    pub srcHost: *const c_void,
    pub srcDevice: CUdeviceptr,
    pub srcArray: CUarray,
    pub srcPitch: usize,
    pub dstXInBytes: usize,
    pub dstY: usize,
    pub dstMemoryType: CUmemorytype,
    pub dstHost: *mut c_void,
    pub dstDevice: CUdeviceptr,
    pub dstArray: CUarray,
    pub dstPitch: usize,
    pub WidthInBytes: usize,
    pub Height: usize,
}

/// A three-dimensional copy, before CUDA 3.2.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_MEMCPY3D_v1 {
    pub srcXInBytes: u32,
    pub srcY: u32,
    pub srcZ: u32,
    pub srcLOD: u32,
    pub srcMemoryType: CUmemorytype,
    pub srcHost: *const c_void,
    pub srcDevice: CUdeviceptr_v1,
    pub srcArray: CUarray,
    pub reserved0: *mut c_void,
    pub srcPitch: u32,
    pub srcHeight: u32,
    pub dstXInBytes: u32,
    pub dstY: u32,
    pub dstZ: u32,
    pub dstLOD: u32,
    pub dstMemoryType: CUmemorytype,
    pub dstHost: *mut c_void,
    pub dstDevice: CUdeviceptr_v1,
    pub dstArray: CUarray,
    pub reserved1: *mut c_void,
    pub dstPitch: u32,
    pub dstHeight: u32,
    pub WidthInBytes: u32,
    pub Height: u32,
    pub Depth: u32,
}

/// A three-dimensional copy.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_MEMCPY3D {
    pub srcXInBytes: usize,
    pub srcY: usize,
    pub srcZ: usize,
    pub srcLOD: usize,
    pub srcMemoryType: CUmemorytype,
    pub srcHost: *const c_void,
    pub srcDevice: CUdeviceptr,
    pub srcArray: CUarray,
    pub reserved0: *mut c_void,
    pub srcPitch: usize,
    pub srcHeight: usize,
    pub dstXInBytes: usize,
    pub dstY: usize,
    pub dstZ: usize,
    pub dstLOD: usize,
    pub dstMemoryType: CUmemorytype,
    pub dstHost: *mut c_void,
    pub dstDevice: CUdeviceptr,
    pub dstArray: CUarray,
    pub reserved1: *mut c_void,
    pub dstPitch: usize,
    pub dstHeight: usize,
    pub WidthInBytes: usize,
    pub Height: usize,
    pub Depth: usize,
}

/// A three-dimensional copy between contexts.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_MEMCPY3D_PEER {
    pub srcXInBytes: usize,
    pub srcY: usize,
    pub srcZ: usize,
    pub srcLOD: usize,
    pub srcMemoryType: CUmemorytype,
    pub srcHost: *const c_void,
    pub srcDevice: CUdeviceptr,
    pub srcArray: CUarray,
    pub srcContext: CUcontext,
    pub srcPitch: usize,
    pub srcHeight: usize,
    pub dstXInBytes: usize,
    pub dstY: usize,
    pub dstZ: usize,
    pub dstLOD: usize,
    pub dstMemoryType: CUmemorytype,
    pub dstHost: *mut c_void,
    pub dstDevice: CUdeviceptr,
    pub dstArray: CUarray,
    pub dstContext: CUcontext,
    pub dstPitch: usize,
    pub dstHeight: usize,
    pub WidthInBytes: usize,
    pub Height: usize,
    pub Depth: usize,
}

/// A range of addresses, and the treatment of the range by the cache.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUaccessPolicyWindow {
    pub base_ptr: *mut c_void,
    pub num_bytes: usize,
    pub hitRatio: f32,
    pub hitProp: CUaccessProperty,
    pub missProp: CUaccessProperty,
}

/// An event that a launch records. The header has no name for this type. Only a programmatic event
/// uses `triggerAtBlockStart`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUlaunchAttributeEvent {
    pub event: CUevent,
    pub flags: i32,
    pub triggerAtBlockStart: i32,
}

/// The value of a launch attribute. `pad` holds the bytes of attributes that deepres does not read.
#[repr(C)]
#[derive(Clone, Copy)]
pub union CUlaunchAttributeValue {
    pub pad: [u8; 64],
    pub accessPolicyWindow: CUaccessPolicyWindow,
    pub cooperative: i32,
    pub clusterDim: [u32; 3],
    pub programmaticStreamSerializationAllowed: i32,
    pub programmaticEvent: CUlaunchAttributeEvent,
    pub launchCompletionEvent: CUlaunchAttributeEvent,
    pub priority: i32,
    pub preferredClusterDim: [u32; 3],
    pub sharedMemCarveout: u32,
}

/// One attribute of a launch.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUlaunchAttribute {
    pub id: CUlaunchAttributeID,
    pub pad: [u8; 4],
    pub value: CUlaunchAttributeValue,
}

/// The geometry, stream and attributes of a launch by `cuLaunchKernelEx`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUlaunchConfig {
    pub gridDimX: u32,
    pub gridDimY: u32,
    pub gridDimZ: u32,
    pub blockDimX: u32,
    pub blockDimY: u32,
    pub blockDimZ: u32,
    pub sharedMemBytes: u32,
    pub hStream: CUstream,
    pub attrs: *mut CUlaunchAttribute,
    pub numAttrs: u32,
}

/// One device's part of `cuLaunchCooperativeKernelMultiDevice`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_LAUNCH_PARAMS {
    pub function: CUfunction,
    pub gridDimX: u32,
    pub gridDimY: u32,
    pub gridDimZ: u32,
    pub blockDimX: u32,
    pub blockDimY: u32,
    pub blockDimZ: u32,
    pub sharedMemBytes: u32,
    pub hStream: CUstream,
    pub kernelParams: *mut *mut c_void,
}

/// A kernel in a graph, before CUDA 12.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_KERNEL_NODE_PARAMS_v1 {
    pub func: CUfunction,
    pub gridDimX: u32,
    pub gridDimY: u32,
    pub gridDimZ: u32,
    pub blockDimX: u32,
    pub blockDimY: u32,
    pub blockDimZ: u32,
    pub sharedMemBytes: u32,
    pub kernelParams: *mut *mut c_void,
    pub extra: *mut *mut c_void,
}

/// A kernel in a graph: the headers' `_v2`. Their `_v3`, which [`CUgraphNodeParams`] contains, has
/// the same layout.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_KERNEL_NODE_PARAMS {
    pub func: CUfunction,
    pub gridDimX: u32,
    pub gridDimY: u32,
    pub gridDimZ: u32,
    pub blockDimX: u32,
    pub blockDimY: u32,
    pub blockDimZ: u32,
    pub sharedMemBytes: u32,
    pub kernelParams: *mut *mut c_void,
    pub extra: *mut *mut c_void,
    pub kern: CUkernel,
    pub ctx: CUcontext,
}

/// A copy in a graph, in the form that [`CUgraphNodeParams`] contains.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_MEMCPY_NODE_PARAMS {
    pub flags: i32,
    pub reserved: i32,
    pub copyCtx: CUcontext,
    pub copyParams: CUDA_MEMCPY3D,
}

/// A memory set in a graph.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_MEMSET_NODE_PARAMS {
    pub dst: CUdeviceptr,
    pub pitch: usize,
    pub value: u32,
    pub elementSize: u32,
    pub width: usize,
    pub height: usize,
}

/// A memory set in a graph, in the form that [`CUgraphNodeParams`] contains.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_MEMSET_NODE_PARAMS_v2 {
    pub dst: CUdeviceptr,
    pub pitch: usize,
    pub value: u32,
    pub elementSize: u32,
    pub width: usize,
    pub height: usize,
    pub ctx: CUcontext,
}

/// A host function in a graph. The form that [`CUgraphNodeParams`] contains begins with these
/// fields.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_HOST_NODE_PARAMS {
    pub r#fn: CUhostFn,
    pub userData: *mut c_void,
}

/// A graph in a graph, in the form that [`CUgraphNodeParams`] contains.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_CHILD_GRAPH_NODE_PARAMS {
    pub graph: CUgraph,
    pub ownership: CUgraphChildGraphNodeOwnership,
}

/// A node that runs graphs of its own if a condition holds.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_CONDITIONAL_NODE_PARAMS {
    pub handle: CUgraphConditionalHandle,
    pub r#type: CUgraphConditionalNodeType,
    pub size: u32,
    /// The result of the driver: `size` graphs.
    pub phGraph_out: *mut CUgraph,
    pub ctx: CUcontext,
}

/// An allocation in a graph.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_MEM_ALLOC_NODE_PARAMS {
    pub poolProps: CUmemPoolProps,
    pub accessDescs: *const CUmemAccessDesc,
    pub accessDescCount: usize,
    pub bytesize: usize,
    pub dptr: CUdeviceptr,
}

/// A release of memory in a graph.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_MEM_FREE_NODE_PARAMS {
    pub dptr: CUdeviceptr,
}

/// The middle of [`CUgraphNodeParams`]. `asBytes` holds kinds of nodes that deepres does not read.
#[repr(C)]
#[derive(Clone, Copy)]
pub union CUgraphNodeParams_union {
    pub asBytes: [u8; 232],
    pub kernel: CUDA_KERNEL_NODE_PARAMS,
    pub memcpy: CUDA_MEMCPY_NODE_PARAMS,
    pub memset: CUDA_MEMSET_NODE_PARAMS_v2,
    pub host: CUDA_HOST_NODE_PARAMS,
    pub graph: CUDA_CHILD_GRAPH_NODE_PARAMS,
    pub alloc: CUDA_MEM_ALLOC_NODE_PARAMS,
    pub conditional: CUDA_CONDITIONAL_NODE_PARAMS,
    pub free: CUDA_MEM_FREE_NODE_PARAMS,
}

/// A node of any kind, for `cuGraphAddNode`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUgraphNodeParams {
    pub r#type: CUgraphNodeType,
    pub reserved0: [i32; 3],
    pub params: CUgraphNodeParams_union,
    pub reserved2: i64,
}

/// The kind of dependency of an edge in a graph.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CUgraphEdgeData {
    pub from_port: u8,
    pub to_port: u8,
    pub r#type: u8,
    pub reserved: [u8; 5],
}

/// The parameters and the result of `cuGraphInstantiateWithParams`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_GRAPH_INSTANTIATE_PARAMS {
    pub flags: u64,
    pub hUploadStream: CUstream,
    pub hErrNode_out: CUgraphNode,
    pub result_out: CUgraphInstantiateResult,
}

/// The result of `cuGraphExecUpdate`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUgraphExecUpdateResultInfo {
    pub result: CUgraphExecUpdateResult,
    pub errorNode: CUgraphNode,
    pub errorFromNode: CUgraphNode,
}

/// Hints for copies made in a batch.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUmemcpyAttributes {
    pub srcAccessOrder: CUmemcpySrcAccessOrder,
    pub srcLocHint: CUmemLocation,
    pub dstLocHint: CUmemLocation,
    pub flags: u32,
}

/// A number of elements in each direction.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUextent3D {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}

/// Source or target of a three-dimensional copy in a batch.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUmemcpy3DOperand {
    pub r#type: CUmemcpy3DOperandType,
    /// Of a pointer: the address, the elements of a row, the rows of a layer, and a hint. Of an
    /// array: the handle and the offset in each direction, elements.
    pub op: [u64; 4],
}

/// A three-dimensional copy in a batch.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUDA_MEMCPY3D_BATCH_OP {
    pub src: CUmemcpy3DOperand,
    pub dst: CUmemcpy3DOperand,
    pub extent: CUextent3D,
    pub srcAccessOrder: CUmemcpySrcAccessOrder,
    pub flags: u32,
}

/// A frame of a stream shared with EGL.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUeglFrame {
    pub frame: [*mut c_void; 3],
    pub width: u32,
    pub height: u32,
    pub depth: u32,
    pub pitch: u32,
    pub planeCount: u32,
    pub numChannels: u32,
    pub frameType: CUeglFrameType,
    pub eglColorFormat: CUeglColorFormat,
    pub cuFormat: CUarray_format,
}

/// Checks the size, alignment and field offsets of types against the values of a C compiler for the
/// headers.
#[macro_export]
macro_rules! layouts {
    ($($name:ident: $size:literal, $align:literal { $($field:ident: $offset:literal),* })*) => {
        $(const _: () = {
            assert!(size_of::<$name>() == $size);
            assert!(align_of::<$name>() == $align);
            $(assert!(core::mem::offset_of!($name, $field) == $offset);)*
        };)*
    };
}

layouts! {
    CUuuid: 16, 1 { bytes: 0 }
    CUipcMemHandle: 64, 1 { reserved: 0 }
    CUipcEventHandle: 64, 1 { reserved: 0 }
    CUdevprop: 56, 4 { maxThreadsPerBlock: 0, maxThreadsDim: 4, maxGridSize: 16, sharedMemPerBlock: 28, totalConstantMemory: 32, SIMDWidth: 36, memPitch: 40, regsPerBlock: 44, clockRate: 48, textureAlign: 52 }
    CUmemLocation: 8, 4 { r#type: 0, id: 4 }
    CUmemAllocationProp_allocFlags: 8, 2 { compressionType: 0, gpuDirectRDMACapable: 1, usage: 2, reserved: 4 }
    CUmemAllocationProp: 32, 8 { r#type: 0, requestedHandleTypes: 4, location: 8, win32HandleMetaData: 16, allocFlags: 24 }
    CUmemAccessDesc: 12, 4 { location: 0, flags: 8 }
    CUmemPoolProps: 88, 8 { allocType: 0, handleTypes: 4, location: 8, win32SecurityAttributes: 16, maxSize: 24, usage: 32, gpuDirectRDMACapable: 34, reserved: 35 }
    CUDA_ARRAY_DESCRIPTOR_v1: 16, 4 { Width: 0, Height: 4, Format: 8, NumChannels: 12 }
    CUDA_ARRAY_DESCRIPTOR: 24, 8 { Width: 0, Height: 8, Format: 16, NumChannels: 20 }
    CUDA_ARRAY3D_DESCRIPTOR_v1: 24, 4 { Width: 0, Height: 4, Depth: 8, Format: 12, NumChannels: 16, Flags: 20 }
    CUDA_ARRAY3D_DESCRIPTOR: 40, 8 { Width: 0, Height: 8, Depth: 16, Format: 24, NumChannels: 28, Flags: 32 }
    CUDA_MEMCPY2D_v1: 96, 8 { srcXInBytes: 0, srcY: 4, srcMemoryType: 8, srcHost: 16, srcDevice: 24, srcArray: 32, srcPitch: 40, dstXInBytes: 44, dstY: 48, dstMemoryType: 52, dstHost: 56, dstDevice: 64, dstArray: 72, dstPitch: 80, WidthInBytes: 84, Height: 88 }
    CUDA_MEMCPY2D: 128, 8 { srcXInBytes: 0, srcY: 8, srcMemoryType: 16, srcHost: 24, srcDevice: 32, srcArray: 40, srcPitch: 48, dstXInBytes: 56, dstY: 64, dstMemoryType: 72, dstHost: 80, dstDevice: 88, dstArray: 96, dstPitch: 104, WidthInBytes: 112, Height: 120 }
    CUDA_MEMCPY3D_v1: 144, 8 { srcXInBytes: 0, srcY: 4, srcZ: 8, srcLOD: 12, srcMemoryType: 16, srcHost: 24, srcDevice: 32, srcArray: 40, reserved0: 48, srcPitch: 56, srcHeight: 60, dstXInBytes: 64, dstY: 68, dstZ: 72, dstLOD: 76, dstMemoryType: 80, dstHost: 88, dstDevice: 96, dstArray: 104, reserved1: 112, dstPitch: 120, dstHeight: 124, WidthInBytes: 128, Height: 132, Depth: 136 }
    CUDA_MEMCPY3D: 200, 8 { srcXInBytes: 0, srcY: 8, srcZ: 16, srcLOD: 24, srcMemoryType: 32, srcHost: 40, srcDevice: 48, srcArray: 56, reserved0: 64, srcPitch: 72, srcHeight: 80, dstXInBytes: 88, dstY: 96, dstZ: 104, dstLOD: 112, dstMemoryType: 120, dstHost: 128, dstDevice: 136, dstArray: 144, reserved1: 152, dstPitch: 160, dstHeight: 168, WidthInBytes: 176, Height: 184, Depth: 192 }
    CUDA_MEMCPY3D_PEER: 200, 8 { srcXInBytes: 0, srcY: 8, srcZ: 16, srcLOD: 24, srcMemoryType: 32, srcHost: 40, srcDevice: 48, srcArray: 56, srcContext: 64, srcPitch: 72, srcHeight: 80, dstXInBytes: 88, dstY: 96, dstZ: 104, dstLOD: 112, dstMemoryType: 120, dstHost: 128, dstDevice: 136, dstArray: 144, dstContext: 152, dstPitch: 160, dstHeight: 168, WidthInBytes: 176, Height: 184, Depth: 192 }
    CUaccessPolicyWindow: 32, 8 { base_ptr: 0, num_bytes: 8, hitRatio: 16, hitProp: 20, missProp: 24 }
    CUlaunchAttributeValue: 64, 8 {}
    CUlaunchAttribute: 72, 8 { id: 0, pad: 4, value: 8 }
    CUlaunchConfig: 56, 8 { gridDimX: 0, gridDimY: 4, gridDimZ: 8, blockDimX: 12, blockDimY: 16, blockDimZ: 20, sharedMemBytes: 24, hStream: 32, attrs: 40, numAttrs: 48 }
    CUDA_LAUNCH_PARAMS: 56, 8 { function: 0, gridDimX: 8, gridDimY: 12, gridDimZ: 16, blockDimX: 20, blockDimY: 24, blockDimZ: 28, sharedMemBytes: 32, hStream: 40, kernelParams: 48 }
    CUDA_KERNEL_NODE_PARAMS_v1: 56, 8 { func: 0, gridDimX: 8, gridDimY: 12, gridDimZ: 16, blockDimX: 20, blockDimY: 24, blockDimZ: 28, sharedMemBytes: 32, kernelParams: 40, extra: 48 }
    CUDA_KERNEL_NODE_PARAMS: 72, 8 { func: 0, gridDimX: 8, gridDimY: 12, gridDimZ: 16, blockDimX: 20, blockDimY: 24, blockDimZ: 28, sharedMemBytes: 32, kernelParams: 40, extra: 48, kern: 56, ctx: 64 }
    CUDA_MEMCPY_NODE_PARAMS: 216, 8 { flags: 0, reserved: 4, copyCtx: 8, copyParams: 16 }
    CUDA_MEMSET_NODE_PARAMS: 40, 8 { dst: 0, pitch: 8, value: 16, elementSize: 20, width: 24, height: 32 }
    CUDA_MEMSET_NODE_PARAMS_v2: 48, 8 { dst: 0, pitch: 8, value: 16, elementSize: 20, width: 24, height: 32, ctx: 40 }
    CUDA_HOST_NODE_PARAMS: 16, 8 { r#fn: 0, userData: 8 }
    CUDA_CHILD_GRAPH_NODE_PARAMS: 16, 8 { graph: 0, ownership: 8 }
    CUDA_MEM_ALLOC_NODE_PARAMS: 120, 8 { poolProps: 0, accessDescs: 88, accessDescCount: 96, bytesize: 104, dptr: 112 }
    CUDA_MEM_FREE_NODE_PARAMS: 8, 8 { dptr: 0 }
    CUgraphNodeParams: 256, 8 { r#type: 0, reserved0: 4, params: 16, reserved2: 248 }
    CUgraphEdgeData: 8, 1 { from_port: 0, to_port: 1, r#type: 2, reserved: 3 }
    CUDA_GRAPH_INSTANTIATE_PARAMS: 32, 8 { flags: 0, hUploadStream: 8, hErrNode_out: 16, result_out: 24 }
    CUgraphExecUpdateResultInfo: 24, 8 { result: 0, errorNode: 8, errorFromNode: 16 }
    CUmemcpyAttributes: 24, 4 { srcAccessOrder: 0, srcLocHint: 4, dstLocHint: 12, flags: 20 }
    CUextent3D: 24, 8 { width: 0, height: 8, depth: 16 }
    CUmemcpy3DOperand: 40, 8 { r#type: 0, op: 8 }
    CUDA_MEMCPY3D_BATCH_OP: 112, 8 { src: 0, dst: 40, extent: 80, srcAccessOrder: 104, flags: 108 }
    CUeglFrame: 64, 8 { frame: 0, width: 24, height: 28, depth: 32, pitch: 36, planeCount: 40, numChannels: 44, frameType: 48, eglColorFormat: 52, cuFormat: 56 }
}
