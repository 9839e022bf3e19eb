//! A daemon on a thread of the test, with GPUs that do not exist, and tenants that behave as the interposer does.

use deepres_abi::beat::BeatPage;
use deepres_abi::grant::{GateState, GrantPage, GrantSlot};
use deepres_abi::ledger::LedgerPage;
use deepres_abi::meter::{MeterPage, MeterSlot};
use deepres_abi::page::{self, Page};
use deepres_abi::wire::{self, Hello, MAX_FRAME_BYTES, PAGE_FDS, Refusal, Role, Uuid, Welcome};
use deepres_daemon::{Gpu, Options};
use deepres_e2e::stolen::Stolen;
use deepres_model::admin::Status;
use deepres_model::admin::client::Client;
use deepres_model::clock::monotonic_ns;
use deepres_model::config::Config;
use deepres_model::directory::Directory;
use deepres_model::packet;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use zerocopy::IntoBytes;

/// A millisecond, ns.
pub const MS: u64 = 1_000_000;

/// Tells the GPUs of parallel tests apart.
static NEXT_GPU: AtomicU64 = AtomicU64::new(1);

/// A daemon in a thread of its own; it stops when this is dropped.
pub struct Daemon {
    /// Where its sockets are.
    pub directory: Directory,
    /// The GPUs that it manages.
    pub gpus: Vec<Gpu>,
    config: Config,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    scratch: Option<tempfile::TempDir>,
    _stolen: Stolen,
}

impl Daemon {
    /// A daemon with so many GPUs.
    pub fn start(gpus: usize, config: Config) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), (0..gpus).map(|_| new_gpu()).collect(), config)
    }

    /// One with a GPU, whose thread is spent in `within`, which calls what it is given.
    pub fn start_within(config: Config, within: impl FnOnce(Box<dyn FnOnce()>) + Send + 'static) -> Self {
        Self::start_with(tempfile::tempdir().unwrap(), vec![new_gpu()], config, within)
    }

    fn start_in(scratch: tempfile::TempDir, gpus: Vec<Gpu>, config: Config) -> Self {
        Self::start_with(scratch, gpus, config, |run| run())
    }

    fn start_with(
        scratch: tempfile::TempDir,
        gpus: Vec<Gpu>,
        config: Config,
        within: impl FnOnce(Box<dyn FnOnce()>) + Send + 'static,
    ) -> Self {
        let directory = Directory::at(scratch.path().join("d"));
        let options = Options {
            directory: directory.clone(),
            config: config.clone(),
            gpus: gpus.clone(),
            locks: scratch.path().to_owned(),
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
        }
    }

    /// Where its locks are.
    pub fn locks(&self) -> &std::path::Path {
        self.scratch.as_ref().unwrap().path()
    }

    /// Whether it serves no longer.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// The next daemon in the same place, after this one was told to stop.
    pub fn restart(self) -> Self {
        self.restart_after(|_| ())
    }

    /// The next daemon in the same place; `meanwhile` changes what this one has left.
    pub fn restart_after(mut self, meanwhile: impl FnOnce(&Directory)) -> Self {
        self.end();
        meanwhile(&self.directory);
        Self::start_in(self.scratch.take().unwrap(), self.gpus.clone(), self.config.clone())
    }

    /// As [`Self::restart`], with another configuration.
    pub fn restart_with(mut self, config: Config) -> Self {
        self.config = config;
        self.restart()
    }

    /// A connection of an administrator.
    pub fn client(&self) -> Client {
        Client::connect_to(&self.directory).unwrap()
    }

    /// What it tells an administrator.
    pub fn status(&self) -> Status {
        self.client().status().unwrap()
    }

    /// The UUIDs of its GPUs.
    pub fn uuids(&self) -> Vec<Uuid> {
        self.gpus.iter().map(|gpu| gpu.uuid).collect()
    }

    /// The first frame of a connection that names all its GPUs.
    pub fn hello(&self, role: Role, tenant: &str) -> Hello {
        hello(role, tenant, &self.uuids())
    }

    /// A session of `tenant` on every GPU.
    pub fn join(&self, tenant: &str, share_ppm: u32, memory_bytes: u64) -> Tenant {
        let mut hello = self.hello(Role::Session, tenant);
        hello.share_ppm = share_ppm;
        hello.memory_bytes = memory_bytes;
        Tenant::connect(&self.directory.tenant_socket(), &hello).unwrap()
    }
}

/// A GPU that does not exist.
fn new_gpu() -> Gpu {
    let number = NEXT_GPU.fetch_add(1, Ordering::Relaxed);
    let uuid = format!("GPU-{:08x}-0000-0000-0000-{number:012x}", std::process::id());
    Gpu::new(&uuid, "Simulated nothing", 1 << 30).unwrap()
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end();
    }
}

