//! Cubins: 64-bit ELF files of machine EM_CUDA.
//!
//! A kernel is a function symbol marked as an entry. Attribute records in `.nv.info.<kernel>` hold
//! its parameters and limits.
use std::collections::HashMap;

use object::elf::{FileHeader64, STT_FUNC, STT_OBJECT};
use object::read::elf::{ElfFile, FileHeader};
use object::{LittleEndian, Object, ObjectSection, ObjectSymbol, SectionIndex, SymbolFlags};

use super::{GlobalImage, Image, KernelImage, Parameter};
use crate::status::{self, Result};

/// First bytes of an ELF file.
pub const MAGIC: &[u8] = b"\x7fELF";

const EM_CUDA: u16 = 190;
/// Bit of a symbol's `st_other` that marks a kernel.
const ENTRY_SYMBOL: u8 = 0x10;
/// Bit of a symbol's `st_other` that marks a managed variable.
const MANAGED_SYMBOL: u8 = 0x04;
const HEADER_BYTES: usize = 64;
/// Offset of the ELF header's ABI version byte. The version tells where `e_flags` holds the
/// architecture.
const ABI_VERSION_OFFSET: usize = 8;
/// From this ABI version on the second byte of `e_flags` holds the architecture.
const WIDE_ARCHITECTURE_ABI: u8 = 8;

// Attribute records: format, attribute, then a 16-bit value, or a 16-bit size and as many bytes.
const FORMAT_SIZED: u8 = 0x04;
const ATTRIBUTE_MAX_THREADS: u8 = 0x05;
const ATTRIBUTE_REQUIRED_THREADS: u8 = 0x10;
const ATTRIBUTE_KERNEL_PARAMETER: u8 = 0x17;
const ATTRIBUTE_FRAME_SIZE: u8 = 0x11;
const ATTRIBUTE_REGISTERS: u8 = 0x2f;
const ATTRIBUTE_KERNEL_PARAMETER_V2: u8 = 0x45;
/// From this architecture on, the section of a kernel's shared memory includes the part that the
/// CUDA system reserves in each block.
const RESERVED_SHARED_ARCHITECTURE: u32 = 90;
/// Length of the part of shared memory that the CUDA system reserves in each block.
const RESERVED_SHARED_BYTES: u32 = 1024;
/// Bit position of the size in the last word of a parameter record.
const PARAMETER_SIZE_SHIFT: u32 = 18;

/// Returns the whole file at `data`, by the lengths in its headers.
///
/// # Safety
/// `data` points at a whole ELF file, valid for `'a`.
pub unsafe fn whole<'a>(data: *const u8) -> Result<&'a [u8]> {
    // SAFETY: an ELF file begins with its header.
    let header = unsafe { std::slice::from_raw_parts(data, HEADER_BYTES) };
    let header = FileHeader64::<LittleEndian>::parse(header).map_err(|_| status::INVALID_IMAGE)?;
    let endian = LittleEndian;
    let table_end =
        |offset: u64, entry: u16, count: u16| offset as usize + usize::from(entry) * usize::from(count);
    let sections_end = table_end(header.e_shoff(endian), header.e_shentsize(endian), header.e_shnum(endian));
    let segments_end = table_end(header.e_phoff(endian), header.e_phentsize(endian), header.e_phnum(endian));
    let mut end = sections_end.max(segments_end).max(HEADER_BYTES);
    // SAFETY: both tables belong to the file.
    let known = unsafe { std::slice::from_raw_parts(data, end) };
    let sections = header.section_headers(endian, known).map_err(|_| status::INVALID_IMAGE)?;
    for section in sections {
        if section.sh_type.get(endian) != object::elf::SHT_NOBITS {
            end = end.max((section.sh_offset.get(endian) + section.sh_size.get(endian)) as usize);
        }
    }
    // SAFETY: every section with bytes in the file belongs to the file.
    Ok(unsafe { std::slice::from_raw_parts(data, end) })
}

/// Prefix of the sections that hold kernels' instructions.
const TEXT: &str = ".text.";

/// Returns whether a section holds global or constant variables.
fn holds_variables(section: &str) -> bool {
    section.starts_with(".nv.global") || section.starts_with(".nv.constant3")
}

/// Returns the records of one `.nv.info` section that have bytes behind the record's size.
fn sized_records(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        loop {
            let [format, attribute, low, high] = *bytes.first_chunk()?;
            bytes = &bytes[4..];
            if format != FORMAT_SIZED {
                continue;
            }
            let (value, rest) = bytes.split_at_checked(usize::from(u16::from_le_bytes([low, high])))?;
            bytes = rest;
            return Some((attribute, value));
        }
    })
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}

