//! A model of a GPU on which kernels of several tenants run at once.
//!
//! Each stream runs its kernels one after the other. A kernel that has the SMs of its width takes
//! its duration, and with fewer SMs it takes longer in proportion. The rules of [`Sharing`] say
//! which kernel has which SMs. The model has no caches, no memory bandwidth and no waves of blocks.

use alloc::vec::Vec;

use super::{Cut, Kernel, MOST_TENANTS, TooMany};

/// The most streams of a tenant in the model. Kernels of further streams follow each other in the
/// last one.
const MOST_STREAMS: usize = 4;
/// The most streams of all tenants.
pub(super) const MOST_QUEUES: usize = MOST_TENANTS * MOST_STREAMS;
/// The longest duration and the longest pause, ns: longer durations and pauses count as this long.
/// A sum of such times is exact to a nanosecond.
const MOST_NS: u64 = 1 << 40;
/// The least width, as a part of all SMs. No GPU has ten thousand SMs.
const LEAST_WIDTH: f64 = 1e-4;
/// All SMs, percent.
const WHOLE_PERCENT: f64 = 100.0;

/// The rule by which kernels share the SMs if their widths sum to more than all SMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// All kernels slow down alike.
    Alike,
    /// The kernel that was launched first has all SMs that it can use. Each later kernel has as
    /// many of the remaining SMs as it can use.
    InOrder,
    /// The kernels of one tenant run at a time. After each kernel, another tenant has its turn.
    Turns,
}

impl Sharing {
    /// All rules.
    pub const ALL: [Self; 3] = [Self::Alike, Self::InOrder, Self::Turns];
}

/// Sees what the model does.
pub trait Watch {
    /// A kernel of a tenant ran from one time to another, ns, on a part of the SMs, 0 to 1.
    fn ran(&mut self, _tenant: usize, _kernel: usize, _from_ns: f64, _to_ns: f64, _part: f64) {}
    /// A tenant launched a kernel after a wait of `waited_ns` at a cut, or 0 without a wait.
    /// `places` has the first unfinished kernel of each tenant.
    fn began(&mut self, _tenant: usize, _kernel: usize, _waited_ns: f64, _places: [usize; MOST_TENANTS]) {}
}

impl Watch for () {}

/// A kernel, in the units of the model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    pub pause_ns: f64,
    pub duration_ns: f64,
    /// The part of the SMs, 0 to 1.
    pub width: f64,
    /// Whether the kernel waits for all earlier kernels of its tenant.
    pub joins: bool,
}

/// The kernels of a stream.
#[derive(Debug, Clone)]
pub(super) struct Queue {
    pub tenant: usize,
    /// The kernels' places in the iteration.
    kernels: Vec<usize>,
}

/// The iterations of tenants that run at once.
#[derive(Debug, Clone)]
pub struct Mix {
    /// The kernels of each tenant, in order of their launches.
    pub(super) tenants: Vec<Vec<Work>>,
    pub(super) queues: Vec<Queue>,
}

/// The first kernel of a stream that is not finished.
#[derive(Debug, Clone, Copy, Default)]
struct Head {
    /// The number of the stream's kernels that are finished.
    place: usize,
    /// Before the launch, the host's time that is left. After the launch, the time until the kernel
    /// reaches the GPU. ns.
    pause_ns: f64,
    /// The time that the kernel needs on the SMs of its width, ns.
    left_ns: f64,
    /// The number of the launch, from 1; 0 before the launch.
    order: usize,
    /// Since when the kernel waits at a cut, ns.
    held_since_ns: Option<f64>,
}

/// The event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A kernel of this stream ended.
    Finished(usize),
    /// A pause ended.
    Paused,
}

/// The model at a moment.
#[derive(Debug, Clone)]
pub(super) struct State {
    pub now_ns: f64,
    /// The pauses and durations of each tenant's finished kernels, added up, ns.
    done_ns: [f64; MOST_TENANTS],
    launches: usize,
    heads: [Head; MOST_QUEUES],
}

