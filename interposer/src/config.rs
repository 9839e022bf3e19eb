//! What the environment asks for. A value that makes no sense is reported in one line and treated as absent.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use deepres_abi::class::Class;
use deepres_abi::criticality::Criticality;
use deepres_abi::directory::{Directory, Places, TENANT_DIRECTORY, TENANT_SOCKET};
use deepres_abi::oversubscribe::Oversubscribe;
use deepres_abi::quantity::{parse_bytes, parse_share, parse_time_ns};
use deepres_abi::wire::TENANT_NAME_BYTES;
use deepres_abi::{MAX_GPUS, PPM};

use crate::log::say;

const SHARE: &str = "DEEPRES_SHARE";
const MEMORY: &str = "DEEPRES_MEMORY";
const TENANT: &str = "DEEPRES_TENANT";
const CLASS: &str = "DEEPRES_CLASS";
const CRITICALITY: &str = "DEEPRES_CRITICALITY";
const DEADLINE: &str = "DEEPRES_DEADLINE";
const SIZE: &str = "DEEPRES_SIZE";
const SLO: &str = "DEEPRES_SLO";
const OVERSUBSCRIBE: &str = "DEEPRES_OVERSUBSCRIBE";
const FOLLOW_USE: &str = "DEEPRES_MEMORY_FOLLOW_USE";
/// Whether the time of its copies is charged.
const CHARGE_COPIES: &str = "DEEPRES_CHARGE_COPIES";
/// The signal by which the job wants to be told that it is to give memory back.
const PRESSURE: &str = "DEEPRES_PRESSURE";
/// Names the file that the process is recorded into, to which processes of the job append.
const RECORD: &str = "DEEPRES_RECORD";
/// HAMi's names, for those who come from there: for every GPU, or with `_0` and so on for one. Ours win over them.
const SHARE_ALIAS: &str = "CUDA_DEVICE_SM_LIMIT";
const MEMORY_ALIAS: &str = "CUDA_DEVICE_MEMORY_LIMIT";

/// What is asked for on one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limit {
    /// Share, parts per million; 0: none.
    pub share_ppm: u32,
    /// Memory, bytes; 0: none.
    pub memory_bytes: u64,
}

/// Variables that speak of deepres beside the socket and the limits.
const OTHERS: [&str; 9] =
    [TENANT, CLASS, CRITICALITY, DEADLINE, SIZE, SLO, OVERSUBSCRIBE, FOLLOW_USE, CHARGE_COPIES];

/// What the environment says of the job; what it does not say is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Job {
    /// How critical it is.
    pub criticality: Option<Criticality>,
    /// When it has to be done, ns from its start.
    pub deadline_ns: Option<u64>,
    /// GPU time that it takes, ns.
    pub size_ns: Option<u64>,
    /// How soon its requests are to be answered, ns.
    pub slo_ns: Option<u64>,
}

