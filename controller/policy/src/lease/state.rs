//! What the scheduler remembers of a tenant and of a hold, and what follows from either alone.

use super::trust::UserId;
use super::{Grant, Seen, ns};
use crate::TenantId;
use crate::class::Class;
use crate::entitlement::IDLE_NS;
use crate::tuning::Tuning;
use core::time::Duration;
use deepres_abi::PPM;

/// A tenant that wants nothing for longer than this is idle, and owed nothing when it is back; for less, it is between two pieces of work (a Python
/// program's step has gaps of some milliseconds) and keeps what it is owed …
const SHORT_IDLE_NS: u64 = ns(Duration::from_millis(20));
/// … up to so much GPU time, if the GPU waited for it ([`patience`]). If others had the GPU meanwhile it left them what it was owed: it keeps a
/// quantum, by which it is served soon, and nobody else is behind for more.
pub const MAX_CREDIT_NS: u64 = ns(Duration::from_millis(100));
/// GPU time that a tenant owes at most: this …
const DEBT_NS: u64 = ns(Duration::from_millis(250));
/// … or what it took twice at once, which is how a long kernel is charged …
const CHARGES_OWED: u64 = 2;
/// … but not more than this. Nobody starves for what happened once.
pub const MAX_DEBT_NS: u64 = ns(Duration::from_secs(1));
/// A holder whose threads are on their way from the gate is not charged for that long: a wake-up on a busy machine. All that is let pass so is
/// not more than this at once …
const START_LIMIT_NS: u64 = ns(Duration::from_millis(10));
/// … and not more of the time than this part, one in so many.
const LENIENCE_PART: u64 = 10;
/// An idle holder that is owed GPU time is waited for if its pauses are at most this part of its work (one in so many).
const WORK_PER_PAUSE: u64 = 10;
/// … or, at its own cost, if they are at most this part of it, and shorter than another's turn …
const WORK_PER_CHARGED_PAUSE: u64 = 2;
/// … and no longer than this many of its usual pauses.
const PAUSES_OF_PATIENCE: u64 = 2;
/// See [`Forfeited`].
const FORFEITED_PART: u64 = 20;
/// At once a tenant lost no more than so many of its usual bursts: what it did not want it did not lose.
const BURSTS_LOST: u64 = 10;
/// Weight of the newest pause or burst in the running means: one in so many.
const MEAN_DIVISOR: u64 = 8;

/// GPU time over weight: ns × [`PPM`] / weight.
pub type VirtualTime = u128;

/// Whether a tenant competes for the GPU, or has it while nobody does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rank {
    Owner,
    Guest,
}

impl Rank {
    pub fn of(class: Class) -> Self {
        if class == Class::BestEffort { Self::Guest } else { Self::Owner }
    }
}

#[derive(Debug)]
pub struct Tenant {
    pub rank: Rank,
    pub weight_ppm: u32,
    /// How soon its requests are to be answered, ns.
    pub slo_ns: Option<u64>,
    pub vtime: VirtualTime,
    /// What was charged up to `old_vtime` was charged at this weight, on average; the rest at the present one.
    pub old_weight_ppm: u32,
    pub old_vtime: VirtualTime,
    /// Whose it is; nobody else's, if that is not known.
    pub user: Option<UserId>,
    /// It is new, and takes over what tenants of its user owe that are gone once it wants the GPU.
    pub takes_over: bool,
    /// What it owed when it left, ns.
    pub left_owing_ns: u64,
    /// GPU time that it showed a use of, ns.
    pub metered_ns: u64,
    /// It has sessions on this GPU …
    pub present: bool,
    /// … since then.
    pub came_ns: u64,
    /// An administrator paused it.
    pub is_paused: bool,
    pub seen: Seen,
    /// It wanted the GPU at the last decision.
    pub wanted: bool,
    /// It used the GPU since.
    pub has_used: bool,
    pub stopped_wanting_ns: u64,
    /// When it was last seen to have used the GPU: who always pauses when it is looked at does.
    pub used_at_ns: u64,
    pub last_progress_ns: u64,
    /// The most that was charged at once, ns.
    pub largest_charge_ns: u64,
    /// Charged for time held without any metered use; what is metered later is set off against it.
    pub advance_ns: u64,
    /// GPU time used since it last began to want the GPU, and the running means of such bursts and of the pauses between them.
    pub burst_ns: u64,
    pub mean_burst_ns: u64,
    pub mean_pause_ns: u64,
    /// What it lost because others had the GPU while it paused for a moment, less what the GPU idled for it since.
    pub forfeited: Forfeited,
    /// What of the GPU time that it held and shows no use of is let pass.
    pub lenience: Lenience,
    /// It did not drain in time, and has neither drained since nor got done what explains it.
    pub stuck: Option<Stuck>,
    /// What it is owed changed, and it was not given the GPU since.
    pub new_quota: Option<NewQuota>,
    pub grant: Grant,
}

