//! Tenants whose memory makes room for others': looks who needs memory, asks [`deepres_policy::residency`], and has tenants taken off the GPUs
//! and brought back.

mod mover;

use super::administrators::reports;
use super::registry::Stay;
use super::state::AwayProcess;
use super::{Shared, saving};
use deepres_model::admin::Resumption;
use deepres_model::clock::monotonic_ns;
use deepres_model::process::ProcessKey;
use deepres_policy::TenantId;
use deepres_policy::residency::{Bytes, GpuIndex, Move, Place, Seen, Times, decide};
use mover::{Back, Failure, Mover};
use nvml_wrapper::Nvml;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How often it is looked while anybody may be taken off.
const TICK: Duration = Duration::from_millis(20);
/// How often it is looked whether anybody may be.
const IDLE_TICK: Duration = Duration::from_millis(500);
/// Who had nothing to do for so long is idle.
const IDLE_NS: u64 = Duration::from_secs(1).as_nanos() as u64;
/// How long work in flight may take until the tenant is taken off all the same: the driver then waits for it.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);
/// Arbiters answer within milliseconds.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// Between two attempts to bring back a tenant of which nobody knows what became.
const RETRY: Duration = Duration::from_secs(1);
/// Whom the driver cannot move is not asked to leave again for so long: each attempt stops it for a moment.
const CANNOT_LEAVE_NS: u64 = Duration::from_secs(60).as_nanos() as u64;
/// So often a tenant is told that there is room before it is believed that the driver cannot give what NVML calls free.
const ASKS_IN_VAIN: u32 = 3;
const NVML_LIBRARY: &str = "libnvidia-ml.so.1";

/// What is known beyond the registry.
#[derive(Debug, Default)]
pub struct Residency {
    /// Tenants that are off the GPUs, or on their way there or back.
    away: BTreeMap<String, Away>,
    /// By tenant: processes that a daemon before this one had taken off, until they are back.
    left: BTreeMap<String, Vec<ProcessKey>>,
    /// GPUs on which room is being made for someone: nobody else is moved there.
    claimed: BTreeSet<GpuIndex>,
    tracks: BTreeMap<TenantId, Track>,
    /// Of those that were taken off.
    visits: BTreeMap<TenantId, Visits>,
    /// Who waits for memory, and where: the others there were told.
    waiting: BTreeSet<(TenantId, GpuIndex)>,
    /// Who was told that there is room, and nobody left for it.
    told: BTreeMap<TenantId, Told>,
    nvml: Option<Arc<Nvml>>,
}

/// What a tenant needed and held when it was told that there is room, and how often in a row.
#[derive(Debug)]
struct Told {
    needs: Bytes,
    held: Bytes,
    times: u32,
}

/// A tenant that is off the GPUs, or on its way.
#[derive(Debug)]
struct Away {
    id: TenantId,
    stage: Stage,
    processes: Vec<ProcessKey>,
    is_by_hand: bool,
    since_ns: u64,
    bytes: Bytes,
    idle_since_ns: Option<u64>,
    /// The driver did not take off who came meanwhile, and is not asked again before then.
    follow_again_ns: Option<u64>,
}

/// How far it is.
#[derive(Debug)]
enum Stage {
    /// It is being taken off.
    Leaving,
    /// Its memory is on the host.
    There(Vec<Mover>),
    /// Processes that came to it meanwhile are being taken off too.
    Followed,
    /// It is being brought back.
    Returning,
    /// It could not be moved, for this reason, and may be locked; it is brought back as soon as that can be.
    Lost(String),
}

/// A tenant that is on them.
#[derive(Debug, Clone, Copy)]
struct Track {
    since_ns: u64,
    idle_since_ns: Option<u64>,
}

/// How often a tenant came back and did nothing, and what it had done when it was taken off last.
#[derive(Debug, Clone, Copy)]
struct Visits {
    done: u64,
    idle: u32,
}

/// Looks and moves, for ever.
pub async fn serve(shared: Rc<Shared>) {
    let mut was_needed = false;
    loop {
        let is_needed = shared.registry.borrow().is_anybody_to_make_room();
        // Once more when nobody is left to make room: whoever would wait for it is told.
        if is_needed || was_needed || !shared.residency.borrow().away.is_empty() {
            look(&shared).await;
        }
        was_needed = is_needed;
        sleep(if is_needed { TICK } else { IDLE_TICK }).await;
    }
}

