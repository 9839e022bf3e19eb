//! The file that the processes of a tenant share without a daemon, in a private directory. A
//! process finds or makes the file, and checks everything about the file before it uses it. The
//! last process removes the file.
//!
//! Record locks show which processes live, because the kernel releases the locks of a dead process.
//! Each process holds the lock on the byte of its slot. A process that can lock the whole file is
//! the file's only user. Such a lock (`F_SETLK`) ends with its process, and a child does not
//! inherit it. But if a process closes *any* descriptor of the file, it loses its locks. So a
//! process has only one descriptor of the file.
//!
//! A process without a session holds one more lock, on the byte [`ALONE_AT`] after the byte of its
//! slot. So the tenant's sessions see that such a process lives, and count in the file too.

use std::ffi::{CStr, CString};
use std::fmt::{self, Write as _};
use std::ops::Range;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::{fs, io, mem, ptr};

use deepres_abi::MAX_GPUS;
use deepres_abi::ledger::{Account, MAX_SESSIONS};
use deepres_abi::page::{self, LayoutError};
use deepres_abi::standalone::StandalonePage;
use deepres_abi::wire::Uuid;

use crate::descriptor::{OwnDescriptor, apart};
use crate::lock_order::{Mutex, Rank};
use crate::os;

/// The folder in the directory of deepres for the files of tenants without a daemon.
const FOLDER: &str = "standalone";
const FOLDER_MODE: u32 = 0o700;
/// The mode of the directory of deepres itself, if the process must make it as root. A daemon uses
/// the same mode.
const SYSTEM_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o600;
/// The permission bits of group and others.
const OTHERS: u32 = 0o077;
/// The first bytes of a page of any version.
const MAGIC: &[u8] = b"deepres\0";
const FILE_BYTES: usize = size_of::<StandalonePage>();
/// The most attempts to find the file while another process makes or removes the file. To make or
/// remove the file takes some system calls.
const ATTEMPTS: u32 = 1_000;
/// The pause between two attempts to find the file, ns.
const ATTEMPT_PAUSE_NS: u64 = 1_000_000;
/// The prefix of the names of unfinished files. The name of a finished file contains no dot.
const UNFINISHED: &str = "new.";
/// The distance from the byte of a slot to the byte that the slot's process locks while it has no
/// session.
const ALONE_AT: usize = MAX_SESSIONS;
/// The length of a lock that reaches to the end of the file, wherever the end is.
const TO_THE_END: i64 = 0;

/// The reason for which the processes cannot share a tenant's file.
#[derive(Debug)]
pub enum FileError {
    /// A system call failed. The text names the call.
    Io(&'static str, io::Error),
    /// The folder does not belong to this user alone.
    Folder(PathBuf),
    /// The file does not belong to this user alone, or is not a regular file.
    Foreign,
    /// deepres did not make the file.
    Garbage,
    /// Living processes use another layout of the page.
    Layout(LayoutError),
    /// Other processes use all slots of the file.
    Full,
    /// The tenant's processes use more GPUs than the file has places.
    Gpus,
}

impl FileError {
    /// Returns whether another user owns the directory, so that the process should try a directory
    /// of its own user.
    pub fn is_of_another_user(&self) -> bool {
        use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        match self {
            Self::Io(_, error) => matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem),
            Self::Folder(path) => fs::symlink_metadata(path).is_ok_and(|found| found.uid() != user()),
            _ => false,
        }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(what, error) => write!(f, "{what}: {error}"),
            Self::Folder(path) => write!(
                f,
                "{} is not a directory of yours alone; remove it, or name another directory by DEEPRES_DIR",
                path.display()
            ),
            Self::Foreign => write!(f, "the file is not yours alone; remove it"),
            Self::Garbage => write!(f, "deepres did not make the file; remove it"),
            Self::Layout(error) => write!(f, "a running process made the file: {error}"),
            Self::Full => write!(
                f,
                "{MAX_SESSIONS} processes use the file, the most that can, or a process stopped while it made or removed the file"
            ),
            Self::Gpus => write!(f, "the file has places for {MAX_GPUS} GPUs, and other GPUs have them"),
        }
    }
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> FileError {
    move |error| FileError::Io(what, error)
}

