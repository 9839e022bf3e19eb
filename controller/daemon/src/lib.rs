//! The daemon: one thread for sockets and tenants, and an arbiter thread for each GPU.
//!
//! | module | job |
//! |---|---|
//! | [`arbiter`] | one thread for each GPU, which carries out the decisions of the policy |
//! | `registry` | the record of GPUs, tenants and their memory |
//! | `tenant` | one tenant: its terms, its members, its residence |
//! | `memory` | promises and limits of memory, and reconciliation with NVML |
//! | `gpus` | the GPUs of the host, and the GPUs that the daemon manages |
//! | `gpu_lock` | the lock by which one daemon shares a GPU |
//! | `nvml` | the thread that asks NVML |
//! | `mps` | the MPS control daemon that the daemon starts |
//! | `mps_clients` | the rule by which a session counts with its part of the SMs |
//! | `points` | the operating points of tenants with profiles |
//! | `faults` | the threads that notice faults of GPUs |
//! | `residency` | tenants that take turns on the GPUs with all their memory |
//! | `sessions` | the tenant socket: admits processes, and answers processes that only ask |
//! | `administrators` | the admin socket |
//! | `files`, `service` | the daemon's directory and its sockets; the service manager |
//! | [`shm`] | shared pages |
//! | `lines`, `look_ups` | limits of log lines; the log of look-ups that miss the hook |
//! | `slurm` | the part of the GPUs that Slurm gave to a job |
//! | `http` | the HTTP server of the metrics and of the page |
//! | `metrics` | the status as metrics for Prometheus |
//! | `web` | the page for people |
//! | `reload` | reading the configuration again |
//! | `status` | the status that administrators and the log see |
//! | [`state`] | the state that the daemon saves for the next daemon |
//! | [`plans`] | iterations of tenants, and plans for tenants that run at once |
//! | [`identity`] | which tenant a process belongs to |
//! | `driver_use` | the calls of a tenant's processes to the kernel driver |
//! | [`probes`] | the eBPF programs, and the processes that use a GPU without being tenants |
//! | [`trace`] | ioctls of the GPU's devices, by name |

mod administrators;
pub mod arbiter;
mod driver_use;
mod faults;
mod files;
mod gpu_lock;
mod gpus;
mod http;
pub mod identity;
mod lines;
mod look_ups;
mod memory;
mod metrics;
mod mps;
mod mps_clients;
mod nvml;
pub mod plans;
mod points;
pub mod probes;
mod registry;
mod reload;
mod residency;
mod service;
mod sessions;
pub mod shm;
mod slurm;
pub mod state;
mod status;
mod tenant;
pub mod trace;
mod web;

pub use faults::Faults;
pub use files::{FilesError, Inherited, check_own_directory, group_number, make_own_directory};
pub use gpu_lock::{GpuLockError, lock_directories};
pub use gpus::{Closed, ComputeMode, Gpu, GpuError};
pub use http::exchange;
pub use reload::Configuration;
pub use service::{InheritError, inherited, is_supervised, turn_away};

use crate::arbiter::{Arbiter, GangBoard, Setup};
use crate::probes::metering::{Metering, Purpose};
use crate::probes::{Before, Watcher};
use crate::shm::{SharedPage, Writer};
use deepres_abi::beat::BeatPage;
use deepres_model::clock::monotonic_ns;
use deepres_model::directory::Directory;
use deepres_model::probes::Adopted;
use deepres_policy::placement::Topology;
use files::Files;
use gpu_lock::{GpuLock, LOOK_EVERY};
use gpus::Gpus;
use http::Server;
use lines::Lines;
use mps::Mps;
use plans::Plans;
use points::Points;
use registry::Registry;
use residency::Residency;
use service::Service;
use sessions::connections::{self, Connections};
use slurm::Slurm;
use state::{StateFile, saver};
use status::Published;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, Notify};
use tokio::task::LocalSet;

