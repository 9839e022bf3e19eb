//! Access to the state. The access locks the state, and repairs the state if the lock's last holder
//! died. Then the access computes the state up to the present.

use crate::{
    Clock,
    journal::{self, Logged, Memory},
    layout::State,
    liveness,
    lock::Found,
    locker,
    shared::Shared,
    sim,
};
use std::ops::{Deref, DerefMut};

/// The condition under which the engine takes a census: it counts the living processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Census {
    /// The engine counts the processes now if the last census is older than
    /// [`liveness::interval_ns`].
    WhenDue,
    /// The engine counts the processes now in any case.
    Now,
}

/// The locked state.
pub struct Guard<'a> {
    shared: &'a Shared,
    memory: Logged<'a>,
    now_ns: u64,
}

impl<'a> Guard<'a> {
    /// Locks the state, computes it up to the present, and returns it.
    pub fn lock(shared: &'a Shared, clock: &Clock, own: Option<usize>, census: Census) -> Self {
        let state: &'a State = &shared.state;
        let is_alive = |number| locker::is_alive(&shared.alive, number);
        let found = state.header.lock.lock(shared.locker.number(), is_alive);
        if found == Found::HolderDied {
            // If this process dies before the roll-back, the next holder repairs the state instead.
            journal::roll_back(state);
        }
        let mut guard = Guard { shared, memory: Logged::new(state), now_ns: clock.now_ns() };
        if found == Found::HolderDied {
            sim::wake_everything(&mut guard.memory, state);
        }
        guard.count_the_living(own, census == Census::Now || found == Found::HolderDied);
        sim::advance(&mut guard.memory, state, &shared.config, guard.now_ns);
        guard
    }

    fn count_the_living(&mut self, own: Option<usize>, now: bool) {
        let state = self.state();
        let counted_ns = state.header.liveness_ns.load();
        let since_ns = self.now_ns.saturating_sub(counted_ns);
        let may_be_due = since_ns >= liveness::INTERVAL_NS;
        let interval_ns = if may_be_due { liveness::interval_ns(&self.memory, state) } else { u64::MAX };
        if now || since_ns >= interval_ns {
            let death_ns = if now { self.now_ns } else { counted_ns + interval_ns };
            liveness::reap(&mut self.memory, state, &self.shared.config, &self.shared.alive, own, death_ns);
            self.memory.put(&state.header.liveness_ns, self.now_ns);
            self.memory.commit();
        }
    }

    /// Returns the present time, up to which the state is computed.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Returns the state.
    pub fn state(&self) -> &'a State {
        &self.shared.state
    }

    /// Undoes the open transaction.
    pub fn abort(&mut self) {
        journal::roll_back(self.state());
        self.memory = Logged::new(self.state());
    }
}

impl<'a> Deref for Guard<'a> {
    type Target = Logged<'a>;

    fn deref(&self) -> &Logged<'a> {
        &self.memory
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.memory
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        // The journal is empty here except after a panic.
        if self.state().journal.len.load() != 0 {
            journal::roll_back(self.state());
        }
        self.state().header.lock.unlock();
    }
}
