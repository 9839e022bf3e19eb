//! Limits the log lines that one source may cause. So a source that connects in a loop neither
//! fills the disk nor hides the lines of other sources.

use crate::identity::source::Source;
use deepres_model::clock::monotonic_ns;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

/// The most lines of one source in a period; enough for every line of a job of a few processes.
const LINES: u32 = 20;
/// The length of a period. A period begins with a source's first line.
const PERIOD: Duration = Duration::from_secs(60);
/// The most sources that the daemon counts separately. The daemon counts all further sources
/// together.
const SOURCES: usize = 1024;
/// The pid of processes that are not visible in the daemon's pid namespace.
const UNKNOWN: u32 = 0;
/// The most refusals that the daemon remembers. A process that waits for admission asks twice a
/// second. The daemon remembers the refusal, and so logs only one line about the process.
const REFUSALS: usize = 64;
/// The time between two looks for periods that are over.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The lines that a source caused in its period.
#[derive(Debug)]
struct Period {
    ends_ns: u64,
    written: u32,
    left_out: u64,
}

/// The running periods of all sources. The caller passes the time, so tests need no clock.
#[derive(Debug, Default)]
struct Budget {
    /// The running periods by source; `None` for the sources that the daemon counts together.
    periods: BTreeMap<Option<Source>, Period>,
}

/// The lines of a source that the daemon left out of the log in a period that is over.
#[derive(Debug, PartialEq, Eq)]
struct LeftOut {
    /// The source; `None` for several sources that the daemon counted together.
    source: Option<Source>,
    lines: u64,
}

impl Budget {
    /// Returns whether this source may cause one more line, and counts the line. `None` stands for
    /// all unknown sources together. Before the call, the caller must end the periods that are
    /// over.
    fn allows(&mut self, source: Option<&Source>, now_ns: u64) -> bool {
        let apart = source.cloned();
        let is_apart = self.periods.contains_key(&apart) || self.periods.len() < SOURCES;
        let period = self.periods.entry(apart.filter(|_| is_apart)).or_insert_with(|| Period {
            ends_ns: now_ns.saturating_add(u64::try_from(PERIOD.as_nanos()).unwrap_or(u64::MAX)),
            written: 0,
            left_out: 0,
        });
        if period.written < LINES {
            period.written += 1;
            return true;
        }
        period.left_out += 1;
        false
    }

    /// Ends the periods that are over. Returns the lines that the daemon left out in them.
    fn end(&mut self, now_ns: u64) -> Vec<LeftOut> {
        let over = self.periods.extract_if(.., |_, period| period.ends_ns <= now_ns);
        let told = over.filter(|(_, period)| period.left_out > 0);
        told.map(|(source, period)| LeftOut { source, lines: period.left_out }).collect()
    }
}

/// The lines that each source has caused lately.
#[derive(Debug, Default)]
pub struct Lines {
    budget: RefCell<Budget>,
    refusals: RefCell<Refusals>,
}

/// The latest refusals, oldest first: process and reason.
#[derive(Debug, Default)]
struct Refusals(VecDeque<(u32, String)>);

impl Refusals {
    /// Returns true if the list has no refusal of this process for this reason, and adds the
    /// refusal. For an unknown process, always returns true.
    fn is_news(&mut self, pid: u32, reason: &str) -> bool {
        if pid != UNKNOWN && self.0.iter().any(|(known, told)| *known == pid && told == reason) {
            return false;
        }
        self.0.retain(|(known, _)| *known != pid);
        if self.0.len() == REFUSALS {
            self.0.pop_front();
        }
        self.0.push_back((pid, reason.to_owned()));
        true
    }
}

impl Lines {
    /// Returns whether the daemon may log a line about this source. Counts a line that the daemon
    /// may not log.
    pub fn allows(&self, source: &Source) -> bool {
        self.allows_of(Some(source))
    }

    /// Returns whether the daemon may log a line about a process that died before the daemon knew
    /// its source, as [`Self::allows`] does.
    pub fn allows_unknown(&self) -> bool {
        self.allows_of(None)
    }

