//! The wishes that the environment names. If a value makes no sense, the interposer reports the
//! value in one line and ignores it. A limit that makes no sense keeps the job off the GPU, unless
//! a daemon gives the job a limit of the same kind.

use std::cell::RefCell;
use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use deepres_abi::directory::{CLOSED_MARK, Directory, Places, TENANT_DIRECTORY, TENANT_SOCKET};
use deepres_abi::fallback::{FALLBACK_VARIABLE, Fallback};
use deepres_abi::grant::FailMode;
use deepres_abi::oversubscribe::Oversubscribe;
use deepres_abi::quantity::{parse_memory, parse_share};
use deepres_abi::wire::TENANT_NAME_BYTES;
use deepres_abi::wish::{Key, Wish};
use deepres_abi::{MAX_GPUS, PPM};

use crate::log::say;

const SHARE: &str = Key::Share.variable();
const MEMORY: &str = Key::Memory.variable();
const TENANT: &str = "DEEPRES_TENANT";
const OVERSUBSCRIBE: &str = "DEEPRES_OVERSUBSCRIBE";
/// The signal by which the job wants to hear that it should give memory back.
const PRESSURE: &str = "DEEPRES_PRESSURE";
/// The path of the file into which the interposer records the job. All processes of the job append
/// to the file.
const RECORD: &str = "DEEPRES_RECORD";
/// HAMi's names of the limits, for users who come from HAMi. A name applies to all GPUs; with a
/// suffix such as `_0`, to one GPU. If the job also sets deepres's own variables, deepres's
/// variables decide.
const SHARE_ALIAS: &str = "CUDA_DEVICE_SM_LIMIT";
const MEMORY_ALIAS: &str = "CUDA_DEVICE_MEMORY_LIMIT";
/// HAMi's variable about its share: `disable` lifts the share; `force` and `default` keep the
/// share.
const SHARE_POLICY: &str = "GPU_CORE_UTILIZATION_POLICY";
/// The variable by which NVIDIA's driver bounds the SMs of a client of MPS, percent.
const SM_PERCENTAGE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
/// The variable that names the directory of the MPS control daemon, and the directory without the
/// variable (NVIDIA's MPS guide).
const MPS_PIPES: &str = "CUDA_MPS_PIPE_DIRECTORY";
const DEFAULT_MPS_PIPES: &str = "/tmp/nvidia-mps";

/// The limits for which the job asks on one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limit {
    /// The share, parts per million; 0 for no limit.
    pub share_ppm: u32,
    /// The memory, bytes; 0 for no limit.
    pub memory_bytes: u64,
}

impl Limit {
    /// Returns, for each limit, the lower one of `self` and `fallback`.
    pub fn within(self, fallback: &Fallback) -> Self {
        let lower = |asked: u64, granted: u64| match (asked, granted) {
            (0, limit) | (limit, 0) => limit,
            (asked, granted) => asked.min(granted),
        };
        let granted_ppm = fallback.share_ppm.unwrap_or(0);
        Self {
            share_ppm: lower(self.share_ppm.into(), granted_ppm.into()) as u32,
            memory_bytes: lower(self.memory_bytes, fallback.memory_bytes.unwrap_or(0)),
        }
    }
}

/// A limit that the environment names and that makes no sense.
#[derive(Debug)]
pub struct Unreadable {
    /// The kind of the limit; `None` for the limits that a daemon granted before the job began. A
    /// process with a session does not need those, because the daemon's record is newer.
    pub key: Option<Key>,
    /// The variable, its value, and a value that would make sense.
    pub reason: String,
}

/// The variables by which a job asks for deepres, besides the socket and the wishes.
const OTHERS: [&str; 3] = [TENANT, OVERSUBSCRIBE, FALLBACK_VARIABLE];