fn cvt(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A tenant's file, with a slot in it.
#[derive(Debug)]
pub struct TenantFile {
    folder: PathBuf,
    name: CString,
    descriptor: OwnDescriptor,
    /// This process's slot in the ledger.
    pub slot: usize,
    /// The page in the file.
    pub page: &'static StandalonePage,
    /// The lock of the thread that looks for dead processes. Record locks belong to the process, so
    /// if two threads looked, one would release the record locks of the other.
    burying: Mutex<{ Rank::Burial as u8 }, ()>,
}

impl TenantFile {
    /// Returns the path of `tenant`'s file in the directory of deepres.
    pub fn path(directory: &Path, tenant: &str) -> PathBuf {
        directory.join(FOLDER).join(file_name(tenant))
    }

    /// Opens or makes `tenant`'s file in the directory of deepres, takes a slot, and returns the
    /// file.
    ///
    /// # Errors
    /// [`FileError`]. After an error, the process holds no slot and no descriptor.
    pub fn open(directory: &Path, tenant: &str) -> Result<Self, FileError> {
        let folder = directory.join(FOLDER);
        let name = CString::new(file_name(tenant)).map_err(|_| FileError::Garbage)?;
        for _ in 0..ATTEMPTS {
            let at = open_folder(directory, &folder)?;
            let found = match open_file(&at, &name, 0) {
                Ok(descriptor) => join(&at, &name, descriptor)?,
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                    sweep(&folder, &at);
                    make(&at, &name)?
                }
                // The name is a symbolic link.
                Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Err(FileError::Foreign),
                Err(error) => return Err(FileError::Io("cannot open the file", error)),
            };
            if let Some((descriptor, slot, page)) = found {
                let descriptor = OwnDescriptor::new(descriptor);
                return Ok(Self { folder, name, descriptor, slot, page, burying: Mutex::default() });
            }
            os::sleep(ATTEMPT_PAUSE_NS);
        }
        Err(FileError::Full)
    }

    /// Returns the file, if it has a place for each of these GPUs.
    ///
    /// # Errors
    /// [`FileError::Gpus`]. After an error, the process holds no slot and no descriptor.
    pub fn having(self, gpus: &[Uuid]) -> Result<Self, FileError> {
        if gpus.iter().all(|gpu| self.page.place(gpu).is_some()) {
            return Ok(self);
        }
        self.leave();
        self.descriptor.close();
        Err(FileError::Gpus)
    }

    /// Returns whether the process still has its slot. If the job has closed the descriptor, the
    /// slot can be another process's by now.
    pub fn is_joined(&self) -> bool {
        self.descriptor.is_ours()
    }

    /// Shows to the tenant's sessions whether this process has no session.
    pub fn set_alone(&self, is_alone: bool) {
        let kind = if is_alone { libc::F_WRLCK } else { libc::F_UNLCK };
        if let Some(number) = self.descriptor.number() {
            // Only the process that has the slot locks this byte, so the call can fail only for a
            // closed descriptor.
            let _ = lock(number, kind, (ALONE_AT + self.slot) as i64, 1);
        }
    }

    /// Returns whether another process uses the file without a session.
    pub fn is_used_alone(&self) -> bool {
        self.descriptor.number().is_some_and(is_used_alone)
    }

    /// Returns this process's account on a GPU, or `None` if the file has no place for the GPU.
    pub fn account(&self, gpu: &Uuid) -> Option<Account<'static>> {
        self.page.ledger().gpu(self.page.place(gpu)?)?.account(self.slot)
    }

    /// Gives back the memory that dead processes of the tenant held. Returns whether any dead
    /// process held memory.
    pub fn bury_dead(&self) -> bool {
        let _alone = self.burying.lock();
        // If this process has lost its own lock, it must not judge other processes by their locks.
        let Some(number) = self.descriptor.number() else { return false };
        let ledgers = || self.page.ledger().all(MAX_GPUS);
        let used = ledgers().map(|ledger| ledger.slots()).max().unwrap_or(0);
        let mut found = false;
        let mut unused_from = used;
        for slot in (0..used).rev().filter(|slot| *slot != self.slot) {
            if lock(number, libc::F_WRLCK, slot as i64, 1).is_ok() {
                found |= clear(self.page, slot) != 0;
                if slot + 1 == unused_from {
                    // The slot stays locked until the ledgers have shrunk, so that no process takes
                    // it meanwhile.
                    unused_from = slot;
                } else {
                    unlock(number, slot..slot + 1);
                }
            }
        }
        ledgers().for_each(|ledger| ledger.shrink(unused_from..used));
        unlock(number, unused_from..used);
        found
    }

    /// Leaves the file at the end of the process. The last process removes the file.
    pub fn leave(&self) {
        let Some(number) = self.descriptor.number() else { return };
        if lock(number, libc::F_WRLCK, 0, TO_THE_END).is_err() {
            return;
        }
        // The lock stays until the process is gone. So no process joins a file that this process is
        // about to remove.
        if let Ok(at) = open_directory(&self.folder) {
            unlink(&at, &self.name);
        }
        // The call fails if the folder holds files of other tenants.
        let _ = fs::remove_dir(&self.folder);
    }

    /// Closes the descriptor, in a forked child. The child does not use the file.
    ///
    /// # Safety
    /// No thread of this process uses the file from now on.
    pub unsafe fn close(&self) {
        self.descriptor.close();
    }
}

