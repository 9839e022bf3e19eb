//! The needs of the product on a user's machine: the glibc and the libraries.

use std::fs;

use anyhow::{Context as _, Result, bail};

use crate::build::Artefacts;
use crate::elf;

/// The libraries of glibc.
const OF_GLIBC: [&str; 6] =
    ["libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2"];
/// The library of the compiler for unwinding.
const OF_COMPILER: &str = "libgcc_s.so.1";

/// The needs of the program and of the library together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// The newest version of glibc whose symbols they use.
    pub glibc: (u32, u32),
    /// Whether one of them needs the compiler's library.
    pub has_libgcc: bool,
}

impl Needs {
    /// Returns the needs of the product.
    ///
    /// # Errors
    /// The product needs a library that not every machine with glibc has. The packages would then
    /// promise too much.
    pub fn of(artefacts: &Artefacts) -> Result<Self> {
        let mut needs = Self { glibc: (0, 0), has_libgcc: false };
        for path in [artefacts.deepres(), artefacts.library()] {
            let image = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let in_file = || path.display().to_string();
            needs.glibc = needs.glibc.max(elf::newest_glibc(&image).with_context(in_file)?);
            for library in elf::needed(&image).with_context(in_file)? {
                match library.as_str() {
                    OF_COMPILER => needs.has_libgcc = true,
                    library if OF_GLIBC.contains(&library) => {}
                    _ => bail!("{} needs {library}, which a user's machine may lack", path.display()),
                }
            }
        }
        Ok(needs)
    }
}
