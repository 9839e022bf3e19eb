//! Linear memory that other processes open (`cuIpc…MemHandle`).
//!
//! Exported memory moves into a file in the state directory, which all processes that share the
//! GPUs see. The exporter and all openers map this file. As with a real driver, the file holds the
//! whole piece of memory around an allocation, because small allocations share a piece.
//!
//! For each exported allocation, the exporter holds a record lock on one byte of the file, by the
//! allocation's id. So the kernel tells which allocations live, even if the exporter is killed.
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use simgpu_engine::Config;

use crate::context::{self, lock};
use crate::mapping;
use crate::memory::{self, Allocation, Kind};
use crate::pending;
use crate::process::{self, host};
use crate::status::{self, Result};

const HANDLE_BYTES: usize = 64;
const WORD_BYTES: usize = size_of::<u64>();
/// The first word of every handle.
const MAGIC: u64 = u64::from_le_bytes(*b"simgpu m");
/// Prefix of the names of files with exported memory.
const FILE_PREFIX: &str = "memory-";
/// Suffix of the name of a file with exported memory, until the exporter has locked the file.
const UNFINISHED: &str = ".new";
/// The byte that is locked while a piece lives. Ids of allocations begin after it.
const PIECE_LOCK: u64 = 0;
/// Lock length that means "to the end of the file, however long it grows".
const WHOLE_FILE: libc::off_t = 0;

/// Contents of a handle.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Handle {
    /// Random number of the exporting process.
    exporter: u64,
    /// Number of the piece in the exporting process.
    piece: u64,
    /// Number of the allocation in the exporting process.
    allocation: u64,
    /// Offset of the allocation in the piece.
    offset: u64,
    /// Length of the allocation.
    bytes: u64,
    /// The engine's index of the GPU.
    gpu: u64,
    /// Number of the pool in the exporting process; 0: the allocation is of no pool.
    pool: u64,
}

/// First word of the handle of a pool's allocation.
const MAGIC_POOLED: u64 = u64::from_le_bytes(*b"simgpu p");
/// Position of the pool's number in the handle's word for the GPU, of which the GPU takes the lower
/// bits.
const POOL_SHIFT: u32 = 32;

impl Handle {
    /// Returns the handle as bytes, for other processes.
    pub fn bytes(self) -> [u8; HANDLE_BYTES] {
        let words = [
            if self.pool == 0 { MAGIC } else { MAGIC_POOLED },
            self.exporter,
            self.piece,
            self.allocation,
            self.offset,
            self.bytes,
            self.gpu | self.pool << POOL_SHIFT,
            self.check(),
        ];
        let mut bytes = [0; HANDLE_BYTES];
        for (place, word) in bytes.chunks_exact_mut(WORD_BYTES).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads a handle. Returns `None` for bytes that no process exported.
    fn of(bytes: [u8; HANDLE_BYTES]) -> Option<Self> {
        let mut words = bytes.as_chunks::<WORD_BYTES>().0.iter().map(|word| u64::from_le_bytes(*word));
        let mut next = || words.next();
        let magic = next()?;
        let (exporter, piece, allocation) = (next()?, next()?, next()?);
        let (offset, bytes, place) = (next()?, next()?, next()?);
        let (gpu, pool) = (place & u64::from(u32::MAX), place >> POOL_SHIFT);
        let handle = Self { exporter, piece, allocation, offset, bytes, gpu, pool };
        let is_right = magic == if pool == 0 { MAGIC } else { MAGIC_POOLED };
        (is_right && next()? == handle.check()).then_some(handle)
    }

    fn check(self) -> u64 {
        self.exporter ^ self.piece ^ self.allocation ^ self.offset ^ self.bytes ^ self.gpu ^ self.pool
    }

    fn path(self) -> PathBuf {
        path(self.exporter, self.piece)
    }
}

fn path(exporter: u64, piece: u64) -> PathBuf {
    host().directory().join(format!("{FILE_PREFIX}{exporter:016x}-{piece}"))
}

/// Returns the random number of this process as an exporter.
pub fn own_number() -> u64 {
    static NUMBER: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish());
    *NUMBER
}

/// A piece of memory with at least one exported allocation.
struct Piece {
    number: u64,
    /// The only descriptor of the file. If the process closed any other descriptor of the file, the
    /// kernel would drop the process's locks.
    file: Arc<File>,
    /// Ids of the piece's allocations that the process exported.
    exported: HashSet<u64>,
}

/// Exported pieces by their first address.
static PIECES: Mutex<BTreeMap<u64, Piece>> = Mutex::new(BTreeMap::new());
/// The thread that moves a piece into a file holds this lock. This lock is separate from
/// [`PIECES`], because threads that write to memory lock [`PIECES`].
static EXPORTING: Mutex<()> = Mutex::new(());

/// An allocation of another process that this process has opened.
struct Opened {
    handle: Handle,
    /// Address of the allocation.
    address: u64,
    /// The mapping around the allocation: address and length.
    mapping: (u64, u64),
    /// The context that opened the allocation; `context_gpu` is the context's GPU.
    context: usize,
    context_gpu: usize,
    count: usize,
}