fn gpu_ns(vtime: VirtualTime, weight_ppm: u32) -> u64 {
    let gpu_ns = vtime.saturating_mul(VirtualTime::from(weight_ppm)) / VirtualTime::from(PPM);
    u64::try_from(gpu_ns).unwrap_or(u64::MAX)
}

impl Tenant {
    /// It has sessions, and may run.
    pub fn is_here(&self) -> bool {
        self.present && !self.is_paused
    }

    /// It has wanted nothing for [`IDLE_NS`], or is not to run.
    pub fn is_idle(&self, now_ns: u64) -> bool {
        let since_ns = self.stopped_wanting_ns.max(self.came_ns).max(self.used_at_ns);
        let wants = self.wanted || self.seen.wants();
        self.is_paused || (!wants && now_ns.saturating_sub(since_ns) >= IDLE_NS)
    }

    /// It wants nothing, and is between two pieces of work.
    pub fn is_back_soon(&self, now_ns: u64) -> bool {
        self.metered_ns > 0 && !self.wanted && now_ns.saturating_sub(self.stopped_wanting_ns) <= SHORT_IDLE_NS
    }

    /// It wants nothing, and its meters say what they said before.
    pub fn still_rests(&self, seen: &Seen) -> bool {
        self.seen == *seen && !seen.wants() && seen.used_ns == 0 && self.stuck.is_none()
    }

    /// It is of those that are to be answered soon, and has asked for something before.
    pub fn is_answering(&self) -> bool {
        self.has_objective() && self.metered_ns > 0
    }

    /// It is of those that are to be answered soon.
    pub fn has_objective(&self) -> bool {
        self.rank == Rank::Owner && self.slo_ns.is_some()
    }

    /// What its gate says while it has to wait.
    pub fn closed(&self) -> Grant {
        if self.is_paused { Grant::Paused } else { Grant::Closed }
    }

    /// The GPU waited for it since it stopped wanting it.
    pub fn has_kept(&self, id: TenantId, hold: Option<&Hold>) -> bool {
        hold.is_some_and(|hold| {
            hold.tenant == id && hold.since_ns <= self.stopped_wanting_ns && hold.drain_give_up_ns.is_none()
        })
    }

    pub fn weighted(&self, gpu_ns: u64) -> VirtualTime {
        VirtualTime::from(gpu_ns) * VirtualTime::from(PPM) / VirtualTime::from(self.weight_ppm.max(1))
    }

    /// GPU time of so much virtual time, ns.
    pub fn gpu_ns(&self, vtime: VirtualTime) -> u64 {
        gpu_ns(vtime, self.weight_ppm)
    }

    /// GPU time by which it is behind another, while they are at these virtual times, ns.
    pub fn behind_ns(&self, own: VirtualTime, others: VirtualTime) -> u64 {
        self.gpu_ns(others.saturating_sub(own))
    }

    /// GPU time by which it is ahead of the clock of its rank, at the weights that it was charged at, ns.
    pub fn owing_ns(&self, vclock: VirtualTime) -> u64 {
        let old = self.vtime.min(self.old_vtime).saturating_sub(vclock);
        let new = self.vtime.saturating_sub(vclock.max(self.old_vtime));
        gpu_ns(old, self.old_weight_ppm).saturating_add(self.gpu_ns(new))
    }

    /// Gives it another weight. What it was charged before keeps the weight of that time, but that it does not owe more GPU time for having more weight: what
    /// it had while it was owed next to nothing would be seconds. Nor does it owe less for having had less weight meanwhile.
    pub fn set_weight(&mut self, weight_ppm: u32, vclock: VirtualTime) {
        let ahead = self.vtime.saturating_sub(vclock);
        if ahead == 0 {
            (self.weight_ppm, self.old_weight_ppm, self.old_vtime) = (weight_ppm, 0, self.vtime);
            return;
        }
        let owing_ns = self.owing_ns(vclock);
        self.weight_ppm = weight_ppm;
        let kept = ahead.min(self.weighted(owing_ns));
        self.vtime -= ahead - kept;
        self.old_vtime = self.vtime;
        let average_ppm =
            (VirtualTime::from(owing_ns) * VirtualTime::from(PPM)).checked_div(kept).unwrap_or(0);
        self.old_weight_ppm = u32::try_from(average_ppm).unwrap_or(PPM).min(PPM);
    }

