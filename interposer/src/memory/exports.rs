//! Physical memory that the process exports and imports again itself. Such memory remains the
//! process's own, even after the handle that it was charged under is released.
//!
//! Exported memory lives until its last handle, in any process, and its last mapping are gone.
//! Imports by other processes are accounted by those processes. The process recognises its own
//! memory at an import by a mark on the descriptor, or by the words of a fabric handle.
//!
//! If a released piece may still be held by an import, its charge is kept until the import is
//! released too. If several pieces have the same mark, all of them are kept.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use deepres_abi::driver::ApiId;
use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::driver::types::{
    CU_MEM_HANDLE_TYPE_FABRIC, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUmemAllocationHandleType,
};
use deepres_abi::meter::MemoryKind;

use super::held::{Exit, Held};
use super::{Accounts, Entry, Name, Request};
use crate::meter::gpu::Gpu;
use crate::os;
use crate::process::Process;
use crate::session::Session;

/// `fcntl` commands that set and read a descriptor's signal. The kernel sends that signal to the
/// descriptor's owner, if asynchronous I/O is enabled. deepres uses the number as the mark of an
/// exported descriptor. Copies of the descriptor share it, in other processes too.
const F_SETSIG: c_int = 10;
const F_GETSIG: c_int = 11;
/// Number of signals, and thus of different marks.
const MARKS: u32 = 64;
/// Number of words in a fabric handle of 64 bytes.
const FABRIC_WORDS: usize = 8;

/// The property by which exported memory is recognised at an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// A descriptor: its file and its mark. If each piece has a file of its own, the file alone
    /// identifies the piece. NVIDIA's driver however hands out descriptors of one device.
    Descriptor {
        /// Device and inode.
        file: (u64, u64),
        /// The descriptor's signal.
        mark: c_int,
    },
    /// The contents of a fabric handle.
    Fabric([u64; FABRIC_WORDS]),
}

impl Identity {
    /// Returns the identity of the handle that the driver has just exported to `place`. `number` is
    /// the number of the exported piece.
    ///
    /// # Safety
    /// The driver has written a handle of that kind to `place`.
    unsafe fn of_exported(
        kind: CUmemAllocationHandleType,
        place: *const c_void,
        number: u32,
    ) -> Option<Self> {
        match kind {
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => {
                // SAFETY: the caller promises that the driver wrote a descriptor to `place`.
                let descriptor = unsafe { place.cast::<c_int>().read_unaligned() };
                let mark = (number % MARKS) as c_int + 1;
                // SAFETY: the calls take no pointers. A signal is only sent for files that have
                // `O_ASYNC`.
                unsafe {
                    libc::fcntl(descriptor, libc::F_SETOWN, libc::getpid());
                    libc::fcntl(descriptor, F_SETSIG, mark);
                }
                Self::of_own(descriptor)
            }
            CU_MEM_HANDLE_TYPE_FABRIC => {
                // SAFETY: the caller promises that the driver wrote a fabric handle to `place`.
                Some(Self::Fabric(unsafe { place.cast::<[u64; FABRIC_WORDS]>().read_unaligned() }))
            }
            _ => None,
        }
    }

    /// Returns the identity of a handle that is to be imported. Returns `None` if this process did
    /// not export it.
    ///
    /// # Safety
    /// `from` is the value that the caller passes to the driver as a handle of that kind.
    pub unsafe fn of_shared(kind: CUmemAllocationHandleType, from: *const c_void) -> Option<Self> {
        match kind {
            // The descriptor is passed as the pointer value itself.
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => Self::of_own(c_int::try_from(from as usize).ok()?),
            CU_MEM_HANDLE_TYPE_FABRIC if !from.is_null() => {
                // SAFETY: the caller promises that `from` points to a fabric handle.
                Some(Self::Fabric(unsafe { from.cast::<[u64; FABRIC_WORDS]>().read_unaligned() }))
            }
            _ => None,
        }
    }

    /// Returns the identity of a descriptor that this process exported, as far as the kernel tells.
    fn of_own(descriptor: c_int) -> Option<Self> {
        // SAFETY: all zeroes are a valid value of this plain structure.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the result has room. The kernel answers an error if the number is no descriptor.
        let is_told = unsafe { libc::fstat(descriptor, &mut status) } == 0;
        // SAFETY: the calls take no pointers.
        let (owner, mark, own) = unsafe {
            (libc::fcntl(descriptor, libc::F_GETOWN), libc::fcntl(descriptor, F_GETSIG), libc::getpid())
        };
        (is_told && owner == own).then_some(Self::Descriptor { file: (status.st_dev, status.st_ino), mark })
    }
}