/// Returns the name of the file for `tenant`. Letters, digits, `-` and `_` stay. Each other byte
/// becomes `%` and its hexadecimal digits.
fn file_name(tenant: &str) -> String {
    let mut name = String::with_capacity(tenant.len());
    for byte in tenant.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' {
            name.push(char::from(byte));
        } else {
            // A write to a string cannot fail.
            let _ = write!(name, "%{byte:02x}");
        }
    }
    name
}

fn user() -> u32 {
    // SAFETY: the call has no arguments and cannot fail.
    unsafe { libc::getuid() }
}

/// Opens the folder, and makes the folder if necessary. Returns the folder's descriptor. All later
/// steps use this descriptor, so no user can put another folder in its place.
fn open_folder(directory: &Path, folder: &Path) -> Result<OwnedFd, FileError> {
    let mode = if user() == 0 { SYSTEM_MODE } else { FOLDER_MODE };
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(directory)
        .map_err(failed("cannot create the directory"))?;
    match fs::DirBuilder::new().mode(FOLDER_MODE).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(FileError::Io("cannot create the directory", error));
        }
        _ => {}
    }
    let foreign = || FileError::Folder(folder.to_owned());
    let descriptor = open_directory(folder).map_err(|_| foreign())?;
    let found = status(&descriptor).map_err(failed("cannot examine the directory"))?;
    if found.st_uid == user() && found.st_mode & OTHERS == 0 { Ok(descriptor) } else { Err(foreign()) }
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: the path ends with a null byte.
    let descriptor = cvt(unsafe { libc::open(path.as_ptr(), flags) })?;
    // SAFETY: the call above opened the descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Opens `name` in the folder, and returns the descriptor. `O_NONBLOCK` prevents a wait, because
/// the name can belong to a pipe.
fn open_file(at: &OwnedFd, name: &CStr, flags: i32) -> io::Result<OwnedFd> {
    let flags = flags | libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    // SAFETY: the name ends with a null byte.
    let descriptor = cvt(unsafe { libc::openat(at.as_raw_fd(), name.as_ptr(), flags, FILE_MODE) })?;
    // SAFETY: the call above opened the descriptor, and nothing else owns it.
    Ok(apart(unsafe { OwnedFd::from_raw_fd(descriptor) }))
}

fn unlink(at: &OwnedFd, name: &CStr) {
    // SAFETY: the name ends with a null byte. If the file is gone already, the result does not
    // matter.
    unsafe { libc::unlinkat(at.as_raw_fd(), name.as_ptr(), 0) };
}

fn status(descriptor: &OwnedFd) -> io::Result<libc::stat> {
    // SAFETY: all zeroes is a valid stat.
    let mut status = unsafe { mem::zeroed::<libc::stat>() };
    // SAFETY: the result has room.
    cvt(unsafe { libc::fstat(descriptor.as_raw_fd(), &mut status) })?;
    Ok(status)
}

/// Releases this process's locks on the bytes of these slots.
fn unlock(number: RawFd, slots: Range<usize>) {
    // To the kernel, a length of 0 means up to the end of the file.
    if !slots.is_empty() {
        // The call can fail only for a closed descriptor.
        let _ = lock(number, libc::F_UNLCK, slots.start as i64, slots.len() as i64);
    }
}

/// Returns whether a process without a session uses `tenant`'s file in the directory of deepres.
/// The caller has no slot in the file, because it would lose its locks here.
pub fn is_file_used_alone(directory: &Path, tenant: &str) -> bool {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = TenantFile::path(directory, tenant);
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(file);
    file.is_ok_and(|file| is_used_alone(file.as_raw_fd()))
}