    /// It begins to want the GPU, and has lost so much of what it was owed.
    pub fn forfeit(&mut self, lost: VirtualTime, now_ns: u64) {
        let lost_ns = self.gpu_ns(lost).min(self.mean_burst_ns.saturating_mul(BURSTS_LOST));
        self.forfeited.add(lost_ns, now_ns);
    }

    pub fn charge(&mut self, gpu_ns: u64) {
        self.largest_charge_ns = self.largest_charge_ns.max(gpu_ns);
        self.vtime += self.weighted(gpu_ns);
    }

    /// The virtual time that it is at, at most, while the clock of its rank stands there.
    pub fn most_ahead(&self, vclock: VirtualTime) -> VirtualTime {
        vclock.saturating_add(self.weighted(self.max_debt_ns()))
    }

    pub fn max_debt_ns(&self) -> u64 {
        self.largest_charge_ns.saturating_mul(CHARGES_OWED).clamp(DEBT_NS, MAX_DEBT_NS)
    }
}

/// How what somebody is owed changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewQuota {
    More,
    Less,
}

/// What is known of a tenant since the beginning of a hold after which it did not drain in time.
#[derive(Debug, Clone, Copy)]
pub struct Stuck {
    pub since_ns: u64,
    /// GPU time that it got done since.
    pub used_ns: u64,
}

impl Stuck {
    /// Whether it got so much done that something long has ended.
    pub fn is_over(&self, now_ns: u64) -> bool {
        is_explained(self.used_ns, now_ns.saturating_sub(self.since_ns))
    }
}

/// What is let pass: a thread that wakes up late now and then is not charged for it, one that always does is.
#[derive(Debug, Clone, Copy)]
pub struct Lenience {
    left_ns: u64,
    at_ns: u64,
    /// Tenants of its user that are here, itself too: it is let pass to all of them together.
    among: u64,
}

impl Default for Lenience {
    fn default() -> Self {
        Self { left_ns: 0, at_ns: 0, among: 1 }
    }
}

impl Lenience {
    fn left_ns(self, now_ns: u64) -> u64 {
        let earned_ns = now_ns.saturating_sub(self.at_ns) / LENIENCE_PART / self.among;
        self.left_ns.saturating_add(earned_ns).min(START_LIMIT_NS)
    }

    fn spend(&mut self, ns: u64, now_ns: u64) {
        *self = Self { left_ns: self.left_ns(now_ns).saturating_sub(ns), at_ns: now_ns, ..*self };
    }

    /// The same with nothing left of it.
    pub fn spent(self, now_ns: u64) -> Self {
        Self { left_ns: 0, at_ns: now_ns, ..self }
    }

    /// From now on it is that of so many tenants.
    pub fn divide(&mut self, among: u64, now_ns: u64) {
        self.spend(0, now_ns);
        self.among = among.max(1);
    }
}

/// GPU time that a tenant was owed and lost. A little of its time, one part in so many, is not worth a GPU that idles.
#[derive(Debug, Clone, Copy, Default)]
pub struct Forfeited {
    ns: u64,
    at_ns: u64,
}

impl Forfeited {
    pub fn ns(self, now_ns: u64) -> u64 {
        self.ns.saturating_sub(now_ns.saturating_sub(self.at_ns) / FORFEITED_PART)
    }

    pub fn add(&mut self, ns: u64, now_ns: u64) {
        *self = Self { ns: self.ns(now_ns).saturating_add(ns).min(MAX_CREDIT_NS), at_ns: now_ns };
    }

    pub fn redeem(&mut self, ns: u64, now_ns: u64) {
        *self = Self { ns: self.ns(now_ns).saturating_sub(ns), at_ns: now_ns };
    }
}

/// Since when others wait for a hold to end, and what the holder had used by then.
#[derive(Debug, Clone, Copy)]
pub struct Contended {
    pub since_ns: u64,
    pub used_ns: u64,
    /// What they are owed changed meanwhile: its lease lasts only until it is as far as they are.
    pub catches_up: bool,
}

