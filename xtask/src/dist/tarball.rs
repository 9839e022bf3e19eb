//! The archive for all distributions: unpack it anywhere, or into `/usr/local`.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use flate2::{Compression, GzBuilder};
use tar::{Builder, Header};

use super::VERSION;
use super::contents::{self, Place};
use crate::build::Artefacts;

/// Writes the archive into `folder`. All files have the modification time `epoch_s`, s since 1970.
pub fn write(artefacts: &Artefacts, epoch_s: u64, folder: &Path) -> Result<PathBuf> {
    let top = format!("deepres-{VERSION}");
    let path = folder.join(format!("{top}-x86_64-linux.tar.gz"));
    let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    let compressed = GzBuilder::new().mtime(0).write(file, Compression::best());
    let mut archive = Builder::new(compressed);
    for item in contents::all(artefacts, Place::Anywhere)? {
        let mut header = Header::new_gnu();
        header.set_size(item.content.len() as u64);
        header.set_mode(item.mode);
        header.set_mtime(epoch_s);
        header.set_uid(0);
        header.set_gid(0);
        archive.append_data(&mut header, format!("{top}/{}", item.path), &*item.content)?;
    }
    archive.into_inner()?.finish()?;
    Ok(path)
}