fn read_kernel_attributes(kernel: &mut KernelImage, info: &[u8]) {
    let mut parameters = Vec::new();
    for (attribute, value) in sized_records(info) {
        let words = words(value);
        match (attribute, words.as_slice()) {
            (ATTRIBUTE_MAX_THREADS | ATTRIBUTE_REQUIRED_THREADS, [x, y, z]) => {
                kernel.max_threads = Some(x.saturating_mul(*y).saturating_mul(*z))
            }
            (ATTRIBUTE_KERNEL_PARAMETER, [_, place, layout]) => {
                parameters.push((
                    place & 0xffff,
                    (place >> 16) as usize,
                    (layout >> PARAMETER_SIZE_SHIFT) as usize,
                ));
            }
            (ATTRIBUTE_KERNEL_PARAMETER_V2, [_, place, size, ..]) => {
                parameters.push((place & 0xffff, (place >> 16) as usize, *size as usize));
            }
            _ => {}
        }
    }
    parameters.sort_unstable();
    kernel.parameters = parameters
        .into_iter()
        .map(|(_, offset_bytes, size_bytes)| Parameter { offset_bytes, size_bytes })
        .collect();
}

/// Reads a cubin's kernels and variables.
pub fn parse(bytes: &[u8]) -> Result<Image> {
    let file = ElfFile::<FileHeader64<LittleEndian>>::parse(bytes).map_err(|_| status::INVALID_IMAGE)?;
    let header = file.elf_header();
    status::refuse_as(header.e_machine(LittleEndian) != EM_CUDA, status::INVALID_IMAGE)?;
    let flags = header.e_flags(LittleEndian);
    let abi = bytes.get(ABI_VERSION_OFFSET).copied().unwrap_or(0);
    let architecture = if abi >= WIDE_ARCHITECTURE_ABI { flags >> 8 & 0xff } else { flags & 0xff };
    let mut image = Image { architecture, ..Image::default() };

    let mut infos: HashMap<&str, &[u8]> = HashMap::new();
    let mut sizes: HashMap<&str, u64> = HashMap::new();
    // Offset of each section of variables in the image's data.
    let mut places: HashMap<SectionIndex, u64> = HashMap::new();
    for section in file.sections() {
        if let Ok(name) = section.name() {
            sizes.insert(name, section.size());
            if holds_variables(name) {
                places.insert(section.index(), image.place(section.align(), section.size())?);
            } else if name.starts_with(TEXT) {
                image.text_bytes = image.text_bytes.saturating_add(section.size());
            }
            if name.starts_with(".nv.info") {
                infos.insert(name, section.data().unwrap_or_default());
            }
        }
    }
    // Records about all kernels name each kernel by the number of its symbol.
    let by_symbol = |wanted: u8| -> HashMap<u32, u32> {
        sized_records(infos.get(".nv.info").copied().unwrap_or_default())
            .filter(|(attribute, _)| *attribute == wanted)
            .filter_map(|(_, value)| match words(value).as_slice() {
                [symbol, count] => Some((*symbol, *count)),
                _ => None,
            })
            .collect()
    };
    let (registers, frames) = (by_symbol(ATTRIBUTE_REGISTERS), by_symbol(ATTRIBUTE_FRAME_SIZE));
    let reserved_bytes = if architecture >= RESERVED_SHARED_ARCHITECTURE { RESERVED_SHARED_BYTES } else { 0 };

    for symbol in file.symbols() {
        let (Ok(name), SymbolFlags::Elf { st_info, st_other }) = (symbol.name(), symbol.flags()) else {
            continue;
        };
        let section = symbol.section_index().and_then(|index| file.section_by_index(index).ok());
        let Some(section) = section else { continue };
        if st_info & 0xf == STT_FUNC && st_other & ENTRY_SYMBOL != 0 {
            let size_of =
                |prefix: &str| sizes.get(format!("{prefix}{name}").as_str()).map_or(0, |bytes| *bytes as u32);
            let of_symbol =
                |table: &HashMap<u32, u32>| table.get(&(symbol.index().0 as u32)).copied().unwrap_or(0);
            let mut kernel = KernelImage {
                name: name.to_owned(),
                parameters: Vec::new(),
                shared_bytes: size_of(".nv.shared.").saturating_sub(reserved_bytes),
                const_bytes: 0,
                local_bytes: of_symbol(&frames),
                registers: of_symbol(&registers),
                max_threads: None,
            };
            read_kernel_attributes(
                &mut kernel,
                infos.get(format!(".nv.info.{name}").as_str()).copied().unwrap_or_default(),
            );
            image.kernels.push(kernel);
        } else if st_info & 0xf == STT_OBJECT {
            let place = places.get(&section.index()).filter(|_| symbol.size() != 0);
            let inside = symbol.address().checked_sub(section.address());
            let Some((place, inside)) = place.zip(inside) else { continue };
            if inside.checked_add(symbol.size()).is_none_or(|end| end > section.size()) {
                continue;
            }
            let bytes_at = |data: &'_ [u8]| {
                let start = symbol.address().checked_sub(section.address())?;
                let end = start.checked_add(symbol.size())?;
                data.get(start as usize..end as usize).map(<[u8]>::to_vec)
            };
            let initial = section.data().ok().and_then(bytes_at).unwrap_or_default();
            image.globals.push(GlobalImage {
                name: name.to_owned(),
                offset_bytes: place + inside,
                size_bytes: symbol.size() as usize,
                initial,
                managed: st_other & MANAGED_SYMBOL != 0,
            });
        }
    }
    Ok(image)
}
