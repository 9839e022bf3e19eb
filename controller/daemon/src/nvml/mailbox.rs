//! A mailbox for questions to a library that may never answer. One thread answers the questions one
//! after another, in the order of their deadlines. If no answer comes by the deadline, the asker
//! goes on without an answer. If the answering code panics, its question also stays unanswered.
//!
//! If a thread is at one question for [`STUCK`], the mailbox gives the thread up and starts another
//! thread. The mailbox gives up at most [`MAX_STUCK`] threads at a time. Beyond this number,
//! questions get no answer, until a given-up thread comes back.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The time that a thread may take for one question before the mailbox gives the thread up. If the
/// driver must be loaded for the question, the answer takes some seconds.
pub const STUCK: Duration = Duration::from_secs(10);
/// The most threads at a time that the mailbox has given up.
pub const MAX_STUCK: usize = 4;

/// The function that answers a question. The function can keep data of type `K` from question to
/// question.
type Answer<Q, A, K> = fn(&mut K, &Q) -> A;

/// An asker: the time until which the asker waits, and the function that takes the answer.
struct Asker<A> {
    until: Instant,
    take: Box<dyn FnOnce(A) + Send>,
}

/// A question and its askers. If another asker posts an equal question while this question waits,
/// both askers get the same answer.
struct Letter<Q, A> {
    question: Q,
    askers: Vec<Asker<A>>,
}

struct State<Q, A> {
    letters: VecDeque<Letter<Q, A>>,
    /// The threads that answer questions, each with the time at which the thread took its present
    /// question; `None` while the thread waits for a question.
    threads: BTreeMap<u64, Option<Instant>>,
    next_thread: u64,
}

impl<Q, A> State<Q, A> {
    /// Returns whether a thread other than `own` waits for a question, or has been at a question
    /// for less than `stuck`.
    fn has_another_than(&self, own: Option<u64>, stuck: Duration) -> bool {
        let mut others = self.threads.iter().filter(|(id, _)| Some(**id) != own);
        others.any(|(_, since)| since.is_none_or(|since| since.elapsed() < stuck))
    }

    /// Takes the question that has the earliest deadline of any asker.
    fn next(&mut self) -> Option<Letter<Q, A>> {
        let until = |letter: &Letter<Q, A>| letter.askers.iter().map(|asker| asker.until).min();
        let first = self.letters.iter().enumerate().min_by_key(|(_, letter)| until(letter))?.0;
        self.letters.remove(first)
    }

    /// Forgets askers that have stopped waiting, and the questions without askers.
    fn forget_late(&mut self) {
        let now = Instant::now();
        self.letters.iter_mut().for_each(|letter| letter.askers.retain(|asker| now < asker.until));
        self.letters.retain(|letter| !letter.askers.is_empty());
    }
}

/// A mailbox for questions to a library that may never answer. `Q` is a question, `A` an answer,
/// and `K` the data that a thread keeps from question to question.
pub struct Mailbox<Q, A, K> {
    name: &'static str,
    answer: Answer<Q, A, K>,
    stuck: Duration,
    shared: Arc<(Mutex<State<Q, A>>, Condvar)>,
}