impl Job {
    fn read(variable: impl Fn(&str) -> Option<String>, refuse: impl Fn(fmt::Arguments<'_>)) -> Self {
        let time = |name: &str| {
            let value = variable(name)?;
            let time_ns = parse_time_ns(&value);
            if time_ns.is_none() {
                refuse(format_args!("{name}={value} is not a time like 30ms, 90s or 1.5h"));
            }
            time_ns
        };
        let criticality = variable(CRITICALITY).and_then(|value| {
            value.parse().map_err(|error| refuse(format_args!("{CRITICALITY}={value}: {error}"))).ok()
        });
        Self { criticality, deadline_ns: time(DEADLINE), size_ns: time(SIZE), slo_ns: time(SLO) }
    }
}

/// Requests and addresses from the environment.
#[derive(Debug)]
pub struct Config {
    /// Where the tenant socket may be, best first; never empty.
    pub sockets: Vec<Socket>,
    /// Whether the environment names the socket: then there is a daemon, or should be.
    pub is_socket_named: bool,
    /// Where this user's files of deepres are.
    pub directory: PathBuf,
    /// Whether the environment mentions deepres at all: if not, the absence of a daemon is nothing to talk about.
    pub is_asked_for: bool,
    /// The tenant's name, or empty.
    pub tenant: String,
    /// The class asked for.
    pub class: Option<Class>,
    /// What is said of the job's priority.
    pub job: Job,
    /// The file that the process is recorded into.
    pub record: Option<PathBuf>,
    /// How its memory may make room for others'.
    pub oversubscribe: Option<Oversubscribe>,
    /// Whether what of its memory it does not use may be others'.
    pub memory_follows_use: Option<bool>,
    /// Whether the time of its copies is charged.
    pub charge_copies: Option<bool>,
    /// The signal that says that memory is to be given back.
    pub pressure: Option<i32>,
    /// By ordinal in this process.
    limits: [Limit; MAX_GPUS],
}

impl Config {
    /// Reads the environment.
    pub fn read() -> Self {
        let places = places();
        // What is not UTF-8 makes no sense below either, and is named there; but for names, which may be any text.
        let text = |value: OsString| value.to_string_lossy().into_owned();
        let variable = |name: &str| env::var_os(name).map(text).filter(|value| !value.is_empty());
        let (tenant, class) = (variable(TENANT), variable(CLASS));
        let is_name = |name: &String| {
            let is_name = env::var(TENANT).as_ref() == Ok(name);
            if !is_name {
                say!(Warn, "{TENANT}={name} is not UTF-8; ignored");
            }
            is_name
        };
        let tenant = tenant.filter(is_name);
        let job = Job::read(variable, |refused| say!(Warn, "{refused}; ignored"));
        if tenant.as_ref().is_some_and(|name| name.len() >= TENANT_NAME_BYTES) {
            say!(
                Warn,
                "{TENANT} has {TENANT_NAME_BYTES} bytes or more: the daemon is told of its beginning, and takes all that begin alike for one tenant"
            );
        }
        let wish = |name: &str| {
            let value = variable(name)?;
            let wish = switch(&value);
            if wish.is_none() {
                say!(Warn, "{name}={value} is neither true nor false; ignored");
            }
            wish
        };
        let (limits, is_any_named) = limits(variable, |refused| say!(Warn, "{refused}; ignored"));
        Self {
            is_asked_for: places.socket().is_some()
                || is_any_named
                || OTHERS.iter().any(|name| variable(name).is_some()),
            sockets: Socket::all(&places),
            is_socket_named: places.socket().is_some(),
            directory: path(places.own().path().collect()),
            tenant: tenant.unwrap_or_default(),
            class: class.as_deref().and_then(|value| {
                value.parse().map_err(|error| say!(Warn, "{CLASS}={value}: {error}; ignored")).ok()
            }),
            job,
            record: env::var_os(RECORD).filter(|value| !value.is_empty()).map(PathBuf::from),
            oversubscribe: variable(OVERSUBSCRIBE).and_then(|value| {
                value.parse().map_err(|error| say!(Warn, "{OVERSUBSCRIBE}={value}: {error}; ignored")).ok()
            }),
            memory_follows_use: wish(FOLLOW_USE),
            charge_copies: wish(CHARGE_COPIES),
            pressure: variable(PRESSURE).and_then(|value| {
                let signal = signal_named(&value);
                if signal.is_none() {
                    say!(
                        Warn,
                        "{PRESSURE}={value} is none of SIGUSR1, SIGUSR2, SIGURG and SIGRTMIN+N; ignored"
                    );
                }
                signal
            }),
            limits,
        }
    }

    /// Where a tenant socket would be believed now, best first: a directory in a place where anyone makes some has to be the user's own.
    pub fn believed_sockets(&self) -> Vec<PathBuf> {
        believed(&self.sockets)
    }

    /// What is asked for on the GPU with that ordinal.
    pub fn limit(&self, ordinal: usize) -> Limit {
        self.limits.get(ordinal).copied().unwrap_or_default()
    }

    /// What is asked of a daemon, which knows one limit for all GPUs: the smallest.
    pub fn request(&self) -> Limit {
        let least = |of: fn(&Limit) -> u64| self.limits.iter().map(of).filter(|limit| *limit != 0).min();
        Limit {
            share_ppm: least(|limit| limit.share_ppm.into()).unwrap_or(0) as u32,
            memory_bytes: least(|limit| limit.memory_bytes).unwrap_or(0),
        }
    }

