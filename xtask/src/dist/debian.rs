//! The package for Debian and Ubuntu, by Debian's own `dpkg-deb`. cargo-deb would list the files of
//! the package a second time, and would generate other maintainer scripts than the package needs.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};

use super::contents::{self, DOCUMENTATION, Item, PLAIN, PROGRAM, Place, item};
use super::needs::Needs;
use super::{VERSION, VERSION_MARK};
use crate::build::Artefacts;
use crate::command;

/// The configuration file. dpkg keeps an administrator's changes to it.
const CONFIGURATION: &str = "etc/deepres/deepres.toml";
/// The scripts that dpkg runs.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Writes the package into `folder`. All files have the modification time `epoch_s`, s since 1970.
pub fn write(artefacts: &Artefacts, needs: &Needs, epoch_s: u64, folder: &Path) -> Result<PathBuf> {
    let mut items = contents::all(artefacts, Place::Debian)?;
    items.iter_mut().for_each(|item| item.path.insert_str(0, "usr/"));
    let documentation = |name: &str| format!("usr/{DOCUMENTATION}/{name}");
    items.push(item(documentation("copyright"), PLAIN, deployed("debian/copyright")?));
    let changes = contents::compressed(&contents::of_repository("CHANGELOG.md")?)?;
    items.push(item(documentation("changelog.gz"), PLAIN, changes));
    items.push(item(CONFIGURATION, PLAIN, deployed("deepres.toml")?));

    let installed_kib = items.iter().map(|item| item.content.len().div_ceil(1 << 10)).sum::<usize>();
    let control = String::from_utf8(deployed("debian/control")?)?
        .replace(VERSION_MARK, VERSION)
        .replace("@DEPENDS@", &depends(needs))
        .replace("@INSTALLED_KIB@", &installed_kib.to_string());
    items.push(item("DEBIAN/control", PLAIN, control));
    items.push(item("DEBIAN/conffiles", PLAIN, format!("/{CONFIGURATION}\n")));
    for script in SCRIPTS {
        items.push(item(format!("DEBIAN/{script}"), PROGRAM, deployed(&format!("debian/{script}"))?));
    }

    let staged = tempfile::tempdir().context("cannot create a temporary folder")?;
    let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(epoch_s);
    stage(&items, staged.path(), modified)?;
    let sums = item("DEBIAN/md5sums", PLAIN, sums(&items, staged.path())?);
    stage(&[sums], staged.path(), modified)?;
    let package = folder.join(format!("deepres_{VERSION}_amd64.deb"));
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "-Zxz", "--build"]).arg(staged.path()).arg(&package);
    // With several threads, xz writes other bytes than with one.
    build.env("DPKG_DEB_THREADS_MAX", "1").env("SOURCE_DATE_EPOCH", epoch_s.to_string());
    command::run(&mut build).context("the Debian package needs dpkg-deb (package dpkg)")?;
    Ok(package)
}

/// Returns the packages that the program and the library need.
fn depends(needs: &Needs) -> String {
    let (major, minor) = needs.glibc;
    let of_compiler = if needs.has_libgcc { ", libgcc-s1 | libgcc1" } else { "" };
    format!("libc6 (>= {major}.{minor}){of_compiler}")
}

/// Returns the checksums of the staged files, by which `dpkg --verify` finds changed files. dpkg
/// itself knows the checksum of the configuration file.
fn sums(items: &[Item], root: &Path) -> Result<String> {
    let paths = items.iter().map(|item| item.path.as_str());
    let paths = paths.filter(|path| !path.starts_with("DEBIAN/") && *path != CONFIGURATION);
    command::output(Command::new("md5sum").current_dir(root).args(paths))
}

fn deployed(path: &str) -> Result<Vec<u8>> {
    contents::of_repository(&format!("controller/deploy/{path}"))
}

/// Writes the files into a folder, with these permissions and this time whatever the umask.
fn stage(items: &[Item], root: &Path, modified: SystemTime) -> Result<()> {
    let mut folders = vec![root.to_owned()];
    for item in items {
        let path = root.join(&item.path);
        let above = path.ancestors().skip(1).take_while(|folder| *folder != root);
        folders.extend(above.map(Path::to_owned));
        fs::create_dir_all(path.parent().context("a file is in a folder")?)?;
        fs::write(&path, &item.content)?;
        finish(&path, item.mode, modified)?;
    }
    folders.iter().try_for_each(|folder| finish(folder, PROGRAM, modified))
}

fn finish(path: &Path, mode: u32, modified: SystemTime) -> Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    let set = File::open(path).and_then(|file| file.set_modified(modified));
    set.with_context(|| format!("cannot set the time of {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_depends_on_the_libraries_that_its_programs_need() {
        let depends = |has_libgcc| depends(&Needs { glibc: (2, 28), has_libgcc });
        assert_eq!(depends(false), "libc6 (>= 2.28)");
        assert_eq!(depends(true), "libc6 (>= 2.28), libgcc-s1 | libgcc1");
    }

    #[test]
    fn staged_files_have_their_permissions_and_the_given_time() {
        let folder = tempfile::tempdir().unwrap();
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let items = [item("usr/bin/a", PROGRAM, "a"), item("etc/b", PLAIN, "b")];
        stage(&items, folder.path(), modified).unwrap();
        assert_eq!(
            sums(&items[..1], folder.path()).unwrap().trim_end(),
            "0cc175b9c0f1b6a831c399e269772661  usr/bin/a"
        );
        for (path, mode) in [("usr/bin/a", 0o755), ("etc/b", 0o644), ("usr", 0o755), ("usr/bin", 0o755)] {
            let found = fs::metadata(folder.path().join(path)).unwrap();
            assert_eq!((found.permissions().mode() & 0o7777, found.modified().unwrap()), (mode, modified));
        }
    }
}