    /// Returns whether the daemon may log a line about a refused process, as [`Self::allows`] does.
    /// Returns true only once for each reason.
    pub fn allows_refusal(&self, source: &Source, pid: u32, reason: &str) -> bool {
        self.refusals.borrow_mut().is_news(pid, reason) && self.allows(source)
    }

    fn allows_of(&self, source: Option<&Source>) -> bool {
        let now_ns = monotonic_ns();
        self.end(now_ns);
        self.budget.borrow_mut().allows(source, now_ns)
    }

    /// Logs the number of left-out lines in periods that are over.
    pub fn end_over(&self) {
        self.end(monotonic_ns());
    }

    /// Logs the number of all left-out lines, and ends all periods. The caller calls this after
    /// [`serve`] has ended.
    pub fn end_all(&self) {
        self.end(u64::MAX);
    }

    fn end(&self, now_ns: u64) {
        let over = self.budget.borrow_mut().end(now_ns);
        for LeftOut { source, lines } in over {
            let source = source.map_or_else(|| "several".to_owned(), |source| source.to_string());
            tracing::info!(
                source,
                lines,
                "lines were left out: the log takes at most {LINES} lines a minute from one source"
            );
        }
    }
}

/// Logs the number of left-out lines soon after a period is over. Never returns.
pub async fn serve(lines: Rc<Lines>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        lines.end_over();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD_NS: u64 = PERIOD.as_nanos() as u64;

    /// Returns how many of `lines` are written.
    fn written(budget: &mut Budget, source: &Source, lines: u64, now_ns: u64) -> u64 {
        (0..lines).filter(|_| budget.allows(Some(source), now_ns)).count() as u64
    }

    #[test]
    fn a_source_that_causes_many_lines_has_some_written_and_the_others_have_theirs() {
        let mut budget = Budget::default();
        let [loud, calm] = [4711, 4712].map(Source::User);
        assert_eq!(written(&mut budget, &loud, 1_000, 5), 20);
        assert_eq!(written(&mut budget, &calm, 3, 6), 3);
        assert_eq!(written(&mut budget, &loud, 1, 4 + PERIOD_NS), 0);
        assert_eq!(budget.end(4 + PERIOD_NS), [], "its period is not over");
        let told = LeftOut { source: Some(loud.clone()), lines: 981 };
        assert_eq!(budget.end(5 + PERIOD_NS), [told], "and of the calm one nothing was left out");
        assert_eq!(written(&mut budget, &loud, 100, 5 + PERIOD_NS), 20);
    }

    #[test]
    fn a_process_that_is_refused_again_and_again_is_logged_once_for_each_reason() {
        let mut refusals = Refusals::default();
        let told = |refusals: &mut Refusals, pid, reason| refusals.is_news(pid, reason);
        assert!(told(&mut refusals, 1, "no room") && told(&mut refusals, 2, "no room"));
        assert!(!told(&mut refusals, 1, "no room") && !told(&mut refusals, 2, "no room"));
        assert!(told(&mut refusals, 1, "too much") && told(&mut refusals, 1, "no room"));
        assert!(
            (0..2).all(|_| told(&mut refusals, UNKNOWN, "no room")),
            "nobody knows whether it is the same"
        );
        let others = 3..3 + REFUSALS as u32;
        assert!(others.into_iter().all(|pid| told(&mut refusals, pid, "no room")));
        assert!(refusals.0.len() == REFUSALS && told(&mut refusals, 1, "no room"), "it was long ago");
    }

    #[test]
    fn sources_are_told_apart_up_to_a_number_and_none_is_remembered_for_ever() {
        let mut budget = Budget::default();
        let many = 10 * SOURCES as u32;
        let all: u64 = (0..many).map(|user| written(&mut budget, &Source::User(user), 1, 0)).sum();
        assert_eq!(all, SOURCES as u64 + 20);
        assert_eq!(budget.periods.len(), SOURCES + 1);
        assert_eq!(
            written(&mut budget, &Source::User(7), 100, 1),
            19,
            "those that were there first stay apart"
        );
        let left_out = u64::from(many) - all;
        let told = budget.end(PERIOD_NS + 1);
        assert!(told.contains(&LeftOut { source: None, lines: left_out }), "{told:?}");
        assert!(budget.periods.is_empty());
    }
}
