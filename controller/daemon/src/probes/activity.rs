//! Calls of processes to the driver, added up from the eBPF programs' counters.

use crate::trace::decode::{Numbers, command_name, family_name};
use deepres_abi::probe::{Family, REST, StatKey, StatValue, TICK_NS};
use deepres_model::probes::{ActivityStatus, CommandStatus};
use deepres_model::process::ProcessKey;
use std::collections::BTreeMap;
use std::time::Duration;
use zerocopy::FromZeros;

/// Name of the sum of the commands that the eBPF programs do not count separately.
const OTHERS: &str = "others";

/// The most rows of one process. These rows suffice for the commands of three families on one
/// device each, and for the other devices of a job. Beyond this number, the daemon adds up the rows
/// of further devices by family.
const MAX_ROWS: usize = 512;
/// The time since its last use within which the daemon does not evict a row. An eviction would lose
/// calls that end during the eviction.
const IN_USE_NS: u64 = Duration::from_secs(2).as_nanos() as u64;

/// The most evicted rows of all processes together. Beyond this number, the daemon adds up the rows
/// of the process with the most rows by family.
pub const MAX_REMEMBERED: usize = 16_384;

/// The counters of the calls of one process to the driver, by device and command.
#[derive(Debug, Default, Clone)]
pub struct Activity {
    rows: BTreeMap<StatKey, StatValue>,
}

impl Activity {
    /// Adds a row of counters of the process, which the daemon read from the kernel.
    pub fn add(&mut self, key: StatKey, value: &StatValue) {
        let has_room = self.rows.len() < MAX_ROWS || self.rows.contains_key(&key);
        let key = if has_room { key } else { StatKey { command: REST, device: 0, ..key } };
        self.rows.entry(key).and_modify(|sum| join(sum, value)).or_insert(*value);
    }

