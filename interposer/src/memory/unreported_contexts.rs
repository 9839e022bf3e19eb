//! Contexts that NVML did not report when they were made, because many processes started at once or
//! the driver was busy. The meter thread asks the daemon again, and never blocks on the answer.

use super::{Accounts, Name, Request};
use crate::handshake::Question;
use crate::log::say;
use crate::memory::site::Site;
use crate::process::Process;
use deepres_abi::driver::ApiId;
use deepres_abi::meter::MemoryKind;

/// First and longest pause between two questions, ns.
const PAUSE_NS: (u64, u64) = (100_000_000, 10_000_000_000);
/// How long an answer may take, ns. The daemon gives up sooner.
const ANSWER_NS: u64 = 3_000_000_000;
/// Interval at which the meter thread checks for an answer, ns.
const LOOK_NS: u64 = 2_000_000;
/// How many figures are discarded because the account changed meanwhile. After so many the last
/// figure is taken.
const LOOKS: u32 = 16;
/// Number of unanswered questions after which the job is warned.
const TOLD_AFTER: u32 = 4;

/// A question that was sent to the daemon.
#[derive(Debug)]
struct Asked {
    question: Question,
    ordinal: usize,
    /// The amount in the account before the question, bytes.
    held_bytes: u64,
    /// The list of late contexts that the question is about ([`super::contexts::Contexts::late`]).
    changes: u64,
    until_ns: u64,
}

/// State of the questions. See the module.
#[derive(Debug)]
pub struct UnreportedContexts {
    due_ns: u64,
    pause_ns: u64,
    asked: Option<Asked>,
    looks: u32,
    in_vain: u32,
}

impl Default for UnreportedContexts {
    fn default() -> Self {
        Self { due_ns: 0, pause_ns: PAUSE_NS.0, asked: None, looks: LOOKS, in_vain: 0 }
    }
}

impl UnreportedContexts {
    /// Sends the next question or looks for an answer. Returns the time until the next call is due,
    /// ns. `None` if no context is late.
    pub fn step(&mut self, process: &Process, now_ns: u64) -> Option<u64> {
        let (ordinal, changes) = process.memory.contexts.late()?;
        if self.asked.is_none() && now_ns >= self.due_ns {
            self.ask(process, (ordinal, changes), now_ns);
        } else if let Some(asked) = self.asked.take() {
            self.look(process, asked, now_ns);
        }
        Some(if self.asked.is_some() { LOOK_NS } else { self.due_ns.saturating_sub(now_ns) })
    }

    fn ask(&mut self, process: &Process, (ordinal, changes): (usize, u64), now_ns: u64) {
        process.memory.refresh(process);
        let site = Site::of(process, ordinal);
        match site.and_then(|site| Some((site.account.held_bytes(), process.question(ordinal)?))) {
            Some((held_bytes, question)) => {
                let until_ns = now_ns.saturating_add(ANSWER_NS);
                self.asked = Some(Asked { question, ordinal, held_bytes, changes, until_ns });
            }
            None => self.pause(process, ordinal, now_ns),
        }
    }

    fn look(&mut self, process: &Process, asked: Asked, now_ns: u64) {
        let until_ns = asked.until_ns;
        match asked.question.answer() {
            Err(question) if now_ns < until_ns => self.asked = Some(Asked { question, ..asked }),
            Ok(Some(seen_bytes)) => {
                process.believe_appraisals();
                self.looks = self.looks.saturating_sub(1);
                let looked = Looked {
                    before_bytes: asked.held_bytes,
                    seen_bytes,
                    changes: asked.changes,
                    is_last: self.looks == 0,
                };
                if process.memory.charge_unreported(process, asked.ordinal, &looked) {
                    *self = Self::default();
                } else {
                    self.due_ns = now_ns.saturating_add(LOOK_NS);
                }
            }
            _ => self.pause(process, asked.ordinal, now_ns),
        }
    }

    fn pause(&mut self, process: &Process, ordinal: usize, now_ns: u64) {
        process.memory.contexts.defer_late();
        self.in_vain = self.in_vain.saturating_add(1);
        if self.in_vain == TOLD_AFTER {
            say!(
                Warn,
                "what this process's contexts on GPU {ordinal} take counts for nothing until NVML tells the daemon of it"
            );
        }
        self.due_ns = now_ns.saturating_add(self.pause_ns);
        self.pause_ns = (self.pause_ns * 2).min(PAUSE_NS.1);
    }
}

/// A figure that NVML gave, and the state that it belongs to.
struct Looked {
    /// The amount in the account before the question, bytes.
    before_bytes: u64,
    /// The memory that NVML reports for the process, bytes.
    seen_bytes: u64,
    /// The list of late contexts that the question is about.
    changes: u64,
    /// Whether the figure is taken even if the account changed meanwhile.
    is_last: bool,
}

impl Accounts {
    /// Charges the late contexts on the GPU `ordinal`. The memory that NVML reports beyond the
    /// process's account is divided equally among them.
    ///
    /// Returns false if contexts were made or memory was allocated meanwhile. At the last look,
    /// allocations are ignored.
    fn charge_unreported(&self, process: &Process, ordinal: usize, looked: &Looked) -> bool {
        // A thread that is making a context is about to ask NVML too.
        let Some(_turn) = self.contexts.try_turn(ordinal) else { return false };
        let Some(site) = Site::of(process, ordinal) else { return false };
        let held_bytes = site.account.held_bytes();
        let is_steady = held_bytes == looked.before_bytes && !site.is_anything_promised();
        if !is_steady && !looked.is_last {
            return false;
        }
        // A thread that ends one of these contexts removes it from the list afterwards.
        let there = self.contexts.lock();
        let Some(mut late) = self.contexts.take_late(ordinal, looked.changes) else { return false };
        late.retain(|late| there.contains(&(*late, ordinal)));
        let bytes = looked.seen_bytes.saturating_sub(held_bytes) / (late.len() as u64).max(1);
        for context in late.into_iter().filter(|_| bytes != 0) {
            let (api, kind) = (ApiId::cuCtxCreate_v2, MemoryKind::Context);
            let request = Request { api, kind, ordinal, context, bytes };
            self.enter(process, &site, &request, (Name::Context(context as u64), bytes), None);
        }
        true
    }
}
