//! Runs a daemon on a thread of a test, with made-up GPUs, and provides tenants that behave like
//! the interposer.

use deepres_abi::beat::BeatPage;
use deepres_abi::grant::{GrantPage, GrantSlot};
use deepres_abi::ledger::LedgerPage;
use deepres_abi::meter::{MeterPage, MeterSlot};
use deepres_abi::page::{self, Page};
use deepres_abi::wire::{self, Hello, MAX_FRAME_BYTES, PAGE_FDS, Refusal, Role, Uuid, Welcome};
use deepres_daemon::{Configuration, Faults, Gpu, Options};
use deepres_e2e::stolen::Stolen;
use deepres_model::admin::Status;
use deepres_model::admin::client::Client;
use deepres_model::clock::monotonic_ns;
use deepres_model::config::{Config, Loaded};
use deepres_model::directory::Directory;
use deepres_model::packet;
use deepres_model::wish::Wish;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use zerocopy::IntoBytes;

/// The longest wait for the end of all copies of a daemon's lock.
const UNLOCKED_WITHIN: Duration = Duration::from_secs(5);

/// A millisecond, ns.
pub const MS: u64 = 1_000_000;

/// The number of the next GPU, so that parallel tests have different GPUs.
static NEXT_GPU: AtomicU64 = AtomicU64::new(1);

/// A daemon on a thread of its own; dropping this stops the daemon.
pub struct Daemon {
    /// The directory of its sockets.
    pub directory: Directory,
    /// The GPUs that it manages.
    pub gpus: Vec<Gpu>,
    /// The faults of its GPUs, which the test sets.
    pub faults: Faults,
    config: Config,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    scratch: Option<tempfile::TempDir>,
    _stolen: Stolen,
}

impl Daemon {
    /// Starts a daemon with `gpus` GPUs.
    pub fn start(gpus: usize, config: Config) -> Self {
        Self::start_on((0..gpus).map(|_| new_gpu()).collect(), config)
    }