impl Mix {
    /// Puts the iterations of tenants together.
    ///
    /// # Errors
    /// There are more tenants than a plan can have.
    pub fn new(tenants: &[&[Kernel]]) -> Result<Self, TooMany> {
        if tenants.len() > MOST_TENANTS {
            return Err(TooMany(tenants.len()));
        }
        let mut queues = Vec::new();
        for (tenant, kernels) in tenants.iter().enumerate() {
            let mut streams: Vec<(u64, Queue)> = Vec::new();
            for (place, kernel) in kernels.iter().enumerate() {
                let known = streams.iter().position(|(stream, _)| *stream == kernel.stream);
                let number = known.unwrap_or_else(|| {
                    if streams.len() < MOST_STREAMS {
                        streams.push((kernel.stream, Queue { tenant, kernels: Vec::new() }));
                    }
                    streams.len() - 1
                });
                streams[number].1.kernels.push(place);
            }
            queues.extend(streams.into_iter().map(|(_, queue)| queue));
        }
        let work = |kernel: &Kernel| Work {
            pause_ns: kernel.pause_ns.min(MOST_NS) as f64,
            duration_ns: kernel.duration_ns.min(MOST_NS) as f64,
            width: match kernel.width_percent {
                unknown if unknown.is_nan() => 1.0,
                percent => (percent / WHOLE_PERCENT).clamp(LEAST_WIDTH, 1.0),
            },
            joins: kernel.joins,
        };
        let tenants = tenants.iter().map(|kernels| kernels.iter().map(work).collect()).collect();
        Ok(Self { tenants, queues })
    }

    /// Returns the number of all kernels.
    pub(super) fn kernels(&self) -> usize {
        self.tenants.iter().map(Vec::len).sum()
    }

    /// Returns the area of all kernels, ns of all SMs.
    pub fn area_ns(&self) -> f64 {
        self.tenants.iter().flatten().map(|work| work.width * work.duration_ns).sum()
    }

    /// Returns the time of the longest stream on a free GPU, ns.
    pub fn critical_path_ns(&self) -> f64 {
        let length = |queue: &Queue| {
            let each = queue.kernels.iter().map(|place| &self.tenants[queue.tenant][*place]);
            each.map(|work| work.pause_ns + work.duration_ns).sum()
        };
        self.queues.iter().map(length).fold(0.0, f64::max)
    }

    /// Returns the time of each tenant on a free GPU, ns.
    pub(super) fn alone_ns(&self, tenant: usize) -> f64 {
        let queues = self.queues.iter().filter(|queue| queue.tenant == tenant).cloned().collect();
        let alone = Self { tenants: self.tenants.clone(), queues };
        alone.run(Sharing::Alike, &[], 0).unwrap_or(0.0)
    }

    /// Returns the time of one tenant after the other, ns.
    pub fn sequential_ns(&self) -> f64 {
        (0..self.tenants.len()).map(|tenant| self.alone_ns(tenant)).sum()
    }

    /// Returns the time of one iteration of all tenants with these cuts, ns. The cuts are in order.
    /// Returns nothing if cuts wait for each other for ever.
    pub fn run(&self, sharing: Sharing, cuts: &[Cut], switch_ns: u64) -> Option<f64> {
        self.run_watched(sharing, cuts, switch_ns, &mut ())
    }

    /// Like [`Self::run`]. The watch sees each kernel.
    pub fn run_watched(
        &self,
        sharing: Sharing,
        cuts: &[Cut],
        switch_ns: u64,
        watch: &mut impl Watch,
    ) -> Option<f64> {
        let of = |tenant: usize| cuts.partition_point(|cut| cut.tenant < tenant);
        // The cuts of each tenant that it has not passed.
        let mut ahead: [&[Cut]; MOST_TENANTS] =
            core::array::from_fn(|tenant| &cuts[of(tenant)..of(tenant + 1)]);
        let mut state = State::new(self);
        loop {
            let mut places = None;
            for queue in 0..self.queues.len() {
                let Some(kernel) = state.ready(self, queue) else { continue };
                let tenant = self.queues[queue].tenant;
                let places = *places.get_or_insert_with(|| state.places(self));
                let mut is_held = false;
                while let Some((cut, after)) = ahead[tenant].split_first()
                    && cut.kernel <= kernel
                    && !is_held
                {
                    if places.get(cut.other).is_none_or(|place| *place >= cut.until) {
                        ahead[tenant] = after;
                    } else {
                        is_held = true;
                    }
                }
                if is_held {
                    state.hold(queue);
                } else {
                    watch.began(tenant, kernel, state.waited_ns(queue), places);
                    state.launch(queue, switch_ns);
                }
            }
            if state.step(self, sharing, watch).is_none() {
                return state.is_done(self).then_some(state.now_ns);
            }
        }
    }
}