    /// Whether there is a limit to keep without a daemon.
    pub fn is_limited(&self) -> bool {
        self.limits.iter().any(|limit| *limit != Limit::default())
    }
}

/// As [`Config::believed_sockets`], and nothing else read.
pub fn tenant_sockets() -> Vec<PathBuf> {
    believed(&Socket::all(&places()))
}

fn believed(sockets: &[Socket]) -> Vec<PathBuf> {
    sockets.iter().filter(|socket| socket.is_believed()).map(|socket| socket.path.clone()).collect()
}

/// What the environment and the user say about where files are.
fn places() -> Places<Vec<u8>> {
    // SAFETY: no arguments, cannot fail.
    let user = unsafe { libc::getuid() };
    Places::read(user, |name| env::var_os(name).map(OsString::into_vec))
}

/// What is relative starts where the process is now, wherever it goes.
fn path(bytes: Vec<u8>) -> PathBuf {
    let path = PathBuf::from(OsString::from_vec(bytes));
    std::path::absolute(&path).unwrap_or(path)
}

/// A place where the tenant socket may be.
#[derive(Debug)]
pub struct Socket {
    /// The socket's.
    pub path: PathBuf,
    /// The directory that it is in somewhere, and the user who has to own that; none: whoever listens is believed.
    pub within: Option<(PathBuf, u32)>,
}

impl Socket {
    /// All that there may be, best first.
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

/// Whether the directory belongs to the user: in a place where anyone makes directories, another may pose as their daemon.
fn is_of(directory: &Path, user: u32) -> bool {
    fs::symlink_metadata(directory).is_ok_and(|found| found.is_dir() && found.uid() == user)
}

/// Reads a yes or no, as people write it.
fn switch(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Some(true),
        "false" | "no" | "off" | "0" => Some(false),
        _ => None,
    }
}

/// The limits by ordinal, and whether any was named, readable or not.
fn limits(
    variable: impl Fn(&str) -> Option<String>,
    refuse: impl Fn(fmt::Arguments<'_>),
) -> ([Limit; MAX_GPUS], bool) {
    let is_any_named = std::cell::Cell::new(false);
    let read = |name: &str, parse: fn(&str) -> Option<u64>, what: &str| {
        let value = variable(name)?;
        is_any_named.set(true);
        let parsed = parse(&value);
        if parsed.is_none() {
            refuse(format_args!("{name}={value} is not {what}"));
        }
        parsed
    };
    let share = |text: &str| parse_share(text).map(u64::from);
    let shares = |name: &str| read(name, whole_percent, "a whole percentage from 0 to 100");
    let sizes = |name: &str| read(name, size_or_none, "a size like 3000m");
    let of_each = |alias: &str, read: &dyn Fn(&str) -> Option<u64>| {
        let every = read(alias);
        std::array::from_fn(|ordinal| read(&format!("{alias}_{ordinal}")).or(every).unwrap_or(0))
    };
    let shares: [u64; MAX_GPUS] = match read(SHARE, share, "a share from 1% to 100%, like 30%") {
        Some(ppm) => [ppm; MAX_GPUS],
        None => of_each(SHARE_ALIAS, &shares),
    };
    let sizes: [u64; MAX_GPUS] = match read(MEMORY, parse_bytes, "a size like 8GiB") {
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

/// HAMi's share: a number from 0 to 100 without a sign, where 0 is no limit. In parts per million.
fn whole_percent(text: &str) -> Option<u64> {
    const WHOLE: u64 = 100;
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let percent = text.parse::<u64>().ok().filter(|percent| is_plain && *percent <= WHOLE)?;
    Some(percent * u64::from(PPM) / WHOLE)
}

/// HAMi's size, `3000m`, in a grammar that ours holds, but for 0, which is no limit.
fn size_or_none(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
    let is_zero = !digits.is_empty() && digits.bytes().all(|byte| byte == b'0');
    if is_zero { Some(0) } else { parse_bytes(text) }
}

/// A signal by name: `SIGUSR1`, `SIGUSR2`, `SIGURG`, or `SIGRTMIN+N`. Others mean something else to programs.
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
    use std::cell::RefCell;

    /// The limits on the first two GPUs, and what was refused.
    fn read(variables: &[(&str, &str)]) -> (Limit, Limit, Vec<String>) {
        let refused = RefCell::new(Vec::new());
        let variable = |name: &str| {
            variables.iter().find(|(named, _)| *named == name).map(|(_, value)| (*value).to_owned())
        };
        let (limits, _) = limits(variable, |text| refused.borrow_mut().push(text.to_string()));
        (limits[0], limits[1], refused.into_inner())
    }

    fn limit(share_percent: u32, memory_mib: u64) -> Limit {
        Limit { share_ppm: share_percent * PPM / 100, memory_bytes: memory_mib << 20 }
    }

    #[test]
    fn what_is_said_of_the_job_is_read_and_what_makes_no_sense_is_named() {
        let variables = [(CRITICALITY, "high"), (DEADLINE, "2h"), (SIZE, "soon"), (SLO, "30ms")];
        let variable = |name: &str| {
            variables.iter().find(|(named, _)| *named == name).map(|(_, value)| (*value).to_owned())
        };
        let refused = RefCell::new(Vec::new());
        let job = Job::read(variable, |text| refused.borrow_mut().push(text.to_string()));
        assert_eq!(job.criticality, "high".parse().ok());
        assert_eq!((job.deadline_ns, job.size_ns), (Some(7_200_000_000_000), None));
        assert_eq!(job.slo_ns, Some(30_000_000));
        assert_eq!(refused.into_inner().len(), 1);
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
    fn a_zero_of_hamis_is_no_limit() {
        for zero in ["0", "0m", "000G"] {
            let (first, _, refused) = read(&[(SHARE_ALIAS, "0"), (MEMORY_ALIAS, zero)]);
            assert_eq!((first, refused.len()), (Limit::default(), 0), "{zero}");
        }
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
    fn what_makes_no_sense_is_named_and_not_counted() {
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
