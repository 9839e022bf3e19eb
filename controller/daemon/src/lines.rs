//! How many lines of the log one source may cause: whoever connects in a loop fills no disk, and hides nobody else's lines.

use crate::identity::source::Source;
use deepres_model::clock::monotonic_ns;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

/// Lines of one source in a period. A job of a few processes is told whole.
const LINES: u32 = 20;
/// A period, which begins with a source's first line.
const PERIOD: Duration = Duration::from_secs(60);
/// Sources that are counted apart. Those that come when there are so many are counted together.
const SOURCES: usize = 1024;
/// The number of processes that have none here.
const UNKNOWN: u32 = 0;
/// Refusals that are remembered: who waits until it is let in asks twice a second, and is told of once.
const REFUSALS: usize = 64;
/// How often it is looked for periods that are over.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What a source caused in its period.
#[derive(Debug)]
struct Period {
    ends_ns: u64,
    written: u32,
    left_out: u64,
}

/// The periods that are running. Pure: time is an argument.
#[derive(Debug, Default)]
struct Budget {
    /// By source; `None` for those that are counted together.
    periods: BTreeMap<Option<Source>, Period>,
}

/// Lines of a source that were not written in a period that is over.
#[derive(Debug, PartialEq, Eq)]
struct LeftOut {
    /// Whose; `None` for several that were counted together.
    source: Option<Source>,
    lines: u64,
}

impl Budget {
    /// Whether this source may have one more line written, which is counted; `None`: those that nobody knows, together. A period that is over is to be ended
    /// before.
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

    /// Ends the periods that are over, and says what was left out in them.
    fn end(&mut self, now_ns: u64) -> Vec<LeftOut> {
        let over = self.periods.extract_if(.., |_, period| period.ends_ns <= now_ns);
        let told = over.filter(|(_, period)| period.left_out > 0);
        told.map(|(source, period)| LeftOut { source, lines: period.left_out }).collect()
    }
}

/// What each source has caused lately.
#[derive(Debug, Default)]
pub struct Lines {
    budget: RefCell<Budget>,
    refusals: RefCell<Refusals>,
}

/// The latest refusals, oldest first: process and reason.
#[derive(Debug, Default)]
struct Refusals(VecDeque<(u32, String)>);

impl Refusals {
    /// Whether a process was refused for something else when it was last refused, or was not lately.
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
    /// Whether a line about what this source does is to be written; one that is not is counted.
    pub fn allows(&self, source: &Source) -> bool {
        self.allows_of(Some(source))
    }

    /// The same about somebody who is gone before it was known who it is.
    pub fn allows_unknown(&self) -> bool {
        self.allows_of(None)
    }

    /// The same about a process that is refused: it is told of once for each reason.
    pub fn allows_refusal(&self, source: &Source, pid: u32, reason: &str) -> bool {
        self.refusals.borrow_mut().is_news(pid, reason) && self.allows(source)
    }

    fn allows_of(&self, source: Option<&Source>) -> bool {
        let now_ns = monotonic_ns();
        self.end(now_ns);
        self.budget.borrow_mut().allows(source, now_ns)
    }

    /// Says what was left out in periods that are over.
    pub fn end_over(&self) {
        self.end(monotonic_ns());
    }

    /// Says what was left out, and forgets it. To be called when nobody says so any more.
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
                "lines were left out: no more than {LINES} a minute are written of one source"
            );
        }
    }
}

/// Says what was left out as soon as a period is over, for ever.
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

    /// How many of so many lines are written.
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
    fn who_is_refused_again_and_again_is_told_of_once_for_each_reason() {
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
