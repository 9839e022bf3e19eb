//! Reads the libraries and the symbol versions of glibc that an ELF file needs.

use anyhow::{Context as _, Result};
use object::LittleEndian;
use object::elf::{DT_NEEDED, FileHeader64};
use object::read::elf::{Dyn as _, FileHeader as _, SectionHeader as _};

/// Returns the newest version `GLIBC_x.y` that the dynamic linker must find for `image`.
pub fn newest_glibc(image: &[u8]) -> Result<(u32, u32)> {
    let header = FileHeader64::<LittleEndian>::parse(image).context("not an ELF file")?;
    let endian = header.endian()?;
    let sections = header.sections(endian, image)?;
    let mut newest = (0, 0);
    for section in sections.iter() {
        let Some((mut needs, strings)) = section.gnu_verneed(endian, image)? else { continue };
        let strings = sections.strings(endian, image, strings)?;
        while let Some((_, mut versions)) = needs.next()? {
            while let Some(version) = versions.next()? {
                let name = std::str::from_utf8(version.name(endian, strings)?)?;
                newest = newest.max(glibc(name).unwrap_or_default());
            }
        }
    }
    Ok(newest)
}

/// Returns the names of the libraries that the dynamic linker must load for `image`.
pub fn needed(image: &[u8]) -> Result<Vec<String>> {
    let header = FileHeader64::<LittleEndian>::parse(image).context("not an ELF file")?;
    let endian = header.endian()?;
    let sections = header.sections(endian, image)?;
    let mut libraries = Vec::new();
    for section in sections.iter() {
        let Some((entries, strings)) = section.dynamic(endian, image)? else { continue };
        let strings = sections.strings(endian, image, strings)?;
        for entry in entries.iter().filter(|entry| entry.tag(endian) == DT_NEEDED) {
            libraries.push(std::str::from_utf8(entry.string(endian, strings)?)?.to_owned());
        }
    }
    Ok(libraries)
}

/// Returns the numbers of a version: `GLIBC_2.2.5` gives (2, 2).
fn glibc(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.strip_prefix("GLIBC_")?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_versions_that_a_program_needs() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let (major, minor) = newest_glibc(&own).unwrap();
        // Rust's standard library needs at least 2.17, wherever cargo builds it.
        assert!(major == 2 && minor >= 17, "{major}.{minor}");
        assert!(needed(&own).unwrap().contains(&"libc.so.6".to_owned()));
    }

    #[test]
    fn versions_compare_as_numbers() {
        assert_eq!(glibc("GLIBC_2.2.5"), Some((2, 2)));
        assert!(glibc("GLIBC_2.28") > glibc("GLIBC_2.4"));
        assert_eq!(glibc("GLIBC_PRIVATE"), None);
        assert_eq!(glibc("GCC_3.0"), None);
    }

    #[test]
    fn refuses_files_that_are_not_elf() {
        assert!(newest_glibc(b"#!/bin/sh").is_err());
    }
}
