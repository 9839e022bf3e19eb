//! Contexts: what a thread works in. Primary ones are counted per device, others belong to whoever created them.
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use deepres_abi::driver::types as cu;
use simgpu_engine::{ContextId, Error, WaitPolicy};

use crate::handle::{Kind, Table};
use crate::process::{self, host};
use crate::status::{self, Result, Status};
use crate::stream::Stream;
use crate::{array, capture, event, graph_memory, memory, module, pending, pool};

/// All contexts that live.
pub static CONTEXTS: Table<Context> = Table::new(Kind::Context);

/// Flags a context may be created with.
const FLAGS_MASK: u32 = cu::CU_CTX_FLAGS_MASK;
/// The API version contexts report (`cuCtxGetApiVersion`): 3.2 of the API, as drivers have since.
const CONTEXT_API_VERSION: u32 = 3020;
/// How many limits `cuCtxGetLimit` knows.
const LIMIT_COUNT: usize = 8;
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Limits as a fresh context has them, by `CUlimit`.
const DEFAULT_LIMITS: [usize; LIMIT_COUNT] = [KIB, 7 * MIB, 8 * MIB, 2, 2048, 64, 0, 0];

/// Locks and ignores poisoning: no code here leaves a value half written when it panics.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One context.
pub struct Context {
    /// What clients hold.
    pub handle: usize,
    /// Unique in this process.
    pub id: u64,
    /// The device's ordinal in this process.
    pub device: i32,
    /// The device's index in the engine.
    pub gpu: usize,
    /// The engine's context.
    pub engine: ContextId,
    /// Whether it is its device's primary one.
    pub primary: bool,
    flags: AtomicU32,
    api_version: u32,
    alive: AtomicBool,
    /// Those who attached it, and whoever created it: the last who detaches it ends it.
    users: AtomicUsize,
    limits: Mutex<[usize; LIMIT_COUNT]>,
    cache_config: AtomicU32,
    peers: Mutex<HashSet<usize>>,
    legacy: RwLock<Option<Arc<Stream>>>,
    /// Every stream but the legacy one.
    streams: Mutex<Vec<Arc<Stream>>>,
    /// How many of those synchronise with the legacy one.
    pub blocking_streams: AtomicUsize,
    /// Captures under way in streams that synchronise with the legacy one.
    pub blocking_captures: AtomicUsize,
}

/// A device's primary context and what is known of it while it is inactive.
#[derive(Default)]
struct Primary {
    retained: usize,
    flags: u32,
    context: Option<Arc<Context>>,
}

fn primaries() -> &'static Mutex<HashMap<usize, Primary>> {
    static PRIMARIES: OnceLock<Mutex<HashMap<usize, Primary>>> = OnceLock::new();
    PRIMARIES.get_or_init(Mutex::default)
}

thread_local! {
    static STACK: RefCell<Vec<Arc<Context>>> = const { RefCell::new(Vec::new()) };
}

/// The driver's code for an engine error.
pub fn code_of(error: &Error) -> Status {
    match error {
        Error::OutOfMemory(_) | Error::Full { .. } => status::OUT_OF_MEMORY,
        Error::NoSuchGpu { .. } => status::INVALID_DEVICE,
        Error::Gone(_) => status::CONTEXT_IS_DESTROYED,
        Error::Forked => status::NOT_INITIALIZED,
        _ => status::UNKNOWN,
    }
}