/// The wishes and paths of the environment.
#[derive(Debug)]
pub struct Config {
    /// The possible places of the tenant socket, the best first. Never empty.
    pub sockets: Vec<Socket>,
    /// Whether the environment names the socket, so that a daemon should exist.
    pub is_socket_named: bool,
    /// The directory of this user's files of deepres.
    pub directory: PathBuf,
    /// The directory for these files if another user owns [`Self::directory`].
    pub own_directory: PathBuf,
    /// Whether the environment asks for deepres at all. If not, the interposer writes no message
    /// about a missing daemon.
    pub is_asked_for: bool,
    /// The tenant's name, or an empty text.
    pub tenant: String,
    /// The wishes except share and memory, which can differ from GPU to GPU.
    pub wish: Wish,
    /// The file into which the interposer records the process.
    pub record: Option<PathBuf>,
    /// The way in which the job's memory may make room for other tenants.
    pub oversubscribe: Option<Oversubscribe>,
    /// The signal by which the job wants to hear that it should give memory back.
    pub pressure: Option<i32>,
    /// The part of the SMs that the process can use if it is a client of MPS, parts per million.
    pub sm_ppm: u32,
    /// The directory of the MPS control daemon.
    mps_pipes: PathBuf,
    /// The limits for which the job asks, by the GPU's ordinal in this process.
    limits: [Limit; MAX_GPUS],
    /// The limits that the daemon granted to the job before the job began.
    fallback: Fallback,
    /// The limits that make no sense.
    unreadable: Vec<Unreadable>,
}

/// Returns the part of the SMs of a percentage, parts per million; `None` if the driver would not
/// take the text for a percentage.
fn parse_sms(percent: &str) -> Option<u32> {
    let percent: f64 = percent.trim().parse().ok().filter(|percent| *percent > 0.0 && *percent <= 100.0)?;
    Some((percent * f64::from(PPM) / 100.0).round() as u32)
}

/// Returns the identity of a directory: a number that all processes of the host see in the same
/// way. A container can have the directory at another path. Returns 0 if this process does not see
/// the directory.
fn identity(directory: &Path) -> u64 {
    // The numbers of two directories of a file system differ. Those of two file systems differ if
    // the inodes have 32 bits at most, because the device has 32 bits.
    let of = |found: fs::Metadata| (found.dev().rotate_left(u32::BITS) ^ found.ino()).max(1);
    fs::metadata(directory).map_or(0, of)
}