/// Takes a tenant off at an administrator's word.
///
/// # Errors
/// What to tell the administrator.
pub async fn suspend(name: &str, shared: &Rc<Shared>) -> Result<(), String> {
    settled(name, shared).await?;
    let stay = shared.registry.borrow().stay(name)?;
    if let Some(away) = shared.residency.borrow_mut().away.get_mut(name) {
        away.is_by_hand = true;
        return Ok(());
    }
    take_off(&stay, true, shared).await
}

/// Brings a tenant back at an administrator's word; one that is not away is left as it is.
///
/// # Errors
/// What to tell the administrator.
pub async fn resume(name: &str, shared: &Rc<Shared>) -> Result<Resumption, String> {
    settled(name, shared).await?;
    shared.residency.borrow().check_is_not_left(name)?;
    match shared.residency.borrow_mut().away.get_mut(name) {
        None => return Ok(Resumption::Needless),
        // From here on it comes back by itself as soon as there is room.
        Some(away) => away.is_by_hand = false,
    }
    match bring_back(name, shared).await {
        Ok(true) => Ok(Resumption::Now),
        Ok(false) => Ok(Resumption::Later),
        Err(reason) => Err(not_back(name, &reason)),
    }
}

fn not_back(name: &str, reason: &str) -> String {
    format!("`{name}` could not be moved ({reason}); the daemon tries again and again to bring it back")
}

/// Waits until a tenant is not on its way.
async fn settled(name: &str, shared: &Shared) -> Result<(), String> {
    loop {
        match shared.residency.borrow().away.get(name).map(|away| &away.stage) {
            None | Some(Stage::There(_)) => return Ok(()),
            Some(Stage::Lost(reason)) => return Err(not_back(name, reason)),
            Some(Stage::Leaving | Stage::Followed | Stage::Returning) => {}
        }
        sleep(TICK).await;
    }
}

async fn look(shared: &Rc<Shared>) {
    let Some(reports) = reports(shared).await else { return };
    // Who needs memory is read before what is free: who was given it meanwhile is told once too often, and nobody too seldom.
    let stays = shared.registry.borrow().stays(&reports);
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
    // Others are looked after meanwhile: the driver takes its time.
    tokio::task::spawn_local(async move {
        make_room(&leavers, &enters, &shared).await;
        shared.residency.borrow_mut().claimed.retain(|gpu| !claimed.contains(gpu));
    });
}

/// Takes tenants off, and lets another in.
async fn make_room(leavers: &[Stay], enters: &Stay, shared: &Rc<Shared>) {
    for leaver in leavers {
        if let Err(reason) = take_off(leaver, false, shared).await {
            tracing::warn!(tenant = leaver.name, reason, "cannot suspend a tenant");
            return;
        }
    }
    if shared.residency.borrow().away.contains_key(&enters.name) {
        // What fails is told where it fails.
        let _ = bring_back(&enters.name, shared).await;
    } else {
        shared.registry.borrow().announce_room(&enters.name);
    }
}

