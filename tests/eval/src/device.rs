//! Two model GPUs without the scheduler of deepres. On the first model, contexts take turns. On the
//! second model, contexts run together.

use std::collections::VecDeque;

use deepres_abi::PPM;

use crate::scenario::{Gpu, Hardware};

/// A tenant's place in the scenario.
pub type Tenant = usize;

/// A kernel that was launched.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    /// Time that the kernel takes with the whole GPU, ns.
    pub length_ns: u64,
    /// Part of the SMs that the kernel can use, parts per million.
    pub sm_ppm: u32,
}

/// A GPU that runs kernels.
pub trait Device {
    /// Accepts a kernel. The kernels of one tenant run in order.
    fn launch(&mut self, tenant: Tenant, kernel: Kernel);
    /// Returns the time of the next change, for example the end of a kernel, if no tenant launches
    /// a kernel before. The result is not earlier than the time that the device has reached.
    fn next_ns(&self) -> Option<u64>;
    /// Lets time pass until `now_ns`, which is not after [`Self::next_ns`]. Appends the finished
    /// kernels to `done`, in order, with their tenants.
    fn advance(&mut self, now_ns: u64, done: &mut Vec<(Tenant, Kernel)>);
    /// Returns the GPU time that each tenant has used, ns.
    fn used_ns(&self) -> &[u64];
    /// Returns the time in which any kernel ran, ns.
    fn busy_ns(&self) -> u64;
}

/// Returns a scenario's GPU for this many tenants. If no other context has work, a switch to a
/// context costs at most `idle_switch_ns`.
pub fn of(gpu: &Gpu, tenants: usize, idle_switch_ns: u64) -> Box<dyn Device> {
    match gpu.device {
        Hardware::TimeSlice => {
            let turns = TimeSlice::new(tenants, gpu.slice_ns, gpu.switch_ns);
            Box::new(turns.with_idle_switch(idle_switch_ns))
        }
        Hardware::Mps => Box::new(Together::side_by_side(tenants)),
    }
}

/// A GPU on which contexts take turns, as on hardware without MPS. While several contexts have
/// work, each context gets a slice in turn, with a switch in between.
#[derive(Debug)]
pub struct TimeSlice {
    slice_ns: u64,
    switch_ns: u64,
    queues: Vec<VecDeque<(Kernel, u64)>>,
    used_ns: Vec<u64>,
    busy_ns: u64,
    now_ns: u64,
    /// The tenant that has the GPU, or had it last.
    current: Option<Tenant>,
    backlogged: usize,
    slice_left_ns: u64,
    switch_left_ns: u64,
    /// The cost of a switch to a context if no other context has work.
    idle_switch_ns: u64,
}

impl TimeSlice {
    /// Returns the GPU, with switches that cost at most this much if no other context has work, ns.
    /// A policy whose hand-off contains the switch uses this GPU.
    pub fn with_idle_switch(self, idle_switch_ns: u64) -> Self {
        Self { idle_switch_ns, ..self }
    }

    /// Returns a GPU for this many tenants.
    pub fn new(tenants: usize, slice_ns: u64, switch_ns: u64) -> Self {
        Self {
            slice_ns,
            switch_ns,
            queues: vec![VecDeque::new(); tenants],
            used_ns: vec![0; tenants],
            busy_ns: 0,
            now_ns: 0,
            current: None,
            backlogged: 0,
            slice_left_ns: 0,
            switch_left_ns: 0,
            idle_switch_ns: switch_ns,
        }
    }

    /// Makes the next tenant after `current` that has work the current tenant.
    fn pick(&mut self) {
        let tenants = self.queues.len();
        let first = self.current.map_or(0, |current| current + 1);
        let next = (first..first + tenants)
            .map(|tenant| tenant % tenants)
            .find(|tenant| !self.queues[*tenant].is_empty());
        let Some(next) = next else { return };
        if self.current != Some(next) {
            // The very first context comes without a switch.
            self.switch_left_ns = if self.current.is_some() { self.switch_ns } else { 0 };
        }
        self.current = Some(next);
        self.slice_left_ns = self.slice_ns;
    }

    fn runs(&self) -> Option<(Tenant, u64)> {
        let current = self.current?;
        self.queues[current].front().map(|(_, left_ns)| (current, *left_ns))
    }
}

impl Device for TimeSlice {
    fn launch(&mut self, tenant: Tenant, kernel: Kernel) {
        self.backlogged += usize::from(self.queues[tenant].is_empty());
        self.queues[tenant].push_back((kernel, kernel.length_ns));
        if self.runs().is_none() {
            self.pick();
            self.switch_left_ns = self.switch_left_ns.min(self.idle_switch_ns);
        }
    }

