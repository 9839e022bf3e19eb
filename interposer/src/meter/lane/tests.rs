//! Tests of lanes on a fake driver whose clock the test moves.

use std::sync::atomic::AtomicBool;

use deepres_abi::meter::MeterSlot;

use super::close::End;
use super::owner::{CHAIN_MAX, LAUNCHES_MAX, SHORT_GRAPH_NS, UNKNOWN_APART};
use super::ring::RING;
use super::waits::{LAUNCHES_STUCK, VARYING_SEEN};
use super::*;
use crate::driver::calls::{Calls, Context, Progress};
use crate::driver::fake;
use crate::driver::kernels::Geometry;
use crate::gate::Headroom;
use crate::meter::segment::{Contents, Kind, Launch};
use crate::meter::thread::MeterThread;
use crate::meter::width::{Shape, Widths};
use crate::{capture, os};

const METER: MeterThread = MeterThread::acted();

const STREAM: Stream = Stream(0x10_0000);
const KERNEL: Launch = Launch { key: 5 << 32, kind: Kind::Kernel };
const OTHER: Launch = Launch { key: 7 << 32, kind: Kind::Kernel };
const GRAPH: Launch = Launch { key: 6 << 32, kind: Kind::Graph };
const COPY: Launch = Launch { key: 8 << 32, kind: Kind::Copy };
const DEPENDENT: Launch = Launch { key: 9 << 32, kind: Kind::Dependent };
const KERNEL_NS: u64 = 10_000;

fn lane() -> LaneOwner {
    lane_of(STREAM)
}

fn lane_of(stream: Stream) -> LaneOwner {
    let gpu: &'static Gpu = Box::leak(Box::default());
    let context: &'static ContextState = Box::leak(Box::new(ContextState::new(Context(0x1000), gpu, 0)));
    context.lane(context.handle(), stream, 1).unwrap()
}

/// Returns the oldest segment's contents.
fn oldest(lane: LaneOwner) -> Option<Contents> {
    Some(lane.oldest(&lane.context.lock())?.contents())
}

fn pop(lane: LaneOwner) {
    lane.pop(&lane.context.lock());
}

fn close_stale(calls: &Calls, lane: LaneOwner, launches: u32, quiet_ns: u64) {
    lane.close_stale(METER, &lane.context.lock(), calls, launches, quiet_ns);
}

/// Makes the estimate of a launch known and settled.
fn know(lane: LaneOwner, launch: Launch, ns: u64) {
    for _ in 0..VARYING_SEEN {
        lane.gpu.estimates.learn(METER, launch.key, ns);
    }
}

/// The headroom of an open gate, or of a lease without a bound.
const HEADROOM: Headroom = Headroom::open(0);

/// Makes one launch in the same way as the hooks do.
fn put(calls: &Calls, lane: LaneOwner, launch: Launch, ns: u64, contended: Option<u64>) {
    put_within(calls, lane, launch, ns, HEADROOM, contended);
}

/// Makes one launch in the same way as the hooks do. The launches that may follow have `headroom`.
fn put_within(
    calls: &Calls,
    lane: LaneOwner,
    launch: Launch,
    ns: u64,
    headroom: Headroom,
    contended: Option<u64>,
) {
    if !launch.kind.is_copy() && lane.count(launch) {
        fake::launch(lane.stream().unwrap(), ns);
        return;
    }
    let begun = lane.begin(calls, launch, headroom, contended).unwrap();
    close_stale(calls, lane, 1, 1);
    assert!(lane.is_open(), "nobody closes under a launch");
    fake::launch(lane.stream().unwrap(), ns);
    lane.launched(begun.opens);
    if begun.ends {
        lane.end(calls);
    }
}

fn launch(calls: &Calls, lane: LaneOwner, launch: Launch, ns: u64) {
    put(calls, lane, launch, ns, None);
}

/// Processes completed segments as the meter thread does. Returns the launches of each segment, and
/// the time between its events, ns.
fn read(calls: &Calls, lane: LaneOwner) -> Vec<(u32, u64)> {
    let mut found = Vec::new();
    let inner = lane.context.lock();
    while let Some(segment) = lane.oldest(&inner) {
        if calls.query(segment.end()) != Progress::Done {
            break;
        }
        let contents = segment.contents();
        let took_ns = calls.elapsed_ns(segment.start(), segment.end()).unwrap() as u64;
        found.push((contents.launches, took_ns));
        if let Some(key) = contents.only_key() {
            if let Some(known_ns) = lane.gpu.estimates.get(key) {
                lane.compare(METER, known_ns, (took_ns, took_ns));
            }
            lane.gpu.estimates.learn(METER, key, took_ns);
        }
        lane.learn(METER, took_ns / u64::from(contents.launches), false);
        lane.pop(&inner);
    }
    found
}

/// Launches kernels with gaps while the GPU is contended. Returns the number of launches for each
/// recorded event.
fn sparse(calls: &Calls, lane: LaneOwner, launches: u32, took_ns: impl Fn(u32) -> u64) -> f64 {
    let mut segments = Vec::new();
    for number in 0..launches {
        put(calls, lane, KERNEL, took_ns(number), Some(KERNEL_NS));
        fake::pass(2 * took_ns(number));
        segments.extend(read(calls, lane));
    }
    f64::from(launches) / (2 * segments.len()) as f64
}

#[test]
fn launches_with_gaps_share_segments_while_someone_else_waits_and_samples_follow_the_kernel() {
    const ROUNDS: u32 = 100;
    let (calls, lane) = (fake::calls(), lane());
    sparse(&calls, lane, 20_000, |_| KERNEL_NS);
    assert_eq!(lane.learned.sample_every(), 32, "each sample confirms the estimate");
    let steady = sparse(&calls, lane, 20_000, |_| KERNEL_NS);
    assert!(steady > 10.0, "{steady} launches for each event");
    // From now on, the kernel takes twice as long.
    sparse(&calls, lane, 4_000, |_| 2 * KERNEL_NS);
    assert!(lane.gpu.estimates.get(KERNEL.key) > Some(KERNEL_NS * 3 / 2));
    let (mut varying, mut every) = (0.0, 0);
    for _ in 0..ROUNDS {
        varying +=
            sparse(&calls, lane, 1_000, |number| KERNEL_NS << (number.wrapping_mul(0x9e37_79b9) >> 31));
        every += lane.learned.sample_every();
    }
    // A few samples in turn can confirm the estimate by chance.
    assert!(every < 16 * ROUNDS, "the samples contradict the estimate: one in {every} / {ROUNDS}");
    let varying = varying / f64::from(ROUNDS);
    assert!(varying < steady && varying > 4.0, "{varying} launches for each event");
}

