//! The log of processes whose look-ups of `cuLaunchKernel` do not all lead to deepres' hook. Each
//! session tries the look-ups at its beginning and reports the number of the others in its meter
//! page.

use crate::Shared;
use crate::identity::source::Source;
use deepres_model::admin::{SessionStatus, TenantStatus};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

/// Logs each such process once, until the daemon ends.
pub async fn serve(shared: Rc<Shared>) {
    let (mut published, mut told) = (shared.status.subscribe(), BTreeSet::new());
    while published.changed().await.is_ok() {
        let status = Arc::clone(&published.borrow_and_update());
        for (tenant, session) in news(&status.tenants, &mut told) {
            if shared.lines.allows(&Source::User(tenant.uid)) {
                tracing::error!(
                    tenant = tenant.name,
                    pid = session.pid,
                    ways = session.lost_ways,
                    "a process finds the driver's own cuLaunchKernel: its launches bypass deepres and its limits; check the driver by `deepres doctor --driver FILE`"
                );
            }
        }
    }
}

/// Returns the sessions with such look-ups that are not in `told`. `told` then has the sessions of
/// all such processes.
fn news<'a>(
    tenants: &'a [TenantStatus],
    told: &mut BTreeSet<u64>,
) -> Vec<(&'a TenantStatus, &'a SessionStatus)> {
    let all = tenants.iter().flat_map(|tenant| tenant.sessions.iter().map(move |session| (tenant, session)));
    let lost: Vec<_> = all.filter(|(_, session)| session.lost_ways > 0).collect();
    let before = std::mem::replace(told, lost.iter().map(|(_, session)| session.id).collect());
    lost.into_iter().filter(|(_, session)| !before.contains(&session.id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_with_a_lost_look_up_is_news_once() {
        let session = |id, lost_ways| SessionStatus {
            id,
            pid: 7,
            container: None,
            client: String::new(),
            lost_ways,
            gpus: Vec::new(),
        };
        let with = |sessions| [TenantStatus { sessions, ..TenantStatus::default() }];
        let mut told = BTreeSet::new();
        let mut ids = |sessions: Vec<SessionStatus>| -> Vec<u64> {
            news(&with(sessions), &mut told).into_iter().map(|(_, session)| session.id).collect()
        };
        assert_eq!(ids(vec![session(1, 1), session(2, 0)]), [1]);
        assert_eq!(ids(vec![session(1, 1), session(2, 0), session(3, 4)]), [3]);
        assert!(ids(Vec::new()).is_empty());
    }
}