impl State {
    /// Returns the beginning of an iteration.
    pub fn new(mix: &Mix) -> Self {
        let mut state = Self {
            now_ns: 0.0,
            done_ns: [0.0; MOST_TENANTS],
            launches: 0,
            heads: [Head::default(); MOST_QUEUES],
        };
        for queue in 0..mix.queues.len() {
            state.load(mix, queue);
        }
        state
    }

    fn kernel(&self, mix: &Mix, queue: usize) -> Option<usize> {
        mix.queues[queue].kernels.get(self.heads[queue].place).copied()
    }

    fn work<'a>(&self, mix: &'a Mix, queue: usize) -> Option<&'a Work> {
        self.kernel(mix, queue).map(|kernel| &mix.tenants[mix.queues[queue].tenant][kernel])
    }

    fn load(&mut self, mix: &Mix, queue: usize) {
        if let Some(work) = self.work(mix, queue).copied() {
            let Head { place, .. } = self.heads[queue];
            let Work { pause_ns, duration_ns, .. } = work;
            self.heads[queue] = Head { place, pause_ns, left_ns: duration_ns, order: 0, held_since_ns: None };
        }
    }

    /// Returns the kernel of this stream that could be launched now.
    pub fn ready(&self, mix: &Mix, queue: usize) -> Option<usize> {
        let head = &self.heads[queue];
        let kernel = self.kernel(mix, queue).filter(|_| head.order == 0 && head.pause_ns <= 0.0)?;
        let tenant = mix.queues[queue].tenant;
        let is_earlier = |(other, of): (usize, &Queue)| {
            of.tenant == tenant && self.kernel(mix, other).is_some_and(|first| first < kernel)
        };
        let waits = mix.tenants[tenant][kernel].joins && mix.queues.iter().enumerate().any(is_earlier);
        (!waits).then_some(kernel)
    }

    /// Returns whether the first kernel of the stream waits at a cut.
    pub fn is_held(&self, queue: usize) -> bool {
        self.heads[queue].held_since_ns.is_some()
    }

    fn waited_ns(&self, queue: usize) -> f64 {
        self.heads[queue].held_since_ns.map_or(0.0, |since_ns| self.now_ns - since_ns)
    }

    /// Lets the first kernel of a stream wait.
    pub fn hold(&mut self, queue: usize) {
        self.heads[queue].held_since_ns.get_or_insert(self.now_ns);
    }

    /// Launches the first kernel of a stream.
    pub fn launch(&mut self, queue: usize, switch_ns: u64) {
        self.launches += 1;
        let head = &mut self.heads[queue];
        head.order = self.launches;
        if head.held_since_ns.take().is_some_and(|since_ns| since_ns < self.now_ns) {
            head.pause_ns = switch_ns.min(MOST_NS) as f64;
        }
    }

    /// Returns for each tenant its first kernel that is not finished.
    pub fn places(&self, mix: &Mix) -> [usize; MOST_TENANTS] {
        let mut places = [0; MOST_TENANTS];
        for (place, kernels) in places.iter_mut().zip(&mix.tenants) {
            *place = kernels.len();
        }
        for (queue, of) in mix.queues.iter().enumerate() {
            if let Some(kernel) = self.kernel(mix, queue) {
                places[of.tenant] = places[of.tenant].min(kernel);
            }
        }
        places
    }

    pub fn is_done(&self, mix: &Mix) -> bool {
        (0..mix.queues.len()).all(|queue| self.kernel(mix, queue).is_none())
    }

    /// Returns a number for each stream that grows with each end and each launch.
    pub fn stage(&self) -> [usize; MOST_QUEUES] {
        self.heads.map(|head| 2 * head.place + usize::from(head.order > 0))
    }

    /// Returns the pauses and durations of each tenant that are over, ns.
    pub fn past_ns(&self, mix: &Mix) -> [f64; MOST_TENANTS] {
        let mut past_ns = self.done_ns;
        for (queue, of) in mix.queues.iter().enumerate() {
            if let Some(work) = self.work(mix, queue) {
                let head = &self.heads[queue];
                let paused_ns = if head.order == 0 { work.pause_ns - head.pause_ns } else { work.pause_ns };
                past_ns[of.tenant] += paused_ns + work.duration_ns - head.left_ns;
            }
        }
        past_ns
    }

    /// Returns the part of the SMs that each stream's kernel has.
    fn parts(&self, mix: &Mix, sharing: Sharing) -> [f64; MOST_QUEUES] {
        let mut parts = [0.0; MOST_QUEUES];
        let runs = |queue: usize| {
            let head = &self.heads[queue];
            self.work(mix, queue).filter(|_| head.order > 0 && head.pause_ns <= 0.0).map(|work| work.width)
        };
        let queues = 0..mix.queues.len();
        if sharing == Sharing::InOrder {
            let mut order = [0; MOST_QUEUES];
            let mut count = 0;
            for queue in queues.filter(|queue| runs(*queue).is_some()) {
                order[count] = queue;
                count += 1;
            }
            let order = &mut order[..count];
            order.sort_unstable_by_key(|queue| self.heads[*queue].order);
            let mut free = 1.0;
            for &queue in order.iter() {
                parts[queue] = runs(queue).unwrap_or(0.0).min(free);
                free -= parts[queue];
            }
            return parts;
        }
        let mut first = None;
        if sharing == Sharing::Turns {
            let running = queues.clone().filter(|queue| runs(*queue).is_some());
            first =
                running.min_by_key(|queue| self.heads[*queue].order).map(|queue| mix.queues[queue].tenant);
        }
        let mut sum = 0.0;
        for queue in queues.filter(|queue| first.is_none_or(|first| mix.queues[*queue].tenant == first)) {
            parts[queue] = runs(queue).unwrap_or(0.0);
            sum += parts[queue];
        }
        if sum > 1.0 {
            parts.iter_mut().for_each(|part| *part /= sum);
        }
        parts
    }

    /// Lets time pass until something happens. Returns nothing if nothing can happen any more.
    pub fn step(&mut self, mix: &Mix, sharing: Sharing, watch: &mut impl Watch) -> Option<Event> {
        let parts = self.parts(mix, sharing);
        let mut next: Option<(f64, usize)> = None;
        for (queue, part) in parts.iter().enumerate().take(mix.queues.len()) {
            let Some(work) = self.work(mix, queue) else { continue };
            let head = &self.heads[queue];
            let in_ns = match head.pause_ns > 0.0 {
                true => head.pause_ns,
                false if *part > 0.0 => head.left_ns * work.width / part,
                false => continue,
            };
            if next.is_none_or(|(least_ns, _)| in_ns < least_ns) {
                next = Some((in_ns, queue));
            }
        }
        let (in_ns, first) = next?;
        let from_ns = self.now_ns;
        self.now_ns += in_ns;
        for (queue, part) in parts.iter().enumerate().take(mix.queues.len()) {
            let Some(kernel) = self.kernel(mix, queue) else { continue };
            let tenant = mix.queues[queue].tenant;
            let width = mix.tenants[tenant][kernel].width;
            let head = &mut self.heads[queue];
            if head.pause_ns > 0.0 {
                head.pause_ns = if queue == first { 0.0 } else { head.pause_ns - in_ns };
                if queue == first {
                    continue;
                }
            } else if *part > 0.0 {
                head.left_ns = (head.left_ns - in_ns * part / width).max(0.0);
                watch.ran(tenant, kernel, from_ns, self.now_ns, *part);
            }
        }
        // The kernel that ended, if it was no pause that ended.
        let head = &self.heads[first];
        if parts[first] <= 0.0 {
            return Some(Event::Paused);
        }
        let place = head.place;
        if let Some(work) = self.work(mix, first) {
            self.done_ns[mix.queues[first].tenant] += work.pause_ns + work.duration_ns;
        }
        self.heads[first] = Head { place: place + 1, ..Head::default() };
        self.load(mix, first);
        Some(Event::Finished(first))
    }
}
