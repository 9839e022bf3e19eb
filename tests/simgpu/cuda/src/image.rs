//! Device code from clients: PTX text, cubins, fat binaries, and nvcc's wrapper around fat
//! binaries.
//!
//! Nothing is compiled or run. The image holds only what programs can query: kernels' names,
//! parameters and limits, and global variables with their initial bytes.
mod elf;
mod fatbin;
mod ptx;

use crate::status::{self, Result};

/// One parameter of a kernel, as it lies in the argument buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Offset in the argument buffer.
    pub offset_bytes: usize,
    /// Length.
    pub size_bytes: usize,
}

/// One kernel of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelImage {
    /// Symbol of the kernel.
    pub name: String,
    /// Parameters in order.
    pub parameters: Vec<Parameter>,
    /// Static shared memory of a block.
    pub shared_bytes: u32,
    /// Constant memory of the kernel itself.
    pub const_bytes: u32,
    /// Local memory of a thread.
    pub local_bytes: u32,
    /// Registers of a thread, number.
    pub registers: u32,
    /// Largest number of threads in a block, if the code declares one.
    pub max_threads: Option<u32>,
}

/// One global or constant variable of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GlobalImage {
    /// Symbol of the variable.
    pub name: String,
    /// Offset in the image's data.
    pub offset_bytes: u64,
    /// Length.
    pub size_bytes: usize,
    /// Initial bytes; empty means zeros.
    pub initial: Vec<u8>,
    /// Whether the variable is `__managed__`: the host may use its address too.
    pub managed: bool,
}

/// The driver's knowledge of a loaded image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// The kernels, in the image's order.
    pub kernels: Vec<KernelImage>,
    /// The variables.
    pub globals: Vec<GlobalImage>,
    /// Bytes that the image's variables need together, alignment included.
    pub data_bytes: u64,
    /// Length of the kernels' instructions; 0 for code that is not compiled.
    pub text_bytes: u64,
    /// PTX ISA version: ten times major plus minor; 0 for code that never was PTX.
    pub ptx_version: u32,
    /// Compute capability of the code: ten times major plus minor.
    pub architecture: u32,
}

/// One code object with a known length.
pub(crate) enum Code<'a> {
    /// A code object in PTX text.
    Ptx(&'a [u8]),
    /// A code object in the form of a cubin.
    Elf(&'a [u8]),
}

impl Image {
    /// Reserves room behind all data placed so far. Returns the room's offset.
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

/// Reads the image at `data`. Only the image's own headers tell its length.
///
/// # Safety
/// `data` points at a whole image of one of the known kinds, or at a NUL-terminated text.
pub unsafe fn load(data: *const u8, device_architecture: u32) -> Result<Image> {
    status::refuse(data.is_null())?;
    // SAFETY: every image kind is at least this long. A shorter text has a NUL within the compared
    // bytes, and the comparison stops there because it goes in order.
    let starts_with =
        |magic: &[u8]| magic.iter().enumerate().all(|(at, byte)| unsafe { *data.add(at) == *byte });
    if starts_with(elf::MAGIC) {
        // SAFETY: the magic shows that an ELF header follows. The caller promises that the image is
        // whole.
        let bytes = unsafe { elf::whole(data) }?;
        return Code::Elf(bytes).parse();
    }
    if starts_with(&fatbin::MAGIC.to_le_bytes()) {
        // SAFETY: as above, for a fat binary.
        let bytes = unsafe { fatbin::whole(data) };
        return fatbin::parse(bytes, device_architecture);
    }
    if starts_with(&fatbin::WRAPPER_MAGIC.to_le_bytes()) {
        // SAFETY: a wrapper contains a pointer to a whole fat binary at this offset; the read needs
        // no alignment.
        let inner = unsafe { data.add(fatbin::WRAPPER_DATA_OFFSET).cast::<*const u8>().read_unaligned() };
        status::refuse_as(inner.is_null(), status::INVALID_IMAGE)?;
        // SAFETY: nvcc made `inner` point at a whole fat binary.
        let bytes = unsafe { fatbin::whole(inner) };
        return fatbin::parse(bytes, device_architecture);
    }
    // SAFETY: `data` is none of the binary kinds, so the caller promises a NUL-terminated text.
    let text = unsafe { std::ffi::CStr::from_ptr(data.cast()) };
    Code::Ptx(text.to_bytes()).parse()
}

/// Reads an image whose bytes are all given (a file's content).
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
