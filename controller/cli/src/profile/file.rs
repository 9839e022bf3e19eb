//! The file of a profile. One call of `deepres profile` at a time holds the file, and replaces the
//! whole file for each point.

use anyhow::{Context, Result, bail, ensure};
use deepres_model::profile::Profile;
use rustix::fs::{Mode, OFlags};
use std::fs::{File, Metadata, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// The mode of a new file, as of all programs: the umask takes rights away.
const FILE_MODE: u32 = 0o666;

/// The file of a profile, which this call holds.
pub struct Held {
    /// The file that a link names is replaced, not the link.
    path: PathBuf,
    /// The file that stands at `path`. Its lock ends with this process.
    file: File,
}

impl Held {
    /// Takes the file. Makes an empty file if there is none.
    ///
    /// # Errors
    /// Another call holds the file, or the file cannot be written.
    pub fn hold(path: &Path) -> Result<Self> {
        let cannot = || cannot_write(path);
        loop {
            let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::CLOEXEC;
            let file = rustix::fs::open(path, flags, Mode::from_raw_mode(FILE_MODE)).with_context(cannot)?;
            let file = File::from(file);
            // On a file system without locks, nobody holds the file.
            if let Err(TryLockError::WouldBlock) = file.try_lock() {
                bail!(
                    "another `deepres profile` writes {}; wait for its end, or name another file by --out",
                    path.display()
                );
            }
            // Another call may have replaced or removed the file before this call got the lock.
            let Ok(path) = std::fs::canonicalize(path) else { continue };
            let held = Self { path, file };
            if held.is_there() {
                tempfile::tempfile_in(held.folder()).with_context(cannot)?;
                return Ok(held);
            }
        }
    }

    /// Returns whether the file of the lock still stands at its path.
    fn is_there(&self) -> bool {
        let place = |found: io::Result<Metadata>| found.map(|found| (found.dev(), found.ino())).ok();
        place(self.file.metadata()) == place(std::fs::metadata(&self.path))
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.len() == 0)
    }

    /// Returns the points that the file has of this command; none if the file is empty.
    ///
    /// # Errors
    /// The file is no profile, or the profile of another command.
    pub fn earlier(&self, command: &[String]) -> Result<Profile> {
        let path = self.path.display();
        let cannot = || format!("cannot go on with {path}");
        if self.is_empty().with_context(cannot)? {
            return Ok(Profile { command: command.to_owned(), ..Profile::default() });
        }
        let profile = Profile::read(&self.path).with_context(cannot)?;
        ensure!(
            profile.command == command,
            "{path} has the profile of another command (`{}`); name another file by --out, or remove this one",
            profile.command.join(" ")
        );
        Ok(profile)
    }

    /// Writes the file anew, with the mode that it has. A reader never sees a part of it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&mut self, profile: &Profile) -> Result<()> {
        let cannot = || cannot_write(&self.path);
        let mut new = NamedTempFile::new_in(self.folder()).with_context(cannot)?;
        new.write_all(profile.text()?.as_bytes()).with_context(cannot)?;
        let mode = self.file.metadata().with_context(cannot)?.permissions();
        new.as_file().set_permissions(mode).with_context(cannot)?;
        // Nobody else knows the file yet, so only a file system without locks refuses.
        let _ = new.as_file().try_lock();
        self.file = new.persist(&self.path).with_context(cannot)?;
        Ok(())
    }

    /// Removes the file if nothing was saved.
    pub fn tidy(&self) {
        if self.is_empty().unwrap_or(false) && self.is_there() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.tidy();
    }
}

/// Returns the text of an error.
pub fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn one_call_at_a_time_holds_a_file_and_a_file_without_a_profile_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.toml");
        let refused = || {
            Held::hold(&path).err().is_some_and(|said| said.to_string().contains("another `deepres profile`"))
        };
        let mut held = Held::hold(&path).unwrap();
        assert!(refused());
        held.save(&held.earlier(&["x".to_owned()]).unwrap()).unwrap();
        assert!(refused(), "the new file is held too");
        drop(held);
        let held = Held::hold(&path).unwrap();
        assert!(held.earlier(&["x".to_owned()]).is_ok() && held.earlier(&[]).is_err());
        drop(held);
        assert!(path.exists());
        let other = folder.path().join("q.toml");
        drop(Held::hold(&other).unwrap());
        assert!(!other.exists());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_new_file_has_the_mode_of_any_new_file_and_an_old_file_keeps_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let [path, usual] = ["p.toml", "usual"].map(|name| folder.path().join(name));
        std::fs::write(&usual, "").unwrap();
        let mut held = Held::hold(&path).unwrap();
        let save = |held: &mut Held| held.save(&Profile::default()).unwrap();
        save(&mut held);
        assert_eq!(mode(&path), mode(&usual));
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        save(&mut held);
        assert_eq!(mode(&path), 0o640);
    }
}
