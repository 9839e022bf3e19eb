//! The faults of GPUs. The driver lost the GPU, no longer lists it, does not answer for it, or
//! reported an error of the hardware (Xid).
//!
//! For each GPU, a thread asks NVML once a second. If the driver hangs at a question, it keeps only
//! the thread of this GPU, and the GPU has a fault until the answer comes. One more thread waits
//! for NVML's events. The thread for all other questions ([`crate::nvml`]) must answer at once, so
//! it does neither.
//!
//! NVML tells the Xids of a MIG device as events of its GPU, and mostly tells the instance too. The
//! driver says only of whole GPUs what they need.
//!
//! An Xid says that something happened, and not how long it matters. Newer drivers say what a GPU
//! needs: NVML's field *GPU recovery action*. If such a driver says for a while that the GPU needs
//! nothing, the GPU's Xid is no fault any more. Other drivers say nothing, so an Xid stays.

use crate::nvml::{Event, Instance, Library, STUCK};
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION;
use nvml_wrapper::{Device, EventSet};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The time between two questions for a GPU.
const PERIOD: Duration = Duration::from_secs(1);
/// The time after which a thread tries again to open NVML.
const RETRY: Duration = Duration::from_secs(30);
/// The Xids that a program causes, by NVIDIA's page of Xid errors. These Xids say nothing about the
/// GPU, and NVIDIA's device plugin ignores the same Xids.
const OF_PROGRAMS: [u64; 6] = [13, 31, 43, 45, 68, 109];
/// The needs of a GPU that the driver can name, by the numbers of `nvmlDeviceGpuRecoveryAction_t`.
const NEEDS: [Option<&str>; 5] = [
    None,
    Some("the GPU needs a reset"),
    Some("the machine needs a reboot"),
    Some("all copies between GPUs must end"),
    Some("the GPU needs a reset after the end of its work"),
];
/// The need of a GPU if the number is not in [`NEEDS`].
const UNKNOWN_NEED: Option<&str> = Some("the driver asks for a recovery that deepres does not know");
/// The number of answers in a row that a GPU needs nothing after which its Xid is no fault. The
/// driver can tell the Xid before it knows what the GPU needs.
const CALM_ANSWERS: u32 = 10;
/// The fault of a GPU of which NVML told nothing when the daemon started.
pub const LOST: &str =
    "NVML told nothing of the GPU at the daemon's start: reset the GPU, and restart the daemon";
/// The number of looks at a question without an answer after which the driver hangs. The daemon
/// counts its looks and not the time, because a daemon that was stopped could not take an answer.
const HANG_LOOKS: u32 = (STUCK.as_secs() / PERIOD.as_secs()) as u32;
/// The fault of a GPU at whose question the driver hangs.
const HANGS: &str = "the driver does not answer for the GPU";

/// The faults of GPUs, by UUID, `GPU-…`. All clones are one record.
#[derive(Debug, Clone, Default)]
pub struct Faults(Arc<Mutex<BTreeMap<String, Health>>>);

