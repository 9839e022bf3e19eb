//! Keeps the state file up to date.

use super::{Saved, gather};
use crate::Shared;
use crate::gpus::answers;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// How often the state is written if it changed. A file that a killed daemon leaves lacks at most
/// this much of tenants that died together with the daemon.
const PERIOD: Duration = Duration::from_secs(1);
/// The same while no session comes or goes and no tenant wants a GPU. To gather the state of a
/// thousand idle processes takes longer than all other work for them.
const RESTING_PERIOD: Duration = Duration::from_secs(3);
/// The same soon after the start, once all processes of the previous daemon are back. So accounts
/// advance even if daemons are killed again and again right after their start.
const EARLY_PERIOD: Duration = Duration::from_millis(125);
/// The time after the start in which [`EARLY_PERIOD`] applies.
const EARLY: Duration = Duration::from_secs(2);
/// How long after the start the daemon waits for the return of earlier tenants. Their processes try
/// to reconnect every quarter of a second.
const RETURN_LIMIT: Duration = Duration::from_secs(10);

/// Writes the state for ever, and reports to the service manager.
pub async fn serve(shared: Rc<Shared>) {
    let began = Instant::now();
    let mut due = began;
    loop {
        shared.registry.borrow_mut().bury_the_dead();
        let mut is_alive = false;
        if shared.has_stirred() || Instant::now() >= due {
            let outcome = save(&shared).await;
            is_alive = outcome != Saved::Nothing;
            let rests = (outcome == Saved::Already).then(|| RESTING_PERIOD.min(shared.service.period()));
            due = Instant::now() + rests.unwrap_or(Duration::ZERO);
        }
        shared.service.report(&shared.registry.borrow().summary(), is_alive);
        pause(&shared, began).await;
    }
}

/// Waits until the state is to be written again.
async fn pause(shared: &Shared, began: Instant) {
    let saved = Instant::now();
    let left = || PERIOD.min(shared.service.period()).saturating_sub(saved.elapsed());
    while began.elapsed() < EARLY && !left().is_zero() {
        sleep(EARLY_PERIOD.min(left())).await;
        // The use of returning processes meanwhile is charged in equal parts when all are back, or
        // when the state is written.
        if shared.registry.borrow().returning().is_empty() {
            return;
        }
    }
    sleep(left()).await;
}

/// Ends the wait for tenants from before the daemon's start.
pub async fn stop_waiting(shared: Rc<Shared>) {
    sleep(RETURN_LIMIT).await;
    shared.registry.borrow_mut().stop_waiting();
    shared.note_change();
}

/// Writes the present state. A slow disk delays no other task.
pub async fn save(shared: &Shared) -> Saved {
    // Locked before the state is gathered, so that the file written last has the newest state.
    let mut file = Arc::clone(&shared.state).lock_owned().await;
    let pending = shared.registry.borrow().gpus().snapshots();
    let Some(snapshots) = answers(pending).await else {
        tracing::error!("a GPU's arbiter does not answer: the state is not written");
        return Saved::Nothing;
    };
    let mut state = {
        let registry = shared.registry.borrow();
        gather::state(file.boot(), registry.gpus(), registry.tenants(), &snapshots)
    };
    let board = shared.watcher.board();
    (state.adopted, state.held) = (board.adopted, board.held);
    state.away = shared.residency.borrow().away();
    tokio::task::spawn_blocking(move || file.save(state))
        .await
        .unwrap_or_else(|error| Saved::Failed(error.to_string()))
}
