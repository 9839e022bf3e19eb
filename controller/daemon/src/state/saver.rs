//! Keeps the state file up to date.

use super::{Saved, State, gather};
use crate::Shared;
use crate::gpus::answers;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// The time between two writes of a changed state. If the daemon and tenants die together, the file
/// lacks at most this much time of these tenants.
const PERIOD: Duration = Duration::from_secs(1);
/// The time between two writes of the state while no session comes or goes and no tenant wants a
/// GPU. For a thousand idle processes, gathering the state takes longer than all other work.
const RESTING_PERIOD: Duration = Duration::from_secs(3);
/// The time between two writes of the state soon after the start, once all processes of the
/// previous daemon are back. So accounts advance even if daemons are killed again and again right
/// after their start.
const EARLY_PERIOD: Duration = Duration::from_millis(125);
/// The time after the start in which [`EARLY_PERIOD`] applies.
const EARLY: Duration = Duration::from_secs(2);
/// The time after the start for which the daemon waits for the return of earlier tenants. The
/// tenants' processes try to reconnect every quarter of a second.
const RETURN_LIMIT: Duration = Duration::from_secs(10);

/// Writes the state and reports to the service manager, again and again. Never returns.
pub async fn serve(shared: Rc<Shared>) {
    let began = Instant::now();
    let mut due = began;
    loop {
        shared.registry.borrow_mut().tenancy.bury_the_dead();
        let mut is_alive = false;
        if shared.has_stirred() || Instant::now() >= due {
            let outcome = save(&shared).await;
            is_alive = outcome != Saved::Nothing;
            let rests = (outcome == Saved::Already).then(|| RESTING_PERIOD.min(shared.service.period()));
            due = Instant::now() + rests.unwrap_or(Duration::ZERO);
        }
        shared.service.report(&shared.registry.borrow().tenancy.summary(), is_alive);
        pause(&shared, began).await;
    }
}

/// Waits until the next time to write the state.
async fn pause(shared: &Shared, began: Instant) {
    let saved = Instant::now();
    let left = || PERIOD.min(shared.service.period()).saturating_sub(saved.elapsed());
    while began.elapsed() < EARLY && !left().is_zero() {
        sleep(EARLY_PERIOD.min(left())).await;
        // Returning processes used GPU time while no daemon ran. The arbiters charge this time when
        // all are back, or when the daemon writes the state.
        if shared.registry.borrow().tenancy.returning().is_empty() {
            return;
        }
    }
    sleep(left()).await;
}

/// Ends the wait for tenants of the previous daemon, after `RETURN_LIMIT`.
pub async fn stop_waiting(shared: Rc<Shared>) {
    sleep(RETURN_LIMIT).await;
    shared.registry.borrow_mut().tenancy.stop_waiting();
    shared.note_change();
}

/// Writes the present state. Returns the outcome. A slow disk delays no other task.
pub async fn save(shared: &Shared) -> Saved {
    // This line takes the lock before it gathers the state. So the file that is written last has
    // the newest state.
    let mut file = Arc::clone(&shared.state).lock_owned().await;
    // No counter of this status is above the counters that this function saves.
    let status = Arc::clone(&shared.status.borrow());
    let pending = shared.registry.borrow().tenancy.gpus().snapshots();
    let Some(snapshots) = answers(pending).await else {
        tracing::error!("the daemon does not write the state: a GPU's arbiter does not answer");
        return Saved::Nothing;
    };
    let mut state = {
        let registry = shared.registry.borrow();
        let state =
            gather::state(file.boot(), registry.tenancy.gpus(), registry.tenancy.tenants(), &snapshots);
        State { allocations: registry.allocations().iter().cloned().collect(), ..state }
    };
    let board = shared.watcher.board();
    (state.adopted, state.held) = (board.adopted, board.held);
    state.suspended = shared.residency.borrow().suspended();
    (state.iterations, state.plans) = shared.plans.borrow().saved(&shared.registry.borrow());
    let saved = tokio::task::spawn_blocking(move || file.save(state))
        .await
        .unwrap_or_else(|error| Saved::Failed(error.to_string()));
    // After a failed write too, because metrics that stand still would hide the present.
    if let Some(http) = &shared.http {
        http.show(status);
    }
    saved
}
