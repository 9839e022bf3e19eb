//! The daemon: sockets and tenants on one thread, an arbiter thread for each GPU.
//!
//! | module | job |
//! |---|---|
//! | [`arbiter`] | one thread for each GPU that carries out what the policy decides |
//! | `registry` | tenants, sessions and their accounts |
//! | `residency` | tenants that take turns whole |
//! | [`state`] | what outlives the daemon |
//! | [`identity`] | which tenant a process belongs to |
//! | [`probes`] | the kernel programs, and who uses a GPU without being a tenant |
//! | [`trace`] | ioctls of the GPU's devices, by name |

mod administrators;
mod appraisal;
pub mod arbiter;
mod connections;
mod files;
mod gpu_lock;
mod gpus;
pub mod identity;
mod lines;
pub mod probes;
mod reconcile;
mod registry;
mod residency;
mod saving;
mod service;
pub mod shm;
mod signals;
pub mod state;
mod tenants;
pub mod trace;
mod view;

pub use files::{FilesError, Inherited, make_own_directory};
pub use gpu_lock::{GpuLockError, lock_directory};
pub use gpus::{Gpu, GpuError};
pub use service::{InheritError, inherited};

use crate::arbiter::{Arbiter, GangBoard, Setup};
use crate::probes::metering::{Metering, Purpose};
use crate::probes::{Before, Watcher};
use crate::shm::{SharedPage, Writer};
use appraisal::Appraiser;
use connections::Connections;
use deepres_abi::beat::BeatPage;
use deepres_model::config::Config;
use deepres_model::directory::Directory;
use deepres_model::probes::Adopted;
use files::Files;
use gpu_lock::{GpuLock, LOOK_EVERY};
use lines::Lines;
use registry::{Managed, Registry};
use residency::Residency;
use service::Service;
use state::StateFile;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, Notify};
use tokio::task::LocalSet;

/// What a daemon needs to begin.
#[derive(Debug)]
pub struct Options {
    /// Where its sockets are.
    pub directory: Directory,
    /// What it goes by.
    pub config: Config,
    /// The GPUs to manage.
    pub gpus: Vec<Gpu>,
    /// Where the GPUs' locks are.
    pub locks: PathBuf,
    /// Sockets that are there already.
    pub inherited: Inherited,
    /// It ends once it was without tenants for as long as its configuration says.
    pub exits_idle: bool,
}

