//! Where arbiters agree on tenants that have several GPUs at once: [`deepres_policy::gang`] behind a lock, and whom to ring.
//!
//! The lock is held for the length of a decision and never while anybody sleeps.

use super::events::Bell;
use deepres_policy::gang::{Board, Gangs, Order, Post};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The board of a host.
#[derive(Debug)]
pub struct GangBoard(Mutex<State>);

#[derive(Debug)]
struct State {
    board: Board,
    bells: Vec<Option<Bell>>,
    /// The orders that there are.
    orders: Vec<Order>,
    /// What each arbiter was told last.
    told: Vec<Order>,
}

impl GangBoard {
    /// A board for so many GPUs.
    pub fn new(gpus: usize) -> Self {
        let orders = vec![Order::Apart; gpus];
        let told = orders.clone();
        Self(Mutex::new(State { board: Board::new(gpus), bells: vec![None; gpus], orders, told }))
    }

    /// What an arbiter is to be rung by when there is another order for it.
    pub fn join(&self, gpu: usize, bell: Bell) {
        if let Some(place) = self.lock().bells.get_mut(gpu) {
            *place = Some(bell);
        }
    }

    /// Posts what is seen of a GPU. Returns the order for it, and which tenants have it by the board alone.
    pub fn exchange(&self, gpu: usize, now_ns: u64, post: Post) -> (Order, Gangs) {
        let mut state = self.lock();
        state.board.post(gpu, now_ns, post);
        let rung = state.others_to_ring(gpu);
        let order = state.board.tell(gpu);
        if let Some(told) = state.told.get_mut(gpu) {
            *told = order;
        }
        let gangs = state.board.gangs(gpu);
        drop(state);
        rung.iter().for_each(Bell::ring);
        (order, gangs)
    }

    /// An arbiter ends: nobody is to wait for its GPU.
    pub fn leave(&self, gpu: usize, now_ns: u64) {
        let mut state = self.lock();
        if let Some(bell) = state.bells.get_mut(gpu) {
            *bell = None;
        }
        state.board.post(gpu, now_ns, Post::default());
        let rung = state.others_to_ring(gpu);
        drop(state);
        rung.iter().for_each(Bell::ring);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing is left half done by whoever panicked: a board that is a little off is put right by the next posts.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whom to ring after a post: each once for an order that it does not know yet.
    fn others_to_ring(&mut self, gpu: usize) -> Vec<Bell> {
        let after: Vec<Order> = (0..self.board.gpus()).map(|gpu| self.board.order(gpu)).collect();
        let before = std::mem::replace(&mut self.orders, after);
        let others = (0..before.len()).filter(|other| *other != gpu);
        others
            .filter(|other| {
                let order = self.orders[*other];
                order != before[*other] && order != self.told[*other]
            })
            .filter_map(|other| self.bells[other].clone())
            .collect()
    }
}