impl<Q, A, K> Mailbox<Q, A, K>
where
    Q: PartialEq + Send + 'static,
    A: Clone + Send + 'static,
    K: Default + 'static,
{
    /// Returns a mailbox without questions. `name` is the name of its threads.
    pub fn new(name: &'static str, stuck: Duration, answer: Answer<Q, A, K>) -> Self {
        let state = State { letters: VecDeque::new(), threads: BTreeMap::new(), next_thread: 0 };
        Self { name, answer, stuck, shared: Arc::new((Mutex::new(state), Condvar::new())) }
    }

    /// Posts a question. If the answer comes within `limit`, the mailbox's thread calls `take`.
    /// Otherwise the mailbox drops `take`.
    pub fn post(&self, question: Q, limit: Duration, take: impl FnOnce(A) + Send + 'static) {
        let mut state = lock(&self.shared.0);
        state.forget_late();
        if !state.has_another_than(None, self.stuck) && !self.start(&mut state) {
            return;
        }
        let asker = Asker { until: Instant::now() + limit, take: Box::new(take) };
        match state.letters.iter_mut().find(|letter| letter.question == question) {
            Some(letter) => letter.askers.push(asker),
            None => state.letters.push_back(Letter { question, askers: vec![asker] }),
        }
        self.shared.1.notify_all();
    }

    /// Asks, and waits for the answer for at most `limit`. Returns `None` without an answer.
    pub async fn ask(&self, question: Q, limit: Duration) -> Option<A> {
        let (sender, answer) = oneshot::channel();
        self.post(question, limit, move |answer| drop(sender.send(answer)));
        timeout(limit, answer).await.ok()?.ok()
    }

    /// Asks as [`Self::ask`] does, but blocks the calling thread. Returns the answer; `None`
    /// without an answer within `limit`.
    pub fn ask_and_wait(&self, question: Q, limit: Duration) -> Option<A> {
        let (sender, answer) = mpsc::sync_channel(1);
        self.post(question, limit, move |answer| drop(sender.send(answer)));
        answer.recv_timeout(limit).ok()
    }

    /// Starts a thread, unless the mailbox has too many threads. Returns whether a thread started.
    fn start(&self, state: &mut State<Q, A>) -> bool {
        if state.threads.len() > MAX_STUCK {
            return false;
        }
        if !state.threads.is_empty() {
            tracing::warn!(
                thread = self.name,
                given_up = state.threads.len(),
                "a thread hangs in the driver: the daemon starts another thread in its place"
            );
        }
        let id = state.next_thread;
        let (shared, answer, stuck) = (Arc::clone(&self.shared), self.answer, self.stuck);
        let serves = move || serve(id, &shared, answer, stuck);
        let is_started = std::thread::Builder::new().name(self.name.to_owned()).spawn(serves).is_ok();
        if is_started {
            state.next_thread += 1;
            state.threads.insert(id, None);
        }
        is_started
    }
}

