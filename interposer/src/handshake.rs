//! The handshake with the daemon: the process's hello, and the daemon's answer.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::{fmt, fs, mem};

use deepres_abi::MAX_GPUS;
use deepres_abi::fallback::Fallback;
use deepres_abi::page::LayoutError;
use deepres_abi::wire::{
    self, FrameError, FrameKind, Hello, MAX_FDS, MAX_FRAME_BYTES, PAGE_FDS, Refusal, RefusalKind, Role,
    UNMANAGED, Uuid, View, Welcome,
};
use zerocopy::IntoBytes as _;

use crate::config::Config;
use crate::descriptor::OwnDescriptor;
use crate::os;
use crate::pages::PageError;
use crate::unshared::Unshared;

/// The time limit of the first handshake, ns. The daemon answers within a millisecond. If hundreds
/// of processes come at once, the daemon answers them all within this time. After the limit, the
/// job runs without a session.
const HANDSHAKE_NS: u64 = 3_000_000_000;
/// The time limit of a question for the tenant's part, if the question before got no answer, ns.
/// The caller is mostly a monitor, which asks again and again.
const DOUBTED_NS: u64 = 100_000_000;
/// The time limit of the question for a new context's memory, ns. The daemon waits for NVML for a
/// shorter time.
const APPRAISAL_NS: u64 = 1_000_000_000;
/// The pause before another attempt while a new daemon replaces the old daemon, ns.
const REPLACED_PAUSE_NS: u64 = 20_000_000;
const US_PER_S: u64 = 1_000_000;
const NS_PER_US: u64 = 1_000;
const NS_PER_S: u64 = 1_000_000_000;

/// The reason for which the process has no session.
#[derive(Debug)]
pub enum ConnectError {
    /// No daemon listens at any socket. The path is the first path that the process tried.
    Absent(PathBuf, io::Error),
    /// The connection broke, or no answer came in time.
    Io(io::Error),
    /// The answer is not a valid frame.
    Frame(FrameError),
    /// The daemon refused: the number of a [`RefusalKind`], the reason, and the limits that the
    /// process keeps by itself.
    Refused(u32, String, Fallback),
    /// The process cannot use a page of the welcome.
    Page(PageError),
    /// The daemon numbers this process's GPUs differently from the daemon before.
    Renumbered,
    /// The welcome came with fewer descriptors than the welcome promises.
    Descriptors(usize),
    /// The daemon does not manage all GPUs of this process, which has limits to keep on each.
    Unmanaged,
    /// The environment names a limit that makes no sense, and the daemon gives the job none of its
    /// kind.
    Unlimited,
}

impl ConnectError {
    /// Returns whether another attempt would fail too. Only another daemon would then accept the
    /// process.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Absent(..) | Self::Io(_) => false,
            Self::Refused(kind, ..) => *kind != RefusalKind::Stopping as u32,
            // A daemon finishes its pages before it passes them on. So if a page is not ready, the
            // job has replaced a received descriptor by a file of its own.
            Self::Page(error) => !matches!(error, PageError::Layout(LayoutError::NotReady)),
            Self::Frame(_) | Self::Descriptors(_) | Self::Renumbered | Self::Unmanaged | Self::Unlimited => {
                true
            }
        }
    }

    /// Returns whether another attempt a little later can succeed.
    pub fn may_pass(&self) -> bool {
        !self.is_lasting() || self.is_full()
    }

    /// Returns whether the daemon has no room for another session.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Refused(kind, ..) if *kind == RefusalKind::Full as u32)
    }

    /// Returns the limits that a refusing daemon sent, or `None` if no daemon sent a refusal.
    pub fn fallback(&self) -> Option<&Fallback> {
        match self {
            Self::Refused(.., fallback) => Some(fallback),
            _ => None,
        }
    }

    fn is_stopping(&self) -> bool {
        matches!(self, Self::Refused(kind, ..) if *kind == RefusalKind::Stopping as u32)
    }

    /// Returns whether the daemon ended before it answered.
    fn is_end(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        matches!(self, Self::Io(error) if matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof))
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent(socket, error) => write!(f, "no daemon at {} ({error})", socket.display()),
            Self::Io(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                write!(f, "the daemon did not answer within {} s", HANDSHAKE_NS / NS_PER_S)
            }
            Self::Io(error) => write!(f, "the daemon did not answer ({error})"),
            Self::Frame(error) => write!(f, "the daemon's answer is unreadable: {error}"),
            Self::Refused(_, reason, _) => write!(f, "the daemon refused: {reason}"),
            Self::Page(error) => write!(f, "{error}"),
            Self::Renumbered => {
                write!(f, "the daemon numbers the GPUs in another way than before; start the job again")
            }
            Self::Unmanaged => write!(f, "the daemon does not manage every GPU of this process"),
            Self::Unlimited => write!(f, "the daemon gives the job no limit in its place"),
            Self::Descriptors(count) => write!(f, "the welcome of the daemon has only {count} descriptors"),
        }
    }
}

