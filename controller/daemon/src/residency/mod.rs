//! Residency: suspends tenants, to make room on the GPUs for other tenants, and brings them back.
//!
//! This module reads which tenants need memory, asks [`deepres_policy::residency`] for the next
//! move, and carries the move out.

mod mover;
mod stay;

pub use stay::{Residence, is_any_oversubscribed, let_wait};

use super::gpus::answers;
use super::registry::Order;
use super::state::{SuspendedProcess, saver};
use super::status::reports;
use super::tenant::Tenant;
use super::{Shared, memory, nvml};
use deepres_model::admin::Resumption;
use deepres_model::clock::monotonic_ns;
use deepres_model::process::ProcessKey;
use deepres_policy::TenantId;
use deepres_policy::residency::{Bytes, GpuIndex, Move, Place, Seen, Times, decide};
use mover::{Back, Failure, Mover};
use stay::Stay;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// The time between two looks while residency may suspend a tenant.
const TICK: Duration = Duration::from_millis(20);
/// The time between two checks whether residency may suspend a tenant.
const IDLE_TICK: Duration = Duration::from_millis(500);
/// The time without a want after which a tenant is idle.
const IDLE_NS: u64 = Duration::from_secs(1).as_nanos() as u64;
/// The time for which the daemon waits for a tenant's work in flight before it suspends the tenant.
/// After this time, the driver waits for the work.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);
/// The time between two attempts to bring back a tenant in an unknown state.
const RETRY: Duration = Duration::from_secs(1);
/// The time for which the daemon does not try again after the driver could not move a tenant. Each
/// attempt stops the tenant for a moment.
const CANNOT_LEAVE_NS: u64 = Duration::from_secs(60).as_nanos() as u64;
/// The time for which the daemon does not try again after the host had no room for a tenant.
const NO_HOST_ROOM_NS: u64 = Duration::from_secs(10).as_nanos() as u64;
/// The longest time for which a daemon that ends waits for the return of suspended tenants. systemd
/// kills the daemon ten seconds after it told the daemon to end (`TimeoutStopSec=`). The rest of
/// the ten seconds is for the end of the MPS control daemon and for the state file.
const END_LIMIT: Duration = Duration::from_secs(6);
/// The number of times that the daemon tells a tenant of free memory before the tenant's allocation
/// should succeed. If the driver still refuses, the policy assumes that the driver cannot give the
/// memory that NVML reports as free.
const ASKS_IN_VAIN: u32 = 3;

/// The state of residency, except the parts that the registry has.
#[derive(Debug, Default)]
pub struct Residency {
    /// The suspended tenants, and the tenants on the way off the GPUs or back, by name.
    suspended: BTreeMap<String, Suspended>,
    /// The processes that the previous daemon suspended and that are not back on the GPUs yet, by
    /// tenant.
    left: BTreeMap<String, Vec<ProcessKey>>,
    /// GPUs on which the daemon is making room for a tenant. The daemon moves no other tenant
    /// there.
    claimed: BTreeSet<GpuIndex>,
    tracks: BTreeMap<TenantId, Track>,
    /// For each tenant that the daemon has suspended before: how often in a row the tenant came
    /// back to the GPUs and did nothing.
    visits: BTreeMap<TenantId, Visits>,
    /// The tenants that wait for memory of a GPU, each with the GPU. The daemon has told the other
    /// tenants on the GPU of the wait.
    waiting: BTreeSet<(TenantId, GpuIndex)>,
    /// Tenants that the daemon told of free memory on their GPU, without suspending another tenant.
    told: BTreeMap<TenantId, Told>,
    /// Whether the daemon is about to end, and suspends no tenant any more.
    is_ending: bool,
}

/// The state of a tenant when the daemon told the tenant of room, and the number of such messages
/// in a row.
#[derive(Debug)]
struct Told {
    needs: Bytes,
    held: Bytes,
    times: u32,
}

/// A suspended tenant, or a tenant on the way off the GPUs or back.
#[derive(Debug)]
struct Suspended {
    id: TenantId,
    stage: Stage,
    processes: Vec<ProcessKey>,
    is_by_hand: bool,
    since_ns: u64,
    bytes: Bytes,
    idle_since_ns: Option<u64>,
    /// The time at which the daemon tries again to suspend processes that joined the tenant later
    /// and that the driver refused to suspend, ns.
    follow_again_ns: Option<u64>,
}