static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

fn record(kind: libc::c_int, start: u64, length: libc::off_t) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start as libc::off_t,
        l_len: length,
        l_pid: 0,
    }
}

fn set_lock(file: &File, kind: libc::c_int, byte: u64) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the lock is a valid one.
    let failed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &record(kind, byte, 1)) } != 0;
    if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns whether another process holds a lock in a range.
fn is_locked(file: &File, start: u64, length: libc::off_t) -> bool {
    let mut request = record(libc::F_WRLCK, start, length);
    // SAFETY: the descriptor is open and `request` has room for the answer.
    let answered = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &mut request) } == 0;
    !answered || libc::c_int::from(request.l_type) != libc::F_UNLCK
}

/// Removes the files of dead exporters. A process calls this function before it exports anything,
/// because closing a file drops the process's own locks on the file.
pub fn sweep() {
    let Ok(entries) = fs::read_dir(host().directory()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with(FILE_PREFIX) || name.ends_with(UNFINISHED) {
            continue;
        }
        let path = entry.path();
        if OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .is_ok_and(|file| !is_locked(&file, 0, WHOLE_FILE))
        {
            // Another process may have removed the file first.
            let _ = fs::remove_file(&path);
        }
    }
}

/// Creates a file that reads as zeros, and locks the file. The file gets its final name only after
/// the lock, so no process sees it unlocked.
fn create_file(path: &Path, bytes: u64) -> io::Result<File> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(UNFINISHED);
    let unfinished = PathBuf::from(unfinished);
    let finish = || {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&unfinished)?;
        simgpu_engine::open_as_its_directory(&file, &unfinished);
        file.set_len(bytes)?;
        set_lock(&file, libc::F_WRLCK, PIECE_LOCK)?;
        fs::rename(&unfinished, path)?;
        Ok(file)
    };
    finish().inspect_err(|_| {
        let _ = fs::remove_file(&unfinished);
    })
}

/// Lets other processes open the allocation that begins at `address`. Returns the allocation's IPC
/// handle.
pub fn export(address: u64) -> Result<Handle> {
    let found = memory::find(address).filter(|found| found.base == address);
    let allocation = found.filter(|found| matches!(found.kind, Kind::Device)).ok_or(status::INVALID_VALUE)?;
    export_allocation(&allocation, 0)
}

/// Does the same as [`export`], for an allocation of pool number `pool` of this process.
pub fn export_pooled(allocation: &Allocation, pool: u64) -> Result<Handle> {
    export_allocation(allocation, pool)
}

fn export_allocation(allocation: &Allocation, pool: u64) -> Result<Handle> {
    let address = allocation.base;
    let gpu = process::gpu_of(allocation.device())? as u64;
    let (base, bytes) = memory::piece_of(allocation);
    let _one_at_a_time = lock(&EXPORTING);
    if !lock(&PIECES).contains_key(&base) {
        share_piece(base, bytes).map_err(|_| status::OPERATING_SYSTEM)?;
    }
    let mut pieces = lock(&PIECES);
    let piece = pieces.get_mut(&base).ok_or(status::INVALID_VALUE)?;
    if !piece.exported.contains(&allocation.id) {
        set_lock(&piece.file, libc::F_WRLCK, allocation.id).map_err(|_| status::OPERATING_SYSTEM)?;
        piece.exported.insert(allocation.id);
        host().add_unmovable();
    }
    Ok(Handle {
        exporter: own_number(),
        piece: piece.number,
        allocation: allocation.id,
        offset: address - base,
        bytes: allocation.bytes,
        gpu,
        pool,
    })
}

/// Moves a piece into a file of its own.
fn share_piece(base: u64, bytes: u64) -> io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let file = Arc::new(create_file(&path(own_number(), number), bytes)?);
    let content = Arc::clone(&file);
    // The entry comes before the move. From now on, code that drops pages asks whether other
    // processes share the pages.
    lock(&PIECES).insert(base, Piece { number, file, exported: HashSet::new() });
    let moved = mapping::move_into(&content, base, bytes);
    if moved.is_err() {
        forget_piece(base);
    }
    moved
}

/// Returns whether the memory at an address was exported, alone or with its neighbours.
pub fn is_shared(address: u64) -> bool {
    let piece = memory::find(address).map(|found| memory::piece_of(&found).0);
    piece.is_some_and(|base| lock(&PIECES).contains_key(&base))
}

/// Ends the export of an allocation that the client frees: no process can open the allocation any
/// more. A process that has the allocation open keeps the contents.
pub fn withdraw(allocation: &Allocation) {
    withdraw_from(memory::piece_of(allocation).0, allocation.id);
}

