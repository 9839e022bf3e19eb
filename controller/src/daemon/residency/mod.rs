//! Tenants whose memory makes room for others': looks who needs memory, asks [`crate::policy::residency`], and has tenants taken off the GPUs
//! and brought back.

mod mover;

use super::Shared;
use super::administrators::reports;
use super::registry::Stay;
use crate::clock::monotonic_ns;
use crate::policy::TenantId;
use crate::policy::residency::{Bytes, Move, Place, Seen, Times, decide};
use mover::{Back, Mover};
use nvml_wrapper::Nvml;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::rc::Rc;
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
const NVML_LIBRARY: &str = "libnvidia-ml.so.1";

/// What is known beyond the registry.
#[derive(Debug, Default)]
pub struct Residency {
    away: BTreeMap<String, Away>,
    tracks: BTreeMap<TenantId, Track>,
    nvml: Option<Nvml>,
}

/// A tenant that is off the GPUs.
#[derive(Debug)]
struct Away {
    id: TenantId,
    mover: Mover,
    is_by_hand: bool,
    since_ns: u64,
    bytes: Bytes,
    idle_since_ns: Option<u64>,
}

/// A tenant that is on them.
#[derive(Debug, Clone, Copy)]
struct Track {
    since_ns: u64,
    idle_since_ns: Option<u64>,
}

/// Looks and moves, for ever.
pub async fn serve(shared: Rc<Shared>) {
    loop {
        let is_needed = shared.registry.borrow().is_oversubscribed();
        let mut residency = shared.residency.lock().await;
        if is_needed || !residency.away.is_empty() {
            residency.look(&shared).await;
        }
        drop(residency);
        sleep(if is_needed { TICK } else { IDLE_TICK }).await;
    }
}

/// Takes a tenant off at an administrator's word.
///
/// # Errors
/// What to tell the administrator.
pub async fn suspend(name: &str, shared: &Shared) -> Result<(), String> {
    let mut residency = shared.residency.lock().await;
    let stay = shared.registry.borrow().stay(name)?;
    if let Some(away) = residency.away.get_mut(name) {
        away.is_by_hand = true;
        return Ok(());
    }
    residency.take_off(&stay, true, shared).await
}

/// Brings a tenant back at an administrator's word; one that is not away is left as it is.
///
/// # Errors
/// What to tell the administrator.
pub async fn resume(name: &str, shared: &Shared) -> Result<(), String> {
    let mut residency = shared.residency.lock().await;
    match residency.away.get_mut(name) {
        None => return Ok(()),
        // From here on it comes back by itself as soon as there is room.
        Some(away) => away.is_by_hand = false,
    }
    match residency.bring_back(name, shared).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!(
            "others have the GPU's memory now: `{name}` is brought back once there is room for it"
        )),
        Err(reason) => Err(reason),
    }
}

impl Residency {
    async fn look(&mut self, shared: &Shared) {
        let Some(reports) = reports(shared).await else { return };
        let now_ns = monotonic_ns();
        let stays = shared.registry.borrow().stays(&reports);
        let gone: Vec<String> = self
            .away
            .keys()
            .filter(|name| !stays.iter().any(|stay| stay.name == **name && !stay.pids.is_empty()))
            .cloned()
            .collect();
        for name in gone {
            // Nobody is left of it: whoever comes by that name begins on the GPUs.
            self.away.remove(&name);
            set_suspended(shared, &name, false).await;
        }
        self.tracks.retain(|id, _| stays.iter().any(|stay| stay.id == *id));
        let seen: Vec<Seen> = stays.iter().map(|stay| self.see(stay, now_ns)).collect();
        let free = self.free(shared);
        shared.registry.borrow().say_who_may_wait(&seen, &free);
        let turn_ns = shared.registry.borrow().config().suspend_turn_ns();
        let Some(Move { leave, enter }) = decide(now_ns, &free, &seen, Times { turn_ns, idle_ns: IDLE_NS })
        else {
            return;
        };
        let stay = |id: TenantId| stays.iter().find(|stay| stay.id == id);
        for leaver in leave.into_iter().filter_map(stay) {
            if let Err(reason) = self.take_off(leaver, false, shared).await {
                tracing::warn!(tenant = leaver.name, reason, "cannot suspend a tenant");
                // It is not asked again at once.
                if let Some(track) = self.tracks.get_mut(&leaver.id) {
                    track.since_ns = monotonic_ns();
                    track.idle_since_ns = None;
                }
                return;
            }
        }
        let Some(enters) = stay(enter) else { return };
        if self.away.contains_key(&enters.name) {
            match self.bring_back(&enters.name, shared).await {
                Ok(_) => {}
                Err(reason) => tracing::error!(tenant = enters.name, reason, "cannot bring a tenant back"),
            }
        } else {
            shared.registry.borrow().announce_room(&enters.name);
        }
    }

