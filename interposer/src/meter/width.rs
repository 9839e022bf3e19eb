//! The widths of launches: the part of a GPU's SMs that the blocks of a kernel can use. Under MPS,
//! the process reports the width of its widest recent launch on the meter page. The scheduler lets
//! owners whose parts fit run at once.
//!
//! A width is the number of a kernel's blocks, divided by the number of its blocks that all SMs run
//! at once. The interposer asks the driver for this number before the first launch of a kernel with
//! this geometry. The width of a graph is the width of its widest kernel. If a width is unknown, it
//! counts as all SMs. Memory sets and copies have no width.
//!
//! The launch path of a known kernel does not read the width. Instead, the meter thread ends a
//! *period* now and then. At the end of a period, the meter thread marks all estimates
//! ([`Estimates::mark_unseen`]). The next launch of each kernel then leaves the launch path once,
//! and notes its width here. A wider launch raises the report before it passes the gate. The report
//! falls only if no launch of two whole periods was as wide.
//!
//! [`Estimates::mark_unseen`]: super::estimates::Estimates::mark_unseen

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use deepres_abi::PPM;
use deepres_abi::driver::types::CUgraph;

use super::graphs;
use super::segment::{Kind, Launch};
use super::thread::MeterThread;
use crate::driver::calls::Calls;
use crate::driver::kernels::{self, Geometry};
use crate::process::Process;

/// The shortest period, ns. A report falls after two periods, so a wide launch counts for at least
/// a second. Each change of a report can change the set of owners, and so costs drains. With one
/// fall a second, drains of some milliseconds cost less than a hundredth of the time.
const PERIOD_NS: u64 = 500_000_000;
/// The number of classes of widths.
const CLASSES: u32 = 16;
/// The bits that hold the class in a word of the table of classes. The other bits hold a key or a
/// handle.
const CLASS_BITS: u64 = 0x1f;
/// The number of places of the table of classes. If two launches share a place, the interposer asks
/// the driver again.
const PLACES: usize = 4096;

const _: () = {
    assert!(CLASSES as u64 <= CLASS_BITS);
    assert!(PPM / CLASSES * CLASSES == PPM);
    // The place of a key says the bits of the key that its word does not hold.
    assert!(PLACES as u64 > CLASS_BITS);
};

/// A class of widths: the width in sixteenths of all SMs, rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class(u32);

impl Class {
    /// The class of launches that can use all SMs, and of launches of unknown width.
    pub const ALL: Self = Self(CLASSES);
    /// The least class.
    const LEAST: Self = Self(1);

    /// Returns the class of a kernel with `blocks` blocks, of which all SMs run `resident` at once.
    /// If the SMs can run none, the width is unknown.
    pub fn of(blocks: u64, resident: u64) -> Self {
        if resident == 0 {
            return Self::ALL;
        }
        let sixteenths = u128::from(blocks) * u128::from(CLASSES);
        let sixteenths = sixteenths.div_ceil(u128::from(resident)).min(u128::from(CLASSES));
        Self(sixteenths as u32).max(Self::LEAST)
    }

    /// Returns the class of a kernel on a GPU with `sms` SMs, in the current context. Returns
    /// `None` if the class is unknown. The driver can load the kernel's function first, as it would
    /// for the launch.
    pub fn of_kernel(calls: &Calls, kernel: &Geometry, sms: u32) -> Option<Self> {
        let product =
            |sizes: [u32; 3]| sizes.into_iter().try_fold(1_u64, |all, size| all.checked_mul(u64::from(size)));
        let threads = product(kernel.block).filter(|threads| *threads != 0)?;
        let per_sm = calls.resident_blocks(kernel.function, threads, kernel.shared_bytes)?;
        Some(Self::of(product(kernel.grid)?, u64::from(per_sm) * u64::from(sms)))
    }

    /// Returns the width, parts per million of all SMs.
    pub fn ppm(self) -> u32 {
        self.0 * (PPM / CLASSES)
    }

    /// Puts the class into the low bits of a word, in place of the low bits of `key`.
    pub fn beside(self, key: u64) -> u64 {
        (key & !CLASS_BITS) | u64::from(self.0)
    }

    /// Returns the class in the low bits of a word; `None` if the word has another key.
    pub fn in_word(word: u64, key: u64) -> Option<Self> {
        let class = (word & CLASS_BITS) as u32;
        let is_of_key = (word ^ key) & !CLASS_BITS == 0;
        (is_of_key && (1..=CLASSES).contains(&class)).then_some(Self(class))
    }
}

/// The origin of a launch's width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A kernel with this geometry.
    Kernel(Geometry),
    /// An executable graph with this handle.
    Graph(usize),
    /// A memory set, or a copy within a device, which has no width.
    Bytes,
}

