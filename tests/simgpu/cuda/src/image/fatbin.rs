//! Fat binaries: several code objects for several architectures, each possibly compressed.
use std::io::Read;

use super::{Code, Image};
use crate::status::{self, Result};

/// First word of a fat binary.
pub const MAGIC: u32 = 0xBA55_ED50;
/// First word of nvcc's struct around a fat binary (`__fatBinC_Wrapper_t`).
pub const WRAPPER_MAGIC: u32 = 0x4662_43B1;
/// Offset of the pointer to the fat binary in nvcc's struct.
pub const WRAPPER_DATA_OFFSET: usize = 8;

const FILE_HEADER_BYTES: usize = 16;
/// Smallest header of an object: it contains all fields that this file reads.
const ENTRY_HEADER_BYTES: usize = 64;
const KIND_PTX: u16 = 1;
const KIND_ELF: u16 = 2;
const FLAG_LZ4: u64 = 0x2000;
const FLAG_ZSTD: u64 = 0x8000;
/// Upper bound on the size of a compressed object. A larger size comes from a damaged header.
const MAX_OBJECT_BYTES: usize = 1 << 32;
/// The most bytes that one byte of an LZ4 block can stand for. By the LZ4 block format each byte of
/// a match's length adds at most 255.
const LZ4_RATIO: usize = 255;

/// The fields of an object's header that the driver needs.
struct Entry<'a> {
    kind: u16,
    architecture: u32,
    flags: u64,
    payload: &'a [u8],
    compressed_bytes: usize,
    original_bytes: usize,
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
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

fn entry(bytes: &[u8]) -> Option<(Entry<'_>, &[u8])> {
    // A shorter header is invalid. A header of length 0 would make the loop read the same entry for
    // ever.
    let header_bytes = Some(u32_at(bytes, 4)? as usize).filter(|bytes| *bytes >= ENTRY_HEADER_BYTES)?;
    let payload_bytes = usize::try_from(u64_at(bytes, 8)?).ok()?;
    let end = header_bytes.checked_add(payload_bytes)?;
    let found = Entry {
        kind: u16_at(bytes, 0)?,
        architecture: u32_at(bytes, 28)?,
        flags: u64_at(bytes, 40)?,
        payload: bytes.get(header_bytes..end)?,
        compressed_bytes: u32_at(bytes, 16)? as usize,
        original_bytes: usize::try_from(u64_at(bytes, 56)?).ok()?,
    };
    Some((found, &bytes[end..]))
}

impl Entry<'_> {
    fn expand(&self) -> Result<Vec<u8>> {
        let packed = self.payload.get(..self.compressed_bytes).ok_or(status::INVALID_IMAGE)?;
        status::refuse_as(self.original_bytes > MAX_OBJECT_BYTES, status::INVALID_IMAGE)?;
        if self.flags & FLAG_ZSTD != 0 {
            let decoder =
                ruzstd::decoding::StreamingDecoder::new(packed).map_err(|_| status::INVALID_IMAGE)?;
            let mut plain = Vec::new();
            // Limits the output to the size in the header, because a few bytes can expand to any
            // number.
            let mut decoder = decoder.take(self.original_bytes as u64);
            decoder.read_to_end(&mut plain).map_err(|_| status::INVALID_IMAGE)?;
            return Ok(plain);
        }
        // The decompressor allocates the whole size at once, so a few bytes must not claim any
        // number.
        if self.original_bytes > packed.len().saturating_mul(LZ4_RATIO) {
            return Err(status::INVALID_IMAGE);
        }
        lz4_flex::block::decompress(packed, self.original_bytes).map_err(|_| status::INVALID_IMAGE)
    }

    fn parse(&self) -> Result<Image> {
        let expanded;
        let bytes = if self.flags & (FLAG_LZ4 | FLAG_ZSTD) != 0 {
            expanded = self.expand()?;
            &expanded
        } else {
            self.payload
        };
        if self.kind == KIND_ELF {
            Code::Elf(bytes).parse()
        } else {
            Code::Ptx(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).parse()
        }
    }

    /// Returns the rank of the object for a device; a higher rank suits better. Code for exactly
    /// the device ranks first, then older code of the same family, then PTX. Returns `None` if the
    /// object cannot run on the device.
    fn rank(&self, device: u32) -> Option<u32> {
        let same_family = self.architecture / 10 == device / 10;
        match self.kind {
            KIND_ELF if same_family && self.architecture <= device => Some(2000 + self.architecture),
            KIND_PTX if self.architecture <= device => Some(1000 + self.architecture),
            _ => None,
        }
    }
}

/// Returns the whole fat binary at `data`, by the length in its header.
///
/// # Safety
/// `data` points at a fat binary with the true length in its header, valid for `'a`.
pub unsafe fn whole<'a>(data: *const u8) -> &'a [u8] {
    // SAFETY: the header is FILE_HEADER_BYTES long in every version.
    let header = unsafe { std::slice::from_raw_parts(data, FILE_HEADER_BYTES) };
    let header_bytes = u16_at(header, 6).map_or(0, usize::from);
    let body_bytes = u64_at(header, 8).map_or(0, |bytes| bytes as usize);
    // SAFETY: the caller promises that the lengths in the header are right.
    unsafe { std::slice::from_raw_parts(data, header_bytes + body_bytes) }
}

/// Reads the object that suits a device best. Without a suitable object the error is
/// `NO_BINARY_FOR_GPU`.
pub fn parse(bytes: &[u8], device_architecture: u32) -> Result<Image> {
    let header_bytes = u16_at(bytes, 6).map(usize::from).ok_or(status::INVALID_IMAGE)?;
    let mut rest = bytes.get(header_bytes..).ok_or(status::INVALID_IMAGE)?;
    let mut best: Option<(u32, Entry<'_>)> = None;
    while let Some((found, after)) = entry(rest) {
        if let Some(rank) = found.rank(device_architecture)
            && best.as_ref().is_none_or(|(previous, _)| rank > *previous)
        {
            best = Some((rank, found));
        }
        rest = after;
    }
    best.ok_or(status::NO_BINARY_FOR_GPU)?.1.parse()
}
