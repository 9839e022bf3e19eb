//! Memory that graphs allocate as they run: what a device's graphs have reserved counts, from the first upload or launch on and until it is trimmed.
//!
//! What either may need at most is known when its graph is made executable: the sum of what its nodes allocate. So much is promised before, less
//! what the driver has to spare; afterwards the driver says what there is.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use deepres_abi::driver::result::CUDA_ERROR_OUT_OF_MEMORY;
use deepres_abi::driver::types::CUgraph;
use deepres_abi::ledger::Refused;
use deepres_abi::meter::MemoryKind;

use super::charge;
use super::held::Held;
use super::site::Site;
use super::table::Plain;
use crate::driver::memory::{self, ExecHandle};
use crate::meter::gpu::Gpu;
use crate::process::Process;
use crate::session::Session;

/// Whether a graph of the process ever had such a node. While none had, launches pay one load for it.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// A graph of the process has such a node.
pub fn note() {
    IS_USED.store(true, Ordering::Release);
}

/// Whether any has.
#[inline(always)]
pub fn is_used() -> bool {
    IS_USED.load(Ordering::Relaxed)
}

/// What a launch may need: device and bytes.
type Needs = Vec<(usize, u64)>;

/// What takes the memory.
#[derive(Debug, Clone, Copy)]
pub enum Taker {
    /// One that is executable.
    Executable(ExecHandle),
    /// One that is uploaded as it is made executable.
    Graph(CUgraph),
}

fn needs_of(graph: CUgraph) -> Needs {
    let mut needs = Needs::new();
    memory::allocations_of(graph, &mut |device, bytes| {
        let Ok(ordinal) = usize::try_from(device) else { return };
        let bytes = charge::blocks(bytes);
        match needs.iter_mut().find(|(other, _)| *other == ordinal) {
            Some((_, sum)) => *sum = sum.saturating_add(bytes),
            None => needs.push((ordinal, bytes)),
        }
    });
    needs
}

/// See the module.
#[derive(Default)]
pub struct Graphs {
    needs: Mutex<Plain<ExecHandle, Needs>>,
    /// By device. Nobody who has it waits for anybody.
    held: Mutex<Vec<Held>>,
    /// Had by the one that may count on what the driver has to spare: another one at the same time would count on the same.
    spare: Mutex<()>,
}

impl Graphs {
    fn needs(&self) -> std::sync::MutexGuard<'_, Plain<ExecHandle, Needs>> {
        self.needs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Vec<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `graph` was made executable.
    pub fn instantiated(&self, graph: CUgraph, exec: ExecHandle) {
        let needs = needs_of(graph);
        let mut all = self.needs();
        // The driver may have given the handle of one that is gone.
        all.remove(&exec);
        if !needs.is_empty() {
            all.insert(exec, needs);
        }
    }

    /// `exec` is gone.
    pub fn forget(&self, exec: ExecHandle) {
        self.needs().remove(&exec);
    }

    /// Launches or uploads `taker` by `call`, and again each time that others made room that the GPU lacked. Before it is refused `give_back` has the process give back what it does not use on the device that it is told.
    ///
    /// # Errors
    /// The device without room, what was asked for, and [`Refused`].
    pub fn take<'p>(
        &self,
        process: &'p Process,
        give_back: impl Fn(usize),
        taker: Taker,
        mut call: impl FnMut() -> u32,
    ) -> Result<u32, (usize, u64, Site<'p>, Refused)> {
        let needs = match taker {
            Taker::Executable(exec) => self.needs().get(&exec).cloned().unwrap_or_default(),
            Taker::Graph(graph) => needs_of(graph),
        };
        loop {
            let result = self.take_once(process, &give_back, &needs, &mut call)?;
            let lacks = |&(ordinal, bytes): &(usize, u64)| {
                let spare_bytes = memory::graphs_stock(ordinal).map_or(0, |stock| stock.spare_bytes());
                let missing_bytes = bytes.saturating_sub(spare_bytes);
                Site::of(process, ordinal).is_some_and(|site| site.await_room(missing_bytes))
            };
            if result != CUDA_ERROR_OUT_OF_MEMORY || !needs.iter().any(lacks) {
                return Ok(result);
            }
        }
    }

    fn take_once<'p>(
        &self,
        process: &'p Process,
        give_back: &impl Fn(usize),
        needs: &Needs,
        call: &mut impl FnMut() -> u32,
    ) -> Result<u32, (usize, u64, Site<'p>, Refused)> {
        let spare = self.spare.try_lock().ok();
        let mut promises = Vec::new();
        for &(ordinal, bytes) in needs {
            let Some(site) = Site::of(process, ordinal) else { continue };
            let stock = spare.as_ref().and_then(|_| memory::graphs_stock(ordinal));
            let spare_bytes = stock.map_or(0, |stock| stock.spare_bytes());
            let promise = site.reserve(bytes.saturating_sub(spare_bytes)).or_else(|_| {
                give_back(ordinal);
                site.reserve(bytes)
            });
            match promise {
                Ok(promise) => promises.push((ordinal, site, promise)),
                Err(refused) => {
                    promises.into_iter().for_each(|(_, site, promise)| site.withdraw(promise));
                    return Err((ordinal, bytes, site, refused));
                }
            }
        }
        let result = call();
        let mut held = self.held();
        for (ordinal, site, promise) in promises {
            match memory::graphs_stock(ordinal) {
                Some(stock) => of(&mut held, ordinal).set(&site, stock.reserved_bytes, promise),
                None => site.withdraw(promise),
            }
        }
        Ok(result)
    }

    /// Asks what there is: something may have been freed or trimmed.
    pub fn refresh(&self, process: &Process) {
        if !is_used() {
            return;
        }
        let mut held = self.held();
        for ordinal in 0..held.len() {
            if let Some(site) = Site::of(process, ordinal) {
                refresh_one(&mut held, ordinal, &site);
            }
        }
    }

    /// Has a device's graphs give back what they do not use.
    pub fn trim(&self, process: &Process, ordinal: usize) {
        if is_used() {
            memory::trim_graphs(ordinal);
            self.refresh(process);
        }
    }

    /// Moves what is held to a new ledger of the session's.
    pub fn move_to(&self, session: &Session, gpus: &[Gpu]) {
        self.held().iter_mut().for_each(|held| held.follow_on(session, gpus));
    }
}

fn of(held: &mut Vec<Held>, ordinal: usize) -> &mut Held {
    while held.len() <= ordinal {
        let next = held.len();
        held.push(Held::nothing(MemoryKind::Graph, next));
    }
    &mut held[ordinal]
}

fn refresh_one(held: &mut Vec<Held>, ordinal: usize, site: &Site<'_>) {
    if let Some(stock) = memory::graphs_stock(ordinal) {
        of(held, ordinal).set(site, stock.reserved_bytes, None);
    }
}
