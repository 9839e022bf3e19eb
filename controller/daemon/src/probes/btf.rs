//! Finds the fields of the running kernel's structs, from the type information (BTF) that the
//! kernel publishes.
//!
//! The format: <https://docs.kernel.org/bpf/btf.html>.

use std::path::Path;

/// File with the kernel's types.
const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";
/// The first two bytes of the type information, in this machine's byte order.
const MAGIC: u16 = 0xeb9f;
const HEADER_BYTES: usize = 24;
const TYPE_BYTES: usize = 12;
const MEMBER_BYTES: usize = 12;
/// The depth to which the search enters structs inside structs.
const MAX_DEPTH: usize = 8;
const BITS: u32 = 8;
/// In a struct with bit fields, the bits of a member's offset word that contain the offset.
const OFFSET_MASK: u32 = 0x00ff_ffff;

/// The numbers of the kinds of types in the format BTF.
mod kind {
    pub const INT: u32 = 1;
    pub const ARRAY: u32 = 3;
    pub const STRUCT: u32 = 4;
    pub const UNION: u32 = 5;
    pub const ENUM: u32 = 6;
    pub const FUNC_PROTO: u32 = 13;
    pub const VAR: u32 = 14;
    pub const DATASEC: u32 = 15;
    pub const DECL_TAG: u32 = 17;
    pub const ENUM64: u32 = 19;
}

/// The reason for which the daemon does not know the offsets.
#[derive(Debug, thiserror::Error)]
pub enum BtfError {
    /// The kernel publishes no description of its types.
    #[error("cannot read {KERNEL_TYPES} ({0}); the kernel needs CONFIG_DEBUG_INFO_BTF")]
    Unreadable(std::io::Error),
    /// The kernel's description of its types has another format than expected.
    #[error("{KERNEL_TYPES} is malformed at byte {0}")]
    Malformed(usize),
    /// The kernel's structs have other members than expected.
    #[error("this kernel has no `{structure}.{member}`")]
    Missing {
        /// The struct's name.
        structure: &'static str,
        /// The missing member.
        member: &'static str,
    },
}

/// The globals of the eBPF programs that hold offsets. Each global holds the sum of the offsets
/// of these fields.
const OFFSETS: [(&str, &[(&str, &str)]); 12] = [
    ("TASK_FILES", &[("task_struct", "files")]),
    ("TASK_LEADER", &[("task_struct", "group_leader")]),
    ("TASK_STARTED", &[("task_struct", "start_boottime")]),
    ("TASK_TGID", &[("task_struct", "tgid")]),
    ("TASK_PID", &[("task_struct", "pid")]),
    ("FILES_FDT", &[("files_struct", "fdt")]),
    ("FDT_MAX", &[("fdtable", "max_fds")]),
    ("FDT_FD", &[("fdtable", "fd")]),
    ("FILE_INODE", &[("file", "f_inode")]),
    ("INODE_RDEV", &[("inode", "i_rdev")]),
    ("INODE_MODE", &[("inode", "i_mode")]),
    ("TASK_STATUS", &[("task_struct", "thread_info"), ("thread_info", "status")]),
];

/// Returns the offsets, in bytes, of fields in the running kernel's structs, by the names of the
/// globals that hold them.
///
/// # Errors
/// [`BtfError`], which says what is missing.
pub fn offsets() -> Result<[(&'static str, u32); OFFSETS.len()], BtfError> {
    let data = std::fs::read(Path::new(KERNEL_TYPES)).map_err(BtfError::Unreadable)?;
    let types = Types::parse(&data)?;
    let mut offsets = OFFSETS.map(|(global, _)| (global, 0));
    for ((_, offset), (_, fields)) in offsets.iter_mut().zip(OFFSETS) {
        for (structure, member) in fields {
            *offset += types.offset(structure, member)?;
        }
    }
    Ok(offsets)
}

struct Types<'a> {
    data: &'a [u8],
    strings: &'a [u8],
    /// Offset of each type in `data`. The first entry is of type 1.
    types: Vec<usize>,
}

impl<'a> Types<'a> {
    fn parse(data: &'a [u8]) -> Result<Self, BtfError> {
        let magic = data.get(..2).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
        let header = word(data, 4)? as usize;
        if magic != Some(MAGIC) || header < HEADER_BYTES {
            return Err(BtfError::Malformed(0));
        }
        let section = |at: usize| -> Result<(usize, usize), BtfError> {
            let (offset, length) = (word(data, at)? as usize, word(data, at + 4)? as usize);
            let start = header.checked_add(offset).ok_or(BtfError::Malformed(at))?;
            let end =
                start.checked_add(length).filter(|end| *end <= data.len()).ok_or(BtfError::Malformed(at))?;
            Ok((start, end))
        };
        let (mut at, end) = section(8)?;
        let (strings, strings_end) = section(16)?;
        let mut types = Vec::new();
        while at < end {
            types.push(at);
            let info = word(data, at + 4)?;
            at += TYPE_BYTES + extra_bytes(info).ok_or(BtfError::Malformed(at))?;
        }
        Ok(Self { data, strings: &data[strings..strings_end], types })
    }