async fn take_off(stay: &Stay, is_by_hand: bool, shared: &Rc<Shared>) -> Result<(), String> {
    let Stay { name, id, pids, .. } = stay;
    if pids.is_empty() {
        return Err(format!("no process of `{name}` uses a GPU: there is nothing to suspend"));
    }
    {
        let mut residency = shared.residency.borrow_mut();
        if residency.away.contains_key(name) {
            return Err(format!("`{name}` is being moved already: try again"));
        }
        residency.check_is_not_left(name)?;
        let idle_since_ns = residency.tracks.remove(id).and_then(|track| track.idle_since_ns);
        let away = Away {
            id: *id,
            stage: Stage::Leaving,
            processes: keys(pids).collect(),
            is_by_hand,
            since_ns: monotonic_ns(),
            bytes: stay.held.clone(),
            idle_since_ns,
            follow_again_ns: None,
        };
        residency.away.insert(name.clone(), away);
    }
    let before = free(shared).await;
    set_suspended(shared, name, true).await;
    // What is in flight is waited for here, where it is charged, and not in the driver.
    let drained = async {
        while shared.registry.borrow().has_work(name) {
            sleep(TICK / 4).await;
        }
    };
    let _ = timeout(DRAIN_LIMIT, drained).await;
    // Should this daemon and whoever keeps the tenant away both be killed, the next one knows whom to bring back.
    saving::save(shared).await;
    match Mover::take_off(pids, move_limit(shared)).await {
        Ok(mover) => {
            let after = free(shared).await;
            let mut residency = shared.residency.borrow_mut();
            if let Some(away) = residency.away.get_mut(name) {
                for (gpu, now) in after {
                    let freed = now.saturating_sub(before.get(&gpu).copied().unwrap_or(now));
                    if freed > 0 {
                        away.has_at_least(gpu, freed);
                    }
                }
                away.since_ns = monotonic_ns();
                away.stage = Stage::There(vec![mover]);
                tracing::info!(tenant = name, is_by_hand, bytes = ?away.bytes, "suspended a tenant");
            }
            residency.note_visit(stay);
            Ok(())
        }
        Err(Failure::Refused(reason)) => {
            // Before it is there again: whoever waits for its memory is not to count on it.
            let until_ns = monotonic_ns().saturating_add(CANNOT_LEAVE_NS);
            shared.registry.borrow_mut().cannot_leave(name, until_ns);
            stays_here(name, shared).await;
            Err(reason)
        }
        Err(Failure::Lost(reason)) => {
            recover_later(stay, &reason, shared);
            Err(reason)
        }
    }
}

/// Brings a tenant back that is away; false if there is no room for it.
async fn bring_back(name: &str, shared: &Rc<Shared>) -> Result<bool, String> {
    let mut movers = {
        let mut residency = shared.residency.borrow_mut();
        let Some(away) = residency.away.get_mut(name) else { return Ok(true) };
        match std::mem::replace(&mut away.stage, Stage::Returning) {
            Stage::There(movers) => movers,
            other => {
                away.stage = other;
                return Ok(false);
            }
        }
    };
    while let Some(mut mover) = movers.pop() {
        match mover.bring_back(move_limit(shared)).await {
            Ok(Back::Yes) => {}
            Ok(Back::NoRoom) => {
                movers.push(mover);
                if let Some(away) = shared.residency.borrow_mut().away.get_mut(name) {
                    // Who is back already follows again.
                    away.processes.retain(|process| movers.iter().any(|mover| mover.moves(process.pid)));
                    away.stage = Stage::There(movers);
                }
                return Ok(false);
            }
            Err(Failure::Refused(reason) | Failure::Lost(reason)) => {
                // One that has no processes any more needs not be brought back.
                let stay = shared.registry.borrow().stay(name).ok();
                match stay.filter(|stay| !stay.pids.is_empty()) {
                    Some(stay) => recover_later(&stay, &reason, shared),
                    None => drop(shared.residency.borrow_mut().away.remove(name)),
                }
                return Err(reason);
            }
        }
    }
    stays_here(name, shared).await;
    tracing::info!(tenant = name, "brought a tenant back");
    Ok(true)
}

/// Processes that came to a tenant that is away.
struct Followers {
    stay: Stay,
    pids: Vec<u32>,
    /// Of those that were there before.
    movers: Vec<Mover>,
}

/// Takes them off too: their memory would stay on the GPU, where none of them can run.
async fn take_off_followers(followers: Followers, shared: Rc<Shared>) {
    let Followers { stay, pids, mut movers } = followers;
    // As in `take_off`: the next daemon is to know of them.
    saving::save(&shared).await;
    let taken_off = Mover::take_off(&pids, move_limit(&shared)).await;
    let mut residency = shared.residency.borrow_mut();
    let Some(away) = residency.away.get_mut(&stay.name) else { return };
    match taken_off {
        Ok(mover) => {
            movers.push(mover);
            for (gpu, held) in stay.held {
                away.has_at_least(gpu, held);
            }
            tracing::info!(
                tenant = stay.name,
                ?pids,
                "suspended processes that came to a tenant that is away"
            );
        }
        Err(Failure::Refused(reason)) => {
            if away.follow_again_ns.is_none() {
                tracing::warn!(
                    tenant = stay.name,
                    ?pids,
                    reason,
                    "cannot suspend processes that came to a tenant that is away"
                );
            }
            away.processes.retain(|process| !pids.contains(&process.pid));
            away.follow_again_ns = Some(monotonic_ns().saturating_add(RETRY.as_nanos() as u64));
        }
        Err(Failure::Lost(reason)) => {
            drop(residency);
            return recover_later(&stay, &reason, &shared);
        }
    }
    away.stage = Stage::There(movers);
}