/// The stage of the suspension of a tenant: on the way off the GPUs, on the host, or on the way
/// back.
#[derive(Debug)]
enum Stage {
    /// A mover is taking the tenant off the GPUs.
    Leaving,
    /// The tenant's memory is on the host. The movers keep it there.
    There(Vec<Mover>),
    /// A mover is suspending processes that joined the suspended tenant later.
    Followed,
    /// The movers are bringing the tenant back.
    Returning,
    /// A mover failed, for this reason, and the driver may have locked the tenant's processes. The
    /// daemon brings the tenant back as soon as possible.
    Lost(String),
}

/// The times since which a tenant is on the GPUs and since which it is idle, ns.
#[derive(Debug, Clone, Copy)]
struct Track {
    since_ns: u64,
    idle_since_ns: Option<u64>,
}

/// The idle visits of a tenant: the number of times in a row that the tenant came back to the GPUs
/// and did nothing. `done` is the tenant's count of work when the daemon last suspended the tenant.
#[derive(Debug, Clone, Copy)]
struct Visits {
    done: u64,
    idle: u32,
}

/// Suspends tenants and brings tenants back, as the policy of residency decides. Returns once the
/// daemon is about to end.
pub async fn serve(shared: Rc<Shared>) {
    let mut was_needed = false;
    while !shared.residency.borrow().is_ending {
        let is_needed = stay::is_anybody_to_make_room(shared.registry.borrow().tenancy.tenants());
        // After the last tenant that could make room has left, the loop looks once more. So the
        // daemon tells the tenants that still wait for its memory.
        if is_needed || was_needed || !shared.residency.borrow().suspended.is_empty() {
            look(&shared).await;
        }
        was_needed = is_needed;
        sleep(if is_needed { TICK } else { IDLE_TICK }).await;
    }
}

/// Suspends a tenant at an administrator's command.
///
/// # Errors
/// The message for the administrator.
pub async fn suspend(name: &str, shared: &Rc<Shared>) -> Result<(), String> {
    settled(name, shared).await?;
    let stay = stay_of(name, shared)?;
    if let Some(suspended) = shared.residency.borrow_mut().suspended.get_mut(name) {
        suspended.is_by_hand = true;
        return Ok(());
    }
    take_off(&stay, true, shared).await
}

/// Brings a suspended tenant back at an administrator's command. Returns the time at which the
/// tenant comes back. If the tenant is not suspended, nothing changes.
///
/// # Errors
/// The message for the administrator.
pub async fn resume(name: &str, shared: &Rc<Shared>) -> Result<Resumption, String> {
    settled(name, shared).await?;
    shared.residency.borrow().check_is_not_left(name)?;
    match shared.residency.borrow_mut().suspended.get_mut(name) {
        None => return Ok(Resumption::Needless),
        // From now on, the daemon also brings the tenant back by itself, as soon as the GPU has
        // room.
        Some(suspended) => suspended.is_by_hand = false,
    }
    match bring_back(name, shared).await {
        Ok(true) => Ok(Resumption::Now),
        Ok(false) => Ok(Resumption::Later),
        Err(reason) => Err(not_back(name, &reason)),
    }
}

/// Brings all suspended tenants back before the daemon ends. Where a container runtime ends the
/// daemon, it also kills the movers, and no mover could bring the tenants back later. The daemon
/// waits for the moves of memory, but not for room. If a tenant has no room, its mover goes on
/// trying.
pub async fn end(shared: &Rc<Shared>) {
    let names: Vec<String> = {
        let mut residency = shared.residency.borrow_mut();
        residency.is_ending = true;
        residency.suspended.keys().cloned().collect()
    };
    let returning: Vec<_> = names
        .into_iter()
        .map(|name| tokio::task::spawn_local(bring_back_at_end(name, Rc::clone(shared))))
        .collect();
    let returned = async {
        for one in returning {
            // The result tells only whether the task panicked.
            let _ = one.await;
        }
        // The tasks of these tenants bring them back.
        while !shared.residency.borrow().left.is_empty() {
            sleep(TICK).await;
        }
    };
    let _ = timeout(END_LIMIT, returned).await;
    let away: BTreeSet<String> =
        shared.residency.borrow().suspended().into_iter().map(|process| process.tenant).collect();
    if !away.is_empty() {
        tracing::warn!(
            ?away,
            "the daemon ends while tenants are suspended: their movers bring them back as soon as there is room"
        );
    }
}

/// Brings a suspended tenant back once no move of the tenant is under way. Returns once the tenant
/// is back, or has no room.
async fn bring_back_at_end(name: String, shared: Rc<Shared>) {
    loop {
        let is_settled = settled(&name, &shared).await.is_ok();
        if is_settled && bring_back(&name, &shared).await.is_ok() {
            return;
        }
        // A task of its own brings back a tenant in an unknown state.
        sleep(TICK).await;
    }
}

