//! Green contexts: parts of a GPU's SMs, each with streams of its own. A green context uses the
//! memory, the code and the events of the GPU's primary context.
//!
//! A client makes a green context current by its *view*, a context handle. At most one thread at a
//! time may do so. The reference leaves out what happens otherwise; here, the call fails.
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::thread::{self, ThreadId};

use simgpu_engine::{ALL_SMS_PPM, Work};

use crate::capture;
use crate::context::{self, Context, lock};
use crate::event::Event;
use crate::handle::{Kind, Table};
use crate::process;
use crate::status::{self, Result};
use crate::stream::Stream;

/// All live green contexts.
pub static GREENS: Table<Green> = Table::new(Kind::Green);
/// The bit by which a view differs from the handle of its green context. Handles leave it 0.
const VIEW: usize = 8;
/// All descriptors of resources.
static DESCRIPTORS: Table<Part> = Table::new(Kind::Descriptor);

/// The least number of SMs of a part, and the number of which it is a multiple. Both values are
/// those of NVIDIA's reference for compute capability 9.0.
pub const GRANULARITY: u32 = 8;

/// A part of the SMs of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The device's ordinal in this process.
    pub device: i32,
    /// The number of SMs.
    pub sms: u32,
}

impl Part {
    /// Returns all SMs of a device.
    pub fn whole(device: i32) -> Result<Self> {
        process::gpu_of(device)?;
        Ok(Self { device, sms: process::config().sm_count })
    }

    /// Splits off at most `groups` parts of at least `least` SMs. Returns the parts, and the rest.
    pub fn split(self, groups: u32, least: u32) -> Result<(Vec<Self>, Self)> {
        status::refuse(least > self.sms)?;
        let sms = least.max(1).next_multiple_of(GRANULARITY);
        let count = groups.min(self.sms / sms);
        status::refuse_as(count == 0, status::INVALID_RESOURCE_CONFIGURATION)?;
        let rest = Self { sms: self.sms - count * sms, ..self };
        Ok(((0..count).map(|_| Self { sms, ..self }).collect(), rest))
    }
}

/// Makes a descriptor of parts of one device, and returns its handle.
pub fn describe(parts: &[Part]) -> Result<usize> {
    let first = parts.first().ok_or(status::INVALID_VALUE)?;
    let is_other = parts.iter().any(|part| part.device != first.device);
    let sms = parts.iter().map(|part| part.sms).sum();
    let is_too_much = sms > process::config().sm_count;
    status::refuse_as(is_other || is_too_much || sms == 0, status::INVALID_RESOURCE_CONFIGURATION)?;
    let mut own = 0;
    DESCRIPTORS
        .insert_with(|handle| {
            own = handle;
            Arc::new(Part { sms, ..*first })
        })
        .map(|_| own)
        .ok_or(status::OUT_OF_MEMORY)
}

/// A green context: a part of a GPU's SMs, with streams of its own.
pub struct Green {
    /// The handle by which clients name the green context.
    pub handle: usize,
    /// The number of the green context, unique in this process.
    pub id: u64,
    /// The primary context.
    pub home: Arc<Context>,
    /// The SMs.
    pub part: Part,
    alive: AtomicBool,
    legacy: RwLock<Option<Arc<Stream>>>,
    /// The thread to which the context is current, and the number of places on that thread's stack.
    holder: Mutex<Option<(ThreadId, usize)>>,
}

impl Green {
    /// Returns the context handle for clients.
    pub fn view(&self) -> usize {
        self.handle | VIEW
    }

    /// Returns the part of the GPU's SMs, parts per million.
    fn sm_ppm(&self) -> u32 {
        let ppm = u64::from(ALL_SMS_PPM) * u64::from(self.part.sms) / u64::from(process::config().sm_count);
        ppm as u32
    }

    /// Returns the work as it runs on this part of the SMs.
    pub fn confined(&self, work: Work) -> Work {
        let own_ppm = self.sm_ppm();
        let longer = |ns: u64, sm_ppm: u32| match sm_ppm > own_ppm {
            true => (ns.saturating_mul(sm_ppm.into()) / u64::from(own_ppm), own_ppm),
            false => (ns, sm_ppm),
        };
        match work {
            Work::Kernel { duration_ns, sm_ppm, kernels } => {
                let (duration_ns, sm_ppm) = longer(duration_ns, sm_ppm);
                Work::Kernel { duration_ns, sm_ppm, kernels }
            }
            Work::Collective { duration_ns, sm_ppm, name, peers } => {
                let (duration_ns, sm_ppm) = longer(duration_ns, sm_ppm);
                Work::Collective { duration_ns, sm_ppm, name, peers }
            }
            other => other,
        }
    }

