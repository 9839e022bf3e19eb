//! Device code as clients hand it over: PTX text, cubins, fat binaries, and the wrapper nvcc puts round those.
//!
//! Nothing is compiled or run. What matters is what a driver can be asked about afterwards: kernel names, their parameters and limits,
//! and the global variables with their initial bytes.
mod elf;
mod fatbin;
mod ptx;

use crate::status::{self, Result};

/// One parameter of a kernel, as laid out in its argument buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Where it begins in the argument buffer.
    pub offset_bytes: usize,
    /// How long it is.
    pub size_bytes: usize,
}

/// One kernel of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelImage {
    /// The symbol.
    pub name: String,
    /// Its parameters, in order.
    pub parameters: Vec<Parameter>,
    /// Static shared memory of a block.
    pub shared_bytes: u32,
    /// Constant memory of the kernel itself.
    pub const_bytes: u32,
    /// Local memory of a thread.
    pub local_bytes: u32,
    /// Registers of a thread.
    pub registers: u32,
    /// Threads of a block the code was compiled for, if it says so.
    pub max_threads: Option<u32>,
}

/// One global or constant variable of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GlobalImage {
    /// The symbol.
    pub name: String,
    /// Where it begins in the image's data.
    pub offset_bytes: u64,
    /// Its size.
    pub size_bytes: usize,
    /// What it begins with; empty means zeros.
    pub initial: Vec<u8>,
    /// `__managed__`: the host may use the address too.
    pub managed: bool,
}

/// What a driver knows of an image once it is loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// The kernels, in the image's order.
    pub kernels: Vec<KernelImage>,
    /// The variables.
    pub globals: Vec<GlobalImage>,
    /// What the variables take together.
    pub data_bytes: u64,
    /// What the kernels' instructions take; 0 where nobody has compiled them.
    pub text_bytes: u64,
    /// PTX ISA version as ten times major plus minor; 0 for code that never was PTX.
    pub ptx_version: u32,
    /// Compute capability of the code as ten times major plus minor.
    pub architecture: u32,
}

/// Bytes of one code object that have a length at last.
pub(crate) enum Code<'a> {
    /// PTX text.
    Ptx(&'a [u8]),
    /// A cubin.
    Elf(&'a [u8]),
}

impl Image {
    /// Room behind everything that has a place in the image's data.
    pub(crate) fn place(&mut self, align_bytes: u64, size_bytes: u64) -> Result<u64> {
        let at = self.data_bytes.checked_next_multiple_of(align_bytes.max(1)).ok_or(status::INVALID_IMAGE)?;
        self.data_bytes = at.checked_add(size_bytes).ok_or(status::INVALID_IMAGE)?;
        Ok(at)
    }
}

impl Code<'_> {
    fn parse(&self) -> Result<Image> {
        match self {
            Self::Ptx(text) => ptx::parse(text),
            Self::Elf(bytes) => elf::parse(bytes),
        }
    }
}

/// Reads the image at `data`, whose length only its own headers tell.
///
/// # Safety
/// `data` points at a whole image of one of the known kinds, or at a NUL-terminated text.
pub unsafe fn load(data: *const u8, device_architecture: u32) -> Result<Image> {
    if data.is_null() {
        return Err(status::INVALID_VALUE);
    }
    // SAFETY: every image kind is at least this long; a shorter text ends in NUL within the bytes compared, and is compared in order.
    let starts_with =
        |magic: &[u8]| magic.iter().enumerate().all(|(at, byte)| unsafe { *data.add(at) == *byte });
    if starts_with(elf::MAGIC) {
        // SAFETY: the magic says that an ELF header follows, and the caller that the image is whole.
        let bytes = unsafe { elf::whole(data) }?;
        return Code::Elf(bytes).parse();
    }
    if starts_with(&fatbin::MAGIC.to_le_bytes()) {
        // SAFETY: as above, for a fat binary.
        let bytes = unsafe { fatbin::whole(data) };
        return fatbin::parse(bytes, device_architecture);
    }
    if starts_with(&fatbin::WRAPPER_MAGIC.to_le_bytes()) {
        // SAFETY: a wrapper holds a pointer to a whole fat binary; its pointer field is naturally aligned within the struct.
        let inner = unsafe { data.add(fatbin::WRAPPER_DATA_OFFSET).cast::<*const u8>().read_unaligned() };
        if inner.is_null() {
            return Err(status::INVALID_IMAGE);
        }
        // SAFETY: `inner` is what nvcc put there: a whole fat binary.
        let bytes = unsafe { fatbin::whole(inner) };
        return fatbin::parse(bytes, device_architecture);
    }
    // SAFETY: not binary, so a NUL-terminated text by the caller's word.
    let text = unsafe { std::ffi::CStr::from_ptr(data.cast()) };
    Code::Ptx(text.to_bytes()).parse()
}

/// Reads an image whose bytes are all here (a file's content).
pub fn load_bytes(bytes: &[u8], device_architecture: u32) -> Result<Image> {
    if bytes.starts_with(elf::MAGIC) {
        Code::Elf(bytes).parse()
    } else if bytes.starts_with(&fatbin::MAGIC.to_le_bytes()) {
        fatbin::parse(bytes, device_architecture)
    } else {
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        Code::Ptx(text).parse()
    }
}
