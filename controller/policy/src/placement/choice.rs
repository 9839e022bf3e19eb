//! The choice of GPUs for a job.
//!
//! [`place`] compares all sets of GPUs that have room, and takes the best by these criteria, one
//! after the other ([`Criterion`]):
//!
//! 1. All GPUs of the set can copy to each other directly, if any set can.
//! 2. The pairs of the set have the most bandwidth together.
//! 3. The weakest pair has the most bandwidth.
//! 4. The GPUs of the set have the least free time together. With equal free time, they have the
//!    least free memory. So a share goes where it fits best, and whole GPUs stay whole.
//! 5. For a gang, the fewest GPUs of the set have jobs with one GPU. For a job with one GPU, the
//!    fewest have gangs. So gangs keep apart from fragments.
//! 6. The GPUs are nearest to each other, by NUMA node and common ancestor. Behind an NVSwitch all
//!    pairs have the same bandwidth, and this criterion keeps a job on one NUMA node.
//! 7. The whole GPUs that are left lose the least: the sum of bandwidth and nearness between them
//!    and the set.
//!
//! A job with one GPU has no pairs, so it begins with 4. If 5 came before 4, gangs with parts of
//! GPUs would break whole GPUs. Then up to a tenth more jobs would find no GPUs (`cargo xtask eval
//! --placement`).
//!
//! A job without a share gets a part of what others leave. Such a job goes to the GPUs with the
//! most unpromised time: other GPUs have no room for the job. Criterion 4 prefers GPUs with less
//! promised time, and then GPUs with fewer jobs.
//!
//! The tiers of [`Tier`](super::Tier) describe the result, and do not guide the search. A set of a
//! near tier almost always has the most bandwidth. An exception is a chain of single NVLinks beside
//! GPUs behind one PCI Express switch.

use super::set::GpuSet;
use super::topology::{Pair, Topology};
use super::why::{Criterion, Why};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::fmt;
use core::num::NonZero;
use deepres_abi::{MAX_GPUS, PPM};

/// A job's wish for GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Number of GPUs.
    pub gpus: NonZero<usize>,
    /// The share of each GPU, parts per million; 0 for a job without a share.
    pub share_ppm: u32,
    /// The memory on each GPU, bytes.
    pub memory_bytes: u64,
    /// The GPUs among which to choose.
    pub among: GpuSet,
}

/// The room on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Room {
    /// The part of the GPU's time that is promised to nobody, parts per million.
    pub share_ppm: u32,
    /// The memory that is promised to nobody, bytes.
    pub memory_bytes: u64,
    /// Number of jobs with one GPU that are here.
    pub singles: u32,
    /// Number of jobs with several GPUs that are here.
    pub gangs: u32,
}

impl Room {
    /// Returns whether no job is on the GPU.
    pub fn is_whole(&self) -> bool {
        self.singles == 0 && self.gangs == 0
    }

    fn has_room(&self, request: &Request) -> bool {
        self.share_ppm >= request.share_ppm && self.memory_bytes >= request.memory_bytes
    }

    fn jobs(&self) -> u32 {
        self.singles.saturating_add(self.gangs)
    }

    /// Returns what a job without a share finds here. The better room is the greater.
    fn left(&self) -> (u32, Reverse<u32>) {
        (self.share_ppm, Reverse(self.jobs()))
    }
}

/// Returns the GPUs with room for a job.
fn with_room(rooms: &[Room], request: &Request) -> GpuSet {
    let known = request.among & GpuSet::first(rooms.len());
    let fits: GpuSet = known.iter().filter(|gpu| rooms[*gpu].has_room(request)).collect();
    if request.share_ppm > 0 {
        return fits;
    }
    let mut left: Vec<_> = fits.iter().map(|gpu| rooms[gpu].left()).collect();
    left.sort_unstable_by(|one, other| other.cmp(one));
    let Some(least) = left.get(request.gpus.get() - 1) else { return fits };
    fits.iter().filter(|gpu| rooms[*gpu].left() >= *least).collect()
}

/// The GPUs that a job gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The GPUs.
    pub gpus: GpuSet,
    /// The reasons.
    pub why: Why,
}

/// The reason for which a job gets no GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The job's wish.
    pub request: Request,
    /// Number of GPUs with room for the job.
    pub with_room: usize,
    /// Number of GPUs of the machine.
    pub gpus: usize,
    /// The part of the GPUs' time that is promised to nobody, on all GPUs together, parts per
    /// million.
    pub free_ppm: u64,
}

impl Refusal {
    /// Returns whether the GPUs together have enough time free. The free time is then in parts that
    /// are too small.
    pub fn is_by_fragments(&self) -> bool {
        let gpus = self.request.gpus.get();
        gpus <= self.gpus && self.free_ppm >= gpus as u64 * u64::from(self.request.share_ppm)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { request: Request { gpus, .. }, with_room, gpus: present, .. } = self;
        match gpus.get() {
            1 => write!(f, "the job asks for a GPU")?,
            several => write!(f, "the job asks for {several} GPUs")?,
        }
        if gpus.get() > *present {
            return write!(f, ": the machine has {present}");
        }
        write!(f, ": {with_room} of {present} have room")?;
        if self.is_by_fragments() {
            write!(f, ", and what is free on the others is too little on each")?;
        }
        write!(f, "; ask for less")
    }
}