/// Returns whether a process other than this process holds a lock of processes without a session.
fn is_used_alone(number: RawFd) -> bool {
    let mut found = flock(libc::F_WRLCK, ALONE_AT as i64, MAX_SESSIONS as i64);
    // SAFETY: the description of the lock is complete and outlives the call.
    let asked = cvt(unsafe { libc::fcntl(number, libc::F_GETLK, &raw mut found) });
    asked.is_ok() && i32::from(found.l_type) != libc::F_UNLCK
}

/// Returns the description of a lock on bytes of the file.
fn flock(kind: i32, start: i64, bytes: i64) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: bytes,
        l_pid: 0,
    }
}

/// Changes the process's lock on bytes of the file, without a wait.
fn lock(number: RawFd, kind: i32, start: i64, bytes: i64) -> io::Result<()> {
    let what = flock(kind, start, bytes);
    // SAFETY: the description of the lock is complete and outlives the call.
    cvt(unsafe { libc::fcntl(number, libc::F_SETLK, &raw const what) }).map(drop)
}

/// Empties a slot on every GPU and on the host. Returns the bytes that the slot held.
fn clear(page: &StandalonePage, slot: usize) -> u64 {
    page.ledger().all(MAX_GPUS).filter_map(|ledger| ledger.clear(slot)).sum()
}

/// Returns whether any version of deepres made the file.
fn is_ours(descriptor: &OwnedFd) -> bool {
    let mut magic = [0_u8; MAGIC.len()];
    // SAFETY: the buffer has room for the given length.
    unsafe { libc::pread(descriptor.as_raw_fd(), magic.as_mut_ptr().cast(), magic.len(), 0) };
    magic == MAGIC
}

/// Removes the files in the folder whose users are all dead.
fn sweep(folder: &Path, at: &OwnedFd) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for name in entries.flatten().map(|entry| entry.file_name()) {
        let is_unfinished = name.as_bytes().starts_with(UNFINISHED.as_bytes());
        let Ok(name) = CString::new(name.as_bytes()) else { continue };
        let Ok(descriptor) = open_file(at, &name, 0) else { continue };
        if lock(descriptor.as_raw_fd(), libc::F_WRLCK, 0, TO_THE_END).is_ok()
            && (is_unfinished || is_ours(&descriptor))
        {
            unlink(at, &name);
        }
    }
}

