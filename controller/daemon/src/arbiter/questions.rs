//! The arbiter's questions to the system: which processes are stopped? One look has little time for
//! questions, because leases and the heartbeat wait meanwhile. So the looks take turns: a look
//! leaves the questions for which it lacks time to the next looks.

use super::events::Ringer;
use deepres_model::process::ProcessKey;
use deepres_policy::arbiter::SessionId;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// The questions that no look has asked yet, by the payer of the session's looks.
#[derive(Debug, Default)]
pub struct Questions {
    open: BTreeMap<Ringer, Open>,
    /// The payer of the last question.
    last: Option<Ringer>,
}

/// The open questions about the sessions of one payer. There is at least one.
#[derive(Debug, Default)]
struct Open {
    sessions: BTreeSet<SessionId>,
    /// The payer's session about which a look asked last.
    last: SessionId,
}

impl Questions {
    /// Adds the questions about the processes of the sessions `asks`, and asks open questions until
    /// `is_over` says that the look has no more time. Asks at least one question, and once about
    /// each process. Writes the answers to `answers`. A session without a known process is not
    /// stopped.
    pub fn ask(
        &mut self,
        asks: impl IntoIterator<Item = (SessionId, Ringer)>,
        process_of: impl Fn(SessionId) -> Option<ProcessKey>,
        mut is_stopped: impl FnMut(ProcessKey) -> bool,
        mut is_over: impl FnMut() -> bool,
        answers: &mut BTreeMap<SessionId, bool>,
    ) {
        for (session, payer) in asks {
            self.open.entry(payer).or_default().sessions.insert(session);
        }
        let mut known = BTreeMap::new();
        while let Some(session) = self.take() {
            let process = process_of(session);
            let answer = process.is_some_and(|who| *known.entry(who).or_insert_with(|| is_stopped(who)));
            answers.insert(session, answer);
            if is_over() {
                return;
            }
        }
    }

    /// Returns the next open question. The payers have their turns in order, and the first follows
    /// the last. So the sessions of one payer do not delay the questions about the sessions of
    /// another payer.
    fn take(&mut self) -> Option<SessionId> {
        let later = (self.last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let (payer, _) = self.open.range(later).next().or_else(|| self.open.first_key_value())?;
        let payer = *payer;
        let open = self.open.get_mut(&payer)?;
        let session = open.take();
        if open.sessions.is_empty() {
            self.open.remove(&payer);
        }
        self.last = Some(payer);
        session
    }
}

impl Open {
    /// Returns the next question. The sessions have their turns in the order of their numbers, and
    /// the first follows the last.
    fn take(&mut self) -> Option<SessionId> {
        let later = (Bound::Excluded(self.last), Bound::Unbounded);
        let next = self.sessions.range(later).next().or_else(|| self.sessions.first()).copied()?;
        self.sessions.remove(&next);
        self.last = next;
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const PAYER: Ringer = Ringer::Tenant(1);

    fn process(pid: u32) -> ProcessKey {
        ProcessKey { pid, start_ticks: 1 }
    }

    /// Returns the sessions that a look answers if it has time for `budget` questions.
    fn answered(
        questions: &mut Questions,
        asks: &[SessionId],
        process_of: impl Fn(SessionId) -> Option<ProcessKey>,
        budget: u32,
    ) -> Vec<SessionId> {
        let asks = asks.iter().map(|session| (*session, PAYER));
        let (asked, mut answers) = (Cell::new(0), BTreeMap::new());
        let is_stopped = |_: ProcessKey| {
            asked.set(asked.get() + 1);
            true
        };
        questions.ask(asks, process_of, is_stopped, || asked.get() >= budget, &mut answers);
        answers.into_keys().collect()
    }

    fn own(session: SessionId) -> Option<ProcessKey> {
        Some(process(session as u32))
    }

    #[test]
    fn a_look_asks_no_longer_than_its_budget_and_the_next_look_goes_on_with_the_others() {
        let (mut questions, asks) = (Questions::default(), [1, 2, 3, 4, 5]);
        assert_eq!(answered(&mut questions, &asks, own, 2), [1, 2]);
        assert_eq!(answered(&mut questions, &[], own, 2), [3, 4]);
        assert_eq!(answered(&mut questions, &asks, own, 2), [1, 5], "the turns begin again");
        assert_eq!(answered(&mut questions, &[], own, 10), [2, 3, 4]);
        assert!(answered(&mut questions, &[], own, 10).is_empty(), "each question has its answer");
    }

    #[test]
    fn a_look_without_time_still_asks_one_question_so_that_each_process_has_its_turn() {
        let (mut questions, asks) = (Questions::default(), [7, 8, 9]);
        let looks: Vec<_> = (0..4).flat_map(|_| answered(&mut questions, &asks, own, 0)).collect();
        assert_eq!(looks, [7, 8, 9, 7]);
    }

    #[test]
    fn a_look_asks_once_about_a_process_whatever_the_number_of_its_sessions() {
        let asked = Cell::new(0);
        let mut answers = BTreeMap::new();
        let is_stopped = |who: ProcessKey| {
            asked.set(asked.get() + 1);
            who == process(20)
        };
        let process_of = |session: SessionId| Some(process(if session < 100 { 10 } else { 20 }));
        let asks = (0..200).map(|session| (session, PAYER));
        Questions::default().ask(asks, process_of, is_stopped, || false, &mut answers);
        assert_eq!(asked.get(), 2);
        assert!(answers.len() == 200 && answers.iter().all(|(session, answer)| *answer == (*session >= 100)));
    }

    #[test]
    fn a_session_without_a_known_process_is_not_stopped_and_no_question_is_none() {
        let (mut questions, mut answers) = (Questions::default(), BTreeMap::new());
        let stopped = |_: ProcessKey| true;
        questions.ask([], own, stopped, || true, &mut answers);
        assert!(answers.is_empty());
        questions.ask([(3, PAYER)], |_| None, stopped, || false, &mut answers);
        assert_eq!(answers, BTreeMap::from([(3, false)]));
    }

    #[test]
    fn a_session_has_its_turn_though_others_are_asked_about_again_and_again() {
        let mut questions = Questions::default();
        let others: Vec<SessionId> = (1..=100).filter(|session| *session != 50).collect();
        questions.open.entry(PAYER).or_default().sessions.insert(50);
        let answered = (0..10).any(|_| answered(&mut questions, &others, own, 10).contains(&50));
        assert!(answered);
    }

    #[test]
    fn the_many_sessions_of_one_payer_do_not_delay_the_question_about_anothers() {
        let (mut questions, mut answers, asked) = (Questions::default(), BTreeMap::new(), Cell::new(0));
        let asks = (1..=1_000).map(|session| (session, PAYER)).chain([(2_000, Ringer::Tenant(2))]);
        let is_stopped = |_: ProcessKey| {
            asked.set(asked.get() + 1);
            true
        };
        questions.ask(asks, own, is_stopped, || asked.get() >= 2, &mut answers);
        assert_eq!(answers.into_keys().collect::<Vec<_>>(), [1, 2_000]);
    }
}
