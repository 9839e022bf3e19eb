//! Reconciliation: each second, compares NVML's figures for a tenant's processes with the tenant's
//! account, tells the tenant's sessions their figures, and publishes the status.

use super::{appraisal, held, host};
use crate::{Shared, nvml, status};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::sleep;

const PERIOD: Duration = Duration::from_secs(1);

/// Compares the ledgers with NVML's figures once a second. Never returns.
pub async fn serve(shared: Rc<Shared>) {
    loop {
        sleep(PERIOD).await;
        let is_empty = shared.registry.borrow().tenancy.tenants().is_empty();
        let before = held(shared.registry.borrow().tenancy.tenants());
        let accounts = appraisal::Before::of(shared.registry.borrow().tenancy.tenants());
        let uuids = shared.registry.borrow().tenancy.gpus().uuids();
        // Without tenants, the daemon does not ask NVML, and forgets NVML's figures. A driver can
        // answer slowly, and tenants come and go meanwhile.
        let found = if is_empty { BTreeMap::new() } else { nvml::usage(uuids).await };
        shared.registry.borrow_mut().tenancy.reconcile(&found, &before);
        accounts.tell(shared.registry.borrow().tenancy.tenants(), &found);
        host::share_out(&shared);
        if is_empty && shared.http.is_none() && shared.status.borrow().tenants.is_empty() {
            // Nothing has changed since the last tenant was forgotten. Metrics also show the
            // status's time and unmanaged processes.
            continue;
        }
        status::publish(&shared).await;
    }
}