type Joined = (OwnedFd, usize, &'static StandalonePage);

/// Takes a slot in an existing file, and returns the slot and the page. If only dead processes used
/// the file, removes the file and returns `None`. Also returns `None` if another process is making
/// or removing the file, or if no slot is free.
fn join(at: &OwnedFd, name: &CStr, descriptor: OwnedFd) -> Result<Option<Joined>, FileError> {
    let look = || status(&descriptor).map_err(failed("cannot examine the file"));
    let found = look()?;
    if found.st_mode & libc::S_IFMT != libc::S_IFREG || found.st_uid != user() || found.st_mode & OTHERS != 0
    {
        return Err(FileError::Foreign);
    }
    if lock(descriptor.as_raw_fd(), libc::F_WRLCK, 0, TO_THE_END).is_ok() {
        // No living process uses the file. Times in the file can come from an earlier boot.
        if !is_ours(&descriptor) {
            return Err(FileError::Garbage);
        }
        if look()?.st_nlink != 0 {
            unlink(at, name);
        }
        return Ok(None);
    }
    let free = |slot: &usize| lock(descriptor.as_raw_fd(), libc::F_WRLCK, *slot as i64, 1).is_ok();
    let Some(slot) = (0..MAX_SESSIONS).find(free) else { return Ok(None) };
    let found = look()?;
    if found.st_nlink == 0 {
        return Ok(None);
    }
    if found.st_size != FILE_BYTES as i64 {
        let bytes = usize::try_from(found.st_size).unwrap_or(0);
        return Err(FileError::Layout(LayoutError::Short(bytes, FILE_BYTES)));
    }
    let address = map(&descriptor).map_err(failed("cannot map the file"))?;
    // SAFETY: the code has just mapped the memory with this length. While the page is in use, no
    // code unmaps it.
    match unsafe { page::view::<StandalonePage>(address, FILE_BYTES) } {
        Ok(page) => {
            take_slot(page, slot);
            Ok(Some((descriptor, slot, page)))
        }
        Err(error) => {
            // SAFETY: the code above made the mapping, and no reference into the mapping exists.
            unsafe { libc::munmap(address.cast(), FILE_BYTES) };
            Err(FileError::Layout(error))
        }
    }
}

/// Makes the file under another name, and gives it its name when it is complete. Returns `None` if
/// another process was first.
fn make(at: &OwnedFd, name: &CStr) -> Result<Option<Joined>, FileError> {
    // A process in another namespace can have the same id, so the name also contains the time.
    let temporary = format!("{UNFINISHED}{}.{}", std::process::id(), os::now_ns());
    let temporary = CString::new(temporary).map_err(|_| FileError::Garbage)?;
    let descriptor = match open_file(at, &temporary, libc::O_CREAT | libc::O_EXCL) {
        Ok(descriptor) => descriptor,
        // The last user of the folder has just removed it.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        Err(error) => return Err(FileError::Io("cannot create the file", error)),
    };
    let made = fill(&descriptor).and_then(|page| {
        // SAFETY: both names end with a null byte.
        let linked =
            unsafe { libc::linkat(at.as_raw_fd(), temporary.as_ptr(), at.as_raw_fd(), name.as_ptr(), 0) };
        match cvt(linked) {
            Ok(_) => Ok(Some(page)),
            Err(error) => {
                // SAFETY: `fill` made the mapping, and its only reference ends here.
                unsafe { libc::munmap(ptr::from_ref(page).cast_mut().cast(), FILE_BYTES) };
                // There are two reasons. Another process was first. Or another process removed this
                // file as a dead process's file, before this process had locked it.
                let is_to_be_tried_again = matches!(error.raw_os_error(), Some(libc::EEXIST | libc::ENOENT));
                if is_to_be_tried_again { Ok(None) } else { Err(error) }
            }
        }
    });
    unlink(at, &temporary);
    let page = match made {
        // Another process looks for files of dead processes, and holds the lock of this file for a
        // moment.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => return Ok(None),
        made => made.map_err(failed("cannot create the file"))?,
    };
    Ok(page.map(|page| (descriptor, 0, page)))
}

/// Makes a tenant's file of an empty file, with this process in the first slot. Returns the page.
fn fill(descriptor: &OwnedFd) -> io::Result<&'static StandalonePage> {
    lock(descriptor.as_raw_fd(), libc::F_WRLCK, 0, 1)?;
    // The umask may have removed bits of the mode.
    // SAFETY: the call takes no pointers.
    cvt(unsafe { libc::fchmod(descriptor.as_raw_fd(), FILE_MODE) })?;
    // SAFETY: the result has room.
    let most = unsafe {
        let mut most = mem::zeroed::<libc::rlimit>();
        cvt(libc::getrlimit(libc::RLIMIT_FSIZE, &mut most))?;
        most.rlim_cur
    };
    if most < FILE_BYTES as libc::rlim_t {
        // Without this check, the kernel would end the process with a signal (`SIGXFSZ`).
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    // The code allocates the space now. Otherwise a later write to the mapping could find no space,
    // and the kernel would kill the process.
    // SAFETY: the call takes no pointers.
    let error = unsafe { libc::posix_fallocate(descriptor.as_raw_fd(), 0, FILE_BYTES as i64) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    let address = map(descriptor)?;
    // SAFETY: the code has just mapped the memory, which is zero as in any new file. While the page
    // is in use, no code unmaps it.
    let page = unsafe { page::create::<StandalonePage>(address, FILE_BYTES) }.map_err(io::Error::other)?;
    take_slot(page, 0);
    Ok(page)
}

/// Clears everything that the slot's last owner left, and opens the slot.
fn take_slot(page: &StandalonePage, slot: usize) {
    clear(page, slot);
    for ledger in page.ledger().all(MAX_GPUS) {
        // The call cannot fail, because the slot is below the number of slots.
        let _ = ledger.open(slot);
    }
}

fn map(descriptor: &OwnedFd) -> io::Result<*mut u8> {
    // SAFETY: a new mapping at an address that the kernel chooses.
    let address = unsafe {
        libc::mmap(
            ptr::null_mut(),
            FILE_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            descriptor.as_raw_fd(),
            0,
        )
    };
    if address == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(address.cast()) }
}
