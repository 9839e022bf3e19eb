//! Adds up a trace by command and orders the commands by time.

use super::decode::{Decoded, Value};
use deepres_abi::probe::REST;
use serde::Serialize;
use std::collections::BTreeMap;

/// The sums of one command over a trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line {
    /// The command's name or number.
    pub command: String,
    /// The device's family.
    pub family: &'static str,
    /// Number of calls.
    pub calls: u64,
    /// Number of calls that failed, by the call's result or by the driver's status.
    pub errors: u64,
    /// Time inside the calls, ns.
    pub time_ns: u64,
    /// The longest call, ns.
    pub longest_ns: u64,
}

/// The sums of a trace.
#[derive(Debug, Default)]
pub struct Summary {
    lines: BTreeMap<(&'static str, u32), Line>,
    unfinished: u64,
}

/// The most commands that the summary counts separately. NVIDIA has fewer than a tenth of this
/// number.
const MAX_LINES: usize = 4096;
/// Name of the sum of all other commands.
const OTHERS: &str = "others";
/// The driver's status of success.
pub const OK: Value = Value::Name("NV_OK");

impl Summary {
    /// Adds an ioctl to the sums of its command.
    pub fn add(&mut self, event: &Decoded<'_>) {
        let mut key = (event.family, event.command);
        let mut name = event.name;
        if self.lines.len() >= MAX_LINES && !self.lines.contains_key(&key) {
            // Beyond the limit, the summary counts all further numbers together.
            key = (OTHERS, REST);
            name = Some(OTHERS);
        }
        let line = self.lines.entry(key).or_insert_with(|| Line {
            command: name.map_or_else(|| format!("{:#x}", event.command), str::to_owned),
            family: key.0,
            calls: 0,
            errors: 0,
            time_ns: 0,
            longest_ns: 0,
        });
        self.unfinished += u64::from(event.unfinished);
        let is_refused = event.status.is_some_and(|status| status != OK);
        line.calls += 1;
        line.errors += u64::from(event.result < 0 || is_refused);
        line.time_ns = line.time_ns.saturating_add(event.latency_ns);
        line.longest_ns = line.longest_ns.max(event.latency_ns);
    }

    /// Returns the commands, the command with the longest total time first.
    pub fn lines(&self) -> Vec<&Line> {
        let mut lines: Vec<&Line> = self.lines.values().collect();
        lines.sort_by_key(|line| std::cmp::Reverse(line.time_ns));
        lines
    }

    /// Returns the number of calls that had not returned yet.
    pub fn unfinished(&self) -> u64 {
        self.unfinished
    }

    /// Returns the number of all calls.
    pub fn calls(&self) -> u64 {
        self.lines.values().map(|line| line.calls).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::decode::decode;
    use deepres_abi::probe::{Event, Family};
    use zerocopy::FromZeros;

    #[test]
    fn commands_are_sorted_by_time_and_count_what_the_driver_refused() {
        let mut summary = Summary::default();
        for (command, latency_ns, status) in [(34, 10, 0u32), (34, 20, 0x51), (66, 100, 0)] {
            let mut event = Event::new_zeroed();
            event.family = Family::Uvm as u32;
            event.command = command;
            event.latency_ns = latency_ns;
            event.payload[8..12].copy_from_slice(&status.to_le_bytes());
            event.payload_bytes = 40;
            summary.add(&decode(&event));
        }
        let lines = summary.lines();
        let shown: Vec<_> = lines
            .iter()
            .map(|line| (line.command.as_str(), line.calls, line.errors, line.time_ns, line.longest_ns))
            .collect();
        assert_eq!(shown, [("UVM_UNMAP_EXTERNAL", 1, 0, 100, 100), ("UVM_FREE", 2, 1, 30, 20)]);
        assert_eq!(summary.calls(), 3);
    }
}
