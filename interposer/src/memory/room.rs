//! Waiting for memory that the tenant may have and the GPU lacks: others have it, and the daemon can have them taken off.

use deepres_abi::ledger::Account;

use super::ledgers::Ledger;
use crate::meter::gpu::Gpu;
use crate::os;
use crate::session::Session;

/// How often a waiter looks, ns: moving memory takes far longer.
const LOOK_EVERY_NS: u64 = 1_000_000;

/// The driver has no memory for `bytes`: lets the daemon make room. False if none is to be had; once it was waited for, however that ended, the driver is to be
/// asked again, since who had the memory may be gone. Meanwhile the request needs none: what is found is not to be made room for again.
#[cold]
pub fn wait(session: &Session, gpu: &Gpu, (ledger, account): (&Ledger, Account<'_>), bytes: u64) -> bool {
    let Some(waiting) = account.wait_for_room(bytes) else { return false };
    let mut has_waited = false;
    while !waiting.is_over() {
        // The next daemon's ledger knows nothing of who waits in this one.
        let is_forgotten = session.ledger_generation() != ledger.generation;
        if is_forgotten || !waiting.goes_on() || session.is_controller_gone(gpu, os::now_ns()) {
            return has_waited;
        }
        os::sleep(LOOK_EVERY_NS);
        has_waited = true;
    }
    true
}
