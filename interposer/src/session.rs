//! The connection to the controller: the handshake, and the pages that it brings.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fmt, fs, mem, ptr};

use deepres_abi::MAX_GPUS;
use deepres_abi::beat::BeatPage;
use deepres_abi::grant::{FailMode, GrantPage};
use deepres_abi::ledger::{Account, LedgerPage};
use deepres_abi::meter::MeterPage;
use deepres_abi::page::{self, LayoutError, Page};
use deepres_abi::wire::{
    self, FrameError, FrameKind, Hello, MAX_FDS, MAX_FRAME_BYTES, PAGE_FDS, Refusal, Role, UNMANAGED, Uuid,
    Welcome,
};
use zerocopy::IntoBytes as _;

use crate::config::Config;
use crate::meter::gpu::Gpu;
use crate::os;
use crate::standalone::Local;

/// How long the handshake may take, ns. The controller answers within a millisecond; after this the job goes on alone.
const HANDSHAKE_NS: u64 = 1_000_000_000;
const US_PER_S: u64 = 1_000_000;
const NS_PER_US: u64 = 1_000;
/// A controller that names no limit is believed to beat this often, ns.
const HEARTBEAT_LIMIT_NS: u64 = 1_000_000_000;

/// Why there is no session.
#[derive(Debug)]
pub enum ConnectError {
    /// Nobody listens there, the first place of those that were tried.
    Absent(PathBuf, io::Error),
    /// The connection broke, or no answer came in time.
    Io(io::Error),
    /// The answer is no frame of ours.
    Frame(FrameError),
    /// The controller said no, and why.
    Refused(String),
    /// A page that came with the welcome cannot be used.
    Page(LayoutError),
    /// Fewer descriptors came than the welcome promises.
    Descriptors(usize),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent(socket, error) => write!(f, "no daemon at {} ({error})", socket.display()),
            Self::Io(error) => write!(f, "the daemon did not answer ({error})"),
            Self::Frame(error) => write!(f, "the answer cannot be read: {error}"),
            Self::Refused(reason) => write!(f, "the daemon refused: {reason}"),
            Self::Page(error) => write!(f, "{error}"),
            Self::Descriptors(count) => write!(f, "the welcome came with only {count} descriptors"),
        }
    }
}

/// A live or past connection. Never freed, since any thread may be looking at its pages; there is one for each time that the daemon came back.
#[derive(Debug)]
pub struct Session {
    grant: &'static GrantPage,
    meter: &'static MeterPage,
    ledger: &'static LedgerPage,
    beat: &'static BeatPage,
    ledger_slot: usize,
    gpu_index: [u8; MAX_GPUS],
    bells: Vec<OwnedFd>,
    /// `None`: there is no daemon behind this session.
    socket: Option<OwnedFd>,
    /// What takes its place then.
    local: Option<Local>,
    connected_ns: u64,
    is_gone: AtomicBool,
}

impl Session {
    /// Connects and shakes hands.
    ///
    /// # Errors
    /// [`ConnectError`]; the job then runs without a session.
    pub fn connect(config: &Config, gpus: &[Uuid]) -> Result<Self, ConnectError> {
        let deadline_ns = os::now_ns().saturating_add(HANDSHAKE_NS);
        let socket = connect_first(&config.sockets, deadline_ns)?;
        let hello = hello(config, gpus);
        send(&socket, hello.as_bytes(), deadline_ns).map_err(ConnectError::Io)?;
        let (packet, descriptors) = receive(&socket, deadline_ns).map_err(ConnectError::Io)?;
        if wire::kind(&packet).map_err(ConnectError::Frame)? == FrameKind::Refusal as u16 {
            let refusal = wire::decode::<Refusal>(&packet).map_err(ConnectError::Frame)?;
            let reason = wire::text(&refusal.reason).unwrap_or("it gave no readable reason");
            return Err(ConnectError::Refused(reason.to_owned()));
        }
        let welcome = wire::decode::<Welcome>(&packet).map_err(ConnectError::Frame)?;
        let managed = welcome.gpu_index.iter().take(gpus.len()).filter(|index| **index != UNMANAGED).count();
        let count = descriptors.len();
        let mut descriptors = descriptors.into_iter();
        let (Some(grant), Some(meter), Some(ledger), Some(beat)) =
            (descriptors.next(), descriptors.next(), descriptors.next(), descriptors.next())
        else {
            return Err(ConnectError::Descriptors(count));
        };
        let bells: Vec<OwnedFd> = descriptors.collect();
        if bells.len() < managed {
            return Err(ConnectError::Descriptors(count));
        }
        Ok(Self {
            grant: map(&grant, libc::PROT_READ)?,
            meter: map(&meter, libc::PROT_READ | libc::PROT_WRITE)?,
            ledger: map(&ledger, libc::PROT_READ | libc::PROT_WRITE)?,
            beat: map(&beat, libc::PROT_READ)?,
            ledger_slot: welcome.ledger_slot as usize,
            gpu_index: welcome.gpu_index,
            bells,
            socket: Some(socket),
            local: None,
            connected_ns: os::now_ns(),
            is_gone: AtomicBool::new(false),
        })
    }

