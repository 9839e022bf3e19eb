//! The package for pip. The program becomes a script of the Python environment. The library goes
//! into the environment's `lib/deepres`, where the program looks for it. The wheel has no Python
//! code.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

use super::contents::{self, Item, PLAIN, PROGRAM_PLACE, Place, item};
use super::needs::Needs;
use super::{VERSION, VERSION_MARK};
use crate::build::Artefacts;

/// The oldest glibc with a tag of the form `manylinux_x_y` (PEP 600), and the older name of this
/// tag.
const OLDEST_GLIBC: (u32, u32) = (2, 17);
const OLDEST_NAME: &str = "manylinux2014_x86_64.";

/// Writes the wheel into `folder`.
pub fn write(artefacts: &Artefacts, needs: &Needs, folder: &Path) -> Result<PathBuf> {
    let tag = tag(needs.glibc);
    let data = format!("deepres-{VERSION}.data");
    let mut items: Vec<Item> = contents::all(artefacts, Place::Environment)?;
    for item in &mut items {
        // pip installs scripts into the folder with the interpreter, and data below the prefix.
        item.path = match item.path.as_str() {
            PROGRAM_PLACE => format!("{data}/scripts/deepres"),
            place => format!("{data}/data/{place}"),
        };
    }
    let about = format!("deepres-{VERSION}.dist-info");
    for license in ["LICENSE-MIT", "LICENSE-APACHE"] {
        items.push(item(format!("{about}/licenses/{license}"), PLAIN, contents::of_repository(license)?));
    }
    let metadata = String::from_utf8(contents::of_repository("controller/deploy/wheel/METADATA")?)?;
    items.push(item(format!("{about}/METADATA"), PLAIN, metadata.replace(VERSION_MARK, VERSION)));
    items.push(item(format!("{about}/WHEEL"), PLAIN, wheel(&tag)));
    items.sort();
    // The list of the files comes last, and has no hash of itself.
    let list = format!("{about}/RECORD");
    items.push(item(list.clone(), PLAIN, record(&items, &list)));

    let path = folder.join(format!("deepres-{VERSION}-py3-none-{tag}.whl"));
    let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    let mut archive = ZipWriter::new(file);
    for item in &items {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .last_modified_time(DateTime::default())
            .unix_permissions(item.mode);
        archive.start_file(&item.path, options)?;
        archive.write_all(&item.content)?;
    }
    archive.finish()?;
    Ok(path)
}

/// Returns the tag of the machines on which the wheel runs: those with this glibc or a newer one.
fn tag(glibc: (u32, u32)) -> String {
    let (major, minor) = glibc.max(OLDEST_GLIBC);
    let older_name = if glibc <= OLDEST_GLIBC { OLDEST_NAME } else { "" };
    format!("{older_name}manylinux_{major}_{minor}_x86_64")
}

/// Returns the file that tells pip how to install the wheel. A compressed tag stands for one tag
/// for each of its parts.
fn wheel(tag: &str) -> String {
    let tags: String = tag.split('.').map(|tag| format!("Tag: py3-none-{tag}\n")).collect();
    format!("Wheel-Version: 1.0\nGenerator: deepres xtask\nRoot-Is-Purelib: false\n{tags}")
}

/// Returns the list of the files with their hashes and sizes.
fn record(items: &[Item], own: &str) -> String {
    let line = |item: &Item| {
        let hash = URL_SAFE_NO_PAD.encode(Sha256::digest(&item.content));
        format!("{},sha256={hash},{}\n", item.path, item.content.len())
    };
    items.iter().map(line).chain([format!("{own},,\n")]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_names_the_glibc_that_the_product_needs() {
        assert_eq!(tag((2, 28)), "manylinux_2_28_x86_64");
        assert_eq!(tag((2, 9)), "manylinux2014_x86_64.manylinux_2_17_x86_64");
        assert_eq!(wheel(&tag((2, 17))).matches("Tag: py3-none-manylinux").count(), 2);
    }

    #[test]
    fn the_list_has_each_file_with_the_hash_that_pip_checks() {
        let listed = record(&[item("a", PLAIN, "abc")], "RECORD");
        assert_eq!(listed, "a,sha256=ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0,3\nRECORD,,\n");
    }
}
