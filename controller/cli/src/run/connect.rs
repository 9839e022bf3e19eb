//! The keeper's connection to the daemon. The tenant exists as long as the connection. The keeper
//! connects before the job starts, so the daemon also refuses a job before the job starts.
//!
//! When the daemon ends, the keeper connects to the next daemon, as the job's processes do.

use super::start;
use anyhow::{Context, Result, bail};
use deepres_abi::directory::SOCKET_VARIABLE;
use deepres_abi::fallback::Fallback;
use deepres_abi::wire::{
    self, FittedFields, FrameKind, Hello, Notice, Refusal, RefusalKind, Role, UNMANAGED, Uuid, Welcome,
};
use deepres_daemon::Gpu;
use deepres_daemon::probes::metering::PATIENCE;
use deepres_model::authority::Wish;
use deepres_model::clock::monotonic_ns;
use deepres_model::directory::{Directory, TrustError, check_socket, named_socket};
use deepres_model::mps::{LOGS_VARIABLE, PIPES_VARIABLE, named};
use deepres_model::packet::{self, Packet};
use deepres_model::peer::Peer;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::process::getuid;
use std::io;
use std::num::NonZero;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;
use zerocopy::IntoBytes;

/// Pause between two requests while the daemon has no room for the job.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// Pause between attempts to find the next daemon.
const RETURN_EVERY: Duration = Duration::from_millis(250);
/// Pause after a refusal, because the same daemon would most likely refuse again.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);

/// A request to keep a tenant.
pub struct Request<'a> {
    /// The tenant's name.
    pub name: &'a str,
    /// The wishes for the tenant.
    pub wish: Wish,
    /// The profile of the program.
    pub profile: FittedFields,
    /// The request for a number of GPUs, if the job asks for one.
    pub gpus: Option<GpuRequest<'a>>,
    /// Whether to wait while the daemon has no room for the job: too few GPUs, too little memory,
    /// or too little of the user's caps.
    pub waits: bool,
}

/// A request for a number of GPUs.
pub struct GpuRequest<'a> {
    /// The number.
    pub wanted: NonZero<u32>,
    /// The GPUs among which the daemon chooses, at most [`deepres_abi::MAX_GPUS`].
    pub candidates: &'a [Gpu],
}

/// The connection that keeps a tenant.
pub struct Keeper {
    /// The socket to which the job's processes connect.
    pub socket: PathBuf,
    /// The limits that the job's processes keep by themselves while they have no session.
    pub fallback: Fallback,
    /// The part of the SMs that the daemon granted, parts per million.
    pub sm_ppm: Option<u32>,
    /// The directories of the MPS control daemon that the job is to use.
    pub mps: MpsDirectories,
    /// The GPUs that the daemon chose, by their places in the candidates.
    pub chosen: Vec<usize>,
    /// Whether a `deepres run` started the daemon.
    is_of_run: bool,
    connection: OwnedFd,
    hello: Box<Hello>,
}

/// The directories of MPS that the daemon handed on, if any.
pub struct MpsDirectories([Option<PathBuf>; 2]);

impl MpsDirectories {
    fn of(welcome: &Welcome) -> Self {
        let told = |field: &[u8]| wire::text(field).filter(|text| !text.is_empty()).map(PathBuf::from);
        Self([told(&welcome.mps_pipes), told(&welcome.mps_logs)])
    }

    /// Returns the directory of the pipes.
    pub fn pipes(&self) -> Option<&Path> {
        self.0[0].as_deref()
    }

    /// Returns the variables for the job. A directory that the caller's environment names stays.
    pub fn variables(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let each = [PIPES_VARIABLE, LOGS_VARIABLE].into_iter().zip(&self.0);
        let is_free = named(PIPES_VARIABLE).is_none();
        each.filter_map(move |(variable, directory)| {
            Some((variable, directory.as_deref().filter(|_| is_free)?))
        })
    }
}

/// The daemon's answer to a hello.
enum Reply {
    Welcome(Box<Welcome>),
    Refused(RefusalKind, String),
}

/// The outcome of a request to keep a tenant.
enum Answer {
    Kept(Keeper),
    /// The daemon has no room for the job now, but can have room after other tenants have ended.
    /// The text is the daemon's reason.
    NoRoom(String),
}

