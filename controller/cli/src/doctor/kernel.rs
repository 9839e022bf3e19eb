//! Checks for the probes: whether the kernel is new enough and has type information, and whether
//! the user may load programs.

use super::Check;
use deepres_daemon::probes::btf;
use deepres_daemon::probes::devices::Devices;
use deepres_daemon::probes::kernel::{Asked, Kernel, KernelError, are_built, is_in_host_pid_namespace};
use std::path::Path;

/// The oldest kernel with all features that the probes use. The needed features are ring buffers
/// (5.8), the current task with its type (5.11), atomics (5.12) and attach cookies (5.15).
const OLDEST: (u32, u32) = (5, 15);
/// Numbers and names of the capabilities that the daemon needs. With them, the daemon may load
/// probes, see the open files and mappings of other users' processes, and stop these processes.
const CAPABILITIES: [(u32, &str); 6] = [
    (39, "CAP_BPF"),
    (38, "CAP_PERFMON"),
    (40, "CAP_CHECKPOINT_RESTORE"),
    (19, "CAP_SYS_PTRACE"),
    (2, "CAP_DAC_READ_SEARCH"),
    (5, "CAP_KILL"),
];
/// The capability that includes the first three capabilities of the list (capabilities(7)).
const CAP_SYS_ADMIN: u32 = 21;
const OF_SYS_ADMIN: [u32; 3] = [39, 38, 40];
const TRACING: &str = "/sys/kernel/tracing/events/syscalls/sys_enter_ioctl";

pub fn checks() -> Vec<Check> {
    vec![release(), types(), programs(), namespace(), tracepoints(), capabilities(), lockdown(), attaches()]
}

