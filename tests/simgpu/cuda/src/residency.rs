//! Account of managed memory, in blocks of 2 MiB: the place of each block, and the client's advice
//! about the block.
//!
//! Blocks begin on the host. Prefetches move blocks. A kernel with an address of the memory among
//! its parameters also moves blocks. The model assumes that the kernel uses the whole allocation,
//! and makes the kernel wait for the missing blocks. Blocks that do not fit on the GPU cross the
//! bus at each use. Copies and memsets use blocks at their present place.
//!
//! In truth the bytes never move, because host and GPU see the same memory. A move only changes the
//! recorded place and takes time.
//!
//! The engine holds the amount that the process has on each GPU, and other processes can reduce the
//! amount. Then the account moves the least recently used blocks to the host.
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use deepres_abi::driver::types::*;
use simgpu_engine::{CopyKind, Work};

use crate::process::host;

/// Unit in which memory moves.
pub const BLOCK_BYTES: u64 = 2 << 20;

/// One block of an allocation, 2 MiB.
#[derive(Clone, Debug)]
struct Block {
    /// GPU on which the block is; `None`: on the host.
    gpu: Option<usize>,
    /// Number of the block's last use, in the order of uses.
    used: u64,
    last_prefetch: CUdevice,
    preferred: CUdevice,
    /// One bit for each GPU; the last bit is the host's.
    accessed_by: u32,
    is_read_mostly: bool,
}

/// The bit of the host in [`Block::accessed_by`].
const HOST_BIT: u32 = 1 << 31;

impl Default for Block {
    fn default() -> Self {
        let nowhere = CU_DEVICE_INVALID;
        let is_read_mostly = false;
        Self {
            gpu: None,
            used: 0,
            last_prefetch: nowhere,
            preferred: nowhere,
            accessed_by: 0,
            is_read_mostly,
        }
    }
}

#[derive(Default)]
struct Table {
    /// Blocks of each allocation, by its address.
    allocations: BTreeMap<u64, Vec<Block>>,
    uses: u64,
}

static TABLE: Mutex<Table> = Mutex::new(Table { allocations: BTreeMap::new(), uses: 0 });
/// Whether managed memory ever existed. As long as none existed, a launch does no more for managed
/// memory than load this flag.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Bytes that must cross the bus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes that move to the GPU.
    pub to_device: u64,
    /// Bytes that move to the host.
    pub to_host: u64,
}

impl Moved {
    /// Returns the copies as work.
    pub fn work(self) -> impl Iterator<Item = Work> {
        let copies = [(CopyKind::DeviceToHost, self.to_host), (CopyKind::HostToDevice, self.to_device)];
        copies.into_iter().filter(|(_, bytes)| *bytes > 0).map(|(kind, bytes)| Work::Copy { kind, bytes })
    }
}

