//! Checks whether the interposer can be loaded into a program. Only glibc's dynamic linker for this
//! machine loads the interposer. Any other program runs as without deepres, and `deepres run` tells
//! the user.

use object::elf::{ELFCLASS64, EM_X86_64, ET_DYN, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadCache, ReadRef};
use rustix::process::{getgid, getuid};
use std::ffi::{CString, OsStr};
use std::fmt;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The most scripts in a chain in which each script names the next as its interpreter: the kernel's
/// limit.
const MAX_SCRIPTS: usize = 4;
/// The number of bytes of a script's first line that the kernel reads.
const FIRST_LINE_BYTES: u64 = 256;
/// Position of the class among an ELF file's first bytes.
const CLASS_AT: usize = 4;
const MAGIC: &[u8] = b"\x7fELF";
const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;
/// Attribute in which the kernel keeps a file's capabilities.
const CAPABILITIES: &str = "security.capability";
/// The prefix of the file names of musl's dynamic linkers.
const MUSL: &[u8] = b"ld-musl";

/// The reason for which the interposer is not loaded into a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// The program is statically linked.
    Static,
    /// The program's dynamic linker is musl's.
    Musl,
    /// The program is for another kind of machine.
    Foreign,
    /// The program runs with rights that its caller does not have.
    Privileged,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Static => "is statically linked, so that no library can be loaded into it",
            Self::Musl => "is built for musl, whose dynamic linker cannot load a library made for glibc",
            Self::Foreign => "is not a 64-bit x86 program",
            Self::Privileged => {
                "runs with rights that you do not have, so the system loads no libraries into it"
            }
        })
    }
}

/// Returns the reason for which the interposer is not loaded into the program in `file`. For a
/// script, the program is the interpreter. Returns `None` if the function finds no reason.
pub fn obstacle(file: &Path) -> Option<Obstacle> {
    let mut file = file.to_owned();
    for _ in 0..MAX_SCRIPTS {
        match interpreter_of_script(&file) {
            Some(interpreter) => file = interpreter,
            None => break,
        }
    }
    if is_privileged(&file) {
        return Some(Obstacle::Privileged);
    }
    of_image(&ReadCache::new(File::open(&file).ok()?), &file)
}

/// Returns the interpreter that a script's first line names after `#!`.
fn interpreter_of_script(file: &Path) -> Option<PathBuf> {
    let cache = ReadCache::new(File::open(file).ok()?);
    let length = cache.len().ok()?.min(FIRST_LINE_BYTES);
    let line = cache.read_bytes_at(0, length).ok()?.strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next()?;
    let word = line.split(|byte| b" \t".contains(byte)).find(|word| !word.is_empty())?;
    Some(OsStr::from_bytes(word).into())
}

fn of_image<'data>(data: impl ReadRef<'data>, file: &Path) -> Option<Obstacle> {
    let start = data.read_bytes_at(0, CLASS_AT as u64 + 1).ok()?;
    if !start.starts_with(MAGIC) {
        return None;
    }
    if start[CLASS_AT] != ELFCLASS64 {
        return Some(Obstacle::Foreign);
    }
    let header = FileHeader64::<Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    if header.e_machine(endian) != EM_X86_64 {
        return Some(Obstacle::Foreign);
    }
    let segments = header.program_headers(endian, data).ok()?;
    let linker = segments.iter().find_map(|segment| segment.interpreter(endian, data).ok().flatten());
    match linker {
        Some(linker) => {
            let name = linker.rsplit(|byte| *byte == b'/').next().unwrap_or(linker);
            name.starts_with(MUSL).then_some(Obstacle::Musl)
        }
        // A user can start the dynamic linker itself as a program. The dynamic linker's own file
        // names no linker.
        None if header.e_type(endian) == ET_DYN && is_linker(file) => None,
        None => Some(Obstacle::Static),
    }
}

fn is_linker(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-linux"))
}

