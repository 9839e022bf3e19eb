//! The secret with which the page changes tenants and explains shares. Administrators read it from
//! a file.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::Path;

/// The source of random bytes.
const RANDOM: &str = "/dev/urandom";
/// The length of the secret, bytes.
const BYTES: usize = 32;
/// Mode of the file without a group of administrators.
const OWN_MODE: u32 = 0o600;
/// Mode of the file if the members of a group may administer the daemon.
const GROUP_MODE: u32 = 0o640;

/// Makes a new token and writes it into a file that the daemon's user and the members of `group`
/// may read. Returns the token.
///
/// # Errors
/// The system's error.
pub fn make(path: &Path, group: Option<u32>) -> io::Result<String> {
    let mut bytes = [0; BYTES];
    File::open(RANDOM)?.read_exact(&mut bytes)?;
    let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(OWN_MODE).open(path)?;
    if group.is_some() {
        fchown(&file, None, group)?;
        // The umask does not count here. The shipped unit has a umask of 0077.
        file.set_permissions(Permissions::from_mode(GROUP_MODE))?;
    }
    writeln!(file, "{token}")?;
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn each_token_is_new_and_only_the_user_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web-token");
        let tokens = [make(&path, None).unwrap(), make(&path, None).unwrap()];
        assert!(tokens[0] != tokens[1] && tokens[1].len() == 2 * BYTES);
        assert_eq!(std::fs::read_to_string(&path).unwrap().trim(), tokens[1]);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(make(&folder.path().join("none/web-token"), None).is_err());
    }

    #[test]
    fn the_group_of_administrators_reads_the_token_whatever_the_umask() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web-token");
        let group = rustix::process::getegid().as_raw();
        // The test sets no umask, because other tests of the process run beside this one.
        make(&path, Some(group)).unwrap();
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!((found.mode() & 0o777, found.gid()), (GROUP_MODE, group));
    }
}