    /// A session without a daemon.
    pub fn local(local: Local) -> Self {
        Self {
            grant: local.grant,
            meter: local.meter,
            ledger: local.page.ledger(),
            beat: local.beat,
            ledger_slot: local.slot(),
            gpu_index: local.gpu_index,
            bells: Vec::new(),
            socket: None,
            local: Some(local),
            connected_ns: os::now_ns(),
            is_gone: AtomicBool::new(false),
        }
    }

    /// What takes the daemon's place, if there is none.
    pub fn standalone(&self) -> Option<&Local> {
        self.local.as_ref()
    }

    /// Without a daemon, which would: gives back what dead processes of the tenant held. Returns whether it was anything.
    pub fn bury_dead(&self) -> bool {
        self.standalone().is_some_and(Local::bury_dead)
    }

    /// Hands each GPU its slots. Without a daemon the bell is `wake`, that of the meter thread.
    pub fn attach(&'static self, gpus: &[Gpu], wake: i32) {
        let mut bells =
            self.bells.iter().map(|bell| bell.as_raw_fd()).chain(self.local.iter().map(|_| wake).cycle());
        for (gpu, index) in gpus.iter().zip(self.gpu_index) {
            let slots = (index != UNMANAGED).then(|| {
                (self.grant.slot(usize::from(index)), self.meter.slot(usize::from(index)), bells.next())
            });
            match slots {
                Some((Some(grant), Some(meter), Some(bell))) => gpu.connect(index, grant, meter, bell),
                _ => gpu.disconnect(),
            }
        }
    }

    /// The tenant's account on a GPU, by the controller's index.
    pub fn account(&self, index: usize) -> Option<Account<'_>> {
        self.ledger.gpu(index)?.account(self.ledger_slot)
    }

    /// What the session says of itself.
    pub fn meter(&self) -> &'static MeterPage {
        self.meter
    }

    /// The socket, whose end is the end of the session; negative if it has none.
    pub fn socket(&self) -> i32 {
        self.socket.as_ref().map_or(-1, |socket| socket.as_raw_fd())
    }

    /// The controller's number of this session.
    pub fn id(&self) -> u64 {
        self.grant.session_id()
    }

    /// The connection ended.
    pub fn set_gone(&self) {
        self.is_gone.store(true, Ordering::Release);
    }

    /// Whether it did.
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    /// Whether nobody will open a gate any more: the connection ended, or the arbiter's heart stopped.
    pub fn is_controller_gone(&self, gpu: &Gpu, now_ns: u64) -> bool {
        if self.is_gone() {
            return true;
        }
        let Some(index) = gpu.index() else { return true };
        let limit_ns = match self.grant.heartbeat_limit_ns() {
            0 => HEARTBEAT_LIMIT_NS,
            limit_ns => limit_ns,
        };
        let last_ns = self.beat.last_ns(index).max(self.connected_ns);
        now_ns.saturating_sub(last_ns) > limit_ns
    }

    /// What waiters do then.
    pub fn fail_mode(&self) -> FailMode {
        self.grant.fail_mode()
    }

    /// Closes every descriptor: in a forked child, since the controller must see the connection end with the parent.
    ///
    /// # Safety
    /// Nobody in this process uses the session from here on.
    pub unsafe fn close(&self) {
        for descriptor in self.bells.iter().chain(&self.socket) {
            // SAFETY: open, and by the caller's promise used by nobody.
            unsafe { libc::close(descriptor.as_raw_fd()) };
        }
        if let Some(local) = &self.local {
            // SAFETY: the caller's promise.
            unsafe { local.close() };
        }
    }
}

fn hello(config: &Config, gpus: &[Uuid]) -> Hello {
    let mut hello = Hello::new(Role::Session);
    hello.monotonic_ns = os::now_ns();
    let request = config.request();
    hello.memory_bytes = request.memory_bytes;
    hello.share_ppm = request.share_ppm;
    hello.class = config.class.map_or(0, |class| class as u32);
    hello.pid = std::process::id();
    for (place, uuid) in hello.gpu_uuids.iter_mut().zip(gpus) {
        *place = *uuid;
    }
    hello.gpu_count = gpus.len().min(MAX_GPUS) as u32;
    wire::set_text(&mut hello.tenant, &config.tenant);
    wire::set_text(&mut hello.client, &command_line());
    hello
}

/// The process's command line with its program's folder cut off.
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

