//! The faults of GPUs: the driver lost the GPU or lists it no more, or reported an error of the
//! hardware (Xid).
//!
//! A thread of its own waits for NVML's events and asks for each GPU once a second. The other thread
//! that asks NVML ([`crate::nvml`]) must answer at once, so it does not wait for events.

use crate::nvml::LIBRARY;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, EventSet, Nvml};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The time between two questions for a GPU.
const PERIOD: Duration = Duration::from_secs(1);
/// The time after which the thread tries again to open NVML.
const RETRY: Duration = Duration::from_secs(30);
/// The Xids that a program causes, by NVIDIA's page of Xid errors. These Xids say nothing about the
/// GPU, and NVIDIA's device plugin ignores the same Xids.
const OF_PROGRAMS: [u64; 6] = [13, 31, 43, 45, 68, 109];
/// The number by which NVML says that it does not know the Xid.
const UNKNOWN_XID: u64 = 999;

/// The faults of GPUs, by UUID, `GPU-…`. All clones are one record.
#[derive(Debug, Clone, Default)]
pub struct Faults(Arc<Mutex<BTreeMap<String, String>>>);

impl Faults {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets or removes the fault of a GPU.
    pub fn set(&self, uuid: &str, fault: Option<&str>) {
        match fault {
            Some(fault) => self.lock().insert(uuid.to_owned(), fault.to_owned()),
            None => self.lock().remove(uuid),
        };
    }

    /// Returns the fault of a GPU.
    pub fn of(&self, uuid: &str) -> Option<String> {
        self.lock().get(uuid).cloned()
    }

    /// Returns all faults.
    pub fn all(&self) -> BTreeMap<String, String> {
        self.lock().clone()
    }

    /// Returns the faults of these GPUs, which a thread watches until the process ends.
    ///
    /// # Errors
    /// The thread cannot start.
    pub fn watch(uuids: Vec<String>) -> io::Result<Self> {
        let faults = Self::default();
        let watched = faults.clone();
        let mut gpus: Vec<Gpu> = uuids.into_iter().map(Gpu::new).collect();
        std::thread::Builder::new().name("deepres-faults".to_owned()).spawn(move || {
            loop {
                if let Err(error) = watched.look_on(&mut gpus) {
                    tracing::debug!(%error, "NVML tells no faults");
                }
                sleep(RETRY);
            }
        })?;
        Ok(faults)
    }

    /// Looks at the GPUs until NVML fails.
    fn look_on(&self, gpus: &mut [Gpu]) -> Result<(), NvmlError> {
        let nvml = Nvml::builder().lib_path(OsStr::new(LIBRARY)).init()?;
        let mut events = Events::new(&nvml, gpus);
        loop {
            events.wait(&nvml, gpus);
            for gpu in &mut *gpus {
                let device = nvml.device_by_uuid(gpu.uuid.as_str());
                gpu.note_answer(device.and_then(|device| device.memory_info()).map(drop));
                let fault = gpu.fault();
                if fault != self.of(&gpu.uuid) {
                    tracing::warn!(gpu = gpu.uuid, fault, "the health of a GPU has changed");
                    self.set(&gpu.uuid, fault.as_deref());
                }
            }
        }
    }
}

/// The source of the Xids: NVML's events of the GPUs.
struct Events<'nvml> {
    /// `None` while NVML tells no Xids.
    set: Option<EventSet<'nvml>>,
    /// The time from which the thread asks for the Xids again.
    again: Instant,
}

impl<'nvml> Events<'nvml> {
    fn new(nvml: &'nvml Nvml, gpus: &[Gpu]) -> Self {
        let set = match Self::set(nvml, gpus) {
            Ok(set) => Some(set),
            Err(error) => {
                tracing::debug!(%error, "NVML tells no Xids");
                None
            }
        };
        Self { set, again: Instant::now() + RETRY }
    }

