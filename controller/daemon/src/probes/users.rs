//! The processes that use a GPU and belong to no tenant: pure bookkeeping, with the time as an
//! argument.
//!
//! A process that starts or execs calls the driver a moment before it connects. So each process has
//! a time to connect (`GRACE_NS`) after the daemon first saw it use a GPU. The daemon looks at the
//! process once more before it reports the process.

use deepres_model::process::ProcessKey;
use std::collections::BTreeMap;

/// The time within which a process may connect before the daemon reports it, ns. With this time,
/// the daemon still reports a process within a second.
pub const GRACE_NS: u64 = 400_000_000;
/// Time after the daemon's start in which it reports no process, because tenants of the previous
/// daemon reconnect.
pub const START_NS: u64 = 2_000_000_000;
/// The time between two checks whether a reported process still uses the GPU.
const LOOK_NS: u64 = 1_000_000_000;

/// The way in which the daemon saw that a process uses a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Evidence {
    /// The eBPF programs reported an ioctl of the process on a GPU device.
    Ioctl,
    /// NVML lists the process among the processes on a GPU.
    Nvml,
    /// The process has a GPU device open.
    Descriptor,
    /// The process has memory of a GPU device mapped.
    Mapping,
}

impl Evidence {
    /// Returns the evidence's name, as the status shows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ioctl => "ioctl",
            Self::Nvml => "nvml",
            Self::Descriptor => "descriptor",
            Self::Mapping => "mapping",
        }
    }
}

/// A process that uses the GPU and belongs to no tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The time at which the daemon first saw the process use a GPU, ns.
    pub since_ns: u64,
    /// The ways in which the daemon saw the process, each once.
    pub evidence: Vec<Evidence>,
    /// Whether the process computes. If not, it only talks to the driver.
    pub is_compute: bool,
    /// Whether the daemon has reported the process.
    pub is_reported: bool,
    /// The time at which the daemon reported the process, ns.
    pub reported_ns: u64,
    /// The time at which the daemon last looked at the process, ns.
    looked_ns: u64,
}

/// A change of the list of unmanaged processes that the daemon reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The daemon found a process that uses the GPU and belongs to no tenant.
    Found(ProcessKey),
    /// The daemon has found out that a reported process computes.
    Computes(ProcessKey),
    /// A reported process no longer uses the GPU, or belongs to a tenant now.
    Gone(ProcessKey),
    /// A computing process made ioctls, and stopped using the GPU before the daemon could report
    /// it.
    Passed(ProcessKey),
}

/// All processes that use a GPU and belong to no tenant.
#[derive(Debug)]
pub struct Users {
    users: BTreeMap<ProcessKey, User>,
    /// The time before which the daemon reports no process, ns.
    quiet_until_ns: u64,
}

impl Users {
    /// Returns the empty state of a daemon that starts at `now_ns`.
    pub fn at_start(now_ns: u64) -> Self {
        Self { users: BTreeMap::new(), quiet_until_ns: now_ns + START_NS }
    }

    /// Records that a process without a session used a GPU.
    pub fn seen(
        &mut self,
        who: ProcessKey,
        evidence: Evidence,
        is_compute: bool,
        now_ns: u64,
    ) -> Option<Change> {
        let user = self.users.entry(who).or_insert_with(|| User {
            since_ns: now_ns,
            evidence: Vec::new(),
            is_compute: false,
            is_reported: false,
            reported_ns: 0,
            looked_ns: now_ns,
        });
        if !user.evidence.contains(&evidence) {
            user.evidence.push(evidence);
        }
        let is_news = is_compute && !user.is_compute && user.is_reported;
        user.is_compute |= is_compute;
        is_news.then_some(Change::Computes(who))
    }

    /// Brings the state up to date and returns the changes. `is_managed` says whether a process
    /// belongs to a tenant; its second argument says whether the process computes. `uses` checks
    /// whether a process uses a GPU at this moment.
    pub fn settle(
        &mut self,
        now_ns: u64,
        is_managed: impl Fn(ProcessKey, bool) -> bool,
        mut uses: impl FnMut(ProcessKey) -> bool,
    ) -> Vec<Change> {
        let mut changes = Vec::new();
        self.users.retain(|who, user| {
            let stays = if is_managed(*who, user.is_compute) {
                false
            } else if !user.is_reported {
                if now_ns < self.quiet_until_ns || now_ns.saturating_sub(user.since_ns) < GRACE_NS {
                    return true;
                }
                user.is_reported = uses(*who);
                user.looked_ns = now_ns;
                if user.is_reported {
                    user.reported_ns = now_ns;
                    changes.push(Change::Found(*who));
                } else if user.is_compute && user.evidence.contains(&Evidence::Ioctl) {
                    changes.push(Change::Passed(*who));
                }
                return user.is_reported;
            } else if now_ns.saturating_sub(user.looked_ns) >= LOOK_NS {
                user.looked_ns = now_ns;
                uses(*who)
            } else {
                true
            };
            if !stays && user.is_reported {
                changes.push(Change::Gone(*who));
            }
            stays
        });
        changes
    }