impl Config {
    /// Returns the wishes and paths of the environment.
    pub fn read() -> Self {
        let places = places();
        // Invalid UTF-8 makes no sense for the variables below, and the code there reports it. The
        // tenant's name is the exception, because it can be any text.
        let text = |value: OsString| value.to_string_lossy().into_owned();
        let variable = |name: &str| env::var_os(name).map(text).filter(|value| !value.is_empty());
        let tenant = variable(TENANT);
        let is_name = |name: &String| {
            let is_name = env::var(TENANT).as_ref() == Ok(name);
            if !is_name {
                say!(Warn, "{TENANT}={name} is not UTF-8; ignored");
            }
            is_name
        };
        let tenant = tenant.filter(is_name);
        let is_of_all = |key: &Key| !matches!(key, Key::Share | Key::Memory);
        let wish = Wish::read(Key::ALL.into_iter().filter(is_of_all), variable, |key, text| {
            say!(Warn, "{}={text} is not {}; ignored", key.variable(), key.kind().expected());
        });
        if tenant.as_ref().is_some_and(|name| name.len() >= TENANT_NAME_BYTES) {
            say!(Warn, "{TENANT} has {TENANT_NAME_BYTES} bytes or more; ignored");
        }
        let tenant = tenant.filter(|name| name.len() < TENANT_NAME_BYTES);
        let unreadable = RefCell::new(Vec::new());
        let refuse = |key: Option<Key>, reason: fmt::Arguments<'_>| {
            unreadable.borrow_mut().push(Unreadable { key, reason: reason.to_string() });
        };
        let (limits, is_any_named) = limits(variable, |key, reason| refuse(Some(key), reason));
        let fallback = variable(FALLBACK_VARIABLE).and_then(|text| {
            let fallback = Fallback::parse(&text);
            if fallback.is_none() {
                refuse(None, format_args!("{FALLBACK_VARIABLE}={text} is not a list of limits"));
            }
            fallback
        });
        Self {
            is_asked_for: places.socket().is_some()
                || is_any_named
                || OTHERS.iter().any(|name| variable(name).is_some())
                || Key::ALL.into_iter().any(|key| variable(key.variable()).is_some()),
            sockets: Socket::all(&places),
            is_socket_named: places.socket().is_some(),
            directory: path(places.own().path().collect()),
            own_directory: path(places.users().path().collect()),
            tenant: tenant.unwrap_or_default(),
            wish,
            record: env::var_os(RECORD).filter(|value| !value.is_empty()).map(PathBuf::from),
            oversubscribe: variable(OVERSUBSCRIBE).and_then(|value| {
                value.parse().map_err(|error| say!(Warn, "{OVERSUBSCRIBE}={value}: {error}; ignored")).ok()
            }),
            sm_ppm: variable(SM_PERCENTAGE).and_then(|percent| parse_sms(&percent)).unwrap_or(PPM),
            mps_pipes: env::var_os(MPS_PIPES)
                .filter(|value| !value.is_empty())
                .map_or_else(|| DEFAULT_MPS_PIPES.into(), PathBuf::from),
            pressure: variable(PRESSURE).and_then(|value| {
                let signal = signal_named(&value);
                if signal.is_none() {
                    say!(
                        Warn,
                        "{PRESSURE}={value} is not one of SIGUSR1, SIGUSR2, SIGURG and SIGRTMIN+N; ignored"
                    );
                }
                signal
            }),
            limits,
            fallback: fallback.unwrap_or_default(),
            unreadable: unreadable.into_inner(),
        }
    }

    /// Returns the identity of the MPS server of a process that is a client of MPS: the identity of
    /// the directory of its control daemon. Returns 0 if the process does not see the directory. A
    /// control daemon has one server at a time, except after a restart. The clients of the earlier
    /// server then look like clients of the new server.
    pub fn mps_server(&self) -> u64 {
        identity(&self.mps_pipes)
    }

    /// Returns the tenant sockets that the process trusts at this moment, the best first. If anyone
    /// can make directories in a place, the process trusts a socket there only if its directory
    /// belongs to the user.
    pub fn believed_sockets(&self) -> Vec<PathBuf> {
        believed(&self.sockets)
    }

    /// Returns the limits that the process keeps by itself on the GPU with this ordinal. If the
    /// job's wish and the daemon's grant differ, the lower limit holds.
    pub fn limit(&self, ordinal: usize) -> Limit {
        self.limits.get(ordinal).copied().unwrap_or_default().within(&self.fallback)
    }

    /// Returns the limits that the daemon granted to the job before the job began, and whether
    /// launches pass or fail if the process gets no session. `deepres run` tells the fail mode to
    /// the process. So does the mark of an earlier daemon, in each place where the process looks
    /// for a daemon.
    pub fn fallback(&self) -> Fallback {
        let is_marked = |socket: &PathBuf| socket.with_file_name(CLOSED_MARK).exists();
        match self.believed_sockets().iter().any(is_marked) {
            true => Fallback { fail_mode: FailMode::Closed, ..self.fallback },
            false => self.fallback,
        }
    }

    /// Returns the wishes for a daemon. The daemon knows one limit for all GPUs, so the result has
    /// the smallest limit of any GPU. A deadline counts from the job's start, `age_ns` ago.
    pub fn wishes(&self, age_ns: u64) -> Wish {
        let least = |of: fn(&Limit) -> u64| self.limits.iter().map(of).filter(|limit| *limit != 0).min();
        Wish {
            share_ppm: least(|limit| limit.share_ppm.into()).and_then(|ppm| u32::try_from(ppm).ok()),
            memory_bytes: least(|limit| limit.memory_bytes),
            deadline_ns: self.wish.deadline_ns.map(|deadline_ns| deadline_ns.saturating_sub(age_ns).max(1)),
            ..self.wish
        }
    }

    /// Returns whether the process must not use a GPU unless something holds it to its limits. The
    /// process has limits, or its launches are to fail without a daemon.
    pub fn is_held(&self) -> bool {
        self.is_limited() || self.fallback().is_shut()
    }

    /// Returns whether the process has a limit to keep without a daemon, readable or not.
    pub fn is_limited(&self) -> bool {
        !self.unreadable.is_empty() || (0..MAX_GPUS).any(|ordinal| self.limit(ordinal) != Limit::default())
    }

    /// Returns the limits that the environment names and that make no sense. The process cannot
    /// keep such a limit by itself.
    pub fn unreadable(&self) -> &[Unreadable] {
        &self.unreadable
    }
}