#[test]
fn a_thread_that_was_held_up_in_a_segment_has_long_segments_again_soon() {
    let (calls, lane) = (fake::calls(), lane());
    open(&calls, lane, 2);
    lane.close(&calls);
    lane.pace.learn(2, 1_000_000_000);
    for _ in 0..1_000 {
        launch(&calls, lane, KERNEL, KERNEL_NS);
        fake::finish();
        read(&calls, lane);
    }
    lane.close(&calls);
    assert!(lane.ring.newest().unwrap().contents().launches > 10);
}

#[test]
fn each_kernel_of_a_loop_is_sampled_though_the_program_waits_after_every_round() {
    const KERNELS: u64 = 25;
    let (calls, lane) = (fake::calls(), lane());
    let kernel = |number: u64| Launch { key: number + 1, kind: Kind::Kernel };
    (0..KERNELS).for_each(|number| know(lane, kernel(number), KERNEL_NS));
    lane.learn(METER, KERNEL_NS, false);
    lane.pace.want(LAUNCHES_MAX);
    let mut alone = [0; KERNELS as usize];
    for _ in 0..4_000 {
        for number in 0..KERNELS {
            put(&calls, lane, kernel(number), KERNEL_NS, Some(KERNEL_NS));
        }
        lane.close(&calls);
        fake::finish();
        let keys = std::iter::from_fn(|| {
            let contents = oldest(lane)?;
            pop(lane);
            Some(contents.key)
        });
        keys.filter(|key| *key != 0).for_each(|key| alone[key as usize - 1] += 1);
    }
    assert!(alone.iter().all(|samples| *samples > 5), "{alone:?}");
}

#[test]
fn launches_need_a_new_pass_of_the_gate_once_their_estimates_fill_the_room_that_it_found() {
    let (calls, lane) = (fake::calls(), lane());
    know(lane, KERNEL, KERNEL_NS);
    lane.learn(METER, KERNEL_NS, false);
    lane.pace.want(LAUNCHES_MAX);
    let leased = |room_ns| {
        put_within(&calls, lane, KERNEL, KERNEL_NS, Headroom { word: 0, room_ns }, Some(KERNEL_NS));
    };
    leased(0);
    assert!(!lane.is_open(), "no launch may follow");
    leased(3 * KERNEL_NS + 1);
    for _ in 0..3 {
        assert!(lane.count(KERNEL));
    }
    assert!(!lane.count(KERNEL));
    leased(3 * KERNEL_NS + 1);
    assert!(!lane.is_open(), "the launch with the new pass ends the segment");
    assert_eq!(lane.ring.newest().unwrap().contents().launches, 5);
    // The segment of a gate that has changed ends too.
    leased(KERNEL_NS * 9);
    let changed = Headroom { word: 4, room_ns: KERNEL_NS * 9 };
    let begun = lane.begin(&calls, KERNEL, changed, Some(KERNEL_NS)).unwrap();
    assert_eq!((begun.opens, begun.ends), (false, true));
    lane.launched(false);
}

#[test]
fn launches_of_an_open_segment_count_as_in_flight_unless_its_stream_has_gaps() {
    let (calls, lane) = (fake::calls(), lane());
    open(&calls, lane, 3);
    assert_eq!((lane.gpu.queued_ns(), lane.in_flight_ns()), (0, 3 * KERNEL_NS));
    lane.learn(METER, KERNEL_NS, true);
    assert_eq!(lane.in_flight_ns(), 0);
    lane.close(&calls);
    assert_eq!(lane.in_flight_ns(), 3 * KERNEL_NS);
}

#[test]
fn while_nobody_waits_segments_grow_to_their_length_and_no_further() {
    let (calls, lane) = (fake::calls(), lane());
    let mut longest = 0;
    for _ in 0..10_000 {
        launch(&calls, lane, KERNEL, KERNEL_NS);
        fake::pass(KERNEL_NS - 1_000);
        for (launches, took_ns) in read(&calls, lane) {
            longest = longest.max(launches);
            // The driver gives event times as floats of milliseconds, so the test allows a small
            // error.
            let exact_ns = u64::from(launches) * KERNEL_NS;
            assert!(took_ns.abs_diff(exact_ns) < 100, "{took_ns} for {launches}");
        }
    }
    let usual = SEGMENT_NS / KERNEL_NS;
    assert!((usual..=usual * 5 / 4).contains(&u64::from(longest)), "{longest}");
}

#[test]
fn known_kernels_are_counted_by_what_they_take_and_an_unknown_one_is_timed() {
    let (calls, lane) = (fake::calls(), lane());
    launch(&calls, lane, KERNEL, KERNEL_NS);
    assert!(!lane.is_open(), "the first of a kernel has a segment of its own");
    fake::finish();
    read(&calls, lane);
    know(lane, KERNEL, KERNEL_NS);
    // The job launches until a segment is long enough.
    for _ in 0..100 {
        launch(&calls, lane, KERNEL, KERNEL_NS);
    }
    while lane.open_launches() < Some(UNKNOWN_APART) {
        launch(&calls, lane, KERNEL, KERNEL_NS);
    }
    let open = u64::from(lane.open_launches().unwrap());
    assert_eq!(lane.unaccounted_ns(), open * KERNEL_NS);
    let closed = lane.ring.waiting();
    launch(&calls, lane, OTHER, 3 * KERNEL_NS);
    assert_eq!(lane.ring.waiting(), closed + 2, "the open segment, and the unknown one");
}