fn not_back(name: &str, reason: &str) -> String {
    format!(
        "the daemon could not move the memory of `{name}` ({reason}), and keeps trying to bring the tenant back"
    )
}

/// Waits until no move of a tenant is under way.
async fn settled(name: &str, shared: &Shared) -> Result<(), String> {
    loop {
        match shared.residency.borrow().suspended.get(name).map(|suspended| &suspended.stage) {
            None | Some(Stage::There(_)) => return Ok(()),
            Some(Stage::Lost(reason)) => return Err(not_back(name, reason)),
            Some(Stage::Leaving | Stage::Followed | Stage::Returning) => {}
        }
        sleep(TICK).await;
    }
}

async fn look(shared: &Rc<Shared>) {
    let Some(reports) = reports(shared).await else { return };
    // This line reads the needs of tenants before the free memory. So if a tenant gets memory
    // meanwhile, the daemon can tell it of room once too often. The daemon never tells a tenant too
    // seldom.
    let stays = stay::stays(shared.registry.borrow().tenancy.tenants(), &reports);
    let free = free(shared).await;
    let now_ns = monotonic_ns();
    let dead = shared.residency.borrow_mut().forget_the_dead(&stays);
    for name in dead {
        set_suspended(shared, &name, false).await;
    }
    let followers = shared.residency.borrow_mut().followers(&stays, now_ns);
    for followers in followers {
        tokio::task::spawn_local(take_off_followers(followers, Rc::clone(shared)));
    }
    let Some((next, claimed)) = shared.residency.borrow_mut().decide(&stays, &free, now_ns, shared) else {
        return;
    };
    let find = |id: TenantId| stays.iter().find(|stay| stay.id == id).cloned();
    let Some(enters) = find(next.enter) else { return };
    let leavers: Vec<Stay> = next.leave.into_iter().filter_map(find).collect();
    let shared = Rc::clone(shared);
    // The move runs in a task of its own, because the driver takes its time.
    tokio::task::spawn_local(async move {
        make_room(&leavers, &enters, &shared).await;
        shared.residency.borrow_mut().claimed.retain(|gpu| !claimed.contains(gpu));
    });
}

/// Suspends the tenants in `leavers`, and then brings `enters` back, or tells `enters` of the free
/// memory.
async fn make_room(leavers: &[Stay], enters: &Stay, shared: &Rc<Shared>) {
    for leaver in leavers {
        if let Err(reason) = take_off(leaver, false, shared).await {
            tracing::warn!(tenant = leaver.name, reason, "the daemon cannot suspend a tenant");
            return;
        }
    }
    if shared.residency.borrow().suspended.contains_key(&enters.name) {
        // `bring_back` reports its own failures.
        let _ = bring_back(&enters.name, shared).await;
    } else {
        if let Some(tenant) = shared.registry.borrow().tenancy.tenants().get(&enters.name) {
            stay::announce_room(tenant);
        }
    }
}

async fn take_off(stay: &Stay, is_by_hand: bool, shared: &Rc<Shared>) -> Result<(), String> {
    let Stay { name, id, pids, .. } = stay;
    if pids.is_empty() {
        return Err(format!("no process of `{name}` uses a GPU, so there is nothing to suspend"));
    }
    if let Some(reason) = memory::host::refusal(name, stay.held.values().sum(), shared) {
        keep_here(name, NO_HOST_ROOM_NS, shared);
        return Err(reason);
    }
    {
        let mut residency = shared.residency.borrow_mut();
        if residency.is_ending {
            return Err(format!("the daemon does not suspend `{name}`: the daemon is ending"));
        }
        if residency.suspended.contains_key(name) {
            return Err(format!("the daemon is moving the memory of `{name}` already; try again"));
        }
        residency.check_is_not_left(name)?;
        let idle_since_ns = residency.tracks.remove(id).and_then(|track| track.idle_since_ns);
        let suspended = Suspended {
            id: *id,
            stage: Stage::Leaving,
            processes: keys(pids).collect(),
            is_by_hand,
            since_ns: monotonic_ns(),
            bytes: stay.held.clone(),
            idle_since_ns,
            follow_again_ns: None,
        };
        residency.suspended.insert(name.clone(), suspended);
    }
    let before = free(shared).await;
    set_suspended(shared, name, true).await;
    // The daemon waits for the work in flight here, where the arbiter charges it. If the driver
    // waited for the work, no arbiter would charge the work.
    let drained = async {
        let has_work = || shared.registry.borrow().tenancy.tenants().get(name).is_some_and(stay::has_work);
        while has_work() {
            sleep(TICK / 4).await;
        }
    };
    let _ = timeout(DRAIN_LIMIT, drained).await;
    // The daemon saves before the move. If the daemon and the mover are both killed, the next
    // daemon knows which tenants to bring back.
    saver::save(shared).await;
    match Mover::take_off(pids, move_limit(shared)).await {
        Ok(mover) => {
            let after = free(shared).await;
            let mut residency = shared.residency.borrow_mut();
            if let Some(suspended) = residency.suspended.get_mut(name) {
                for (gpu, now) in after {
                    let freed = now.saturating_sub(before.get(&gpu).copied().unwrap_or(now));
                    if freed > 0 {
                        suspended.has_at_least(gpu, freed);
                    }
                }
                suspended.since_ns = monotonic_ns();
                suspended.stage = Stage::There(vec![mover]);
                let bytes = &suspended.bytes;
                tracing::info!(tenant = name, is_by_hand, ?bytes, "the daemon suspended a tenant");
            }
            residency.note_visit(stay);
            Ok(())
        }
        Err(Failure::Refused(reason)) => {
            // This line precedes the tenant's return to the GPUs, so that no other tenant counts on
            // its memory.
            keep_here(name, CANNOT_LEAVE_NS, shared);
            stays_here(name, shared).await;
            Err(reason)
        }
        Err(Failure::Lost(reason)) => {
            recover_later(stay, &reason, shared);
            Err(reason)
        }
    }
}

