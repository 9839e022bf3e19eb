//! Waits for memory that the tenant can have but the GPU lacks. Other tenants hold the memory, and
//! the daemon can suspend them to make room.

use super::account::Account;
use super::ledgers::Ledger;
use crate::meter::gpu::Gpu;
use crate::os;
use crate::session::Session;

/// The time between two checks of a waiting request, ns. To move memory takes far longer.
const LOOK_EVERY_NS: u64 = 1_000_000;

/// Waits until the daemon has made room for `bytes`, because the driver has no memory left. During
/// the wait the request holds no reservation, so that the tenant's ledger does not count the new
/// room twice.
///
/// Returns false if the daemon can make no room. After any wait, returns true, even if the wait
/// ended early. The caller then asks the driver again, because the tenant that held the memory can
/// be gone.
#[cold]
pub fn wait(session: &Session, gpu: &Gpu, (ledger, account): (&Ledger, Account), bytes: u64) -> bool {
    let Some(waiting) = account.wait_for_room(bytes) else { return false };
    let mut has_waited = false;
    while !waiting.is_over() {
        // The next daemon's ledger does not contain the waits of this ledger.
        let is_forgotten = !session.is_current_ledger(ledger.generation);
        if is_forgotten || !waiting.goes_on() || session.is_daemon_gone(gpu, os::now_ns()) {
            return has_waited;
        }
        os::sleep(LOOK_EVERY_NS);
        has_waited = true;
    }
    true
}
