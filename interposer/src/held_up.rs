//! Calls that no gate holds up wait in the driver while the tenant's memory is on the host. Each counts as a thread that waits at the gate meanwhile: a tenant that
//! nobody saw wait would look idle, and idle tenants are brought back last.

use crate::meter::gpu::Gpu;
use crate::os::{self, Uncancelled};
use crate::process;
use deepres_abi::meter::MeterSlot;

/// A call that may be held up, until it is dropped.
#[must_use = "dropped, it says that the call is through"]
pub struct HeldUp {
    meter: &'static MeterSlot,
    _uncancelled: Uncancelled,
}

/// To be asked for before the driver is called. `None`: nothing of the process is kept off a GPU.
#[inline]
pub fn begin() -> Option<HeldUp> {
    process::current()?.gpus.iter().find(|gpu| gpu.is_paused()).and_then(HeldUp::on)
}

impl HeldUp {
    #[cold]
    fn on(gpu: &Gpu) -> Option<Self> {
        let meter = gpu.meter()?;
        let _uncancelled = os::uncancelled();
        // No bell: whoever looks after tenants that are away looks at them again and again.
        meter.enter_wait();
        Some(Self { meter, _uncancelled })
    }
}

impl Drop for HeldUp {
    fn drop(&mut self) {
        self.meter.leave_wait();
    }
}