/// One hold of the GPU, from grant to drain.
#[derive(Debug, Clone, Copy)]
pub struct Hold {
    pub tenant: TenantId,
    pub since_ns: u64,
    pub used_ns: u64,
    /// Something of the holder was in flight.
    pub ran: bool,
    /// The holder was seen idle.
    pub paused: bool,
    pub idle_since_ns: Option<u64>,
    /// Others of its rank wait for it to end: its leases are a quantum long.
    pub contended: Option<Contended>,
    /// While it drains: since when, and when that is given up.
    pub closed_ns: Option<u64>,
    pub drain_give_up_ns: Option<u64>,
    /// When the first work that had waited for the hold began, and the last that is done ended, if that is told.
    pub began_ns: Option<u64>,
    pub ended_ns: Option<u64>,
    /// While it may launch one thing: since when.
    pub once_since_ns: Option<u64>,
    /// The holder had gained by a new quota when it was given the GPU.
    pub has_gained: bool,
}

/// What an owner had got done at a decision.
#[derive(Debug, Clone, Copy)]
pub struct Noted {
    /// When it was given the GPU: what tells one hold from another.
    pub hold_ns: u64,
    pub at_ns: u64,
    pub used_ns: u64,
    pub wants: bool,
}

impl Hold {
    /// From now on others wait for its end, if they did not before.
    pub fn contend(self, now_ns: u64) -> Self {
        let began = Contended { since_ns: now_ns, used_ns: self.used_ns, catches_up: false };
        Self { contended: Some(self.contended.unwrap_or(began)), ..self }
    }

    /// Whether it ends once the holder is as far as the others.
    pub fn catches_up(&self) -> bool {
        self.contended.is_some_and(|contended| contended.catches_up)
    }

    /// From now on it does: what everybody is owed changed.
    pub fn catch_up(self, now_ns: u64) -> Self {
        let Self { contended, .. } = self.contend(now_ns);
        Self { contended: contended.map(|contended| Contended { catches_up: true, ..contended }), ..self }
    }

    /// What its ways in and out cost at `now_ns`, if its sessions tell: the GPU's idling between the gate's opening and the first work, and between the end of what
    /// was in flight when the gate closed and now. Nothing is told by who did not wait for the gate to open.
    pub fn edges_ns(&self, now_ns: u64) -> Option<u64> {
        let way_in_ns = self.began_ns?.saturating_sub(self.since_ns);
        let idle_since_ns = self.closed_ns.map(|closed_ns| self.ended_ns.unwrap_or(0).max(closed_ns));
        let way_out_ns = idle_since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
        Some(way_in_ns.saturating_add(way_out_ns))
    }

    /// The hold as if it began now, after `silent_ns` in which nobody governed: so much longer it may drain.
    pub fn renew(self, now_ns: u64, silent_ns: u64) -> Self {
        Self {
            since_ns: now_ns,
            idle_since_ns: self.idle_since_ns.map(|_| now_ns),
            contended: self.contended.map(|contended| Contended {
                since_ns: now_ns,
                used_ns: self.used_ns,
                ..contended
            }),
            closed_ns: self.closed_ns.map(|_| now_ns),
            drain_give_up_ns: self.drain_give_up_ns.map(|at_ns| at_ns.saturating_add(silent_ns)),
            began_ns: None,
            once_since_ns: self.once_since_ns.map(|_| now_ns),
            ..self
        }
    }

    /// Time for which others waited and that the holder had without a meter to show for it: pauses in which the GPU was kept for it too. A meter
    /// lags behind a little, and a program may launch more slowly than the GPU runs; one that shows less than half is not believed. So nobody
    /// has more than twice what it is charged for, whatever it says of itself, but for [`Lenience`].
    fn unshown_ns(&self, now_ns: u64) -> u64 {
        let Some(Contended { since_ns, used_ns, .. }) = self.contended else { return 0 };
        let (had_ns, used_ns) = (now_ns.saturating_sub(since_ns), self.used_ns.saturating_sub(used_ns));
        if is_explained(used_ns, had_ns) { 0 } else { had_ns.saturating_sub(used_ns) }
    }
}

/// Whether a meter that shows so much for that time of having the GPU is believed.
fn is_explained(used_ns: u64, had_ns: u64) -> bool {
    used_ns >= had_ns / 2
}

/// GPU time that a holder has begun and was not charged for: what it says is in flight, or the time since it was last seen to
/// get on.
pub fn begun_ns(hold: &Hold, holder: &Tenant, now_ns: u64) -> u64 {
    let silent_ns = now_ns.saturating_sub(holder.last_progress_ns.max(hold.since_ns));
    let begun_ns = match holder.seen {
        Seen { in_flight: true, pending_ns, .. } => pending_ns.max(silent_ns),
        Seen { waiting: true, .. } => silent_ns.saturating_sub(START_LIMIT_NS),
        _ => 0,
    };
    begun_ns.max(unexplained_ns(hold, holder, now_ns)).min(MAX_DEBT_NS)
}