/// Connects to the running daemon, or starts a daemon, and asks the daemon to keep the tenant. If
/// the request `waits`, repeats the request while the daemon has no room for the job.
pub fn keep(request: &Request<'_>) -> Result<Keeper> {
    let mut is_told = false;
    loop {
        match keep_now(request)? {
            Answer::Kept(keeper) => return Ok(keeper),
            Answer::NoRoom(reason) if !request.waits => {
                bail!("the daemon refused: {reason}, or wait for it with --wait")
            }
            Answer::NoRoom(reason) => {
                if !std::mem::replace(&mut is_told, true) {
                    eprintln!("deepres: waiting: {reason}");
                }
                std::thread::sleep(ASK_EVERY);
            }
        }
    }
}

fn keep_now(request: &Request<'_>) -> Result<Answer> {
    let (socket, connection) = reach()?;
    ask(request, socket, connection)
}

/// Starts a daemon, unless one runs to which a job would connect now.
pub fn ensure() -> Result<()> {
    reach().map(drop)
}

/// Connects to the running daemon, or starts a daemon. Returns its socket and the connection.
fn reach() -> Result<(PathBuf, OwnedFd)> {
    if let Some(found) = find(sockets())? {
        return Ok(found);
    }
    if let Some(named) = named_socket() {
        bail!(
            "no daemon listens at {}, which {SOCKET_VARIABLE} names; start that daemon, or unset the variable",
            named.display()
        );
    }
    let directory = Directory::own();
    start::daemon(&directory, || Ok(connect(&directory.tenant_socket())?.is_some()))?;
    let socket = directory.tenant_socket();
    let connection = connect(&socket)?.context("the daemon ended right after its start; see its log")?;
    Ok((socket, connection))
}

/// Returns the tenant socket of the daemon to which a job would connect now; `None` if no daemon
/// runs.
pub fn running() -> Result<Option<PathBuf>> {
    Ok(find(sockets())?.map(|(socket, _)| socket))
}

/// Returns the tenant socket of the system's daemon if it runs, whatever the environment names.
/// Else returns the tenant socket of the daemon to which a job would connect now; `None` if no
/// daemon runs.
pub fn running_before_named() -> Result<Option<PathBuf>> {
    let all = std::iter::once(Directory::system().tenant_socket()).chain(sockets()).collect();
    Ok(find(all)?.map(|(socket, _)| socket))
}

/// Connects to the first of these sockets at which a trusted daemon listens. Returns the socket and
/// the connection; `None` without such a daemon.
fn find(sockets: Vec<PathBuf>) -> Result<Option<(PathBuf, OwnedFd)>> {
    for socket in sockets {
        if let Some(connection) = connect(&socket)? {
            return Ok(Some((socket, connection)));
        }
    }
    Ok(None)
}

/// Returns the sockets at which a daemon can listen, the best first.
fn sockets() -> Vec<PathBuf> {
    match named_socket() {
        Some(named) => vec![named],
        None => Directory::candidates().iter().map(Directory::tenant_socket).collect(),
    }
}

/// Connects to `socket`. Returns `None` if no process listens there.
///
/// # Errors
/// The socket or the listening process belongs to neither this user nor root, or the connection
/// fails.
fn connect(socket: &Path) -> Result<Option<OwnedFd>> {
    match check_socket(socket) {
        Err(TrustError::Missing(_)) => return Ok(None),
        checked => checked?,
    }
    let connection = match packet::connection(socket) {
        Ok(connection) => connection,
        Err(error) => {
            return match error.kind() {
                io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Ok(None),
                _ if error.raw_os_error() == Some(libc::EPROTOTYPE) => {
                    bail!("{} is not the socket of a deepres daemon", socket.display())
                }
                _ => Err(error).with_context(|| format!("cannot connect to {}", socket.display())),
            };
        }
    };
    let peer = Peer::of(connection.as_fd())?;
    if peer.uid != 0 && peer.uid != getuid().as_raw() {
        bail!(
            "the process that listens at {} belongs to user {}, who is neither you nor root",
            socket.display(),
            peer.uid
        );
    }
    Ok(Some(connection))
}