    /// Returns NVML's set of events of all GPUs that have Xids. If NVML cannot add a GPU, it frees
    /// the whole set. The function then leaves out this GPU and begins anew.
    fn set(nvml: &'nvml Nvml, gpus: &[Gpu]) -> Result<EventSet<'nvml>, NvmlError> {
        let devices = gpus.iter().filter_map(|gpu| nvml.device_by_uuid(gpu.uuid.as_str()).ok());
        let tells_xids = |device: &Device<'_>| {
            let kinds = device.supported_event_types();
            kinds.is_ok_and(|kinds| kinds.contains(EventTypes::CRITICAL_XID_ERROR))
        };
        let register = |device: &Device<'nvml>, set| {
            device.register_events(EventTypes::CRITICAL_XID_ERROR, set).map_err(|error| error.error)
        };
        let mut devices: Vec<_> = devices.filter(tells_xids).collect();
        devices.retain(|device| nvml.create_event_set().and_then(|set| register(device, set)).is_ok());
        devices.iter().try_fold(nvml.create_event_set()?, |set, device| register(device, set))
    }

    /// Waits for an Xid for [`PERIOD`] at most.
    fn wait(&mut self, nvml: &'nvml Nvml, gpus: &mut [Gpu]) {
        let Some(set) = &self.set else {
            sleep(PERIOD);
            if Instant::now() >= self.again {
                *self = Self::new(nvml, gpus);
            }
            return;
        };
        match set.wait(PERIOD.as_millis() as u32) {
            Ok(event) => {
                let xid = match event.event_data {
                    Some(XidError::Value(xid)) => xid,
                    Some(XidError::Unknown) => UNKNOWN_XID,
                    None => return,
                };
                // If NVML does not say which GPU, it may be each of them.
                let uuid = event.device.uuid().ok();
                let of = |gpu: &&mut Gpu| uuid.as_ref().is_none_or(|uuid| gpu.uuid == *uuid);
                gpus.iter_mut().filter(of).for_each(|gpu| gpu.note_xid(xid));
            }
            Err(NvmlError::Timeout) => {}
            // A GPU that fell off the bus, for example. The others go on.
            Err(error) => {
                tracing::warn!(%error, "NVML tells no Xids now; the daemon asks again");
                self.set = None;
                sleep(PERIOD);
            }
        }
    }
}

/// A GPU, as the thread that watches for faults knows it.
#[derive(Debug, Default)]
struct Gpu {
    uuid: String,
    /// Whether NVML has ever answered for the GPU.
    is_known: bool,
    /// The reason for which NVML does not answer for the GPU; `None` if it answers.
    lost: Option<&'static str>,
    xid: Option<u64>,
}

impl Gpu {
    fn new(uuid: String) -> Self {
        Self { uuid, ..Self::default() }
    }

    fn note_xid(&mut self, xid: u64) {
        if !OF_PROGRAMS.contains(&xid) {
            self.xid = Some(xid);
        }
    }

    /// Notes whether NVML answers for the GPU. A GPU that comes back was reset, and forgets its Xid.
    fn note_answer(&mut self, answer: Result<(), NvmlError>) {
        match answer {
            Ok(()) => {
                if self.lost.take().is_some() {
                    self.xid = None;
                }
                self.is_known = true;
            }
            Err(NvmlError::GpuLost) => self.lost = Some("the driver lost the GPU"),
            Err(NvmlError::ResetRequired) => self.lost = Some("the GPU needs a reset"),
            Err(NvmlError::NotFound) if self.is_known => {
                self.lost = Some("the driver lists the GPU no more");
            }
            // NVML fails for other reasons too, which say nothing about the GPU.
            Err(_) => {}
        }
    }

    fn fault(&self) -> Option<String> {
        let xid = || self.xid.map(|xid| format!("Xid {xid}: reset the GPU, and restart the daemon"));
        self.lost.map(str::to_owned).or_else(xid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_has_a_fault_while_it_is_lost() {
        let mut gpu = Gpu::new("GPU-1".to_owned());
        gpu.note_answer(Err(NvmlError::NotFound));
        assert_eq!(gpu.fault(), None, "a GPU that NVML never knew is not lost");
        gpu.note_answer(Ok(()));
        for (error, fault) in [
            (NvmlError::GpuLost, Some("the driver lost the GPU")),
            (NvmlError::ResetRequired, Some("the GPU needs a reset")),
            (NvmlError::NotFound, Some("the driver lists the GPU no more")),
            (NvmlError::NotSupported, None),
        ] {
            gpu.note_answer(Err(error));
            assert_eq!(gpu.fault().as_deref(), fault);
            gpu.note_answer(Ok(()));
            assert_eq!(gpu.fault(), None);
        }
    }

    #[test]
    fn an_xid_of_the_hardware_is_a_fault_until_the_gpu_was_reset() {
        let mut gpu = Gpu::new("GPU-1".to_owned());
        gpu.note_answer(Ok(()));
        OF_PROGRAMS.into_iter().for_each(|xid| gpu.note_xid(xid));
        assert_eq!(gpu.fault(), None);
        gpu.note_xid(48);
        gpu.note_answer(Ok(()));
        assert!(gpu.fault().unwrap().starts_with("Xid 48"));
        gpu.note_answer(Err(NvmlError::GpuLost));
        gpu.note_answer(Ok(()));
        assert_eq!(gpu.fault(), None);
    }
}
