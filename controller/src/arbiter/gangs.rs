//! Where arbiters agree on tenants that have several GPUs at once: [`crate::policy::gang`] behind a lock, and whom to ring.
//!
//! The lock is held for the length of a decision and never while anybody sleeps.

use super::events::Bell;
use crate::policy::TenantId;
use crate::policy::gang::{Board, Order, Post};
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The board of a host.
#[derive(Debug)]
pub struct GangBoard(Mutex<State>);

#[derive(Debug)]
struct State {
    board: Board,
    bells: Vec<Option<Bell>>,
    /// What each arbiter was told last.
    told: Vec<Order>,
}

impl GangBoard {
    /// A board for so many GPUs.
    pub fn new(gpus: usize) -> Self {
        let state =
            State { board: Board::new(gpus), bells: vec![None; gpus], told: vec![Order::Apart; gpus] };
        Self(Mutex::new(state))
    }

    /// What an arbiter is to be rung by when there is another order for it.
    pub fn join(&self, gpu: usize, bell: Bell) {
        if let Some(place) = self.lock().bells.get_mut(gpu) {
            *place = Some(bell);
        }
    }

    /// Posts what is seen of a GPU. Returns the order for it, and which tenants have it by the board alone.
    pub fn exchange(&self, gpu: usize, now_ns: u64, post: Post) -> (Order, BTreeSet<TenantId>) {
        let mut state = self.lock();
        let State { board, bells, told } = &mut *state;
        let orders = |board: &Board| (0..board.gpus()).map(|gpu| board.order(gpu)).collect::<Vec<_>>();
        let before = orders(board);
        board.post(gpu, now_ns, post);
        let after = orders(board);
        // Each is rung once for an order that it does not know yet.
        let others = (0..after.len()).filter(|other| *other != gpu);
        let rung: Vec<Bell> = others
            .filter(|other| after[*other] != before[*other] && after[*other] != told[*other])
            .filter_map(|other| bells[other].clone())
            .collect();
        let order = board.order(gpu);
        if let Some(told) = told.get_mut(gpu) {
            *told = order;
        }
        let gangs = board.gangs(gpu, now_ns);
        drop(state);
        rung.iter().for_each(Bell::ring);
        (order, gangs)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing is left half done by whoever panicked: a board that is a little off is put right by the next posts.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