/// A connection with a welcome, and everything that came with the welcome.
#[derive(Debug)]
pub struct Connection {
    /// The socket. When the connection ends, the session ends.
    pub socket: Unshared,
    /// The daemon's answer to the hello.
    pub welcome: Welcome,
    /// The memory of the grant, meter, ledger and heartbeat page.
    pub pages: [OwnedFd; PAGE_FDS],
    /// The bell of each managed GPU, in the hello's order.
    pub bells: Vec<OwnedFd>,
}

impl Connection {
    /// Returns the connection, if the daemon can hold the process to its limits. A process with
    /// limits needs a daemon that manages all of its `gpus` GPUs.
    ///
    /// # Errors
    /// [`ConnectError::Unmanaged`].
    pub fn holding(self, config: &Config, gpus: usize) -> Result<Self, ConnectError> {
        let is_managed = self.welcome.gpu_index.iter().take(gpus).all(|index| *index != UNMANAGED);
        if is_managed || !config.is_limited() { Ok(self) } else { Err(ConnectError::Unmanaged) }
    }
}

/// The first handshake of the process. The daemon works on its answer while the process prepares
/// itself.
#[derive(Debug)]
pub struct Greeting {
    sent: Result<Unshared, ConnectError>,
    deadline_ns: u64,
}

impl Greeting {
    /// Connects to the daemon, and sends the hello.
    pub fn send(config: &Config, gpus: &[Uuid]) -> Self {
        let deadline_ns = os::now_ns().saturating_add(HANDSHAKE_NS);
        Self { sent: greet(config, gpus, deadline_ns), deadline_ns }
    }

    /// Returns whether no daemon listens.
    pub fn is_to_nobody(&self) -> bool {
        matches!(self.sent, Err(ConnectError::Absent(..)))
    }
}

/// Waits for the daemon's answer to the greeting for a bounded time. Returns the connection.
///
/// # Errors
/// [`ConnectError`] if the daemon does not accept the process. The job then runs without a session.
pub fn shake(greeting: Greeting, config: &Config, gpus: &[Uuid]) -> Result<Connection, ConnectError> {
    let Greeting { mut sent, deadline_ns } = greeting;
    // The first error after which the function tried again. If no attempt succeeds, the function
    // returns this error, even if a later attempt finds no daemon.
    let mut replaced = None;
    loop {
        let error = match sent.and_then(|socket| answer(socket, gpus, deadline_ns)) {
            // The next daemon can be about to start.
            Err(error) if error.is_stopping() || error.is_end() => error,
            Err(error) if replaced.is_some() && !error.is_lasting() => error,
            connected => return connected,
        };
        let first = replaced.take().unwrap_or(error);
        if os::now_ns() >= deadline_ns {
            return Err(first);
        }
        replaced = Some(first);
        os::sleep(REPLACED_PAUSE_NS);
        sent = greet(config, gpus, deadline_ns);
    }
}

fn greet(config: &Config, gpus: &[Uuid], deadline_ns: u64) -> Result<Unshared, ConnectError> {
    let socket = connect_first(&config.believed_sockets(), |path| {
        connect(path, 0, |call| until_deadline(deadline_ns, call))
    })?;
    let hello = hello(config, gpus, 0, 0);
    until_deadline(deadline_ns, Call { socket: &socket, run: &mut |number| send(number, hello.as_bytes()) })
        .map_err(ConnectError::Io)?;
    Ok(socket)
}

