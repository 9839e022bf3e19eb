//! NCCL: communicators and collectives.
//!
//! A collective is one launch of a kernel whose name has the number of ranks and the id of the
//! communicator: `standin_nccl_RANKS_ID`. With a rule `meets` for `standin_nccl_RANKS_*`, the
//! kernels of all ranks wait for each other on the simulated GPU. No data moves between ranks.

use std::ffi::{CStr, CString, c_char, c_void};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Read as _;

use deepres_abi::driver::types::{CUkernel, CUstream};
use simgpu_driver::Result;

use crate::kernels;
use crate::objects::{SUCCESS, create, destroy};

/// The status `ncclUnhandledCudaError`.
const CUDA_ERROR: u32 = 1;
/// The status `ncclSystemError`.
const SYSTEM_ERROR: u32 = 2;
/// The version of NCCL with which PyTorch is built: 10000 × major + 100 × minor + patch.
const VERSION: i32 = 23_007;
/// Bytes that one block moves. NVIDIA's kernels have a block for each of some channels.
const BLOCK_BYTES: u64 = 1 << 20;
/// The most blocks that the kernel of a collective has.
const CHANNELS: u64 = 24;
/// Bytes of an element, by `ncclDataType_t`.
const ELEMENT_BYTES: [u64; 12] = [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1];

/// A `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId {
    bytes: [u8; 128],
}

/// The state behind a `ncclComm_t`.
pub struct Communicator {
    kernel: CUkernel,
    ranks: i32,
    rank: i32,
}

exports! {
    ncclGetVersion(version: *mut i32) { version.write(VERSION) }
    ncclGetUniqueId(id: *mut UniqueId) {
        let mut bytes = [0; 128];
        let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
        if read.is_err() {
            return SYSTEM_ERROR;
        }
        id.write(UniqueId { bytes });
    }
    // Makes the communicators of all ranks in one process. There is room for a communicator of each
    // rank.
    ncclCommInitAll(communicators: *mut *mut Communicator, ranks: i32, _devices: *const i32) {
        let mut id = UniqueId { bytes: [0; 128] };
        let mut code = ncclGetUniqueId(&mut id);
        for rank in 0..ranks {
            if code == SUCCESS {
                code = ncclCommInitRank(communicators.add(rank as usize), ranks, id, rank);
            }
        }
        code
    }
    ncclCommInitRank(communicator: *mut *mut Communicator, ranks: i32, id: UniqueId, rank: i32) {
        let Ok(kernel) = kernel_of(ranks, &id) else { return CUDA_ERROR };
        create(communicator, Communicator { kernel, ranks, rank });
    }
    ncclCommInitRankConfig(
        communicator: *mut *mut Communicator, ranks: i32, id: UniqueId, rank: i32,
        _configuration: *mut c_void
    ) {
        ncclCommInitRank(communicator, ranks, id, rank)
    }
    ncclCommGetAsyncError(_communicator: *mut Communicator, error: *mut u32) { error.write(SUCCESS) }
    ncclCommCount(communicator: *const Communicator, count: *mut i32) {
        count.write((*communicator).ranks);
    }
    ncclCommUserRank(communicator: *const Communicator, rank: *mut i32) {
        rank.write((*communicator).rank);
    }
    ncclCommDestroy | ncclCommAbort(communicator: *mut Communicator) { destroy(communicator) }
}

// The registered memory would make collectives faster.
without_effect! {
    ncclCommRegister(*const Communicator, *mut c_void, usize, *mut *mut c_void);
    ncclCommDeregister(*const Communicator, *mut c_void);
    ncclCommFinalize(*mut Communicator);
    ncclGroupStart();
    ncclGroupEnd();
}

fn kernel_of(ranks: i32, id: &UniqueId) -> Result<CUkernel> {
    let mut hasher = DefaultHasher::new();
    id.bytes.hash(&mut hasher);
    let name = format!("standin_nccl_{ranks}_{:016x}", hasher.finish());
    let code =
        format!(".version 8.0\n.target sm_52\n.address_size 64\n.visible .entry {name}() {{ ret; }}\n");
    let text = |text| CString::new(text).expect("a text without NUL");
    kernels::load(&text(code), &text(name))
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(_error: u32) -> *const c_char {
    const TEXT: &CStr = c"an error of the stand-in for NCCL";
    TEXT.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_communicator: *const Communicator) -> *const c_char {
    c"".as_ptr()
}

/// Launches the kernel of a collective over this many elements.
///
/// # Safety
/// The communicator is alive.
unsafe fn collective(communicator: *const Communicator, elements: usize, kind: u32, stream: CUstream) -> u32 {
    // SAFETY: the caller promises it.
    let kernel = unsafe { (*communicator).kernel };
    let bytes = elements as u64 * ELEMENT_BYTES.get(kind as usize).copied().unwrap_or(1);
    let blocks = bytes.div_ceil(BLOCK_BYTES).clamp(1, CHANNELS);
    if kernels::launch(kernel, stream, [blocks, 1, 1]).is_ok() { SUCCESS } else { CUDA_ERROR }
}

/// Declares collectives. A row gives the arguments before the number of elements, and the arguments
/// between the type and the communicator. The stream comes last.
macro_rules! collectives {
    ($($name:ident($($before:ident: $before_type:ty),*; $($after:ident: $after_type:ty),*);)*) => {
        exports! {$(
            $name(
                $($before: $before_type,)* count: usize, kind: u32, $($after: $after_type,)*
                communicator: *mut Communicator, stream: CUstream
            ) {
                collective(communicator, count, kind, stream)
            }
        )*}
    };
}

collectives! {
    ncclAllReduce(_from: *const c_void, _to: *mut c_void; _operation: u32);
    ncclReduce(_from: *const c_void, _to: *mut c_void; _operation: u32, _root: i32);
    ncclReduceScatter(_from: *const c_void, _to: *mut c_void; _operation: u32);
    ncclBroadcast(_from: *const c_void, _to: *mut c_void; _root: i32);
    ncclBcast(_data: *mut c_void; _root: i32);
    ncclAllGather(_from: *const c_void, _to: *mut c_void;);
}