/// The widths of the process's launches on one GPU.
#[derive(Debug)]
pub struct Widths {
    /// The number of SMs that the driver reports for the GPU. Under MPS with a limit, this can be
    /// the number of SMs within the limit. A width is then too large, and never too small.
    sms: u32,
    /// The classes of launches, each in a word with the launch's key. Without MPS, the process
    /// counts no widths, and the table is empty.
    places: Box<[AtomicU64]>,
    /// The class that the process reports.
    reported: AtomicU32,
    /// The greatest class of a launch in this period; 0 if there was no launch.
    seen: AtomicU32,
    /// The greatest class of a launch in the last period that had launches. Only the meter thread
    /// uses this field and the next.
    before: AtomicU32,
    /// The beginning of this period, ns.
    since_ns: AtomicU64,
}

impl Default for Widths {
    fn default() -> Self {
        Self::new(None)
    }
}

impl Widths {
    /// Returns the widths on a GPU of `sms` SMs, on which the process runs under MPS. With `None`,
    /// the process counts no widths.
    pub fn new(sms: Option<u32>) -> Self {
        let places = if sms.is_some() { PLACES } else { 0 };
        Self {
            sms: sms.unwrap_or(0),
            places: (0..places).map(|_| AtomicU64::new(0)).collect(),
            reported: AtomicU32::new(CLASSES),
            seen: AtomicU32::new(0),
            before: AtomicU32::new(CLASSES),
            since_ns: AtomicU64::new(0),
        }
    }

    /// Returns whether the process counts widths on this GPU.
    pub fn is_counted(&self) -> bool {
        !self.places.is_empty()
    }

    fn place(&self, key: u64) -> Option<&AtomicU64> {
        self.places.get(key as usize % PLACES)
    }

    /// Returns the class of the launches with this key, if the table has it.
    fn known(&self, key: u64) -> Option<Class> {
        Class::in_word(self.place(key)?.load(Ordering::Relaxed), key)
    }

    /// Returns the class of a launch; `None` if the launch has no width. Asks the driver about a
    /// kernel that the table does not have. `within` asks the question in the launch's context, and
    /// returns the answer.
    pub fn class_of(
        &self,
        calls: &Calls,
        launch: Launch,
        shape: Shape,
        within: impl FnOnce(&dyn Fn() -> Option<Class>) -> Option<Class>,
    ) -> Option<Class> {
        match shape {
            Shape::Kernel(geometry) => Some(self.known(launch.key).unwrap_or_else(|| {
                let class = within(&|| Class::of_kernel(calls, &geometry, self.sms));
                if let Some((class, place)) = class.zip(self.place(launch.key)) {
                    place.store(class.beside(launch.key), Ordering::Relaxed);
                }
                class.unwrap_or(Class::ALL)
            })),
            Shape::Graph(_) if launch.kind == Kind::VaryingGraph => Some(Class::ALL),
            Shape::Graph(graph) => Some(graphs::width(graph).unwrap_or(Class::ALL)),
            Shape::Bytes => None,
        }
    }

    /// Notes a launch of this class, before the launch goes. Returns whether this raised the
    /// report. The caller then writes the report to the meter page.
    pub fn note(&self, class: Class) -> bool {
        self.reported_at(class) < class.0 && self.reported.fetch_max(class.0, Ordering::SeqCst) < class.0
    }

    /// Notes a launch of this class, and returns the class that the process reports. The meter
    /// thread swaps `seen` before it lowers the report, and reads `seen` after that. So either this
    /// thread sees the lower report, or the meter thread sees this class.
    fn reported_at(&self, Class(class): Class) -> u32 {
        if self.seen.load(Ordering::SeqCst) < class {
            self.seen.fetch_max(class, Ordering::SeqCst);
        }
        self.reported.load(Ordering::SeqCst)
    }

    /// Returns whether a launch that the meter counts without its own estimate may go at once. The
    /// launch may not if the table does not have its class, or if the report is lower. Notes the
    /// class of a launch that may.
    pub fn admits(&self, key: u64) -> bool {
        let Some(class) = self.known(key) else { return !self.is_counted() };
        class.0 <= self.reported_at(class)
    }

