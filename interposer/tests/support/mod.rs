//! A controller in place of the daemon, which tests move by hand, and clients that run under the
//! library on the stub driver.
//!
//! The clients are this test program itself, started again. An environment variable tells the
//! client its part.

use std::io::{BufRead as _, BufReader, IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use std::{env, mem, ptr};

use deepres_abi::beat::BeatPage;
use deepres_abi::grant::{FailMode, GateState, GrantPage, GrantSlot, LeaseTerms};
use deepres_abi::ledger::LedgerPage;
use deepres_abi::meter::{MeterPage, MeterSlot};
use deepres_abi::page::{self, Page};
use deepres_abi::wire::{self, Hello, MAX_FRAME_BYTES, Refusal, RefusalKind, Role, Welcome};
use deepres_e2e::stolen::Stolen;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::net::{
    self, AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sockopt,
};
use zerocopy::IntoBytes as _;

/// The daemon's index of the GPU. The index is not 0, so that a wrong ordinal in its place makes a
/// test fail.
const GPU: usize = 3;
/// The longest time that a step may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns `CLOCK_MONOTONIC`, ns.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Waits until `condition` returns true. If this takes too long, fails with the text `what`.
pub fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what}: not after {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the library under test and the folder of the stub driver. The first call builds both.
fn artefacts() -> &'static (PathBuf, PathBuf) {
    static BUILT: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    BUILT.get_or_init(|| {
        let built = deepres_e2e::artefacts::built(&["deepres-interposer", "deepres-stub-driver"]);
        let folder = built.join("interposer-tests");
        std::fs::create_dir_all(&folder).unwrap();
        let driver = folder.join("libcuda.so.1");
        let temporary = folder.join(format!("libcuda.so.1.{}", std::process::id()));
        std::fs::copy(built.join("libstub_cuda.so"), &temporary).unwrap();
        std::fs::rename(temporary, driver).unwrap();
        (built.join("libdeepres.so"), folder)
    })
}

fn memfd<P: Page>() -> (OwnedFd, &'static P) {
    let fd = memfd_create(c"page", MemfdFlags::CLOEXEC).unwrap();
    let bytes = size_of::<P>();
    ftruncate(&fd, bytes as u64).unwrap();
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the file is new, and stays mapped for the life of the test.
    let page = unsafe {
        let at = mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, &fd, 0).unwrap();
        page::create::<P>(at.cast(), bytes).unwrap()
    };
    (fd, page)
}

/// The tests' replacement for the daemon, with one GPU and room for one session.
pub struct Controller {
    listener: OwnedFd,
    directory: tempfile::TempDir,
    pages: [OwnedFd; 4],
    bell: OwnedFd,
    /// The slot of the ledger that the controller's welcomes assign.
    ledger_slot: u32,
    _stolen: Stolen,
    pub grant: &'static GrantPage,
    pub meter: &'static MeterPage,
    pub ledger: &'static LedgerPage,
    pub beat: &'static BeatPage,
}

/// A connection that a [`Controller`] has accepted, with the client's hello.
pub struct Connection {
    pub socket: OwnedFd,
    pub hello: Hello,
}

impl Connection {
    /// Returns whether the client has closed the connection.
    pub fn has_ended(&self) -> bool {
        net::recv(&self.socket, &mut [0], RecvFlags::DONTWAIT).is_ok_and(|(bytes, _)| bytes == 0)
    }
}

