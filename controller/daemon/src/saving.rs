//! Keeps the state file up with what happens.

use super::Shared;
use super::state::Saved;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// How often the state is written, if it changed: what a killed daemon's file lacks at most of tenants that died with it.
const PERIOD: Duration = Duration::from_secs(1);
/// The same while nobody comes, goes or wants a GPU: gathering what a thousand idle processes did takes longer than all else that is done for them.
const RESTING_PERIOD: Duration = Duration::from_secs(3);
/// The same soon after the start, once all processes of the daemon before are back: of daemons that are killed again and again, as soon as they were
/// started, no account stands still.
const EARLY_PERIOD: Duration = Duration::from_millis(125);
/// What is soon after the start.
const EARLY: Duration = Duration::from_secs(2);
/// Arbiters answer within milliseconds; this is for one that is gone.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// How long after the start a tenant is waited for that was here before. Processes try every quarter of a second to come back.
const RETURN_LIMIT: Duration = Duration::from_secs(10);

/// Writes the state, for ever, and tells the service manager how things are.
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

/// Until the state is to be written again.
async fn pause(shared: &Shared, began: Instant) {
    let saved = Instant::now();
    let left = || PERIOD.min(shared.service.period()).saturating_sub(saved.elapsed());
    while began.elapsed() < EARLY && !left().is_zero() {
        sleep(EARLY_PERIOD.min(left())).await;
        // What they used meanwhile is charged in equal parts once all are here, or when it is written.
        if shared.registry.borrow().returning().is_empty() {
            return;
        }
    }
    sleep(left()).await;
}

/// Ends the waiting for who was here before the daemon started.
pub async fn stop_waiting(shared: Rc<Shared>) {
    sleep(RETURN_LIMIT).await;
    shared.registry.borrow_mut().stop_waiting();
    shared.note_change();
}

/// Writes the state as it is now. A disk may take its time, for which nobody else waits.
pub async fn save(shared: &Shared) -> Saved {
    // Before the state is gathered: what is written last is what is newest.
    let mut file = Arc::clone(&shared.state).lock_owned().await;
    let pending = shared.registry.borrow().snapshots();
    let mut snapshots = Vec::new();
    for snapshot in pending {
        match timeout(ANSWER_LIMIT, snapshot).await {
            Ok(Ok(snapshot)) => snapshots.push(snapshot),
            _ => {
                tracing::error!("a GPU's arbiter does not answer: the state is not written");
                return Saved::Nothing;
            }
        }
    }
    let mut state = shared.registry.borrow().saved(file.boot(), &snapshots);
    let board = shared.watcher.board();
    (state.adopted, state.held) = (board.adopted, board.held);
    state.away = shared.residency.borrow().away();
    tokio::task::spawn_blocking(move || file.save(state))
        .await
        .unwrap_or_else(|error| Saved::Failed(error.to_string()))
}