fn answer(socket: Unshared, gpus: &[Uuid], deadline_ns: u64) -> Result<Connection, ConnectError> {
    let mut packet = Received::new();
    until_deadline(deadline_ns, Call { socket: &socket, run: &mut |number| packet.receive(number) })
        .map_err(ConnectError::Io)?;
    packet.welcomed(socket, gpus.len())
}

/// Asks the daemon for the limits and the use of the tenant on `gpus`, without a session. Returns
/// the answer. With `is_doubted`, waits only briefly, because the daemon did not answer the last
/// time.
///
/// # Errors
/// [`ConnectError`] if the daemon does not answer.
pub fn view(config: &Config, gpus: &[Uuid], is_doubted: bool) -> Result<View, ConnectError> {
    ask(config, gpus, Role::Viewer, if is_doubted { DOUBTED_NS } else { HANDSHAKE_NS })
}

/// Asks the daemon how many bytes NVML reports for this process on `gpu`. Returns `None` if NVML
/// does not say, or if the process needs all its descriptors itself.
///
/// # Errors
/// [`ConnectError`] if the daemon does not answer.
pub fn appraise(config: &Config, gpu: Uuid) -> Result<Option<u64>, ConnectError> {
    if !has_descriptors_to_spare() {
        return Ok(None);
    }
    ask(config, &[gpu], Role::Appraised, APPRAISAL_NS).map(|view| view.asker_bytes())
}

fn ask(config: &Config, gpus: &[Uuid], role: Role, within_ns: u64) -> Result<View, ConnectError> {
    let deadline_ns = os::now_ns().saturating_add(within_ns);
    let socket = connect_first(&config.believed_sockets(), |path| {
        connect(path, 0, |call| until_deadline(deadline_ns, call))
    })?;
    let mut hello = hello(config, gpus, 0, 0);
    hello.role = role as u32;
    until_deadline(deadline_ns, Call { socket: &socket, run: &mut |number| send(number, hello.as_bytes()) })
        .map_err(ConnectError::Io)?;
    let mut packet = Received::new();
    until_deadline(deadline_ns, Call { socket: &socket, run: &mut |number| packet.receive(number) })
        .map_err(ConnectError::Io)?;
    wire::decode::<View>(&packet.packet).map_err(ConnectError::Frame)
}

/// A handshake in progress. No thread waits for the daemon's answer; the caller asks for it later.
#[derive(Debug)]
pub struct Pending {
    socket: Unshared,
    gpus: usize,
}

impl Pending {
    /// Connects and sends the hello. Returns the handshake. `age_ns` is the time for which the
    /// process has run without a daemon.
    ///
    /// # Errors
    /// [`ConnectError`] if the process cannot connect or send.
    pub fn begin(
        config: &Config,
        gpus: &[Uuid],
        sessions_before: u32,
        age_ns: u64,
    ) -> Result<Self, ConnectError> {
        let socket =
            connect_first(&config.believed_sockets(), |path| connect(path, libc::SOCK_NONBLOCK, now))?;
        let hello = hello(config, gpus, sessions_before, age_ns);
        now(Call { socket: &socket, run: &mut |number| send(number, hello.as_bytes()) })
            .map_err(ConnectError::Io)?;
        Ok(Self { socket, gpus: gpus.len() })
    }

    /// Returns a descriptor that becomes readable when the answer is there.
    pub fn socket(&self) -> OwnDescriptor {
        self.socket.descriptor()
    }

    /// Returns the daemon's answer.
    ///
    /// # Errors
    /// Returns the handshake itself if there is no answer yet.
    pub fn finish(self) -> Result<Result<Connection, ConnectError>, Self> {
        let mut packet = Received::new();
        match now(Call { socket: &self.socket, run: &mut |number| packet.receive(number) }) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(self),
            Err(error) => Ok(Err(ConnectError::Io(error))),
            Ok(_) => Ok(packet.welcomed(self.socket, self.gpus)),
        }
    }
}

/// An announcement to the daemon that this process is about to begin a session. While this value
/// lives, the daemon does not list the process as unmanaged.
#[derive(Debug)]
pub struct Arrival {
    _connection: Unshared,
}