impl Controller {
    /// Returns a controller that listens. The gate is open, the tenant has no limit, and the
    /// heartbeat is valid for an hour.
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = listen(&directory.path().join("tenant.sock"));
        let (grant_fd, grant) = memfd::<GrantPage>();
        let (meter_fd, meter) = memfd::<MeterPage>();
        let (ledger_fd, ledger) = memfd::<LedgerPage>();
        let (beat_fd, beat) = memfd::<BeatPage>();
        grant.set_session(77, 100_000_000, FailMode::Open);
        let slot = grant.slot(GPU).unwrap();
        slot.set_gate(GateState::Open, LeaseTerms::default());
        slot.set_memory_limit(deepres_abi::grant::NO_LIMIT);
        ledger.gpu(GPU).unwrap().open(1).unwrap();
        beat.beat(GPU, now_ns() + 3_600_000_000_000);
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        Self {
            listener,
            directory,
            pages: [grant_fd, meter_fd, ledger_fd, beat_fd],
            bell,
            ledger_slot: 1,
            _stolen: Stolen::start(),
            grant,
            meter,
            ledger,
            beat,
        }
    }

    pub fn slot(&self) -> &'static GrantSlot {
        self.grant.slot(GPU).unwrap()
    }

    pub fn meter(&self) -> &'static MeterSlot {
        self.meter.slot(GPU).unwrap()
    }

    pub fn gpu(&self) -> usize {
        GPU
    }

    /// Sets the gate, and wakes all waiting threads.
    pub fn set_gate(&self, state: GateState, terms: LeaseTerms) {
        self.slot().set_gate(state, terms);
        // SAFETY: waking touches no memory.
        unsafe { libc::syscall(libc::SYS_futex, self.slot().futex(), libc::FUTEX_WAKE, i32::MAX) };
    }

    /// Returns how often the client rang the bell since the last call.
    pub fn rings(&self) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(&self.bell, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }

    /// Accepts a connection, reads its hello, and returns both. Closes connections that only
    /// announce a session.
    pub fn accept(&self) -> Connection {
        loop {
            let connection = self.accept_any();
            if connection.hello.role() != Some(Role::Arriving) {
                return connection;
            }
        }
    }

    /// Accepts a connection of any role, reads its hello, and returns both.
    pub fn accept_any(&self) -> Connection {
        let socket = net::accept_with(&self.listener, SocketFlags::CLOEXEC).expect("somebody connects");
        let mut packet = [0_u8; MAX_FRAME_BYTES];
        let (bytes, _) = net::recv(&socket, &mut packet, RecvFlags::empty()).unwrap();
        let hello = wire::decode::<Hello>(&packet[..bytes]).unwrap();
        Connection { socket, hello }
    }

    /// Accepts a connection, makes it a session, and returns it.
    pub fn welcome(&self) -> Connection {
        let connection = self.accept();
        self.say_welcome(&connection);
        connection
    }

    /// Makes a connection a session.
    pub fn say_welcome(&self, connection: &Connection) {
        let mut welcome = Welcome::new(77, self.ledger_slot);
        welcome.gpu_index[0] = GPU as u8;
        self.answer(connection, welcome.as_bytes());
    }

    /// Answers a hello with the bytes of `packet` and with the descriptors of a welcome.
    pub fn answer(&self, connection: &Connection, packet: &[u8]) {
        let descriptors: Vec<_> = self.pages.iter().chain([&self.bell]).map(|fd| fd.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        assert!(beside.push(SendAncillaryMessage::ScmRights(&descriptors)));
        send(&connection.socket, packet, &mut beside);
    }

    /// Prepares other pages and another slot of the same ledger, as a daemon does for a session
    /// that comes back to it.
    pub fn take_back(&mut self) {
        let (ledger, pages) = (self.ledger, self.pages.each_ref().map(|page| page.try_clone().unwrap()));
        self.restart();
        let [_, _, memory, _] = pages;
        (self.ledger, self.pages[2]) = (ledger, memory);
        self.ledger_slot += 1;
        ledger.gpu(GPU).unwrap().open(self.ledger_slot as usize).unwrap();
    }

    /// Prepares other pages and another bell at the same socket, as a restarted daemon does.
    pub fn restart(&mut self) {
        let fresh = Self::new();
        (self.pages, self.bell) = (fresh.pages, fresh.bell);
        (self.grant, self.meter, self.ledger, self.beat) =
            (fresh.grant, fresh.meter, fresh.ledger, fresh.beat);
    }

    /// Accepts a connection and refuses it.
    pub fn refuse(&self, reason: &str) {
        let connection = self.accept();
        self.say_no(connection, reason);
    }

    /// Accepts a connection and refuses it with the bytes of `packet`.
    pub fn refuse_with(&self, packet: &[u8]) {
        send(&self.accept().socket, packet, &mut SendAncillaryBuffer::default());
    }

    /// Refuses a connection.
    pub fn say_no(&self, connection: Connection, reason: &str) {
        let refusal = Refusal::new(RefusalKind::Request, reason);
        send(&connection.socket, refusal.as_bytes(), &mut SendAncillaryBuffer::default());
    }

    /// Returns a client that does `what`, with this controller's socket in its environment.
    pub fn client(&self, what: &str) -> Client {
        self.client_with(what, &[])
    }

    /// Returns a client that does `what`, with this controller's socket and these variables in its
    /// environment.
    pub fn client_with(&self, what: &str, variables: &[(&str, &str)]) -> Client {
        Client::start(what, &self.directory.path().join("tenant.sock"), variables)
    }
}