/// Exported memory.
#[derive(Debug, Clone, Copy)]
struct Piece {
    /// Number of the piece. It is the same in the entry of the handle while that exists, and in all
    /// identities of the piece.
    number: u32,
    identity: Identity,
    handle: u64,
    bytes: u64,
    ordinal: usize,
}

/// An imported handle, with the numbers of the pieces that it may be.
#[derive(Debug)]
struct Import {
    handle: u64,
    of: Vec<u32>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the last piece.
    last: u32,
    pieces: Vec<Piece>,
    imports: Vec<Import>,
    /// Charges that an import keeps, by the number of the piece.
    kept: Vec<(u32, Held)>,
}

fn is_imported(imports: &[Import], number: u32) -> bool {
    imports.iter().any(|import| import.of.contains(&number))
}

impl State {
    fn is_imported(&self, number: u32) -> bool {
        is_imported(&self.imports, number)
    }

    fn largest(&self, is_meant: impl Fn(&Piece) -> bool) -> Option<Piece> {
        self.pieces.iter().filter(|piece| is_meant(piece)).max_by_key(|piece| piece.bytes).copied()
    }

    fn take_import(&mut self, handle: u64) -> Option<Import> {
        let place = self.imports.iter().position(|import| import.handle == handle)?;
        Some(self.imports.swap_remove(place))
    }

    /// Removes and returns the charges that no import keeps any more.
    fn take_unkept(&mut self) -> Vec<(u32, Held)> {
        self.kept.extract_if(.., |(number, _)| !is_imported(&self.imports, *number)).collect()
    }

    fn next(&mut self) -> u32 {
        // 0 means "not exported".
        self.last = self.last.checked_add(1).unwrap_or(1);
        self.last
    }
}

/// Exports and imports of the process. See the module.
#[derive(Debug, Default)]
pub struct Exports {
    /// Whether the process ever imported memory of its own. Until then a release needs no special
    /// treatment.
    is_used: AtomicBool,
    /// Held while the driver imports or releases, once [`Self::is_used`] returns true.
    turn: Mutex<()>,
    /// Held for a few instructions at a time.
    state: Mutex<State>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Exports {
    /// Whether an import may keep memory after its handle is released.
    #[inline]
    pub fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Acquire)
    }

    /// Waits until no other thread imports or releases memory in the driver.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        lock(&self.turn)
    }

    /// Moves the kept charges to a new ledger of the session.
    pub fn move_to(&self, session: &Session, gpus: &[Gpu]) {
        lock(&self.state).kept.iter_mut().for_each(|(_, held)| held.follow_on(session, gpus));
    }
}

impl Accounts {
    /// Records that the driver exported the memory of `handle` as `kind`, to `place`.
    ///
    /// # Safety
    /// The driver has written a handle of that kind to `place`.
    pub unsafe fn exported(&self, handle: u64, kind: CUmemAllocationHandleType, place: *const c_void) {
        let number = lock(&self.exports.state).next();
        // SAFETY: the caller has promised that `place` holds a handle of that kind.
        let identity = unsafe { Identity::of_exported(kind, place, number) };
        if let Some(identity) = identity {
            self.note_export(number, handle, identity);
        }
    }

    fn note_export(&self, number: u32, handle: u64, identity: Identity) {
        let name = Name::Handle(handle);
        let mut state = lock(&self.exports.state);
        // If `handle` was imported, the export concerns the pieces that were exported first.
        if let Some(import) = state.imports.iter().find(|import| import.handle == handle) {
            let of = |number: &u32| state.largest(|piece| piece.number == *number);
            let pieces: Vec<Piece> = import.of.iter().filter_map(of).collect();
            pieces.into_iter().for_each(|piece| self.note_piece(&mut state, Piece { identity, ..piece }));
            return;
        }
        let piece = {
            let mut shard = self.shard(name);
            let Some(entry) = shard.get_mut(name.mixed()) else { return };
            // Memory that was exported before keeps its number.
            if entry.exported == 0 {
                entry.exported = number;
            }
            let (number, bytes, ordinal) = (entry.exported, entry.held.bytes, entry.held.ordinal());
            Piece { number, identity, handle, bytes, ordinal }
        };
        self.note_piece(&mut state, piece);
    }

