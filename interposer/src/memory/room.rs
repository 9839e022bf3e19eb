//! Waiting for memory that the tenant may have and the GPU lacks: others have it, and the daemon can have them taken off.

use std::thread;
use std::time::Duration;

use deepres_abi::driver::result::CUDA_ERROR_OUT_OF_MEMORY;
use deepres_abi::ledger::Account;

use crate::meter::gpu::Gpu;
use crate::os;
use crate::session::Session;

/// How often a waiter looks: moving memory takes far longer.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The driver has no memory for `bytes`: lets the daemon make room and runs `ask` again, as long as it can and that is not enough. `None`: no
/// room was to be had.
#[cold]
pub fn ask_again<T>(
    session: &Session,
    gpu: &Gpu,
    account: Account<'_>,
    bytes: u64,
    mut ask: impl FnMut() -> (u32, T),
) -> Option<(u32, T)> {
    loop {
        let waiting = account.wait_for_room(bytes)?;
        while !waiting.is_over() {
            if !waiting.goes_on() || session.is_controller_gone(gpu, os::now_ns()) {
                return None;
            }
            thread::sleep(LOOK_EVERY);
        }
        // Before it is asked: what is found is not to be made room for again.
        drop(waiting);
        let (result, answer) = ask();
        if result != CUDA_ERROR_OUT_OF_MEMORY {
            return Some((result, answer));
        }
    }
}