/// Why a daemon cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Its directory.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// A GPU.
    #[error(transparent)]
    GpuLock(#[from] GpuLockError),
    /// The system.
    #[error("the daemon cannot start: {0}")]
    System(#[from] io::Error),
}

/// How often it is looked for tenants that have been left for long enough.
const SWEEP: Duration = Duration::from_millis(500);

/// What the connections' tasks share.
struct Shared {
    registry: RefCell<Registry>,
    /// Whoever writes it keeps it until that is done.
    state: Arc<Mutex<StateFile>>,
    service: Service,
    watcher: Watcher,
    metering: Metering,
    connections: Connections,
    /// What may be logged of whom.
    lines: Rc<Lines>,
    /// Whose memory is where.
    residency: RefCell<Residency>,
    appraiser: Appraiser,
    /// The group that may administer.
    admin_group: Option<u32>,
    /// The daemon ends: nobody is let in any more.
    is_stopping: Cell<bool>,
    /// Someone came or went.
    changed: Notify,
    /// … since it was last looked at by who keeps the state.
    stirred: Cell<bool>,
}

impl Shared {
    /// Someone came or went.
    fn note_change(&self) {
        self.changed.notify_one();
        self.stirred.set(true);
    }

    /// Whether anybody came, went or wanted a GPU since this was last asked.
    fn has_stirred(&self) -> bool {
        // Both are asked: each forgets what it answered.
        self.stirred.take() | self.registry.borrow().has_stirred()
    }

    /// Forgets tenants some time after the last of them has gone, for ever.
    async fn forget_deserted(self: Rc<Self>) {
        loop {
            tokio::time::sleep(SWEEP).await;
            let mut registry = self.registry.borrow_mut();
            let linger = registry.config().tenant_linger();
            registry.forget_deserted(linger);
        }
    }

    /// Returns once nobody was here for `idle`.
    async fn idle_for(&self, idle: Duration) {
        loop {
            let deserted = self.registry.borrow().is_deserted();
            let changed = self.changed.notified();
            if !deserted {
                changed.await;
            } else if tokio::time::timeout(idle, changed).await.is_err() {
                return;
            }
        }
    }
}

/// Runs a daemon until `stop` is ready, or it exits for idleness. `ready` is called when tenants can connect. At the end every tenant's gates are
/// open, or as the configuration says for the time without a daemon, the state is written, and the sockets are gone that it made.
///
/// # Errors
/// [`DaemonError`] if it cannot begin.
pub fn run(
    options: Options,
    ready: impl FnOnce(),
    stop: impl Future<Output = ()>,
) -> Result<(), DaemonError> {
    let admin_group = options.config.admin_group.as_deref().map(files::group_number).transpose()?;
    let inherits_tenants = options.inherited.tenants.is_some();
    let files = Files::prepare(&options.directory, options.inherited, admin_group)?;
    let uuids = options.gpus.iter().map(|gpu| gpu.uuid_text.as_str());
    let locks = GpuLock::take_all(&options.locks, uuids, &options.directory)?;
    // From here on it will serve: a daemon that will not has one thing to say, and that is why.
    let room = make_room(options.config.max_connections, options.gpus.len());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let beat = Arc::new(SharedPage::<BeatPage>::create("deepres-beat", Writer::Controller)?);
    let mut managed = Vec::new();
    let has_gangs = options.config.gangs && options.gpus.len() > 1;
    let board = has_gangs.then(|| Arc::new(GangBoard::new(options.gpus.len())));
    for (index, gpu) in options.gpus.into_iter().enumerate() {
        tracing::info!(index, uuid = gpu.uuid_text, name = gpu.name, "managing");
        let arbiter = Arbiter::start(Setup {
            gpu: index,
            board: board.clone(),
            beat: Arc::clone(&beat),
            heartbeat_limit_ns: u64::try_from(options.config.heartbeat_limit().as_nanos())
                .unwrap_or(u64::MAX),
            memory_bytes: gpu.memory_bytes,
            quantum: options.config.quantum_bounds(),
            weights: options.config.priority.weights(),
            max_harm_ppm: options.config.max_harm_ppm,
            fail_mode: options.config.fail_mode.mode(),
        })?;
        managed.push(Managed { gpu, arbiter });
    }
    let idle_exit = options.exits_idle.then(|| options.config.idle_exit());
    let mut registry = Registry::new(options.config, options.directory.clone(), managed, beat);
    let mut state = StateFile::at(options.directory.state_file());
    let (mut before, mut away) = (Before::default(), Vec::new());
    if let Some(mut state) = state.load() {
        before.adopted = std::mem::take(&mut state.adopted);
        before.held = std::mem::take(&mut state.held);
        away = std::mem::take(&mut state.away);
        registry.restore(state)?;
    }
    before.adopted.retain(|adopted| adopted.process.is_alive());
    before.returning = registry.returning();
    let metering = Metering::start(registry.config().probes.metering_refusal(), registry.connected())?;
    for Adopted { process, tenant } in &before.adopted {
        // Whether it can be metered still shows in its row.
        drop(metering.meter(process.pid, Purpose { tenant: tenant.clone(), is_managed: false }));
    }
    let watcher = Watcher::start(registry.config().probes.clone(), registry.connected(), before)?;
    let lines = registry.lines();
    let shared = Rc::new(Shared {
        watcher,
        metering,
        registry: RefCell::new(registry),
        state: Arc::new(Mutex::new(state)),
        service: Service::of_environment(),
        is_stopping: Cell::new(false),
        connections: Connections::new(room),
        lines,
        residency: RefCell::default(),
        appraiser: Appraiser::default(),
        admin_group,
        changed: Notify::new(),
        stirred: Cell::new(false),
    });

    let tenants_listener = files.tenants.try_clone()?;
    let administrators_listener = files.administrators.try_clone()?;
    let tasks = LocalSet::new();
    let outcome = runtime.block_on(tasks.run_until(async {
        tokio::task::spawn_local(Rc::clone(&shared).forget_deserted());
        tokio::task::spawn_local(saving::stop_waiting(Rc::clone(&shared)));
        tokio::task::spawn_local(lines::serve(Rc::clone(&shared.lines)));
        tokio::task::spawn_local(residency::serve(Rc::clone(&shared)));
        residency::bring_back_left(away, &shared);
        tokio::task::spawn_local(reconcile::serve(Rc::clone(&shared)));
        tokio::task::spawn_local(signals::serve(Rc::clone(&shared)));
        // Whoever comes from now on is known to have come after this.
        saving::save(&shared).await;
        ready();
        shared.service.ready();
        let idle = async {
            match idle_exit {
                Some(idle) => shared.idle_for(idle).await,
                None => std::future::pending().await,
            }
        };
        let taken_away = async {
            while !locks.iter().any(GpuLock::is_taken_away) {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        let told = async {
            tokio::select! {
                () = taken_away => tracing::error!(
                    "root's deepres daemon has taken over the GPU: stopping; start jobs with that one from now on"
                ),
                () = stop => tracing::info!("told to stop"),
                () = idle => tracing::info!("nobody was here for long enough: stopping"),
                () = saving::serve(Rc::clone(&shared)) => {}
            }
        };
        let serve = tenants::serve(tenants_listener, Rc::clone(&shared));
        tokio::pin!(serve);
        tokio::select! {
            () = told => {}
            failed = &mut serve => return failed,
            failed = administrators::serve(administrators_listener, Rc::clone(&shared)) => return failed,
        }
        shared.service.stopping();
        shared.is_stopping.set(true);
        let saved = saving::save(&shared);
        if inherits_tenants {
            // Who waits at a socket that stays is the next daemon's to let in.
            saved.await;
            return Ok(());
        }
        tokio::select! {
            _ = saved => Ok(()),
            failed = &mut serve => failed,
        }
    }));
    // Gates open before connections close, so that nobody waits for a daemon that is no more.
    shared.registry.borrow_mut().open_gates();
    drop(tasks);
    shared.lines.end_all();
    drop(locks);
    Ok(outcome?)
}

/// Allows this process the descriptors that so many connections need, and returns for how many there are enough.
fn make_room(connections: usize, gpus: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let wanted = connections::descriptors(connections, gpus);
    let limit = getrlimit(Resource::Nofile);
    let is_enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= wanted);
    if !is_enough(limit.maximum) {
        // For who may: root.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: Some(wanted) });
    }
    // The soft limit is low for programs that use `select`.
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
        "there may be fewer connections than configured, for lack of descriptors: raise `ulimit -n` to {wanted} (LimitNOFILE= in a unit)"
    );
    room
}
