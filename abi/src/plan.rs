//! A plan of a few tenants on one GPU, as shared memory carries it. The daemon gives each session
//! the plan and the places of the other tenants. Each session tells its own place.
//!
//! No process sees another process's pages. A session writes its place into its meter page
//! ([`Progress`]), and the daemon copies the place into the grant pages of the other sessions
//! ([`PlanSlot`]). A session can write any place. A wrong place makes other tenants wait for a
//! bounded time, or not at all.
//!
//! A place belongs to the installation with a certain number. A reader takes a place of another
//! installation for [`Place::Coming`]. So no word has to be cleared at a certain moment.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// The most tenants of a plan.
pub const MOST_TENANTS: usize = 3;
/// The most kernels of a tenant's iteration in a plan. The daemon searches no longer plans.
#[cfg(not(loom))]
pub const MOST_KERNELS: usize = 2_000;
/// The most kernels under the model checker, which cannot follow many words.
#[cfg(loom)]
pub const MOST_KERNELS: usize = 2;
/// The most cuts of a plan. The largest plan of the evaluation has 86 cuts.
#[cfg(not(loom))]
pub const MOST_CUTS: usize = 256;
/// The most cuts under the model checker.
#[cfg(loom)]
pub const MOST_CUTS: usize = 1;

/// A tenant's place in its iteration, for the other tenants of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The tenant has not gone through a whole iteration since the installation began.
    Coming,
    /// The tenant knows its place in its iteration, and does not yet keep to the plan.
    Ready,
    /// The tenant keeps to the plan.
    At {
        /// The number of whole iterations that the tenant has finished since the plan began.
        iterations: u64,
        /// The number of kernels of the next iteration that the tenant has finished.
        kernel: usize,
    },
    /// The tenant has ended or departed. No other tenant waits for it.
    Gone,
}

const KERNEL_BITS: u32 = 16;
const ITERATION_BITS: u32 = 30;
const STATE_BITS: u32 = 2;
const NUMBER_BITS: u32 = 16;
const _: () = assert!(KERNEL_BITS + ITERATION_BITS + STATE_BITS + NUMBER_BITS == u64::BITS);
const _: () = assert!(MOST_KERNELS < 1 << KERNEL_BITS);

const fn low(value: u64, bits: u32) -> u64 {
    value & ((1 << bits) - 1)
}

impl Place {
    /// Returns the word of this place in the installation `number`. Iterations beyond 2³⁰ count as
    /// 2³⁰ − 1. An installation does not last that long.
    pub fn word(self, number: u32) -> u64 {
        let (state, iterations, kernel) = match self {
            Self::Coming => (0, 0, 0),
            Self::Ready => (1, 0, 0),
            Self::At { iterations, kernel } => (2, iterations, kernel as u64),
            Self::Gone => (3, 0, 0),
        };
        let iterations = iterations.min((1 << ITERATION_BITS) - 1);
        let kernel = kernel.min((1 << KERNEL_BITS) - 1);
        let head = low(u64::from(number), NUMBER_BITS) << STATE_BITS | state;
        (head << ITERATION_BITS | iterations) << KERNEL_BITS | kernel
    }

    /// Returns the place of any word, in the installation `number`.
    pub fn of(word: u64, number: u32) -> Self {
        let head = word >> (KERNEL_BITS + ITERATION_BITS);
        if head >> STATE_BITS != low(u64::from(number), NUMBER_BITS) {
            return Self::Coming;
        }
        match low(head, STATE_BITS) {
            0 => Self::Coming,
            1 => Self::Ready,
            2 => Self::At {
                iterations: low(word >> KERNEL_BITS, ITERATION_BITS),
                kernel: low(word, KERNEL_BITS) as usize,
            },
            _ => Self::Gone,
        }
    }
}

/// A cut of a plan: the kernel waits until `other` has finished all its kernels before `until`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Cut {
    /// The number of the tenant that waits.
    pub tenant: usize,
    /// The place of the kernel in the tenant's iteration. Later kernels wait, too.
    pub kernel: usize,
    /// The number of the other tenant.
    pub other: usize,
    /// A place in the other tenant's iteration, or its length for the end.
    pub until: usize,
}

impl Cut {
    const BITS: u32 = 16;

    fn word(self) -> u64 {
        let parts = [self.tenant, self.kernel, self.other, self.until];
        parts.into_iter().fold(0, |word, part| word << Self::BITS | low(part as u64, Self::BITS))
    }

    fn of(word: u64) -> Self {
        let part = |shift: u32| low(word >> (shift * Self::BITS), Self::BITS) as usize;
        Self { tenant: part(3), kernel: part(2), other: part(1), until: part(0) }
    }
}

/// The part of a plan that has one value for the whole plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanHead {
    /// The session's number among the tenants of the plan.
    pub tenant: usize,
    /// The longest time for which a launch waits at all its cuts together, ns.
    pub wait_limit_ns: u64,
}

