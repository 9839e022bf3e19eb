//! Contexts. A primary context is reference-counted per device; any other context belongs to its
//! creator.
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock};

use deepres_abi::driver::types as cu;
use simgpu_engine::{Config, ContextId, Error, WaitPolicy};

use crate::green::{self, Green, Held};
use crate::handle::{Kind, Table};
use crate::process::{self, host};
use crate::status::{self, Result, Status};
use crate::stream::Stream;
use crate::{array, capture, event, graph_memory, memory, module, pending, pool};

/// All live contexts.
pub static CONTEXTS: Table<Context> = Table::new(Kind::Context);

/// Valid creation flags.
const FLAGS_MASK: u32 = cu::CU_CTX_FLAGS_MASK;
/// API version that contexts report (`cuCtxGetApiVersion`): 3.2, as in all drivers since that
/// version.
const CONTEXT_API_VERSION: u32 = 3020;
/// Number of limits that `cuCtxGetLimit` knows.
const LIMIT_COUNT: usize = 8;
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Limits of a new context, by `CUlimit`.
const DEFAULT_LIMITS: [usize; LIMIT_COUNT] = [KIB, 7 * MIB, 8 * MIB, 2, 2048, 64, 0, 0];

/// Locks a mutex. Ignores poisoning, because no code here leaves a value half written when it
/// panics.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A CUDA context.
pub struct Context {
    /// The handle by which clients name the context.
    pub handle: usize,
    /// The number of the context, unique in this process.
    pub id: u64,
    /// The device's ordinal in this process.
    pub device: i32,
    /// The device's index in the engine.
    pub gpu: usize,
    /// The engine's context.
    pub engine: ContextId,
    /// Whether the context is its device's primary context.
    pub primary: bool,
    flags: AtomicU32,
    api_version: u32,
    alive: AtomicBool,
    /// Number of users: the creator and each attach. The last detach ends the context.
    users: AtomicUsize,
    limits: Mutex<[usize; LIMIT_COUNT]>,
    cache_config: AtomicU32,
    peers: Mutex<HashSet<usize>>,
    legacy: RwLock<Option<Arc<Stream>>>,
    /// Every stream except the legacy stream.
    streams: Mutex<Vec<Arc<Stream>>>,
    /// Number of streams that synchronise with the legacy stream.
    pub blocking_streams: AtomicUsize,
    /// Number of captures in progress in streams that synchronise with the legacy stream.
    pub blocking_captures: AtomicUsize,
}

/// A device's primary context, and the settings that it has while it is inactive.
#[derive(Default)]
struct Primary {
    retained: usize,
    flags: u32,
    context: Option<Arc<Context>>,
}

/// The primary contexts, by the device's index in the engine.
static PRIMARIES: LazyLock<Mutex<HashMap<usize, Primary>>> = LazyLock::new(Mutex::default);

/// A place on a thread's stack of contexts.
struct Place {
    /// The context; the primary context of a green context.
    context: Arc<Context>,
    green: Option<Held>,
}

impl Place {
    /// Returns the place for the context of a handle.
    fn of(handle: usize) -> Result<Self> {
        match green::of_view(handle) {
            Some(green) => {
                let green = green?;
                Ok(Self { context: Arc::clone(&green.home), green: Some(Held::take(green)?) })
            }
            None => Ok(Self { context: by_handle(handle)?, green: None }),
        }
    }

    fn handle(&self) -> usize {
        self.green.as_ref().map_or(self.context.handle, |held| held.green().view())
    }

    fn is_alive(&self) -> bool {
        self.context.is_alive() && self.green.as_ref().is_none_or(|held| held.green().is_alive())
    }
}

thread_local! {
    static STACK: RefCell<Vec<Place>> = const { RefCell::new(Vec::new()) };
}

/// Returns the driver's code for an engine error.
pub fn code_of(error: &Error) -> Status {
    match error {
        Error::OutOfMemory(_) | Error::Full { .. } => status::OUT_OF_MEMORY,
        Error::NoSuchGpu { .. } => status::INVALID_DEVICE,
        Error::Exclusive { .. } => status::DEVICE_UNAVAILABLE,
        // The reference of cuCtxCreate names this code.
        Error::Prohibited { .. } => status::UNKNOWN,
        Error::Gone(_) => status::CONTEXT_IS_DESTROYED,
        Error::Forked => status::NOT_INITIALIZED,
        _ => status::UNKNOWN,
    }
}