impl Context {
    fn create(device: i32, flags: u32, primary: bool) -> Result<Arc<Self>> {
        if flags & !FLAGS_MASK != 0 || (flags & cu::CU_CTX_SCHED_MASK).count_ones() > 1 {
            return Err(status::INVALID_VALUE);
        }
        let gpu = process::gpu_of(device)?;
        let engine = host().create_context(gpu).map_err(|error| code_of(&error))?;
        let context = CONTEXTS
            .insert_with(|handle| {
                Arc::new(Self {
                    handle,
                    id: process::next_id(),
                    device,
                    gpu,
                    engine,
                    primary,
                    flags: AtomicU32::new(flags),
                    api_version: CONTEXT_API_VERSION,
                    alive: AtomicBool::new(true),
                    users: AtomicUsize::new(1),
                    limits: Mutex::new(DEFAULT_LIMITS),
                    cache_config: AtomicU32::new(cu::CU_FUNC_CACHE_PREFER_NONE),
                    peers: Mutex::default(),
                    legacy: RwLock::new(None),
                    streams: Mutex::default(),
                    blocking_streams: AtomicUsize::new(0),
                    blocking_captures: AtomicUsize::new(0),
                })
            })
            .ok_or(status::OUT_OF_MEMORY)?;
        let legacy = Stream::create_legacy(&context)?;
        *context.legacy.write().unwrap_or_else(PoisonError::into_inner) = Some(legacy);
        if let Err(error) = module::load_libraries(&context) {
            context.destroy();
            return Err(error);
        }
        Ok(context)
    }

    /// Ends the context and everything in it.
    fn destroy(self: &Arc<Self>) {
        if !self.alive.swap(false, Ordering::AcqRel) {
            return;
        }
        host().wait_context(self.engine, self.wait_policy());
        pending::settle();
        let streams = std::mem::take(&mut *lock(&self.streams));
        let legacy = self.legacy.write().unwrap_or_else(PoisonError::into_inner).take();
        for stream in streams.into_iter().chain(legacy) {
            stream.forget();
        }
        event::forget_context(self.handle);
        module::forget_context(self.handle);
        array::forget_context(self.handle);
        graph_memory::forget_context(self);
        memory::forget_context(self);
        host().destroy_context(self.engine);
        CONTEXTS.remove(self.handle);
    }

    /// Whether it has not been destroyed.
    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Its legacy default stream.
    pub fn legacy(&self) -> Result<Arc<Stream>> {
        let legacy = self.legacy.read().unwrap_or_else(PoisonError::into_inner);
        legacy.clone().ok_or(status::CONTEXT_IS_DESTROYED)
    }

    /// Every stream of it but the legacy one.
    pub fn streams(&self) -> Vec<Arc<Stream>> {
        lock(&self.streams).clone()
    }