/// The parameters of a daemon.
#[derive(Debug)]
pub struct Options {
    /// The directory of the daemon's sockets.
    pub directory: Directory,
    /// The daemon's configuration.
    pub config: Configuration,
    /// The GPUs to manage.
    pub gpus: Vec<Gpu>,
    /// The topology of these GPUs; `None` if it is not known.
    pub topology: Option<Topology>,
    /// The faults of these GPUs.
    pub faults: Faults,
    /// The directories of the GPUs' locks.
    pub locks: Vec<PathBuf>,
    /// Sockets that the service manager opened for the daemon.
    pub inherited: Inherited,
    /// Whether a `deepres run` started the daemon. Such a daemon ends after the time without
    /// tenants that its configuration gives.
    pub exits_idle: bool,
}

/// The reason why a daemon cannot start.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The daemon cannot use its directory or a file in it.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// The daemon cannot take the lock of a GPU.
    #[error(transparent)]
    GpuLock(#[from] GpuLockError),
    /// A system call of the daemon failed.
    #[error("the daemon cannot start: {0}")]
    System(#[from] io::Error),
}

/// The time after which a daemon ends that cannot make its sockets anew. A program that clears a
/// directory and makes it anew takes less time. Meanwhile no process can reach the daemon, which
/// keeps other daemons from the GPUs.
const LOST_LIMIT: Duration = Duration::from_secs(5);
/// The time between two looks for tenants to forget.
const SWEEP: Duration = Duration::from_millis(500);

/// The state that the tasks of all connections share.
struct Shared {
    /// The directory of the daemon's sockets.
    directory: Directory,
    /// When the daemon started, ns of `CLOCK_MONOTONIC`.
    started_ns: u64,
    registry: RefCell<Registry>,
    configuration: RefCell<Configuration>,
    status: Published,
    /// The server of metrics and of the page.
    http: Option<Server>,
    /// The state file. A task that writes the file holds this lock until it has finished.
    state: Arc<Mutex<StateFile>>,
    /// The turns of administrators' changes to tenants. A change holds this lock until it is final.
    changes: Mutex<()>,
    service: Service,
    watcher: Watcher,
    metering: Metering,
    connections: Connections,
    slurm: Slurm,
    /// The limits on log lines by source.
    lines: Rc<Lines>,
    /// The tenants that are off the GPUs, and the moves of memory under way.
    residency: RefCell<Residency>,
    /// The iterations of tenants that the daemon learned, and the plans that it found.
    plans: RefCell<Plans>,
    /// The MPS control daemon for the jobs.
    mps: RefCell<Mps>,
    /// The operating points of tenants with profiles.
    points: RefCell<Points>,
    /// The group whose members may administer the daemon.
    admin_group: Option<u32>,
    /// Whether a `deepres run` started the daemon.
    is_of_run: bool,
    /// Whether the daemon is ending and admits no more sessions.
    is_stopping: Cell<bool>,
    /// The notification that a session came or went.
    changed: Notify,
    /// Whether a session came or went since the saving task last looked.
    stirred: Cell<bool>,
    /// The notification that a session came, for the task that asks for the clients of MPS.
    came: Notify,
}

impl Shared {
    /// Notes that a session came or went.
    fn note_change(&self) {
        self.changed.notify_one();
        self.stirred.set(true);
    }

    /// Returns whether a session came or went, or a tenant wanted a GPU, since the last call.
    fn has_stirred(&self) -> bool {
        // The expression evaluates both sides, because each side resets its own mark.
        self.stirred.take() | self.registry.borrow().tenancy.gpus().have_stirred()
    }

    /// Forgets tenants some time after their last session has ended. Never returns.
    async fn forget_deserted(self: Rc<Self>) {
        loop {
            tokio::time::sleep(SWEEP).await;
            let mut registry = self.registry.borrow_mut();
            let linger = registry.config().tenant_linger();
            registry.tenancy.forget_deserted(linger);
            self.plans.borrow_mut().forget(&registry);
        }
    }

    /// Waits until there was no tenant for the time that the configuration gives.
    async fn idle(&self) {
        loop {
            let idle = self.registry.borrow().config().idle_exit();
            let deserted = self.registry.borrow().tenancy.tenants().living().next().is_none();
            let changed = self.changed.notified();
            if !deserted {
                changed.await;
            } else if tokio::time::timeout(idle, changed).await.is_err() {
                return;
            }
        }
    }
}

/// Runs a daemon until `stop` is ready, or until the daemon exits for idleness. Calls `ready` when
/// tenants can connect. At its end, the daemon brings suspended tenants back. The daemon then opens
/// every gate, or closes every gate if the configuration says so, saves its state, and removes the
/// sockets that it made.
///
/// # Errors
/// [`DaemonError`] if the daemon cannot start.
pub fn run(
    options: Options,
    ready: impl FnOnce(),
    stop: impl Future<Output = ()>,
) -> Result<(), DaemonError> {
    let config = options.config.loaded.config.clone();
    let admin_group = config.admin_group.as_deref().map(files::group_number).transpose()?;
    let inherits_tenants = options.inherited.tenants.is_some();
    let mut files = Files::prepare(&options.directory, options.inherited, admin_group)?;
    let uuids = options.gpus.iter().filter(|gpu| !gpu.is_lost).map(|gpu| gpu.uuid_text.as_str());
    let locks = GpuLock::take_all(&options.locks, uuids, &options.directory)?;
    files.mark(config.fail_mode.mode())?;
    let published = Published::default();
    let (orders, asked) = web::orders();
    let web = config.web.clone().map(|address| -> Result<http::Page, FilesError> {
        let path = options.directory.web_token_file();
        let token = web::token::make(&path, admin_group)
            .map_err(|source| FilesError::Unusable { path: path.clone(), source })?;
        tracing::info!(token = %path.display(), "the file has the token with which the page changes tenants");
        Ok(http::Page { address, status: published.subscribe(), orders, token })
    });
    let http = Server::start(config.metrics, web.transpose()?)?;
    // Every failure that keeps the daemon from serving comes before this line. So its error is the
    // only message.
    let room = make_room(config.max_connections, options.gpus.len());
    let started_ns = monotonic_ns();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let beat = Arc::new(SharedPage::<BeatPage>::create("deepres-beat", Writer::Controller)?);
    let mut gpus = Gpus::default();
    let has_gangs = config.gangs && options.gpus.len() > 1;
    let board = has_gangs.then(|| Arc::new(GangBoard::new(options.gpus.len())));
    for (index, gpu) in options.gpus.into_iter().enumerate() {
        tracing::info!(index, uuid = gpu.uuid_text, name = gpu.name, "the daemon manages a GPU");
        if gpu.is_lost {
            options.faults.set(&gpu.uuid_text, Some(faults::LOST));
        }
        let arbiter = Arbiter::start(Setup {
            gpu: index,
            board: board.clone(),
            beat: Arc::clone(&beat),
            heartbeat_limit_ns: u64::try_from(config.heartbeat_limit().as_nanos()).unwrap_or(u64::MAX),
            memory_bytes: gpu.memory_bytes,
            quantum: config.quantum_bounds(),
            weights: config.priority.weights(),
            max_harm_ppm: config.max_harm_ppm,
            fail_mode: config.fail_mode.mode(),
        })?;
        gpus.add(gpu, arbiter);
    }
    gpus.set_topology(options.topology);
    gpus.set_faults(options.faults);
    let mut registry = Registry::new(config, gpus, beat);
    let mut state = StateFile::at(options.directory.state_file());
    let (mut before, mut suspended, mut plans) = (Before::default(), Vec::new(), Plans::default());
    if let Some(mut state) = state.load() {
        before.adopted = std::mem::take(&mut state.adopted);
        before.held = std::mem::take(&mut state.held);
        suspended = std::mem::take(&mut state.suspended);
        registry.restore(&state)?;
        plans.restore(state.iterations, state.plans, &registry);
    }
    before.adopted.retain(|adopted| adopted.process.is_alive());
    before.returning = registry.tenancy.returning();
    let metering = Metering::start(registry.config().probes.metering_refusal(), registry.connected())?;
    for Adopted { process, tenant } in &before.adopted {
        // The status shows for each process whether the daemon can still meter it.
        drop(metering.meter(process.pid, Purpose { tenant: tenant.clone(), is_managed: false }));
    }
    let watcher = Watcher::start(registry.config().probes.clone(), registry.connected(), before)?;
    let lines = registry.lines();
    let shared = Rc::new(Shared {
        mps: RefCell::new(Mps::of(&options.directory)),
        points: RefCell::default(),
        directory: options.directory,
        started_ns,
        watcher,
        metering,
        registry: RefCell::new(registry),
        configuration: RefCell::new(options.config),
        status: published,
        http,
        state: Arc::new(Mutex::new(state)),
        changes: Mutex::default(),
        service: Service::of_environment(),
        is_stopping: Cell::new(false),
        connections: Connections::new(room),
        slurm: Slurm::default(),
        lines,
        residency: RefCell::default(),
        plans: RefCell::new(plans),
        admin_group,
        is_of_run: options.exits_idle,
        changed: Notify::new(),
        stirred: Cell::new(false),
        came: Notify::new(),
    });

    let tenants_listener = files.tenants.try_clone()?;
    let administrators_listener = files.administrators.try_clone()?;
    let tasks = LocalSet::new();
    let outcome = runtime.block_on(tasks.run_until(async {
        tokio::task::spawn_local(Rc::clone(&shared).forget_deserted());
        tokio::task::spawn_local(saver::stop_waiting(Rc::clone(&shared)));
        tokio::task::spawn_local(lines::serve(Rc::clone(&shared.lines)));
        tokio::task::spawn_local(look_ups::serve(Rc::clone(&shared)));
        tokio::task::spawn_local(residency::serve(Rc::clone(&shared)));
        residency::bring_back_left(suspended, &shared);
        plans::resume(&shared);
        tokio::task::spawn_local(memory::reconcile::serve(Rc::clone(&shared)));
        tokio::task::spawn_local(memory::log::serve(shared.status.subscribe()));
        tokio::task::spawn_local(mps_clients::serve(Rc::clone(&shared)));
        let faults = shared.registry.borrow().tenancy.gpus().faults().clone();
        tokio::task::spawn_local(faults.log_changes());
        tokio::task::spawn_local(driver_use::serve(Rc::clone(&shared)));
        tokio::task::spawn_local(slurm::serve(Rc::clone(&shared)));
        mps::begin(&shared).await;
        let has_mps = shared.mps.borrow().runs();
        shared.registry.borrow().tenancy.gpus().warn_of_closed(has_mps);
        tokio::task::spawn_local(mps::serve(Rc::clone(&shared)));
        tokio::task::spawn_local(points::serve(Rc::clone(&shared)));
        if let Some(hangups) = reload::hangups() {
            tokio::task::spawn_local(reload::serve(Rc::clone(&shared), hangups));
        }
        tokio::task::spawn_local(web::obey(asked, Rc::clone(&shared)));
        if shared.http.is_some() {
            status::publish(&shared).await;
        }
        // The daemon saves before tenants can connect. So the next daemon knows that a process
        // without a saved baseline came after this moment.
        saver::save(&shared).await;
        ready();
        shared.service.ready();
        let idle = async {
            match shared.is_of_run {
                true => shared.idle().await,
                false => std::future::pending().await,
            }
        };
        let taken_away = async {
            while !locks.iter().any(GpuLock::is_taken_away) {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        let unseated = keep_files(&mut files, &shared);
        let told = async {
            tokio::select! {
                error = unseated => tracing::error!(%error, "the daemon lost its directory and stops"),
                () = taken_away => tracing::error!(
                    "root's deepres daemon took over the GPU: this daemon stops; start jobs with root's daemon from now on"
                ),
                () = stop => tracing::info!("a signal stops the daemon"),
                () = idle => tracing::info!("the daemon stops: it had no tenant for the configured time"),
            }
            // Meanwhile the daemon serves tenants as before.
            residency::end(&shared).await;
        };
        let serve = sessions::serve(tenants_listener, Rc::clone(&shared));
        tokio::pin!(serve);
        tokio::select! {
            () = told => {}
            () = saver::serve(Rc::clone(&shared)) => {}
            failed = &mut serve => return failed,
            failed = administrators::serve(administrators_listener, Rc::clone(&shared)) => return failed,
        }
        shared.service.stopping();
        shared.is_stopping.set(true);
        let saved = saver::save(&shared);
        if inherits_tenants {
            // The socket outlives this daemon. The next daemon admits the processes that wait at
            // the socket.
            saved.await;
            return Ok(());
        }
        tokio::select! {
            _ = saved => Ok(()),
            failed = &mut serve => failed,
        }
    }));
    // The gates open before the connections close, so that no tenant waits for a dead daemon.
    shared.registry.borrow_mut().tenancy.open_gates();
    drop(tasks);
    shared.mps.borrow_mut().stop();
    shared.lines.end_all();
    drop(locks);
    Ok(outcome?)
}

/// Makes the daemon's sockets anew whenever somebody removes them, for example by clearing `/tmp`.
/// Returns the error if another daemon has the directory, or if the daemon could not make the
/// sockets anew for [`LOST_LIMIT`]. For example, the end of a user's last login removes the user's
/// runtime directory, which the user cannot make anew.
async fn keep_files(files: &mut Files, shared: &Rc<Shared>) -> FilesError {
    let mut lost_at = None;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if !files.are_lost() {
            continue;
        }
        let renewed = match files.renew() {
            Ok(renewed) => renewed,
            Err(error @ FilesError::Unusable { .. }) => {
                let lost_at = *lost_at.get_or_insert_with(|| {
                    tracing::warn!(%error, "somebody removed the daemon's sockets: the daemon tries to make them anew");
                    Instant::now()
                });
                if lost_at.elapsed() >= LOST_LIMIT {
                    return error;
                }
                continue;
            }
            Err(error) => return error,
        };
        lost_at = None;
        let directory = &shared.directory;
        tracing::warn!(%directory, "somebody removed the daemon's sockets: the daemon made them anew");
        if let Some(listener) = renewed.tenants {
            tokio::task::spawn_local(sessions::serve(listener, Rc::clone(shared)));
        }
        if let Some(listener) = renewed.administrators {
            tokio::task::spawn_local(administrators::serve(listener, Rc::clone(shared)));
        }
        shared.state.lock().await.forget();
        saver::save(shared).await;
    }
}

/// Raises this process's limit on descriptors as `connections` need. Returns the number of
/// connections for which there are enough descriptors.
fn make_room(connections: usize, gpus: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let wanted = connections::descriptors(connections, gpus);
    let limit = getrlimit(Resource::Nofile);
    let is_enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= wanted);
    if !is_enough(limit.maximum) {
        // Only root may raise the hard limit.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: Some(wanted) });
    }
    // The soft limit is low only for programs that use `select`.
    let maximum = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let limit = getrlimit(Resource::Nofile).current;
    if is_enough(limit) {
        return connections;
    }
    let room = limit.map_or(connections, |limit| connections::room(limit, gpus));
    tracing::info!(
        room,
        max_connections = connections,
        "the daemon allows fewer connections than configured, because it has too few descriptors; raise `ulimit -n` to {wanted} (LimitNOFILE= in a unit)"
    );
    room
}
