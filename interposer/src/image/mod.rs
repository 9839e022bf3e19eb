//! Code images as a job passes them to the driver, and how much GPU memory they say that they need.
//! Images are cubins, fat binaries, PTX, and the wrapper that nvcc puts around fat binaries.
//!
//! Images are read as files, even images in memory. Their headers may be wrong, and a read behind
//! the end of a mapping must fail instead of crashing. Compressed objects are not read.

mod elf;
mod ptx;

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use crate::os::{self, Uncancelled};

/// First word of a fat binary.
const FATBIN_MAGIC: u32 = 0xBA55_ED50;
/// First word of nvcc's wrapper (`__fatBinC_Wrapper_t`), and the offset of its pointer to the fat
/// binary.
const WRAPPER_MAGIC: u32 = 0x4662_43B1;
const WRAPPER_DATA_OFFSET: u64 = 8;
/// Sizes of the headers of a fat binary and of an object in it, as far as they are read here.
const FATBIN_HEADER_BYTES: usize = 16;
const ENTRY_HEADER_BYTES: usize = 64;
const KIND_PTX: u16 = 1;
const KIND_ELF: u16 = 2;
/// Flags of an object that is compressed by LZ4 or by zstd.
const COMPRESSED: u64 = 0x2000 | 0x8000;
/// Limit for the number of objects. No fat binary has more.
const MOST_ENTRIES: u32 = 1 << 16;
/// Limit for the length of a text. Longer texts are not read.
const MOST_TEXT_BYTES: usize = 64 << 20;
/// Number of bytes that are read at a time from a text of unknown length.
const TEXT_CHUNK_BYTES: usize = 64 << 10;

/// GPU memory that an image needs, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Need {
    /// Global and constant variables.
    pub data_bytes: u64,
    /// Instructions of the kernels, if they are compiled.
    pub text_bytes: u64,
}

/// The place of an image.
pub struct Source {
    file: File,
    at: u64,
    is_memory: bool,
    // Declared last, so that it is dropped after the file is closed.
    _uncancelled: Uncancelled,
}

impl Source {
    /// Returns the image at an address of this process. Returns `None` if the memory cannot be
    /// read.
    pub fn memory(address: usize) -> Option<Self> {
        let uncancelled = os::uncancelled();
        // A process that hides its memory from others may be unable to open its own memory file.
        let file = File::open("/proc/self/mem").ok().filter(|_| address != 0)?;
        Some(Self { file, at: address as u64, is_memory: true, _uncancelled: uncancelled })
    }

    /// Returns the image in a file. Returns `None` if there is no regular file of that name.
    pub fn file(path: &Path) -> Option<Self> {
        let uncancelled = os::uncancelled();
        // If the path is no regular file, opening it must not block.
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
        let is_plain = file.metadata().is_ok_and(|file| file.is_file());
        is_plain.then_some(Self { file, at: 0, is_memory: false, _uncancelled: uncancelled })
    }

    /// Returns the image's need on a GPU of that compute capability (ten times major plus minor).
    /// Returns `None` if the image does not say.
    pub fn need(&self, capability: u32) -> Option<Need> {
        match self.object(capability)? {
            Object::Cubin(cubin) => elf::need(&cubin),
            Object::Text(text) => ptx::need(&text),
        }
    }

    /// Returns the text, if the driver would use PTX of the image on such a GPU.
    pub fn ptx(&self, capability: u32) -> Option<Vec<u8>> {
        match self.object(capability)? {
            Object::Text(text) => ptx::need(&text).map(|_| text),
            Object::Cubin(_) => None,
        }
    }

    /// Returns the object of the image that the driver would use. Returns `None` if there is none,
    /// or if a fat binary's object is compressed.
    fn object(&self, capability: u32) -> Option<Object<'_>> {
        let whole = Part { source: self, at: self.at };
        match u32::from_le_bytes(whole.array(0)?) {
            elf::MAGIC => Some(Object::Cubin(whole)),
            FATBIN_MAGIC => fatbin(&whole, capability),
            WRAPPER_MAGIC if self.is_memory => {
                let at = u64::from_le_bytes(whole.array(WRAPPER_DATA_OFFSET)?);
                fatbin(&Part { source: self, at }, capability)
            }
            _ => whole.text(None).map(Object::Text),
        }
    }
}

/// An object in an image.
enum Object<'a> {
    Cubin(Part<'a>),
    Text(Vec<u8>),
}