/// Keeps a tenant on the GPUs for the time `for_ns`, because the tenant cannot be moved.
fn keep_here(name: &str, for_ns: u64, shared: &Shared) {
    let until_ns = monotonic_ns().saturating_add(for_ns);
    let stays = |tenant: &mut Tenant| tenant.residence.stay_until(until_ns);
    drop(shared.registry.borrow_mut().tenancy.change(name, stays));
}

/// Brings back a suspended tenant. Returns true if the tenant is back, and false if the GPUs have
/// no room for it.
async fn bring_back(name: &str, shared: &Rc<Shared>) -> Result<bool, String> {
    let mut movers = {
        let mut residency = shared.residency.borrow_mut();
        let Some(suspended) = residency.suspended.get_mut(name) else { return Ok(true) };
        match std::mem::replace(&mut suspended.stage, Stage::Returning) {
            Stage::There(movers) => movers,
            other => {
                suspended.stage = other;
                return Ok(false);
            }
        }
    };
    while let Some(mut mover) = movers.pop() {
        match mover.bring_back(move_limit(shared)).await {
            Ok(Back::Yes) => {}
            Ok(Back::NoRoom) => {
                movers.push(mover);
                if let Some(suspended) = shared.residency.borrow_mut().suspended.get_mut(name) {
                    // The daemon treats processes that are back as new processes. Such processes
                    // can have to follow the tenant again.
                    suspended.processes.retain(|process| movers.iter().any(|mover| mover.moves(process.pid)));
                    suspended.stage = Stage::There(movers);
                }
                return Ok(false);
            }
            Err(Failure::Refused(reason) | Failure::Lost(reason)) => {
                // If the tenant has no processes, there is nothing to bring back.
                let stay = stay_of(name, shared).ok();
                match stay.filter(|stay| !stay.pids.is_empty()) {
                    Some(stay) => recover_later(&stay, &reason, shared),
                    None => drop(shared.residency.borrow_mut().suspended.remove(name)),
                }
                return Err(reason);
            }
        }
    }
    stays_here(name, shared).await;
    tracing::info!(tenant = name, "the daemon brought a tenant back");
    Ok(true)
}

/// Processes that joined a tenant after the daemon suspended it.
struct Followers {
    stay: Stay,
    pids: Vec<u32>,
    /// The movers of the tenant's processes that are suspended already.
    movers: Vec<Mover>,
}

/// Suspends followers: processes that joined a suspended tenant. Otherwise their memory would stay
/// on the GPU although they cannot run.
async fn take_off_followers(followers: Followers, shared: Rc<Shared>) {
    let Followers { stay, pids, mut movers } = followers;
    // The daemon saves first, as in `take_off`, because the next daemon must know of these
    // processes.
    saver::save(&shared).await;
    let taken_off = Mover::take_off(&pids, move_limit(&shared)).await;
    let mut residency = shared.residency.borrow_mut();
    let Some(suspended) = residency.suspended.get_mut(&stay.name) else { return };
    match taken_off {
        Ok(mover) => {
            movers.push(mover);
            for (gpu, held) in stay.held {
                suspended.has_at_least(gpu, held);
            }
            tracing::info!(
                tenant = stay.name,
                ?pids,
                "the daemon suspended new processes of a suspended tenant"
            );
        }
        Err(Failure::Refused(reason)) => {
            if suspended.follow_again_ns.is_none() {
                tracing::warn!(
                    tenant = stay.name,
                    ?pids,
                    reason,
                    "the daemon cannot suspend new processes of a suspended tenant"
                );
            }
            suspended.processes.retain(|process| !pids.contains(&process.pid));
            suspended.follow_again_ns = Some(monotonic_ns().saturating_add(RETRY.as_nanos() as u64));
        }
        Err(Failure::Lost(reason)) => {
            drop(residency);
            return recover_later(&stay, &reason, &shared);
        }
    }
    suspended.stage = Stage::There(movers);
}

