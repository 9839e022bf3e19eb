//! The text in `/proc` about a process: its own name, and its cgroups. The process's user may have
//! chosen the names of the cgroups.

use deepres_abi::wire::TENANT_NAME_BYTES;
use deepres_daemon::identity::cgroup::{self, Kind};
use deepres_daemon::identity::tree::{self, Process};

/// A cgroup that is found is in the text, and its name can be shown to any user.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Some(place) = cgroup::place(&text) {
        assert!(place.path.starts_with('/') && text.contains(&place.path), "{place:?}");
        let is_harmless = |c: char| c.is_ascii_alphanumeric() || c == '-';
        assert!(place.name().chars().all(is_harmless), "{place:?}");
        assert!(place.name().len() < TENANT_NAME_BYTES, "{place:?}");
        if let Some(container) = place.container() {
            assert!(
                container.id.starts_with(container.short_id()) && text.contains(&container.id),
                "{place:?}"
            );
        }
        // The path alone gives the same result, because tenants are told apart by the path.
        let again = cgroup::place(&format!("0::{}\n", place.path)).expect("the same place");
        assert_eq!(again.path, place.path);
        if let (Kind::Slurm { job }, Kind::Slurm { job: other }) = (&place.kind, &again.kind) {
            assert_eq!(job, other);
        }
    }
    tree::user_of_status(&text);
    if let Some(process) = Process::parse(&text, 0) {
        assert!(text.contains(&process.command), "{process:?}");
        assert!(tree::belongs(&process, &process) || process.pid <= 1 || process.user == 0);
    }
}