    fn next_ns(&self) -> Option<u64> {
        let (_, left_ns) = self.runs()?;
        let run_ns = if self.backlogged > 1 { left_ns.min(self.slice_left_ns) } else { left_ns };
        Some(self.now_ns + self.switch_left_ns + run_ns)
    }

    fn advance(&mut self, now_ns: u64, done: &mut Vec<(Tenant, Kernel)>) {
        let mut pass_ns = now_ns - self.now_ns;
        self.now_ns = now_ns;
        let Some((current, left_ns)) = self.runs() else { return };
        let switch_ns = pass_ns.min(self.switch_left_ns);
        self.switch_left_ns -= switch_ns;
        pass_ns -= switch_ns;
        let run_ns = pass_ns.min(left_ns);
        self.used_ns[current] += run_ns;
        self.busy_ns += run_ns;
        self.slice_left_ns = self.slice_left_ns.saturating_sub(run_ns);
        if run_ns < left_ns {
            if let Some((_, left_ns)) = self.queues[current].front_mut() {
                *left_ns -= run_ns;
            }
        } else if let Some((kernel, _)) = self.queues[current].pop_front() {
            done.push((current, kernel));
            self.backlogged -= usize::from(self.queues[current].is_empty());
        }
        let is_over = self.slice_left_ns == 0 && self.backlogged > 1;
        if is_over || self.queues[current].is_empty() {
            self.pick();
        } else if self.slice_left_ns == 0 {
            self.slice_left_ns = self.slice_ns;
        }
    }

    fn used_ns(&self) -> &[u64] {
        &self.used_ns
    }

    fn busy_ns(&self) -> u64 {
        self.busy_ns
    }
}

/// Returns each tenant's speed at a moment, given the kernels of all tenants; 1 is the speed alone.
/// `None` stands for a tenant without a kernel.
pub type Rates = Box<dyn Fn(u64, &[Option<u32>]) -> Vec<f64>>;

/// A GPU on which kernels of several tenants run together, each at its rate.
pub struct Together {
    rates: Rates,
    /// Times when the rates change by themselves, in order.
    changes_ns: VecDeque<u64>,
    queues: Vec<VecDeque<(Kernel, f64)>>,
    speed: Vec<f64>,
    used: Vec<f64>,
    used_ns: Vec<u64>,
    busy_ns: u64,
    now_ns: u64,
    /// Whether the rates are older than the last change of the running kernels.
    is_stale: bool,
}

/// Remaining work that does not count, because it is below the rounding of the times.
const NOTHING_NS: f64 = 0.5;

impl Together {
    /// Returns a GPU for this many tenants, with these rates.
    pub fn new(tenants: usize, rates: Rates) -> Self {
        Self {
            rates,
            changes_ns: VecDeque::new(),
            queues: (0..tenants).map(|_| VecDeque::new()).collect(),
            speed: vec![0.0; tenants],
            used: vec![0.0; tenants],
            used_ns: vec![0; tenants],
            busy_ns: 0,
            now_ns: 0,
            is_stale: false,
        }
    }

    /// Returns a GPU under MPS for this many tenants.
    pub fn side_by_side(tenants: usize) -> Self {
        Self::new(tenants, Box::new(|_, running| side_by_side(running)))
    }

    /// Sets the times when the rates change by themselves.
    pub fn changing_at(mut self, moments_ns: impl IntoIterator<Item = u64>) -> Self {
        self.changes_ns = moments_ns.into_iter().collect();
        self
    }

    fn refresh(&mut self) {
        let running: Vec<_> =
            self.queues.iter().map(|queue| queue.front().map(|(kernel, _)| kernel.sm_ppm)).collect();
        self.speed = (self.rates)(self.now_ns, &running);
        self.is_stale = false;
    }
}

/// Returns the speeds under MPS. Kernels that fit beside each other on the SMs run at full speed.
/// Other kernels slow each other down equally.
fn side_by_side(running: &[Option<u32>]) -> Vec<f64> {
    let whole = u64::from(PPM);
    let wanted: u64 = running.iter().flatten().map(|sm_ppm| u64::from(*sm_ppm)).sum();
    let rate = whole as f64 / wanted.max(whole) as f64;
    running.iter().map(|sm| if sm.is_some() { rate } else { 0.0 }).collect()
}

impl Device for Together {
    fn launch(&mut self, tenant: Tenant, kernel: Kernel) {
        self.queues[tenant].push_back((kernel, kernel.length_ns as f64));
        if self.queues[tenant].len() == 1 {
            self.refresh();
        }
    }