    /// Adds the counters of another `Activity` of the same process.
    pub fn join(&mut self, other: &Self) {
        other.rows.iter().for_each(|(key, value)| self.add(*key, value));
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Adds the rows of each family of devices up to one row. Returns whether the number of rows
    /// fell.
    pub fn fold(&mut self) -> bool {
        let before = self.rows.len();
        for (key, value) in std::mem::take(&mut self.rows) {
            let key = StatKey { command: REST, device: 0, ..key };
            self.rows.entry(key).and_modify(|sum| join(sum, &value)).or_insert(value);
        }
        self.rows.len() < before
    }

    /// Returns the keys of the rows.
    pub fn keys(&self) -> impl Iterator<Item = &StatKey> {
        self.rows.keys()
    }

    /// Returns the number of ioctls.
    pub fn calls(&self) -> u64 {
        self.rows.values().map(|value| value.calls).sum()
    }

    /// Returns whether the process called the device of unified memory. Only compute processes call
    /// this device.
    pub fn is_compute(&self) -> bool {
        self.rows.keys().any(|key| Family::from_u32(key.family) == Family::Uvm)
    }

    /// Returns the activity in the form that the status shows. `container_pid` is the process's id
    /// inside its container, if this id differs from `pid`.
    pub fn status(&self, pid: u32, container_pid: Option<u32>) -> ActivityStatus {
        let mut sum = StatValue::new_zeroed();
        self.rows.values().for_each(|value| join(&mut sum, value));
        let mut commands: Vec<CommandStatus> =
            self.rows.iter().map(|(key, value)| command(key, value)).collect();
        commands.sort_by_key(|command| std::cmp::Reverse(command.time_ns));
        ActivityStatus {
            pid,
            container_pid,
            calls: sum.calls,
            errors: sum.errors,
            time_ns: sum.time_ns,
            longest_ns: sum.longest_ns,
            memory_calls: sum.memory_calls,
            allocated_bytes: sum.allocated_bytes,
            mapped_bytes: sum.mapped_bytes,
            last_ns: sum.last_ns,
            commands,
        }
    }
}

fn command(key: &StatKey, value: &StatValue) -> CommandStatus {
    let family = Family::from_u32(key.family);
    CommandStatus {
        device: Numbers(key.device).to_string(),
        family: family_name(family).to_owned(),
        name: if key.command == REST { OTHERS.to_owned() } else { command_name(family, key.command) },
        calls: value.calls,
        errors: value.errors,
        time_ns: value.time_ns,
        longest_ns: value.longest_ns,
        bytes: value.allocated_bytes.saturating_add(value.mapped_bytes),
        buckets: value.buckets.to_vec(),
    }
}

/// Adds the counters `more` of the same process and command to `sum`.
pub fn join(sum: &mut StatValue, more: &StatValue) {
    sum.calls += more.calls;
    sum.errors += more.errors;
    sum.time_ns = sum.time_ns.saturating_add(more.time_ns);
    sum.longest_ns = sum.longest_ns.max(more.longest_ns);
    sum.memory_calls += more.memory_calls;
    // The amounts come from a program's argument and can be any numbers.
    sum.allocated_bytes = sum.allocated_bytes.saturating_add(more.allocated_bytes);
    sum.mapped_bytes = sum.mapped_bytes.saturating_add(more.mapped_bytes);
    sum.last_ns = sum.last_ns.max(more.last_ns);
    for (bucket, more) in sum.buckets.iter_mut().zip(more.buckets) {
        *bucket += more;
    }
}

/// Adds up the rows of the processes with the most rows, until all together have no more than
/// `most`.
pub fn bound(activities: &mut BTreeMap<ProcessKey, Activity>, most: usize) {
    let mut rows: usize = activities.values().map(Activity::rows).sum();
    while rows > most {
        let Some(largest) = activities.values_mut().max_by_key(|activity| activity.rows()) else { return };
        rows -= largest.rows();
        let is_less = largest.fold();
        rows += largest.rows();
        if !is_less {
            return;
        }
    }
}

/// Returns the process of a row.
pub fn process_of(key: &StatKey) -> ProcessKey {
    ProcessKey { pid: key.pid, start_ticks: key.started_ns / TICK_NS }
}

/// Returns the rows that the daemon is to evict from the kernel, until three quarters of `room` are
/// in use. The returned rows are the rows of `rows` that were unused for longest. Returns no rows
/// while an eighth of the room is free, and no row that is in use at `now_ns`.
pub fn evicted(rows: &[(StatKey, StatValue)], room: usize, now_ns: u64) -> Vec<StatKey> {
    if rows.len() < room / 8 * 7 {
        return Vec::new();
    }
    let mut by_age: Vec<&(StatKey, StatValue)> = rows.iter().collect();
    by_age.sort_by_key(|(_, value)| value.last_ns);
    let leaving = by_age.iter().take(rows.len() - room / 4 * 3);
    leaving
        .filter(|(_, value)| now_ns.saturating_sub(value.last_ns) >= IN_USE_NS)
        .map(|(key, _)| *key)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(command: u32, calls: u64, last_ns: u64) -> (StatKey, StatValue) {
        let key = StatKey { started_ns: 5 * TICK_NS, pid: 7, device: 1, command, family: Family::Uvm as u32 };
        let mut value = StatValue::new_zeroed();
        (value.calls, value.time_ns, value.last_ns) = (calls, calls, last_ns);
        value.buckets[3] = calls;
        (key, value)
    }

    #[test]
    fn a_process_is_the_sum_of_its_commands_of_which_the_longest_comes_first() {
        let mut activity = Activity::default();
        for (key, value) in [row(34, 1, 10), row(73, 5, 9), row(34, 2, 8), row(REST, 1, 7)] {
            activity.add(key, &value);
        }
        let status = activity.status(7, None);
        assert_eq!((status.calls, status.time_ns, status.last_ns, activity.is_compute()), (9, 9, 10, true));
        let shown: Vec<_> = status
            .commands
            .iter()
            .map(|command| (command.name.as_str(), command.calls, command.buckets[3]))
            .collect();
        assert_eq!(shown, [("UVM_CREATE_EXTERNAL_RANGE", 5, 5), ("UVM_FREE", 3, 3), ("others", 1, 1)]);
    }

    #[test]
    fn rows_unused_the_longest_make_room_and_none_does_while_there_is_enough() {
        let rows: Vec<_> = (0..14).map(|number| row(number, 1, 100 - u64::from(number))).collect();
        let later_ns = 100 + IN_USE_NS;
        assert_eq!(evicted(&rows[..13], 16, later_ns), []);
        let leaving =
            |now_ns| -> Vec<u32> { evicted(&rows, 16, now_ns).iter().map(|key| key.command).collect() };
        assert_eq!(leaving(later_ns), [13, 12]);
        assert_eq!(leaving(87 + IN_USE_NS), [13], "the other was used just now");
    }

    #[test]
    fn a_process_with_ever_more_rows_takes_no_more_room() {
        let mut activity = Activity::default();
        for device in 0..10_000 {
            let (key, value) = row(34, 1, 1);
            activity.add(StatKey { device, ..key }, &value);
        }
        assert_eq!(activity.calls(), 10_000);
        assert_eq!(activity.keys().count(), MAX_ROWS + 1);
    }

    #[test]
    fn the_rows_of_all_processes_are_bounded_and_no_call_is_lost() {
        let who = |pid| ProcessKey { pid, start_ticks: 5 };
        let mut activities = BTreeMap::new();
        for (pid, rows) in [(1, 40), (2, 9), (3, 1)] {
            let activity: &mut Activity = activities.entry(who(pid)).or_default();
            for command in 0..rows {
                let (key, value) = row(command, 10, 0);
                activity.add(StatKey { pid, ..key }, &value);
            }
        }
        bound(&mut activities, 20);
        let rows_and_calls = |pid| (activities[&who(pid)].rows(), activities[&who(pid)].calls());
        assert_eq!(
            [1, 2, 3].map(rows_and_calls),
            [(1, 400), (9, 90), (1, 10)],
            "the process with most rows is added up"
        );
        bound(&mut activities, 0);
        assert!(activities.values().all(|activity| activity.rows() == 1), "one a family is the least");
    }
}