    /// Returns whether the context has not been destroyed.
    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire) && self.home.is_alive()
    }

    /// Returns the context's legacy default stream.
    pub fn legacy(&self) -> Result<Arc<Stream>> {
        let legacy = self.legacy.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        legacy.clone().ok_or(status::CONTEXT_IS_DESTROYED)
    }

    /// Returns all streams of the context.
    fn streams(&self) -> Result<Vec<Arc<Stream>>> {
        let is_own = |stream: &Arc<Stream>| stream.green.as_ref().is_some_and(|own| own.id == self.id);
        Ok(self.home.streams().into_iter().filter(is_own).chain([self.legacy()?]).collect())
    }

    /// Returns all streams of the context, none of which may be capturing.
    fn uncaptured(&self) -> Result<Vec<Arc<Stream>>> {
        let streams = self.streams()?;
        let is_capturing = streams.iter().any(|stream| stream.is_capturing());
        status::refuse_as(is_capturing, status::STREAM_CAPTURE_UNSUPPORTED)?;
        Ok(streams)
    }

    /// Records `event` after all work of the context (cuGreenCtxRecordEvent).
    pub fn record(&self, event: &Arc<Event>) -> Result<()> {
        let streams = self.uncaptured()?;
        let tickets: Vec<_> = streams.iter().map(|stream| stream.last_ticket()).collect();
        let legacy = self.legacy()?;
        legacy.wait_for(&tickets)?;
        event.record(&legacy)
    }

    /// Makes all streams of the context wait for `event` (cuGreenCtxWaitEvent).
    pub fn wait(&self, event: &Event) -> Result<()> {
        let streams = self.uncaptured()?;
        status::refuse_as(event.captured().is_some(), status::STREAM_CAPTURE_UNSUPPORTED)?;
        let Some(ticket) = event.ticket() else { return Ok(()) };
        streams.iter().try_for_each(|stream| stream.wait_for(&[ticket]))
    }
}

/// A green context that is current to the thread of this value.
pub struct Held(Arc<Green>);

impl Held {
    /// Makes a green context current to the calling thread. Fails if the context is current to
    /// another thread.
    pub fn take(green: Arc<Green>) -> Result<Self> {
        {
            let mut holder = lock(&green.holder);
            let own = thread::current().id();
            let (thread, places) = holder.unwrap_or((own, 0));
            status::refuse_as(thread != own, status::CONTEXT_ALREADY_CURRENT)?;
            *holder = Some((own, places + 1));
        }
        Ok(Self(green))
    }

    /// Returns the green context.
    pub fn green(&self) -> &Arc<Green> {
        &self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut holder = lock(&self.0.holder);
        *holder = holder.and_then(|(thread, places)| (places > 1).then_some((thread, places - 1)));
    }
}

/// Returns the green context of a handle.
pub fn by_handle(handle: usize) -> Result<Arc<Green>> {
    match GREENS.get(handle) {
        Some(green) => Ok(green),
        None if GREENS.is_kind(handle) => Err(status::CONTEXT_IS_DESTROYED),
        None => Err(status::INVALID_CONTEXT),
    }
}

/// Returns the green context of a view; `None` if the handle never was a view.
pub fn of_view(handle: usize) -> Option<Result<Arc<Green>>> {
    let green = handle & !VIEW;
    (handle != green && GREENS.is_kind(green)).then(|| by_handle(green))
}

/// Creates a green context with the SMs of a descriptor, and returns its handle.
pub fn create(descriptor: usize, device: i32) -> Result<usize> {
    let part = *DESCRIPTORS.get(descriptor).ok_or(status::INVALID_VALUE)?;
    status::refuse_as(part.device != device, status::INVALID_DEVICE)?;
    let home = context::by_handle(context::retain_primary(device)?)?;
    let green = GREENS.insert_with(|handle| {
        Arc::new(Green {
            handle,
            id: process::next_id(),
            home: Arc::clone(&home),
            part,
            alive: AtomicBool::new(true),
            legacy: RwLock::new(None),
            holder: Mutex::new(None),
        })
    });
    let Some(green) = green else {
        context::release_primary(device)?;
        return Err(status::OUT_OF_MEMORY);
    };
    let legacy = Stream::create_legacy(&home, Some(&green))?;
    *green.legacy.write().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(legacy);
    Ok(green.handle)
}

/// Destroys a green context. The streams of an ended green context stay, and most calls refuse
/// them.
pub fn destroy(handle: usize) -> Result<()> {
    let green = by_handle(handle)?;
    GREENS.remove(handle).ok_or(status::CONTEXT_IS_DESTROYED)?;
    green.streams()?.iter().for_each(|stream| capture::abandon(stream));
    green.alive.store(false, Ordering::Release);
    green.legacy.write().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    context::release_primary(green.home.device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_multiples_of_the_granularity_and_leave_the_rest() {
        let part = |sms| Part { device: 0, sms };
        assert_eq!(part(132).split(2, 30), Ok((vec![part(32); 2], part(68))));
        assert_eq!(part(132).split(9, 64), Ok((vec![part(64); 2], part(4))));
        assert_eq!(part(132).split(1, 133), Err(status::INVALID_VALUE));
        assert_eq!(part(4).split(1, 2), Err(status::INVALID_RESOURCE_CONFIGURATION));
    }
}
