//! The state directory: finding, creating and mapping it.
//!
//! | file | content |
//! |---|---|
//! | `state` | the shared state, sparse; a rename puts the complete file into place |
//! | `alive` | empty; every attached process locks the byte of its number while it lives |
//! | `create` | empty; locked while one process looks for `state` and creates it |

use crate::{
    Config, Error, Options,
    clock::monotonic_ns,
    config::DEFAULT_TOML,
    layout::{MAGIC, MAX_CONFIG_BYTES, NEVER, State, VERSION},
    liveness,
    locker::Locker,
};
use std::{
    fs::{self, File, OpenOptions, Permissions},
    io,
    os::{
        fd::AsRawFd,
        unix::{
            ffi::OsStrExt,
            fs::{DirBuilderExt, FileExt, MetadataExt, PermissionsExt},
        },
    },
    path::{Path, PathBuf},
    ptr::NonNull,
};

/// The mapping of the state file. Drop unmaps the file.
#[derive(Debug)]
pub struct Mapping(NonNull<State>);

// SAFETY: the state consists of atomics, which every thread may use at the same time.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl std::ops::Deref for Mapping {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        // SAFETY: the mapping has the size of a `State` and lasts as long as this value. Every bit
        // pattern of its words is valid.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `map` mapped this range with this size; no reference into it outlives the value.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<State>()) };
    }
}

/// An opened state directory.
#[derive(Debug)]
pub struct Shared {
    pub state: Mapping,
    pub alive: File,
    pub locker: Locker,
    pub config: Config,
}

/// Returns the state directory that the environment names, else `/dev/shm/simgpu-UID`.
pub fn default_dir() -> PathBuf {
    match std::env::var_os("SIMGPU_STATE") {
        Some(dir) if !dir.is_empty() => dir.into(),
        // SAFETY: `getuid` always succeeds.
        _ => format!("/dev/shm/simgpu-{}", unsafe { libc::getuid() }).into(),
    }
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { action, path: path.to_owned(), source }
}

/// Opens the state, and creates it if none exists.
pub fn open_or_create(options: &Options) -> Result<Shared, Error> {
    let dir = options.state_dir.clone().unwrap_or_else(default_dir);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(io_error("create", &dir))?;
    let create = open_file(&dir.join("create"))?;
    flock(&create).map_err(io_error("lock", &dir.join("create")))?;
    match open_existing(&dir) {
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
        // Another version of simgpu wrote the state, or the state is older than the last reboot.
        Err(Error::BadState { .. }) if is_abandoned(&dir)? => {}
        result => return result,
    }
    create_state(&dir, options)?;
    open_existing(&dir)
}

/// Opens an existing state.
pub fn open_existing(dir: &Path) -> Result<Shared, Error> {
    let path = dir.join("state");
    let file = OpenOptions::new().read(true).write(true).open(&path).map_err(io_error("open", &path))?;
    let bad = |reason: &str| Error::BadState { path: path.clone(), reason: reason.to_owned() };
    let len = file.metadata().map_err(io_error("stat", &path))?.len();
    if len != size_of::<State>() as u64 {
        return Err(bad("it is of another version of simgpu (its size differs)"));
    }
    let state = map(&file).map_err(io_error("map", &path))?;
    let header = &state.header;
    if header.magic.load() != MAGIC || header.version.load() != VERSION || header.size.load() != len {
        return Err(bad("it is of another version of simgpu"));
    }
    let boot = boot_id().map_err(io_error("read", Path::new(BOOT_ID)))?;
    if header.boot.each_ref().map(|word| word.load()) != boot {
        return Err(bad("it is of an earlier boot of this machine"));
    }
    let text = read_config(&state).ok_or_else(|| bad("its configuration is damaged"))?;
    let alive = open_alive(dir)?;
    let config =
        Config::parse(&text).map_err(|error| bad(&format!("it is of another version of simgpu: {error}")))?;
    Ok(Shared { config, state, alive, locker: Locker::take(dir)? })
}

/// Opens the file `alive` with a new open file description.
pub fn open_alive(dir: &Path) -> Result<File, Error> {
    open_file(&dir.join("alive"))
}

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Returns whether the directory holds a state of simgpu to which no process is attached.
fn is_abandoned(dir: &Path) -> Result<bool, Error> {
    let path = dir.join("state");
    let mut magic = [0; size_of::<u64>()];
    let ours = File::open(&path).and_then(|file| file.read_exact_at(&mut magic, 0)).is_ok();
    Ok(ours && magic == MAGIC.to_ne_bytes() && !liveness::is_any_held(&open_alive(dir)?))
}

fn open_file(path: &Path) -> Result<File, Error> {
    // The standard library opens files with O_CLOEXEC.
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(io_error("open", path))?;
    open_as_its_directory(&file, path);
    Ok(file)
}

/// If all users may write to the directory, gives all users access to the file. Users share such a
/// state, for example those of containers. Only the file's creator can change the mode. For other
/// users, the creator has changed it already.
pub fn open_as_its_directory(file: &File, path: &Path) {
    const WRITABLE_BY_OTHERS: u32 = 0o002;
    const FOR_ALL: u32 = 0o666;
    let is_for_all = |mode: u32| mode & WRITABLE_BY_OTHERS != 0;
    let directory = path.parent().and_then(|directory| fs::metadata(directory).ok());
    if directory.is_some_and(|directory| is_for_all(directory.mode()))
        && file.metadata().is_ok_and(|found| !is_for_all(found.mode()))
    {
        // The kernel lets only the creator change the mode. The creator does so right after
        // creating the file.
        let _ = file.set_permissions(Permissions::from_mode(FOR_ALL));
    }
}

