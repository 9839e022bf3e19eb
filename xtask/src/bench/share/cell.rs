//! One cell of the matrix of shares and work: its tenants with their work, and the figures of a
//! run.

use super::{Shares, Workload, pauses};

/// One tenant of a cell: its share, and its work.
pub struct Tenant {
    pub name: String,
    /// Share, percent.
    pub share: u32,
    pub processes: usize,
    /// Steps of each of the tenant's processes, in the words of the client `pace`.
    pub steps: &'static [&'static str],
}

/// A cell of the matrix: the tenants that run together.
pub struct Cell {
    pub tenants: Vec<Tenant>,
}

impl Cell {
    /// Returns the cell of tenants with these shares.
    pub fn of(shares: Shares, workload: Workload) -> Self {
        let tenant = |(place, share): (usize, &u32)| tenant(place, *share, workload.of_tenant(place));
        Self { tenants: shares.0.iter().enumerate().map(tenant).collect() }
    }

    /// Returns the cell of one tenant that has the GPU alone.
    pub fn alone(workload: Workload) -> Self {
        Self { tenants: vec![Tenant::alone(workload)] }
    }
}

impl Tenant {
    /// Returns a tenant that has the GPU alone.
    pub fn alone(workload: Workload) -> Self {
        tenant(0, 100, workload)
    }
}

fn tenant(place: usize, share: u32, workload: Workload) -> Tenant {
    let (processes, steps): (usize, &[&str]) = match workload {
        Workload::SmallKernels | Workload::Mixed => (1, &["busy_200usx100", "sync"]),
        Workload::LongKernels => (1, &["busy_5000us", "sync"]),
        Workload::GraphReplays => (
            1,
            &[
                "graph:busy_200usx40",
                "graph:busy_200usx40",
                "graph:busy_200usx40",
                "graph:busy_200usx40",
                "sync",
            ],
        ),
        Workload::FourProcesses => (4, &["busy_1000usx32", "sync"]),
        Workload::WithPauses => (1, pauses::PAUSING.steps),
    };
    Tenant { name: format!("tenant-{place}"), share, processes, steps }
}

/// GPU time that a tenant used.
#[derive(Debug, Clone, Copy)]
pub struct Had {
    /// Share, percent.
    pub share: u32,
    /// Kernel time by the simulated GPU's record, ns.
    pub true_ns: u64,
    /// GPU time by the meter of deepres, ns.
    pub metered_ns: u64,
}

/// Figures of a run of a cell.
#[derive(Debug)]
pub struct Measured {
    pub tenants: Vec<Had>,
    pub elapsed_ns: u64,
    pub bound_fraction: f64,
    /// Recent mean cost of a hand-off at the end of the run, ns.
    pub handoff_ns: u64,
}

impl Measured {
    fn sum(&self, of: impl Fn(&Had) -> u64) -> f64 {
        self.tenants.iter().map(of).sum::<u64>().max(1) as f64
    }

    /// Returns the largest distance of a tenant's true share from its entitlement, percentage
    /// points.
    pub fn error_points(&self) -> f64 {
        let sum = self.sum(|had| had.true_ns);
        let error = |had: &Had| (had.true_ns as f64 * 100.0 / sum - f64::from(had.share)).abs();
        self.tenants.iter().map(error).fold(0.0, f64::max)
    }

    /// Returns the largest error of a tenant's meter, percentage points. An error is a difference
    /// between metered and true time. The error is a part of all used GPU time or of the elapsed
    /// time, whichever is larger.
    pub fn meter_error_points(&self) -> f64 {
        let (true_sum, metered_sum) = (self.sum(|had| had.true_ns), self.sum(|had| had.metered_ns));
        let error = |had: &Had| {
            let (truth, metered) = (had.true_ns as f64, had.metered_ns as f64);
            let of_all = (truth / true_sum - metered / metered_sum).abs();
            let of_time = (truth - metered).abs() / self.elapsed_ns as f64;
            of_all.max(of_time) * 100.0
        };
        self.tenants.iter().map(error).fold(0.0, f64::max)
    }

    /// Returns the part of the time in which kernels ran.
    pub fn used_fraction(&self) -> f64 {
        self.sum(|had| had.true_ns) / self.elapsed_ns as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_of_shares_and_the_meters_of_time_too() {
        let had = |share, true_ns, metered_ns| Had { share, true_ns, metered_ns };
        let exact = Measured {
            tenants: vec![had(70, 630, 630), had(30, 270, 270)],
            elapsed_ns: 1_000,
            bound_fraction: 1.0,
            handoff_ns: 0,
        };
        assert!(exact.error_points() < 1e-9 && exact.meter_error_points() < 1e-9);
        assert!((exact.used_fraction() - 0.9).abs() < 1e-9);
        let off = Measured { tenants: vec![had(70, 650, 650), had(30, 250, 250)], ..exact };
        assert!((off.error_points() - 200.0 / 90.0).abs() < 1e-9);
        // The meter shows a tenth too much for both tenants. All shares are right, but the meter is
        // wrong.
        let dear = Measured { tenants: vec![had(70, 630, 693), had(30, 270, 297)], ..off };
        assert!((dear.meter_error_points() - 6.3).abs() < 1e-9, "{}", dear.meter_error_points());
    }
}
