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
/// The device number that stands for no device.
pub const CU_DEVICE_INVALID: CUdevice = -2;

/// Declares plain structures of C, as `struct NAME: SIZE, ALIGNMENT { FIELD: TYPE = OFFSET, … }`.
/// The macro checks these numbers, which a C compiler computes from the headers.
#[macro_export]
macro_rules! layouts {
    ($($(#[$about:meta])* struct $name:ident: $size:literal, $align:literal {
        $($(#[$about_field:meta])* $field:ident: $type:ty = $offset:literal,)*
    })*) => {$(
        $(#[$about])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct $name {
            $($(#[$about_field])* pub $field: $type,)*
        }

        const _: () = {
            assert!(size_of::<$name>() == $size);
            assert!(align_of::<$name>() == $align);
            $(assert!(core::mem::offset_of!($name, $field) == $offset);)*
        };
    )*};
}

layouts! {
    /// The UUID of a device, which is the same in each process.
    #[derive(PartialEq, Eq, Hash, Debug)]
    struct CUuuid: 16, 1 {
        bytes: [u8; 16] = 0,
    }

    /// A handle by which another process opens an allocation.
    struct CUipcMemHandle: 64, 1 {
        reserved: [u8; 64] = 0,
    }

    /// A handle by which another process opens an event.
    struct CUipcEventHandle: 64, 1 {
        reserved: [u8; 64] = 0,
    }

    /// The result of `cuDeviceGetProperties`.
    struct CUdevprop: 56, 4 {
        maxThreadsPerBlock: i32 = 0,
        maxThreadsDim: [i32; 3] = 4,
        maxGridSize: [i32; 3] = 16,
        sharedMemPerBlock: i32 = 28,
        totalConstantMemory: i32 = 32,
        SIMDWidth: i32 = 36,
        memPitch: i32 = 40,
        regsPerBlock: i32 = 44,
        clockRate: i32 = 48,
        textureAlign: i32 = 52,
    }

    /// A location of memory: a device, or a NUMA node of the host. `id` is a device ordinal, or a
    /// NUMA node for the host kinds. For the localized kinds, the low byte of `id` is the device,
    /// and the next byte the locality domain.
    struct CUmemLocation: 8, 4 {
        r#type: CUmemLocationType = 0,
        id: i32 = 4,
    }

    /// The last field of [`CUmemAllocationProp`].
    struct CUmemAllocationProp_allocFlags: 8, 2 {
        compressionType: u8 = 0,
        gpuDirectRDMACapable: u8 = 1,
        usage: u16 = 2,
        reserved: [u8; 4] = 4,
    }

    /// The properties of an allocation by `cuMemCreate`.
    struct CUmemAllocationProp: 32, 8 {
        r#type: CUmemAllocationType = 0,
        requestedHandleTypes: CUmemAllocationHandleType = 4,
        location: CUmemLocation = 8,
        win32HandleMetaData: *mut c_void = 16,
        allocFlags: CUmemAllocationProp_allocFlags = 24,
    }

    /// The access (`flags`) that the device or host at `location` has to a mapping.
    struct CUmemAccessDesc: 12, 4 {
        location: CUmemLocation = 0,
        flags: CUmemAccess_flags = 8,
    }

    /// The properties of a pool by `cuMemPoolCreate`.
    struct CUmemPoolProps: 88, 8 {
        allocType: CUmemAllocationType = 0,
        handleTypes: CUmemAllocationHandleType = 4,
        location: CUmemLocation = 8,
        win32SecurityAttributes: *mut c_void = 16,
        maxSize: usize = 24,
        usage: u16 = 32,
        gpuDirectRDMACapable: u8 = 34,
        reserved: [u8; 53] = 35,
    }

    /// The size and format of a one- or two-dimensional array, before CUDA 3.2.
    struct CUDA_ARRAY_DESCRIPTOR_v1: 16, 4 {
        Width: u32 = 0,
        Height: u32 = 4,
        Format: CUarray_format = 8,
        NumChannels: u32 = 12,
    }

    /// The size and format of a one- or two-dimensional array.
    struct CUDA_ARRAY_DESCRIPTOR: 24, 8 {
        Width: usize = 0,
        Height: usize = 8,
        Format: CUarray_format = 16,
        NumChannels: u32 = 20,
    }

    /// The size and format of a three-dimensional array, before CUDA 3.2.
    struct CUDA_ARRAY3D_DESCRIPTOR_v1: 24, 4 {
        Width: u32 = 0,
        Height: u32 = 4,
        Depth: u32 = 8,
        Format: CUarray_format = 12,
        NumChannels: u32 = 16,
        Flags: u32 = 20,
    }

    /// The size and format of a three-dimensional array.
    struct CUDA_ARRAY3D_DESCRIPTOR: 40, 8 {
        Width: usize = 0,
        Height: usize = 8,
        Depth: usize = 16,
        Format: CUarray_format = 24,
        NumChannels: u32 = 28,
        Flags: u32 = 32,
    }

    /// The source, target and extent of a two-dimensional copy, before CUDA 3.2.
    struct CUDA_MEMCPY2D_v1: 96, 8 {
        srcXInBytes: u32 = 0,
        srcY: u32 = 4,
        srcMemoryType: CUmemorytype = 8,
        srcHost: *const c_void = 16,
        srcDevice: CUdeviceptr_v1 = 24,
        srcArray: CUarray = 32,
        srcPitch: u32 = 40,
        dstXInBytes: u32 = 44,
        dstY: u32 = 48,
        dstMemoryType: CUmemorytype = 52,
        dstHost: *mut c_void = 56,
        dstDevice: CUdeviceptr_v1 = 64,
        dstArray: CUarray = 72,
        dstPitch: u32 = 80,
        WidthInBytes: u32 = 84,
        Height: u32 = 88,
    }

    /// The source, target and extent of a two-dimensional copy.
    struct CUDA_MEMCPY2D: 128, 8 {
        srcXInBytes: usize = 0,
        srcY: usize = 8,
        srcMemoryType: CUmemorytype = 16,
        srcHost: *const c_void = 24,
        srcDevice: CUdeviceptr = 32,
        srcArray: CUarray = 40,
        srcPitch: usize = 48,
        dstXInBytes: usize = 56,
        dstY: usize = 64,
        dstMemoryType: CUmemorytype = 72,
        dstHost: *mut c_void = 80,
        dstDevice: CUdeviceptr = 88,
        dstArray: CUarray = 96,
        dstPitch: usize = 104,
        WidthInBytes: usize = 112,
        Height: usize = 120,
    }

    /// The source, target and extent of a three-dimensional copy, before CUDA 3.2.
    struct CUDA_MEMCPY3D_v1: 144, 8 {
        srcXInBytes: u32 = 0,
        srcY: u32 = 4,
        srcZ: u32 = 8,
        srcLOD: u32 = 12,
        srcMemoryType: CUmemorytype = 16,
        srcHost: *const c_void = 24,
        srcDevice: CUdeviceptr_v1 = 32,
        srcArray: CUarray = 40,
        reserved0: *mut c_void = 48,
        srcPitch: u32 = 56,
        srcHeight: u32 = 60,
        dstXInBytes: u32 = 64,
        dstY: u32 = 68,
        dstZ: u32 = 72,
        dstLOD: u32 = 76,
        dstMemoryType: CUmemorytype = 80,
        dstHost: *mut c_void = 88,
        dstDevice: CUdeviceptr_v1 = 96,
        dstArray: CUarray = 104,
        reserved1: *mut c_void = 112,
        dstPitch: u32 = 120,
        dstHeight: u32 = 124,
        WidthInBytes: u32 = 128,
        Height: u32 = 132,
        Depth: u32 = 136,
    }

    /// The source, target and extent of a three-dimensional copy.
    struct CUDA_MEMCPY3D: 200, 8 {
        srcXInBytes: usize = 0,
        srcY: usize = 8,
        srcZ: usize = 16,
        srcLOD: usize = 24,
        srcMemoryType: CUmemorytype = 32,
        srcHost: *const c_void = 40,
        srcDevice: CUdeviceptr = 48,
        srcArray: CUarray = 56,
        reserved0: *mut c_void = 64,
        srcPitch: usize = 72,
        srcHeight: usize = 80,
        dstXInBytes: usize = 88,
        dstY: usize = 96,
        dstZ: usize = 104,
        dstLOD: usize = 112,
        dstMemoryType: CUmemorytype = 120,
        dstHost: *mut c_void = 128,
        dstDevice: CUdeviceptr = 136,
        dstArray: CUarray = 144,
        reserved1: *mut c_void = 152,
        dstPitch: usize = 160,
        dstHeight: usize = 168,
        WidthInBytes: usize = 176,
        Height: usize = 184,
        Depth: usize = 192,
    }

    /// The source, target and extent of a three-dimensional copy between contexts.
    struct CUDA_MEMCPY3D_PEER: 200, 8 {
        srcXInBytes: usize = 0,
        srcY: usize = 8,
        srcZ: usize = 16,
        srcLOD: usize = 24,
        srcMemoryType: CUmemorytype = 32,
        srcHost: *const c_void = 40,
        srcDevice: CUdeviceptr = 48,
        srcArray: CUarray = 56,
        srcContext: CUcontext = 64,
        srcPitch: usize = 72,
        srcHeight: usize = 80,
        dstXInBytes: usize = 88,
        dstY: usize = 96,
        dstZ: usize = 104,
        dstLOD: usize = 112,
        dstMemoryType: CUmemorytype = 120,
        dstHost: *mut c_void = 128,
        dstDevice: CUdeviceptr = 136,
        dstArray: CUarray = 144,
        dstContext: CUcontext = 152,
        dstPitch: usize = 160,
        dstHeight: usize = 168,
        WidthInBytes: usize = 176,
        Height: usize = 184,
        Depth: usize = 192,
    }

    /// A range of addresses, and the treatment of the range by the cache.
    struct CUaccessPolicyWindow: 32, 8 {
        base_ptr: *mut c_void = 0,
        num_bytes: usize = 8,
        hitRatio: f32 = 16,
        hitProp: CUaccessProperty = 20,
        missProp: CUaccessProperty = 24,
    }

    /// An event that a launch records. The header has no name for this type. Only a programmatic
    /// event uses `triggerAtBlockStart`.
    struct CUlaunchAttributeEvent: 16, 8 {
        event: CUevent = 0,
        flags: i32 = 8,
        triggerAtBlockStart: i32 = 12,
    }
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

layouts! {
    /// One attribute of a launch.
    struct CUlaunchAttribute: 72, 8 {
        id: CUlaunchAttributeID = 0,
        pad: [u8; 4] = 4,
        value: CUlaunchAttributeValue = 8,
    }

    /// The geometry, stream and attributes of a launch by `cuLaunchKernelEx`.
    struct CUlaunchConfig: 56, 8 {
        gridDimX: u32 = 0,
        gridDimY: u32 = 4,
        gridDimZ: u32 = 8,
        blockDimX: u32 = 12,
        blockDimY: u32 = 16,
        blockDimZ: u32 = 20,
        sharedMemBytes: u32 = 24,
        hStream: CUstream = 32,
        attrs: *mut CUlaunchAttribute = 40,
        numAttrs: u32 = 48,
    }

    /// One device's part of `cuLaunchCooperativeKernelMultiDevice`.
    struct CUDA_LAUNCH_PARAMS: 56, 8 {
        function: CUfunction = 0,
        gridDimX: u32 = 8,
        gridDimY: u32 = 12,
        gridDimZ: u32 = 16,
        blockDimX: u32 = 20,
        blockDimY: u32 = 24,
        blockDimZ: u32 = 28,
        sharedMemBytes: u32 = 32,
        hStream: CUstream = 40,
        kernelParams: *mut *mut c_void = 48,
    }

    /// A kernel in a graph, before CUDA 12.
    struct CUDA_KERNEL_NODE_PARAMS_v1: 56, 8 {
        func: CUfunction = 0,
        gridDimX: u32 = 8,
        gridDimY: u32 = 12,
        gridDimZ: u32 = 16,
        blockDimX: u32 = 20,
        blockDimY: u32 = 24,
        blockDimZ: u32 = 28,
        sharedMemBytes: u32 = 32,
        kernelParams: *mut *mut c_void = 40,
        extra: *mut *mut c_void = 48,
    }

    /// A kernel in a graph: the headers' `_v2`. Their `_v3`, which [`CUgraphNodeParams`] contains,
    /// has the same layout.
    struct CUDA_KERNEL_NODE_PARAMS: 72, 8 {
        func: CUfunction = 0,
        gridDimX: u32 = 8,
        gridDimY: u32 = 12,
        gridDimZ: u32 = 16,
        blockDimX: u32 = 20,
        blockDimY: u32 = 24,
        blockDimZ: u32 = 28,
        sharedMemBytes: u32 = 32,
        kernelParams: *mut *mut c_void = 40,
        extra: *mut *mut c_void = 48,
        kern: CUkernel = 56,
        ctx: CUcontext = 64,
    }

    /// A copy in a graph, in the form that [`CUgraphNodeParams`] contains.
    struct CUDA_MEMCPY_NODE_PARAMS: 216, 8 {
        flags: i32 = 0,
        reserved: i32 = 4,
        copyCtx: CUcontext = 8,
        copyParams: CUDA_MEMCPY3D = 16,
    }

    /// A memory set in a graph.
    struct CUDA_MEMSET_NODE_PARAMS: 40, 8 {
        dst: CUdeviceptr = 0,
        pitch: usize = 8,
        value: u32 = 16,
        elementSize: u32 = 20,
        width: usize = 24,
        height: usize = 32,
    }

    /// A memory set in a graph, in the form that [`CUgraphNodeParams`] contains.
    struct CUDA_MEMSET_NODE_PARAMS_v2: 48, 8 {
        dst: CUdeviceptr = 0,
        pitch: usize = 8,
        value: u32 = 16,
        elementSize: u32 = 20,
        width: usize = 24,
        height: usize = 32,
        ctx: CUcontext = 40,
    }

    /// A host function in a graph. The form that [`CUgraphNodeParams`] contains begins with these
    /// fields.
    struct CUDA_HOST_NODE_PARAMS: 16, 8 {
        r#fn: CUhostFn = 0,
        userData: *mut c_void = 8,
    }

    /// A graph in a graph, in the form that [`CUgraphNodeParams`] contains.
    struct CUDA_CHILD_GRAPH_NODE_PARAMS: 16, 8 {
        graph: CUgraph = 0,
        ownership: CUgraphChildGraphNodeOwnership = 8,
    }

    /// A node that runs graphs of its own if a condition holds.
    struct CUDA_CONDITIONAL_NODE_PARAMS: 32, 8 {
        handle: CUgraphConditionalHandle = 0,
        r#type: CUgraphConditionalNodeType = 8,
        size: u32 = 12,
        /// Out: the driver's array of `size` graphs, one for each body of the conditional node.
        phGraph_out: *mut CUgraph = 16,
        ctx: CUcontext = 24,
    }

    /// An allocation in a graph.
    struct CUDA_MEM_ALLOC_NODE_PARAMS: 120, 8 {
        poolProps: CUmemPoolProps = 0,
        accessDescs: *const CUmemAccessDesc = 88,
        accessDescCount: usize = 96,
        bytesize: usize = 104,
        dptr: CUdeviceptr = 112,
    }

    /// A release of memory in a graph.
    struct CUDA_MEM_FREE_NODE_PARAMS: 8, 8 {
        dptr: CUdeviceptr = 0,
    }
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

layouts! {
    /// A node of any kind, for `cuGraphAddNode`.
    struct CUgraphNodeParams: 256, 8 {
        r#type: CUgraphNodeType = 0,
        reserved0: [i32; 3] = 4,
        params: CUgraphNodeParams_union = 16,
        reserved2: i64 = 248,
    }

    /// The kind of dependency of an edge in a graph.
    #[derive(PartialEq, Eq, Debug)]
    struct CUgraphEdgeData: 8, 1 {
        from_port: u8 = 0,
        to_port: u8 = 1,
        r#type: u8 = 2,
        reserved: [u8; 5] = 3,
    }

    /// The parameters and the result of `cuGraphInstantiateWithParams`.
    struct CUDA_GRAPH_INSTANTIATE_PARAMS: 32, 8 {
        flags: u64 = 0,
        hUploadStream: CUstream = 8,
        hErrNode_out: CUgraphNode = 16,
        result_out: CUgraphInstantiateResult = 24,
    }

    /// The result of `cuGraphExecUpdate`.
    struct CUgraphExecUpdateResultInfo: 24, 8 {
        result: CUgraphExecUpdateResult = 0,
        errorNode: CUgraphNode = 8,
        errorFromNode: CUgraphNode = 16,
    }

    /// Hints for copies made in a batch.
    struct CUmemcpyAttributes: 24, 4 {
        srcAccessOrder: CUmemcpySrcAccessOrder = 0,
        srcLocHint: CUmemLocation = 4,
        dstLocHint: CUmemLocation = 12,
        flags: u32 = 20,
    }

    /// A number of elements in each direction.
    struct CUextent3D: 24, 8 {
        width: usize = 0,
        height: usize = 8,
        depth: usize = 16,
    }

    /// Source or target of a three-dimensional copy in a batch.
    struct CUmemcpy3DOperand: 40, 8 {
        r#type: CUmemcpy3DOperandType = 0,
        /// Of a pointer: the address, the elements of a row, the rows of a layer, and a hint. Of an
        /// array: the handle and the offset in each direction, elements.
        op: [u64; 4] = 8,
    }

    /// A three-dimensional copy in a batch.
    struct CUDA_MEMCPY3D_BATCH_OP: 112, 8 {
        src: CUmemcpy3DOperand = 0,
        dst: CUmemcpy3DOperand = 40,
        extent: CUextent3D = 80,
        srcAccessOrder: CUmemcpySrcAccessOrder = 104,
        flags: u32 = 108,
    }

    /// A frame of a stream shared with EGL.
    struct CUeglFrame: 64, 8 {
        frame: [*mut c_void; 3] = 0,
        width: u32 = 24,
        height: u32 = 28,
        depth: u32 = 32,
        pitch: u32 = 36,
        planeCount: u32 = 40,
        numChannels: u32 = 44,
        frameType: CUeglFrameType = 48,
        eglColorFormat: CUeglColorFormat = 52,
        cuFormat: CUarray_format = 56,
    }
}
