//! Finds the driver's functions in a file by its symbol tables. Any user may have made the file, so
//! the code trusts nothing in it.

use super::entry;
use object::elf::{FileHeader64, PF_X, PT_LOAD, SHN_UNDEF, SHT_DYNSYM, SHT_SYMTAB, STT_FUNC};
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _, Sym as _};
use object::{Endianness, ReadCache, ReadCacheOps, SectionIndex};
use std::collections::BTreeMap;

/// The most sections of a file.
const MAX_SECTIONS: usize = 4096;
/// The most bytes of a symbol table or of its names. A large static program has fewer.
const MAX_TABLE_BYTES: u64 = 128 << 20;
/// The most segments of a file.
const MAX_SEGMENTS: usize = 1024;

/// The most places of one file that the daemon probes. Each counted function has a handful of
/// variants, but a forged file can name thousands.
const MAX_POINTS: usize = 256;

/// A place in the driver's library at which the daemon attaches a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// Offset in the file, bytes.
    pub offset: u64,
    /// The probe's cookie.
    pub cookie: u64,
}

/// The reason for which the daemon cannot find the driver's functions in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SymbolsError {
    /// The file is no program or library.
    #[error("is not a program or library for this machine")]
    NotElf,
    /// The tables of the ELF file contradict themselves, or are larger than the tables of any
    /// driver.
    #[error("has malformed symbol tables")]
    Malformed,
    /// The file has no symbols.
    #[error("is stripped, so the daemon cannot find its functions")]
    NoSymbols,
    /// The file has symbols, but no symbol of the driver's functions.
    #[error("has none of the driver's functions")]
    NoFunctions,
}

/// Returns the places, in the driver's library, of the functions that the daemon probes. A place
/// that several functions share is returned once.
///
/// # Errors
/// [`SymbolsError`], which says what is wrong with the file.
pub fn points(file: impl ReadCacheOps) -> Result<Vec<Point>, SymbolsError> {
    let data = &ReadCache::new(file);
    let header = FileHeader64::<Endianness>::parse(data).map_err(|_| SymbolsError::NotElf)?;
    let endian = header.endian().map_err(|_| SymbolsError::NotElf)?;
    let malformed = |_| SymbolsError::Malformed;
    if header.phnum(endian, data).map_err(malformed)? > MAX_SEGMENTS
        || header.shnum(endian, data).map_err(malformed)? > MAX_SECTIONS
    {
        return Err(SymbolsError::Malformed);
    }
    let segments = header.program_headers(endian, data).map_err(malformed)?;
    let executable: Vec<_> = segments
        .iter()
        .filter(|segment| segment.p_type(endian) == PT_LOAD && segment.p_flags(endian) & PF_X != 0)
        .map(|segment| (segment.p_vaddr(endian), segment.p_filesz(endian), segment.p_offset(endian)))
        .collect();
    let offset_of = |address: u64| {
        executable.iter().find_map(|(begins, bytes, offset)| {
            let into = address.checked_sub(*begins).filter(|into| into < bytes)?;
            offset.checked_add(into)
        })
    };
    let sections = header.sections(endian, data).map_err(malformed)?;
    let mut found = BTreeMap::new();
    let mut has_symbols = false;
    for kind in [SHT_DYNSYM, SHT_SYMTAB] {
        let Some((at, table)) =
            sections.iter().enumerate().find(|(_, section)| section.sh_type(endian) == kind)
        else {
            continue;
        };
        let names = sections.section(SectionIndex(table.sh_link(endian) as usize)).map_err(malformed)?;
        if table.sh_size(endian) > MAX_TABLE_BYTES || names.sh_size(endian) > MAX_TABLE_BYTES {
            return Err(SymbolsError::Malformed);
        }
        let symbols = object::read::elf::SymbolTable::parse(endian, data, &sections, SectionIndex(at), table)
            .map_err(malformed)?;
        for symbol in symbols.iter() {
            has_symbols = true;
            if symbol.st_type() != STT_FUNC || symbol.st_shndx(endian) == SHN_UNDEF {
                continue;
            }
            let Ok(name) = symbol.name(endian, symbols.strings()) else { continue };
            if let (Some(cookie), Some(offset)) = (entry::cookie_of(name), offset_of(symbol.st_value(endian)))
            {
                // If two names have the same place, they are one function. With a probe for each
                // name, each call would count twice.
                found.entry(offset).or_insert(cookie);
                if found.len() > MAX_POINTS {
                    return Err(SymbolsError::Malformed);
                }
            }
        }
    }
    match (found.is_empty(), has_symbols) {
        (false, _) => Ok(found.into_iter().map(|(offset, cookie)| Point { offset, cookie }).collect()),
        (true, true) => Err(SymbolsError::NoFunctions),
        (true, false) => Err(SymbolsError::NoSymbols),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn a_file_that_is_no_program_is_refused() {
        assert_eq!(points(Cursor::new(Vec::new())), Err(SymbolsError::NotElf));
        assert_eq!(points(Cursor::new(b"#!/bin/sh\n".to_vec())), Err(SymbolsError::NotElf));
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(points(Cursor::new(own[..64].to_vec())), Err(SymbolsError::Malformed));
    }

    #[test]
    fn a_program_without_the_drivers_functions_is_told_from_one_without_symbols() {
        let own = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(points(own), Err(SymbolsError::NoFunctions));
    }
}