    fn note_piece(&self, state: &mut State, mut new: Piece) {
        // Of pieces that are gone and have the same identity, only the largest size is kept.
        // Possibly no process has any of these pieces any more.
        state.pieces.retain(|piece| {
            let is_here = self.is_there(piece) || is_imported(&state.imports, piece.number);
            let is_same = piece.identity == new.identity && (piece.number == new.number || !is_here);
            if is_same && piece.ordinal == new.ordinal {
                new.bytes = new.bytes.max(piece.bytes);
            }
            !is_same
        });
        let known = state.pieces.iter_mut().filter(|piece| piece.number == new.number);
        known.for_each(|piece| piece.handle = new.handle);
        state.pieces.push(new);
    }

    /// Whether the piece's handle is not yet released, or its memory is still mapped.
    fn is_there(&self, piece: &Piece) -> bool {
        let name = Name::Handle(piece.handle);
        self.shard(name).get_mut(name.mixed()).is_some_and(|entry| entry.exported == piece.number)
    }

    /// Whether the process has exported memory with this identity.
    pub fn has_exported(&self, identity: &Identity) -> bool {
        lock(&self.exports.state).pieces.iter().any(|piece| piece.identity == *identity)
    }

    /// Imports memory that the process itself exported, by `import`, which also returns the handle.
    /// Memory that the process still has by another handle or a mapping is already charged. Memory
    /// that only a descriptor kept alive is charged again from here on.
    pub fn import(
        &self,
        process: &Process,
        identity: &Identity,
        mut import: impl FnMut() -> (u32, Option<u64>),
    ) -> u32 {
        // The flag is set before the state is read. Releases from here on wait for the driver's
        // answer to this import.
        self.exports.is_used.store(true, Ordering::Release);
        let _uncancelled = os::uncancelled();
        let turn = self.exports.turn();
        let of = self.here(identity);
        if of.is_empty() {
            drop(turn);
            return self.import_anew(process, identity, import);
        }
        let (result, handle) = import();
        if let Some(handle) = handle.filter(|_| result == CUDA_SUCCESS) {
            self.imported(handle, of);
        }
        result
    }

    /// Returns the numbers of the pieces with `identity` that the process has by a handle, a
    /// mapping or an import.
    fn here(&self, identity: &Identity) -> Vec<u32> {
        let state = lock(&self.exports.state);
        let is_here = |piece: &&Piece| {
            piece.identity == *identity && (self.is_there(piece) || state.is_imported(piece.number))
        };
        state.pieces.iter().filter(is_here).map(|piece| piece.number).collect()
    }

    fn imported(&self, handle: u64, of: Vec<u32>) {
        // The driver returned a known handle, which now has another use.
        if self.retain_handle(handle) {
            return;
        }
        lock(&self.exports.state).imports.push(Import { handle, of });
        let name = Name::Handle(handle);
        // The charge stays with the piece.
        let held = Held::nothing(MemoryKind::Physical, 0);
        self.shard(name).insert(name.mixed(), Entry { held, context: 0, uses: 1, exported: 0 });
    }

    /// Imports memory that the process no longer has. It is charged like a new allocation.
    fn import_anew(
        &self,
        process: &Process,
        identity: &Identity,
        mut import: impl FnMut() -> (u32, Option<u64>),
    ) -> u32 {
        let known = lock(&self.exports.state).largest(|piece| piece.identity == *identity);
        let Some(Piece { number, bytes, ordinal, .. }) = known else { return import().0 };
        let api = ApiId::cuMemImportFromShareableHandle;
        let request = Request { api, kind: MemoryKind::Physical, ordinal, context: 0, bytes };
        let mut given = None;
        let result = self.allocate(process, request, || {
            let (result, handle) = import();
            given = handle.filter(|_| result == CUDA_SUCCESS);
            (result, given.map(|handle| (Name::Handle(handle), bytes)))
        });
        if let Some(handle) = given {
            self.note_export(number, handle, *identity);
        }
        result
    }

    /// Takes the last use of `handle` away while `free` runs. The handle may be an import, or an
    /// import may keep its memory.
    #[cold]
    pub(super) fn release_shared(&self, process: &Process, handle: u64, free: impl FnOnce() -> u32) -> u32 {
        let name = Name::Handle(handle);
        let exported = self.shard(name).get_mut(name.mixed()).map_or(0, |entry| entry.exported);
        let import = lock(&self.exports.state).take_import(handle);
        if let Some(import) = import {
            return self.release_import(process, import, free);
        }
        if exported == 0 || !lock(&self.exports.state).is_imported(exported) {
            return self.free(process, name, free);
        }
        let Some(mut entry) = self.shard(name).remove(name.mixed()) else { return free() };
        let result = free();
        if result == CUDA_SUCCESS {
            let mut state = lock(&self.exports.state);
            follow(process, &mut entry.held);
            state.kept.push((exported, entry.held));
        } else {
            let mut shard = self.shard(name);
            follow(process, &mut entry.held);
            shard.insert(name.mixed(), entry);
        }
        result
    }