/// Returns the sockets that [`Config::believed_sockets`] returns, without reading the rest of the
/// environment.
pub fn tenant_sockets() -> Vec<PathBuf> {
    believed(&Socket::all(&places()))
}

fn believed(sockets: &[Socket]) -> Vec<PathBuf> {
    sockets.iter().filter(|socket| socket.is_believed()).map(|socket| socket.path.clone()).collect()
}

/// Returns the places of files, by the environment and the user.
fn places() -> Places<Vec<u8>> {
    // SAFETY: the call has no arguments and cannot fail.
    let user = unsafe { libc::getuid() };
    Places::read(user, |name| env::var_os(name).map(OsString::into_vec))
}

/// Returns the absolute form of a path. A relative path starts at the working directory of this
/// moment. The process can change its working directory later.
fn path(bytes: Vec<u8>) -> PathBuf {
    let path = PathBuf::from(OsString::from_vec(bytes));
    std::path::absolute(&path).unwrap_or(path)
}

/// A possible place of the tenant socket, and the user whom the process trusts there.
#[derive(Debug)]
pub struct Socket {
    /// The path of the socket.
    pub path: PathBuf,
    /// A directory above the socket, and the user who must own the directory. If `None`, the
    /// process trusts any listener.
    pub within: Option<(PathBuf, u32)>,
}

impl Socket {
    /// Returns all sockets at which a daemon may listen, the best first.
    fn all(places: &Places<Vec<u8>>) -> Vec<Self> {
        if let Some(named) = places.socket() {
            return vec![Self { path: path(named.clone()), within: None }];
        }
        let at = |candidate: Directory<'_>| {
            let directory = path(candidate.path().collect());
            let socket = directory.join(TENANT_DIRECTORY).join(TENANT_SOCKET);
            let owner = match candidate {
                Directory::Temporary(user) => Some(user),
                _ => None,
            };
            Self { path: socket, within: owner.map(|user| (directory, user)) }
        };
        places.candidates().map(at).collect()
    }

    fn is_believed(&self) -> bool {
        self.within.as_ref().is_none_or(|(directory, user)| is_of(directory, *user))
    }
}

/// Returns whether the directory belongs to the user. In a place where anyone can make directories,
/// another user could pose as the user's daemon.
fn is_of(directory: &Path, user: u32) -> bool {
    fs::symlink_metadata(directory).is_ok_and(|found| found.is_dir() && found.uid() == user)
}

