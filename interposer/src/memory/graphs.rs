//! The memory that graphs allocate while they run. For each device, the interposer charges the
//! memory that the driver has reserved for graphs. The charge begins with the first upload or
//! launch, and ends when the driver trims the memory.
//!
//! When the job makes a graph executable, the interposer computes the most memory that an upload or
//! launch of the graph can need ([`super::needs`]). Before the upload or launch, the interposer
//! reserves that amount, less the driver's spare memory and the memory that the graph itself left
//! allocated. Afterwards the driver reports the actual amount.
//!
//! A launch that relies on spare memory holds a [`Claim`] during the call, so no other launch
//! relies on the same memory. Until the claim ends, the account still includes freed or trimmed
//! memory.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use deepres_abi::driver::result::{CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS};
use deepres_abi::driver::types::CUgraph;
use deepres_abi::grant::NO_LIMIT;
use deepres_abi::meter::MemoryKind;

use super::account::Reservation;
use super::held::Held;
use super::needs::Needs;
use super::site::{Promise, Site};
use super::{Plain, Why, lock};
use crate::driver::memory::{self, ExecHandle, Stock};
use crate::lock_order::{Mutex, Rank};
use crate::meter::gpu::Gpu;
use crate::os::Patience;
use crate::process::Process;
use crate::session::Session;

/// The time for which a launch waits for another launch's claim on the spare memory before a
/// refusal, ns.
const PATIENCE_NS: u64 = 1_000_000_000;

/// Whether any graph of the process ever had a node that allocates or frees memory.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// The number of places of [`NEEDY`], a power of two.
const PLACES: usize = 256;
/// The number of executable graphs with memory nodes, by a hash of their handles. A launch of a
/// graph without memory nodes pays only one load, unless another graph has the same hash.
static NEEDY: [AtomicU32; PLACES] = [const { AtomicU32::new(0) }; PLACES];

/// Returns the place of an executable graph in [`NEEDY`].
#[inline(always)]
fn place(exec: ExecHandle) -> &'static AtomicU32 {
    /// A multiplier that mixes the bits of a handle. Handles are addresses, whose low bits are
    /// equal.
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    let hash = (exec.0 as u64).wrapping_mul(MIX) >> (u64::BITS - PLACES.ilog2());
    &NEEDY[hash as usize & (PLACES - 1)]
}

/// Returns whether launches of an executable graph can need memory.
#[inline(always)]
pub fn may_need(exec: ExecHandle) -> bool {
    place(exec).load(Ordering::Relaxed) != 0
}

/// Records that a graph of the process has a node that allocates or frees memory.
pub fn note() {
    IS_USED.store(true, Ordering::Release);
}

/// Returns whether any graph of the process ever had a node that allocates or frees memory.
#[inline(always)]
pub fn is_used() -> bool {
    IS_USED.load(Ordering::Relaxed)
}

/// The call that needs the memory of graphs.
#[derive(Debug, Clone, Copy)]
pub enum Taker {
    /// A launch of this executable graph.
    Launch(ExecHandle),
    /// An upload of this executable graph.
    Upload(ExecHandle),
    /// An upload of a graph while the job makes the graph executable.
    Graph(CUgraph),
}

/// The right of one launch or upload to rely on the spare memory of graphs. `devices` has a bit for
/// each device.
struct Claim<'g> {
    claims: &'g AtomicU64,
    devices: u64,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claims.fetch_and(!self.devices, Ordering::SeqCst);
    }
}

/// A reservation for a graph: the device's ordinal, the account to charge, and the reserved bytes.
type Promised<'p> = (usize, Site<'p>, Promise);
/// A device without room for the memory of a graph.
pub struct Full<'p> {
    /// The GPU's ordinal in this process.
    pub ordinal: usize,
    /// The bytes for which the graph asks.
    pub bytes: u64,
    /// The account to which the interposer charges the memory.
    pub site: Site<'p>,
    /// The reason for the lack of room.
    pub(super) why: Why,
}

/// The changes that a launch in progress makes to `Graphs::live`.
struct Marks {
    /// Addresses that the launch allocates and that were free before.
    begun: Vec<u64>,
    /// Addresses that the launch frees and that were allocated before.
    freed: Vec<u64>,
}

/// The memory of all graphs of the process: the charge of each device, the claims on spare memory,
/// and the addresses that launches left allocated.
#[derive(Default)]
pub struct Graphs {
    needs: Mutex<{ Rank::GraphNeeds as u8 }, Plain<ExecHandle, Needs>>,
    /// The charge of each device. A thread that holds this lock waits for no other thread.
    held: Mutex<{ Rank::GraphCharges as u8 }, Vec<Held>>,
    /// The devices with a [`Claim`], as bits.
    claims: AtomicU64,
    /// The addresses of memory that launches left allocated and that no thread has freed since. The
    /// value is false while the launch is in progress.
    live: Mutex<{ Rank::GraphAddresses as u8 }, Plain<u64, bool>>,
}