/// It is on the GPUs, or nothing of it is left to be there.
async fn stays_here(name: &str, shared: &Shared) {
    shared.residency.borrow_mut().away.remove(name);
    set_suspended(shared, name, false).await;
}

/// Nobody knows what became of a tenant's processes: brings them back as often as it takes. Its gates stay closed until then.
fn recover_later(stay: &Stay, reason: &str, shared: &Rc<Shared>) {
    let (name, id) = (stay.name.clone(), stay.id);
    tracing::error!(
        tenant = name,
        reason,
        "a tenant could not be moved: it is brought back as soon as that can be"
    );
    if let Some(away) = shared.residency.borrow_mut().away.get_mut(&name) {
        away.stage = Stage::Lost(reason.to_owned());
    }
    let shared = Rc::clone(shared);
    tokio::task::spawn_local(async move {
        loop {
            let stay = shared.registry.borrow().stay(&name).ok();
            let Some(stay) = stay.filter(|stay| stay.id == id && !stay.pids.is_empty()) else {
                return stays_here(&name, &shared).await;
            };
            match Mover::recover(&stay.pids, move_limit(&shared)).await {
                Ok((Back::Yes, _)) => {
                    stays_here(&name, &shared).await;
                    tracing::info!(tenant = name, "brought a tenant back that could not be moved");
                    return;
                }
                Ok((Back::NoRoom, mover)) => {
                    // From here on it is away like any other.
                    if let Some(away) = shared.residency.borrow_mut().away.get_mut(&name) {
                        away.processes = keys(&stay.pids).collect();
                        away.stage = Stage::There(vec![mover]);
                    }
                    return;
                }
                Err(Failure::Refused(reason) | Failure::Lost(reason)) => {
                    tracing::error!(tenant = name, reason, "a tenant is still not brought back");
                }
            }
            sleep(RETRY).await;
        }
    });
}

/// Brings tenants back whom a daemon before this one had taken off, each as soon as there is room for it.
pub fn bring_back_left(left: Vec<AwayProcess>, shared: &Rc<Shared>) {
    let mut residency = shared.residency.borrow_mut();
    for AwayProcess { tenant, process } in left {
        residency.left.entry(tenant).or_default().push(process);
    }
    for name in residency.left.keys() {
        // Before anybody is let in: who comes back finds the gates closed.
        shared.registry.borrow_mut().set_suspended(name, true);
        tokio::task::spawn_local(bring_back_one_left(name.clone(), Rc::clone(shared)));
    }
}

async fn bring_back_one_left(name: String, shared: Rc<Shared>) {
    let mut mover = None;
    loop {
        let left = shared.residency.borrow_mut().left_of(&name);
        let Some(pids) = left else { return set_suspended(&shared, &name, false).await };
        // Whoever kept them away lives, as a rule, and is bringing them back.
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
                tracing::info!(tenant = name, "a tenant is back that the daemon before had suspended");
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
                    "a tenant that the daemon before had suspended is not back yet"
                );
                mover = None;
            }
        }
    }
}

/// Lets a tenant whom the daemon before had suspended be away like any other from here on, and have its turn, if those of its processes that are away are this daemon's
/// again; else gives the mover back.
fn take_up(name: &str, pids: &[u32], mover: Mover, shared: &Shared) -> Option<Mover> {
    let stay = shared.registry.borrow().stay(name);
    let Some(stay) = stay.ok().filter(|stay| pids.iter().all(|pid| stay.pids.contains(pid))) else {
        return Some(mover);
    };
    let mut residency = shared.residency.borrow_mut();
    let away = Away {
        id: stay.id,
        stage: Stage::There(vec![mover]),
        processes: residency.left.remove(name).unwrap_or_default(),
        is_by_hand: false,
        since_ns: monotonic_ns(),
        bytes: stay.held,
        // Nobody knows what it waits for.
        idle_since_ns: None,
        follow_again_ns: None,
    };
    residency.away.insert(name.to_owned(), away);
    None
}

