//! Computes the number of counters in the eBPF programs. Each counter takes memory for every
//! possible CPU, so the number of CPUs decides.

use aya::util::nr_cpus;
use deepres_abi::probe::{COMMANDS_APART, LaunchValue, StatValue};
use std::io;

/// The most bytes of the ioctl counters on all CPUs together, if [`FEW_ROWS`] rows fit into these
/// bytes.
const USUAL_BYTES: usize = 16 << 20;
/// The most bytes of the ioctl counters, for any number of CPUs.
const MOST_BYTES: usize = 64 << 20;
const FEW_ROWS: usize = 256;
const MOST_ROWS: usize = 4096;
/// The divisor of the rows that gives the part of one process in each family of devices. There are
/// four families.
const PART: usize = 8;
/// The most bytes of the launch counters on all CPUs together.
const LAUNCHES_BYTES: usize = 16 << 20;
const MOST_LAUNCHES: usize = 4096;

/// The numbers of counters for which the eBPF programs get memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Number of ioctl counters. A counter is for one process, device and command.
    pub rows: usize,
    /// Number of commands that the eBPF programs count separately for each process and family.
    pub commands_apart: u32,
    /// Number of launch counters. A counter is for one process and function.
    pub launches: usize,
}

impl Room {
    /// Returns the room on this machine.
    ///
    /// # Errors
    /// The system's error, if the number of possible CPUs cannot be read.
    pub fn here() -> io::Result<Self> {
        let cpus =
            nr_cpus().map_err(|(file, error)| io::Error::new(error.kind(), format!("{file}: {error}")))?;
        Ok(Self::on(cpus))
    }

    /// Returns the room on a machine with this many possible CPUs.
    pub fn on(cpus: usize) -> Self {
        let cpus = cpus.max(1);
        let row_bytes = cpus * size_of::<StatValue>();
        let few = FEW_ROWS.min(MOST_BYTES / row_bytes);
        let rows = (USUAL_BYTES / row_bytes).max(few).clamp(1, MOST_ROWS);
        let launches = (LAUNCHES_BYTES / (cpus * size_of::<LaunchValue>())).clamp(1, MOST_LAUNCHES);
        Self { rows, commands_apart: (rows / PART).clamp(1, COMMANDS_APART as usize) as u32, launches }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest number of CPUs for which a kernel can be built.
    const MOST_CPUS: usize = 8192;

    #[test]
    fn counters_take_no_more_memory_however_many_cpus_there_are() {
        for cpus in 1..=MOST_CPUS {
            let Room { rows, launches, .. } = Room::on(cpus);
            let bytes = rows * cpus * size_of::<StatValue>();
            assert!(bytes <= MOST_BYTES, "{cpus} CPUs: {bytes}");
            assert!(bytes <= USUAL_BYTES || rows <= FEW_ROWS, "{cpus} CPUs: {bytes}");
            assert!(launches * cpus * size_of::<LaunchValue>() <= LAUNCHES_BYTES, "{cpus} CPUs");
            assert!(rows > 0 && launches > 0);
        }
        let here = Room::here().unwrap();
        assert!(here.rows > 0 && here.rows <= MOST_ROWS);
    }

    #[test]
    fn one_process_gets_no_more_than_half_of_the_counters_of_any_machine() {
        /// Number of families of devices. Each family has one more row, for the sum of the commands
        /// without rows.
        const FAMILIES: usize = 4;
        for cpus in 1..=MOST_CPUS {
            let Room { rows, commands_apart, .. } = Room::on(cpus);
            assert!(FAMILIES * commands_apart as usize <= rows / 2, "{cpus} CPUs");
        }
        assert_eq!(Room::on(2).commands_apart, COMMANDS_APART, "all that are told apart anywhere");
    }
}