/// Returns whether the system gives the program rights that this process does not have. The dynamic
/// linker then ignores `LD_PRELOAD`.
fn is_privileged(file: &Path) -> bool {
    let Ok(found) = file.metadata() else { return false };
    let changes_user = found.mode() & SET_USER != 0 && found.uid() != getuid().as_raw();
    // If the group may not execute the file, the set-group-ID bit has another meaning.
    let changes_group = found.mode() & (SET_GROUP | GROUP_EXECUTE) == SET_GROUP | GROUP_EXECUTE
        && found.gid() != getgid().as_raw();
    let has_capabilities = !getuid().is_root()
        && CString::new(file.as_os_str().as_bytes()).is_ok_and(|path| {
            let mut nothing = [0_u8; 0];
            rustix::fs::getxattr(&*path, CAPABILITIES, &mut nothing).is_ok_and(|bytes| bytes > 0)
        });
    changes_user || changes_group || has_capabilities
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    /// Returns a 64-bit ELF file with one segment, which names the given dynamic linker or is
    /// empty.
    fn image(machine: u16, linker: Option<&str>) -> Vec<u8> {
        const HEADER_BYTES: usize = 64;
        const SEGMENT_BYTES: usize = 56;
        let mut bytes = vec![0; HEADER_BYTES + SEGMENT_BYTES];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, b"\x7fELF\x02\x01\x01");
        put(16, &2_u16.to_le_bytes()); // an executable
        put(18, &machine.to_le_bytes());
        put(20, &1_u32.to_le_bytes());
        put(32, &(HEADER_BYTES as u64).to_le_bytes());
        put(52, &(HEADER_BYTES as u16).to_le_bytes());
        put(54, &(SEGMENT_BYTES as u16).to_le_bytes());
        put(56, &1_u16.to_le_bytes());
        if let Some(linker) = linker {
            put(HEADER_BYTES, &3_u32.to_le_bytes()); // PT_INTERP
            put(HEADER_BYTES + 8, &((HEADER_BYTES + SEGMENT_BYTES) as u64).to_le_bytes());
            put(HEADER_BYTES + 32, &(linker.len() as u64 + 1).to_le_bytes());
            bytes.extend(linker.bytes().chain([0]));
        }
        bytes
    }

    #[test]
    fn the_dynamic_linker_decides_and_scripts_are_followed() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, bytes: &[u8]| {
            let file = folder.path().join(name);
            std::fs::write(&file, bytes).unwrap();
            file
        };
        let glibc = image(EM_X86_64, Some("/lib64/ld-linux-x86-64.so.2"));
        let musl = put("musl", &image(EM_X86_64, Some("/lib/ld-musl-x86_64.so.1")));
        assert_eq!(obstacle(&put("glibc", &glibc)), None);
        assert_eq!(obstacle(&musl), Some(Obstacle::Musl));
        assert_eq!(obstacle(&put("static", &image(EM_X86_64, None))), Some(Obstacle::Static));
        assert_eq!(obstacle(&put("arm", &image(object::elf::EM_AARCH64, None))), Some(Obstacle::Foreign));
        assert_eq!(obstacle(&put("32-bit", b"\x7fELF\x01\x01\x01")), Some(Obstacle::Foreign));
        for line in [format!("#!{}\n", musl.display()), format!("#! {} -x\nexit", musl.display())] {
            assert_eq!(obstacle(&put("script", line.as_bytes())), Some(Obstacle::Musl), "{line}");
        }
        let itself = folder.path().join("itself");
        assert_eq!(obstacle(&put("itself", format!("#!{}", itself.display()).as_bytes())), None);
        for other in [&b""[..], b"#!", b"#!\n", b"\x7fELF", b"\x7fELF\x02\x01\x01", b"echo"] {
            assert_eq!(obstacle(&put("other", other)), None);
        }
        assert_eq!(obstacle(&folder.path().join("absent")), None);
        assert_eq!(obstacle(Path::new("/bin/sh")), None);
    }

    #[test]
    fn a_program_with_other_rights_is_known_by_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("program");
        std::fs::write(&file, image(EM_X86_64, Some("/lib64/ld-linux-x86-64.so.2"))).unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o4755)).unwrap();
        assert_eq!(obstacle(&file), None, "the rights of who starts it");
        if deepres_e2e::skip::root_or_skipped() {
            std::os::unix::fs::chown(&file, Some(4711), None).unwrap();
            std::fs::set_permissions(&file, Permissions::from_mode(0o4755)).unwrap();
            assert_eq!(obstacle(&file), Some(Obstacle::Privileged));
        }
    }
}