    fn see(&mut self, stay: &Stay, now_ns: u64) -> Seen {
        let away = self.away.get(&stay.name).filter(|away| away.id == stay.id);
        let (place, since_ns, bytes, idle_since_ns) = match away {
            Some(away) => {
                let place = if away.is_by_hand { Place::Fixed } else { Place::Away };
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
            needs: stay.needs.clone(),
        }
    }

    /// What is free on each GPU, by NVML; nothing on one that it does not tell of.
    fn free(&mut self, shared: &Shared) -> Bytes {
        if self.nvml.is_none() {
            self.nvml = Nvml::builder().lib_path(OsStr::new(NVML_LIBRARY)).init().ok();
        }
        let Some(nvml) = &self.nvml else { return Bytes::new() };
        let uuids = shared.registry.borrow().gpu_uuids();
        let free = |uuid: &str| {
            nvml.device_by_uuid(uuid).and_then(|device| device.memory_info()).ok().map(|info| info.free)
        };
        uuids.iter().enumerate().filter_map(|(gpu, uuid)| Some((gpu, free(uuid)?))).collect()
    }

    async fn take_off(&mut self, stay: &Stay, is_by_hand: bool, shared: &Shared) -> Result<(), String> {
        if stay.pids.is_empty() {
            return Err(format!("no process of `{}` uses a GPU: there is nothing to suspend", stay.name));
        }
        let before = self.free(shared);
        set_suspended(shared, &stay.name, true).await;
        // What is in flight is waited for here, where it is charged, and not in the driver.
        let drained = async {
            while shared.registry.borrow().has_work(&stay.name) {
                sleep(TICK / 4).await;
            }
        };
        let _ = timeout(DRAIN_LIMIT, drained).await;
        match Mover::take_off(&stay.pids).await {
            Ok(mover) => {
                let after = self.free(shared);
                let freed = |(gpu, now): (usize, u64)| {
                    (gpu, now.saturating_sub(before.get(&gpu).copied().unwrap_or(now)))
                };
                let mut bytes: Bytes = after.into_iter().map(freed).filter(|(_, bytes)| *bytes > 0).collect();
                for (gpu, held) in &stay.held {
                    bytes.entry(*gpu).and_modify(|bytes| *bytes = (*bytes).max(*held)).or_insert(*held);
                }
                let idle_since_ns = self.tracks.remove(&stay.id).and_then(|track| track.idle_since_ns);
                let since_ns = monotonic_ns();
                tracing::info!(tenant = stay.name, is_by_hand, ?bytes, "suspended a tenant");
                let away = Away { id: stay.id, mover, is_by_hand, since_ns, bytes, idle_since_ns };
                self.away.insert(stay.name.clone(), away);
                Ok(())
            }
            Err(reason) => {
                set_suspended(shared, &stay.name, false).await;
                Err(reason)
            }
        }
    }

    /// Brings a tenant back; false if there is no room for it.
    async fn bring_back(&mut self, name: &str, shared: &Shared) -> Result<bool, String> {
        let Some(away) = self.away.get_mut(name) else { return Ok(true) };
        match away.mover.bring_back().await {
            Back::NoRoom => Ok(false),
            Back::Yes => {
                self.away.remove(name);
                set_suspended(shared, name, false).await;
                tracing::info!(tenant = name, "brought a tenant back");
                Ok(true)
            }
            Back::Failed(reason) => {
                self.away.remove(name);
                set_suspended(shared, name, false).await;
                Err(reason)
            }
        }
    }
}

/// Closes a tenant's gates, or opens them again; they are so when this returns.
async fn set_suspended(shared: &Shared, name: &str, is_suspended: bool) {
    let answers = shared.registry.borrow_mut().set_suspended(name, is_suspended);
    for answer in answers {
        // An arbiter that is gone lets everybody go by itself.
        let _ = timeout(ANSWER_LIMIT, answer).await;
    }
}