    /// Notes a stream that was created in it.
    pub fn add_stream(&self, stream: &Arc<Stream>) {
        lock(&self.streams).push(Arc::clone(stream));
        if stream.is_blocking() {
            self.blocking_streams.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Forgets a stream that is being destroyed.
    pub fn remove_stream(&self, stream: &Stream) {
        let mut streams = lock(&self.streams);
        if let Some(at) = streams.iter().position(|other| other.handle == stream.handle) {
            streams.swap_remove(at);
            if stream.is_blocking() {
                self.blocking_streams.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// How its threads wait.
    pub fn wait_policy(&self) -> WaitPolicy {
        let flags = self.flags.load(Ordering::Relaxed);
        if flags & cu::CU_CTX_SCHED_SPIN != 0 {
            WaitPolicy::Spin
        } else if flags & cu::CU_CTX_SCHED_YIELD != 0 {
            WaitPolicy::Yield
        } else if flags & cu::CU_CTX_SCHED_BLOCKING_SYNC != 0 {
            WaitPolicy::Block
        } else {
            WaitPolicy::Auto
        }
    }

    /// Waits for everything in it (cuCtxSynchronize).
    pub fn synchronize(&self) -> Result<()> {
        capture::refuse_context_synchronisation(self)?;
        host().wait_context(self.engine, self.wait_policy());
        pending::settle();
        pool::trim_at_synchronisation(self.device);
        Ok(())
    }

    /// Its creation flags.
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Replaces them.
    pub fn set_flags(&self, flags: u32) -> Result<()> {
        if flags & !FLAGS_MASK != 0 || (flags & cu::CU_CTX_SCHED_MASK).count_ones() > 1 {
            return Err(status::INVALID_VALUE);
        }
        self.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    /// The API version it was created with.
    pub fn api_version(&self) -> u32 {
        self.api_version
    }

    /// One of its limits.
    pub fn limit(&self, limit: u32) -> Result<usize> {
        lock(&self.limits).get(limit as usize).copied().ok_or(status::UNSUPPORTED_LIMIT)
    }

    /// Changes one of its limits.
    pub fn set_limit(&self, limit: u32, value: usize) -> Result<()> {
        match lock(&self.limits).get_mut(limit as usize) {
            Some(slot) => *slot = value,
            None => return Err(status::UNSUPPORTED_LIMIT),
        }
        Ok(())
    }

    /// Its preferred split of L1 and shared memory.
    pub fn cache_config(&self) -> u32 {
        self.cache_config.load(Ordering::Relaxed)
    }

    /// Changes that preference.
    pub fn set_cache_config(&self, config: u32) -> Result<()> {
        if config > cu::CU_FUNC_CACHE_PREFER_EQUAL {
            return Err(status::INVALID_VALUE);
        }
        self.cache_config.store(config, Ordering::Relaxed);
        Ok(())
    }

    /// Lets this context use the memory of `peer`.
    pub fn enable_peer(&self, peer: &Context) -> Result<()> {
        if self.gpu == peer.gpu {
            return Err(status::INVALID_DEVICE);
        }
        if lock(&self.peers).insert(peer.handle) { Ok(()) } else { Err(status::PEER_ACCESS_ALREADY_ENABLED) }
    }

    /// Takes that back.
    pub fn disable_peer(&self, peer: &Context) -> Result<()> {
        if lock(&self.peers).remove(&peer.handle) { Ok(()) } else { Err(status::PEER_ACCESS_NOT_ENABLED) }
    }
}

/// Runs `use_stack` on the calling thread's stack; a thread that is being torn down has none.
fn with_stack<R>(use_stack: impl FnOnce(&mut Vec<Arc<Context>>) -> R) -> Result<R> {
    STACK.try_with(|stack| use_stack(&mut stack.borrow_mut())).map_err(|_| status::DEINITIALIZED)
}

/// The context behind a handle, if it lives; a destroyed one has a code of its own.
pub fn by_handle(handle: usize) -> Result<Arc<Context>> {
    match CONTEXTS.get(handle) {
        Some(context) if context.is_alive() => Ok(context),
        _ if CONTEXTS.is_kind(handle) => Err(status::CONTEXT_IS_DESTROYED),
        _ => Err(status::INVALID_CONTEXT),
    }
}

/// The calling thread's current context.
#[inline]
pub fn current() -> Result<Arc<Context>> {
    let current = with_stack(|stack| stack.last().cloned())?.ok_or(status::INVALID_CONTEXT)?;
    if current.is_alive() { Ok(current) } else { Err(status::CONTEXT_IS_DESTROYED) }
}

/// The handle of the calling thread's current context, dead or alive; 0 for none.
pub fn current_handle() -> usize {
    with_stack(|stack| stack.last().map_or(0, |context| context.handle)).unwrap_or(0)
}

/// Makes `handle` current in place of the top of the stack; 0 takes the top off.
pub fn set_current(handle: usize) -> Result<()> {
    if with_stack(|stack| stack.last().is_some_and(|top| top.handle == handle && top.is_alive()))? {
        return Ok(());
    }
    if handle == 0 {
        with_stack(|stack| stack.pop())?;
        return Ok(());
    }
    let context = by_handle(handle)?;
    with_stack(|stack| {
        stack.pop();
        stack.push(context);
    })
}

/// Pushes a context on the calling thread's stack.
pub fn push(handle: usize) -> Result<()> {
    let context = by_handle(handle)?;
    with_stack(|stack| stack.push(context))
}

/// Pops the calling thread's current context and answers its handle.
pub fn pop() -> Result<usize> {
    with_stack(|stack| stack.pop())?.map(|context| context.handle).ok_or(status::INVALID_CONTEXT)
}

/// Creates a context and pushes it (cuCtxCreate).
pub fn create(device: i32, flags: u32) -> Result<usize> {
    let handle = Context::create(device, flags, false)?.handle;
    push(handle)?;
    Ok(handle)
}

/// Destroys a context that cuCtxCreate made; it is popped where it is the caller's current one.
pub fn destroy(handle: usize) -> Result<()> {
    let context = by_handle(handle)?;
    if context.primary {
        return Err(status::INVALID_CONTEXT);
    }
    context.destroy();
    with_stack(|stack| {
        if stack.last().is_some_and(|top| top.handle == handle) {
            stack.pop();
        }
    })
}

/// Takes part in the current context, and gives its handle.
pub fn attach() -> Result<usize> {
    let context = current()?;
    context.users.fetch_add(1, Ordering::Relaxed);
    Ok(context.handle)
}

/// Ends a part in the current context, and with the last one the context.
pub fn detach(handle: usize) -> Result<()> {
    let context = by_handle(handle)?;
    if current_handle() != handle {
        return Err(status::INVALID_CONTEXT);
    }
    let is_others = context
        .users
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |users| {
            users.checked_sub(1).filter(|left| *left > 0)
        })
        .is_ok();
    if is_others { Ok(()) } else { destroy(handle) }
}

/// Retains a device's primary context, creating it if nobody holds it.
pub fn retain_primary(device: i32) -> Result<usize> {
    let gpu = process::gpu_of(device)?;
    let mut all = lock(primaries());
    let primary = all.entry(gpu).or_default();
    let handle = match &primary.context {
        Some(context) => context.handle,
        None => {
            let context = Context::create(device, primary.flags, true)?;
            let handle = context.handle;
            primary.context = Some(context);
            handle
        }
    };
    primary.retained += 1;
    Ok(handle)
}

/// Releases a device's primary context; the last release ends it.
pub fn release_primary(device: i32) -> Result<()> {
    let gpu = process::gpu_of(device)?;
    let mut all = lock(primaries());
    let primary = all.entry(gpu).or_default();
    if primary.retained == 0 {
        return Err(status::INVALID_CONTEXT);
    }
    primary.retained -= 1;
    if primary.retained == 0
        && let Some(context) = primary.context.take()
    {
        drop(all);
        context.destroy();
    }
    Ok(())
}

/// Ends a device's primary context whoever holds it.
pub fn reset_primary(device: i32) -> Result<()> {
    let gpu = process::gpu_of(device)?;
    let context = lock(primaries()).entry(gpu).or_default().context.take();
    if let Some(context) = context {
        context.destroy();
    }
    Ok(())
}

/// Flags of a device's primary context, and whether it is active.
pub fn primary_state(device: i32) -> Result<(u32, bool)> {
    let gpu = process::gpu_of(device)?;
    let mut all = lock(primaries());
    let primary = all.entry(gpu).or_default();
    Ok(match &primary.context {
        Some(context) => (context.flags(), true),
        None => (primary.flags, false),
    })
}

/// Sets the flags of a device's primary context.
pub fn set_primary_flags(device: i32, flags: u32) -> Result<()> {
    let gpu = process::gpu_of(device)?;
    let mut all = lock(primaries());
    let primary = all.entry(gpu).or_default();
    if let Some(context) = &primary.context {
        context.set_flags(flags)?;
    } else if flags & !FLAGS_MASK != 0 || (flags & cu::CU_CTX_SCHED_MASK).count_ones() > 1 {
        return Err(status::INVALID_VALUE);
    }
    primary.flags = flags;
    Ok(())
}
