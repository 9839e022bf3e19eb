//! Lets a test, or a part of it, run as another user.

use std::{ptr, thread};

use crate::skip::root_or_skipped;

/// A user without rights, and the user's group.
pub const NOBODY: u32 = 65_534;
/// The arguments with which `setpriv` runs a program as [`NOBODY`].
pub const AS_NOBODY: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];

/// Runs `act` as another user, in a thread of its own. In the kernel, credentials belong to a
/// thread. A connection has the credentials of the thread that made it. If the test may not change
/// credentials, reports the test as skipped and returns `None`.
pub fn as_user<T: Send>(user: u32, group: u32, act: impl FnOnce() -> T + Send) -> Option<T> {
    if !root_or_skipped() {
        return None;
    }
    let become_other = move || {
        // SAFETY: these system calls only take numbers. Unlike the C library's functions, they
        // change the credentials of this thread alone.
        unsafe {
            let no_groups = libc::syscall(libc::SYS_setgroups, 0, ptr::null::<libc::gid_t>());
            let is_group = libc::syscall(libc::SYS_setresgid, group, group, group);
            no_groups == 0 && is_group == 0 && libc::syscall(libc::SYS_setresuid, user, user, user) == 0
        }
    };
    let act = move || {
        assert!(become_other(), "root may become any user");
        act()
    };
    Some(thread::scope(|scope| scope.spawn(act).join().unwrap()))
}