fn insert(all: &mut Plain<ExecHandle, Needs>, exec: ExecHandle, needs: Needs) {
    if all.insert(exec, needs).is_none() {
        place(exec).fetch_add(1, Ordering::Relaxed);
    }
}

fn remove(all: &mut Plain<ExecHandle, Needs>, exec: ExecHandle) -> Option<Needs> {
    let removed = all.remove(&exec);
    if removed.is_some() {
        place(exec).fetch_sub(1, Ordering::Relaxed);
    }
    removed
}

fn needs_of(graph: CUgraph) -> Needs {
    Needs::of(&memory::memory_nodes_of(graph))
}

fn bit(ordinal: usize) -> u64 {
    u32::try_from(ordinal).ok().and_then(|ordinal| 1_u64.checked_shl(ordinal)).unwrap_or(0)
}

impl Graphs {
    /// Records that the job made `graph` executable.
    pub fn instantiated(&self, graph: CUgraph, exec: ExecHandle) {
        let needs = needs_of(graph);
        let mut all = lock(&self.needs);
        // `exec` can be the reused handle of a destroyed graph.
        remove(&mut all, exec);
        if !needs.is_empty() {
            insert(&mut all, exec, needs);
        }
    }

    /// Removes the record of `exec` before the job destroys `exec`, and returns the needs of
    /// `exec`. If the driver does not destroy `exec`, the caller passes the result to
    /// [`Self::put_back`].
    pub fn forget(&self, exec: ExecHandle) -> Option<Needs> {
        remove(&mut lock(&self.needs), exec)
    }

    /// Restores the record of `exec`, because the driver did not destroy `exec`.
    pub fn put_back(&self, exec: ExecHandle, needs: Needs) {
        let mut all = lock(&self.needs);
        if !all.contains_key(&exec) {
            insert(&mut all, exec, needs);
        }
    }

    /// Records that a new node allocates at `address`. So earlier memory at this address is gone.
    pub fn added(&self, address: u64) {
        lock(&self.live).remove(&address);
    }

    /// Removes `address` before the job frees it. Returns a value if a graph left memory there. If
    /// the free fails, the caller passes the value to [`Self::cancel_free`].
    pub fn begin_free(&self, address: u64) -> Option<bool> {
        if is_used() { lock(&self.live).remove(&address) } else { None }
    }

    /// Restores `address`, because the driver did not free the memory at `address`.
    pub fn cancel_free(&self, address: u64, is_there: bool) {
        lock(&self.live).insert(address, is_there);
    }

    /// Forgets all memory that graphs left allocated, because a context has ended.
    pub fn forget_live(&self) {
        if is_used() {
            lock(&self.live).clear();
        }
    }

    fn is_live(&self, address: u64) -> bool {
        lock(&self.live).get(&address) == Some(&true)
    }

    fn begin_launch(&self, needs: &Needs) -> Marks {
        let mut live = lock(&self.live);
        let mut freed = needs.freed.clone();
        freed.retain(|address| live.remove(address).is_some());
        let mut begun: Vec<u64> = needs.kept().collect();
        begun.retain(|address| !live.contains_key(address));
        live.extend(begun.iter().map(|address| (*address, false)));
        Marks { begun, freed }
    }

    fn end_launch(&self, marks: Marks, is_launched: bool) {
        let mut live = lock(&self.live);
        for address in marks.begun {
            // Another thread may already have freed the address.
            if is_launched {
                live.entry(address).and_modify(|is_there| *is_there = true);
            } else if live.get(&address) == Some(&false) {
                live.remove(&address);
            }
        }
        if !is_launched {
            live.extend(marks.freed.into_iter().map(|address| (address, true)));
        }
    }