/// Runs `call` until it is not interrupted by a signal, with what is left until the deadline as the socket's timeout: a process
/// with an interval timer would otherwise begin a new one at each tick.
fn until_deadline(socket: &OwnedFd, deadline_ns: u64, mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        let left_us = deadline_ns.saturating_sub(os::now_ns()) / NS_PER_US;
        if left_us == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let timeout =
            libc::timeval { tv_sec: (left_us / US_PER_S) as i64, tv_usec: (left_us % US_PER_S) as i64 };
        for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            // SAFETY: the option's value is a timeval of that size.
            cvt(unsafe {
                libc::setsockopt(
                    socket.as_raw_fd(),
                    libc::SOL_SOCKET,
                    option,
                    (&raw const timeout).cast(),
                    size_of::<libc::timeval>() as u32,
                )
            })?;
        }
        if let Ok(done) = usize::try_from(call()) {
            return Ok(done);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Connects to the first of `sockets` where somebody listens.
fn connect_first(sockets: &[PathBuf], deadline_ns: u64) -> Result<OwnedFd, ConnectError> {
    let mut absent = None;
    for path in sockets {
        match connect(path, deadline_ns) {
            Ok(socket) => return Ok(socket),
            Err(error) => drop(absent.get_or_insert((path, error))),
        }
    }
    let (path, error) = absent.map_or_else(
        || (PathBuf::new(), io::ErrorKind::NotFound.into()),
        |(path, error)| (path.clone(), error),
    );
    Err(ConnectError::Absent(path, error))
}

fn connect(path: &Path, deadline_ns: u64) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let socket = cvt(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: just created, and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: all zeroes is a valid sockaddr_un.
    let mut address = unsafe { mem::zeroed::<libc::sockaddr_un>() };
    address.sun_family = libc::AF_UNIX as u16;
    let name = path.as_os_str().as_bytes();
    // The last byte stays zero.
    if name.len() >= address.sun_path.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path is too long for a socket"));
    }
    for (place, byte) in address.sun_path.iter_mut().zip(name) {
        *place = *byte as libc::c_char;
    }
    let bytes = size_of::<libc::sockaddr_un>() as u32;
    until_deadline(&socket, deadline_ns, || {
        // SAFETY: an initialised address of that size.
        let result = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), bytes) };
        result as isize
    })?;
    Ok(socket)
}

fn send(socket: &OwnedFd, packet: &[u8], deadline_ns: u64) -> io::Result<()> {
    until_deadline(socket, deadline_ns, || {
        // SAFETY: a readable buffer of that length.
        unsafe { libc::send(socket.as_raw_fd(), packet.as_ptr().cast(), packet.len(), libc::MSG_NOSIGNAL) }
    })
    .map(drop)
}

/// Room for the control message, aligned as its header has to be.
#[repr(C, align(8))]
struct Control([u8; 256]);

const _: () = assert!(MAX_FDS * size_of::<i32>() + 64 <= size_of::<Control>());

fn receive(socket: &OwnedFd, deadline_ns: u64) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut packet = vec![0_u8; MAX_FRAME_BYTES];
    let mut control = Control([0; 256]);
    let mut part = libc::iovec { iov_base: packet.as_mut_ptr().cast(), iov_len: packet.len() };
    // SAFETY: all zeroes is a valid msghdr.
    let mut message = unsafe { mem::zeroed::<libc::msghdr>() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len();
    let got = until_deadline(socket, deadline_ns, || {
        // SAFETY: the message describes two writable buffers that outlive the call.
        unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) }
    })?;
    let mut descriptors = Vec::new();
    // SAFETY: the kernel filled the control buffer; the macros walk it within the length it reported, and each descriptor in it is
    // ours alone.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = ((*header).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let first = libc::CMSG_DATA(header).cast::<i32>();
                for number in 0..bytes / size_of::<i32>() {
                    descriptors.push(OwnedFd::from_raw_fd(first.add(number).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
    }
    if got == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection"));
    }
    packet.truncate(got);
    Ok((packet, descriptors))
}

/// Maps a page for as long as the process lives.
fn map<P: Page>(descriptor: &OwnedFd, protection: i32) -> Result<&'static P, ConnectError> {
    // SAFETY: all zeroes is a valid stat.
    let mut status = unsafe { mem::zeroed::<libc::stat>() };
    // SAFETY: the result has room.
    cvt(unsafe { libc::fstat(descriptor.as_raw_fd(), &mut status) }).map_err(ConnectError::Io)?;
    let bytes = usize::try_from(status.st_size).unwrap_or(0);
    if bytes < size_of::<P>() {
        return Err(ConnectError::Page(LayoutError::Short(bytes, size_of::<P>())));
    }
    // SAFETY: a new mapping, wherever the kernel has room.
    let address = unsafe {
        libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_SHARED, descriptor.as_raw_fd(), 0)
    };
    if address == libc::MAP_FAILED {
        return Err(ConnectError::Io(io::Error::last_os_error()));
    }
    // SAFETY: mapped just now and never unmapped once it is a page; pages mapped read-only are only read (`GrantPage`, `BeatPage`).
    let page = unsafe { page::view::<P>(address.cast(), bytes) };
    page.map_err(|error| {
        // SAFETY: our mapping, and no reference to it exists.
        unsafe { libc::munmap(address, bytes) };
        ConnectError::Page(error)
    })
}

const _: () = assert!(PAGE_FDS == 4);
