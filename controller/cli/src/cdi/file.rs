//! The file of a CDI specification. One process at a time changes the file, and replaces the whole
//! file.

use anyhow::{Context, Result, ensure};
use deepres_model::cdi::Spec;
use rustix::fs::{FlockOperation, flock};
use std::fs::{DirBuilder, File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

/// File name ending. Container runtimes also read another format, which deepres cannot write.
const ENDING: &str = "json";
/// All users may read the file, because their container runtimes read it.
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

/// Reads the specification in `path`. Returns `None` if there is no such file.
pub fn read(path: &Path) -> Result<Option<Spec>> {
    match std::fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        Ok(text) => Spec::parse(&text)
            .map(Some)
            .with_context(|| format!("{} is not a file for deepres' devices", path.display())),
    }
}

/// Changes the specification in `path`. Creates the file and its directory if they are missing, and
/// removes the file when no device is left.
pub fn update(path: &Path, change: impl FnOnce(&mut Spec) -> Result<()>) -> Result<()> {
    ensure!(
        path.extension().is_some_and(|ending| ending == ENDING),
        "{} does not end in .{ENDING}: container runtimes would not read it",
        path.display()
    );
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let cannot_write =
        || format!("cannot write {} (write as root, or elsewhere by --output)", path.display());
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory).with_context(cannot_write)?;
    // The lock is on the directory, because the command replaces the file itself.
    let turn = File::open(directory).with_context(cannot_write)?;
    flock(&turn, FlockOperation::LockExclusive).with_context(cannot_write)?;

    let mut spec = read(path)?.unwrap_or_default();
    change(&mut spec)?;
    if spec.devices().len() == 0 {
        // Container runtimes refuse a specification without devices.
        return std::fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()));
    }
    // The temporary name lacks the ending, so no runtime reads the file before it is complete.
    let mut new = tempfile::NamedTempFile::new_in(directory).with_context(cannot_write)?;
    write!(new, "{spec}").with_context(cannot_write)?;
    new.as_file().set_permissions(Permissions::from_mode(FILE_MODE)).with_context(cannot_write)?;
    new.as_file().sync_all().with_context(cannot_write)?;
    new.persist(path).map(drop).with_context(cannot_write)
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_model::cdi::{ContainerEdits, Device};
    use std::os::unix::fs::MetadataExt;

    fn put(path: &Path, name: &str) -> Result<()> {
        let container_edits = ContainerEdits { env: vec!["A=1".to_owned()], mounts: Vec::new() };
        let device = Device { name: name.parse().unwrap(), container_edits };
        update(path, |spec| Ok(spec.put(device)?))
    }

    #[test]
    fn devices_that_are_put_in_at_the_same_time_are_all_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cdi/deepres.json");
        std::thread::scope(|scope| {
            for number in 0..16 {
                let path = &path;
                scope.spawn(move || put(path, &number.to_string()).unwrap());
            }
        });
        assert_eq!(read(&path).unwrap().unwrap().devices().len(), 16);
        assert_eq!(
            std::fs::read_dir(folder.path().join("cdi")).unwrap().count(),
            1,
            "nothing is left beside it"
        );
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, FILE_MODE);
    }

    #[test]
    fn the_file_goes_with_its_last_device() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deepres.json");
        put(&path, "a").unwrap();
        update(&path, |spec| {
            assert!(spec.remove(&"a".parse().unwrap()));
            Ok(())
        })
        .unwrap();
        assert!(read(&path).unwrap().is_none() && !path.exists());
    }

    #[test]
    fn a_file_that_is_not_ours_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nvidia.json");
        let theirs = r#"{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": []}"#;
        std::fs::write(&path, theirs).unwrap();
        let said = format!("{:#}", put(&path, "a").unwrap_err());
        assert!(said.contains("nvidia.json") && said.contains("nvidia.com/gpu"), "{said}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), theirs);
    }
}