/// A part of an image: everything from a place of its source on.
pub struct Part<'a> {
    source: &'a Source,
    at: u64,
}

impl Part<'_> {
    /// Reads the bytes from offset `at`, until the end of the source at most. Returns the number of
    /// bytes read.
    fn read(&self, at: u64, to: &mut [u8]) -> Option<usize> {
        let at = self.at.checked_add(at)?;
        let mut done = 0;
        while done < to.len() {
            match self.source.file.read_at(&mut to[done..], at.checked_add(done as u64)?) {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) if done != 0 => break,
                Err(_) => return None,
            }
        }
        Some(done)
    }

    fn bytes(&self, at: u64, bytes: usize) -> Option<Vec<u8>> {
        let mut read = Vec::new();
        read.try_reserve_exact(bytes).ok()?;
        read.resize(bytes, 0);
        (self.read(at, &mut read)? == bytes).then_some(read)
    }

    fn array<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        let mut read = [0; N];
        (self.read(at, &mut read)? == N).then_some(read)
    }

    /// Reads text, up to `bytes` bytes or up to its NUL.
    fn text(&self, bytes: Option<usize>) -> Option<Vec<u8>> {
        let most = bytes.unwrap_or(MOST_TEXT_BYTES).min(MOST_TEXT_BYTES);
        let mut text = Vec::new();
        while text.len() < most {
            let mut chunk = vec![0; TEXT_CHUNK_BYTES.min(most - text.len())];
            let read = self.read(text.len() as u64, &mut chunk)?;
            chunk.truncate(read);
            let end = chunk.iter().position(|byte| *byte == 0);
            text.extend_from_slice(&chunk[..end.unwrap_or(read)]);
            if end.is_some() || read == 0 {
                return Some(text);
            }
        }
        bytes.map(|_| text)
    }
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    word(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    word(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    word(bytes, at).map(u64::from_le_bytes)
}

/// Returns the object of a fat binary that the driver chooses. It prefers code for exactly this
/// GPU, then code for an older GPU of the family, then PTX.
fn fatbin<'a>(file: &Part<'a>, capability: u32) -> Option<Object<'a>> {
    let header = file.array::<FATBIN_HEADER_BYTES>(0)?;
    let header_bytes = u64::from(u16_at(&header, 6)?);
    let end = header_bytes.checked_add(u64_at(&header, 8)?)?;
    let mut at = header_bytes;
    let mut best: Option<(u32, u16, u64, u64, u64)> = None;
    for _ in 0..MOST_ENTRIES {
        if at >= end {
            break;
        }
        let entry = file.array::<ENTRY_HEADER_BYTES>(at)?;
        let (kind, architecture, flags) = (u16_at(&entry, 0)?, u32_at(&entry, 28)?, u64_at(&entry, 40)?);
        let (entry_bytes, payload_bytes) = (u64::from(u32_at(&entry, 4)?), u64_at(&entry, 8)?);
        let rank = match kind {
            KIND_ELF if architecture / 10 == capability / 10 && architecture <= capability => Some(2000),
            KIND_PTX if architecture <= capability => Some(1000),
            _ => None,
        };
        let payload = at.checked_add(entry_bytes)?;
        if let Some(rank) = rank.map(|rank| rank + architecture)
            && best.is_none_or(|(previous, ..)| rank > previous)
        {
            best = Some((rank, kind, flags, payload, payload_bytes));
        }
        let next = payload.checked_add(payload_bytes)?;
        if next <= at {
            return None;
        }
        at = next;
    }
    let (_, kind, flags, payload, payload_bytes) = best?;
    if flags & COMPRESSED != 0 {
        return None;
    }
    let object = Part { source: file.source, at: file.at.checked_add(payload)? };
    match kind {
        KIND_ELF => Some(Object::Cubin(object)),
        _ => object.text(usize::try_from(payload_bytes).ok()).map(Object::Text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn images() -> PathBuf {
        // The fuzz targets compile this file too, so the folder is searched in all parents.
        let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
        let mut images = folders.map(|folder| folder.join("tests/simgpu/cuda/tests/images"));
        images.find(|images| images.is_dir()).unwrap()
    }

    fn of_file(name: &str) -> Option<Need> {
        Source::file(&images().join(name))?.need(90)
    }

    fn of_memory(bytes: &[u8]) -> Option<Need> {
        Source::memory(bytes.as_ptr() as usize)?.need(90)
    }

    /// Returns a fat binary with one uncompressed object.
    fn fatbin_of(kind: u16, architecture: u32, object: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; FATBIN_HEADER_BYTES + ENTRY_HEADER_BYTES];
        bytes[..4].copy_from_slice(&FATBIN_MAGIC.to_le_bytes());
        bytes[6..8].copy_from_slice(&(FATBIN_HEADER_BYTES as u16).to_le_bytes());
        bytes[8..16].copy_from_slice(&((ENTRY_HEADER_BYTES + object.len()) as u64).to_le_bytes());
        let entry = &mut bytes[FATBIN_HEADER_BYTES..];
        entry[..2].copy_from_slice(&kind.to_le_bytes());
        entry[4..8].copy_from_slice(&(ENTRY_HEADER_BYTES as u32).to_le_bytes());
        entry[8..16].copy_from_slice(&(object.len() as u64).to_le_bytes());
        entry[28..32].copy_from_slice(&architecture.to_le_bytes());
        bytes.extend_from_slice(object);
        bytes
    }

    #[test]
    fn a_cubin_says_what_it_takes_in_a_file_in_memory_and_in_a_fat_binary() {
        let cubin = std::fs::read(images().join("kernels.cubin")).unwrap();
        let need = of_file("kernels.cubin").unwrap();
        // The cubin has three variables, of 4, 64 and 4 bytes.
        assert!((72..256).contains(&need.data_bytes) && need.text_bytes > 0, "{need:?}");
        assert_eq!(of_memory(&cubin), Some(need));
        let fat = fatbin_of(KIND_ELF, 90, &cubin);
        assert_eq!(of_memory(&fat), Some(need));
        let mut wrapper = [0_u8; 24];
        wrapper[..4].copy_from_slice(&WRAPPER_MAGIC.to_le_bytes());
        wrapper[8..16].copy_from_slice(&(fat.as_ptr() as u64).to_le_bytes());
        assert_eq!(of_memory(&wrapper), Some(need));
        assert_eq!(of_memory(&fatbin_of(KIND_ELF, 100, &cubin)), None, "for another GPU");
    }

    #[test]
    fn ptx_is_found_as_the_text_that_the_driver_would_compile() {
        let text = b".version 8.5\n.target sm_90\n.global .u32 a;";
        let ptx = |bytes: &[u8]| Source::memory(bytes.as_ptr() as usize)?.ptx(90);
        assert_eq!(ptx(&[text, &b"\0"[..]].concat()).as_deref(), Some(&text[..]));
        assert_eq!(ptx(&fatbin_of(KIND_PTX, 90, text)).as_deref(), Some(&text[..]));
        assert_eq!(ptx(&fatbin_of(KIND_PTX, 100, text)), None, "for a newer GPU");
        assert_eq!(ptx(b"no code at all\0"), None);
        assert_eq!(ptx(&std::fs::read(images().join("kernels.cubin")).unwrap()), None);
    }

    #[test]
    fn what_is_compressed_or_no_image_says_nothing() {
        for name in ["zstd.fatbin", "lz4.fatbin", "nothing.cubin"] {
            assert_eq!(of_file(name), None, "{name}");
        }
        assert_eq!(of_memory(b"no code at all\0"), None);
        assert_eq!(Source::memory(8).unwrap().need(90), None, "nobody's memory");
        assert!(Source::memory(0).is_none());
        assert!(Source::file(Path::new("/dev/null")).is_none());
    }

    #[test]
    fn a_cubin_of_which_a_part_is_missing_or_wrong_says_nothing_false_for_long() {
        let cubin = std::fs::read(images().join("kernels.cubin")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("changed");
        for length in 0..cubin.len().min(2048) {
            std::fs::write(&path, &cubin[..length]).unwrap();
            let _ = Source::file(&path).unwrap().need(90);
        }
        for at in 0..64 {
            let mut changed = cubin.clone();
            changed[at] ^= 0xff;
            let _ = of_memory(&changed);
        }
        // Random bytes change anywhere, also behind the headers.
        let mut random = 1_u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize
        };
        for image in [cubin.clone(), fatbin_of(KIND_ELF, 90, &cubin)] {
            for _ in 0..2000 {
                let mut changed = image.clone();
                for _ in 0..4 {
                    let at = next() % changed.len();
                    changed[at] = next() as u8;
                }
                let _ = of_memory(&changed);
            }
        }
    }
}