/// Returns a frame as another version would have sent it, with `more` additional bytes at its end.
pub fn of_version(frame: &[u8], major: u16, minor: u16, more: usize) -> Vec<u8> {
    let mut packet = frame.to_vec();
    packet.resize(frame.len() + more, 0xEE);
    let bytes = packet.len() as u32;
    packet[4..8].copy_from_slice(&bytes.to_le_bytes());
    packet[10..12].copy_from_slice(&major.to_le_bytes());
    packet[12..14].copy_from_slice(&minor.to_le_bytes());
    packet
}

fn listen(path: &Path) -> OwnedFd {
    let socket =
        net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE)).unwrap();
    net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    net::listen(&socket, 8).unwrap();
    socket
}

fn send(socket: &OwnedFd, packet: &[u8], beside: &mut SendAncillaryBuffer<'_, '_, '_>) {
    let sent = net::sendmsg(socket, &[IoSlice::new(packet)], beside, SendFlags::empty());
    assert_eq!(sent, Ok(packet.len()));
}

/// A client process. The client takes a line as a go-ahead, and answers with lines.
pub struct Client {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// The environment variable with the client's part.
const PART: &str = "INTERPOSER_TEST_CLIENT";

impl Client {
    /// Starts this program again as the client that does `what`, under the library and on the stub
    /// driver, with these variables. Returns the client.
    fn start(what: &str, socket: &Path, variables: &[(&str, &str)]) -> Self {
        let (library, driver) = artefacts();
        let mut command = Command::new(env::current_exe().unwrap());
        // Such a process runs only this test.
        command.args(["--exact", "client_process", "--nocapture", "--include-ignored"]);
        command.env(PART, what).env("LD_PRELOAD", library).env("LD_LIBRARY_PATH", driver);
        command.env("DEEPRES_DIR", "/nonexistent").env("DEEPRES_SOCKET", socket);
        command.envs(variables.iter().copied());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, input, output }
    }

    /// Gives the client the go-ahead.
    pub fn go(&mut self) {
        writeln!(self.input.as_mut().unwrap()).unwrap();
    }

    /// Returns the client's next answer.
    pub fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the client ended: {}", self.errors());
            if let Some(answer) = line.trim_end().strip_prefix(ANSWER) {
                return answer.to_owned();
            }
        }
    }

    /// Gives the client the go-ahead, and asserts its next answer.
    #[track_caller]
    pub fn gives(&mut self, expected: impl std::fmt::Display) {
        self.go();
        assert_eq!(self.answer(), expected.to_string());
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the number of the client's open descriptors.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    /// Returns the number of shared pages that the client has mapped.
    pub fn shared_mappings(&self) -> usize {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid())).unwrap();
        maps.lines().filter(|line| line.contains("/memfd:page")).count()
    }

    /// Kills the client. Returns the text that it wrote to stderr.
    pub fn end(mut self) -> String {
        self.child.kill().unwrap();
        self.errors()
    }

    fn errors(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut errors) = self.child.stderr.take() {
            let _ = std::io::Read::read_to_string(&mut errors, &mut text);
        }
        text
    }

    /// Waits until the client ends successfully. Returns the text that it wrote to stderr.
    pub fn finish(mut self) -> String {
        drop(self.input.take());
        let errors = self.errors();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {errors}");
        errors
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The prefix of a client's answer, which distinguishes it from the test runner's own lines.
const ANSWER: &str = "answer: ";

/// In a client: returns its part. In the test process itself: returns `None`.
pub fn part() -> Option<String> {
    env::var(PART).ok()
}

/// In a client: writes an answer.
pub fn say(text: impl std::fmt::Display) {
    println!("\n{ANSWER}{text}");
}

/// In a client: waits for the go-ahead.
pub fn await_go() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

/// The driver's library as a client loads it.
pub struct Driver(*mut libc::c_void);

// SAFETY: any thread may use a library handle.
unsafe impl Sync for Driver {}

impl Driver {
    pub fn load() -> Self {
        // SAFETY: every client loads the driver this way.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null());
        Self(library)
    }

    /// Returns the function `name`, whose type the caller knows.
    pub fn function<F: Copy>(&self, name: &std::ffi::CStr) -> F {
        // SAFETY: the library is open.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!address.is_null(), "no {name:?}");
        assert_eq!(size_of::<F>(), size_of_val(&address));
        // SAFETY: F is a function pointer of the type that the driver's table gives to `name`.
        unsafe { mem::transmute_copy(&address) }
    }
}