/// Answers questions as the thread `id`. Returns once another thread has taken its place.
fn serve<Q, A: Clone, K: Default>(
    id: u64,
    (state, news): &(Mutex<State<Q, A>>, Condvar),
    answer: Answer<Q, A, K>,
    stuck: Duration,
) {
    let mut kept = K::default();
    let mut held = lock(state);
    while !held.has_another_than(Some(id), stuck) {
        held.forget_late();
        let Some(Letter { question, askers }) = held.next() else {
            held = news.wait(held).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        held.threads.insert(id, Some(Instant::now()));
        drop(held);
        match catch_unwind(AssertUnwindSafe(|| answer(&mut kept, &question))) {
            Ok(said) => askers.into_iter().for_each(|asker| (asker.take)(said.clone())),
            // The question stays unanswered. The thread drops its data, because the panic may have
            // broken them.
            Err(_) => kept = K::default(),
        }
        held = lock(state);
        held.threads.insert(id, None);
    }
    held.threads.remove(&id);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    const LIMIT: Duration = Duration::from_secs(60);
    const SOON: Duration = Duration::from_millis(20);

    /// For tests: a question that the answering thread holds back. The answer comes at once, or
    /// once the sender of the question is dropped.
    struct Held(u32, Option<Mutex<mpsc::Receiver<()>>>);

    impl PartialEq for Held {
        fn eq(&self, other: &Self) -> bool {
            self.0 == other.0
        }
    }

    /// Counts the questions that a thread got. Returns the count with the question.
    fn told(asked: &mut u32, Held(number, held): &Held) -> (u32, u32) {
        *asked += 1;
        if let Some(held) = held {
            let _ = lock(held).recv();
        }
        (*number, *asked)
    }

    fn held(number: u32) -> (Held, mpsc::Sender<()>) {
        let (release, held) = mpsc::channel();
        (Held(number, Some(Mutex::new(held))), release)
    }

    fn mailbox(stuck: Duration) -> Mailbox<Held, (u32, u32), u32> {
        Mailbox::new("ask", stuck, told)
    }

    #[test]
    fn a_caller_that_asks_while_the_same_question_waits_gets_the_same_answer() {
        let mailbox = mailbox(LIMIT);
        let (first, release) = held(1);
        let (sender, answers) = mpsc::channel();
        let ask = |question| {
            let sender = sender.clone();
            mailbox.post(question, LIMIT, move |answer| sender.send(answer).unwrap());
        };
        ask(first);
        // The thread may not have taken the first question yet. The loop waits, because equal
        // questions that wait share one answer.
        while lock(&mailbox.shared.0).threads.values().all(Option::is_none) {
            std::thread::sleep(Duration::from_millis(1));
        }
        (0..40).for_each(|_| ask(Held(1, None)));
        assert_eq!(lock(&mailbox.shared.0).letters.len(), 1);
        drop(release);
        assert_eq!(answers.recv(), Ok((1, 1)));
        assert!((0..40).all(|_| answers.recv() == Ok((1, 2))), "by one look for all");
    }

    #[test]
    fn a_question_that_is_never_answered_is_unknown_at_its_deadline_and_keeps_no_other_waiting() {
        let mailbox = mailbox(SOON);
        let mut releases = Vec::new();
        for number in 0..MAX_STUCK as u32 {
            let (question, release) = held(number);
            releases.push(release);
            assert_eq!(mailbox.ask_and_wait(question, 2 * SOON), None);
            assert_eq!(mailbox.ask_and_wait(Held(99, None), LIMIT), Some((99, 1)), "by a thread of its own");
            // The new thread takes the next question, and the mailbox gives it up too.
        }
        let (question, release) = held(100);
        assert_eq!(mailbox.ask_and_wait(question, 2 * SOON), None);
        let began = Instant::now();
        assert_eq!(mailbox.ask_and_wait(Held(101, None), LIMIT), None, "there are enough threads");
        assert!(began.elapsed() < LIMIT / 2, "which is said at once");
        assert_eq!(lock(&mailbox.shared.0).threads.len(), MAX_STUCK + 1);
        drop((releases, release));
        while lock(&mailbox.shared.0).threads.len() > 1 {
            std::thread::sleep(SOON);
        }
        let answered = mailbox.ask_and_wait(Held(102, None), LIMIT);
        assert_eq!(answered.map(|(number, _)| number), Some(102), "by the one that is left");
    }

    #[test]
    fn the_question_with_the_earliest_deadline_is_the_next() {
        let mailbox = mailbox(LIMIT);
        let (first, release) = held(1);
        let (sender, answers) = mpsc::channel();
        let ask = |question, limit| {
            let sender = sender.clone();
            mailbox.post(question, limit, move |answer: (u32, u32)| sender.send(answer.0).unwrap());
        };
        ask(first, LIMIT);
        while lock(&mailbox.shared.0).threads.values().all(Option::is_none) {
            std::thread::sleep(Duration::from_millis(1));
        }
        ask(Held(2, None), LIMIT);
        ask(Held(3, None), LIMIT / 2);
        drop(release);
        assert_eq!([(); 3].map(|()| answers.recv().unwrap()), [1, 3, 2]);
    }

    #[test]
    fn a_caller_that_stopped_waiting_is_forgotten() {
        let mailbox = mailbox(LIMIT);
        let (question, release) = held(1);
        assert_eq!(mailbox.ask_and_wait(question, SOON), None);
        for number in 2..100 {
            assert_eq!(mailbox.ask_and_wait(Held(number, None), Duration::from_micros(1)), None);
        }
        let answer = std::thread::scope(|scope| {
            let asked = scope.spawn(|| mailbox.ask_and_wait(Held(100, None), LIMIT));
            while lock(&mailbox.shared.0).letters.iter().all(|letter| letter.question.0 != 100) {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(lock(&mailbox.shared.0).letters.len(), 1);
            drop(release);
            asked.join().unwrap()
        });
        assert_eq!(answer, Some((100, 2)), "none of the others was put to the library");
    }

    #[test]
    fn a_panic_leaves_its_question_unanswered_and_the_next_is_answered() {
        static ASKED: AtomicU32 = AtomicU32::new(0);
        let mailbox: Mailbox<u32, u32, ()> = Mailbox::new("ask", LIMIT, |(), number| {
            assert_ne!(ASKED.fetch_add(1, Ordering::Relaxed), 0, "the first question is too much");
            *number
        });
        assert_eq!(mailbox.ask_and_wait(1, LIMIT), None);
        assert_eq!(mailbox.ask_and_wait(2, LIMIT), Some(2));
    }
}