/// The first frame of a connection, from this process.
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

/// A refusal: its kind and its sentence.
pub type Refused = (u32, String);

/// Sends bytes as a hello and returns the answer with what came beside it.
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

/// Says `hello`; returns the frame and the descriptors that come back.
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
    // SAFETY: a fresh mapping, which these tests never undo, of a memfd that cannot shrink.
    unsafe {
        let address =
            mmap(std::ptr::null_mut(), size_of::<P>(), protection, MapFlags::SHARED, descriptor, 0).unwrap();
        page::view(address.cast_const().cast(), size_of::<P>()).unwrap()
    }
}

/// A session, as seen from the inside.
pub struct Tenant {
    /// The connection to the daemon.
    pub connection: OwnedFd,
    /// The daemon's answer.
    pub welcome: Welcome,
    /// The pages and bells that came with it.
    pub descriptors: Vec<OwnedFd>,
    /// What the daemon grants.
    pub grant: &'static GrantPage,
    /// What the session reports.
    pub meter: &'static MeterPage,
    /// The memory of the tenant.
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

    /// Its gate on GPU 0.
    pub fn gate(&self) -> &'static GrantSlot {
        self.grant.slot(0).unwrap()
    }

    /// Its meter on GPU 0.
    pub fn slot(&self) -> &'static MeterSlot {
        self.meter.slot(0).unwrap()
    }

    /// Rings the bell of GPU 0.
    pub fn ring(&self) {
        rustix::io::write(self.descriptors[PAGE_FDS].as_fd(), &1u64.to_ne_bytes()).unwrap();
    }

    /// Reserves memory on GPU 0 as the interposer does.
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

    fn may_launch(&self, queued_ns: u64, kernel_ns: u64) -> Result<(), bool> {
        let gate = self.gate().gate();
        match gate.state {
            GateState::Open => Ok(()),
            GateState::Closed | GateState::Paused => Err(true),
            GateState::Leased => match self.gate().terms() {
                Some(terms) if terms.epoch == gate.epoch && monotonic_ns() < terms.expires_ns => {
                    if queued_ns == 0 || queued_ns + kernel_ns <= terms.window_ns {
                        Ok(())
                    } else {
                        Err(false)
                    }
                }
                _ => Err(true),
            },
        }
    }

    /// Keeps `gpu` busy with kernels of `kernel_ns` until told to stop.
    pub fn play(&self, gpu: &ModelGpu, kernel_ns: u64, stop: &AtomicBool) {
        let slot = self.slot();
        let mut ends: VecDeque<u64> = VecDeque::new();
        let mut is_waiting = false;
        while !stop.load(Ordering::Relaxed) {
            while ends.front().is_some_and(|end_ns| *end_ns <= monotonic_ns()) {
                ends.pop_front();
                slot.compute_ns.fetch_add(kernel_ns, Ordering::Relaxed);
            }
            slot.longest_ns.store(kernel_ns, Ordering::Relaxed);
            let queued_ns = ends.len() as u64 * kernel_ns;
            slot.in_flight_ns.store(queued_ns, Ordering::Relaxed);
            if ends.is_empty() && slot.in_flight.load(Ordering::SeqCst) == 1 {
                slot.in_flight.store(0, Ordering::SeqCst);
                fence(Ordering::SeqCst);
                if self.gate().gate().state != GateState::Open {
                    self.ring();
                }
            }
            match self.may_launch(queued_ns, kernel_ns) {
                Ok(()) if ends.len() < 8 => {
                    slot.in_flight.store(1, Ordering::SeqCst);
                    if std::mem::take(&mut is_waiting) {
                        slot.leave_wait();
                    }
                    ends.push_back(gpu.run(kernel_ns));
                    slot.kernel_launches.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                Err(rings) if !is_waiting => {
                    is_waiting = true;
                    slot.enter_wait();
                    if rings {
                        self.ring();
                    }
                }
                _ => {}
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        slot.in_flight.store(0, Ordering::SeqCst);
        if is_waiting {
            slot.leave_wait();
        }
        self.ring();
    }
}

/// A GPU that takes one kernel after the other.
#[derive(Default)]
pub struct ModelGpu(Mutex<u64>);

impl ModelGpu {
    /// Queues a kernel and returns when it will be done.
    fn run(&self, kernel_ns: u64) -> u64 {
        let mut free_ns = self.0.lock().unwrap();
        *free_ns = (*free_ns).max(monotonic_ns()) + kernel_ns;
        *free_ns
    }
}

/// Waits until `holds`, for at most `limit`; returns how long it took.
pub fn wait_until(limit: Duration, holds: impl Fn() -> bool) -> Duration {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < limit, "it does not hold after {limit:?}");
        std::thread::sleep(Duration::from_micros(200));
    }
    begin.elapsed()
}