/// Those of the processes that live.
fn keys(pids: &[u32]) -> impl Iterator<Item = ProcessKey> {
    pids.iter().filter_map(|pid| ProcessKey::of(*pid))
}

fn move_limit(shared: &Shared) -> Duration {
    shared.registry.borrow().config().suspend_limit()
}

impl Away {
    /// It needs so much on a GPU to come back, bytes, or what was known before, if that is more.
    fn has_at_least(&mut self, gpu: GpuIndex, bytes: u64) {
        self.bytes.entry(gpu).and_modify(|known| *known = (*known).max(bytes)).or_insert(bytes);
    }
}

impl Residency {
    /// Processes that are off the GPUs, or on their way.
    pub fn away(&self) -> Vec<AwayProcess> {
        let away = self.away.iter().map(|(tenant, away)| (tenant, &away.processes));
        let all = away.chain(&self.left).flat_map(|(tenant, processes)| {
            processes.iter().map(|process| AwayProcess { tenant: tenant.clone(), process: *process })
        });
        all.collect()
    }

    /// Who is left as the daemon before had suspended it cannot be moved at an administrator's word.
    fn check_is_not_left(&self, name: &str) -> Result<(), String> {
        if self.left.contains_key(name) {
            return Err(format!(
                "`{name}` was suspended when the daemon before this one ended: it is brought back as soon as there is room for it"
            ));
        }
        Ok(())
    }

    /// Who of a tenant is still to be brought back after the daemon before.
    fn left_of(&mut self, name: &str) -> Option<Vec<u32>> {
        let left = self.left.get_mut(name)?;
        left.retain(|process| process.is_alive());
        if left.is_empty() {
            self.left.remove(name);
            return None;
        }
        Some(left.iter().map(|process| process.pid).collect())
    }

    /// Forgets those of whom nobody is left: whoever comes by that name begins on the GPUs. Returns who they were.
    fn forget_the_dead(&mut self, stays: &[Stay]) -> Vec<String> {
        self.tracks.retain(|id, _| stays.iter().any(|stay| stay.id == *id));
        self.told.retain(|id, _| stays.iter().any(|stay| stay.id == *id));
        self.visits.retain(|id, _| stays.iter().any(|stay| stay.id == *id));
        let lives = |name: &str| stays.iter().any(|stay| stay.name == name && !stay.pids.is_empty());
        // Who is on the way is seen to at its end.
        let is_dead = |name: &String, away: &mut Away| matches!(away.stage, Stage::There(_)) && !lives(name);
        self.away.extract_if(.., is_dead).map(|(name, _)| name).collect()
    }

    /// Who came to tenants that are away, and is on the GPUs. They are on their way from here on.
    fn followers(&mut self, stays: &[Stay], now_ns: u64) -> Vec<Followers> {
        let follow = |stay: &Stay| {
            let away = self.away.get_mut(&stay.name).filter(|away| away.id == stay.id)?;
            let is_known = |pid: &u32| away.processes.iter().any(|process| process.pid == *pid);
            let pids: Vec<u32> = stay.pids.iter().copied().filter(|pid| !is_known(pid)).collect();
            if pids.is_empty() || away.follow_again_ns.is_some_and(|again_ns| now_ns < again_ns) {
                return None;
            }
            match std::mem::replace(&mut away.stage, Stage::Followed) {
                Stage::There(movers) => {
                    away.processes.extend(keys(&pids));
                    Some(Followers { stay: stay.clone(), pids, movers })
                }
                other => {
                    away.stage = other;
                    None
                }
            }
        };
        stays.iter().filter_map(follow).collect()
    }

