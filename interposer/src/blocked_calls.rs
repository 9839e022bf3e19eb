//! Counts calls that pass no gate and wait in the driver, while the tenant's memory is on the host.
//! Meanwhile each such call counts as a thread that waits at the gate. Without this, the tenant
//! would look idle, and idle tenants are brought back last.

use crate::meter::gpu::Gpu;
use crate::os::{self, Uncancelled};
use crate::process;
use deepres_abi::meter::MeterSlot;

/// A call that the driver may hold up. The call counts until this is dropped.
#[must_use = "dropped, it says that the call is through"]
pub struct BlockedCall {
    meter: &'static MeterSlot,
    _uncancelled: Uncancelled,
}

/// Called before a call of the driver. Returns `None` if no GPU of the process is paused.
#[inline]
pub fn begin() -> Option<BlockedCall> {
    process::current()?.gpus.iter().find(|gpu| gpu.is_paused()).and_then(BlockedCall::on)
}

impl BlockedCall {
    #[cold]
    fn on(gpu: &Gpu) -> Option<Self> {
        let meter = gpu.meter()?;
        let _uncancelled = os::uncancelled();
        // No bell is needed, because the daemon polls tenants that are off the GPU.
        meter.enter_wait();
        Some(Self { meter, _uncancelled })
    }
}

impl Drop for BlockedCall {
    fn drop(&mut self) {
        self.meter.leave_wait();
    }
}