    fn offset(&self, structure: &'static str, member: &'static str) -> Result<u32, BtfError> {
        let missing = BtfError::Missing { structure, member };
        for &at in &self.types {
            if kind_of(word(self.data, at + 4)?) == kind::STRUCT
                && self.name(word(self.data, at)?) == structure.as_bytes()
            {
                return self.member(at, member, MAX_DEPTH)?.ok_or(missing);
            }
        }
        Err(missing)
    }

    /// Returns the offset of a member of the struct or union at `at`; `None` without such a member.
    /// Also searches unnamed members.
    fn member(&self, at: usize, wanted: &str, depth: usize) -> Result<Option<u32>, BtfError> {
        let info = word(self.data, at + 4)?;
        if depth == 0 || !matches!(kind_of(info), kind::STRUCT | kind::UNION) {
            return Ok(None);
        }
        let has_bit_fields = info >> 31 == 1;
        for index in 0..(info & 0xffff) as usize {
            let member = at + TYPE_BYTES + index * MEMBER_BYTES;
            let bits = word(self.data, member + 8)?;
            let bits = if has_bit_fields { bits & OFFSET_MASK } else { bits };
            let name = self.name(word(self.data, member)?);
            if name == wanted.as_bytes() {
                return Ok(Some(bits / BITS));
            }
            let number = word(self.data, member + 4)? as usize;
            if name.is_empty()
                && let Some(inner) = number.checked_sub(1).and_then(|index| self.types.get(index))
                && let Some(offset) = self.member(*inner, wanted, depth - 1)?
            {
                return Ok(Some(bits / BITS + offset));
            }
        }
        Ok(None)
    }

    fn name(&self, offset: u32) -> &'a [u8] {
        let rest = self.strings.get(offset as usize..).unwrap_or_default();
        rest.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

fn word(data: &[u8], at: usize) -> Result<u32, BtfError> {
    let bytes = data.get(at..).and_then(|rest| rest.first_chunk()).ok_or(BtfError::Malformed(at))?;
    Ok(u32::from_ne_bytes(*bytes))
}

fn kind_of(info: u32) -> u32 {
    info >> 24 & 0x1f
}

/// Returns the number of bytes that follow a type; `None` for an unknown kind.
fn extra_bytes(info: u32) -> Option<usize> {
    let count = (info & 0xffff) as usize;
    Some(match kind_of(info) {
        kind::INT | kind::VAR | kind::DECL_TAG => 4,
        kind::ARRAY => 12,
        kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12 * count,
        kind::ENUM | kind::FUNC_PROTO => 8 * count,
        // Pointers, modifiers and typedefs have no further data.
        0..=19 => 0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One struct `s { int a; struct { int b; }; }` with its strings.
    fn example() -> Vec<u8> {
        let strings = b"\0s\0a\0b\0int\0";
        let mut types: Vec<u32> = Vec::new();
        types.extend([7, kind::INT << 24, 4, 32]);
        types.extend([0, kind::STRUCT << 24 | 1, 4, 5, 1, 0]);
        types.extend([1, kind::STRUCT << 24 | 2, 8, 3, 1, 0, 0, 2, 32]);
        let mut data = Vec::new();
        data.extend(MAGIC.to_ne_bytes());
        data.extend([1, 0]);
        let length = (types.len() * 4) as u32;
        for word in [HEADER_BYTES as u32, 0, length, length, strings.len() as u32] {
            data.extend(word.to_ne_bytes());
        }
        data.extend(types.iter().flat_map(|word| word.to_ne_bytes()));
        data.extend(strings);
        data
    }

    #[test]
    fn members_are_found_also_inside_structs_without_a_name() {
        let data = example();
        let types = Types::parse(&data).unwrap();
        assert_eq!(types.offset("s", "a").unwrap(), 0);
        assert_eq!(types.offset("s", "b").unwrap(), 4);
        assert!(matches!(types.offset("s", "c"), Err(BtfError::Missing { structure: "s", member: "c" })));
    }

    #[test]
    fn no_bytes_make_it_read_past_their_end() {
        let data = example();
        for length in 0..data.len() {
            let _ = Types::parse(&data[..length]).and_then(|types| types.offset("s", "b"));
        }
        for at in 0..data.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut data = data.clone();
                data[at] = value;
                let _ = Types::parse(&data).and_then(|types| types.offset("s", "b"));
            }
        }
    }
}