/// Returns the limits by ordinal, and whether the environment has any variable of a limit, with a
/// valid value or not. Calls `refuse` with the kind and the reason for each limit that makes no
/// sense.
fn limits(
    variable: impl Fn(&str) -> Option<String>,
    refuse: impl Fn(Key, fmt::Arguments<'_>),
) -> ([Limit; MAX_GPUS], bool) {
    let is_any_named = std::cell::Cell::new(false);
    let read = |key: Key, name: &str, parse: fn(&str) -> Option<u64>, what: &str| {
        let value = variable(name)?;
        is_any_named.set(true);
        let parsed = parse(&value);
        if parsed.is_none() {
            refuse(key, format_args!("{name}={value} is not {what}"));
        }
        parsed
    };
    let share = |text: &str| parse_share(text).map(u64::from);
    let shares = |name: &str| read(Key::Share, name, whole_percent, "a whole percentage from 0 to 100");
    let sizes = |name: &str| read(Key::Memory, name, size_or_none, "a size of 1 MiB or more, like 3000m");
    let of_each = |alias: &str, read: &dyn Fn(&str) -> Option<u64>| {
        let every = read(alias);
        std::array::from_fn(|ordinal| read(&format!("{alias}_{ordinal}")).or(every).unwrap_or(0))
    };
    let is_lifted = match variable(SHARE_POLICY).as_deref() {
        Some("disable" | "DISABLE") => true,
        None | Some("default" | "DEFAULT" | "force" | "FORCE") => false,
        Some(other) => {
            // The share stays, so no limit is lost.
            say!(Warn, "{SHARE_POLICY}={other} is not one of default, force and disable; ignored");
            false
        }
    };
    let own = read(Key::Share, SHARE, share, "a share from 1% to 100%, like 30%");
    let shares: [u64; MAX_GPUS] = match own {
        Some(ppm) => [ppm; MAX_GPUS],
        None if is_lifted => [0; MAX_GPUS],
        None => of_each(SHARE_ALIAS, &shares),
    };
    let own = read(Key::Memory, MEMORY, parse_memory, "a size of 1 MiB or more, like 8GiB");
    let sizes: [u64; MAX_GPUS] = match own {
        Some(bytes) => [bytes; MAX_GPUS],
        None => of_each(MEMORY_ALIAS, &sizes),
    };
    let limit = |(share_ppm, memory_bytes)| Limit { share_ppm: share_ppm as u32, memory_bytes };
    let mut limits = [Limit::default(); MAX_GPUS];
    for (place, found) in limits.iter_mut().zip(shares.into_iter().zip(sizes)) {
        *place = limit(found);
    }
    (limits, is_any_named.get())
}

/// Returns HAMi's share in parts per million. The text is a number from 0 to 100 without a sign; 0
/// means no limit.
fn whole_percent(text: &str) -> Option<u64> {
    const WHOLE: u64 = 100;
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let percent = text.parse::<u64>().ok().filter(|percent| is_plain && *percent <= WHOLE)?;
    Some(percent * u64::from(PPM) / WHOLE)
}

/// Returns HAMi's size, for example `3000m`, in bytes. deepres's grammar includes HAMi's grammar,
/// except for 0, which means no limit, and for sizes below the smallest limit.
fn size_or_none(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
    let is_zero = !digits.is_empty() && digits.bytes().all(|byte| byte == b'0');
    if is_zero { Some(0) } else { parse_memory(text) }
}

/// Returns a signal by its name: `SIGUSR1`, `SIGUSR2`, `SIGURG` or `SIGRTMIN+N`. Returns `None` for
/// any other name, because programs use other signals for themselves.
fn signal_named(name: &str) -> Option<i32> {
    if let Some(number) = name.strip_prefix("SIGRTMIN+") {
        let signal = number.parse::<i32>().ok()?.checked_add(libc::SIGRTMIN())?;
        return (libc::SIGRTMIN()..=libc::SIGRTMAX()).contains(&signal).then_some(signal);
    }
    match name {
        "SIGUSR1" => Some(libc::SIGUSR1),
        "SIGUSR2" => Some(libc::SIGUSR2),
        "SIGURG" => Some(libc::SIGURG),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the limits on the first two GPUs, and the reports of invalid values.
    fn read(variables: &[(&str, &str)]) -> (Limit, Limit, Vec<String>) {
        let refused = RefCell::new(Vec::new());
        let variable = |name: &str| {
            variables.iter().find(|(named, _)| *named == name).map(|(_, value)| (*value).to_owned())
        };
        let (limits, _) = limits(variable, |_, reason| refused.borrow_mut().push(reason.to_string()));
        (limits[0], limits[1], refused.into_inner())
    }

    fn limit(share_percent: u32, memory_mib: u64) -> Limit {
        Limit { share_ppm: share_percent * PPM / 100, memory_bytes: memory_mib << 20 }
    }

    #[test]
    fn a_directory_has_the_same_identity_by_each_path_and_another_directory_has_another() {
        let [one, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let link = other.path().join("link");
        std::os::unix::fs::symlink(one.path(), &link).unwrap();
        assert_eq!(identity(&link), identity(one.path()));
        assert_eq!(identity(&one.path().join(".")), identity(one.path()));
        assert_ne!(identity(other.path()), identity(one.path()));
        assert_ne!(identity(one.path()), 0);
        assert_eq!(identity(&one.path().join("none")), 0);
    }

    #[test]
    fn limits_hold_on_every_gpu() {
        let (first, second, refused) = read(&[(SHARE, "30%"), (MEMORY, "8GiB")]);
        assert_eq!((first, second), (limit(30, 8192), limit(30, 8192)));
        assert!(refused.is_empty());
        assert_eq!(read(&[]).0, Limit::default());
    }

    #[test]
    fn hamis_variables_are_understood_for_every_gpu_and_for_one() {
        let (first, second, refused) = read(&[
            (SHARE_ALIAS, "50"),
            (MEMORY_ALIAS, "1g"),
            ("CUDA_DEVICE_MEMORY_LIMIT_0", "3000m"),
            ("CUDA_DEVICE_SM_LIMIT_1", "20"),
        ]);
        assert_eq!((first, second), (limit(50, 3000), limit(20, 1024)));
        assert!(refused.is_empty());
    }

    #[test]
    fn of_the_limits_that_a_job_asked_for_and_was_granted_the_lower_ones_hold() {
        let granted = |share_percent: Option<u32>, memory_mib: Option<u64>| Fallback {
            share_ppm: share_percent.map(|percent| percent * PPM / 100),
            memory_bytes: memory_mib.map(|mib| mib << 20),
            ..Fallback::default()
        };
        assert_eq!(limit(30, 0).within(&granted(None, None)), limit(30, 0));
        assert_eq!(limit(0, 0).within(&granted(Some(20), Some(512))), limit(20, 512));
        assert_eq!(limit(30, 256).within(&granted(Some(20), Some(512))), limit(20, 256));
    }

    #[test]
    fn a_zero_of_hamis_is_no_limit() {
        for zero in ["0", "0m", "000G"] {
            let (first, _, refused) = read(&[(SHARE_ALIAS, "0"), (MEMORY_ALIAS, zero)]);
            assert_eq!((first, refused.len()), (Limit::default(), 0), "{zero}");
        }
    }

    #[test]
    fn hamis_policy_may_lift_its_share_alone() {
        let of = |policy: &str| read(&[(SHARE_ALIAS, "50"), (MEMORY_ALIAS, "1g"), (SHARE_POLICY, policy)]);
        for policy in ["default", "DEFAULT", "force", "FORCE"] {
            assert_eq!(of(policy), (limit(50, 1024), limit(50, 1024), Vec::new()), "{policy}");
        }
        for policy in ["disable", "DISABLE"] {
            assert_eq!(of(policy), (limit(0, 1024), limit(0, 1024), Vec::new()), "{policy}");
        }
        let (first, _, refused) = of("Disabled");
        assert_eq!((first, refused.len()), (limit(50, 1024), 0), "the share stays: {refused:?}");
        let ours = [(SHARE, "40%"), (SHARE_POLICY, "disable")];
        assert_eq!(read(&ours).0, limit(40, 0), "the policy is not about our share");
    }

    #[test]
    fn our_variables_win() {
        let variables = [
            (SHARE, "40%"),
            (SHARE_ALIAS, "50"),
            ("CUDA_DEVICE_SM_LIMIT_0", "60"),
            (MEMORY, "2GiB"),
            (MEMORY_ALIAS, "1g"),
        ];
        assert_eq!(read(&variables).0, limit(40, 2048));
    }

    #[test]
    fn a_variable_that_makes_no_sense_is_named_and_not_counted() {
        for (name, value) in [
            (SHARE, "abc"),
            (SHARE, "0%"),
            (SHARE, "120%"),
            (SHARE_ALIAS, "50%"),
            (SHARE_ALIAS, "101"),
            (SHARE_ALIAS, "-5"),
            (SHARE_ALIAS, "+5"),
            (MEMORY, "12XB"),
            (MEMORY, "0"),
            (MEMORY, "8"),
            (MEMORY_ALIAS, "8"),
            (MEMORY_ALIAS, "1x"),
            (MEMORY_ALIAS, "m"),
        ] {
            let (first, _, refused) = read(&[(name, value)]);
            assert_eq!(first, Limit::default(), "{name}={value}");
            assert_eq!(refused.len(), 1, "{name}={value}: {refused:?}");
            assert!(refused[0].starts_with(&format!("{name}={value} is not")), "{refused:?}");
        }
        let (first, _, _) = read(&[(SHARE, "abc"), (MEMORY, "1GiB"), (SHARE_ALIAS, "10")]);
        assert_eq!(first, limit(10, 1024), "the rest counts");
    }

    #[test]
    fn signals_that_programs_live_by_are_not_to_be_had() {
        assert_eq!(signal_named("SIGUSR2"), Some(libc::SIGUSR2));
        assert_eq!(signal_named("SIGRTMIN+2"), Some(libc::SIGRTMIN() + 2));
        for name in ["SIGKILL", "SIGRTMIN+99", "SIGRTMIN+-9", "USR1", ""] {
            assert_eq!(signal_named(name), None, "{name}");
        }
    }
}