fn flock(file: &File) -> io::Result<()> {
    loop {
        // SAFETY: the call uses only the descriptor, which is open.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn map(file: &File) -> io::Result<Mapping> {
    // SAFETY: a new shared mapping of a whole file; no existing memory is touched.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size_of::<State>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            file.as_raw_fd(),
            0,
        )
    };
    match NonNull::new(address) {
        Some(address) if address.as_ptr() != libc::MAP_FAILED => {
            // Keeps hundreds of sparse megabytes out of core files. A failure has no other effect.
            // SAFETY: the range is the mapping just made.
            unsafe { libc::madvise(address.as_ptr(), size_of::<State>(), libc::MADV_DONTDUMP) };
            Ok(Mapping(address.cast()))
        }
        _ => Err(io::Error::last_os_error()),
    }
}

fn boot_id() -> io::Result<[u64; 2]> {
    let text = fs::read_to_string(BOOT_ID)?;
    Ok([fnv(&[text.as_bytes()]), fnv(&[b"2", text.as_bytes()])])
}

/// Returns the 64-bit FNV-1a hash of the parts one after another.
pub fn fnv(parts: &[&[u8]]) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x100_0000_01b3;
    parts.iter().copied().flatten().fold(OFFSET, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

/// Returns the configuration's text. The state keeps a copy of it, so that all processes use the
/// same configuration.
fn config_text() -> Result<String, Error> {
    match std::env::var_os("SIMGPU_CONFIG") {
        Some(path) if !path.is_empty() => {
            fs::read_to_string(&path).map_err(io_error("read", Path::new(&path)))
        }
        _ => Ok(DEFAULT_TOML.to_owned()),
    }
}

fn create_state(dir: &Path, options: &Options) -> Result<(), Error> {
    let text = match &options.config_toml {
        Some(text) => text.clone(),
        None => config_text()?,
    };
    let config = Config::parse(&text)?;
    if text.len() > MAX_CONFIG_BYTES {
        return Err(Error::Config(format!(
            "it has {} bytes; at most {MAX_CONFIG_BYTES} are possible",
            text.len()
        )));
    }
    let (path, new_path) = (dir.join("state"), dir.join("state.new"));
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&new_path);
    let file = file.map_err(io_error("create", &new_path))?;
    open_as_its_directory(&file, &new_path);
    file.set_len(size_of::<State>() as u64).map_err(io_error("size", &new_path))?;
    let state = map(&file).map_err(io_error("map", &new_path))?;
    let header = &state.header;
    let now_ns = match &options.clock {
        crate::Clock::Monotonic => monotonic_ns(),
        virtual_clock @ crate::Clock::Virtual(_) => virtual_clock.now_ns(),
    };
    for (word, bytes) in state.config.words.iter().zip(text.as_bytes().chunks(size_of::<u64>())) {
        let mut whole = [0; size_of::<u64>()];
        whole[..bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_le_bytes(whole));
    }
    state.config.len.store(text.len() as u64);
    for gpu in &state.gpus {
        gpu.now_ns.store(now_ns);
        gpu.next_event_ns.store(NEVER);
    }
    header.gpu_count.store(config.gpus as u64);
    header.interference_rules.store(config.interference.len() as u64);
    for (word, rule) in header.interference_ppm.iter().zip(&config.interference) {
        word.store(rule.factor_ppm());
    }
    header.created_ns.store(now_ns);
    header.liveness_ns.store(now_ns);
    header.next_event_ns.store(NEVER);
    let canonical = dir.canonicalize().map_err(io_error("resolve", dir))?;
    for (word, salt) in header.uuid_seed.iter().zip([b"a", b"b"]) {
        word.store(fnv(&[salt, canonical.as_os_str().as_bytes()]));
    }
    let boot = boot_id().map_err(io_error("read", Path::new(BOOT_ID)))?;
    header.boot.iter().zip(boot).for_each(|(word, half)| word.store(half));
    header.size.store(size_of::<State>() as u64);
    header.version.store(VERSION);
    header.magic.store(MAGIC);
    fs::rename(&new_path, &path).map_err(io_error("rename into place", &path))
}

fn read_config(state: &State) -> Option<String> {
    let len = usize::try_from(state.config.len.load()).ok().filter(|&len| len <= MAX_CONFIG_BYTES)?;
    let mut bytes: Vec<u8> =
        state.config.words.iter().take(len.div_ceil(8)).flat_map(|word| word.load().to_le_bytes()).collect();
    bytes.truncate(len);
    String::from_utf8(bytes).ok()
}

/// Returns the UUID of a GPU of this state.
pub fn uuid(state: &State, gpu: usize) -> [u8; 16] {
    let mut uuid = [0; 16];
    for (half, seed) in uuid.chunks_exact_mut(size_of::<u64>()).zip(&state.header.uuid_seed) {
        half.copy_from_slice(&fnv(&[&seed.load().to_be_bytes(), &[gpu as u8]]).to_be_bytes());
    }
    uuid
}