/// Launches the two by turns, and returns the number of times at which a marker was between the
/// first and the second.
fn parted(calls: &Calls, lane: LaneOwner, pair: [Launch; 2], contended: Option<u64>) -> usize {
    const PAIRS: usize = 2_000;
    let (mut parted, mut launched, mut seen) = (0, 0, 0);
    for _ in 0..PAIRS {
        for one in pair {
            put(calls, lane, one, KERNEL_NS, contended);
            launched += 1;
        }
        parted += usize::from(fake::records_between_launches() != 0);
        fake::pass(3 * KERNEL_NS);
        seen += read(calls, lane).into_iter().map(|(launches, _)| launches).sum::<u32>();
    }
    assert!(seen > launched / 2, "the meter measured {seen} of {launched} launches");
    parted
}

#[test]
fn no_marker_goes_between_a_dependent_launch_and_the_launch_before_it() {
    let calls = fake::calls();
    for contended in [None, Some(KERNEL_NS)] {
        // Without the attribute, segments end between the two as often as elsewhere.
        let usual = parted(&calls, lane(), [KERNEL, OTHER], contended);
        assert!(usual > 10, "{usual} times");
        let own = lane();
        let rare = parted(&calls, own, [KERNEL, DEPENDENT], contended);
        assert!(rare <= 1, "{rare} times; the first time, the lane cannot know what follows");
        assert_eq!(own.gpu.estimates.get(DEPENDENT.key), None, "the launch was not sampled alone");
    }
}

#[test]
fn under_mps_a_marked_kernel_and_a_dependent_kernel_of_unknown_width_do_not_go_at_once() {
    let calls = fake::calls();
    let gpu: &'static Gpu = Box::leak(Box::new(Gpu::default().with_widths(Widths::new(Some(10)))));
    let context: &'static ContextState = Box::leak(Box::new(ContextState::new(Context(0x1000), gpu, 0)));
    let lane = context.lane(context.handle(), STREAM, 1).unwrap();
    know(lane, KERNEL, KERNEL_NS);
    lane.learn(METER, KERNEL_NS, false);
    while lane.fits(KERNEL).is_none() {
        launch(&calls, lane, KERNEL, KERNEL_NS);
    }
    gpu.estimates.mark_unseen(METER);
    assert_eq!(lane.fits(KERNEL), None, "the launch is to note its width");
    gpu.estimates.see(KERNEL.key);
    assert!(lane.fits(KERNEL).is_some());
    assert_eq!(lane.fits(DEPENDENT), None, "its width is unknown");
    let geometry = Geometry { function: 1, grid: [1; 3], block: [32, 1, 1], shared_bytes: 0 };
    assert!(gpu.widths.class_of(&calls, DEPENDENT, Shape::Kernel(geometry), |ask| ask()).is_some());
    assert!(lane.fits(DEPENDENT).is_some());
}

#[test]
fn launches_that_are_all_dependent_are_measured_in_long_segments() {
    const LAUNCHES: u32 = 10 * CHAIN_MAX;
    let (calls, lane) = (fake::calls(), lane());
    let (mut parted, mut segments) = (0, Vec::new());
    for _ in 0..LAUNCHES {
        launch(&calls, lane, DEPENDENT, KERNEL_NS);
        parted += u32::from(fake::records_between_launches() != 0);
        fake::pass(KERNEL_NS);
        segments.extend(read(&calls, lane));
    }
    assert!(segments.len() >= 10, "{segments:?}");
    assert!(parted <= LAUNCHES / 100, "markers went between {parted} of {LAUNCHES} launches");
}

#[test]
fn in_a_spell_a_known_kernel_of_a_stream_with_gaps_is_marked_at_its_end_alone() {
    let (calls, lane) = (fake::calls(), lane());
    know(lane, KERNEL, KERNEL_NS);
    lane.gpu.set_fine(METER, true);
    let is_end_only = |kernel: Launch, is_sparse: bool| {
        lane.learn(METER, KERNEL_NS, is_sparse);
        launch(&calls, lane, kernel, KERNEL_NS);
        fake::pass(1_000_000);
        let contents = oldest(lane).unwrap();
        pop(lane);
        assert_eq!(contents.launches, 1, "each has a segment");
        contents.is_end_only
    };
    assert!(is_end_only(KERNEL, true));
    assert!(!is_end_only(OTHER, true), "one that is not known is timed");
    assert!(!is_end_only(KERNEL, false), "a close launch and its time are measured");
}

#[test]
fn copies_have_segments_of_their_own_and_are_not_computing() {
    let (calls, lane) = (fake::calls(), lane());
    launch(&calls, lane, COPY, KERNEL_NS);
    assert!(lane.is_busy() && !lane.is_computing());
    for _ in 0..2 {
        launch(&calls, lane, KERNEL, KERNEL_NS);
        launch(&calls, lane, COPY, KERNEL_NS);
    }
    lane.close(&calls);
    assert!(lane.is_computing());
    fake::finish();
    assert_eq!(read(&calls, lane), [(1, KERNEL_NS); 5]);
    assert!(!lane.is_computing() && !lane.is_busy());
}

#[test]
fn a_known_copy_between_kernels_is_not_timed_each_time() {
    let (calls, lane) = (fake::calls(), lane());
    know(lane, COPY, 700);
    open(&calls, lane, 2);
    assert_eq!(lane.begin(&calls, COPY, HEADROOM, None), Err(Unmarked::TakenIn));
    assert_eq!(lane.open_launches(), Some(2));
    lane.close(&calls);
    let contents = oldest(lane).unwrap();
    assert_eq!((contents.launches, contents.copied_ns, contents.may_wait), (2, 700, true));
    open(&calls, lane, 2);
    put(&calls, lane, COPY, 700, Some(0));
    assert!(!lane.is_open(), "while someone else waits it is");
}

#[test]
fn with_a_full_ring_copies_and_kernels_go_into_one_segment() {
    let (calls, lane) = (fake::calls(), lane());
    know(lane, COPY, 700);
    know(lane, KERNEL, KERNEL_NS);
    for _ in 0..RING - 1 {
        launch(&calls, lane, GRAPH, KERNEL_NS);
        lane.close(&calls);
    }
    assert_eq!(lane.ring.waiting(), RING - 1);
    launch(&calls, lane, COPY, 700);
    launch(&calls, lane, KERNEL, KERNEL_NS);
    let copy = lane.begin(&calls, COPY, HEADROOM, None);
    assert_eq!((lane.open_launches(), copy), (Some(1), Err(Unmarked::TakenIn)));
    pop(lane);
    lane.close(&calls);
    let last = lane.ring.newest().unwrap().contents();
    assert_eq!((last.launches, last.expected_ns, last.copied_ns, last.is_copy), (1, KERNEL_NS, 1400, false));
}