impl Faults {
    fn with<T>(&self, act: impl FnOnce(&mut BTreeMap<String, Health>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn change(&self, uuid: &str, change: impl FnOnce(&mut Health)) {
        self.with(|gpus| change(gpus.entry(uuid.to_owned()).or_default()));
    }

    /// Sets or removes a fault of a GPU that NVML does not tell.
    pub fn set(&self, uuid: &str, fault: Option<&str>) {
        self.change(uuid, |gpu| gpu.untold = fault.map(str::to_owned));
    }

    /// Returns the fault of a GPU.
    pub fn of(&self, uuid: &str) -> Option<String> {
        self.with(|gpus| gpus.get(uuid)?.fault())
    }

    /// Returns all faults.
    pub fn all(&self) -> BTreeMap<String, String> {
        let fault = |(uuid, gpu): (&String, &Health)| Some((uuid.clone(), gpu.fault()?));
        self.with(|gpus| gpus.iter().filter_map(fault).collect())
    }

    /// Looks at the questions that the driver has.
    fn look(&self) {
        let count = |gpu: &mut Health| gpu.asked = gpu.asked.map(|looks| looks.saturating_add(1));
        self.with(|gpus| gpus.values_mut().for_each(count));
    }

    /// Looks at the GPUs once a second, and logs each change of the faults. Never returns.
    pub async fn log_changes(self) {
        let mut before = BTreeMap::new();
        loop {
            self.look();
            let now = self.all();
            let uuids: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
            for gpu in uuids.into_iter().filter(|gpu| before.get(*gpu) != now.get(*gpu)) {
                tracing::warn!(gpu, fault = now.get(gpu), "the health of a GPU has changed");
            }
            before = now;
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// Returns the faults of these GPUs, which threads watch until the process ends.
    ///
    /// # Errors
    /// A thread cannot start.
    pub fn watch(uuids: Vec<String>) -> io::Result<Self> {
        let faults = Self::default();
        for uuid in uuids.clone() {
            let faults = faults.clone();
            keep_on("deepres-health", move || faults.ask_for(&uuid))?;
        }
        let events = faults.clone();
        keep_on("deepres-faults", move || events.await_xids(&uuids))?;
        Ok(faults)
    }

    /// Asks for a GPU again and again. Returns if NVML cannot be opened.
    fn ask_for(&self, uuid: &str) -> Result<(), NvmlError> {
        let library = self.during(uuid, Library::open)?;
        loop {
            let ask = || {
                let device = library.nvml.device_by_uuid(uuid)?;
                device.memory_info()?;
                Ok(needs(&library.whole_of(&device).unwrap_or(device)))
            };
            let answer = self.during(uuid, ask);
            self.change(uuid, |gpu| gpu.note_answer(answer));
            sleep(PERIOD);
        }
    }

    /// Asks the driver for a GPU, and notes that the driver has the question.
    fn during<T>(&self, uuid: &str, ask: impl FnOnce() -> T) -> T {
        self.change(uuid, |gpu| gpu.asked = Some(0));
        let answer = ask();
        self.change(uuid, |gpu| gpu.asked = None);
        answer
    }

    /// Waits for the Xids of GPUs. Returns if NVML cannot be opened.
    fn await_xids(&self, uuids: &[String]) -> Result<(), NvmlError> {
        let library = Library::open()?;
        let mut events = Events::new(&library, uuids);
        loop {
            let Some(event) = events.wait(&library, uuids) else { continue };
            let concerned = events.places.iter().filter(|place| place.is_concerned(&event));
            concerned.for_each(|place| self.change(&place.uuid, |gpu| gpu.note_xid(event.number)));
        }
    }
}

/// The place of a watched GPU among the GPUs of which NVML tells events.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    uuid: String,
    /// The UUID of the whole GPU.
    whole: String,
    /// The instance, if the watched GPU is a MIG device.
    instance: Instance,
}

impl Place {
    /// Returns whether an event can concern the watched GPU. If NVML does not tell a GPU or an
    /// instance, it can be each of them.
    fn is_concerned(&self, event: &Event) -> bool {
        let is_gpu = event.gpu.as_ref().is_none_or(|gpu| *gpu == self.whole);
        let mut instances = self.instance.iter().zip(&event.instance);
        is_gpu && instances.all(|(own, told)| own.is_none() || told.is_none() || own == told)
    }
}

/// Starts a thread that acts again whenever NVML fails.
fn keep_on(name: &str, act: impl Fn() -> Result<(), NvmlError> + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    let keep = move || {
        loop {
            if let Err(error) = act() {
                tracing::debug!(%error, "NVML tells no faults");
            }
            sleep(RETRY);
        }
    };
    thread.spawn(keep).map(drop)
}

/// Returns the number of what a GPU needs; `None` if the driver does not say it.
fn needs(device: &Device<'_>) -> Option<usize> {
    let values = device.field_values_for(&[FieldId(NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)]).ok()?;
    match values.into_iter().next()?.ok()?.value.ok()? {
        SampleValue::U32(number) => usize::try_from(number).ok(),
        SampleValue::U64(number) => usize::try_from(number).ok(),
        SampleValue::I64(number) => usize::try_from(number).ok(),
        SampleValue::F64(_) => None,
    }
}

/// The source of the Xids: NVML's events of the GPUs.
struct Events<'nvml> {
    /// `None` while NVML tells no Xids.
    set: Option<EventSet<'nvml>>,
    places: Vec<Place>,
    /// The time from which the thread asks for the Xids again.
    again: Instant,
}

impl<'nvml> Events<'nvml> {
    fn new(library: &'nvml Library, uuids: &[String]) -> Self {
        let places: Vec<Place> = uuids.iter().filter_map(|uuid| place(library, uuid).ok()).collect();
        let gpus: BTreeSet<&str> = places.iter().map(|place| place.whole.as_str()).collect();
        let set = match Self::set(library, &gpus) {
            Ok(set) => Some(set),
            Err(error) => {
                tracing::debug!(%error, "NVML tells no Xids");
                None
            }
        };
        Self { set, places, again: Instant::now() + RETRY }
    }

    /// Returns the set of events of all GPUs that have Xids. NVML frees the whole set if one GPU
    /// cannot be added, so that this function leaves out the GPU and begins anew.
    fn set(library: &'nvml Library, gpus: &BTreeSet<&str>) -> Result<EventSet<'nvml>, NvmlError> {
        let nvml = &library.nvml;
        let devices = gpus.iter().filter_map(|uuid| nvml.device_by_uuid(*uuid).ok());
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
    fn wait(&mut self, library: &'nvml Library, uuids: &[String]) -> Option<Event> {
        let Some(set) = &self.set else {
            sleep(PERIOD);
            if Instant::now() >= self.again {
                *self = Self::new(library, uuids);
            }
            return None;
        };
        match library.await_event(set, PERIOD.as_millis() as u32) {
            Ok(event) => Some(event),
            Err(NvmlError::Timeout) => None,
            // A GPU that fell off the bus, for example. The others go on.
            Err(error) => {
                tracing::warn!(%error, "NVML tells no Xids now; the daemon asks again");
                self.set = None;
                sleep(PERIOD);
                None
            }
        }
    }
}

/// Returns the place of a watched GPU.
fn place(library: &Library, uuid: &str) -> Result<Place, NvmlError> {
    let device = library.nvml.device_by_uuid(uuid)?;
    Ok(match library.whole_of(&device) {
        Some(whole) => {
            Place { uuid: uuid.to_owned(), whole: whole.uuid()?, instance: library.instance_of(&device) }
        }
        None => Place { uuid: uuid.to_owned(), whole: uuid.to_owned(), instance: Instance::default() },
    })
}

/// The health of a GPU.
#[derive(Debug, Default)]
struct Health {
    /// A fault that NVML does not tell.
    untold: Option<String>,
    /// The number of the daemon's looks since the driver got its present question about the GPU;
    /// `None` if the driver has no question.
    asked: Option<u32>,
    /// Whether NVML has ever answered for the GPU.
    is_known: bool,
    /// Why NVML says nothing of the GPU.
    lost: Option<&'static str>,
    /// The need of the GPU, as the driver says.
    needs: Option<&'static str>,
    xid: Option<u64>,
    /// The number of answers since the Xid that the GPU needs nothing.
    calm: u32,
}

impl Health {
    fn note_xid(&mut self, xid: u64) {
        if !OF_PROGRAMS.contains(&xid) {
            (self.xid, self.calm) = (Some(xid), 0);
        }
    }

    /// Notes NVML's answer for the GPU, with the number of what the GPU needs. A GPU that comes
    /// back was reset, and forgets its Xid.
    fn note_answer(&mut self, answer: Result<Option<usize>, NvmlError>) {
        match answer {
            Ok(needs) => {
                let was_reset = self.lost.take().is_some();
                self.is_known = true;
                self.needs = needs.and_then(|number| *NEEDS.get(number).unwrap_or(&UNKNOWN_NEED));
                self.calm = if needs == Some(0) { self.calm.saturating_add(1) } else { 0 };
                if was_reset || self.calm >= CALM_ANSWERS {
                    self.xid = None;
                }
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
        let hangs = self.asked.is_some_and(|looks| looks >= HANG_LOOKS);
        let hangs = || hangs.then(|| HANGS.to_owned());
        let lost = || self.lost.map(str::to_owned);
        let xid = || match (self.xid, self.needs) {
            (Some(xid), Some(needs)) => Some(format!("Xid {xid}: {needs}")),
            (Some(xid), None) => Some(format!("Xid {xid}: reset the GPU, and restart the daemon")),
            (None, needs) => needs.map(str::to_owned),
        };
        self.untold.clone().or_else(hangs).or_else(lost).or_else(xid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn fault(gpu: &Health) -> Option<String> {
        gpu.fault()
    }

    #[test]
    fn a_gpu_has_a_fault_while_it_is_lost() {
        let mut gpu = Health::default();
        gpu.note_answer(Err(NvmlError::NotFound));
        assert_eq!(fault(&gpu), None, "a GPU that NVML never knew is not lost");
        gpu.note_answer(Ok(None));
        for (error, expected) in [
            (NvmlError::GpuLost, Some("the driver lost the GPU")),
            (NvmlError::ResetRequired, Some("the GPU needs a reset")),
            (NvmlError::NotFound, Some("the driver lists the GPU no more")),
            (NvmlError::NotSupported, None),
        ] {
            gpu.note_answer(Err(error));
            assert_eq!(fault(&gpu).as_deref(), expected);
            gpu.note_answer(Ok(None));
            assert_eq!(fault(&gpu), None);
        }
    }

    #[test]
    fn an_xid_of_the_hardware_is_a_fault_until_the_gpu_was_reset() {
        let mut gpu = Health::default();
        gpu.note_answer(Ok(None));
        OF_PROGRAMS.into_iter().for_each(|xid| gpu.note_xid(xid));
        assert_eq!(fault(&gpu), None);
        gpu.note_xid(48);
        gpu.note_answer(Ok(None));
        assert!(fault(&gpu).unwrap().starts_with("Xid 48"));
        gpu.note_answer(Err(NvmlError::GpuLost));
        gpu.note_answer(Ok(None));
        assert_eq!(fault(&gpu), None);
    }

    #[test]
    fn an_xid_of_a_gpu_is_one_of_the_mig_devices_that_it_may_concern() {
        let place = |whole: &str, instance| Place { uuid: String::new(), whole: whole.to_owned(), instance };
        let places = [
            place("GPU-1", [Some(1), Some(0)]),
            place("GPU-1", [Some(2), Some(0)]),
            place("GPU-1", [Some(2), Some(1)]),
            place("GPU-2", Instance::default()),
        ];
        let concerned = |gpu: Option<&str>, instance| {
            let event = Event { gpu: gpu.map(str::to_owned), instance, number: 48 };
            places.each_ref().map(|place| place.is_concerned(&event))
        };
        assert_eq!(concerned(Some("GPU-1"), [Some(2), Some(1)]), [false, false, true, false]);
        assert_eq!(concerned(Some("GPU-1"), [Some(2), None]), [false, true, true, false]);
        assert_eq!(concerned(Some("GPU-1"), [None, None]), [true, true, true, false]);
        assert_eq!(concerned(Some("GPU-2"), [None, None]), [false, false, false, true]);
        assert_eq!(concerned(None, [None, None]), [true; 4]);
    }

    #[test]
    fn an_xid_is_no_fault_any_more_once_the_driver_says_for_a_while_that_the_gpu_needs_nothing() {
        let mut gpu = Health::default();
        gpu.note_xid(154);
        for _ in 1..CALM_ANSWERS {
            gpu.note_answer(Ok(Some(0)));
        }
        gpu.note_xid(63);
        for _ in 1..CALM_ANSWERS {
            gpu.note_answer(Ok(Some(0)));
            assert!(fault(&gpu).unwrap().starts_with("Xid 63"));
        }
        // A driver that says nothing does not say that the GPU is well.
        gpu.note_answer(Ok(None));
        for _ in 1..CALM_ANSWERS {
            gpu.note_answer(Ok(Some(0)));
            assert!(fault(&gpu).is_some());
        }
        gpu.note_answer(Ok(Some(0)));
        assert_eq!(fault(&gpu), None);
    }

    #[test]
    fn a_gpu_has_a_fault_while_the_driver_says_that_it_needs_something() {
        let mut gpu = Health::default();
        for number in 1..NEEDS.len() + 2 {
            gpu.note_answer(Ok(Some(number)));
            let said = NEEDS.get(number).copied().unwrap_or(UNKNOWN_NEED);
            assert_eq!(fault(&gpu).as_deref(), said);
            gpu.note_xid(79);
            assert_eq!(fault(&gpu), said.map(|said| format!("Xid 79: {said}")));
            (0..CALM_ANSWERS).for_each(|_| gpu.note_answer(Ok(Some(0))));
            assert_eq!(fault(&gpu), None);
        }
    }

    #[test]
    fn a_gpu_for_which_the_driver_hangs_has_a_fault_until_the_answer_comes() {
        let faults = Faults::default();
        let (begin, began) = mpsc::channel();
        let (answer, answered) = mpsc::channel::<()>();
        let asking = faults.clone();
        let thread = std::thread::spawn(move || {
            asking.during("GPU-1", || {
                begin.send(()).unwrap();
                answered.recv().unwrap_err();
            });
        });
        began.recv().unwrap();
        faults.during("GPU-2", || ());
        for _ in 1..HANG_LOOKS {
            faults.look();
            assert_eq!(faults.all(), BTreeMap::new(), "an answer takes its time");
        }
        faults.look();
        assert_eq!(faults.all(), BTreeMap::from([("GPU-1".to_owned(), HANGS.to_owned())]));
        drop(answer);
        thread.join().unwrap();
        assert_eq!(faults.all(), BTreeMap::new());
    }

    #[test]
    fn a_daemon_that_was_stopped_finds_no_driver_that_hangs() {
        let faults = Faults::default();
        faults.during("GPU-1", || {
            // No look falls into the time for which the daemon is stopped, and one look follows.
            faults.look();
            faults.look();
            assert_eq!(faults.of("GPU-1"), None);
        });
    }
}
