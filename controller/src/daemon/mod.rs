//! The daemon: sockets and tenants on one thread, an arbiter thread for each GPU.

mod administrators;
mod files;
mod gpu_lock;
mod gpus;
mod peer;
mod registry;
mod tenants;

pub use files::{FilesError, make_own_directory};
pub use gpu_lock::{GpuLockError, lock_directory};
pub use gpus::{Gpu, GpuError};
pub use peer::Peer;

use crate::arbiter::{Arbiter, Setup};
use crate::config::Config;
use crate::directory::Directory;
use crate::shm::{SharedPage, Writer};
use deepres_abi::beat::BeatPage;
use files::Files;
use gpu_lock::GpuLock;
use registry::{Left, Managed, Registry};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
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

/// What the connections' tasks share.
struct Shared {
    registry: RefCell<Registry>,
    connections: Cell<usize>,
    /// Someone came or went.
    changed: Notify,
}

impl Shared {
    /// Nobody is left of a tenant: it is forgotten after a while, unless someone comes back.
    fn forget_later(self: &Rc<Self>, tenant: String, left: Left) {
        let shared = Rc::clone(self);
        let linger = self.registry.borrow().config().tenant_linger();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(linger).await;
            shared.registry.borrow_mut().forget(&tenant, &left);
        });
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
/// open and the sockets are gone.
///
/// # Errors
/// [`DaemonError`] if it cannot begin.
pub fn run(
    options: Options,
    ready: impl FnOnce(),
    stop: impl Future<Output = ()>,
) -> Result<(), DaemonError> {
    raise_descriptor_limit();
    let files = Files::prepare(&options.directory)?;
    let locks = options
        .gpus
        .iter()
        .map(|gpu| GpuLock::take(&options.locks, &gpu.uuid_text, &options.directory))
        .collect::<Result<Vec<_>, _>>()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let beat = Arc::new(SharedPage::<BeatPage>::create("deepres-beat", Writer::Controller)?);
    let mut managed = Vec::new();
    for (index, gpu) in options.gpus.into_iter().enumerate() {
        tracing::info!(index, uuid = gpu.uuid_text, name = gpu.name, "managing");
        let arbiter = Arbiter::start(Setup {
            gpu: index,
            beat: Arc::clone(&beat),
            heartbeat_limit_ns: u64::try_from(options.config.heartbeat_limit().as_nanos())
                .unwrap_or(u64::MAX),
            quantum: options.config.quantum_bounds(),
        })?;
        managed.push(Managed { gpu, arbiter });
    }
    let idle_exit = options.exits_idle.then(|| options.config.idle_exit());
    let shared = Rc::new(Shared {
        registry: RefCell::new(Registry::new(options.config, options.directory.clone(), managed, beat)),
        connections: Cell::new(0),
        changed: Notify::new(),
    });

    let tenants_listener = files.tenants.try_clone()?;
    let administrators_listener = files.administrators.try_clone()?;
    let tasks = LocalSet::new();
    let outcome = runtime.block_on(tasks.run_until(async {
        ready();
        let idle = async {
            match idle_exit {
                Some(idle) => shared.idle_for(idle).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop => tracing::info!("told to stop"),
            () = idle => tracing::info!("nobody was here for long enough: stopping"),
            failed = tenants::serve(tenants_listener, Rc::clone(&shared)) => return failed,
            failed = administrators::serve(administrators_listener, Rc::clone(&shared)) => return failed,
        }
        Ok(())
    }));
    // Gates open before connections close, so that nobody waits for a daemon that is no more.
    shared.registry.borrow_mut().open_gates();
    drop(tasks);
    drop(locks);
    Ok(outcome?)
}

/// Sessions need descriptors; the soft limit is for programs that use `select`.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Not being allowed to leaves us with fewer sessions, each refused with its reason.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