fn read(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

fn release() -> Check {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    match version(&release) {
        Some(version) if version >= OLDEST => Check::good("kernel", release),
        _ => Check::limited(
            "kernel",
            release,
            format!(
                "use kernel {}.{} or newer for the eBPF programs; without them, the daemon finds unmanaged processes by NVML and /proc alone",
                OLDEST.0, OLDEST.1
            ),
        ),
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

fn types() -> Check {
    match btf::offsets() {
        Ok(_) => Check::good("btf", "the kernel publishes its types"),
        Err(error) => Check::limited(
            "btf",
            error.to_string(),
            "use a kernel that is built with CONFIG_DEBUG_INFO_BTF, for example your distribution's",
        ),
    }
}

fn programs() -> Check {
    if are_built() {
        Check::good("programs", "deepres was built with its eBPF programs")
    } else {
        Check::limited(
            "programs",
            "deepres was built without its eBPF programs",
            "run `cargo xtask ebpf` and build deepres again, or take a released build",
        )
    }
}

fn namespace() -> Check {
    if is_in_host_pid_namespace() {
        Check::good("pid namespace", "the host's")
    } else {
        Check::limited(
            "pid namespace",
            "not the host's: the kernel reports process ids of the host's namespace",
            "run the daemon in the host's pid namespace (containers: --pid=host)",
        )
    }
}

fn tracepoints() -> Check {
    if Path::new(TRACING).exists() {
        Check::good("tracepoints", "the tracing file system is mounted")
    } else {
        Check::advice(
            "tracepoints",
            "the tracing file system is not mounted at /sys/kernel/tracing: deepres mounts it for itself, or uses raw tracepoints",
            "if the log says that deepres uses raw tracepoints: `mount -t tracefs nodev /sys/kernel/tracing`",
        )
    }
}

fn capabilities() -> Check {
    let status = read("/proc/self/status").unwrap_or_default();
    let missing = missing_capabilities(&status);
    if missing.is_empty() {
        return Check::good("capabilities", "all that the eBPF programs and `hold` need");
    }
    Check::limited(
        "capabilities",
        format!("without {}", missing.join(", ")),
        "run as root, or give the service AmbientCapabilities=CAP_BPF CAP_PERFMON CAP_CHECKPOINT_RESTORE CAP_SYS_PTRACE CAP_DAC_READ_SEARCH CAP_KILL",
    )
}

fn missing_capabilities(status: &str) -> Vec<&'static str> {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let has = |bit: u32| mask >> bit & 1 == 1;
    let lacks = |bit: u32| !(has(bit) || has(CAP_SYS_ADMIN) && OF_SYS_ADMIN.contains(&bit));
    CAPABILITIES.iter().filter(|(bit, _)| lacks(*bit)).map(|(_, name)| *name).collect()
}

fn lockdown() -> Check {
    lockdown_in(Path::new("/sys/kernel/security"))
}

/// Returns the check of the lockdown. `security` is the mount point of the security file system.
fn lockdown_in(security: &Path) -> Check {
    // The file `lsm` exists whenever the file system is mounted.
    if !security.join("lsm").exists() {
        return Check::advice(
            "lockdown",
            "unknown: the security file system is not mounted",
            "if the probes do not attach: `mount -t securityfs nodev /sys/kernel/security`, and run this command again",
        );
    }
    match security.join("lockdown").to_str().and_then(read) {
        Some(modes) if modes.contains("[confidentiality]") => Check::limited(
            "lockdown",
            "confidentiality: programs in the kernel may not read its memory",
            "if you want the probes: boot with lockdown=integrity or none",
        ),
        Some(modes) => Check::good("lockdown", modes),
        None => Check::good("lockdown", "none"),
    }
}

fn attaches() -> Check {
    match Kernel::attach(&Devices::find(&[]), Asked::None, None) {
        Ok(kernel) => Check::good(
            "probes",
            format!(
                "the kernel loads the programs; they attach by {}, because {}",
                kernel.attach_point().name(),
                kernel.why()
            ),
        ),
        Err(error) => Check::limited("probes", error.to_string(), remedy(&error)),
    }
}

/// Returns the remedy for probes that the daemon cannot attach.
fn remedy(error: &KernelError) -> &'static str {
    match error {
        KernelError::NotBuilt | KernelError::Stale => {
            "run `cargo xtask ebpf` and build deepres again, or take a released build"
        }
        KernelError::Forbidden(_) => {
            "run the daemon as root, or give the daemon CAP_BPF and CAP_PERFMON (AmbientCapabilities= in a unit)"
        }
        KernelError::Btf(_) => {
            "use a kernel that is built with CONFIG_DEBUG_INFO_BTF, or a deepres release that knows this kernel"
        }
        KernelError::Namespace => "run the daemon in the host's pid namespace (containers: --pid=host)",
        KernelError::Refused(_) => {
            "deepres runs without probes; to report the fault, send the output of `deepres daemon --log debug` and `uname -r`"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lockdown_is_told_from_none_and_from_what_cannot_be_seen() {
        use crate::doctor::Verdict;
        let security = tempfile::tempdir().unwrap();
        let verdict = || lockdown_in(security.path()).verdict;
        let write = |file: &str, text: &str| std::fs::write(security.path().join(file), text).unwrap();
        assert_eq!(verdict(), Verdict::Note);
        write("lsm", "capability,lockdown");
        assert_eq!(verdict(), Verdict::Good);
        for (modes, expected) in [
            ("none [integrity] confidentiality\n", Verdict::Good),
            ("none integrity [confidentiality]\n", Verdict::Limited),
        ] {
            write("lockdown", modes);
            assert_eq!(verdict(), expected, "{modes}");
        }
    }

    #[test]
    fn kernels_are_compared_by_their_numbers() {
        assert_eq!(version("6.18.44-fc"), Some((6, 18)));
        assert_eq!(version("5.9.0-generic"), Some((5, 9)));
        assert!(version("5.9.0").unwrap() < OLDEST && version("5.15.1").unwrap() >= OLDEST);
        assert_eq!(version("x"), None);
    }

    #[test]
    fn the_capabilities_that_are_missing_are_named() {
        assert_eq!(missing_capabilities("CapEff:\t000001ffffffffff\n"), [""; 0]);
        assert_eq!(
            missing_capabilities("CapEff:\t0000000000200000\n"),
            ["CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH", "CAP_KILL"],
            "CAP_SYS_ADMIN stands for the others"
        );
        assert_eq!(
            missing_capabilities("CapEff:\t0000004000000020\n"),
            ["CAP_BPF", "CAP_CHECKPOINT_RESTORE", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"]
        );
        assert_eq!(missing_capabilities("").len(), CAPABILITIES.len());
    }
}