    /// Releases an import by `free`, and gives back the charges that no other import keeps.
    fn release_import(&self, process: &Process, import: Import, free: impl FnOnce() -> u32) -> u32 {
        let name = Name::Handle(import.handle);
        let entry = self.shard(name).remove(name.mixed());
        let going = lock(&self.exports.state).take_unkept();
        let exits: Vec<Option<Exit>> = going.iter().map(|(_, held)| held.leave(process)).collect();
        let result = free();
        let going = going.into_iter().zip(exits);
        if result == CUDA_SUCCESS {
            going.for_each(|((_, held), exit)| held.give_back(process, exit));
            return result;
        }
        let mut state = lock(&self.exports.state);
        state.imports.push(import);
        for ((number, mut held), exit) in going {
            if let Some(exit) = exit {
                exit.cancel(process);
            }
            follow(process, &mut held);
            state.kept.push((number, held));
        }
        drop(state);
        if let Some(entry) = entry {
            self.shard(name).insert(name.mixed(), entry);
        }
        result
    }
}

/// Moves a charge to the current ledger. A thread that moved all charges meanwhile did not find
/// this one.
fn follow(process: &Process, held: &mut Held) {
    if let Some(session) = process.session() {
        held.follow_on(session, &process.gpus);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

    use super::*;

    fn eventfd() -> OwnedFd {
        // SAFETY: the call takes no pointers.
        let number = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        assert!(number >= 0);
        // SAFETY: the descriptor was just created, and nothing else owns it.
        unsafe { OwnedFd::from_raw_fd(number) }
    }

    fn exported(descriptor: &OwnedFd, number: u32) -> Option<Identity> {
        let written = descriptor.as_raw_fd();
        let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        // SAFETY: `written` is a descriptor.
        unsafe { Identity::of_exported(kind, (&raw const written).cast(), number) }
    }

    fn shared(descriptor: &OwnedFd) -> Option<Identity> {
        let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        // SAFETY: the argument is a descriptor in the form that the driver takes.
        unsafe { Identity::of_shared(kind, descriptor.as_raw_fd() as usize as *const c_void) }
    }

    #[test]
    fn descriptors_of_one_device_are_told_apart_by_their_marks_and_those_of_others_are_nobodys() {
        // All eventfds have one inode, just as all descriptors of NVIDIA's driver have one device.
        let (one, other, foreign) = (eventfd(), eventfd(), eventfd());
        let identities = [(&one, 1), (&other, 2)].map(|(descriptor, number)| exported(descriptor, number));
        assert!(identities[0].is_some() && identities[0] != identities[1], "{identities:?}");
        let copy = one.try_clone().expect("a copy");
        assert_eq!([shared(&copy), shared(&other)], identities);
        assert_eq!(shared(&foreign), None, "nobody exported it");
        // SAFETY: the call takes no pointers.
        unsafe { libc::fcntl(foreign.as_raw_fd(), libc::F_SETOWN, libc::getppid()) };
        assert_eq!(shared(&foreign), None, "another process exported it");
    }

    #[test]
    fn a_fabric_handle_is_known_by_all_of_its_words() {
        let (kind, mut words) = (CU_MEM_HANDLE_TYPE_FABRIC, [7_u64; FABRIC_WORDS]);
        // SAFETY: `words` has the size of a fabric handle.
        let exported = unsafe { Identity::of_exported(kind, (&raw const words).cast(), 1) };
        // SAFETY: `words` has the size of a fabric handle.
        let same = unsafe { Identity::of_shared(kind, (&raw const words).cast()) };
        words[FABRIC_WORDS - 1] += 1;
        // SAFETY: `words` has the size of a fabric handle.
        let other = unsafe { Identity::of_shared(kind, (&raw const words).cast()) };
        assert_eq!(exported, same);
        assert_ne!(exported, other);
        // SAFETY: a null pointer is rejected without being read.
        assert_eq!(unsafe { Identity::of_shared(kind, std::ptr::null()) }, None);
    }
}
