//! The code of the program: the fat binaries, kernels and variables that the program registers when
//! it starts.
//!
//! A program names a kernel by the address of a host function, and a variable by the address of the
//! variable's shadow on the host. A framework registers hundreds of fat binaries and uses few. So
//! the driver loads a fat binary at the first use of its kernels or variables.

use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock};

use deepres_abi::driver::types as cu;
use simgpu_driver::{Error, Result, driver};

use crate::edge;
use crate::table::errors;

/// A registered fat binary.
pub struct Binary {
    image: *const c_void,
    library: OnceLock<Result<AtomicPtr<c_void>>>,
}

// SAFETY: the image is constant data of the program.
unsafe impl Send for Binary {}
// SAFETY: as above.
unsafe impl Sync for Binary {}

impl Binary {
    /// Returns the binary whose image the program registers. The program keeps the image.
    pub fn new(image: *const c_void) -> Self {
        Self { image, library: OnceLock::new() }
    }

    /// Returns the driver's library of the binary. Loads it at the first call.
    fn library(&self) -> Result<cu::CUlibrary> {
        let load = || -> Result<AtomicPtr<c_void>> {
            let mut library = null_mut();
            driver!(cuLibraryLoadData(
                &mut library,
                self.image,
                null_mut(),
                null_mut(),
                0,
                null_mut(),
                null_mut(),
                0
            ));
            Ok(AtomicPtr::new(library))
        };
        match self.library.get_or_init(load) {
            Ok(library) => Ok(library.load(Ordering::Relaxed)),
            Err(error) => Err(*error),
        }
    }
}

/// A kernel or a variable of a binary.
pub struct Entry {
    binary: &'static Binary,
    /// The name in the binary: a C string of the program.
    name: *const c_char,
    kind: Kind,
}

enum Kind {
    /// A kernel, with the driver's handle after the first use.
    Kernel(AtomicPtr<c_void>),
    Variable,
    Managed,
}

// SAFETY: the name is constant data of the program.
unsafe impl Send for Entry {}
// SAFETY: as above.
unsafe impl Sync for Entry {}

impl Entry {
    /// Returns a kernel.
    pub fn kernel(binary: &'static Binary, name: *const c_char) -> Self {
        Self { binary, name, kind: Kind::Kernel(AtomicPtr::new(null_mut())) }
    }

    /// Returns a variable. `is_managed` tells whether the host may use the variable's address too.
    pub fn variable(binary: &'static Binary, name: *const c_char, is_managed: bool) -> Self {
        Self { binary, name, kind: if is_managed { Kind::Managed } else { Kind::Variable } }
    }
}

/// All kernels and variables, by the address on the host. The entries stay for the life of the
/// process.
static ENTRIES: RwLock<Option<HashMap<usize, &'static Entry>>> = RwLock::new(None);

/// Enters a kernel or variable of the program.
pub fn register(host: *const c_void, entry: Entry) {
    let mut entries = ENTRIES.write().unwrap_or_else(PoisonError::into_inner);
    entries.get_or_insert_default().insert(host as usize, Box::leak(Box::new(entry)));
}

fn find(host: *const c_void) -> Option<&'static Entry> {
    let entries = ENTRIES.read().unwrap_or_else(PoisonError::into_inner);
    entries.as_ref()?.get(&(host as usize)).copied()
}

/// Returns the kernel of a function on the host. An address that is no registered function is a
/// handle of the driver: a `cudaKernel_t` or `cudaFunction_t`.
pub fn kernel(host: *const c_void) -> Result<cu::CUkernel> {
    edge::refuse_as(host.is_null(), errors::cudaErrorInvalidDeviceFunction)?;
    let Some(entry) = find(host) else { return Ok(host.cast_mut()) };
    let Kind::Kernel(known) = &entry.kind else {
        return Err(Error(errors::cudaErrorInvalidDeviceFunction));
    };
    let mut kernel = known.load(Ordering::Relaxed);
    if kernel.is_null() {
        crate::device::count()?;
        kernel = look_up(entry).map_err(|error| match error {
            Error(errors::cudaErrorSymbolNotFound) => Error(errors::cudaErrorInvalidDeviceFunction),
            other => other,
        })?;
        known.store(kernel, Ordering::Relaxed);
    }
    Ok(kernel)
}

fn look_up(entry: &Entry) -> Result<cu::CUkernel> {
    let mut kernel = null_mut();
    driver!(cuLibraryGetKernel(&mut kernel, entry.binary.library()?, entry.name));
    Ok(kernel)
}

/// A variable in the memory of the current device.
pub struct Variable {
    address: u64,
    /// Length of the variable.
    pub bytes: usize,
}

impl Variable {
    /// Returns the address of a part of the variable.
    pub fn part(&self, offset: usize, bytes: usize) -> Result<*mut c_void> {
        edge::refuse(offset.checked_add(bytes).is_none_or(|end| end > self.bytes))?;
        Ok((self.address + offset as u64) as *mut c_void)
    }
}

/// Returns the variable of a shadow on the host.
pub fn variable(shadow: *const c_void) -> Result<Variable> {
    let entry = find(shadow).ok_or(Error(errors::cudaErrorInvalidSymbol))?;
    let library = entry.binary.library()?;
    let (mut address, mut bytes) = (0, 0);
    match entry.kind {
        Kind::Kernel(_) => return Err(Error(errors::cudaErrorInvalidSymbol)),
        Kind::Variable => driver!(cuLibraryGetGlobal(&mut address, &mut bytes, library, entry.name)),
        Kind::Managed => driver!(cuLibraryGetManaged(&mut address, &mut bytes, library, entry.name)),
    }
    Ok(Variable { address, bytes })
}
