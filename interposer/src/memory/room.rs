//! Waiting for memory that the tenant may have but the GPU lacks. Other tenants hold it, and the
//! daemon can suspend them to make room.

use deepres_abi::ledger::Account;

use super::ledgers::Ledger;
use crate::meter::gpu::Gpu;
use crate::os;
use crate::session::Session;

/// Interval at which a waiting request looks for room, ns. Moving memory takes far longer.
const LOOK_EVERY_NS: u64 = 1_000_000;

/// Waits until the daemon has made room for `bytes`, because the driver has no memory left. The
/// request holds no reservation meanwhile, so that the room found is not requested twice.
///
/// Returns false if no room can be made. Once it has waited it returns true, even if the wait was
/// cut short: the driver must then be asked again, because the tenant that held the memory may be
/// gone.
#[cold]
pub fn wait(session: &Session, gpu: &Gpu, (ledger, account): (&Ledger, Account<'_>), bytes: u64) -> bool {
    let Some(waiting) = account.wait_for_room(bytes) else { return false };
    let mut has_waited = false;
    while !waiting.is_over() {
        // The next daemon's ledger does not contain the requests that wait in this one.
        let is_forgotten = session.ledger_generation() != ledger.generation;
        if is_forgotten || !waiting.goes_on() || session.is_controller_gone(gpu, os::now_ns()) {
            return has_waited;
        }
        os::sleep(LOOK_EVERY_NS);
        has_waited = true;
    }
    true
}