    /// Records that a session of the process has ended. Calls during the session belonged to the
    /// tenant, so the function removes an entry that the daemon has not reported.
    pub fn was_managed(&mut self, pid: u32) {
        self.users.retain(|who, user| who.pid != pid || user.is_reported);
    }

    /// Returns when [`Self::settle`] next has something to do; `None` if the list has no process.
    pub fn due_ns(&self) -> Option<u64> {
        let due = |user: &User| {
            if user.is_reported {
                user.looked_ns + LOOK_NS
            } else {
                (user.since_ns + GRACE_NS).max(self.quiet_until_ns)
            }
        };
        self.users.values().map(due).min()
    }

    /// Returns whether the daemon has seen a process, reported or not.
    pub fn knows(&self, who: ProcessKey) -> bool {
        self.users.contains_key(&who)
    }

    /// Returns the reported processes.
    pub fn reported(&self) -> impl Iterator<Item = (&ProcessKey, &User)> {
        self.users.iter().filter(|(_, user)| user.is_reported)
    }

    /// Returns the reported process with this id; `None` if the daemon has not reported it.
    pub fn find(&self, pid: u32) -> Option<(ProcessKey, &User)> {
        self.reported().find(|(who, _)| who.pid == pid).map(|(who, user)| (*who, user))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHO: ProcessKey = ProcessKey { pid: 7, start_ticks: 1 };

    /// The state of a daemon long after its start.
    fn running() -> Users {
        Users { users: BTreeMap::new(), quiet_until_ns: 0 }
    }

    #[test]
    fn those_of_the_daemon_before_have_time_to_come_back() {
        let mut users = Users::at_start(0);
        users.seen(WHO, Evidence::Descriptor, true, 0);
        assert_eq!(users.settle(GRACE_NS, |_, _| false, |_| true), []);
        assert_eq!(users.due_ns(), Some(START_NS));
        assert_eq!(users.settle(START_NS, |_, _| false, |_| true), [Change::Found(WHO)]);
    }

    #[test]
    fn a_process_that_is_not_connected_after_the_grace_is_reported_once() {
        let mut users = running();
        users.seen(WHO, Evidence::Ioctl, false, 100);
        assert_eq!(users.due_ns(), Some(100 + GRACE_NS));
        assert_eq!(users.settle(99 + GRACE_NS, |_, _| false, |_| true), []);
        assert_eq!(users.settle(100 + GRACE_NS, |_, _| false, |_| true), [Change::Found(WHO)]);
        users.seen(WHO, Evidence::Nvml, false, 101 + GRACE_NS);
        assert_eq!(users.settle(102 + GRACE_NS, |_, _| false, |_| true), []);
        assert_eq!(users.find(7).unwrap().1.evidence, [Evidence::Ioctl, Evidence::Nvml]);
        assert_eq!(users.seen(WHO, Evidence::Descriptor, true, 103 + GRACE_NS), Some(Change::Computes(WHO)));
    }

    #[test]
    fn a_process_that_connects_within_the_grace_is_never_reported() {
        let mut users = running();
        users.seen(WHO, Evidence::Ioctl, true, 0);
        assert_eq!(users.settle(GRACE_NS, |who, _| who.pid == 7, |_| true), []);
        assert_eq!(users.due_ns(), None);
    }

    #[test]
    fn a_process_that_closed_the_device_within_the_grace_is_never_reported() {
        let mut users = running();
        users.seen(WHO, Evidence::Ioctl, false, 0);
        assert_eq!(users.settle(GRACE_NS, |_, _| false, |_| false), []);
        assert_eq!(users.due_ns(), None);
    }

    #[test]
    fn of_one_that_computed_and_was_gone_within_the_grace_it_is_known_that_it_did() {
        let seen = |evidence| {
            let mut users = running();
            users.seen(WHO, evidence, true, 0);
            users
        };
        let mut users = seen(Evidence::Ioctl);
        assert_eq!(users.settle(GRACE_NS, |_, _| false, |_| false), [Change::Passed(WHO)]);
        assert_eq!(users.due_ns(), None, "and told once");
        // NVML's list can be old.
        assert_eq!(seen(Evidence::Nvml).settle(GRACE_NS, |_, _| false, |_| false), []);
        let mut tenant = seen(Evidence::Ioctl);
        tenant.was_managed(WHO.pid);
        assert_eq!(tenant.settle(GRACE_NS, |_, _| false, |_| false), [], "it had a session meanwhile");
    }

    #[test]
    fn one_who_connects_or_stops_after_all_is_gone() {
        for connects in [true, false] {
            let mut users = running();
            users.seen(WHO, Evidence::Nvml, true, 0);
            users.settle(GRACE_NS, |_, _| false, |_| true);
            assert_eq!(
                users.settle(GRACE_NS + 1, |_, _| false, |_| false),
                [],
                "it is not looked at all the time"
            );
            assert_eq!(users.settle(GRACE_NS + LOOK_NS, |_, _| connects, |_| false), [Change::Gone(WHO)]);
        }
    }
}