fn ask(request: &Request<'_>, socket: PathBuf, connection: OwnedFd) -> Result<Answer> {
    let mut hello = Box::new(Hello::new(Role::Keeper));
    hello.wishes = request.wish.encode();
    hello.profile = request.profile;
    hello.pid = std::process::id();
    hello.waits = u32::from(request.waits);
    wire::set_text(&mut hello.tenant, request.name);
    if let Some(GpuRequest { wanted, candidates }) = &request.gpus {
        hello.wants_gpus = wanted.get();
        set_gpus(&mut hello, candidates.iter().map(|gpu| gpu.uuid));
    }
    match exchange(&mut hello, &socket, &connection)? {
        Reply::Welcome(welcome) => {
            let of_hello = welcome.gpu_index.iter().take(hello.gpu_count as usize).enumerate();
            let chosen: Vec<usize> =
                of_hello.filter(|(_, index)| **index != UNMANAGED).map(|(place, _)| place).collect();
            if chosen.len() != hello.wants_gpus as usize {
                bail!(
                    "the daemon did not choose GPUs; use one deepres release for the daemon and this command"
                );
            }
            // The next daemon gets the chosen GPUs.
            let uuids: Vec<Uuid> = chosen.iter().map(|place| hello.gpu_uuids[*place]).collect();
            set_gpus(&mut hello, uuids.into_iter());
            Ok(Answer::Kept(Keeper {
                socket: std::path::absolute(socket)?,
                fallback: welcome.fallback(),
                mps: MpsDirectories::of(&welcome),
                sm_ppm: Some(welcome.sm_ppm).filter(|ppm| *ppm != 0),
                chosen,
                is_of_run: welcome.is_of_run != 0,
                connection,
                hello,
            }))
        }
        Reply::Refused(RefusalKind::NoRoom, reason) => Ok(Answer::NoRoom(reason)),
        Reply::Refused(_, reason) => bail!("the daemon refused: {reason}"),
    }
}

/// Sets the GPUs of a hello, at most as many as it has places.
fn set_gpus(hello: &mut Hello, uuids: impl Iterator<Item = Uuid>) {
    hello.gpu_count = 0;
    for (place, uuid) in hello.gpu_uuids.iter_mut().zip(uuids) {
        *place = uuid;
        hello.gpu_count += 1;
    }
}

impl Keeper {
    /// Starts a thread that reconnects to each next daemon, as long as this process lives. The
    /// thread asks each next daemon to meter the process `metered` from outside.
    ///
    /// The caller must have blocked the signals for which another thread waits.
    pub fn stay(self, metered: Option<u32>) {
        // If the thread cannot start, the tenant ends with this daemon.
        let _ = std::thread::Builder::new().spawn(move || self.serve(metered));
    }

    /// Starts the next daemon in the place of a daemon that died. Returns false if the daemon
    /// cannot start.
    fn start_next(&self) -> bool {
        eprintln!("deepres: the daemon died");
        let started = start::daemon(&Directory::own(), || Ok(connect(&self.socket)?.is_some()));
        if let Err(error) = &started {
            eprintln!("deepres: cannot start the next daemon: {error:#}; the job goes on without a daemon");
        }
        started.is_ok()
    }

    /// Prints the daemon's notices about the job. Returns when the connection ends.
    fn tell_until_the_end(&self) {
        loop {
            let mut polled = [PollFd::new(&self.connection, PollFlags::IN)];
            while poll(&mut polled, None) == Err(rustix::io::Errno::INTR) {}
            let Ok(Some(packet)) = Packet::receive(&self.connection) else { return };
            // A later daemon can send other frames.
            if let Ok(notice) = wire::decode::<Notice>(packet.bytes()) {
                eprintln!("deepres: {}", wire::text(&notice.text).unwrap_or("the daemon sent no text"));
            }
        }
    }

