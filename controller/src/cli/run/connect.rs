//! The keeper's connection: the tenant exists as long as it does, and a request that is refused is refused before the job starts.

use super::start;
use anyhow::{Context, Result, bail};
use deepres_abi::directory::SOCKET_VARIABLE;
use deepres_abi::wire::{self, FrameKind, Hello, Refusal, RefusalKind, Role, Welcome};
use deepres_controller::authority::Wish;
use deepres_controller::clock::monotonic_ns;
use deepres_controller::daemon::Peer;
use deepres_controller::directory::{Directory, TrustError, check_socket, named_socket};
use deepres_controller::packet::{self, Packet};
use deepres_controller::policy::priority::Criticality;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::process::getuid;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;
use zerocopy::IntoBytes;

/// A daemon answers within milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often it is asked for what others have now.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// What is asked for.
pub struct Request<'a> {
    /// The tenant's name.
    pub name: &'a str,
    /// What is asked for it.
    pub wish: Wish,
    /// Whether to wait for what others have now.
    pub waits: bool,
}

/// Keeps the tenant while it lives.
pub struct Keeper {
    /// Where the job's processes connect.
    pub socket: PathBuf,
    #[expect(dead_code, reason = "the connection's end is the keeper's end")]
    connection: OwnedFd,
}

/// What the daemon answered.
enum Answer {
    Kept(Keeper),
    /// It fits once others are gone.
    NoRoom(String),
}

/// Connects to the daemon that is running, or to one that is started for it, and asks, again and again if the request says so.
pub fn keep(request: &Request<'_>) -> Result<Keeper> {
    let mut is_told = false;
    loop {
        match keep_now(request)? {
            Answer::Kept(keeper) => return Ok(keeper),
            Answer::NoRoom(reason) if !request.waits => {
                bail!("refused: {reason}, or wait for it with --wait")
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
    for socket in sockets() {
        if let Some(connection) = connect(&socket)? {
            return ask(request, socket, connection);
        }
    }
    if let Some(named) = named_socket() {
        bail!(
            "nobody listens at {}, which {SOCKET_VARIABLE} names: start that daemon, or unset the variable",
            named.display()
        );
    }
    let directory = Directory::own();
    start::daemon(&directory, || Ok(connect(&directory.tenant_socket())?.is_some()))?;
    let socket = directory.tenant_socket();
    let connection = connect(&socket)?.context("the daemon that was started is gone again; see its log")?;
    ask(request, socket, connection)
}

/// Where to look, best first.
fn sockets() -> Vec<PathBuf> {
    match named_socket() {
        Some(named) => vec![named],
        None => Directory::candidates().iter().map(Directory::tenant_socket).collect(),
    }
}

/// Connects, if somebody whom we trust listens. `None`: nobody does.
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
            "{} is answered by a process of user {}, which is neither you nor root",
            socket.display(),
            peer.uid
        );
    }
    Ok(Some(connection))
}

fn ask(request: &Request<'_>, socket: PathBuf, connection: OwnedFd) -> Result<Answer> {
    let mut hello = Hello::new(Role::Keeper);
    hello.monotonic_ns = monotonic_ns();
    let wish = &request.wish;
    hello.share_ppm = wish.share_ppm.unwrap_or(0);
    hello.class = wish.class.map_or(0, |class| class as u32);
    hello.memory_bytes = wish.memory_bytes.unwrap_or(0);
    hello.criticality_ppm = wish.criticality.map_or(0, Criticality::number);
    hello.deadline_ns = wish.deadline_ns.unwrap_or(0);
    hello.size_ns = wish.size_ns.unwrap_or(0);
    hello.slo_ns = wish.slo_ns.unwrap_or(0);
    hello.pid = std::process::id();
    wire::set_text(&mut hello.tenant, request.name);
    if let Some(reason) = exchange(&hello, &socket, &connection)? {
        return Ok(Answer::NoRoom(reason));
    }
    Ok(Answer::Kept(Keeper { socket: std::path::absolute(socket)?, connection }))
}

/// Says hello and waits for the answer: nothing, or why there is no room now.
fn exchange(hello: &Hello, socket: &Path, connection: &OwnedFd) -> Result<Option<String>> {
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
        let reason = wire::text(&refusal.reason).unwrap_or("no reason was given");
        if refusal.kind == RefusalKind::NoRoom as u32 {
            return Ok(Some(reason.to_owned()));
        }
        bail!("refused: {reason}");
    }
    wire::decode::<Welcome>(answer.bytes()).with_context(broken)?;
    Ok(None)
}

/// Asks the daemon at `socket` to meter this process from outside, for a tenant that is kept already. Returns once it does.
pub fn be_metered(socket: &Path, tenant: &str) -> Result<()> {
    let connection = connect(socket)?.with_context(|| format!("nobody listens at {}", socket.display()))?;
    let mut hello = Hello::new(Role::Keeper);
    hello.monotonic_ns = monotonic_ns();
    hello.pid = std::process::id();
    hello.metering = 1;
    wire::set_text(&mut hello.tenant, tenant);
    match exchange(&hello, socket, &connection)? {
        None => Ok(()),
        Some(reason) => bail!("refused: {reason}"),
    }
}