/// The plan of a session in its grant page. Only the daemon writes it. The Linux kernel gives the
/// plan memory when the daemon first writes it.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct PlanSlot {
    /// The number of the installation; 0 for none. The daemon writes the number last.
    number: AtomicU32,
    /// Grows with each change of the number and of a place. Waiting threads sleep on this futex.
    changes: AtomicU32,
    places: [AtomicU64; MOST_TENANTS],
    tenant: AtomicU32,
    kernels: AtomicU32,
    cuts: AtomicU32,
    wait_limit_ns: AtomicU64,
    cut_words: [AtomicU64; MOST_CUTS],
    keys: [AtomicU64; MOST_KERNELS],
}

impl Default for PlanSlot {
    fn default() -> Self {
        let zero = |_| AtomicU64::new(0);
        Self {
            number: AtomicU32::new(0),
            changes: AtomicU32::new(0),
            places: core::array::from_fn(zero),
            tenant: AtomicU32::new(0),
            kernels: AtomicU32::new(0),
            cuts: AtomicU32::new(0),
            wait_limit_ns: AtomicU64::new(0),
            cut_words: core::array::from_fn(zero),
            keys: core::array::from_fn(zero),
        }
    }
}

impl PlanSlot {
    /// Installs a plan of `tenants` tenants under `number`, which is not 0. No other installation
    /// of the page has this number. Returns false, and leaves no plan, if the slot has no room for
    /// the keys or cuts. Only one thread at a time may call this. The caller wakes the futex
    /// afterwards.
    #[must_use]
    pub fn install(
        &self,
        number: u32,
        head: PlanHead,
        tenants: usize,
        keys: impl ExactSizeIterator<Item = u64>,
        cuts: impl ExactSizeIterator<Item = Cut>,
    ) -> bool {
        self.withdraw();
        if keys.len() > MOST_KERNELS || cuts.len() > MOST_CUTS {
            return false;
        }
        // With this fence, a reader that sees any word of this plan also sees that the old plan is
        // gone.
        fence(Ordering::Release);
        self.tenant.store(head.tenant as u32, Ordering::Relaxed);
        self.wait_limit_ns.store(head.wait_limit_ns, Ordering::Relaxed);
        self.kernels.store(keys.len() as u32, Ordering::Relaxed);
        self.cuts.store(cuts.len() as u32, Ordering::Relaxed);
        self.keys.iter().zip(keys).for_each(|(word, key)| word.store(key, Ordering::Relaxed));
        let words = self.cut_words.iter().zip(cuts);
        words.for_each(|(word, cut)| word.store(cut.word(), Ordering::Relaxed));
        for (tenant, place) in self.places.iter().enumerate() {
            let first = if tenant < tenants { Place::Coming } else { Place::Gone };
            place.store(first.word(number), Ordering::Relaxed);
        }
        self.number.store(number, Ordering::Release);
        self.changes.fetch_add(1, Ordering::Release);
        true
    }