    fn serve(mut self, metered: Option<u32>) {
        let mut pause = RETURN_EVERY;
        loop {
            self.tell_until_the_end();
            loop {
                std::thread::sleep(std::mem::replace(&mut pause, RETURN_EVERY));
                // If the socket is missing or untrusted, a later daemon can replace it by a good
                // one.
                let Ok(found) = connect(&self.socket) else { continue };
                let Some(connection) = found else {
                    if self.is_of_run && has_died(&self.socket) && !self.start_next() {
                        pause = REFUSED_PAUSE;
                    }
                    continue;
                };
                self.hello.sessions_before = 1;
                match exchange(&mut self.hello, &self.socket, &connection) {
                    Ok(Reply::Welcome(welcome)) => {
                        self.connection = connection;
                        self.is_of_run = welcome.is_of_run != 0;
                        break;
                    }
                    Ok(Reply::Refused(RefusalKind::Version, reason)) => {
                        // In a preloaded job, the interposer prints this message itself.
                        if metered.is_some() {
                            eprintln!("deepres: the daemon refused: {reason}");
                        }
                        return;
                    }
                    Ok(Reply::Refused(RefusalKind::Stopping, _)) | Err(_) => {}
                    Ok(Reply::Refused(..)) => pause = REFUSED_PAUSE,
                }
            }
            if let (Some(pid), Some(tenant)) = (metered, wire::text(&self.hello.tenant))
                && let Err(error) = be_metered(&self.socket, tenant, pid)
            {
                eprintln!("deepres: the daemon no longer counts the launches of the program: {error:#}");
            }
        }
    }
}

/// Returns whether the daemon at `socket` died. A daemon that ends by a signal such as SIGTERM
/// removes its socket, and leaves its lock file.
fn has_died(socket: &Path) -> bool {
    let directory = Directory::own();
    directory.tenant_socket() == socket && (socket.exists() || !directory.lock_file().exists())
}

/// Sends a hello, and returns the daemon's answer.
fn exchange(hello: &mut Hello, socket: &Path, connection: &OwnedFd) -> Result<Reply> {
    hello.monotonic_ns = monotonic_ns();
    let broken = || format!("the daemon at {} does not answer", socket.display());
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(connection, direction, Some(PATIENCE)).with_context(broken)?;
    }
    packet::send(connection, hello.as_bytes(), &[]).with_context(broken)?;
    let answer = match Packet::receive(connection) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            bail!("{} within {} s", broken(), PATIENCE.as_secs())
        }
        received => received.with_context(broken)?.with_context(broken)?,
    };
    let kind = wire::kind(answer.bytes()).with_context(broken)?;
    if kind == FrameKind::Refusal as u16 {
        let refusal: Refusal = wire::decode(answer.bytes())?;
        let reason = wire::text(&refusal.reason).unwrap_or("the daemon gave no reason").to_owned();
        let kinds = [RefusalKind::NoRoom, RefusalKind::Version, RefusalKind::Stopping];
        let known = kinds.into_iter().find(|kind| *kind as u32 == refusal.kind);
        return Ok(Reply::Refused(known.unwrap_or(RefusalKind::Request), reason));
    }
    let welcome = wire::decode::<Welcome>(answer.bytes()).with_context(broken)?;
    Ok(Reply::Welcome(Box::new(welcome)))
}

/// Asks the daemon at `socket` to meter a process from outside: this process or its child. The
/// calling process must already be a keeper of the tenant. Returns once the daemon meters the
/// process.
pub fn be_metered(socket: &Path, tenant: &str, pid: u32) -> Result<()> {
    let connection =
        connect(socket)?.with_context(|| format!("no daemon listens at {}", socket.display()))?;
    let mut hello = Hello::new(Role::Keeper);
    hello.pid = pid;
    hello.metering = 1;
    hello.sessions_before = u32::from(pid != std::process::id());
    wire::set_text(&mut hello.tenant, tenant);
    match exchange(&mut hello, socket, &connection)? {
        Reply::Welcome(_) => Ok(()),
        Reply::Refused(_, reason) => bail!("the daemon refused: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};

    #[test]
    fn the_first_daemon_that_listens_is_the_one() {
        let folder = tempfile::tempdir().unwrap();
        let places = ["systems", "users"].map(|name| folder.path().join(name));
        let found = || find(places.to_vec()).unwrap().map(|(socket, _)| socket);
        let start = |place: &PathBuf| {
            let listener = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
            bind(&listener, &SocketAddrUnix::new(place).unwrap()).unwrap();
            listen(&listener, 8).unwrap();
            listener
        };
        assert_eq!(found(), None);
        let _users = start(&places[1]);
        assert_eq!(found().as_ref(), Some(&places[1]));
        let systems = start(&places[0]);
        assert_eq!(found().as_ref(), Some(&places[0]));
        drop(systems);
        assert_eq!(found().as_ref(), Some(&places[1]), "a socket that nobody listens at any more is none");
    }
}
