//! Stand-in devices, and probes that watch only these devices.

use deepres_abi::probe::{StatKey, StatValue};
use deepres_daemon::probes::devices::Devices;
use deepres_daemon::probes::kernel::{Asked, AttachPoint, Kernel, KernelError};
use deepres_daemon::probes::room::Room;
use deepres_e2e::skip;
use deepres_model::config::DeviceKey;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};

/// A real character device, which accepts `SUCCESS` and refuses NVIDIA's numbers. The tests watch
/// the device as nvidia-uvm.
pub const TUN: &str = "/dev/net/tun";
pub const TUN_KEY: &str = "nvidia-uvm=10:200";
/// A device with the major number of [`TUN`], which refuses all ioctl numbers (ENOTTY). The tests
/// probe the device in place of nvidia.
pub const FUSE: &str = "/dev/fuse";
pub const FUSE_KEY: &str = "nvidia=10:229";
/// A device whose ioctl reads a page behind the argument, and returns success for unknown command
/// numbers. The tests probe the device in place of nvidia-uvm or nvidia.
pub const BTRFS: &str = "/dev/btrfs-control";
pub const BTRFS_UVM_KEY: &str = "nvidia-uvm=10:234";
pub const BTRFS_RM_KEY: &str = "nvidia=10:234";
/// TUNGETFEATURES, which writes 4 bytes.
pub const SUCCESS: u64 = 0x8004_54cf;
/// NV_ESC_RM_CONTROL.
pub const RM_CONTROL: u64 = 0xc020_462a;
/// NV_ESC_RM_ALLOC.
pub const RM_ALLOC: u64 = 0xc030_462b;

pub fn devices(keys: &[&str]) -> Devices {
    let keys: Vec<DeviceKey> = keys.iter().map(|key| key.parse().unwrap()).collect();
    Devices::find(&keys)
}

/// Attaches probes to these devices. Returns `None` and prints the reason if the machine lacks a
/// need.
pub fn probes(keys: &[&str], asked: Asked, point: Option<AttachPoint>) -> Option<Kernel> {
    probes_within(Room::here().unwrap(), keys, asked, point)
}

/// Does the same as `probes`, with this room for counters.
pub fn probes_within(room: Room, keys: &[&str], asked: Asked, point: Option<AttachPoint>) -> Option<Kernel> {
    attached(Kernel::attach_within(room, &devices(keys), asked, point))
}

/// Prints that the machine lacks `what`, and that the test is skipped.
pub fn lacks(what: &str) {
    skip::skipped(&format!("this machine lacks {what}"));
}

fn attached(attached: Result<Kernel, KernelError>) -> Option<Kernel> {
    match attached {
        Ok(kernel) => Some(kernel),
        Err(KernelError::Forbidden(_)) if !skip::root_or_skipped() => None,
        Err(
            error @ (KernelError::NotBuilt
            | KernelError::Forbidden(_)
            | KernelError::Namespace
            | KernelError::Btf(_)),
        ) => {
            skip::skipped(&error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

pub fn open(path: &str) -> File {
    File::options().read(true).write(true).open(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Makes an ioctl with a buffer behind its argument. Returns the result; an error is negative.
pub fn ioctl(fd: RawFd, command: u64) -> i64 {
    ioctl_with(fd, command, &mut [0; 512])
}

/// Does the same as `ioctl`, with the caller's buffer.
pub fn ioctl_with(fd: RawFd, command: u64, argument: &mut [u64; 512]) -> i64 {
    // SAFETY: none of the commands here reads or writes more than the buffer has.
    let result = unsafe { libc::ioctl(fd, command, argument.as_mut_ptr()) };
    if result < 0 {
        -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    } else {
        result.into()
    }
}

/// Returns the counters of a process.
pub fn counted(kernel: &Kernel, pid: u32) -> Vec<(StatKey, StatValue)> {
    kernel.stats().into_iter().filter(|(key, _)| key.pid == pid).collect()
}

/// Returns a process's counters of one command.
pub fn of_command(kernel: &Kernel, pid: u32, command: u64) -> Option<StatValue> {
    counted(kernel, pid)
        .into_iter()
        .find(|(key, _)| u64::from(key.command) == command)
        .map(|(_, value)| value)
}

pub fn fd(file: &File) -> RawFd {
    file.as_raw_fd()
}