impl Context {
    fn create(device: i32, flags: u32, primary: bool) -> Result<Arc<Self>> {
        status::refuse(flags & !FLAGS_MASK != 0 || (flags & cu::CU_CTX_SCHED_MASK).count_ones() > 1)?;
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
        let legacy = Stream::create_legacy(&context, None)?;
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

    /// Returns whether the context has not been destroyed.
    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Returns the legacy default stream.
    pub fn legacy(&self) -> Result<Arc<Stream>> {
        let legacy = self.legacy.read().unwrap_or_else(PoisonError::into_inner);
        legacy.clone().ok_or(status::CONTEXT_IS_DESTROYED)
    }

    /// Returns every stream except the legacy stream.
    pub fn streams(&self) -> Vec<Arc<Stream>> {
        lock(&self.streams).clone()
    }

    /// Adds a stream that was created in this context.
    pub fn add_stream(&self, stream: &Arc<Stream>) {
        lock(&self.streams).push(Arc::clone(stream));
        if stream.is_blocking() {
            self.blocking_streams.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Removes a stream that is being destroyed.
    pub fn remove_stream(&self, stream: &Stream) {
        let mut streams = lock(&self.streams);
        if let Some(at) = streams.iter().position(|other| other.handle == stream.handle) {
            streams.swap_remove(at);
            if stream.is_blocking() {
                self.blocking_streams.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Returns the way in which threads wait in this context.
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

    /// Waits for all work of the context (cuCtxSynchronize).
    pub fn synchronize(&self) -> Result<()> {
        capture::refuse_context_synchronisation(self)?;
        host().wait_context(self.engine, self.wait_policy());
        pending::settle();
        pool::trim_at_synchronisation(self.device);
        Ok(())
    }

    /// Returns the creation flags.
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Replaces the creation flags.
    pub fn set_flags(&self, flags: u32) -> Result<()> {
        status::refuse(flags & !FLAGS_MASK != 0 || (flags & cu::CU_CTX_SCHED_MASK).count_ones() > 1)?;
        self.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the API version that the client passed at the creation.
    pub fn api_version(&self) -> u32 {
        self.api_version
    }

    /// Returns a limit.
    pub fn limit(&self, limit: u32) -> Result<usize> {
        lock(&self.limits).get(limit as usize).copied().ok_or(status::UNSUPPORTED_LIMIT)
    }

    /// Changes a limit. The context takes memory for a heap of kernels that is larger than at
    /// first.
    pub fn set_limit(&self, limit: u32, value: usize) -> Result<()> {
        let mut limits = lock(&self.limits);
        let slot = limits.get_mut(limit as usize).ok_or(status::UNSUPPORTED_LIMIT)?;
        if limit == cu::CU_LIMIT_MALLOC_HEAP_SIZE {
            let (before, now) = (heap_bytes(*slot)?, heap_bytes(value)?);
            if now > before {
                host().reserve_memory(self.engine, now - before).map_err(|error| code_of(&error))?;
            } else {
                host().release_memory(self.engine, before - now);
            }
        }
        *slot = value;
        Ok(())
    }

    /// Returns the preferred split of L1 cache and shared memory.
    pub fn cache_config(&self) -> u32 {
        self.cache_config.load(Ordering::Relaxed)
    }

    /// Changes the preferred split of L1 cache and shared memory.
    pub fn set_cache_config(&self, config: u32) -> Result<()> {
        status::refuse(config > cu::CU_FUNC_CACHE_PREFER_EQUAL)?;
        self.cache_config.store(config, Ordering::Relaxed);
        Ok(())
    }

    /// Gives this context access to the memory of `peer`.
    pub fn enable_peer(&self, peer: &Context) -> Result<()> {
        status::refuse_as(self.gpu == peer.gpu, status::INVALID_DEVICE)?;
        if lock(&self.peers).insert(peer.handle) { Ok(()) } else { Err(status::PEER_ACCESS_ALREADY_ENABLED) }
    }

    /// Ends this context's access to the memory of `peer`.
    pub fn disable_peer(&self, peer: &Context) -> Result<()> {
        if lock(&self.peers).remove(&peer.handle) { Ok(()) } else { Err(status::PEER_ACCESS_NOT_ENABLED) }
    }
}

/// Returns the memory for a heap of kernels of this size, beyond the memory of a new context,
/// bytes.
fn heap_bytes(size: usize) -> Result<u64> {
    let more = size.saturating_sub(DEFAULT_LIMITS[cu::CU_LIMIT_MALLOC_HEAP_SIZE as usize]) as u64;
    more.checked_next_multiple_of(Config::ALLOCATION_GRANULARITY_BYTES).ok_or(status::OUT_OF_MEMORY)
}

/// Calls `use_stack` with the calling thread's stack of contexts. Fails in a thread that is being
/// torn down.
fn with_stack<R>(use_stack: impl FnOnce(&mut Vec<Place>) -> R) -> Result<R> {
    STACK.try_with(|stack| use_stack(&mut stack.borrow_mut())).map_err(|_| status::DEINITIALIZED)
}

/// Returns the context of a handle, if it lives; the primary context of a green context. The handle
/// of a destroyed context has an error code of its own.
pub fn by_handle(handle: usize) -> Result<Arc<Context>> {
    if let Some(green) = green::of_view(handle) {
        return Ok(Arc::clone(&green?.home));
    }
    match CONTEXTS.get(handle) {
        Some(context) if context.is_alive() => Ok(context),
        _ if CONTEXTS.is_kind(handle) => Err(status::CONTEXT_IS_DESTROYED),
        _ => Err(status::INVALID_CONTEXT),
    }
}

/// Returns the calling thread's current context.
#[inline]
pub fn current() -> Result<Arc<Context>> {
    let top = |stack: &mut Vec<Place>| stack.last().map(|top| (Arc::clone(&top.context), top.is_alive()));
    let (current, is_alive) = with_stack(top)?.ok_or(status::INVALID_CONTEXT)?;
    if is_alive { Ok(current) } else { Err(status::CONTEXT_IS_DESTROYED) }
}

/// Returns the green context that is current to the calling thread, if there is one.
pub fn current_green() -> Option<Arc<Green>> {
    let green = |stack: &mut Vec<Place>| stack.last()?.green.as_ref().map(|held| Arc::clone(held.green()));
    with_stack(green).ok().flatten()
}

/// Returns the handle of the calling thread's current context, dead or alive. Returns 0 if the
/// thread has no current context.
pub fn current_handle() -> usize {
    with_stack(|stack| stack.last().map_or(0, Place::handle)).unwrap_or(0)
}

/// Replaces the top of the stack by `handle`; 0 only removes the top.
pub fn set_current(handle: usize) -> Result<()> {
    if with_stack(|stack| stack.last().is_some_and(|top| top.handle() == handle && top.is_alive()))? {
        return Ok(());
    }
    if handle == 0 {
        with_stack(|stack| stack.pop())?;
        return Ok(());
    }
    let place = Place::of(handle)?;
    with_stack(|stack| {
        stack.pop();
        stack.push(place);
    })
}

/// Pushes a context on the calling thread's stack.
pub fn push(handle: usize) -> Result<()> {
    let place = Place::of(handle)?;
    with_stack(|stack| stack.push(place))
}

/// Pops the calling thread's current context and returns its handle.
pub fn pop() -> Result<usize> {
    with_stack(|stack| stack.pop())?.map(|place| place.handle()).ok_or(status::INVALID_CONTEXT)
}

/// Creates a context and pushes it (cuCtxCreate).
pub fn create(device: i32, flags: u32) -> Result<usize> {
    let handle = Context::create(device, flags, false)?.handle;
    push(handle)?;
    Ok(handle)
}

/// Destroys a context of cuCtxCreate. If the context is current in the calling thread, the function
/// pops the context.
pub fn destroy(handle: usize) -> Result<()> {
    let context = by_handle(handle)?;
    status::refuse_as(context.primary, status::INVALID_CONTEXT)?;
    context.destroy();
    with_stack(|stack| {
        if stack.last().is_some_and(|top| top.handle() == handle) {
            stack.pop();
        }
    })
}

/// Adds a user to the current context and returns its handle.
pub fn attach() -> Result<usize> {
    let context = current()?;
    context.users.fetch_add(1, Ordering::Relaxed);
    Ok(context.handle)
}

/// Removes a user from the current context, and destroys the context with the last user.
pub fn detach(handle: usize) -> Result<()> {
    let context = by_handle(handle)?;
    status::refuse_as(current_handle() != handle, status::INVALID_CONTEXT)?;
    let is_others = context
        .users
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |users| {
            users.checked_sub(1).filter(|left| *left > 0)
        })
        .is_ok();
    if is_others { Ok(()) } else { destroy(handle) }
}

/// Retains a device's primary context, and creates the context if it is not active. Returns the
/// context's handle.
pub fn retain_primary(device: i32) -> Result<usize> {
    let gpu = process::gpu_of(device)?;
    let mut all = lock(&PRIMARIES);
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

/// Releases a device's primary context. The release of the last user ends the context.
pub fn release_primary(device: i32) -> Result<()> {
    let gpu = process::gpu_of(device)?;
    let mut all = lock(&PRIMARIES);
    let primary = all.entry(gpu).or_default();
    status::refuse_as(primary.retained == 0, status::INVALID_CONTEXT)?;
    primary.retained -= 1;
    if primary.retained == 0
        && let Some(context) = primary.context.take()
    {
        drop(all);
        context.destroy();
    }
    Ok(())
}

/// Ends a device's primary context, even if it is still retained.
pub fn reset_primary(device: i32) -> Result<()> {
    let gpu = process::gpu_of(device)?;
    let context = lock(&PRIMARIES).entry(gpu).or_default().context.take();
    if let Some(context) = context {
        context.destroy();
    }
    Ok(())
}

/// Returns the flags of a device's primary context, and whether it is active.
pub fn primary_state(device: i32) -> Result<(u32, bool)> {
    let gpu = process::gpu_of(device)?;
    let mut all = lock(&PRIMARIES);
    let primary = all.entry(gpu).or_default();
    Ok(match &primary.context {
        Some(context) => (context.flags(), true),
        None => (primary.flags, false),
    })
}

/// Sets the flags of a device's primary context.
pub fn set_primary_flags(device: i32, flags: u32) -> Result<()> {
    let gpu = process::gpu_of(device)?;
    let mut all = lock(&PRIMARIES);
    let primary = all.entry(gpu).or_default();
    if let Some(context) = &primary.context {
        context.set_flags(flags)?;
    } else if flags & !FLAGS_MASK != 0 || (flags & cu::CU_CTX_SCHED_MASK).count_ones() > 1 {
        return Err(status::INVALID_VALUE);
    }
    primary.flags = flags;
    Ok(())
}