impl Arrival {
    /// Announces the process to the daemon. Does not wait for an answer; only a daemon that does
    /// not know the announcement sends one. Returns `None` if no daemon accepts the packet at once,
    /// or if the process cannot spare the descriptor.
    pub fn announce(sockets: &[PathBuf]) -> Option<Self> {
        if !has_descriptors_to_spare() {
            return None;
        }
        let socket = connect_first(sockets, |path| connect(path, libc::SOCK_NONBLOCK, now)).ok()?;
        let mut hello = Hello::new(Role::Arriving);
        hello.monotonic_ns = os::now_ns();
        hello.pid = std::process::id();
        now(Call { socket: &socket, run: &mut |number| send(number, hello.as_bytes()) }).ok()?;
        Some(Self { _connection: socket })
    }
}

/// Returns whether the process may open many more files than it has open. If this is false, the job
/// needs all descriptors itself.
fn has_descriptors_to_spare() -> bool {
    let Ok(socket) = Unshared::packets(0) else { return false };
    socket.descriptor().is_to_spare()
}

/// Returns the hello of this process. The job started `age_ns` ago, and its deadline counts from
/// its start.
fn hello(config: &Config, gpus: &[Uuid], sessions_before: u32, age_ns: u64) -> Hello {
    let mut hello = Hello::new(Role::Session);
    hello.monotonic_ns = os::now_ns();
    hello.wishes = config.wishes(age_ns).encode();
    hello.oversubscribe = config.oversubscribe.map_or(0, |way| way as u32);
    hello.pid = std::process::id();
    for (place, uuid) in hello.gpu_uuids.iter_mut().zip(gpus) {
        *place = *uuid;
    }
    hello.gpu_count = gpus.len().min(MAX_GPUS) as u32;
    hello.sessions_before = sessions_before;
    wire::set_text(&mut hello.tenant, &config.tenant);
    wire::set_text(&mut hello.client, &command_line());
    hello
}

/// Returns the process's command line, without the directory of its program.
fn command_line() -> String {
    let raw = fs::read("/proc/self/cmdline").unwrap_or_default();
    let mut words = raw.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    let program = words.next().unwrap_or_default();
    let program = Path::new(OsStr::from_bytes(program)).file_name().unwrap_or_default().as_bytes();
    let words: Vec<&[u8]> = std::iter::once(program).chain(words).collect();
    String::from_utf8_lossy(&words.join(&b' ')).into_owned()
}

fn cvt(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A system call on a socket. The call gets the socket's number.
struct Call<'a> {
    socket: &'a Unshared,
    run: &'a mut dyn FnMut(RawFd) -> isize,
}

impl Call<'_> {
    /// Makes the call, and returns its result. Fails if the job has closed the socket.
    fn make(&mut self) -> io::Result<usize> {
        let number = self.socket.descriptor().number().ok_or(io::ErrorKind::NotConnected)?;
        usize::try_from((self.run)(number)).map_err(|_| io::Error::last_os_error())
    }
}

/// Makes a call, and repeats it while signals interrupt it. Returns the call's result.
fn now(mut call: Call<'_>) -> io::Result<usize> {
    loop {
        match call.make() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            made => return made,
        }
    }
}

/// Makes a call, and repeats it while signals interrupt it. Returns the call's result. Before each
/// call, the function sets the socket's timeout to the time left until the deadline. Otherwise each
/// tick of an interval timer would begin a new timeout.
fn until_deadline(deadline_ns: u64, mut call: Call<'_>) -> io::Result<usize> {
    loop {
        let left_us = deadline_ns.saturating_sub(os::now_ns()) / NS_PER_US;
        if left_us == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let timeout =
            libc::timeval { tv_sec: (left_us / US_PER_S) as i64, tv_usec: (left_us % US_PER_S) as i64 };
        for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            let number = call.socket.descriptor().number().ok_or(io::ErrorKind::NotConnected)?;
            // SAFETY: the option's value is a timeval of the given size.
            cvt(unsafe {
                libc::setsockopt(
                    number,
                    libc::SOL_SOCKET,
                    option,
                    (&raw const timeout).cast(),
                    size_of::<libc::timeval>() as u32,
                )
            })?;
        }
        match call.make() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            made => return made,
        }
    }
}