    /// Starts a daemon with these GPUs.
    pub fn start_on(gpus: Vec<Gpu>, config: Config) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), gpus, config)
    }

    /// Starts a daemon with one GPU. Its thread runs `within`, which has to call its argument.
    pub fn start_within(config: Config, within: impl FnOnce(Box<dyn FnOnce()>) + Send + 'static) -> Self {
        let configuration = config.clone().into();
        Self::start_with(tempfile::tempdir().unwrap(), vec![new_gpu()], (config, configuration), within)
    }

    /// Starts a daemon with one GPU, which reads its configuration from a file.
    pub fn start_from(file: &Path) -> Self {
        let file = file.to_owned();
        let configuration = Configuration::read_by(move || Loaded::load(Some(&file))).unwrap();
        let config = (configuration.loaded.config.clone(), configuration);
        Self::start_with(tempfile::tempdir().unwrap(), vec![new_gpu()], config, |run| run())
    }

    fn start_in(scratch: tempfile::TempDir, gpus: Vec<Gpu>, config: Config) -> Self {
        let configuration = config.clone().into();
        Self::start_with(scratch, gpus, (config, configuration), |run| run())
    }

    fn start_with(
        scratch: tempfile::TempDir,
        gpus: Vec<Gpu>,
        (config, configuration): (Config, Configuration),
        within: impl FnOnce(Box<dyn FnOnce()>) + Send + 'static,
    ) -> Self {
        let directory = Directory::at(scratch.path().join("d"));
        let faults = Faults::default();
        let options = Options {
            directory: directory.clone(),
            config: configuration,
            gpus: gpus.clone(),
            topology: None,
            faults: faults.clone(),
            locks: vec![scratch.path().to_owned()],
            inherited: Default::default(),
            exits_idle: false,
        };
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let ready = move || ready.send(()).unwrap();
            let run = move || deepres_daemon::run(options, ready, async { drop(stopped.await) }).unwrap();
            within(Box::new(run));
        });
        is_ready.recv().unwrap();
        Self {
            directory,
            gpus,
            faults,
            config,
            stop: Some(stop),
            thread: Some(thread),
            scratch: Some(scratch),
            _stolen: Stolen::start(),
        }
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
            self.await_unlocked();
        }
    }

    /// Waits until no process has the daemon's lock, for some seconds at most. A program that
    /// another test starts at this moment has a copy of the lock until its exec.
    fn await_unlocked(&self) {
        let Ok(lock) = std::fs::File::open(self.directory.lock_file()) else { return };
        let began = Instant::now();
        while lock.try_lock().is_err() && began.elapsed() < UNLOCKED_WITHIN {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the directory of the GPU locks.
    pub fn locks(&self) -> &std::path::Path {
        self.scratch.as_ref().unwrap().path()
    }

    /// Returns whether the daemon has ended.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops this daemon and starts the next one in the same place.
    pub fn restart(self) -> Self {
        self.restart_after(|_| ())
    }

    /// Stops this daemon and starts the next one in the same place. In between, `meanwhile` changes
    /// the files that this one left.
    pub fn restart_after(mut self, meanwhile: impl FnOnce(&Directory)) -> Self {
        self.end();
        meanwhile(&self.directory);
        Self::start_in(self.scratch.take().unwrap(), self.gpus.clone(), self.config.clone())
    }

    /// Restarts as [`Self::restart`] does, with another configuration.
    pub fn restart_with(mut self, config: Config) -> Self {
        self.config = config;
        self.restart()
    }

    /// Connects as an administrator.
    pub fn client(&self) -> Client {
        Client::connect_to(&self.directory).unwrap()
    }

    /// Returns the status that an administrator sees.
    pub fn status(&self) -> Status {
        self.client().status().unwrap()
    }

    /// Returns the UUIDs of the daemon's GPUs.
    pub fn uuids(&self) -> Vec<Uuid> {
        self.gpus.iter().map(|gpu| gpu.uuid).collect()
    }

    /// Returns a hello that names all of the daemon's GPUs.
    pub fn hello(&self, role: Role, tenant: &str) -> Hello {
        hello(role, tenant, &self.uuids())
    }

    /// Connects as a session of `tenant` on every GPU.
    pub fn join(&self, tenant: &str, share_ppm: u32, memory_bytes: u64) -> Tenant {
        let mut hello = self.hello(Role::Session, tenant);
        hello.wishes = Wish {
            share_ppm: Some(share_ppm).filter(|ppm| *ppm != 0),
            memory_bytes: Some(memory_bytes).filter(|bytes| *bytes != 0),
            ..Wish::default()
        }
        .encode();
        Tenant::connect(&self.directory.tenant_socket(), &hello).unwrap()
    }
}

/// Returns a made-up GPU.
pub fn new_gpu() -> Gpu {
    let number = NEXT_GPU.fetch_add(1, Ordering::Relaxed);
    let uuid = format!("GPU-{:08x}-0000-0000-0000-{number:012x}", std::process::id());
    Gpu::new(&uuid, "Simulated nothing", 1 << 30).unwrap()
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns the hello of a session of this process.
pub fn hello(role: Role, tenant: &str, gpus: &[Uuid]) -> Hello {
    let mut hello = Hello::new(role);
    hello.monotonic_ns = monotonic_ns();
    hello.pid = std::process::id();
    hello.gpu_count = gpus.len() as u32;
    hello.gpu_uuids[..gpus.len()].copy_from_slice(gpus);
    wire::set_text(&mut hello.tenant, tenant);
    wire::set_text(&mut hello.client, "fake tenant");
    hello
}

/// A refusal: its kind and its reason.
pub type Refused = (u32, String);

/// Sends bytes as a hello. Returns the connection, the daemon's welcome and the descriptors with
/// it.
///
/// # Errors
/// The daemon's refusal.
pub fn shake_hands(socket: &Path, hello: &[u8]) -> Result<(OwnedFd, Welcome, Vec<OwnedFd>), Refused> {
    let (connection, answer, descriptors) = say(socket, hello);
    if let Ok(refusal) = wire::decode::<Refusal>(&answer) {
        return Err((refusal.kind, wire::text(&refusal.reason).unwrap().to_owned()));
    }
    let welcome = wire::decode::<Welcome>(&answer).expect("neither a welcome nor a refusal");
    Ok((connection, welcome, descriptors))
}

/// Sends `hello`. Returns the connection, the answer and the descriptors with it.
pub fn say(socket: &Path, hello: &[u8]) -> (OwnedFd, Vec<u8>, Vec<OwnedFd>) {
    let connection = packet::connection(socket).unwrap();
    packet::send(&connection, hello, &[]).unwrap();
    let mut bytes = [0; MAX_FRAME_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(&connection, &mut [IoSliceMut::new(&mut bytes)], &mut beside, RecvFlags::CMSG_CLOEXEC)
    })
    .unwrap();
    let mut descriptors = Vec::new();
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    (connection, bytes[..received.bytes].to_vec(), descriptors)
}

fn map<P: Page>(descriptor: &OwnedFd, protection: ProtFlags) -> &'static P {
    // SAFETY: a fresh mapping of a memfd that cannot shrink, and these tests never unmap it.
    unsafe {
        let address =
            mmap(std::ptr::null_mut(), size_of::<P>(), protection, MapFlags::SHARED, descriptor, 0).unwrap();
        page::view(address.cast_const().cast(), size_of::<P>()).unwrap()
    }
}