impl core::error::Error for Refusal {}

/// Chooses GPUs for a job. `rooms` has the room on each GPU, in the order of the topology. A GPU
/// without an entry has no room.
///
/// # Errors
/// Fewer GPUs have room than the job asks for.
pub fn place(topology: &Topology, rooms: &[Room], request: &Request) -> Result<Placement, Refusal> {
    let known = topology.len().min(rooms.len());
    let rooms = &rooms[..known];
    let with_room = with_room(rooms, request);
    let Some(Found { set, rank, second, sets }) = Search::new(topology, rooms, request, with_room).run()
    else {
        let free_ppm = rooms.iter().map(|room| u64::from(room.share_ppm)).sum();
        let (with_room, gpus) = (with_room.len(), topology.len());
        return Err(Refusal { request: *request, with_room, gpus, free_ppm });
    };
    let pairs = set.pairs().count() as u64;
    let why = Why {
        tier: topology.tier(set, with_room),
        with_room: with_room.len(),
        sets,
        mean_mb_s: rank.mb_s.checked_div(pairs),
        weakest_mb_s: (pairs > 0).then_some(rank.weakest_mb_s),
        has_p2p: rank.has_p2p,
        decided_by: second.map_or(Criterion::OnlyOne, |second| rank.differs_by(&second, request)),
    };
    Ok(Placement { gpus: set, why })
}

/// The worth of a set of GPUs. The better set is the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    has_p2p: bool,
    mb_s: u64,
    weakest_mb_s: u32,
    /// The free share and the free memory of the GPUs together. For a job without a share: the
    /// promised shares and the jobs.
    unfit: Reverse<(u64, u64)>,
    /// GPUs with jobs of the other kind: single shares for a gang, gangs for a single share.
    mixed: Reverse<u32>,
    nearness: u64,
    /// The bonds to the whole GPUs that are left.
    lost: Reverse<u64>,
}

impl Rank {
    /// Returns the first criterion by which two sets differ.
    fn differs_by(&self, other: &Self, request: &Request) -> Criterion {
        let fit = if request.share_ppm > 0 { Criterion::Fit } else { Criterion::MostLeft };
        let same = [
            (self.has_p2p == other.has_p2p, Criterion::P2p),
            (self.mb_s == other.mb_s, Criterion::Bandwidth),
            (self.weakest_mb_s == other.weakest_mb_s, Criterion::WeakestPair),
            (self.unfit == other.unfit, fit),
            (self.mixed == other.mixed, Criterion::Apart),
            (self.nearness == other.nearness, Criterion::Near),
            (self.lost == other.lost, Criterion::Left),
        ];
        same.iter().find(|(is_same, _)| !is_same).map_or(Criterion::Order, |(_, by)| *by)
    }
}

/// The bond of two GPUs: their bandwidth, and below it their nearness. So the sum of bonds compares
/// by the sum of bandwidth first. Below [`NEARNESS_BITS`], the nearness of all pairs of
/// [`MAX_GPUS`] GPUs has room.
fn bond(pair: &Pair) -> u64 {
    /// The greatest distance of NUMA nodes in ACPI's tables is 254. 255 means "not reachable".
    const FARTHEST: u32 = u8::MAX as u32;
    /// Bits for the nearness by common ancestor, of which there are six.
    const LEVEL_BITS: u32 = 3;
    let far = pair.numa_distance.min(FARTHEST) << LEVEL_BITS | pair.wire.level as u32;
    u64::from(pair.mb_s) << NEARNESS_BITS | u64::from(((FARTHEST + 1) << LEVEL_BITS) - far)
}

/// Bits of a sum of bonds that belong to the nearness.
const NEARNESS_BITS: u32 = 24;

/// The comparison of all sets of GPUs of one size.
struct Search {
    size: usize,
    /// The candidates: the GPUs with room. The tables below have a row for each candidate.
    gpus: Vec<usize>,
    /// The candidates to which each can copy directly, as bits by the places in `gpus`.
    peers: [u32; MAX_GPUS],
    /// The bonds of candidates.
    bonds: [[u64; MAX_GPUS]; MAX_GPUS],
    /// The figures that each candidate adds to a set.
    each: [Sums; MAX_GPUS],
    /// The candidates that are whole GPUs, as bits by the places in `gpus`.
    whole: u32,
    chosen: Vec<usize>,
    found: Option<Found>,
}

/// The best set so far.
struct Found {
    set: GpuSet,
    rank: Rank,
    second: Option<Rank>,
    sets: u64,
}