/// Connects to the first of `sockets` on which a daemon listens, and returns the connection.
fn connect_first(
    sockets: &[PathBuf],
    connect: impl Fn(&Path) -> io::Result<Unshared>,
) -> Result<Unshared, ConnectError> {
    let mut absent = None;
    for path in sockets {
        match connect(path) {
            Ok(socket) => return Ok(socket),
            // A daemon listens there, but as many connections as allowed already wait for it.
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Err(ConnectError::Io(error));
            }
            Err(error) => drop(absent.get_or_insert((path, error))),
        }
    }
    let (path, error) = absent.map_or_else(
        || (PathBuf::new(), io::ErrorKind::NotFound.into()),
        |(path, error)| (path.clone(), error),
    );
    Err(ConnectError::Absent(path, error))
}

fn connect(path: &Path, flags: i32, make: impl Fn(Call<'_>) -> io::Result<usize>) -> io::Result<Unshared> {
    let socket = Unshared::packets(flags)?;
    // SAFETY: all zeroes is a valid sockaddr_un.
    let mut address = unsafe { mem::zeroed::<libc::sockaddr_un>() };
    address.sun_family = libc::AF_UNIX as u16;
    let name = path.as_os_str().as_bytes();
    // The last byte stays zero.
    let most = address.sun_path.len() - 1;
    if name.len() > most {
        let problem = format!(
            "the path is too long for a socket: it has {} bytes, and the most is {most}; choose a shorter directory by DEEPRES_DIR",
            name.len()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    for (place, byte) in address.sun_path.iter_mut().zip(name) {
        *place = *byte as libc::c_char;
    }
    let bytes = size_of::<libc::sockaddr_un>() as u32;
    let mut run = |number| {
        // SAFETY: the address is initialised and has the given size.
        let result = unsafe { libc::connect(number, (&raw const address).cast(), bytes) };
        result as isize
    };
    make(Call { socket: &socket, run: &mut run })?;
    Ok(socket)
}

fn send(number: RawFd, packet: &[u8]) -> isize {
    // SAFETY: the buffer is readable and has the given length.
    unsafe { libc::send(number, packet.as_ptr().cast(), packet.len(), libc::MSG_NOSIGNAL) }
}

/// The buffer for the control message, aligned as its header requires.
#[repr(C, align(8))]
struct Control([u8; 256]);

const _: () = assert!(MAX_FDS * size_of::<i32>() + 64 <= size_of::<Control>());

/// A packet, and the descriptors that came with the packet.
struct Received {
    packet: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl Received {
    fn new() -> Self {
        Self { packet: vec![0; MAX_FRAME_BYTES], descriptors: Vec::new() }
    }

    fn receive(&mut self, number: RawFd) -> isize {
        let mut control = Control([0; 256]);
        let mut part = libc::iovec { iov_base: self.packet.as_mut_ptr().cast(), iov_len: self.packet.len() };
        // SAFETY: all zeroes is a valid msghdr.
        let mut message = unsafe { mem::zeroed::<libc::msghdr>() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = control.0.len();
        // SAFETY: the message describes two writable buffers that outlive the call.
        let got = unsafe { libc::recvmsg(number, &mut message, libc::MSG_CMSG_CLOEXEC) };
        let Ok(bytes) = usize::try_from(got) else { return got };
        // SAFETY: the kernel filled the control buffer, and the macros walk it within the length
        // that the kernel reported. Each descriptor in it is new and has no other owner.
        unsafe {
            let mut header = libc::CMSG_FIRSTHDR(&message);
            while !header.is_null() {
                if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                    let bytes = ((*header).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                    let first = libc::CMSG_DATA(header).cast::<i32>();
                    for index in 0..bytes / size_of::<i32>() {
                        self.descriptors.push(OwnedFd::from_raw_fd(first.add(index).read_unaligned()));
                    }
                }
                header = libc::CMSG_NXTHDR(&message, header);
            }
        }
        self.packet.truncate(bytes);
        got
    }

    /// Returns the connection, from the answer to a hello with `gpus` GPUs.
    fn welcomed(self, socket: Unshared, gpus: usize) -> Result<Connection, ConnectError> {
        let Self { packet, descriptors } = self;
        if packet.is_empty() {
            let ended = io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection");
            return Err(ConnectError::Io(ended));
        }
        if wire::kind(&packet).map_err(ConnectError::Frame)? == FrameKind::Refusal as u16 {
            let refusal = wire::decode::<Refusal>(&packet).map_err(ConnectError::Frame)?;
            let reason = wire::text(&refusal.reason).unwrap_or("it gave no readable reason");
            return Err(ConnectError::Refused(refusal.kind, reason.to_owned(), refusal.fallback()));
        }
        let welcome = wire::decode::<Welcome>(&packet).map_err(ConnectError::Frame)?;
        let managed = welcome.gpu_index.iter().take(gpus).filter(|index| **index != UNMANAGED).count();
        let count = descriptors.len();
        let mut descriptors = descriptors.into_iter();
        let pages: Vec<OwnedFd> = descriptors.by_ref().take(PAGE_FDS).collect();
        let bells: Vec<OwnedFd> = descriptors.collect();
        match <[OwnedFd; PAGE_FDS]>::try_from(pages) {
            Ok(pages) if bells.len() >= managed => Ok(Connection { socket, welcome, pages, bells }),
            _ => Err(ConnectError::Descriptors(count)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd as _, BorrowedFd};

    use super::*;

    #[test]
    fn a_page_of_another_version_stays_one_and_a_file_of_the_jobs_may_be_gone() {
        assert!(ConnectError::Page(PageError::Layout(LayoutError::Major(7))).is_lasting());
        assert!(!ConnectError::Page(PageError::Layout(LayoutError::NotReady)).is_lasting());
    }

    #[test]
    fn a_path_that_is_too_long_for_a_socket_is_refused_with_the_limit() {
        let path = Path::new("/").join("x".repeat(107));
        let Err(refused) = connect(&path, 0, |_| Ok(0)) else { panic!("it is too long") };
        let refused = refused.to_string();
        assert!(refused.contains("108 bytes, and the most is 107"), "{refused}");
        assert!(refused.contains("DEEPRES_DIR"), "{refused}");
    }

    fn listener(path: &Path, backlog: i32) -> OwnedFd {
        // SAFETY: the address is initialised and has the given size, and the descriptor is new.
        unsafe {
            let socket = OwnedFd::from_raw_fd(libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0));
            let mut address = mem::zeroed::<libc::sockaddr_un>();
            address.sun_family = libc::AF_UNIX as u16;
            for (place, byte) in address.sun_path.iter_mut().zip(path.as_os_str().as_bytes()) {
                *place = *byte as libc::c_char;
            }
            let bytes = size_of::<libc::sockaddr_un>() as u32;
            cvt(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes)).unwrap();
            cvt(libc::listen(socket.as_raw_fd(), backlog)).unwrap();
            socket
        }
    }

    #[test]
    fn a_process_that_announces_itself_waits_for_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tenant.sock");
        let sockets = [directory.path().join("none"), path.clone()];
        assert!(Arrival::announce(&sockets).is_none(), "nobody listens");
        // The listener accepts no connection, and has room for as few connections as possible. The
        // kernel refuses further connections at once.
        let _listener = listener(&path, 0);
        let taken: Vec<Arrival> = std::iter::from_fn(|| Arrival::announce(&sockets)).take(100).collect();
        assert!((1..100).contains(&taken.len()), "{}", taken.len());
        let told = connect_first(&sockets, |path| connect(path, libc::SOCK_NONBLOCK, now)).unwrap_err();
        assert!(matches!(told, ConnectError::Io(_)), "somebody is there: {told}");
    }

    #[test]
    fn an_announcement_ends_though_a_child_has_its_connection() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tenant.sock");
        let listener = listener(&path, 1);
        let arrival = Arrival::announce(&[path]).unwrap();
        // SAFETY: the descriptor is open, and is borrowed for this statement only.
        let _childs = unsafe { BorrowedFd::borrow_raw(arrival._connection.descriptor().unchecked()) }
            .try_clone_to_owned()
            .unwrap();
        // SAFETY: null is allowed for both pointers, and the descriptor is new.
        let accepted = unsafe {
            let accepted = libc::accept(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut());
            OwnedFd::from_raw_fd(cvt(accepted).unwrap())
        };
        let mut hello = Received::new();
        hello.receive(accepted.as_raw_fd());
        assert_eq!(wire::decode::<Hello>(&hello.packet).unwrap().role(), Some(Role::Arriving));
        drop(arrival);
        let mut end = Received::new();
        assert_eq!(end.receive(accepted.as_raw_fd()), 0);
    }
}