/// Ends a tenant's suspension: the tenant is back on the GPUs, or has no process left.
async fn stays_here(name: &str, shared: &Shared) {
    shared.residency.borrow_mut().suspended.remove(name);
    set_suspended(shared, name, false).await;
}

/// Handles a tenant in an unknown state: tries to bring its processes back until an attempt
/// succeeds. Until then, the tenant's gates stay closed.
fn recover_later(stay: &Stay, reason: &str, shared: &Rc<Shared>) {
    let (name, id) = (stay.name.clone(), stay.id);
    tracing::error!(
        tenant = name,
        reason,
        "the daemon could not move the memory of a tenant: it brings the tenant back as soon as possible"
    );
    if let Some(suspended) = shared.residency.borrow_mut().suspended.get_mut(&name) {
        suspended.stage = Stage::Lost(reason.to_owned());
    }
    let shared = Rc::clone(shared);
    tokio::task::spawn_local(async move {
        loop {
            let stay = stay_of(&name, &shared).ok();
            let Some(stay) = stay.filter(|stay| stay.id == id && !stay.pids.is_empty()) else {
                return stays_here(&name, &shared).await;
            };
            match Mover::recover(&stay.pids, move_limit(&shared)).await {
                Ok((Back::Yes, _)) => {
                    stays_here(&name, &shared).await;
                    tracing::info!(tenant = name, "the daemon brought a tenant back after a failed move");
                    return;
                }
                Ok((Back::NoRoom, mover)) => {
                    // From now on, the tenant is suspended like any other.
                    if let Some(suspended) = shared.residency.borrow_mut().suspended.get_mut(&name) {
                        suspended.processes = keys(&stay.pids).collect();
                        suspended.stage = Stage::There(vec![mover]);
                    }
                    return;
                }
                Err(Failure::Refused(reason) | Failure::Lost(reason)) => {
                    tracing::error!(
                        tenant = name,
                        reason,
                        "the daemon could not bring a tenant back: it tries again"
                    );
                }
            }
            sleep(RETRY).await;
        }
    });
}

/// Brings back the tenants that the previous daemon suspended. Each tenant comes back as soon as
/// there is room for it.
pub fn bring_back_left(left: Vec<SuspendedProcess>, shared: &Rc<Shared>) {
    let mut residency = shared.residency.borrow_mut();
    for SuspendedProcess { tenant, process } in left {
        residency.left.entry(tenant).or_default().push(process);
    }
    for name in residency.left.keys() {
        // This line runs before the daemon admits any session. So a returning session finds its
        // gates closed.
        drop(close_gates(shared, name, true));
        tokio::task::spawn_local(bring_back_one_left(name.clone(), Rc::clone(shared)));
    }
}

async fn bring_back_one_left(name: String, shared: Rc<Shared>) {
    let mut mover = None;
    loop {
        let left = shared.residency.borrow_mut().left_of(&name);
        let Some(pids) = left else { return set_suspended(&shared, &name, false).await };
        // Usually the mover of the previous daemon still lives, and is bringing the processes back.
        sleep(RETRY).await;
        let limit = move_limit(&shared);
        let back = match &mut mover {
            Some(mover) => Mover::bring_back(mover, limit).await,
            None => Mover::recover(&pids, limit).await.map(|(back, new)| {
                mover = Some(new);
                back
            }),
        };
        match back {
            Ok(Back::Yes) => {
                tracing::info!(
                    tenant = name,
                    "the daemon brought a tenant back that the previous daemon had suspended"
                );
                shared.residency.borrow_mut().left.remove(&name);
            }
            Ok(Back::NoRoom) => {
                mover = mover.and_then(|mover| take_up(&name, &pids, mover, &shared));
                if mover.is_none() {
                    return;
                }
            }
            Err(Failure::Refused(reason) | Failure::Lost(reason)) => {
                tracing::warn!(
                    tenant = name,
                    reason,
                    "the daemon could not bring back a tenant that the previous daemon had suspended: it tries again"
                );
                mover = None;
            }
        }
    }
}

