//! Counts calls that pass no gate and wait in the driver, while the tenant is suspended. During the
//! wait, the meter shows each such call as a thread that waits at the gate. Without this count, the
//! tenant would look idle, and the daemon brings idle tenants back last.

use crate::meter::gpu::Gpu;
use crate::os::{self, Uncancelled};
use crate::process;
use deepres_abi::meter::MeterSlot;

/// A call that can wait in the driver. The meter shows the call as waiting until the drop of this
/// value.
#[must_use = "dropped, it says that the call is through"]
pub struct BlockedCall {
    meter: &'static MeterSlot,
    _uncancelled: Uncancelled,
}

/// Begins to count a call of the driver. Returns `None` if no GPU's gate is in state `Paused`.
#[inline]
pub fn begin() -> Option<BlockedCall> {
    process::current()?.gpus.iter().find(|gpu| gpu.is_paused()).and_then(BlockedCall::on)
}

impl BlockedCall {
    #[cold]
    fn on(gpu: &Gpu) -> Option<Self> {
        let meter = gpu.meter()?;
        let _uncancelled = os::uncancelled();
        // No bell is necessary, because the daemon polls suspended tenants.
        meter.enter_wait();
        Some(Self { meter, _uncancelled })
    }
}

impl Drop for BlockedCall {
    fn drop(&mut self) {
        self.meter.leave_wait();
    }
}