/// A session, as seen from the job's process.
#[derive(Debug)]
pub struct Tenant {
    /// The connection to the daemon.
    pub connection: OwnedFd,
    /// The daemon's answer.
    pub welcome: Welcome,
    /// The pages and bells that came with the answer.
    pub descriptors: Vec<OwnedFd>,
    /// The grant page.
    pub grant: &'static GrantPage,
    /// The meter page.
    pub meter: &'static MeterPage,
    /// The tenant's ledger.
    pub ledger: &'static LedgerPage,
    /// The daemon's heartbeat.
    pub beat: &'static BeatPage,
}

impl Tenant {
    /// Connects and maps the pages.
    ///
    /// # Errors
    /// The daemon's refusal.
    pub fn connect(socket: &Path, hello: &Hello) -> Result<Self, Refused> {
        let (connection, welcome, descriptors) = shake_hands(socket, hello.as_bytes())?;
        let both = ProtFlags::READ | ProtFlags::WRITE;
        Ok(Self {
            grant: map(&descriptors[0], ProtFlags::READ),
            meter: map(&descriptors[1], both),
            ledger: map(&descriptors[2], both),
            beat: map(&descriptors[3], ProtFlags::READ),
            connection,
            welcome,
            descriptors,
        })
    }

    /// Returns the session's gate on GPU 0.
    pub fn gate(&self) -> &'static GrantSlot {
        self.grant.slot(0).unwrap()
    }

    /// Returns the session's meter on GPU 0.
    pub fn slot(&self) -> &'static MeterSlot {
        self.meter.slot(0).unwrap()
    }

    /// Rings the bell of GPU 0.
    pub fn ring(&self) {
        rustix::io::write(self.descriptors[PAGE_FDS].as_fd(), &1u64.to_ne_bytes()).unwrap();
    }

    /// Reserves memory on GPU 0 as the interposer does. Returns whether that succeeded.
    pub fn allocate(&self, bytes: u64) -> bool {
        let account = self.ledger.gpu(0).unwrap().account(self.welcome.ledger_slot as usize).unwrap();
        let until = Instant::now() + Duration::from_secs(1);
        let goes_on = || {
            std::thread::yield_now();
            Instant::now() < until
        };
        match account.reserve(bytes, self.gate().memory_limit(), goes_on) {
            Ok(reservation) => {
                reservation.commit();
                true
            }
            Err(_) => false,
        }
    }
}

/// Waits until `holds` returns true, for at most `limit`. Returns how long that took.
pub fn wait_until(limit: Duration, holds: impl Fn() -> bool) -> Duration {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < limit, "it does not hold after {limit:?}");
        std::thread::sleep(Duration::from_micros(200));
    }
    begin.elapsed()
}