#[test]
fn a_stream_that_waits_for_another_ends_the_segment_while_someone_else_waits() {
    let (calls, lane) = (fake::calls(), lane());
    know(lane, KERNEL, KERNEL_NS);
    lane.learn(METER, KERNEL_NS, false);
    let open = || {
        while !lane.is_open() {
            launch(&calls, lane, KERNEL, KERNEL_NS);
        }
    };
    open();
    lane.interrupt(&calls, false);
    assert!(lane.is_open());
    lane.close(&calls);
    assert!(lane.ring.newest().unwrap().contents().may_wait);
    open();
    lane.interrupt(&calls, true);
    assert!(!lane.is_open());
}

#[test]
fn a_launch_after_a_wait_is_not_taken_for_one_that_finds_its_stream_idle() {
    const LONG_NS: u64 = 2 * SHORT_GRAPH_NS;
    let (calls, lane) = (fake::calls(), lane());
    let is_quiet = || {
        launch(&calls, lane, GRAPH, LONG_NS);
        fake::finish();
        let contents = oldest(lane).unwrap();
        assert_eq!(read(&calls, lane).len(), 1);
        contents.is_quiet
    };
    assert!(is_quiet() && is_quiet());
    lane.interrupt(&calls, false);
    assert!(!is_quiet(), "it was made to wait, with nothing open");
    assert!(is_quiet(), "that is over");
}

#[test]
fn where_all_streams_of_a_context_wait_what_is_known_of_their_launches_counts_whoever_made_them() {
    let (calls, own) = (fake::calls(), lane());
    let context = own.context;
    // Opens a segment on the lane. A busy lane never goes to another stream.
    let opened = |lane: LaneOwner| {
        know(lane, KERNEL, KERNEL_NS);
        lane.learn(METER, KERNEL_NS, false);
        while !lane.is_open() {
            launch(&calls, lane, KERNEL, KERNEL_NS);
        }
        lane
    };
    let of_another = |stream| opened(context.lane(context.handle(), stream, 2).unwrap());
    let lanes = [opened(own), of_another(Stream(0x20_0000)), of_another(Stream::PER_THREAD)];
    context.interrupt(context.handle(), &calls, 1, false);
    for lane in lanes {
        assert!(!lane.is_stuck());
        lane.close(&calls);
        assert!(lane.ring.newest().unwrap().contents().may_wait);
    }
    context.interrupt(context.handle(), &calls, 1, true);
    assert!(lanes.into_iter().all(|lane| lane.is_stuck()), "they may wait for the host");
}

#[test]
fn graphs_that_are_not_known_or_long_are_segments_of_their_own() {
    let (calls, lane) = (fake::calls(), lane());
    for what in [GRAPH, GRAPH, KERNEL, GRAPH] {
        launch(&calls, lane, what, KERNEL_NS);
    }
    lane.close(&calls);
    fake::finish();
    assert_eq!(read(&calls, lane), [(1, KERNEL_NS); 4]);
    let long = Launch { key: 9 << 32, ..GRAPH };
    know(lane, long, SHORT_GRAPH_NS + 1);
    for _ in 0..3 {
        launch(&calls, lane, long, SHORT_GRAPH_NS + 1);
    }
    fake::finish();
    assert_eq!(read(&calls, lane), [(1, SHORT_GRAPH_NS + 1); 3]);
}

#[test]
fn graphs_that_are_known_and_short_are_counted_like_kernels() {
    let (calls, lane) = (fake::calls(), lane());
    know(lane, GRAPH, KERNEL_NS);
    lane.learn(METER, KERNEL_NS, false);
    for contended in [None, Some(KERNEL_NS)] {
        for _ in 0..100 {
            put(&calls, lane, GRAPH, KERNEL_NS, contended);
        }
        lane.close(&calls);
        fake::finish();
        let segments = read(&calls, lane);
        assert!(segments.len() < 30, "{segments:?}");
        assert_eq!(segments.iter().map(|(launches, _)| launches).sum::<u32>(), 100);
    }
}

#[test]
fn a_graph_whose_launches_may_differ_is_timed_each_time_however_short() {
    let (calls, lane) = (fake::calls(), lane());
    let varying = Launch { key: 9 << 32, kind: Kind::VaryingGraph };
    know(lane, varying, KERNEL_NS);
    lane.learn(METER, KERNEL_NS, false);
    for _ in 0..3 {
        launch(&calls, lane, varying, KERNEL_NS);
    }
    fake::finish();
    assert_eq!(read(&calls, lane), [(1, KERNEL_NS); 3]);
}

#[test]
fn a_reader_that_never_comes_loses_nothing() {
    let (calls, lane) = (fake::calls(), lane());
    const LAUNCHES: u32 = 100_000;
    for number in 0..LAUNCHES {
        launch(&calls, lane, if number % 3 == 0 { GRAPH } else { KERNEL }, KERNEL_NS);
        lane.close(&calls);
        assert!(lane.ring.waiting() < RING);
    }
    fake::finish();
    let read_launches: u32 = read(&calls, lane).iter().map(|(launches, _)| launches).sum();
    assert_eq!(read_launches + lane.open_launches().unwrap_or(0), LAUNCHES);
    lane.close(&calls);
    let rest: u32 = read(&calls, lane).iter().map(|(launches, _)| launches).sum();
    assert_eq!(read_launches + rest, LAUNCHES);
    assert!(!lane.is_busy());
}

/// Opens a segment on the lane and launches `launches` kernels in it.
fn open(calls: &Calls, lane: LaneOwner, launches: u32) {
    know(lane, KERNEL, KERNEL_NS);
    lane.learn(METER, KERNEL_NS, false);
    lane.pace.want(launches * 4);
    for _ in 0..launches {
        launch(calls, lane, KERNEL, KERNEL_NS);
    }
    assert_eq!(lane.open_launches(), Some(launches));
}