/// Takes over a tenant that the previous daemon suspended. The tenant is then suspended like any
/// other tenant, and comes back in its turn. The call works only if all processes in `pids` have
/// sessions with this daemon. Otherwise the function returns the mover.
fn take_up(name: &str, pids: &[u32], mover: Mover, shared: &Shared) -> Option<Mover> {
    let stay = stay_of(name, shared).ok();
    let Some(stay) = stay.filter(|stay| pids.iter().all(|pid| stay.pids.contains(pid))) else {
        return Some(mover);
    };
    let mut residency = shared.residency.borrow_mut();
    let suspended = Suspended {
        id: stay.id,
        stage: Stage::There(vec![mover]),
        processes: residency.left.remove(name).unwrap_or_default(),
        is_by_hand: false,
        since_ns: monotonic_ns(),
        bytes: stay.held,
        // The daemon does not know for what the tenant waits, so it does not take the tenant for
        // idle.
        idle_since_ns: None,
        follow_again_ns: None,
    };
    residency.suspended.insert(name.to_owned(), suspended);
    None
}

/// Returns the keys of the processes in `pids` that are alive.
fn keys(pids: &[u32]) -> impl Iterator<Item = ProcessKey> {
    pids.iter().filter_map(|pid| ProcessKey::of(*pid))
}

fn move_limit(shared: &Shared) -> Duration {
    shared.registry.borrow().config().suspend_limit()
}

impl Suspended {
    /// Records that the tenant needs at least `bytes` on a GPU to come back. A larger known need
    /// stays.
    fn has_at_least(&mut self, gpu: GpuIndex, bytes: u64) {
        self.bytes.entry(gpu).and_modify(|known| *known = (*known).max(bytes)).or_insert(bytes);
    }
}

impl Residency {
    /// Returns the suspended processes, and the processes on the way off the GPUs or back.
    pub fn suspended(&self) -> Vec<SuspendedProcess> {
        let suspended = self.suspended.iter().map(|(tenant, suspended)| (tenant, &suspended.processes));
        let all = suspended.chain(&self.left).flat_map(|(tenant, processes)| {
            processes.iter().map(|process| SuspendedProcess { tenant: tenant.clone(), process: *process })
        });
        all.collect()
    }

