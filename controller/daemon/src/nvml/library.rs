//! NVML's library, with the functions that nvml-wrapper does not have: those of MIG devices and of
//! MPS.

use super::LIBRARY;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, EventSet, Nvml};
use nvml_wrapper_sys::bindings as sys;
use std::collections::BTreeSet;
use std::ffi::OsStr;

/// The number by which NVML says that an event belongs to no instance.
const NO_INSTANCE: u32 = u32::MAX;
/// The places of the first list for the clients of MPS. An MPS server serves some tens of clients
/// (NVIDIA's MPS guide), so one question is mostly enough.
const PLACES: u32 = 64;

/// NVML, open.
pub struct Library {
    /// The functions that nvml-wrapper has.
    pub nvml: Nvml,
    /// All functions.
    pub raw: sys::NvmlLib,
}

/// The numbers of a GPU instance and of a compute instance; `None` for a number that NVML does not
/// tell. Together they name a MIG device of a GPU.
pub type Instance = [Option<u32>; 2];

/// An event of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The UUID of the GPU, `GPU-…`; `None` if NVML does not tell it.
    pub gpu: Option<String>,
    /// The instance to which the event belongs.
    pub instance: Instance,
    /// The event's number. For an Xid: the Xid.
    pub number: u64,
}

impl Library {
    /// Opens NVML.
    ///
    /// # Errors
    /// NVML is missing, or does not work.
    pub fn open() -> Result<Self, NvmlError> {
        let nvml = Nvml::builder().lib_path(OsStr::new(LIBRARY)).init()?;
        // SAFETY: NVML is loaded already, so no code of the library runs now.
        let raw = unsafe { sys::NvmlLib::new(LIBRARY) }?;
        Ok(Self { nvml, raw })
    }

    /// Returns the MIG devices of a GPU; none if the GPU is not in MIG mode.
    pub fn mig_devices(&self, gpu: &Device<'_>) -> Vec<Device<'_>> {
        let is_divided = gpu.mig_mode().is_ok_and(|mode| mode.current != 0);
        if is_divided { self.find_mig_devices(gpu).unwrap_or_default() } else { Vec::new() }
    }

    fn find_mig_devices(&self, gpu: &Device<'_>) -> Result<Vec<Device<'_>>, NvmlError> {
        let count = nvml_sym(self.raw.nvmlDeviceGetMaxMigDeviceCount.as_ref())?;
        let find = nvml_sym(self.raw.nvmlDeviceGetMigDeviceHandleByIndex.as_ref())?;
        let mut most = 0;
        // SAFETY: the handle is only passed to NVML, which outlives it, and the result has room.
        nvml_try(unsafe { count(gpu.handle(), &mut most) })?;
        // SAFETY: as above. Places without a MIG device have an error.
        let device = |index| self.handle(|to| unsafe { find(gpu.handle(), index, to) }).ok();
        Ok((0..most).filter_map(device).collect())
    }

    /// Returns the GPU of a MIG device; `None` for a device that is no MIG device.
    pub fn whole_of(&self, device: &Device<'_>) -> Option<Device<'_>> {
        let find = self.raw.nvmlDeviceGetDeviceHandleFromMigDeviceHandle.as_ref().ok()?;
        // SAFETY: the handle is only passed to NVML, which outlives it, and the result has room.
        self.handle(|to| unsafe { find(device.handle(), to) }).ok()
    }

    /// Returns the pids of the processes that have an MPS context on a GPU.
    ///
    /// # Errors
    /// NVML's error. [`NvmlError::FailedToLoadSymbol`] if the driver's NVML lacks the function.
    pub fn mps_clients(&self, gpu: &Device<'_>) -> Result<BTreeSet<u32>, NvmlError> {
        let list = nvml_sym(self.raw.nvmlDeviceGetMPSComputeRunningProcesses_v3.as_ref())?;
        let none =
            sys::nvmlProcessInfo_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };
        let mut places = PLACES;
        loop {
            let (mut infos, mut count) = (vec![none; places as usize], places);
            // SAFETY: the handle is only passed to NVML, which outlives it, and the list has this
            // many places.
            let listed = nvml_try(unsafe { list(gpu.handle(), &mut count, infos.as_mut_ptr()) });
            match listed {
                // More processes can come before the next question.
                Err(NvmlError::InsufficientSize(_)) if count > places => {
                    places = count.saturating_add(PLACES);
                }
                Err(error) => return Err(error),
                Ok(()) => return Ok(infos.iter().take(count as usize).map(|info| info.pid).collect()),
            }
        }
    }

    /// Returns the instance that is a MIG device.
    pub fn instance_of(&self, device: &Device<'_>) -> Instance {
        [&self.raw.nvmlDeviceGetGpuInstanceId, &self.raw.nvmlDeviceGetComputeInstanceId].map(|ask| {
            let (ask, mut number) = (ask.as_ref().ok()?, NO_INSTANCE);
            // SAFETY: the handle is only passed to NVML, which outlives it, and the result has
            // room.
            nvml_try(unsafe { ask(device.handle(), &mut number) }).ok()?;
            told(number)
        })
    }

    /// Waits for an event of a set for `ms` at most.
    ///
    /// # Errors
    /// NVML's error. [`NvmlError::Timeout`] if no event came.
    pub fn await_event(&self, set: &EventSet<'_>, ms: u32) -> Result<Event, NvmlError> {
        let wait = nvml_sym(self.raw.nvmlEventSetWait_v2.as_ref())?;
        let mut data = sys::nvmlEventData_t {
            device: std::ptr::null_mut(),
            eventType: 0,
            eventData: 0,
            gpuInstanceId: NO_INSTANCE,
            computeInstanceId: NO_INSTANCE,
        };
        // SAFETY: the set lives during the call, and the result has room.
        nvml_try(unsafe { wait(set.handle(), &mut data, ms) })?;
        // SAFETY: NVML gave the handle.
        let device = unsafe { Device::new(data.device, &self.nvml) };
        Ok(Event {
            gpu: device.uuid().ok(),
            instance: [told(data.gpuInstanceId), told(data.computeInstanceId)],
            number: data.eventData,
        })
    }

    /// Returns the device whose handle `find` writes.
    fn handle(
        &self,
        find: impl FnOnce(*mut sys::nvmlDevice_t) -> sys::nvmlReturn_t,
    ) -> Result<Device<'_>, NvmlError> {
        let mut handle = std::ptr::null_mut();
        nvml_try(find(&raw mut handle))?;
        // SAFETY: NVML gave the handle.
        Ok(unsafe { Device::new(handle, &self.nvml) })
    }
}

fn told(number: u32) -> Option<u32> {
    Some(number).filter(|number| *number != NO_INSTANCE)
}