    /// Ends the period if it is over, and begins the next period. A period lasts at least
    /// `least_ns`. `mark` marks the kernels that are to note their widths in the next period.
    pub fn turn(&self, _meter: MeterThread, least_ns: u64, now_ns: u64, mark: impl FnOnce()) {
        let since_ns = self.since_ns.load(Ordering::Relaxed);
        if now_ns.saturating_sub(since_ns) < PERIOD_NS.max(least_ns) {
            return;
        }
        self.since_ns.store(now_ns, Ordering::Relaxed);
        let ended = self.seen.swap(0, Ordering::SeqCst);
        mark();
        if ended == 0 {
            return;
        }
        let wanted = ended.max(self.before.swap(ended, Ordering::Relaxed));
        let reported = self.reported.load(Ordering::SeqCst);
        if wanted >= reported {
            return;
        }
        let lowered =
            self.reported.compare_exchange(reported, wanted, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if lowered {
            self.reported.fetch_max(self.seen.load(Ordering::SeqCst), Ordering::SeqCst);
        }
    }

    /// Returns the width that the process reports, parts per million of all SMs.
    pub fn reported_ppm(&self) -> u32 {
        Class(self.reported.load(Ordering::SeqCst)).ppm()
    }

    /// Writes the report to `word` of the meter page. Several threads can do so at once, and the
    /// word then has the latest report.
    pub fn publish(&self, word: &AtomicU32) {
        loop {
            let ppm = self.reported_ppm();
            if word.load(Ordering::SeqCst) != ppm {
                word.store(ppm, Ordering::SeqCst);
            }
            // Another thread may have written an older report after this thread read the word.
            if self.reported_ppm() == ppm && word.load(Ordering::SeqCst) == ppm {
                return;
            }
        }
    }
}

/// Notes the width of a graph that the job made executable as `exec`, if the process counts widths.
/// The driver does not tell which GPU runs a kernel of a graph. So the width is the width on the
/// GPU with the fewest SMs.
pub fn note_graph(process: &Process, graph: CUgraph, exec: usize) {
    let counted = process.gpus.iter().filter(|gpu| gpu.widths.is_counted());
    let Some(sms) = counted.map(|gpu| gpu.widths.sms).min() else { return };
    let calls = &process.calls;
    let Some(_relaxed) = calls.beside_captures() else { return };
    let widest = |kernels: Vec<Geometry>| {
        let class_of = |kernel| Class::of_kernel(calls, kernel, sms).unwrap_or(Class::ALL);
        let classes = kernels.iter().map(class_of);
        classes.max().unwrap_or(Class::LEAST)
    };
    graphs::set_width(exec, kernels::of_graph(graph).map_or(Class::ALL, widest));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::fake;
    use std::cell::Cell;

    const METER: MeterThread = MeterThread::acted();
    const KEY: u64 = (1 << 63) | 0x1234_5678_9abc;
    const FIRST_NS: u64 = 10 * PERIOD_NS;

    fn kernel(blocks: u32) -> (Launch, Shape) {
        let geometry = Geometry { function: 1, grid: [blocks, 1, 1], block: [128, 1, 1], shared_bytes: 0 };
        (Launch { key: KEY + u64::from(blocks), kind: Kind::Kernel }, Shape::Kernel(geometry))
    }

    /// Returns the reported width, in sixteenths of all SMs.
    fn reported(widths: &Widths) -> u32 {
        widths.reported_ppm() / (PPM / CLASSES)
    }

    /// Ends as many periods, and notes a launch of this class in each of them.
    fn periods(widths: &Widths, now_ns: &mut u64, classes: &[u32]) {
        for class in classes {
            if *class != 0 {
                widths.note(Class(*class));
            }
            *now_ns += PERIOD_NS;
            widths.turn(METER, 0, *now_ns, || {});
        }
    }

    #[test]
    fn a_width_is_rounded_up_to_a_class_and_is_all_sms_at_most() {
        let class_of = |blocks, resident| Class::of(blocks, resident).0;
        assert_eq!([class_of(1, 1_000), class_of(62, 1_000), class_of(63, 1_000)], [1, 1, 2]);
        assert_eq!([class_of(500, 1_000), class_of(501, 1_000)], [8, 9]);
        assert_eq!([class_of(1_000, 1_000), class_of(1_050, 1_000), class_of(u64::MAX, 1)], [16; 3]);
        assert_eq!(class_of(u64::MAX, u64::MAX), 16);
        assert_eq!(class_of(5, 0), 16, "the driver runs no such block");
        assert_eq!(Class::of(1, 8).ppm(), 125_000);
        assert_eq!(Class::ALL.ppm(), PPM);
    }

    #[test]
    fn a_word_holds_a_class_beside_its_key() {
        for class in 1..=CLASSES {
            let word = Class(class).beside(KEY);
            assert_eq!(Class::in_word(word, KEY), Some(Class(class)));
            assert_eq!(Class::in_word(word, KEY + 64), None);
        }
        assert_eq!(Class::in_word(0, KEY), None);
        assert_eq!(Class::in_word(KEY & !CLASS_BITS, KEY), None);
    }

    #[test]
    fn the_driver_is_asked_once_for_each_kernel_and_not_without_mps() {
        let calls = fake::calls();
        // The fake driver runs eight blocks on an SM.
        let widths = Widths::new(Some(10));
        for (blocks, class) in [(1, 1), (5, 1), (6, 2), (40, 8), (80, 16), (81, 16)] {
            let (launch, shape) = kernel(blocks);
            assert!(!widths.admits(launch.key));
            let asked = fake::occupancy_asked();
            assert_eq!(widths.class_of(&calls, launch, shape, |ask| ask()), Some(Class(class)), "{blocks}");
            assert_eq!(widths.class_of(&calls, launch, shape, |ask| ask()), Some(Class(class)));
            assert_eq!(fake::occupancy_asked(), asked + 1);
            assert!(widths.admits(launch.key));
        }
        assert!(!Widths::default().is_counted() && Widths::default().admits(KEY));
    }

    #[test]
    fn a_launch_that_tells_no_block_and_an_unknown_graph_count_with_all_sms() {
        let calls = fake::calls();
        let widths = Widths::new(Some(10));
        let geometry = Geometry { function: 1, grid: [1; 3], block: [0; 3], shared_bytes: 0 };
        let launch = Launch { key: KEY, kind: Kind::Kernel };
        assert_eq!(widths.class_of(&calls, launch, Shape::Kernel(geometry), |ask| ask()), Some(Class::ALL));
        let huge = Geometry { block: [u32::MAX; 3], ..geometry };
        assert_eq!(Class::of_kernel(&calls, &huge, 10), None);
        let graph = Launch { kind: Kind::Graph, ..launch };
        assert_eq!(widths.class_of(&calls, graph, Shape::Graph(0x7f11_0000), |ask| ask()), Some(Class::ALL));
        graphs::set_width(0x7f11_0000, Class(3));
        assert_eq!(widths.class_of(&calls, graph, Shape::Graph(0x7f11_0000), |ask| ask()), Some(Class(3)));
        let varying = Launch { kind: Kind::VaryingGraph, ..launch };
        assert_eq!(
            widths.class_of(&calls, varying, Shape::Graph(0x7f11_0000), |ask| ask()),
            Some(Class::ALL)
        );
        assert_eq!(widths.class_of(&calls, launch, Shape::Bytes, |ask| ask()), None);
    }

    #[test]
    fn a_report_rises_at_once_and_falls_after_two_periods_without_a_wide_launch() {
        let widths = Widths::new(Some(10));
        let mut now_ns = FIRST_NS;
        assert_eq!(reported(&widths), 16, "nothing is known before the first launches");
        assert!(!widths.note(Class(4)));
        widths.turn(METER, 0, now_ns, || {});
        assert_eq!(reported(&widths), 16);
        periods(&widths, &mut now_ns, &[4]);
        assert_eq!(reported(&widths), 4);
        assert!(widths.note(Class(8)) && !widths.note(Class(8)), "one thread tells the arbiter");
        assert_eq!(reported(&widths), 8);
        periods(&widths, &mut now_ns, &[2, 2]);
        assert_eq!(reported(&widths), 8);
        periods(&widths, &mut now_ns, &[2]);
        assert_eq!(reported(&widths), 2);
        periods(&widths, &mut now_ns, &[1, 2, 1, 2, 1, 2]);
        assert_eq!(reported(&widths), 2, "a launch of every second period counts");
    }

    #[test]
    fn a_report_does_not_fall_because_of_a_pause_or_within_a_long_launch() {
        let widths = Widths::new(Some(10));
        let mut now_ns = FIRST_NS;
        periods(&widths, &mut now_ns, &[8, 8, 8]);
        assert_eq!(reported(&widths), 8);
        periods(&widths, &mut now_ns, &[0, 0, 0, 2]);
        assert_eq!(reported(&widths), 8, "the launch after the pause is only one period old");
        periods(&widths, &mut now_ns, &[2]);
        assert_eq!(reported(&widths), 2);
        for _ in 0..5 {
            widths.note(Class(1));
            now_ns += PERIOD_NS;
            widths.turn(METER, 10 * PERIOD_NS, now_ns, || {});
        }
        assert_eq!(reported(&widths), 2, "launches may take ten periods");
    }

    #[test]
    fn each_period_marks_the_kernels_anew() {
        let widths = Widths::new(Some(10));
        let marked = Cell::new(0);
        for step in 0..10 {
            let now_ns = FIRST_NS + step * PERIOD_NS / 2;
            widths.turn(METER, 0, now_ns, || marked.set(marked.get() + 1));
        }
        assert_eq!(marked.get(), 5);
    }

    #[test]
    fn the_meter_page_gets_the_present_report() {
        let widths = Widths::new(Some(10));
        let word = AtomicU32::new(0);
        widths.publish(&word);
        assert_eq!(word.load(Ordering::Relaxed), PPM);
        periods(&widths, &mut { FIRST_NS }, &[4, 4, 4]);
        widths.publish(&word);
        assert_eq!(word.load(Ordering::Relaxed), PPM / 4);
    }
}