    fn claim(&self, needs: &Needs) -> Option<Claim<'_>> {
        let devices = needs.devices.iter().fold(0, |all, need| all | bit(need.ordinal));
        let is_free = |claims: u64| (claims & devices == 0).then_some(claims | devices);
        let claimed = self.claims.fetch_update(Ordering::SeqCst, Ordering::SeqCst, is_free);
        claimed.ok().map(|_| Claim { claims: &self.claims, devices })
    }

    fn await_claim(&self, needs: &Needs) -> Option<Claim<'_>> {
        let mut patience = Patience::default();
        loop {
            let claim = self.claim(needs);
            if claim.is_some() || !patience.goes_on(PATIENCE_NS) {
                return claim;
            }
        }
    }

    fn is_claimed(&self, ordinal: usize) -> bool {
        self.claims.load(Ordering::SeqCst) & bit(ordinal) != 0
    }

    /// Returns the memory of a device's graphs, for the holder of a claim; `None` without a claim.
    /// Leaves out reserved memory without a charge, because it belongs to another launch.
    fn claimed_stock(&self, claim: Option<&Claim<'_>>, ordinal: usize) -> Option<Stock> {
        claim.filter(|claim| claim.devices & bit(ordinal) != 0)?;
        let mut held = lock(&self.held);
        let stock =
            memory::graphs_stock(ordinal).unwrap_or_else(|| self.likely_stock(of(&mut held, ordinal)));
        Some(Stock { reserved_bytes: stock.reserved_bytes.min(of(&mut held, ordinal).bytes), ..stock })
    }

    /// Returns an estimate of the memory of a device's graphs, for a driver that does not report
    /// this memory. The estimate has the charge as reserved memory. While any memory of a launch is
    /// still allocated, the estimate takes the whole charge for used memory, and nothing of it for
    /// spare memory.
    fn likely_stock(&self, held: &Held) -> Stock {
        let is_any_live = lock(&self.live).values().any(|is_there| *is_there);
        Stock { reserved_bytes: held.bytes, used_bytes: if is_any_live { held.bytes } else { 0 } }
    }

    /// Launches or uploads `taker` by `call`, and returns the result. If the GPU lacks memory,
    /// waits until other tenants have made room, and calls again. Before a refusal, `give_back`
    /// frees unused memory of the process on the given device.
    ///
    /// # Errors
    /// [`Full`] with the device that has no room.
    pub fn take<'p>(
        &self,
        process: &'p Process,
        give_back: impl Fn(usize),
        taker: Taker,
        mut call: impl FnMut() -> u32,
    ) -> Result<u32, Full<'p>> {
        let needs = match taker {
            Taker::Launch(exec) | Taker::Upload(exec) => {
                lock(&self.needs).get(&exec).cloned().unwrap_or_default()
            }
            Taker::Graph(graph) => needs_of(graph),
        };
        if needs.is_empty() {
            return Ok(call());
        }
        let is_launch = matches!(taker, Taker::Launch(_));
        loop {
            let result = self.take_once(process, &give_back, &needs, is_launch, &mut call)?;
            if result != CUDA_ERROR_OUT_OF_MEMORY {
                return Ok(result);
            }
            let full = |need: &super::needs::Need| {
                let stock = memory::graphs_stock(need.ordinal);
                let bytes = need.growth(stock, |address| self.is_live(address));
                let site = Site::of(process, need.ordinal)?;
                Some(Full { ordinal: need.ordinal, bytes, site, why: Why::Driver })
            };
            let lacking: Vec<Full<'p>> = needs.devices.iter().filter_map(full).collect();
            if !lacking.iter().any(|full| full.site.await_room(full.bytes)) {
                // The refusal names the first device that may have lacked memory.
                return lacking.into_iter().find(|full| full.bytes > 0).map_or(Ok(result), Err);
            }
        }
    }

    fn take_once<'p>(
        &self,
        process: &'p Process,
        give_back: &impl Fn(usize),
        needs: &Needs,
        is_launch: bool,
        call: &mut impl FnMut() -> u32,
    ) -> Result<u32, Full<'p>> {
        let (promises, claim) = self.promise(process, give_back, needs)?;
        let marks = is_launch.then(|| self.begin_launch(needs));
        let result = call();
        if let Some(marks) = marks {
            self.end_launch(marks, result == CUDA_SUCCESS);
        }
        let mut held = lock(&self.held);
        for promised in promises {
            self.settle(process, of(&mut held, promised.0), promised, claim.as_ref());
        }
        // The claim ends before any other thread settles. From here on, the charge equals the
        // reserved memory.
        drop(claim);
        Ok(result)
    }

    /// Reserves the most memory that a launch or upload can need. Returns the reservations, and a
    /// claim if the launch got one.
    fn promise<'p>(
        &self,
        process: &'p Process,
        give_back: &impl Fn(usize),
        needs: &Needs,
    ) -> Result<(Vec<Promised<'p>>, Option<Claim<'_>>), Full<'p>> {
        let mut claim = self.claim(needs);
        let mut promised = self.promise_once(process, needs, claim.as_ref());
        if promised.is_err() && claim.is_none() {
            claim = self.await_claim(needs);
            promised = self.promise_once(process, needs, claim.as_ref());
        }
        let ordinal = match promised {
            Ok(promised) => return Ok((promised, claim)),
            Err(full) => full.ordinal,
        };
        // The claim ends first, because `give_back` leaves claimed memory alone.
        drop(claim);
        give_back(ordinal);
        let claim = self.await_claim(needs);
        let promised = self.promise_once(process, needs, claim.as_ref())?;
        Ok((promised, claim))
    }

    fn promise_once<'p>(
        &self,
        process: &'p Process,
        needs: &Needs,
        claim: Option<&Claim<'_>>,
    ) -> Result<Vec<Promised<'p>>, Full<'p>> {
        let mut promises: Vec<Promised<'p>> = Vec::new();
        for need in &needs.devices {
            let Some(site) = Site::of(process, need.ordinal) else { continue };
            let stock = self.claimed_stock(claim, need.ordinal);
            let bytes = need.growth(stock, |address| self.is_live(address));
            // A request that needs no memory succeeds even above the limit.
            match if bytes == 0 { Ok(None) } else { site.reserve(bytes) } {
                Ok(promise) => promises.push((need.ordinal, site, promise)),
                Err(refused) => {
                    promises.into_iter().for_each(|(_, site, promise)| site.withdraw(promise));
                    return Err(Full { ordinal: need.ordinal, bytes, site, why: Why::Limit(refused) });
                }
            }
        }
        Ok(promises)
    }

    /// Sets the charge to the memory that the driver now reports for the graphs of the GPU. Without
    /// a report, the charge grows by the promised bytes.
    fn settle(
        &self,
        process: &Process,
        held: &mut Held,
        (ordinal, site, promise): Promised<'_>,
        claim: Option<&Claim<'_>>,
    ) {
        let most_bytes = held.bytes + promise.as_ref().map_or(0, Reservation::bytes);
        let Some(mut stock) = memory::graphs_stock(ordinal) else {
            // Without a figure from the driver, the charge is all that was reserved.
            return held.set(&site, most_bytes, promise);
        };
        let is_others = claim.is_none() && self.is_claimed(ordinal);
        if !is_others
            && stock.reserved_bytes > most_bytes
            && site.limit_bytes() != NO_LIMIT
            && let Some(_relaxed) = process.calls.beside_captures()
        {
            // The driver could not use its spare memory, so the code trims it.
            memory::trim_graphs(ordinal);
            stock = memory::graphs_stock(ordinal).unwrap_or(stock);
        }
        let bytes = if is_others { stock.reserved_bytes.max(most_bytes) } else { stock.reserved_bytes };
        held.set(&site, bytes, promise);
    }

    /// Adjusts the charges to the amounts that the driver reports. The process may have freed or
    /// trimmed memory.
    pub fn refresh(&self, process: &Process) {
        if !is_used() {
            return;
        }
        let mut held = lock(&self.held);
        for ordinal in 0..held.len() {
            let Some((site, stock)) = Site::of(process, ordinal).zip(memory::graphs_stock(ordinal)) else {
                continue;
            };
            let one = &mut held[ordinal];
            let least_bytes = if self.is_claimed(ordinal) { one.bytes } else { 0 };
            one.set(&site, stock.reserved_bytes.max(least_bytes), None);
        }
    }

    /// Makes a device's graphs return unused memory to the driver. Does nothing while a claim
    /// relies on the memory.
    pub fn trim(&self, process: &Process, ordinal: usize) {
        if is_used() && !self.is_claimed(ordinal) {
            memory::trim_graphs(ordinal);
            self.refresh(process);
        }
    }

    /// Moves all charges to a new ledger of the session.
    pub fn move_to(&self, session: &Session, gpus: &[Gpu]) {
        lock(&self.held).iter_mut().for_each(|held| held.follow_on(session, gpus));
    }
}

fn of(held: &mut Vec<Held>, ordinal: usize) -> &mut Held {
    while held.len() <= ordinal {
        let next = held.len();
        held.push(Held::nothing(MemoryKind::Graph, next));
    }
    &mut held[ordinal]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_launches_of_graphs_with_memory_nodes_look_their_needs_up() {
        let graphs = Graphs::default();
        let (needy, other) = (ExecHandle(0x7000_1000), ExecHandle(0x7000_2000));
        graphs.put_back(needy, Needs::default());
        graphs.put_back(needy, Needs::default());
        assert!(may_need(needy) && !may_need(other));
        assert!(graphs.forget(needy).is_some() && graphs.forget(needy).is_none());
        assert!(!may_need(needy));
    }
}
