//! What a client's live allocations count for, by the charging rule that docs/memory.md publishes: the truth that deepres' ledger is held
//! against. It is worked out from the driver's own records and shares no code with deepres.
//!
//! Not of CUDA's API: an export of the simulated driver alone.
use deepres_abi::driver::types as cu;
use simgpu_engine::Config;

use crate::array::{ARRAYS, Array};
use crate::memory::{self, Kind};
use crate::vmm::PHYSICAL;

/// Kinds that are told apart here.
const KINDS: usize = 5;
const LINEAR: usize = 0;
const MANAGED: usize = 1;
const POOL: usize = 2;
const PHYSICAL_MEMORY: usize = 3;
const ARRAY: usize = 4;

/// Up to half a piece in units, larger in pieces.
fn counts_for(bytes: u64) -> u64 {
    let piece = Config::ALLOCATION_GRANULARITY_BYTES;
    let unit = if bytes <= piece / 2 { Config::SUBALLOCATION_GRANULARITY_BYTES } else { piece };
    bytes.next_multiple_of(unit)
}

fn elements(descriptor: &cu::CUDA_ARRAY3D_DESCRIPTOR) -> u64 {
    let extents = [descriptor.Width, descriptor.Height, descriptor.Depth];
    extents.iter().map(|extent| (*extent as u64).max(1)).product()
}

fn bytes_of_element(descriptor: &cu::CUDA_ARRAY3D_DESCRIPTOR) -> u64 {
    let channel = match descriptor.Format {
        cu::CU_AD_FORMAT_UNSIGNED_INT8 | cu::CU_AD_FORMAT_SIGNED_INT8 => 1,
        cu::CU_AD_FORMAT_UNSIGNED_INT16 | cu::CU_AD_FORMAT_SIGNED_INT16 | cu::CU_AD_FORMAT_HALF => 2,
        _ => 4,
    };
    channel * u64::from(descriptor.NumChannels)
}

fn by_kind() -> [u64; KINDS] {
    let mut sums = [0; KINDS];
    for one in memory::all() {
        let kind = match one.kind {
            Kind::Device => LINEAR,
            Kind::Managed => MANAGED,
            Kind::Pooled(_) => POOL,
            _ => continue,
        };
        sums[kind] += counts_for(one.bytes);
    }
    for piece in PHYSICAL.all() {
        sums[PHYSICAL_MEMORY] += piece.bytes;
    }
    // The handle of an array outlives its context; its memory does not.
    let lives = |array: &Array| {
        let found = memory::find(array.base());
        found.is_some_and(|found| matches!(found.kind, Kind::Array) && found.base == array.base())
    };
    for array in ARRAYS.all().into_iter().filter(|array| lives(array)) {
        sums[ARRAY] += counts_for(elements(&array.descriptor) * bytes_of_element(&array.descriptor));
    }
    sums
}

/// Writes what this process's allocations count for: linear and pitched, managed, from pools, physical, arrays.
///
/// # Safety
/// `sums` is room for five numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simgpu_account(sums: *mut u64) {
    // SAFETY: the caller's promise.
    unsafe { sums.cast::<[u64; KINDS]>().write(by_kind()) }
}
