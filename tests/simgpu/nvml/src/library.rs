//! The state of the library: initialised or not, the host it looks at, and answers about it.

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH as VERSION_MISMATCH,
    nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED as DRIVER_NOT_LOADED,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
    nvmlReturn_enum_NVML_ERROR_UNINITIALIZED as UNINITIALIZED, nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN,
    nvmlReturn_enum_NVML_SUCCESS as SUCCESS, nvmlReturn_t,
};
use simgpu_engine::{
    Config, MAX_GPUS, Options,
    faults::{self, Action},
    truth::{Gpu, Observer, Snapshot},
};
use std::{
    ffi::{CStr, c_char, c_uint},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, PoisonError},
};

/// What a call answers: a return code other than success is the error.
pub type Answer<T> = Result<T, nvmlReturn_t>;

/// Between the first nvmlInit and the last nvmlShutdown.
pub struct Library {
    observer: Observer,
    inits: usize,
}

static LIBRARY: Mutex<Option<Library>> = Mutex::new(None);

/// Handles are addresses of these bytes.
static HANDLES: [u8; MAX_GPUS] = [0; MAX_GPUS];

/// Runs a call, with the process's fault rules for it, and turns its outcome into a code. Never unwinds into
/// the caller.
fn outcome(api: &str, call: impl FnOnce(&mut Option<Library>) -> Answer<()>) -> nvmlReturn_t {
    if let Action::Fail(code) = faults::check(api) {
        return code;
    }
    let result =
        catch_unwind(AssertUnwindSafe(|| call(&mut LIBRARY.lock().unwrap_or_else(PoisonError::into_inner))));
    match result {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => UNKNOWN,
    }
}

/// Answers a call that needs the library initialised.
pub fn answer(api: &str, call: impl FnOnce(&Library) -> Answer<()>) -> nvmlReturn_t {
    outcome(api, |library| call(library.as_ref().ok_or(UNINITIALIZED)?))
}

/// nvmlInit and its variants. Each needs its own [`shut_down`].
pub fn init(api: &str) -> nvmlReturn_t {
    outcome(api, |library| {
        if let Some(library) = library {
            library.inits += 1;
            return Ok(());
        }
        let opened = faults::init().and_then(|()| Observer::open_or_create(&Options::default()));
        let observer = opened.map_err(|error| {
            eprintln!("simgpu: nvmlInit: {error}");
            DRIVER_NOT_LOADED
        })?;
        *library = Some(Library { observer, inits: 1 });
        Ok(())
    })
}

/// nvmlShutdown.
pub fn shut_down(api: &str) -> nvmlReturn_t {
    outcome(api, |library| {
        let opened = library.as_mut().ok_or(UNINITIALIZED)?;
        opened.inits -= 1;
        if opened.inits == 0 {
            *library = None;
        }
        Ok(())
    })
}

impl Library {
    /// What the GPUs are like.
    pub fn config(&self) -> &Config {
        self.observer.config()
    }

    /// The present figures.
    pub fn snapshot(&self) -> Snapshot {
        self.observer.recent()
    }

    /// The index of the GPU that a handle stands for.
    pub fn index(&self, device: nvmlDevice_t) -> Answer<usize> {
        (0..self.config().gpus).find(|&index| handle(index) == device).ok_or(INVALID_ARGUMENT)
    }

    /// The figures of the GPU that a handle stands for.
    pub fn gpu(&self, device: nvmlDevice_t) -> Answer<Gpu> {
        let index = self.index(device)?;
        Ok(self.snapshot().gpus[index])
    }

    /// The handle of the first GPU that fits.
    pub fn find(&self, fits: impl Fn(usize, &Gpu) -> bool) -> Answer<nvmlDevice_t> {
        let gpus = self.snapshot().gpus;
        let index = gpus.iter().enumerate().position(|(index, gpu)| fits(index, gpu));
        index.map(handle).ok_or(NOT_FOUND)
    }
}

/// The handle of a GPU.
pub fn handle(index: usize) -> nvmlDevice_t {
    std::ptr::from_ref(&HANDLES[index]).cast_mut().cast()
}

/// Writes an answer to where the caller wants it.
///
/// # Safety
/// `to` is null or valid for writing a `T`.
pub unsafe fn write<T>(to: *mut T, value: T) -> Answer<()> {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, so valid for writing, as the caller promises. C callers align their variables.
    unsafe { to.write(value) };
    Ok(())
}

/// Writes text and a zero into a buffer of `length` bytes.
///
/// # Safety
/// `to` is null or valid for writing `length` bytes.
pub unsafe fn write_text(to: *mut c_char, length: c_uint, text: &str) -> Answer<()> {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    if text.len() >= length as usize {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: not null, so valid for writing `length` bytes, which are more than the text's; the text is no
    // part of the caller's buffer.
    unsafe {
        to.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

/// Text in a field of a struct, cut to fit, with a zero.
pub fn field<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (to, &byte) in field[..N - 1].iter_mut().zip(text.as_bytes()) {
        *to = byte as c_char;
    }
    field
}

/// The caller's text.
///
/// # Safety
/// `text` is null or a C string.
pub unsafe fn read_text<'a>(text: *const c_char) -> Answer<&'a str> {
    if text.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, so a C string, as the caller promises.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| INVALID_ARGUMENT)
}

/// Writes a list by NVML's protocol: `count` says how many fit and comes back as how many there are; too few
/// places is an error.
///
/// # Safety
/// `count` is null or valid for reading and writing; `to` is null or valid for writing as many `T` as `count`
/// says.
pub unsafe fn write_list<T>(count: *mut c_uint, to: *mut T, list: Vec<T>) -> Answer<()> {
    if count.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, so valid for reading and writing, as the caller promises.
    let places = unsafe { count.replace(list.len() as c_uint) };
    if list.len() > places as usize {
        return Err(INSUFFICIENT_SIZE);
    }
    if list.is_empty() {
        return Ok(());
    }
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    for (place, item) in list.into_iter().enumerate() {
        // SAFETY: not null, so valid for writing `places` items, which are at least as many as the list's.
        unsafe { to.add(place).write(item) };
    }
    Ok(())
}

/// The last path component of what a process runs, as NVML gives it: the whole command name.
pub fn process_name(pid: c_uint) -> Answer<String> {
    let name = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| NOT_FOUND)?;
    let first = name.split(|&byte| byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(first).into_owned())
}

/// A UUID as NVML writes it.
pub fn uuid_text(uuid: [u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// For what the simulated GPU does not have.
pub fn not_supported<T>() -> Answer<T> {
    Err(NOT_SUPPORTED)
}

/// For structs of a version other than ours.
pub fn version_mismatch<T>() -> Answer<T> {
    Err(VERSION_MISMATCH)
}