#[test]
fn a_segment_that_had_another_launch_meanwhile_is_not_stale() {
    let (calls, lane) = (fake::calls(), lane());
    open(&calls, lane, 2);
    close_stale(&calls, lane, 1, 300);
    assert!(lane.is_open());
    close_stale(&calls, lane, 2, 300);
    assert!(!lane.is_open());
    assert!(!oldest(lane).unwrap().is_lost);
}

#[test]
fn on_the_legacy_stream_nothing_is_recorded_after_the_launches_are() {
    let (calls, lane) = (fake::calls(), lane_of(Stream::LEGACY));
    open(&calls, lane, 2);
    close_stale(&calls, lane, 2, 300);
    assert!(lane.is_open(), "it runs");
    fake::finish();
    close_stale(&calls, lane, 2, 300);
    let contents = oldest(lane).unwrap();
    assert!(contents.is_lost);
    assert_eq!((contents.launches, contents.expected_ns), (2, 2 * KERNEL_NS));
}

#[test]
fn a_thread_that_waits_records_no_end_on_the_legacy_stream_or_on_another_threads_own() {
    const OWNER: u32 = 1;
    let calls = fake::calls();
    for (stream, thread, ends) in [
        (STREAM, OWNER, true),
        (STREAM, OWNER + 1, true),
        (Stream::LEGACY, OWNER, false),
        (Stream::PER_THREAD, OWNER, true),
        (Stream::PER_THREAD, OWNER + 1, false),
    ] {
        let lane = lane_of(stream);
        open(&calls, lane, 2);
        let before = fake::records(stream);
        lane.close_late(&calls, thread);
        assert_eq!(lane.is_open(), !ends, "{stream:?} by {thread}");
        assert_eq!(fake::records(stream) - before, usize::from(ends), "{stream:?} by {thread}");
    }
}

#[test]
fn where_all_streams_of_a_context_wait_no_end_is_recorded_on_the_legacy_stream() {
    let (calls, lane) = (fake::calls(), lane_of(Stream::LEGACY));
    // The gate of a new grant is closed.
    lane.gpu.set_grant(Box::leak(Box::default()));
    open(&calls, lane, 2);
    let before = fake::records(Stream::LEGACY);
    lane.context.interrupt(lane.context.handle(), &calls, 1, false);
    assert!(lane.is_open());
    assert_eq!(fake::records(Stream::LEGACY), before);
}

#[test]
fn work_that_a_look_at_the_legacy_stream_saw_run_on_is_charged_whatever_was_expected() {
    const BUSY_NS: u64 = 5_000_000;
    let (calls, lane) = (fake::calls(), lane_of(Stream::LEGACY));
    let charged_ns = || {
        open(&calls, lane, 2);
        close_stale(&calls, lane, 2, BUSY_NS);
        fake::finish();
        close_stale(&calls, lane, 2, BUSY_NS + 50_000);
        let charged_ns = oldest(lane).unwrap().expected_ns;
        pop(lane);
        charged_ns
    };
    assert_eq!(charged_ns(), BUSY_NS);
    lane.context.lane(lane.context.handle(), STREAM, 1).unwrap();
    assert_eq!(charged_ns(), 2 * KERNEL_NS, "it may have waited for the other stream");
}

#[test]
fn a_segment_that_stays_open_on_a_per_thread_stream_is_closed_once_it_must_be_complete() {
    let (calls, lane) = (fake::calls(), lane_of(Stream::PER_THREAD));
    const LEFT: u32 = 5;
    // The lane has counted many launches before.
    lane.tally.put(500, 500 * KERNEL_NS);
    lane.settle();
    launch(&calls, lane, GRAPH, KERNEL_NS);
    open(&calls, lane, LEFT);
    close_stale(&calls, lane, LEFT, u64::MAX);
    assert!(lane.is_open(), "the earlier work still runs");
    fake::finish();
    assert_eq!(read(&calls, lane).len(), 1);
    close_stale(&calls, lane, LEFT, KERNEL_NS);
    assert!(lane.is_open(), "it may still run");
    close_stale(&calls, lane, LEFT, u64::from(LEFT + 1) * KERNEL_NS);
    let closed = oldest(lane).unwrap();
    assert!(closed.is_lost, "nothing was recorded from another thread");
    assert_eq!(closed.launches, LEFT);
}

#[test]
fn queued_segments_count_as_far_ahead_once_they_are_measured_or_several() {
    let (calls, lane) = (fake::calls(), lane());
    for _ in 0..3 {
        assert!(!lane.is_far_ahead(None, 1_000_000, 2));
        launch(&calls, lane, GRAPH, 400_000);
    }
    assert!(lane.is_far_ahead(None, 1_000_000, 2), "nothing is known, and several wait");
    fake::finish();
    read(&calls, lane);
    lane.gpu.empty_queue(METER);
    launch(&calls, lane, GRAPH, 400_000);
    launch(&calls, lane, GRAPH, 400_000);
    assert!(!lane.is_far_ahead(None, 1_000_000, 0));
    launch(&calls, lane, GRAPH, 400_000);
    assert!(lane.is_far_ahead(None, 1_000_000, 0));
}

#[test]
fn graphs_that_take_another_time_each_are_not_queued_by_what_the_first_few_took() {
    const VARYING: Launch = Launch { key: 77, kind: Kind::VaryingGraph };
    const OTHER: Launch = Launch { key: 78, kind: Kind::Graph };
    let (calls, lane) = (fake::calls(), lane());
    let is_far_ahead = |launch| lane.is_far_ahead(Some(launch), u64::MAX, 2);
    lane.learn(METER, 1_000, false);
    for seen in 0..VARYING_SEEN {
        assert!(!is_far_ahead(VARYING), "{seen} were seen, and none is queued");
        (0..3).for_each(|_| launch(&calls, lane, OTHER, 2 * SHORT_GRAPH_NS));
        assert!(is_far_ahead(VARYING) && !is_far_ahead(OTHER), "{seen} were seen");
        fake::finish();
        read(&calls, lane);
        lane.gpu.estimates.learn(METER, VARYING.key, 1_000);
    }
    (0..3).for_each(|_| launch(&calls, lane, OTHER, 2 * SHORT_GRAPH_NS));
    assert!(!is_far_ahead(VARYING));
}

