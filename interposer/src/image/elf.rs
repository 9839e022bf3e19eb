//! Cubins: 64-bit ELF files. The section headers tell how much memory a cubin needs.

use super::{Need, Part, u16_at, u32_at, u64_at};

/// First word of an ELF file.
pub const MAGIC: u32 = u32::from_le_bytes(*b"\x7fELF");
const EM_CUDA: u16 = 190;
const HEADER_BYTES: usize = 64;
const SECTION_BYTES: usize = 64;
/// Limit for the table of names. Longer tables are not read.
const MOST_NAME_BYTES: u64 = 64 << 20;

/// Returns a cubin's need, or `None` if the file is no cubin.
pub fn need(file: &Part<'_>) -> Option<Need> {
    let header = file.array::<HEADER_BYTES>(0)?;
    if u16_at(&header, 18)? != EM_CUDA || usize::from(u16_at(&header, 58)?) != SECTION_BYTES {
        return None;
    }
    let (offset, count) = (u64_at(&header, 40)?, usize::from(u16_at(&header, 60)?));
    let sections = file.bytes(offset, count.checked_mul(SECTION_BYTES)?)?;
    let section = |number: usize| sections.chunks_exact(SECTION_BYTES).nth(number);
    let names = section(usize::from(u16_at(&header, 62)?))?;
    let names_bytes = u64_at(names, 32).filter(|bytes| *bytes <= MOST_NAME_BYTES)?;
    let names = file.bytes(u64_at(names, 24)?, usize::try_from(names_bytes).ok()?)?;
    let mut need = Need::default();
    for section in sections.chunks_exact(SECTION_BYTES) {
        let name = names.get(u32_at(section, 0)? as usize..)?;
        let (bytes, align_bytes) = (u64_at(section, 32)?, u64_at(section, 48)?.max(1));
        if name.starts_with(b".nv.global") || name.starts_with(b".nv.constant3") {
            let at = need.data_bytes.checked_next_multiple_of(align_bytes)?;
            need.data_bytes = at.checked_add(bytes)?;
        } else if name.starts_with(b".text.") {
            need.text_bytes = need.text_bytes.checked_add(bytes)?;
        }
    }
    Some(need)
}
