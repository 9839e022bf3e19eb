//! What a trace adds up to: commands, by the time spent in them.

use super::decode::{Decoded, Value};
use deepres_abi::probe::REST;
use serde::Serialize;
use std::collections::BTreeMap;

/// One command, added up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line {
    /// The command: its name or its number.
    pub command: String,
    /// The device's language.
    pub family: &'static str,
    /// Calls.
    pub calls: u64,
    /// Those that failed, by the kernel's word or the driver's.
    pub errors: u64,
    /// Time inside, ns.
    pub time_ns: u64,
    /// The longest, ns.
    pub longest_ns: u64,
}

/// Adds events up.
#[derive(Debug, Default)]
pub struct Summary {
    lines: BTreeMap<(&'static str, u32), Line>,
    unfinished: u64,
}

/// Commands that are told apart, at most; there are fewer than a tenth as many.
const MAX_LINES: usize = 4096;
/// What stands for all others.
const OTHERS: &str = "others";
/// What the driver says when all is well.
pub const OK: Value = Value::Name("NV_OK");

impl Summary {
    /// One more event.
    pub fn add(&mut self, event: &Decoded<'_>) {
        let mut key = (event.family, event.command);
        let mut name = event.name;
        if self.lines.len() >= MAX_LINES && !self.lines.contains_key(&key) {
            // Whoever makes numbers up has them counted together.
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

    /// The commands, those that took most time first.
    pub fn lines(&self) -> Vec<&Line> {
        let mut lines: Vec<&Line> = self.lines.values().collect();
        lines.sort_by_key(|line| std::cmp::Reverse(line.time_ns));
        lines
    }

    /// Calls that had not returned.
    pub fn unfinished(&self) -> u64 {
        self.unfinished
    }

    /// All events.
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
