//! Each second, adds up the calls to the kernel driver that the eBPF programs counted for a
//! tenant's processes.

use super::Shared;
use deepres_model::clock::monotonic_ns;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::sleep;

const PERIOD: Duration = Duration::from_secs(1);

/// Each second, adds the counted calls of processes to the counts of the processes' tenants. Never
/// returns.
pub async fn serve(shared: Rc<Shared>) {
    loop {
        sleep(PERIOD).await;
        if shared.registry.borrow().tenancy.tenants().is_empty() {
            continue;
        }
        let (activity, metering) = (shared.watcher.activity(), shared.metering.board());
        shared.registry.borrow_mut().tenancy.observe_driver(monotonic_ns(), &activity, &metering);
    }
}