#[test]
fn time_that_bounds_cut_off_is_made_up_for_where_they_leave_room_and_once_over_at_most() {
    const EXPECTED_NS: i64 = 10_000;
    let lane = lane();
    let charge = |most_ns: i64| {
        let took_ns = (EXPECTED_NS + lane.carried_ns(METER, EXPECTED_NS)).min(most_ns);
        lane.carry(METER, EXPECTED_NS, took_ns);
        took_ns
    };
    // Kernels take 5 µs and 15 µs in turn, and the long kernels have gaps.
    let charged_ns: i64 = (0..50).map(|_| charge(5_000) + charge(40_000)).sum();
    assert_eq!(charged_ns, 100 * EXPECTED_NS);
    // If the expectation was too high all the time, the difference does not add up to a debt.
    (0..50).for_each(|_| assert_eq!(charge(1_000), 1_000));
    assert_eq!(charge(40_000), 2 * EXPECTED_NS);
    assert_eq!(charge(40_000), EXPECTED_NS);
}

#[test]
fn a_lane_nobody_uses_is_given_to_the_next_thread() {
    let lane = lane();
    let context = lane.context;
    let lane_of = |stream, thread| context.lane(context.handle(), stream, thread).unwrap().lane();
    assert!(std::ptr::eq(lane_of(STREAM, 1), lane.lane()), "its own");
    let calls = fake::calls();
    open(&calls, lane, 2);
    lane.retire(&context.lock());
    assert!(!lane.is_open(), "nothing stays open on a stream that is gone");
    fake::finish();
    read(&calls, lane);
    let next = lane_of(Stream(0x20_0000), os::thread_id());
    assert!(std::ptr::eq(next, lane.lane()));
    let other = lane_of(STREAM, os::thread_id());
    assert!(!std::ptr::eq(other, lane.lane()), "its thread lives");
}

#[test]
fn a_lane_has_no_more_events_than_were_in_flight_at_once() {
    let (calls, lane) = (fake::calls(), lane());
    let in_flight = |segments: u32| {
        for _ in 0..segments {
            launch(&calls, lane, Launch { kind: Kind::VaryingGraph, ..GRAPH }, KERNEL_NS);
            lane.close(&calls);
        }
        assert_eq!(lane.ring.waiting(), segments);
        fake::pass(u64::from(segments) * KERNEL_NS);
        assert_eq!(read(&calls, lane).len() as u32, segments);
    };
    let events = || lane.ring.events().len();
    (0..3 * RING).for_each(|_| in_flight(1));
    assert_eq!(events(), 1);
    (0..RING).for_each(|_| in_flight(5));
    assert_eq!(events(), 5);
    (0..5).for_each(|_| in_flight(RING - 1));
    (0..RING).for_each(|_| in_flight(2));
    assert_eq!(events(), RING as usize - 1, "none is lost, none is another's");
    let mut all: Vec<usize> =
        lane.ring.events().into_iter().flat_map(|(start, end)| [start.0, end.0]).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 2 * (RING as usize - 1));
}

#[test]
fn a_stream_that_waits_for_the_host_is_stuck_until_something_after_the_wait_completes() {
    let (calls, lane) = (fake::calls(), lane());
    let complete = || {
        fake::pass(10 * KERNEL_NS);
        read(&calls, lane);
    };
    launch(&calls, lane, GRAPH, KERNEL_NS);
    launch(&calls, lane, GRAPH, KERNEL_NS);
    lane.await_host();
    assert!(lane.is_stuck());
    complete();
    assert!(lane.is_stuck(), "work before the wait says nothing");
    for _ in 0..2 * LAUNCHES_MAX {
        put(&calls, lane, OTHER, 0, Some(0));
    }
    assert!(lane.ring.waiting() <= 2 * LAUNCHES_MAX / LAUNCHES_STUCK, "segments grow");
    lane.close(&calls);
    complete();
    assert!(!lane.is_stuck());
    launch(&calls, lane, GRAPH, KERNEL_NS);
    lane.give_up();
    assert!(lane.is_stuck());
    lane.close(&calls);
    complete();
    assert!(!lane.is_stuck());
}

#[test]
fn behind_a_wait_for_the_host_no_end_is_recorded() {
    let (calls, lane) = (fake::calls(), lane());
    // The stream waits for this launch.
    fake::launch(lane.stream().unwrap(), 10 * KERNEL_NS);
    open(&calls, lane, 2);
    lane.await_host();
    lane.close(&calls);
    assert!(lane.is_open(), "the event may find no place before the host goes on");
    fake::pass(10 * KERNEL_NS);
    lane.close(&calls);
    assert!(!lane.is_open(), "the wait is over");
}

#[test]
fn a_segment_of_a_thread_that_was_ended_in_the_driver_is_others_to_close() {
    let calls = fake::calls();
    for (owner, is_released) in [(os::thread_id(), false), (u32::MAX >> 1, true)] {
        let gpu: &'static Gpu = Box::leak(Box::default());
        let context: &'static ContextState = Box::leak(Box::new(ContextState::new(Context(0x1000), gpu, 0)));
        let lane = context.lane(context.handle(), Stream(1), owner).unwrap();
        lane.begin(&calls, KERNEL, HEADROOM, None).unwrap();
        lane.release_dead(METER, &context.lock());
        close_stale(&calls, lane, 1, 300);
        assert_eq!(!lane.is_open(), is_released, "{owner}");
    }
}