    /// Withdraws the plan. From now on, no launch waits. The caller wakes the futex afterwards.
    pub fn withdraw(&self) {
        self.number.store(0, Ordering::Release);
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Returns the number of the installation; 0 for none. Under an older daemon, there is none.
    #[inline]
    pub fn number(&self) -> u32 {
        self.number.load(Ordering::Acquire)
    }

    /// Reads the installation `number`. Calls `key` with each key and `cut` with each cut, in
    /// order. Returns `None` if the page has another plan meanwhile. The caller then drops all that
    /// it was told.
    pub fn read(&self, number: u32, mut key: impl FnMut(u64), mut cut: impl FnMut(Cut)) -> Option<PlanHead> {
        if number == 0 || self.number() != number {
            return None;
        }
        let length = |word: &AtomicU32| word.load(Ordering::Relaxed) as usize;
        let (kernels, cuts) = (length(&self.kernels), length(&self.cuts));
        self.keys.iter().take(kernels).for_each(|word| key(word.load(Ordering::Relaxed)));
        let words = self.cut_words.iter().take(cuts);
        words.for_each(|word| cut(Cut::of(word.load(Ordering::Relaxed))));
        let head = PlanHead {
            tenant: length(&self.tenant),
            wait_limit_ns: self.wait_limit_ns.load(Ordering::Relaxed),
        };
        fence(Ordering::Acquire);
        (self.number.load(Ordering::Relaxed) == number).then_some(head)
    }

    /// Sets the place of a tenant, as a word of [`Place::word`]. Any thread of the daemon may call
    /// this. The caller wakes the futex afterwards.
    pub fn set_place(&self, tenant: usize, word: u64) {
        if let Some(place) = self.places.get(tenant) {
            place.store(word, Ordering::Release);
            self.changes.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns each tenant's place in its iteration. A place that belongs to another installation
    /// than `number` counts as [`Place::Coming`].
    pub fn places(&self, number: u32) -> [Place; MOST_TENANTS] {
        core::array::from_fn(|tenant| Place::of(self.places[tenant].load(Ordering::Acquire), number))
    }

    /// Returns the word on which waiting threads sleep.
    pub fn changes(&self) -> &AtomicU32 {
        &self.changes
    }

    /// Holds a launch as long as the installation `number` lasts and `ask` returns a time. `ask`
    /// gets the places of all tenants. `ask` returns the time until which the launch waits at the
    /// latest, ns, or `None` if the launch may go. `sleep` sleeps until this time at the latest,
    /// while the count of changes is the given one.
    pub fn hold(
        &self,
        number: u32,
        mut ask: impl FnMut(&[Place; MOST_TENANTS]) -> Option<u64>,
        mut sleep: impl FnMut(u32, u64),
    ) {
        loop {
            // The thread reads the count before it looks. So if anything changes after the look,
            // the sleep ends.
            let seen = self.changes.load(Ordering::Acquire);
            if self.number() != number {
                return;
            }
            match ask(&self.places(number)) {
                Some(until_ns) => sleep(seen, until_ns),
                None => return,
            }
        }
    }
}

/// A session's own place in its plan, in its meter page. An older library leaves it 0.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Progress {
    place: AtomicU64,
    /// Grows with each change of the place. The daemon sleeps on this futex.
    changes: AtomicU32,
}

impl Progress {
    /// Tells the session's place, as a word of [`Place::word`]. Only one thread at a time may call
    /// this. The caller wakes the futex afterwards.
    pub fn tell(&self, word: u64) {
        self.place.store(word, Ordering::Release);
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Returns the count of changes, and the place or a later one. The session can write any word.
    pub fn read(&self) -> (u32, u64) {
        let changes = self.changes.load(Ordering::Acquire);
        (changes, self.place.load(Ordering::Acquire))
    }

    /// Returns the word on which the daemon sleeps.
    pub fn changes(&self) -> &AtomicU32 {
        &self.changes
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;

    const CUT: Cut = Cut { tenant: 2, kernel: 1_999, other: 1, until: 2_000 };

    #[test]
    fn a_place_survives_its_word_and_counts_for_no_other_installation() {
        let far = Place::At { iterations: (1 << 30) - 1, kernel: MOST_KERNELS };
        for place in [Place::Coming, Place::Ready, Place::At { iterations: 0, kernel: 0 }, far, Place::Gone] {
            assert_eq!(Place::of(place.word(7), 7), place);
            assert_eq!(Place::of(place.word(7), 8), Place::Coming);
        }
        assert_eq!(
            Place::of(Place::At { iterations: u64::MAX, kernel: usize::MAX }.word(1), 2),
            Place::Coming
        );
    }

    #[test]
    fn an_installed_plan_is_read_whole_until_it_is_withdrawn() {
        let slot = PlanSlot::default();
        let read = |number| {
            let (mut keys, mut cuts) = (Vec::new(), Vec::new());
            let head = slot.read(number, |key| keys.push(key), |cut| cuts.push(cut))?;
            Some((head, keys, cuts))
        };
        let head = PlanHead { tenant: 1, wait_limit_ns: 5 };
        assert_eq!(read(0), None);
        assert!(slot.install(3, head, 2, [8, 9].into_iter(), [CUT].into_iter()));
        assert_eq!(read(3), Some((head, [8, 9].into(), [CUT].into())));
        assert_eq!(read(2), None);
        assert_eq!(slot.places(3), [Place::Coming, Place::Coming, Place::Gone]);
        slot.set_place(0, Place::Ready.word(3));
        slot.set_place(MOST_TENANTS, Place::Ready.word(3));
        assert_eq!(slot.places(3), [Place::Ready, Place::Coming, Place::Gone]);
        slot.withdraw();
        assert_eq!((read(3), slot.number()), (None, 0));
        let many = core::iter::repeat_n(1, MOST_KERNELS + 1);
        let many: Vec<u64> = many.collect();
        assert!(!slot.install(4, head, 2, many.into_iter(), [].into_iter()) && slot.number() == 0);
    }

    #[test]
    fn any_lengths_on_the_page_are_read_within_it() {
        let slot = PlanSlot::default();
        slot.kernels.store(u32::MAX, Ordering::Relaxed);
        slot.cuts.store(u32::MAX, Ordering::Relaxed);
        slot.number.store(1, Ordering::Relaxed);
        let (mut keys, mut cuts) = (0, 0);
        assert!(slot.read(1, |_| keys += 1, |_| cuts += 1).is_some());
        assert_eq!((keys, cuts), (MOST_KERNELS, MOST_CUTS));
    }
}
