//! The accounts and leases of a GPU while its tenants write arbitrary values into their meters.

use arbitrary::{Result, Unstructured};
use deepres_abi::PPM;
use deepres_abi::meter::{MeterSlot, Reading};
use deepres_policy::TenantId;
use deepres_policy::arbiter::account::Account;
use deepres_policy::class::Class;
use deepres_policy::lease::{Grant, Phase, Scheduler};
use deepres_policy::tuning::{ASSUMED_HANDOFF_NS, QuantumBounds, Tuning};
use std::sync::atomic::Ordering;

const TENANTS: usize = 3;
const SESSIONS: usize = 2;
/// Most steps of one input. With the longest pauses the clock is still far from its end.
const MAX_STEPS: usize = 256;
/// Longest time between two looks, ns: a year, as after a machine slept for long.
const MAX_PAUSE_NS: u64 = 1 << 55;
/// Time without a daemon after which everything is forgiven, ns. Tenants wait for a heartbeat for
/// less time.
const SILENCE_NS: u64 = 300_000_000;
/// Most looks that may each request another one at once. With more, the arbiter would spin.
const MAX_ROUNDS: usize = 16;

struct Tenant {
    id: TenantId,
    account: Account,
    since_ns: u64,
    sessions: [(MeterSlot, Reading); SESSIONS],
    grant: Grant,
}

struct Gpu {
    now_ns: u64,
    scheduler: Scheduler,
    tuning: Tuning,
    tenants: Vec<Tenant>,
}

/// No meter makes an account go back, or forward by more than the elapsed time. At most one tenant
/// has the GPU, unless owners use it together. Decisions end.
pub fn run(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let mut gpu = Gpu {
        now_ns: 1,
        scheduler: Scheduler::default(),
        tuning: Tuning::derive(ASSUMED_HANDOFF_NS, QuantumBounds::default(), 2),
        tenants: Vec::new(),
    };
    for number in 0..TENANTS {
        gpu.enter(number as TenantId);
    }
    for _ in 0..MAX_STEPS {
        if input.is_empty() || gpu.step(&mut input).is_err() {
            break;
        }
    }
}

impl Gpu {
    fn enter(&mut self, id: TenantId) {
        self.scheduler.enter(id, Class::Fair, self.now_ns);
        let sessions = std::array::from_fn(|_| (MeterSlot::default(), Reading::default()));
        let account = Account::new(self.now_ns);
        self.tenants.push(Tenant { id, account, since_ns: self.now_ns, sessions, grant: Grant::Closed });
    }

    fn step(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        match input.int_in_range(0..=9_u8)? {
            0 => self.scheduler.forgive(self.now_ns, SILENCE_NS),
            1 => {
                let at = input.choose_index(self.tenants.len())?;
                let class = *input.choose(&Class::ALL)?;
                let weight_ppm = input.int_in_range(0..=PPM)?;
                self.scheduler.set_standing(self.tenants[at].id, class, weight_ppm);
            }
            2 => {
                let at = input.choose_index(self.tenants.len())?;
                let gone = self.tenants.remove(at);
                self.scheduler.leave(gone.id, self.now_ns);
                if input.arbitrary()? {
                    self.scheduler.forget(gone.id);
                }
                self.enter(gone.id);
            }
            3 => {
                let handoff_ns = input.arbitrary()?;
                self.tuning = Tuning::derive(handoff_ns, QuantumBounds::default(), 2);
            }
            4..=6 => {
                let at = input.choose_index(self.tenants.len())?;
                let session = input.choose_index(SESSIONS)?;
                scribble(&self.tenants[at].sessions[session].0, input)?;
            }
            _ => {
                let pause_ns = match input.int_in_range(0..=3_u8)? {
                    0 => 0,
                    1 => u64::from(input.arbitrary::<u16>()?),
                    2 => u64::from(input.arbitrary::<u32>()?),
                    _ => input.int_in_range(0..=MAX_PAUSE_NS)?,
                };
                self.now_ns = self.now_ns.saturating_add(pause_ns);
                self.look();
                self.decide();
            }
        }
        Ok(())
    }

    fn look(&mut self) {
        for tenant in &mut self.tenants {
            let before = tenant.account.totals;
            let meters = tenant.sessions.iter_mut().map(|(slot, last)| {
                let reading = slot.read();
                (std::mem::replace(last, reading), reading)
            });
            let seen = tenant.account.look(self.now_ns, false, meters.collect::<Vec<_>>().into_iter());
            tenant.account.mark(self.now_ns);
            self.scheduler.observe(tenant.id, self.now_ns, seen);
            let after = tenant.account.totals;
            assert_eq!(after.gpu_ns - before.gpu_ns, seen.used_ns);
            let lived_ns = self.now_ns - tenant.since_ns;
            assert!(after.gpu_ns <= lived_ns, "{} ns charged in {lived_ns} ns", after.gpu_ns);
            assert!(before.copy_ns <= after.copy_ns && before.waits <= after.waits);
            assert!(before.wait_ns <= after.wait_ns && before.refusals <= after.refusals);
            assert!(tenant.account.recent_share_ppm(self.now_ns) <= PPM);
            assert!(tenant.account.total_share_ppm(self.now_ns) <= PPM);
            self.scheduler.lag_ns(tenant.id);
        }
    }

    fn decide(&mut self) {
        for round in 0.. {
            let wake_ns = self.scheduler.decide(self.now_ns, &self.tuning);
            self.scheduler.take_handoffs();
            for change in self.scheduler.take_changes() {
                if let Some(tenant) = self.tenants.iter_mut().find(|tenant| tenant.id == change.tenant) {
                    tenant.grant = change.grant;
                }
            }
            let holders = self.tenants.iter().filter(|tenant| tenant.grant != Grant::Closed).count();
            let are_together = self.scheduler.phase() == Phase::Together;
            assert!(holders <= 1 || are_together, "{holders} tenants have the GPU at once");
            if wake_ns.is_none_or(|wake_ns| wake_ns > self.now_ns) {
                return;
            }
            assert!(
                round < MAX_ROUNDS,
                "the arbiter would spin: it wants to be woken at {wake_ns:?}, it is {}",
                self.now_ns
            );
        }
    }
}

/// Writes arbitrary numbers into some of a meter's words.
fn scribble(slot: &MeterSlot, input: &mut Unstructured<'_>) -> Result<()> {
    slot.waiters.store(input.arbitrary()?, Ordering::Relaxed);
    slot.in_flight.store(input.arbitrary()?, Ordering::Relaxed);
    let words = [
        &slot.in_flight_ns,
        &slot.compute_ns,
        &slot.copy_ns,
        &slot.occupied_ns,
        &slot.wait_ns,
        &slot.waits,
        &slot.kernel_launches,
        &slot.graph_launches,
        &slot.longest_ns,
        &slot.refusals,
    ];
    let chosen: u16 = input.arbitrary()?;
    for (at, word) in words.into_iter().enumerate() {
        if chosen & (1 << at) != 0 {
            word.store(input.arbitrary()?, Ordering::Relaxed);
        }
    }
    Ok(())
}