    /// What is to be done next, if anything is, and the GPUs that it claims.
    fn decide(
        &mut self,
        stays: &[Stay],
        free: &Bytes,
        now_ns: u64,
        shared: &Shared,
    ) -> Option<(Move, BTreeSet<GpuIndex>)> {
        let mut seen: Vec<Seen> = stays.iter().map(|stay| self.see(stay, now_ns)).collect();
        let registry = shared.registry.borrow();
        registry.say_what_is_obtainable(&seen, free);
        let waiting: BTreeSet<(TenantId, GpuIndex)> =
            seen.iter().flat_map(|seen| seen.needs.keys().map(|gpu| (seen.id, *gpu))).collect();
        for (id, gpu) in waiting.difference(&self.waiting) {
            registry.press_others(*id, *gpu);
        }
        self.waiting = waiting;
        for (seen, stay) in seen.iter_mut().zip(stays) {
            let is_moving =
                self.away.get(&stay.name).is_some_and(|away| !matches!(away.stage, Stage::There(_)));
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
        let away = self.away.get(&stay.name).filter(|away| away.id == stay.id);
        let (place, since_ns, bytes, idle_since_ns) = match away {
            Some(away) => {
                let place = match away.stage {
                    _ if away.is_by_hand => Place::Fixed,
                    Stage::There(_) => Place::Away,
                    // What it has can be counted on until it is free.
                    Stage::Leaving => Place::Resident,
                    Stage::Followed | Stage::Returning | Stage::Lost(_) => Place::Fixed,
                };
                let idle_since_ns = away.idle_since_ns.filter(|_| !stay.wants);
                (place, away.since_ns, away.bytes.clone(), idle_since_ns)
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

    /// A tenant was taken off that was as it is said to be.
    fn note_visit(&mut self, stay: &Stay) {
        let before = self.visits.get(&stay.id).filter(|before| before.done == stay.done);
        let idle = before.map_or(0, |before| before.idle.saturating_add(1));
        self.visits.insert(stay.id, Visits { done: stay.done, idle });
    }

    /// A tenant is told that there is room as it is.
    fn note_told(&mut self, stay: &Stay) {
        let times = self.told.get(&stay.id).filter(|told| told.is_of(stay)).map_or(0, |told| told.times);
        let told =
            Told { needs: stay.needs.clone(), held: stay.held.clone(), times: times.saturating_add(1) };
        self.told.insert(stay.id, told);
    }
}

impl Told {
    /// Whether it is as it was then: it needs the same, and was given nothing.
    fn is_of(&self, stay: &Stay) -> bool {
        let has_grown = |gpu| stay.held.get(gpu) > self.held.get(gpu);
        self.needs == stay.needs && !self.needs.keys().any(has_grown)
    }
}

/// What is free on each GPU, by NVML; nothing on one that it does not tell of. A driver may take its time: nobody waits for it but who asks.
async fn free(shared: &Shared) -> Bytes {
    let nvml = shared.residency.borrow().nvml.clone();
    let uuids = shared.registry.borrow().gpu_uuids();
    let look = move || {
        let init = || Nvml::builder().lib_path(OsStr::new(NVML_LIBRARY)).init().ok().map(Arc::new);
        let nvml = nvml.or_else(init);
        let free = |uuid: &str| {
            let device = nvml.as_ref()?.device_by_uuid(uuid);
            device.and_then(|device| device.memory_info()).ok().map(|info| info.free)
        };
        let bytes = uuids.iter().enumerate().filter_map(|(gpu, uuid)| Some((gpu, free(uuid)?))).collect();
        (nvml, bytes)
    };
    let Ok((nvml, bytes)) = tokio::task::spawn_blocking(look).await else { return Bytes::new() };
    shared.residency.borrow_mut().nvml = nvml;
    bytes
}

/// Closes a tenant's gates, or opens them again; they are so when this returns.
async fn set_suspended(shared: &Shared, name: &str, is_suspended: bool) {
    let answers = shared.registry.borrow_mut().set_suspended(name, is_suspended);
    for answer in answers {
        // An arbiter that is gone lets everybody go by itself.
        let _ = timeout(ANSWER_LIMIT, answer).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_policy::class::Class;

    #[test]
    fn a_visit_is_idle_in_which_nothing_was_done() {
        let stay = |done| Stay {
            name: "t".to_owned(),
            id: 1,
            class: Class::Fair,
            may_leave: true,
            pids: vec![1],
            held: Bytes::from([(0, 1)]),
            needs: Bytes::new(),
            wants: false,
            done,
        };
        let mut residency = Residency::default();
        let mut idle_visits = |done| {
            residency.note_visit(&stay(done));
            residency.see(&stay(done), 0).idle_visits
        };
        assert_eq!([5, 5, 5, 6, 6].map(&mut idle_visits), [0, 1, 2, 0, 1]);
    }
}
