//! Physical memory (`cuMemCreate`). The driver keeps this memory until every process has released
//! its last handle and removed its last mapping.
//!
//! The account counts the handles and mappings of this process that it knows. Memory that the
//! process exported can live on by an import. So after each release that can matter, the interposer
//! asks NVML whether the memory is still there ([`super::overhead`]).

use std::collections::{BTreeMap, btree_map};
use std::sync::atomic::Ordering;

use deepres_abi::driver::ApiId;
use deepres_abi::driver::result::CUDA_SUCCESS;

use super::{Accounts, Name, lock};
use crate::lock_order::Guard;
use crate::process::Process;

impl Accounts {
    /// Releases a handle of physical memory by `free`, and returns the result of `free`. The handle
    /// does not count while `free` runs.
    pub fn release_handle(&self, process: &Process, handle: u64, free: impl FnOnce() -> u32) -> u32 {
        let name = Name::Handle(handle);
        let (is_last, may_live_on) = match self.entries().get_mut(&name) {
            Some(entry) if entry.uses > 1 => {
                entry.uses -= 1;
                (false, false)
            }
            Some(entry) => (true, entry.is_exported),
            // The process imported an unknown handle.
            None => (true, self.has_exported.load(Ordering::Acquire)),
        };
        if !is_last {
            let result = free();
            if result != CUDA_SUCCESS {
                self.retain_handle(handle);
            }
            return result;
        }
        let result = self.free(process, name, free);
        if may_live_on {
            self.look_everywhere(process);
        }
        result
    }

    /// Counts another handle or mapping that keeps the memory of `handle` alive. Returns false if
    /// the handle is unknown.
    pub fn retain_handle(&self, handle: u64) -> bool {
        let mut entries = self.entries();
        let Some(entry) = entries.get_mut(&Name::Handle(handle)) else { return false };
        entry.uses = entry.uses.saturating_add(1);
        true
    }

    /// Records that the driver exported the memory of `handle`.
    pub fn exported(&self, handle: u64) {
        self.has_exported.store(true, Ordering::Release);
        if let Some(entry) = self.entries().get_mut(&Name::Handle(handle)) {
            entry.is_exported = true;
        }
    }

    /// Imports memory by `import`, and returns the result for the job. If the memory is the
    /// process's own and had no other use left, charges the memory from now on. If the limit has no
    /// room for the memory, runs `release` and refuses the call.
    pub fn import(&self, process: &Process, import: impl FnOnce() -> u32, release: impl FnOnce()) -> u32 {
        let result = import();
        if result != CUDA_SUCCESS {
            return result;
        }
        self.admit_everywhere(process, ApiId::cuMemImportFromShareableHandle, release)
    }

    /// Returns whether imported memory can be the process's own.
    pub fn has_exported(&self) -> bool {
        self.has_exported.load(Ordering::Acquire)
    }

    fn mappings(&self) -> Guard<'_, BTreeMap<u64, (u64, u64)>> {
        lock(&self.mappings)
    }

    /// Maps `handle` at `address` by `map`, and returns the result of `map`. Counts the use before
    /// `map` runs, because another thread can release the handle as soon as the driver has mapped
    /// it.
    pub fn map(
        &self,
        process: &Process,
        address: u64,
        bytes: u64,
        handle: u64,
        map: impl FnOnce() -> u32,
    ) -> u32 {
        let is_kept = self.retain_handle(handle);
        // An existing mapping stays recorded, because the driver refuses to map over it.
        let is_noted = is_kept
            && match self.mappings().entry(address) {
                btree_map::Entry::Vacant(place) => {
                    place.insert((bytes, handle));
                    true
                }
                btree_map::Entry::Occupied(_) => false,
            };
        let result = map();
        if result != CUDA_SUCCESS {
            if is_noted {
                self.mappings().remove(&address);
            }
            if is_kept {
                self.release_handle(process, handle, || CUDA_SUCCESS);
            }
        } else if is_kept && !is_noted {
            // The driver accepted the mapping. So the job unmapped the old mapping past the
            // interposer.
            let gone = self.mappings().insert(address, (bytes, handle));
            if let Some((_, gone)) = gone {
                self.release_handle(process, gone, || CUDA_SUCCESS);
            }
        }
        result
    }

    /// Gets another handle of the memory at `address` by `retain`, which also returns the handle.
    /// Returns the result of `retain`. Counts the use before `retain` runs, because another thread
    /// can unmap the memory as soon as the driver has returned the handle.
    pub fn retain(
        &self,
        process: &Process,
        address: u64,
        retain: impl FnOnce() -> (u32, Option<u64>),
    ) -> u32 {
        let mapped = {
            let mappings = self.mappings();
            let last = mappings.range(..=address).next_back();
            last.filter(|(at, (bytes, _))| address - **at < *bytes).map(|(_, (_, handle))| *handle)
        };
        let kept = mapped.filter(|handle| self.retain_handle(*handle));
        let (result, handle) = retain();
        let handle = handle.filter(|_| result == CUDA_SUCCESS);
        if let Some(handle) = handle.filter(|handle| Some(*handle) != kept) {
            self.retain_handle(handle);
        }
        if let Some(kept) = kept.filter(|kept| Some(*kept) != handle) {
            self.release_handle(process, kept, || CUDA_SUCCESS);
        }
        result
    }

    /// Runs `unmap`, which unmaps all mappings within `bytes` bytes at `address`. Returns the
    /// result of `unmap`.
    pub fn unmap(&self, process: &Process, address: u64, bytes: u64, unmap: impl FnOnce() -> u32) -> u32 {
        let end = address.saturating_add(bytes);
        let gone: Vec<(u64, (u64, u64))> = self
            .mappings()
            .extract_if(address..end, |at, (size, _)| at.saturating_add(*size) <= end)
            .collect();
        let result = unmap();
        if result == CUDA_SUCCESS {
            // An unknown mapping is of imported memory.
            if gone.is_empty() && self.has_exported() {
                self.look_everywhere(process);
            }
            for (_, (_, handle)) in gone {
                self.release_handle(process, handle, || CUDA_SUCCESS);
            }
        } else {
            self.mappings().extend(gone);
        }
        result
    }
}