/// What of the time that a holder had without showing a use of it is not let pass: all of it, if it ran all the time and shows nothing at all.
fn unexplained_ns(hold: &Hold, holder: &Tenant, now_ns: u64) -> u64 {
    let is_mute = hold.used_ns == 0 && hold.ran && !hold.paused;
    let let_pass_ns = if is_mute { 0 } else { holder.lenience.left_ns(now_ns) };
    hold.unshown_ns(now_ns).saturating_sub(let_pass_ns)
}

impl Tenant {
    /// Charges what a hold that is over had and did not show. What is metered of it later is set off against that. Returns how much it was, ns.
    pub fn settle(&mut self, hold: &Hold, now_ns: u64) -> u64 {
        let unexplained_ns = unexplained_ns(hold, self, now_ns);
        self.lenience.spend(hold.unshown_ns(now_ns) - unexplained_ns, now_ns);
        self.charge_in_advance(unexplained_ns);
        unexplained_ns
    }

    /// Charges what is in no meter. What is metered later is set off against it.
    pub fn charge_in_advance(&mut self, gpu_ns: u64) {
        if gpu_ns > 0 {
            self.charge(gpu_ns);
            self.advance_ns = self.advance_ns.saturating_add(gpu_ns);
        }
    }

    /// What runs into the turns of others if work is waited for no more that the tenant says it has, ns: what a window has room for, less what it was
    /// waited for. Whoever says that it is never done pays for that each time.
    pub fn overrun_ns(&self, hold: &Hold, window_ns: u64, now_ns: u64) -> u64 {
        let waited_ns = hold.closed_ns.map_or(0, |closed_ns| now_ns.saturating_sub(closed_ns));
        self.seen.pending_ns.min(window_ns).saturating_sub(waited_ns)
    }
}

/// GPU time that a tenant is owed at most when it wants the GPU again after a pause, over which it kept the GPU or left it to others.
pub fn credit_ns(pause_ns: u64, has_kept: bool, tuning: &Tuning) -> u64 {
    match pause_ns {
        ..=SHORT_IDLE_NS if has_kept => MAX_CREDIT_NS,
        ..=SHORT_IDLE_NS => tuning.quantum_ns.min(MAX_CREDIT_NS),
        _ => 0,
    }
}

/// How long an idle holder keeps the GPU while others wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    pub ns: u64,
    /// What the GPU idles for it, but for what a hand-off takes, it is charged for.
    pub is_charged: bool,
}

/// A tenant that is behind and pauses between bursts of work is waited for: else whoever never pauses, `next`, would get the GPU at each pause and keep it for a
/// turn or a whole kernel, and who was promised half the GPU would have a tenth. Where that is worth more than a little of its work it pays for it, and is waited for only as far as
/// it lost something by not being waited for; a gang's ranks are in any case, since none of them could go on without the others.
pub fn patience(
    holder: &Tenant,
    next: &Tenant,
    is_behind: bool,
    is_gang: bool,
    now_ns: u64,
    tuning: &Tuning,
) -> Patience {
    let pause_ns = holder.mean_pause_ns;
    let of = |worth_ns: u64, is_charged| {
        let ns = tuning.grace_ns.max(pause_ns.saturating_mul(PAUSES_OF_PATIENCE).min(worth_ns));
        Patience { ns, is_charged }
    };
    let free_ns = holder.mean_burst_ns / WORK_PER_PAUSE;
    // Who is away for longer than that keeps nothing of what it is owed.
    let turn_ns = tuning.quantum_ns.max(next.seen.longest_ns).min(SHORT_IDLE_NS);
    let charged_ns = (holder.mean_burst_ns / WORK_PER_CHARGED_PAUSE).min(turn_ns);
    let forfeited_ns = holder.forfeited.ns(now_ns);
    match is_behind {
        true if pause_ns <= free_ns => of(free_ns, false),
        true if pause_ns <= charged_ns && is_gang => of(charged_ns, true),
        true if pause_ns <= charged_ns && forfeited_ns > tuning.quantum_ns => {
            of(charged_ns.min(forfeited_ns), true)
        }
        _ => of(0, false),
    }
}

/// The running mean with one more value in it; the first value is the mean.
pub fn mean(before: u64, value: u64) -> u64 {
    if before == 0 { value } else { before - before / MEAN_DIVISOR + value / MEAN_DIVISOR }
}