/// Does the same as [`withdraw`], for the allocation `id` in the piece at `base`.
pub fn withdraw_from(base: u64, id: u64) {
    let mut pieces = lock(&PIECES);
    if let Some(piece) = pieces.get_mut(&base)
        && piece.exported.remove(&id)
    {
        // If the unlock fails, the lock ends with the piece.
        let _ = set_lock(&piece.file, libc::F_UNLCK, id);
        host().remove_unmovable();
    }
}

/// Ends the exports of a piece of memory that the driver gives back.
pub fn forget_piece(base: u64) {
    if let Some(piece) = lock(&PIECES).remove(&base) {
        // If the file stays, the next process that starts removes it.
        let _ = fs::remove_file(path(own_number(), piece.number));
    }
}

/// Opens an allocation of another process in the current context. If the allocation is open
/// already, counts another opening. Returns the address in this process.
pub fn open(bytes: [u8; HANDLE_BYTES]) -> Result<u64> {
    let handle = Handle::of(bytes).filter(|handle| handle.pool == 0).ok_or(status::INVALID_HANDLE)?;
    open_handle(handle)
}

/// Does the same as [`open`], for an allocation of pool number `pool` of process `exporter`.
pub fn open_pooled(bytes: [u8; HANDLE_BYTES], (exporter, pool): (u64, u64)) -> Result<u64> {
    let is_of = |handle: &Handle| (handle.exporter, handle.pool) == (exporter, pool);
    open_handle(Handle::of(bytes).filter(is_of).ok_or(status::INVALID_VALUE)?)
}

fn open_handle(handle: Handle) -> Result<u64> {
    let context = context::current()?;
    status::refuse_as(handle.exporter == own_number(), status::INVALID_CONTEXT)?;
    let device = (0..process::device_count() as i32)
        .find(|device| process::gpu_of(*device).is_ok_and(|gpu| gpu as u64 == handle.gpu))
        .ok_or(status::INVALID_DEVICE)?;
    let mut opened = lock(&OPENED);
    if let Some(again) = opened.iter_mut().find(|one| one.handle == handle && one.context == context.handle) {
        again.count += 1;
        return Ok(again.address);
    }
    // One context of each GPU may open the memory that one process has on one GPU.
    let is_others = |one: &Opened| {
        (one.handle.exporter, one.handle.gpu) == (handle.exporter, handle.gpu)
            && one.context_gpu == context.gpu
            && one.context != context.handle
    };
    status::refuse_as(opened.iter().any(is_others), status::INVALID_CONTEXT)?;
    let (base, length) = map_exported(handle)?;
    let is_pooled = handle.pool != 0;
    let address = base + handle.offset;
    opened.push(Opened {
        handle,
        address,
        mapping: (base, length),
        context: context.handle,
        context_gpu: context.gpu,
        count: 1,
    });
    drop(opened);
    host().add_unmovable();
    memory::enter(address, handle.bytes, Kind::Opened { device, is_pooled }, Some(Arc::clone(&context)));
    Ok(address)
}

/// Maps the piece around an exported allocation, if the allocation lives. Returns address and
/// length of the mapping.
fn map_exported(handle: Handle) -> Result<(u64, u64)> {
    let opened = OpenOptions::new().read(true).write(true).open(handle.path());
    let file = opened.map_err(|_| status::INVALID_HANDLE)?;
    if handle.allocation == PIECE_LOCK || !is_locked(&file, handle.allocation, 1) {
        return Err(status::INVALID_HANDLE);
    }
    let length = file.metadata().map_err(|_| status::MAP_FAILED)?.len();
    let is_inside = handle.offset.checked_add(handle.bytes).is_some_and(|end| end <= length);
    if length == 0 || !length.is_multiple_of(Config::ALLOCATION_GRANULARITY_BYTES) || !is_inside {
        return Err(status::INVALID_HANDLE);
    }
    Ok((mapping::map_file(&file, length)?, length))
}

/// Closes one opening at `address`. The last close unmaps the memory.
pub fn close(address: u64) -> Result<()> {
    context::current()?;
    let last = {
        let mut opened = lock(&OPENED);
        let at = opened.iter().position(|one| one.address == address).ok_or(status::INVALID_VALUE)?;
        opened[at].count -= 1;
        if opened[at].count > 0 {
            return Ok(());
        }
        opened.swap_remove(at)
    };
    if let Some(context) = memory::find(address).and_then(|found| found.context)
        && context.is_alive()
    {
        memory::quiesce(&context);
    }
    pending::drain(address, last.handle.bytes);
    // The end of the context may have removed the entry before.
    let _ = memory::strike(address, |found| matches!(found.kind, Kind::Opened { .. }));
    unmap(&last);
    Ok(())
}

fn unmap(opened: &Opened) {
    let (base, bytes) = opened.mapping;
    mapping::unmap(base, bytes);
    host().remove_unmovable();
}

/// Unmaps the opened memory at `address`, which nothing uses any more.
pub fn forget_opened(address: u64) {
    let mut opened = lock(&OPENED);
    if let Some(at) = opened.iter().position(|one| one.address == address) {
        unmap(&opened.swap_remove(at));
    }
}
