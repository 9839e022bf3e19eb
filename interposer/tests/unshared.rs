//! Forked children inherit no connection, at any moment of the fork. The test has a process of its
//! own, because it looks at all sockets of the process.

#[path = "../src/descriptor.rs"]
#[expect(dead_code, reason = "the interposer uses the rest of it")]
mod descriptor;
#[path = "../src/os.rs"]
#[expect(dead_code, reason = "the interposer uses the rest of it")]
mod os;
#[path = "../src/unshared.rs"]
mod unshared;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use unshared::Unshared;

const FORKS: usize = 300;

/// Returns the number of packet sockets of this process. A forked child calls this.
fn sockets() -> i32 {
    let is_one = |number: &i32| {
        let (mut kind, mut bytes) = (0i32, size_of::<i32>() as u32);
        // SAFETY: the answer has that size. The kernel refuses a number that is no socket.
        let result = unsafe {
            let kind = (&raw mut kind).cast();
            libc::getsockopt(*number, libc::SOL_SOCKET, libc::SO_TYPE, kind, &raw mut bytes)
        };
        result == 0 && kind == libc::SOCK_SEQPACKET
    };
    (0..1024).filter(is_one).count() as i32
}

#[test]
fn no_child_has_a_connection_whenever_it_is_forked() {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let socket = Unshared::packets(0).unwrap();
                    assert!(socket.descriptor().is_ours());
                    drop(Unshared::from_descriptor(socket.into_descriptor()));
                }
            });
        }
        let left = (0..FORKS).map(|_| {
            // SAFETY: the child only makes system calls and ends.
            unsafe {
                let child = libc::fork();
                if child == 0 {
                    libc::_exit(sockets().min(100));
                }
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                libc::WEXITSTATUS(status)
            }
        });
        let left: i32 = left.sum();
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(left, 0, "sockets in {FORKS} children");
    });
}
