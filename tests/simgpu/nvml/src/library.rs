//! State of the library: whether it is initialised, the observed host, and the figures of the host.

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

/// Result of a call. The error is the return code.
pub type Answer<T> = Result<T, nvmlReturn_t>;

/// The library between the first nvmlInit and the last nvmlShutdown.
pub struct Library {
    observer: Observer,
    inits: usize,
}

static LIBRARY: Mutex<Option<Library>> = Mutex::new(None);

/// The bytes whose addresses are the handles of the GPUs.
static HANDLES: [u8; MAX_GPUS] = [0; MAX_GPUS];
/// The byte whose address is the handle of the GPU with the MIG devices.
static WHOLE: u8 = 0;

/// Runs a call under the process's fault rules and turns its result into a return code. Never
/// unwinds into the caller.
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

/// Runs a call that needs the library initialised.
pub fn answer(api: &str, call: impl FnOnce(&Library) -> Answer<()>) -> nvmlReturn_t {
    outcome(api, |library| call(library.as_ref().ok_or(UNINITIALIZED)?))
}

/// Initialises the library (nvmlInit and its variants). Each call needs its own [`shut_down`].
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

/// Undoes one [`init`] (nvmlShutdown).
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
    /// Returns the configuration of the GPUs.
    pub fn config(&self) -> &Config {
        self.observer.config()
    }

    /// Returns the present figures.
    pub fn snapshot(&self) -> Snapshot {
        self.observer.recent()
    }

    /// Returns whether a handle's GPU is the one with the MIG devices.
    pub fn is_divided(&self, device: nvmlDevice_t) -> bool {
        self.config().mig && device == whole()
    }

    /// Returns the UUID of a handle's GPU in NVML's form.
    pub fn uuid(&self, device: nvmlDevice_t) -> Answer<String> {
        let text = uuid_text(self.gpu(device)?.uuid);
        let is_part = self.config().mig && !self.is_divided(device);
        Ok(if is_part { text.replacen("GPU-", "MIG-", 1) } else { text })
    }

    /// Returns the index of a handle's GPU. The GPU with the MIG devices has the figures of the
    /// first of them.
    pub fn index(&self, device: nvmlDevice_t) -> Answer<usize> {
        if self.is_divided(device) {
            return Ok(0);
        }
        (0..self.config().gpus).find(|&index| handle(index) == device).ok_or(INVALID_ARGUMENT)
    }

    /// Returns the figures of a handle's GPU.
    pub fn gpu(&self, device: nvmlDevice_t) -> Answer<Gpu> {
        let index = self.index(device)?;
        Ok(self.snapshot().gpus[index])
    }

    /// Returns the handle of the first GPU that fits.
    pub fn find(&self, fits: impl Fn(usize, &Gpu) -> bool) -> Answer<nvmlDevice_t> {
        let gpus = self.snapshot().gpus;
        let index = gpus.iter().enumerate().position(|(index, gpu)| fits(index, gpu));
        index.map(handle).ok_or(NOT_FOUND)
    }
}

/// Returns the handle of a GPU.
pub fn handle(index: usize) -> nvmlDevice_t {
    std::ptr::from_ref(&HANDLES[index]).cast_mut().cast()
}

/// Returns the handle of the GPU with the MIG devices.
pub fn whole() -> nvmlDevice_t {
    std::ptr::from_ref(&WHOLE).cast_mut().cast()
}

/// Writes a result to the caller's pointer.
///
/// # Safety
/// `to` is null or valid for writing a `T`.
pub unsafe fn write<T>(to: *mut T, value: T) -> Answer<()> {
    if to.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: `to` is not null, so the caller promises that it is valid for writing. C callers
    // align their variables.
    unsafe { to.write(value) };
    Ok(())
}

/// Writes text and a terminating zero into a buffer of `length` bytes.
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
    // SAFETY: `to` is not null, so the caller promises `length` bytes, which are more than the text
    // has. The text is not part of the caller's buffer.
    unsafe {
        to.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

/// Returns text as a field of a struct: truncated to fit, with a terminating zero.
pub fn field<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (to, &byte) in field[..N - 1].iter_mut().zip(text.as_bytes()) {
        *to = byte as c_char;
    }
    field
}

/// Returns the caller's text.
///
/// # Safety
/// `text` is null or a C string.
pub unsafe fn read_text<'a>(text: *const c_char) -> Answer<&'a str> {
    if text.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: `text` is not null, so the caller promises a C string.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| INVALID_ARGUMENT)
}

/// Writes a list by NVML's protocol. On entry `count` is the number of places, on return the number
/// of items. Too few places are an error.
///
/// # Safety
/// `count` is null or valid for reading and writing. `to` is null or valid for writing as many `T`
/// as `count` says.
pub unsafe fn write_list<T>(count: *mut c_uint, to: *mut T, list: Vec<T>) -> Answer<()> {
    if count.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: `count` is not null, so the caller promises that it is valid for reading and writing.
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
        // SAFETY: `to` is not null, so the caller promises `places` items, and the list has no more
        // items.
        unsafe { to.add(place).write(item) };
    }
    Ok(())
}

/// Returns the program name of a process, as NVML does: the whole first argument of its command
/// line.
pub fn process_name(pid: c_uint) -> Answer<String> {
    let name = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| NOT_FOUND)?;
    let first = name.split(|&byte| byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(first).into_owned())
}

/// Returns a UUID in NVML's form.
pub fn uuid_text(uuid: [u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// Returns the error for a feature that the simulated GPU does not have.
pub fn not_supported<T>() -> Answer<T> {
    Err(NOT_SUPPORTED)
}

/// Returns the error for a struct of an unknown version.
pub fn version_mismatch<T>() -> Answer<T> {
    Err(VERSION_MISMATCH)
}
