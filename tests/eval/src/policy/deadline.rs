//! One batch at a time, the one that is due first: temporal sharing by earliest deadline, without preemption.

use std::collections::BTreeSet;

use crate::device::Tenant;
use crate::gate::{Gate, Launch};

/// The gate.
#[derive(Debug)]
pub struct EarliestDeadline {
    holder: Option<Tenant>,
    /// (due, tenant): whose batch is due first comes first; those without a time come last.
    waiting: BTreeSet<(u64, Tenant)>,
    due_ns: Vec<u64>,
    next_ns: Option<u64>,
}

impl EarliestDeadline {
    /// For so many tenants.
    pub fn new(tenants: usize) -> Self {
        Self { holder: None, waiting: BTreeSet::new(), due_ns: vec![u64::MAX; tenants], next_ns: None }
    }
}

impl Gate for EarliestDeadline {
    fn admit(&mut self, now_ns: u64, launch: &Launch) -> bool {
        if self.holder == Some(launch.tenant) {
            return true;
        }
        self.waiting.remove(&(self.due_ns[launch.tenant], launch.tenant));
        self.due_ns[launch.tenant] = launch.due_ns.unwrap_or(u64::MAX);
        self.waiting.insert((self.due_ns[launch.tenant], launch.tenant));
        if self.holder.is_none() {
            self.next_ns = Some(now_ns);
        }
        false
    }

    fn done(&mut self, _: u64, _: Tenant, _: u64, _: bool) {}

    fn rests(&mut self, now_ns: u64, tenant: Tenant) {
        if self.holder == Some(tenant) {
            self.holder = None;
            self.next_ns = Some(now_ns);
        }
    }

    fn wake_ns(&self) -> Option<u64> {
        self.next_ns
    }

    fn wake(&mut self, _: u64, retry: &mut Vec<Tenant>) {
        self.next_ns = None;
        if self.holder.is_none()
            && let Some((_, tenant)) = self.waiting.pop_first()
        {
            self.holder = Some(tenant);
            retry.push(tenant);
        }
    }
}
