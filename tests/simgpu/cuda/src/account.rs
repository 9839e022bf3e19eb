//! Computes the GPU memory to charge for a client's live allocations, by the charging rule in
//! docs/memory.md. Tests compare deepres' ledger with this account. The account comes from the
//! driver's own records and shares no code with deepres.
//!
//! The simulated driver exports the functions of this file, which are no part of CUDA's API.
use std::cell::Cell;
use std::collections::BTreeSet;

use simgpu_engine::Config;

use crate::array::{ARRAYS, Array};
use crate::memory::{self, Kind};
use crate::module::MODULES;
use crate::{graph_memory, pool, process, vmm};

/// Number of kinds of memory in the account. The constants below are their indices.
const KINDS: usize = 7;
const LINEAR: usize = 0;
const MANAGED: usize = 1;
const POOL: usize = 2;
const PHYSICAL_MEMORY: usize = 3;
const ARRAY: usize = 4;
const GRAPH: usize = 5;
/// Memory of modules, without the pieces that modules share with linear memory.
const DRIVER: usize = 6;

const NS_PER_S: u64 = 1_000_000_000;
const PIECE_BYTES: u64 = Config::ALLOCATION_GRANULARITY_BYTES;

/// Returns the charge for managed memory, which takes no GPU memory. The charge is in units if the
/// memory is at most half a piece, and in whole pieces otherwise.
fn managed_counts_for(bytes: u64) -> u64 {
    let unit = if bytes <= PIECE_BYTES / 2 { Config::SUBALLOCATION_GRANULARITY_BYTES } else { PIECE_BYTES };
    bytes.next_multiple_of(unit)
}

fn by_kind() -> [u64; KINDS] {
    let mut sums = [0; KINDS];
    // Small allocations share pieces.
    let (mut shared, mut modules) = (BTreeSet::new(), BTreeSet::new());
    for one in memory::all() {
        match one.kind {
            Kind::Device if one.bytes <= PIECE_BYTES / 2 => {
                shared.insert(memory::piece_at(one.base));
            }
            Kind::Device => sums[LINEAR] += one.bytes.next_multiple_of(PIECE_BYTES),
            Kind::Managed => sums[MANAGED] += managed_counts_for(one.bytes),
            _ => {}
        }
    }
    sums[LINEAR] += shared.len() as u64 * PIECE_BYTES;
    for module in MODULES.all() {
        match module.shared_piece() {
            Some(piece) => {
                modules.insert(piece);
            }
            None => sums[DRIVER] += module.bytes().next_multiple_of(PIECE_BYTES),
        }
    }
    sums[DRIVER] += modules.difference(&shared).count() as u64 * PIECE_BYTES;
    sums[POOL] = pool::reserved();
    sums[PHYSICAL_MEMORY] = vmm::charged_bytes();
    // When a context ends, the memory of its arrays ends, but their handles stay.
    let memory_of = |array: &Array| {
        let found = memory::find(array.base());
        found.filter(|found| matches!(found.kind, Kind::Array) && found.base == array.base())
    };
    sums[ARRAY] = ARRAYS.all().iter().filter_map(|array| memory_of(array)).map(|one| one.bytes).sum();
    let devices = 0..process::device_count() as i32;
    sums[GRAPH] = devices.map(|device| graph_memory::usage(device).reserved).sum();
    sums
}

thread_local! {
    static TOLD_NS: Cell<u64> = const { Cell::new(0) };
}

/// Notes the present time, at which the client tells the driver to free memory. The driver frees
/// the memory before the call returns.
pub fn note_free() {
    // SAFETY: all zeroes is a valid time.
    let mut now = unsafe { std::mem::zeroed::<libc::timespec>() };
    // SAFETY: `now` is valid for writing.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    TOLD_NS.set(now.tv_sec as u64 * NS_PER_S + now.tv_nsec as u64);
}

/// Returns the time at which the calling thread last told the driver to free something
/// (`CLOCK_MONOTONIC`, ns). A library between program and driver (the interposer) may have delayed
/// the call.
#[unsafe(no_mangle)]
pub extern "C" fn simgpu_told_ns() -> u64 {
    TOLD_NS.get()
}

/// Writes the amounts of GPU memory to charge for this process's allocations, by kind: linear and
/// pitched, managed, pools, physical, arrays, graphs, modules.
///
/// # Safety
/// `sums` has room for seven numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simgpu_account(sums: *mut u64) {
    // SAFETY: the caller passes room for the numbers.
    unsafe { sums.cast::<[u64; KINDS]>().write(by_kind()) }
}