    /// Returns the memory of tenants that are suspended, or on the way off the GPUs or back, bytes.
    pub fn suspended_bytes(&self) -> u64 {
        self.suspended
            .values()
            .flat_map(|suspended| suspended.bytes.values())
            .fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Returns an error for an administrator if the previous daemon suspended the tenant and the
    /// tenant is not back yet.
    fn check_is_not_left(&self, name: &str) -> Result<(), String> {
        if self.left.contains_key(name) {
            return Err(format!(
                "`{name}` was suspended when the previous daemon ended; this daemon brings the tenant back as soon as there is room"
            ));
        }
        Ok(())
    }

    /// Returns the living processes of a tenant that the previous daemon suspended and that are not
    /// back yet.
    fn left_of(&mut self, name: &str) -> Option<Vec<u32>> {
        let left = self.left.get_mut(name)?;
        left.retain(|process| process.is_alive());
        if left.is_empty() {
            self.left.remove(name);
            return None;
        }
        Some(left.iter().map(|process| process.pid).collect())
    }

    /// Forgets tenants without processes, so that a new tenant of the same name starts on the GPUs.
    /// Returns the names of the forgotten tenants that were suspended.
    fn forget_the_dead(&mut self, stays: &[Stay]) -> Vec<String> {
        self.tracks.retain(|id, _| stays.iter().any(|stay| stay.id == *id));
        self.told.retain(|id, _| stays.iter().any(|stay| stay.id == *id));
        self.visits.retain(|id, _| stays.iter().any(|stay| stay.id == *id));
        let lives = |name: &str| stays.iter().any(|stay| stay.name == name && !stay.pids.is_empty());
        // If a move of the tenant is under way, the end of the move handles the tenant.
        let is_dead = |name: &String, suspended: &mut Suspended| {
            matches!(suspended.stage, Stage::There(_)) && !lives(name)
        };
        self.suspended.extract_if(.., is_dead).map(|(name, _)| name).collect()
    }

    /// Returns the processes that are on the GPUs although their tenants are suspended. Also
    /// records that a move of these tenants is under way.
    fn followers(&mut self, stays: &[Stay], now_ns: u64) -> Vec<Followers> {
        let follow = |stay: &Stay| {
            let suspended = self.suspended.get_mut(&stay.name).filter(|suspended| suspended.id == stay.id)?;
            let is_known = |pid: &u32| suspended.processes.iter().any(|process| process.pid == *pid);
            let pids: Vec<u32> = stay.pids.iter().copied().filter(|pid| !is_known(pid)).collect();
            if pids.is_empty() || suspended.follow_again_ns.is_some_and(|again_ns| now_ns < again_ns) {
                return None;
            }
            match std::mem::replace(&mut suspended.stage, Stage::Followed) {
                Stage::There(movers) => {
                    suspended.processes.extend(keys(&pids));
                    Some(Followers { stay: stay.clone(), pids, movers })
                }
                other => {
                    suspended.stage = other;
                    None
                }
            }
        };
        stays.iter().filter_map(follow).collect()
    }

    /// Returns the next move, if there is one, and the GPUs that it claims.
    fn decide(
        &mut self,
        stays: &[Stay],
        free: &Bytes,
        now_ns: u64,
        shared: &Shared,
    ) -> Option<(Move, BTreeSet<GpuIndex>)> {
        let mut seen: Vec<Seen> = stays.iter().map(|stay| self.see(stay, now_ns)).collect();
        let registry = shared.registry.borrow();
        let tenants = registry.tenancy.tenants();
        stay::say_what_is_obtainable(tenants, &stay::grown(&seen, tenants), free);
        let waiting: BTreeSet<(TenantId, GpuIndex)> =
            seen.iter().flat_map(|seen| seen.needs.keys().map(|gpu| (seen.id, *gpu))).collect();
        for (id, gpu) in waiting.difference(&self.waiting) {
            stay::press_others(tenants, *id, *gpu);
        }
        self.waiting = waiting;
        for (seen, stay) in seen.iter_mut().zip(stays) {
            let suspended = self.suspended.get(&stay.name);
            let is_moving = suspended.is_some_and(|one| !matches!(one.stage, Stage::There(_)));
            if is_moving
                || self.left.contains_key(&stay.name)
                || seen.gpus().any(|gpu| self.claimed.contains(&gpu))
            {
                seen.place = Place::Fixed;
            }
        }
        let times = Times { turn_ns: registry.config().suspend_turn_ns(), idle_ns: IDLE_NS };
        let next = decide(now_ns, free, &seen, times)?;
        if let Some(enters) = stays.iter().find(|stay| stay.id == next.enter && next.leave.is_empty()) {
            self.note_told(enters);
        }
        let moved = |seen: &&Seen| seen.id == next.enter || next.leave.contains(&seen.id);
        let claimed: BTreeSet<GpuIndex> = seen.iter().filter(moved).flat_map(Seen::gpus).collect();
        self.claimed.extend(&claimed);
        Some((next, claimed))
    }

    fn see(&mut self, stay: &Stay, now_ns: u64) -> Seen {
        let suspended = self.suspended.get(&stay.name).filter(|suspended| suspended.id == stay.id);
        let (place, since_ns, bytes, idle_since_ns) = match suspended {
            Some(suspended) => {
                let place = match suspended.stage {
                    _ if suspended.is_by_hand => Place::Fixed,
                    Stage::There(_) => Place::Suspended,
                    // During a move, the plan takes the memory as occupied. Other tenants can wait
                    // for this memory, because the tenant can leave again after its return.
                    Stage::Leaving | Stage::Followed | Stage::Returning => Place::Resident,
                    Stage::Lost(_) => Place::Fixed,
                };
                let idle_since_ns = suspended.idle_since_ns.filter(|_| !stay.wants);
                (place, suspended.since_ns, suspended.bytes.clone(), idle_since_ns)
            }
            None => {
                let track =
                    self.tracks.entry(stay.id).or_insert(Track { since_ns: now_ns, idle_since_ns: None });
                let is_idle = !stay.wants && stay.needs.is_empty();
                track.idle_since_ns = is_idle.then(|| track.idle_since_ns.unwrap_or(now_ns));
                (Place::Resident, track.since_ns, stay.held.clone(), track.idle_since_ns)
            }
        };
        Seen {
            id: stay.id,
            may_leave: stay.may_leave,
            class: stay.class,
            place,
            since_ns,
            bytes,
            idle_since_ns,
            idle_visits: self.visits.get(&stay.id).map_or(0, |visits| visits.idle),
            needs: stay.needs.clone(),
            asked_in_vain: self
                .told
                .get(&stay.id)
                .is_some_and(|told| told.times >= ASKS_IN_VAIN && told.is_of(stay)),
        }
    }

    /// Records that the daemon suspended a tenant, which was in the state `stay`.
    fn note_visit(&mut self, stay: &Stay) {
        let before = self.visits.get(&stay.id).filter(|before| before.done == stay.done);
        let idle = before.map_or(0, |before| before.idle.saturating_add(1));
        self.visits.insert(stay.id, Visits { done: stay.done, idle });
    }

    /// Records that the daemon told a tenant in the state `stay` of free memory.
    fn note_told(&mut self, stay: &Stay) {
        let times = self.told.get(&stay.id).filter(|told| told.is_of(stay)).map_or(0, |told| told.times);
        let told =
            Told { needs: stay.needs.clone(), held: stay.held.clone(), times: times.saturating_add(1) };
        self.told.insert(stay.id, told);
    }
}

impl Told {
    /// Returns whether the tenant is still in the same state: it needs the same memory, and has got
    /// none on these GPUs.
    fn is_of(&self, stay: &Stay) -> bool {
        let has_grown = |gpu| stay.held.get(gpu) > self.held.get(gpu);
        self.needs == stay.needs && !self.needs.keys().any(has_grown)
    }
}

/// Returns the free memory of each GPU by NVML, bytes. GPUs without a known figure are left out.
async fn free(shared: &Shared) -> Bytes {
    let uuids = shared.registry.borrow().tenancy.gpus().uuids();
    nvml::free_bytes(uuids).await
}

/// Returns the present state of a tenant.
///
/// # Errors
/// The message for the administrator.
fn stay_of(name: &str, shared: &Shared) -> Result<Stay, String> {
    let registry = shared.registry.borrow();
    registry.tenancy.tenants().named(name).map(|tenant| Stay::of(name, tenant))
}

/// Closes the gates of a tenant that is suspended, or opens the gates of a tenant that is back.
/// Returns the orders to the arbiters.
fn close_gates(shared: &Shared, name: &str, is_suspended: bool) -> Vec<Order> {
    shared.registry.borrow_mut().tenancy.change(name, |tenant| {
        tenant.residence.set_suspended(is_suspended);
        // NVML's figures are from the time before the move. If a tenant's memory is on the host,
        // NVML has no figures for the tenant.
        tenant.memory.set_by_nvml(BTreeMap::new());
    })
}

/// Closes a tenant's gates, or opens them again. Returns once the arbiters have set the gates.
async fn set_suspended(shared: &Shared, name: &str, is_suspended: bool) {
    let orders = close_gates(shared, name, is_suspended);
    // An arbiter that has ended has opened or closed its gates itself.
    let _ = answers(orders).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_policy::class::Class;

    fn stay(id: TenantId, done: u64) -> Stay {
        Stay {
            name: id.to_string(),
            id,
            class: Class::Fair,
            may_leave: true,
            pids: vec![1],
            held: Bytes::from([(0, 1)]),
            needs: Bytes::new(),
            wants: false,
            done,
        }
    }

    #[test]
    fn a_daemon_that_ends_waits_for_tenants_for_less_than_the_time_that_systemd_gives_it() {
        let unit = include_str!("../../../deploy/systemd/deepres.service");
        let limit = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")?.strip_suffix('s'));
        assert!(END_LIMIT < Duration::from_secs(limit.unwrap().parse().unwrap()));
    }

    #[test]
    fn a_visit_is_idle_in_which_nothing_was_done() {
        let mut residency = Residency::default();
        let mut idle_visits = |done| {
            residency.note_visit(&stay(1, done));
            residency.see(&stay(1, done), 0).idle_visits
        };
        assert_eq!([5, 5, 5, 6, 6].map(&mut idle_visits), [0, 1, 2, 0, 1]);
    }

    #[test]
    fn others_may_wait_for_the_memory_of_a_tenant_that_is_on_its_way() {
        let mut residency = Residency::default();
        let mut obtainable_bytes = |stage| {
            let suspended = Suspended {
                id: 1,
                stage,
                processes: Vec::new(),
                is_by_hand: false,
                since_ns: 0,
                bytes: Bytes::from([(0, 60)]),
                idle_since_ns: None,
                follow_again_ns: None,
            };
            residency.suspended.insert("1".to_owned(), suspended);
            let seen = [stay(1, 0), stay(2, 0)].map(|stay| residency.see(&stay, 0));
            seen[1].obtainable_bytes(0, 20, &seen)
        };
        for stage in [Stage::Leaving, Stage::Followed, Stage::Returning] {
            assert_eq!(obtainable_bytes(stage), 80);
        }
        assert_eq!(obtainable_bytes(Stage::Lost(String::new())), 0, "its memory may never become free");
    }
}