/// Returns a lane, and the meter slot in which its GPU counts launches.
fn counted_lane() -> (LaneOwner, &'static MeterSlot) {
    let (lane, meter): (_, &'static MeterSlot) = (lane(), Box::leak(Box::default()));
    lane.gpu.connect(0, Box::leak(Box::default()), meter, None);
    know(lane, KERNEL, KERNEL_NS);
    (lane, meter)
}

#[test]
fn a_launch_that_finds_its_segment_closed_as_it_is_counted_is_counted_without_one() {
    let ((lane, meter), calls) = (counted_lane(), fake::calls());
    let launches = || meter.kernel_launches.load(Ordering::Relaxed);
    open(&calls, lane, 2);
    let (launched, ns) = lane.fits(KERNEL).unwrap();
    close_stale(&calls, lane, 2, 300);
    lane.tally.put(launched, ns);
    assert_eq!(oldest(lane).unwrap().launches, 2);
    assert_eq!((launches(), lane.gpu.take_late_ns(METER)), (2, 0));
    lane.settle();
    assert_eq!((launches(), lane.gpu.take_late_ns(METER)), (3, KERNEL_NS));
    lane.settle();
    assert_eq!((launches(), lane.gpu.take_late_ns(METER)), (3, 0), "once");
    // The next segment does not count the late launch either.
    let counted = lane.fits(KERNEL);
    assert_eq!(counted, None, "none is open");
    launch(&calls, lane, KERNEL, KERNEL_NS);
    lane.close(&calls);
    assert_eq!(launches(), 4);
    assert_eq!(lane.gpu.take_late_ns(METER), 0);
}

#[test]
fn a_launch_that_the_driver_refused_once_its_segment_was_closed_takes_no_other_from_the_count() {
    let ((lane, meter), calls) = (counted_lane(), fake::calls());
    open(&calls, lane, 2);
    close_stale(&calls, lane, 2, 300);
    lane.uncount(Kind::Kernel);
    lane.settle();
    open(&calls, lane, 3);
    lane.close(&calls);
    assert_eq!(meter.kernel_launches.load(Ordering::Relaxed), 5);
}

#[test]
fn a_launch_that_the_driver_refused_is_charged_for_nothing() {
    let ((lane, _), calls) = (counted_lane(), fake::calls());
    open(&calls, lane, 2);
    assert!(lane.count(KERNEL));
    lane.uncount(Kind::Kernel);
    close_stale(&calls, lane, 2, 300);
    let contents = oldest(lane).unwrap();
    assert_eq!((contents.launches, contents.expected_ns), (2, 2 * KERNEL_NS));
    // The meter thread closes the segment before the driver refuses the launch, so the next segment
    // is charged that much less.
    open(&calls, lane, 1);
    assert!(lane.count(KERNEL));
    close_stale(&calls, lane, 2, 300);
    lane.uncount(Kind::Kernel);
    lane.settle();
    open(&calls, lane, 1);
    close_stale(&calls, lane, 1, 300);
    let charged_ns = std::iter::from_fn(|| {
        let charged_ns = oldest(lane)?.expected_ns;
        pop(lane);
        Some(charged_ns)
    });
    assert_eq!(charged_ns.sum::<u64>() + lane.gpu.take_late_ns(METER), 4 * KERNEL_NS);
}

#[test]
fn graphs_are_told_from_kernels_across_segments() {
    let ((lane, meter), calls) = (counted_lane(), fake::calls());
    know(lane, GRAPH, KERNEL_NS);
    for _ in 0..100 {
        launch(&calls, lane, GRAPH, KERNEL_NS);
        launch(&calls, lane, KERNEL, KERNEL_NS);
        launch(&calls, lane, KERNEL, KERNEL_NS);
        fake::finish();
        read(&calls, lane);
    }
    lane.close(&calls);
    assert_eq!(meter.graph_launches.load(Ordering::Relaxed), 100);
    assert_eq!(meter.kernel_launches.load(Ordering::Relaxed), 200);
}

#[test]
fn every_launch_is_counted_once_while_another_thread_closes_what_is_open() {
    const LAUNCHES: u64 = 300_000;
    let ((lane, meter), is_done) = (counted_lane(), AtomicBool::new(false));
    lane.learn(METER, 1, false);
    let seen = lane.lane();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let calls = fake::calls();
            while !is_done.load(Ordering::Relaxed) {
                seen.close_if(&calls, |_| true, End::Unrecorded { least_ns: 0 });
                let inner = seen.context.lock();
                while seen.oldest(&inner).is_some() {
                    seen.pop(&inner);
                }
                seen.settle();
                seen.gpu.take_late_ns(MeterThread::acted());
            }
        });
        let calls = fake::calls();
        for _ in 0..LAUNCHES {
            if let Some((launched, ns)) = lane.fits(KERNEL) {
                // Simulates an owner thread that loses its CPU between the two steps.
                (0..20).for_each(|_| std::hint::spin_loop());
                lane.tally.put(launched, ns);
            } else {
                let begun = lane.begin(&calls, KERNEL, HEADROOM, None).unwrap();
                lane.pace.want(LAUNCHES_MAX);
                lane.launched(begun.opens);
                if begun.ends {
                    lane.close_if(&calls, |_| true, End::Unrecorded { least_ns: 0 });
                }
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
    lane.discard(&lane.context.lock());
    lane.settle();
    assert_eq!(meter.kernel_launches.load(Ordering::Relaxed), LAUNCHES);
}

#[test]
fn no_stream_joins_a_capture_while_a_marker_is_recorded() {
    static RECORDED: AtomicU32 = AtomicU32::new(0);
    static MIGHT_JOIN: AtomicBool = AtomicBool::new(false);
    let (calls, lane) = (fake::calls(), lane());
    fake::during_record(|| {
        RECORDED.fetch_add(1, Ordering::Relaxed);
        MIGHT_JOIN.fetch_or(capture::may_join(), Ordering::Relaxed);
    });
    open(&calls, lane, 2);
    lane.close(&calls);
    assert!(RECORDED.load(Ordering::Relaxed) >= 2, "a beginning and an end");
    assert!(!MIGHT_JOIN.load(Ordering::Relaxed), "it would take the marker in");
}

#[test]
fn segments_that_one_late_look_sees_lie_where_they_ran() {
    let (calls, lane) = (fake::calls(), lane());
    for _ in 0..3 {
        put(&calls, lane, KERNEL, KERNEL_NS, Some(KERNEL_NS));
    }
    fake::finish();
    const SEEN_NS: i64 = 1_000_000_000;
    let mut inner = lane.context.lock();
    let (over, newest) = lane.over(&inner, &calls);
    assert_eq!(over, 3);
    let mut locate = || {
        let place = inner.locate(&calls, &lane, newest.unwrap(), SEEN_NS).unwrap();
        lane.pop(&inner);
        place
    };
    for begins_before_ns in [30_000, 20_000, 10_000] {
        let (start_ns, end_ns) = locate();
        // The driver gives event times as floats of milliseconds, so the test allows a small error.
        assert!((SEEN_NS - begins_before_ns - start_ns).abs() < 100, "{start_ns}");
        assert!((SEEN_NS - begins_before_ns + KERNEL_NS as i64 - end_ns).abs() < 100, "{end_ns}");
    }
}

/// Returns a lane on the legacy stream of a green context, which is not current.
fn green_lane() -> LaneOwner {
    let lane = lane_of(Stream::LEGACY);
    lane.context.revive(Context(0x2000), lane.context.handle());
    know(lane, KERNEL, KERNEL_NS);
    lane
}

#[test]
fn only_the_job_makes_a_green_context_current() {
    let (calls, lane) = (fake::calls(), green_lane());
    assert!(lane.context.is_green());
    assert_eq!(lane.context.enter(&calls, || Some(())), None);
    assert!(lane.context.create_events(&calls).is_some(), "of the primary context");
    assert_eq!(fake::pushed(), 0);
}

#[test]
fn a_context_that_ends_gives_all_its_events_back() {
    let (calls, lane) = (fake::calls(), lane());
    for _ in 0..3 {
        put(&calls, lane, KERNEL, KERNEL_NS, Some(KERNEL_NS));
    }
    fake::finish();
    let mut inner = lane.context.lock();
    let (_, newest) = lane.over(&inner, &calls);
    // The first segment's end event becomes the base event.
    inner.locate(&calls, &lane, newest.unwrap(), 1_000_000_000).unwrap();
    assert!(fake::live_events() > 3);
    lane.context.kill(&mut inner, |event| calls.destroy_event(event));
    assert_eq!(fake::live_events(), 0);
    assert!(lane.ring.events().is_empty());
}

#[test]
fn a_segment_on_the_legacy_stream_of_a_green_context_ends_after_its_usual_time() {
    let (calls, lane) = (fake::calls(), green_lane());
    open(&calls, lane, 2);
    close_stale(&calls, lane, 2, 2 * KERNEL_NS);
    assert!(lane.is_open(), "its usual time has not passed");
    close_stale(&calls, lane, 2, 2 * KERNEL_NS + 1);
    let contents = oldest(lane).unwrap();
    assert!(contents.is_lost && contents.expected_ns == 2 * KERNEL_NS, "{contents:?}");
}

/// Returns the lane of the thread `thread` on the stream of `lane`, which is busy.
fn beside(lane: LaneOwner, thread: u32) -> LaneOwner {
    lane.context.lane(lane.context.handle(), lane.stream().unwrap(), thread).unwrap()
}

#[test]
fn a_segment_ends_when_another_thread_opens_one_on_its_stream() {
    const OTHER_NS: u64 = 5_000_000;
    for stream in [STREAM, Stream::LEGACY] {
        let (calls, lane) = (fake::calls(), lane_of(stream));
        open(&calls, lane, 3);
        let other = beside(lane, 2);
        launch(&calls, other, GRAPH, OTHER_NS);
        assert!(!lane.is_open());
        assert!(!other.ring.newest().unwrap().contents().is_quiet, "it waits behind the other lane's work");
        fake::finish();
        assert_eq!(read(&calls, lane), [(3, 3 * KERNEL_NS)], "without the other thread's work");
        assert_eq!(read(&calls, other), [(1, OTHER_NS)]);
    }
}

#[test]
fn segments_of_threads_that_take_turns_at_once_are_charged_by_estimates() {
    let (calls, lane) = (fake::calls(), lane());
    open(&calls, lane, 3);
    let other = beside(lane, 2);
    // A lane of the stream has just ended a segment of another lane.
    lane.pace.ended_others_ns.store(u64::MAX, Ordering::Relaxed);
    let before = fake::records(STREAM);
    launch(&calls, other, GRAPH, KERNEL_NS);
    assert_eq!(fake::records(STREAM), before + 2, "only its own events");
    assert!(lane.is_open());
    lane.close(&calls);
    for own in [lane, other] {
        assert!(own.ring.newest().unwrap().contents().may_wait);
    }
}

#[test]
fn a_wait_of_a_stream_reaches_the_lanes_of_all_its_threads() {
    let (calls, lane) = (fake::calls(), lane());
    open(&calls, lane, 3);
    let other = beside(lane, 2);
    other.interrupt_stream(&calls, false);
    lane.close(&calls);
    assert!(lane.ring.newest().unwrap().contents().may_wait);
    other.await_host_in_stream();
    assert!(lane.is_stuck() && other.is_stuck());
}

#[test]
fn lanes_find_the_other_lanes_of_their_stream_and_count_as_one_stream() {
    let (calls, first) = (fake::calls(), lane());
    // A busy lane stays with its thread.
    let busy = |lane: LaneOwner| {
        open(&calls, lane, 1);
        lane
    };
    let second = busy(beside(busy(first), 2));
    let third = busy(beside(first, 3));
    let elsewhere = busy(first.context.lane(first.context.handle(), Stream(0x20_0000), 4).unwrap());
    let found = |lane: LaneOwner| lane.others_of_stream().count();
    assert_eq!([first, second, third, elsewhere].map(found), [2, 2, 2, 0]);
    let counted = |lanes: &[LaneOwner]| lanes.iter().filter(|lane| lane.counts_as_stream()).count();
    assert_eq!(counted(&[first, second, third]), 1);
    assert!(elsewhere.counts_as_stream());
    assert_eq!(first.stream_number(), third.stream_number());
    assert_ne!(first.stream_number(), elsewhere.stream_number());

    second.retire(&first.context.lock());
    fake::finish();
    read(&calls, second);
    assert_eq!([first, third].map(found), [1, 1]);
    // The free lane goes to the other stream.
    let moved = first.context.lane(first.context.handle(), Stream(0x20_0000), 5).unwrap();
    assert!(std::ptr::eq(moved.lane(), second.lane()));
    assert_eq!([first, third, elsewhere, moved].map(found), [1, 1, 1, 1]);

    let own = lane_of(Stream::PER_THREAD);
    open(&calls, own, 1);
    assert_eq!([own, beside(own, 2)].map(found), [0, 0], "each thread has a stream of its own");
}