    fn next_ns(&self) -> Option<u64> {
        let ends = self.queues.iter().zip(&self.speed).filter(|(_, speed)| **speed > 0.0).filter_map(
            |(queue, speed)| queue.front().map(|(_, left_ns)| (left_ns.max(0.0) / speed).ceil() as u64),
        );
        let change_ns = self.changes_ns.front().map(|at_ns| (*at_ns).max(self.now_ns));
        ends.map(|wait_ns| self.now_ns + wait_ns).chain(change_ns).min()
    }

    fn advance(&mut self, now_ns: u64, done: &mut Vec<(Tenant, Kernel)>) {
        let pass_ns = now_ns - self.now_ns;
        self.now_ns = now_ns;
        let mut is_busy = false;
        for (tenant, queue) in self.queues.iter_mut().enumerate() {
            let Some((kernel, left_ns)) = queue.front_mut() else { continue };
            let had_ns = pass_ns as f64 * self.speed[tenant];
            is_busy |= had_ns > 0.0;
            self.used[tenant] += had_ns.min(*left_ns);
            self.used_ns[tenant] = self.used[tenant] as u64;
            *left_ns -= had_ns;
            if *left_ns < NOTHING_NS {
                done.push((tenant, *kernel));
                queue.pop_front();
                self.is_stale = true;
            }
        }
        self.busy_ns += if is_busy { pass_ns } else { 0 };
        while self.changes_ns.front().is_some_and(|at_ns| *at_ns <= now_ns) {
            self.changes_ns.pop_front();
            self.is_stale = true;
        }
        if self.is_stale {
            self.refresh();
        }
    }

    fn used_ns(&self) -> &[u64] {
        &self.used_ns
    }

    fn busy_ns(&self) -> u64 {
        self.busy_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(length_ns: u64) -> Kernel {
        Kernel { length_ns, sm_ppm: PPM }
    }

    fn run(device: &mut dyn Device) -> Vec<(u64, Tenant)> {
        let mut ends = Vec::new();
        while let Some(at_ns) = device.next_ns() {
            let mut done = Vec::new();
            device.advance(at_ns, &mut done);
            ends.extend(done.into_iter().map(|(tenant, _)| (at_ns, tenant)));
        }
        ends
    }

    #[test]
    fn contexts_take_turns_by_slices_with_a_switch_between() {
        let mut device = TimeSlice::new(2, 100, 10);
        device.launch(0, kernel(150));
        device.launch(1, kernel(50));
        // The GPU runs 100 of the first kernel, switches, runs 50 of the second, switches, and runs
        // 50 of the first.
        assert_eq!(run(&mut device), [(160, 1), (220, 0)]);
        assert_eq!((device.used_ns(), device.busy_ns()), (&[150, 50][..], 200));
    }

    #[test]
    fn a_process_alone_is_never_interrupted() {
        let mut device = TimeSlice::new(2, 100, 10);
        device.launch(1, kernel(1000));
        device.launch(1, kernel(1000));
        assert_eq!(run(&mut device), [(1000, 1), (2000, 1)]);
    }

    #[test]
    fn under_mps_kernels_that_fit_together_run_at_full_speed_and_others_slow_each_other_alike() {
        assert_eq!(side_by_side(&[Some(300_000), Some(700_000), None]), [1.0, 1.0, 0.0]);
        assert_eq!(side_by_side(&[Some(PPM), Some(600_000)]), [0.625, 0.625]);
        assert_eq!(side_by_side(&[None, None]), [0.0, 0.0]);
    }

    #[test]
    fn together_each_runs_at_its_rate() {
        let half = |_, running: &[Option<u32>]| {
            let count = running.iter().flatten().count().max(1) as f64;
            running.iter().map(|sm| if sm.is_some() { 1.0 / count } else { 0.0 }).collect()
        };
        let mut device = Together::new(2, Box::new(half));
        device.launch(0, kernel(100));
        device.launch(1, kernel(50));
        assert_eq!(run(&mut device), [(100, 1), (150, 0)]);
        assert_eq!(device.busy_ns(), 150);
    }

    #[test]
    fn rates_that_change_by_themselves_do_so_in_the_middle_of_a_kernel() {
        let rates = |now_ns, running: &[Option<u32>]| {
            let rate = if now_ns < 100 { 1.0 } else { 0.5 };
            running.iter().map(|sm| if sm.is_some() { rate } else { 0.0 }).collect()
        };
        let mut device = Together::new(1, Box::new(rates)).changing_at([100]);
        device.launch(0, kernel(150));
        assert_eq!(run(&mut device), [(200, 0)]);
    }
}