fn with<T>(work: impl FnOnce(&mut Table) -> T) -> T {
    work(&mut TABLE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Returns whether managed memory can exist.
#[inline]
pub fn is_used() -> bool {
    IS_USED.load(Ordering::Relaxed)
}

/// Notes that managed memory of this length exists at `base`.
pub fn enter(base: u64, bytes: u64) {
    IS_USED.store(true, Ordering::Relaxed);
    let blocks = vec![Block::default(); bytes.div_ceil(BLOCK_BYTES) as usize];
    with(|table| table.allocations.insert(base, blocks));
}

/// Removes the managed memory at `base`.
pub fn forget(base: u64) {
    with(|table| {
        for block in table.allocations.remove(&base).unwrap_or_default() {
            if let Some(gpu) = block.gpu {
                table.catch_up(gpu);
                host().let_managed_go(gpu, BLOCK_BYTES);
            }
        }
    });
}

impl Table {
    /// Returns the blocks that a range touches, in the allocation in which the range begins.
    fn range(&mut self, address: u64, bytes: u64) -> &mut [Block] {
        let Some((base, blocks)) = self.allocations.range_mut(..=address).next_back() else { return &mut [] };
        let offset = address - base;
        let first = ((offset / BLOCK_BYTES) as usize).min(blocks.len());
        let end = (offset.saturating_add(bytes).div_ceil(BLOCK_BYTES) as usize).clamp(first, blocks.len());
        &mut blocks[first..end]
    }

    fn on(&self, gpu: usize) -> u64 {
        let blocks = self.allocations.values().flatten();
        blocks.filter(|block| block.gpu == Some(gpu)).count() as u64 * BLOCK_BYTES
    }

    /// Moves blocks to the host if other processes took their room. Returns the bytes moved.
    fn catch_up(&mut self, gpu: usize) -> u64 {
        self.evict_to(gpu, host().managed_bytes(gpu))
    }

    /// Keeps at most `left` bytes on a GPU, in whole blocks. Other processes took the room of the
    /// remaining blocks. If `left` is no whole number of blocks, the function gives the remainder
    /// back.
    fn evict_to(&mut self, gpu: usize, left: u64) -> u64 {
        let here = self.on(gpu);
        let blocks = here.saturating_sub(left).div_ceil(BLOCK_BYTES);
        let odd_bytes = left.saturating_sub(here - blocks * BLOCK_BYTES);
        if odd_bytes > 0 {
            host().let_managed_go(gpu, odd_bytes);
        }
        for _ in 0..blocks {
            let there = self.allocations.values_mut().flatten().filter(|block| block.gpu == Some(gpu));
            let Some(oldest) = there.min_by_key(|block| block.used) else { break };
            oldest.gpu = None;
        }
        blocks * BLOCK_BYTES
    }

    /// Brings a range to a GPU as far as it fits. Returns the bytes moved, and the bytes of the
    /// range that did not fit.
    fn bring(&mut self, address: u64, bytes: u64, gpu: usize) -> (Moved, u64) {
        self.catch_up(gpu);
        self.uses += 1;
        let used = self.uses;
        let (mut missing, mut elsewhere) = (0, Vec::new());
        for block in self.range(address, bytes) {
            block.used = used;
            match block.gpu {
                Some(at) if at == gpu => {}
                at => {
                    missing += BLOCK_BYTES;
                    elsewhere.extend(at);
                }
            }
        }
        let room = host().bring_managed(gpu, missing);
        let fits = room / BLOCK_BYTES * BLOCK_BYTES;
        host().let_managed_go(gpu, room - fits);
        // Blocks of this process may have had to leave for the range. The least recently used
        // blocks leave first.
        let to_host = self.evict_to(gpu, host().managed_bytes(gpu).saturating_sub(fits));
        let mut rest = fits;
        for block in self.range(address, bytes).iter_mut().filter(|block| block.gpu != Some(gpu)) {
            if rest == 0 {
                break;
            }
            rest -= BLOCK_BYTES;
            block.gpu = Some(gpu);
        }
        for at in elsewhere {
            host().let_managed_go(at, BLOCK_BYTES);
        }
        (Moved { to_device: fits, to_host }, missing - fits)
    }

    fn let_go(&mut self, address: u64, bytes: u64) -> Moved {
        for gpu in 0..host().gpu_count() {
            self.catch_up(gpu);
        }
        let mut gone = Vec::new();
        for block in self.range(address, bytes) {
            gone.extend(block.gpu.take());
        }
        for gpu in &gone {
            host().let_managed_go(*gpu, BLOCK_BYTES);
        }
        Moved { to_device: 0, to_host: gone.len() as u64 * BLOCK_BYTES }
    }
}

/// Prefetches a range to a GPU or to the host.
pub fn prefetch(address: u64, bytes: u64, device: CUdevice) -> Moved {
    with(|table| {
        for block in table.range(address, bytes) {
            block.last_prefetch = device;
        }
        match usize::try_from(device) {
            Ok(gpu) => table.bring(address, bytes, gpu).0,
            Err(_) => table.let_go(address, bytes),
        }
    })
}

/// Returns the bytes to move for a kernel on `gpu` with these parameter values. The function looks
/// at values that are addresses of managed memory.
pub fn touch(values: impl Iterator<Item = u64>, gpu: usize) -> Moved {
    with(|table| {
        let mut sum = Moved::default();
        let mut seen = Vec::new();
        for value in values {
            let found = table.allocations.range(..=value).next_back();
            let Some((base, bytes)) = found.map(|(base, blocks)| (*base, blocks.len() as u64 * BLOCK_BYTES))
            else {
                continue;
            };
            if value - base >= bytes || seen.contains(&base) {
                continue;
            }
            seen.push(base);
            let (moved, over_the_bus) = table.bring(base, bytes, gpu);
            sum.to_device += moved.to_device + over_the_bus;
            sum.to_host += moved.to_host;
        }
        sum
    })
}

/// Records the advice of `cuMemAdvise` about a range.
pub fn advise(address: u64, bytes: u64, advice: CUmem_advise, device: CUdevice) {
    let bit = u32::try_from(device).ok().and_then(|gpu| 1_u32.checked_shl(gpu)).unwrap_or(HOST_BIT);
    with(|table| {
        for block in table.range(address, bytes) {
            match advice {
                CU_MEM_ADVISE_SET_READ_MOSTLY => block.is_read_mostly = true,
                CU_MEM_ADVISE_UNSET_READ_MOSTLY => block.is_read_mostly = false,
                CU_MEM_ADVISE_SET_PREFERRED_LOCATION => block.preferred = device,
                CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION => block.preferred = CU_DEVICE_INVALID,
                CU_MEM_ADVISE_SET_ACCESSED_BY => block.accessed_by |= bit,
                _ => block.accessed_by &= !bit,
            }
        }
    });
}

/// Returns the value that all blocks of a range have in common, else [`CU_DEVICE_INVALID`].
fn common(address: u64, bytes: u64, of: impl Fn(&Block) -> CUdevice) -> CUdevice {
    with(|table| {
        let mut all = table.range(address, bytes).iter().map(of);
        let first = all.next().unwrap_or(CU_DEVICE_INVALID);
        if all.all(|other| other == first) { first } else { CU_DEVICE_INVALID }
    })
}

/// Returns the preferred location that all blocks of a range have in common, else
/// [`CU_DEVICE_INVALID`].
pub fn preferred(address: u64, bytes: u64) -> CUdevice {
    common(address, bytes, |block| block.preferred)
}

/// Returns the last prefetch's target that all blocks of a range have in common, else
/// [`CU_DEVICE_INVALID`].
pub fn last_prefetch(address: u64, bytes: u64) -> CUdevice {
    common(address, bytes, |block| block.last_prefetch)
}

/// Returns whether all blocks of a range have the advice "mostly read".
pub fn is_read_mostly(address: u64, bytes: u64) -> bool {
    with(|table| table.range(address, bytes).iter().all(|block| block.is_read_mostly))
}

/// Returns the devices that are advised to access all blocks of a range.
pub fn accessed_by(address: u64, bytes: u64) -> Vec<CUdevice> {
    let bits = with(|table| {
        table.range(address, bytes).iter().fold(u32::MAX, |bits, block| bits & block.accessed_by)
    });
    let gpus = (0..host().gpu_count() as i32).filter(|gpu| bits & (1 << gpu) != 0);
    gpus.chain((bits & HOST_BIT != 0).then_some(CU_DEVICE_CPU)).collect()
}
