//! A controller in place of the daemon, which tests move by hand, and clients that run under the
//! library on the stub driver.
//!
//! The clients are this test program itself, started again. An environment variable tells the
//! client its part.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
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
use zerocopy::IntoBytes as _;

/// The daemon's index of the GPU. It is not 0, so that a wrong ordinal in its place makes a test
/// fail.
const GPU: usize = 3;
/// The longest time that a step may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns `CLOCK_MONOTONIC`, ns.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the result has room.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
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
    // SAFETY: the name is terminated, and the descriptor is new.
    let fd = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"page".as_ptr(), libc::MFD_CLOEXEC)) };
    let bytes = mem::size_of::<P>();
    // SAFETY: the file is new, and stays mapped for the life of the test.
    let page = unsafe {
        assert_eq!(libc::ftruncate(fd.as_raw_fd(), bytes as i64), 0);
        let at = libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            fd.as_raw_fd(),
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        page::create::<P>(at.cast(), bytes).unwrap()
    };
    (fd, page)
}

/// A controller with one GPU and room for one session.
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

/// A connection that the controller has accepted.
pub struct Connection {
    pub socket: OwnedFd,
    pub hello: Hello,
}

impl Connection {
    /// Returns whether the client has closed the connection.
    pub fn has_ended(&self) -> bool {
        let mut byte = 0_u8;
        // SAFETY: the buffer is writable and has that length.
        let got =
            unsafe { libc::recv(self.socket.as_raw_fd(), (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT) };
        got == 0
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
        // SAFETY: the call takes no pointers, and the descriptor is new.
        let bell = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)) };
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
        let mut count = 0_u64;
        // SAFETY: the buffer has eight writable bytes, and the descriptor does not block.
        let read = unsafe { libc::read(self.bell.as_raw_fd(), (&raw mut count).cast(), 8) };
        if read == 8 { count } else { 0 }
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
        // SAFETY: the address pointers are null, and the descriptor is new.
        let socket = unsafe {
            let fd = libc::accept4(
                self.listener.as_raw_fd(),
                ptr::null_mut(),
                ptr::null_mut(),
                libc::SOCK_CLOEXEC,
            );
            assert!(fd >= 0, "nobody connected: {}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd)
        };
        let mut packet = [0_u8; MAX_FRAME_BYTES];
        // SAFETY: the buffer is writable and has that length.
        let got = unsafe { libc::recv(socket.as_raw_fd(), packet.as_mut_ptr().cast(), packet.len(), 0) };
        let hello = wire::decode::<Hello>(&packet[..usize::try_from(got).unwrap()]).unwrap();
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
        let fds: Vec<RawFd> = self.pages.iter().chain([&self.bell]).map(|fd| fd.as_raw_fd()).collect();
        send(&connection.socket, packet, &fds);
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
        send(&self.accept().socket, packet, &[]);
    }

    /// Refuses a connection.
    pub fn say_no(&self, connection: Connection, reason: &str) {
        send(&connection.socket, Refusal::new(RefusalKind::Request, reason).as_bytes(), &[]);
    }

    /// Returns the path of the socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("tenant.sock")
    }

    /// Returns a client that does `what`, with this controller's socket in its environment.
    pub fn client(&self, what: &str) -> Client {
        let socket = self.socket();
        Client::start(what, |command| {
            command.env("DEEPRES_SOCKET", &socket);
        })
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
    use std::os::unix::ffi::OsStrExt as _;
    // SAFETY: the address is initialised and of that size, and the descriptor is new.
    unsafe {
        let socket =
            OwnedFd::from_raw_fd(libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0));
        let timeout = libc::timeval { tv_sec: PATIENCE.as_secs() as i64, tv_usec: 0 };
        let bytes = mem::size_of::<libc::timeval>() as u32;
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const timeout).cast(),
            bytes,
        );
        let mut address = mem::zeroed::<libc::sockaddr_un>();
        address.sun_family = libc::AF_UNIX as u16;
        for (place, byte) in address.sun_path.iter_mut().zip(path.as_os_str().as_bytes()) {
            *place = *byte as libc::c_char;
        }
        let bytes = mem::size_of::<libc::sockaddr_un>() as u32;
        assert_eq!(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes), 0);
        assert_eq!(libc::listen(socket.as_raw_fd(), 8), 0);
        socket
    }
}

fn send(socket: &OwnedFd, packet: &[u8], fds: &[RawFd]) {
    #[repr(C, align(8))]
    struct Control([u8; 256]);
    let mut control = Control([0; 256]);
    let mut part = libc::iovec { iov_base: packet.as_ptr().cast_mut().cast(), iov_len: packet.len() };
    // SAFETY: the message describes initialised buffers that outlive the call, and the header lies
    // in the control buffer.
    unsafe {
        let mut message = mem::zeroed::<libc::msghdr>();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if !fds.is_empty() {
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(mem::size_of_val(fds) as u32) as usize;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(mem::size_of_val(fds) as u32) as usize;
            ptr::copy_nonoverlapping(fds.as_ptr(), libc::CMSG_DATA(header).cast(), fds.len());
        }
        assert_eq!(libc::sendmsg(socket.as_raw_fd(), &message, 0), packet.len() as isize);
    }
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
    /// driver. Returns the client.
    pub fn start(what: &str, set: impl FnOnce(&mut Command)) -> Self {
        let (library, driver) = artefacts();
        let mut command = Command::new(env::current_exe().unwrap());
        // Such a process runs only this test.
        command.args(["--exact", "client_process", "--nocapture", "--include-ignored"]);
        command.env(PART, what).env("LD_PRELOAD", library).env("LD_LIBRARY_PATH", driver);
        command.env("DEEPRES_DIR", "/nonexistent").env_remove("DEEPRES_SOCKET");
        set(&mut command);
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
        assert_eq!(mem::size_of::<F>(), mem::size_of_val(&address));
        // SAFETY: F is a function pointer of the type that the driver's table gives to `name`.
        unsafe { mem::transmute_copy(&address) }
    }
}