/// Sums over the GPUs of a set.
#[derive(Clone, Copy, Default)]
struct Sums {
    has_no_p2p: bool,
    /// The bonds of the pairs of the set.
    bonds: u64,
    weakest_mb_s: Option<u32>,
    unfit: (u64, u64),
    mixed: u32,
    /// For each whole GPU of the set, the bonds to all whole GPUs.
    bonds_of_whole: u64,
    /// The bonds of the pairs of whole GPUs in the set.
    bonds_within: u64,
}

impl Search {
    fn new(topology: &Topology, rooms: &[Room], request: &Request, with_room: GpuSet) -> Self {
        let size = request.gpus.get();
        let whole: GpuSet = (0..rooms.len()).filter(|gpu| rooms[*gpu].is_whole()).collect();
        let mut search = Self {
            size,
            gpus: with_room.iter().collect(),
            peers: [0; MAX_GPUS],
            bonds: [[0; MAX_GPUS]; MAX_GPUS],
            each: [Sums::default(); MAX_GPUS],
            whole: 0,
            chosen: Vec::new(),
            found: None,
        };
        for (place, gpu) in search.gpus.iter().enumerate() {
            for (other_place, other) in search.gpus.iter().enumerate().filter(|(_, other)| *other != gpu) {
                let pair = topology.pair(*gpu, *other);
                search.bonds[place][other_place] = bond(pair);
                search.peers[place] |= u32::from(pair.has_p2p()) << other_place;
            }
            let room = &rooms[*gpu];
            let others = whole.iter().filter(|other| whole.contains(*gpu) && other != gpu);
            search.whole |= u32::from(whole.contains(*gpu)) << place;
            search.each[place] = Sums {
                mixed: u32::from(if size > 1 { room.singles > 0 } else { room.gangs > 0 }),
                unfit: match request.share_ppm {
                    0 => (PPM.saturating_sub(room.share_ppm).into(), room.jobs().into()),
                    _ => (room.share_ppm.into(), room.memory_bytes),
                },
                bonds_of_whole: others.map(|other| bond(topology.pair(*gpu, other))).sum(),
                ..Sums::default()
            };
        }
        search
    }

    /// Returns the best set; `None` if too few GPUs have room.
    fn run(mut self) -> Option<Found> {
        if self.size <= self.gpus.len() {
            self.extend(0, Sums::default());
        }
        self.found
    }

    /// Compares all sets that have the chosen candidates and others from `from` on.
    fn extend(&mut self, from: usize, sums: Sums) {
        let missing = self.size - self.chosen.len();
        if missing == 0 {
            return self.compare(&sums);
        }
        for place in from..=self.gpus.len() - missing {
            let sums = self.with(sums, place);
            self.chosen.push(place);
            self.extend(place + 1, sums);
            self.chosen.pop();
        }
    }

    /// Returns the sums of the chosen candidates and one more.
    fn with(&self, mut sums: Sums, place: usize) -> Sums {
        let (bonds, is_whole) = (&self.bonds[place], self.whole >> place & 1 == 1);
        for other in &self.chosen {
            let bond = bonds[*other];
            let mb_s = (bond >> NEARNESS_BITS) as u32;
            sums.bonds += bond;
            sums.weakest_mb_s = Some(sums.weakest_mb_s.map_or(mb_s, |weakest| weakest.min(mb_s)));
            sums.has_no_p2p |= self.peers[place] >> other & 1 == 0;
            if is_whole && self.whole >> other & 1 == 1 {
                sums.bonds_within += bond;
            }
        }
        let own = &self.each[place];
        sums.mixed += own.mixed;
        sums.unfit.0 += own.unfit.0;
        sums.unfit.1 = sums.unfit.1.saturating_add(own.unfit.1);
        sums.bonds_of_whole += own.bonds_of_whole;
        sums
    }

    /// Compares the chosen candidates with the best set so far. Of equal sets the first stays.
    fn compare(&mut self, sums: &Sums) {
        let rank = Rank {
            has_p2p: !sums.has_no_p2p,
            mb_s: sums.bonds >> NEARNESS_BITS,
            weakest_mb_s: sums.weakest_mb_s.unwrap_or(0),
            unfit: Reverse(sums.unfit),
            mixed: Reverse(sums.mixed),
            nearness: sums.bonds & ((1 << NEARNESS_BITS) - 1),
            // A pair within the set is in the sums of both its GPUs.
            lost: Reverse(sums.bonds_of_whole - 2 * sums.bonds_within),
        };
        match &mut self.found {
            Some(found) if rank <= found.rank => {
                found.sets += 1;
                found.second = found.second.max(Some(rank));
            }
            found => {
                let set = self.chosen.iter().map(|place| self.gpus[*place]).collect();
                let (second, sets) = found.take().map_or((None, 0), |old| (Some(old.rank), old.sets));
                *found = Some(Found { set, rank, second, sets: sets + 1 });
            }
        }
    }
}
