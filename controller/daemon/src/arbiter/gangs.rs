//! The board on which arbiters agree on gangs: [`deepres_policy::gang`] behind a lock, and the
//! bells of the arbiters.
//!
//! An arbiter holds the lock for one decision, and never sleeps while it holds the lock.

use super::events::Bell;
use deepres_policy::arbiter::Peers;
use deepres_policy::gang::{Board, Gangs, Order, Post};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The board by which the arbiters of a host agree on the turns of gangs, behind a lock.
#[derive(Debug)]
pub struct GangBoard(Mutex<State>);

/// The board, as the arbiter of one GPU uses it.
pub struct OfGpu<'a> {
    /// The board by which all arbiters of the host agree on the turns of gangs.
    pub board: &'a GangBoard,
    /// The daemon's number for the GPU.
    pub gpu: usize,
}

impl Peers for OfGpu<'_> {
    fn exchange(&mut self, now_ns: u64, post: Post) -> (Order, Gangs) {
        self.board.exchange(self.gpu, now_ns, post)
    }
}

#[derive(Debug)]
struct State {
    board: Board,
    bells: Vec<Option<Bell>>,
    /// The present order for each GPU.
    orders: Vec<Order>,
    /// The order that each arbiter took last.
    told: Vec<Order>,
}

impl GangBoard {
    /// Returns a board for `gpus` GPUs.
    pub fn new(gpus: usize) -> Self {
        let orders = vec![Order::Apart; gpus];
        let told = orders.clone();
        Self(Mutex::new(State { board: Board::new(gpus), bells: vec![None; gpus], orders, told }))
    }

    /// Registers the bell that wakes the arbiter of `gpu` when the board has a new order for this
    /// arbiter.
    pub fn join(&self, gpu: usize, bell: Bell) {
        if let Some(place) = self.lock().bells.get_mut(gpu) {
            *place = Some(bell);
        }
    }

    /// Posts the state of a GPU. Returns the order for the GPU, and the tenants that get leases on
    /// the GPU only by such orders.
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

    /// Removes the arbiter of `gpu`, which ends. So no gang waits for this GPU.
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
        // A panic cannot leave a change half done. If the board is slightly wrong, the next posts
        // correct the board.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the bells of the arbiters that have a new order since this post and have not taken
    /// the order yet.
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
