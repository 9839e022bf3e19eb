//! The shares of a node's GPUs, as devices of the kubelet. Each device is a hundredth of some GPU.
//!
//! The scheduler counts the free devices of a node, and does not know GPUs. So a device belongs to
//! no GPU until a container has it. The plugin publishes as many free devices as *the hole* has:
//! the GPU with the most room. All pods that the scheduler then admits fit on the hole, whatever
//! their sizes and their order.
//!
//! When a container ends, the scheduler counts its devices as free at once. But the scheduler
//! learns the plugin's new list of devices up to ten seconds later. In this time, the scheduler can
//! admit a pod for which no GPU has room. The container of such a pod waits at its node until a GPU
//! has room, and the pod does not fail. Two rules keep the kubelet from refusing pods that are on
//! their way:
//!
//! - Devices that are healthy beyond the hole, *the surplus*, stay healthy for a minute. Then the
//!   plugin withdraws the least surplus of that minute, also while pods come and go. A surplus that
//!   comes by a GPU's fault goes at once, because containers that wait for that room would wait for
//!   long.
//! - More devices become healthy only a moment after the last allocation, because the containers of
//!   a pod get their devices one after the other.
//!
//! A GPU with a fault is *shut*: it has no room, and the devices of its containers are unhealthy.
//! The scheduler still counts these containers, so as many more free devices are healthy. A GPU
//! that a container has as a whole is shut too.

use crate::placement::{Request, Room, Topology, place};
use alloc::borrow::ToOwned;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::num::NonZero;
use core::time::Duration;
use deepres_abi::PPM;

/// The number of shares of a GPU.
pub const SHARES: usize = 100;
/// The resource of shares.
pub const SHARE_RESOURCE: &str = "deepres.dev/share";
/// The resource of whole GPUs.
pub const GPU_RESOURCE: &str = "deepres.dev/gpu";
/// The share of a GPU's time that one device stands for, parts per million.
pub const SHARE_PPM: u32 = PPM / SHARES as u32;
/// The text before the number, in a device's id.
const PREFIX: &str = "share-";
/// The most devices of a node.
const MOST: usize = SHARES * deepres_abi::MAX_GPUS;
/// Devices in one word of [`Slots`].
const WORD: usize = u64::BITS as usize;
/// Words for all devices of a node.
const WORDS: usize = MOST.div_ceil(WORD);

/// Devices, by their numbers, which are below 100 for each of [`deepres_abi::MAX_GPUS`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Slots([u64; WORDS]);

impl Slots {
    /// Returns the devices with these ids.
    ///
    /// # Errors
    /// The first text that is no id.
    pub fn of_ids<'a>(ids: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let slot = |id: &str| {
            let digits =
                id.strip_prefix(PREFIX).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
            digits.and_then(|digits| digits.parse().ok()).filter(|slot: &usize| *slot < MOST)
        };
        ids.into_iter().map(|id| slot(id).ok_or_else(|| id.to_owned())).collect()
    }

    /// Returns the devices' ids.
    pub fn ids(&self) -> BTreeSet<String> {
        self.iter().map(id).collect()
    }

    /// Returns the number of devices.
    pub fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns whether the device is one of these.
    pub fn contains(&self, slot: usize) -> bool {
        self.0.get(slot / WORD).is_some_and(|word| word >> (slot % WORD) & 1 == 1)
    }

    /// Returns the devices in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = usize> + Clone {
        (0..MOST).filter(move |slot| self.contains(*slot))
    }

    /// Adds the devices of `others`.
    pub fn add(&mut self, others: &Self) {
        self.0.iter_mut().zip(others.0).for_each(|(word, other)| *word |= other);
    }

    /// Removes the devices of `others`.
    pub fn remove(&mut self, others: &Self) {
        self.0.iter_mut().zip(others.0).for_each(|(word, other)| *word &= !other);
    }

    /// Returns these devices without those of `others`.
    pub fn without(&self, others: &Self) -> Self {
        let mut rest = self.clone();
        rest.remove(others);
        rest
    }

    fn insert(&mut self, slot: usize) {
        if let Some(word) = self.0.get_mut(slot / WORD) {
            *word |= 1 << (slot % WORD);
        }
    }

    /// Reads the text that [`fmt::Display`] wrote.
    pub fn parse(text: &str) -> Option<Self> {
        let mut slots = Self::default();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            if first > last || last >= MOST {
                return None;
            }
            (first..=last).for_each(|slot| slots.insert(slot));
        }
        Some(slots)
    }
}

/// Writes ranges, for example `0-29,44`.
impl fmt::Display for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut slots = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = slots.next() {
            let mut last = first;
            while let Some(next) = slots.next_if_eq(&(last + 1)) {
                last = next;
            }
            f.write_str(separator)?;
            write!(f, "{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromIterator<usize> for Slots {
    fn from_iter<I: IntoIterator<Item = usize>>(slots: I) -> Self {
        let mut all = Self::default();
        slots.into_iter().for_each(|slot| all.insert(slot));
        all
    }
}

impl<'a> FromIterator<&'a Slots> for Slots {
    fn from_iter<I: IntoIterator<Item = &'a Slots>>(parts: I) -> Self {
        let mut all = Self::default();
        parts.into_iter().for_each(|part| all.add(part));
        all
    }
}

/// Returns the id of a device.
fn id(slot: usize) -> String {
    format!("{PREFIX}{slot:04}")
}

/// The part of a GPU that a container has.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// The GPU's UUID.
    pub gpu: &'a str,
    /// The container's devices.
    pub slots: &'a Slots,
    /// Whether the container waits until a GPU has room.
    pub waits: bool,
    /// The GPUs on which the container may start, because it has their device files.
    pub among: &'a [String],
}

/// The GPU that a container gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice<'a> {
    /// The GPU's UUID.
    pub gpu: &'a str,
    /// Whether the container has to wait until the GPU has room.
    pub waits: bool,
}

/// The surplus since a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Surplus {
    since: Duration,
    /// The least number of devices since then.
    least: usize,
}

/// The shares of all GPUs of a node that are not set aside.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shares {
    gpus: Vec<String>,
    /// The GPUs that are shut: no container may start on them, for example because of a fault.
    shut: BTreeSet<String>,
    /// The devices that the plugin publishes as healthy, except the devices in `lost`.
    healthy: Slots,
    /// The devices of containers on shut GPUs.
    lost: Slots,
    /// The number of devices. Containers can have more than the GPUs now have, after the loss of a
    /// GPU.
    count: usize,
    surplus: Option<Surplus>,
    /// Whether the surplus goes at once.
    hurries: bool,
}

/// Returns the devices of containers on a GPU. An init container and a later container of its pod,
/// which never run together, can have the same devices.
fn load<'a>(gpu: &str, parts: impl Iterator<Item = Part<'a>>) -> Slots {
    parts.filter(|part| part.gpu == gpu).map(|part| part.slots).collect()
}

impl Shares {
    /// Returns the shares of these GPUs. No device is in use, and no device is healthy yet.
    pub fn new(gpus: impl IntoIterator<Item = String>) -> Self {
        let gpus: Vec<String> = gpus.into_iter().collect();
        Self { count: gpus.len() * SHARES, gpus, ..Self::default() }
    }

    /// Returns whether there are no GPUs.
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// Returns the UUIDs of the GPUs that are not shut.
    pub fn open_gpus(&self) -> impl Iterator<Item = &String> {
        self.gpus.iter().filter(|gpu| self.whole(gpu) > 0)
    }

    /// Sets which GPUs are shut. Leaves out GPUs that have no shares.
    pub fn set_shut(&mut self, mut shut: BTreeSet<String>) {
        shut.retain(|gpu| self.gpus.contains(gpu));
        self.hurries |= !shut.is_subset(&self.shut);
        self.shut = shut;
    }

    /// Returns the shares that a GPU can give to containers: none if it is shut or gone.
    fn whole(&self, gpu: &str) -> usize {
        if self.shut.contains(gpu) || !self.gpus.iter().any(|own| own == gpu) { 0 } else { SHARES }
    }

    /// Renews the health of the devices. `used` are the devices of all containers, and `parts` say
    /// on which GPUs. If `is_settled`, no pod is getting its devices now, and devices may change
    /// their health. `now` is a time since any moment, and a surplus stays for `patience`.
    pub fn observe<'a>(
        &mut self,
        used: &Slots,
        parts: impl Iterator<Item = Part<'a>> + Clone,
        is_settled: bool,
        now: Duration,
        patience: Duration,
    ) {
        let room = |gpu: &String| self.whole(gpu).saturating_sub(load(gpu, parts.clone()).count());
        let hole = self.gpus.iter().map(room).max().unwrap_or(0);
        let is_lost = |part: &Part<'_>| self.whole(part.gpu) == 0;
        self.lost = parts.clone().filter(is_lost).map(|part| part.slots).collect();
        let last = used.iter().last().map_or(0, |last| last + 1);
        self.count = (self.gpus.len() * SHARES).max(last);
        self.healthy.add(used);
        self.healthy.remove(&(self.count..MOST).collect());
        let target = hole + self.lost.count();
        let open = self.healthy.without(used);
        let count = open.count();
        if count <= target {
            (self.surplus, self.hurries) = (None, false);
            if is_settled && count < target {
                let closed = (0..self.count).filter(|slot| !self.healthy.contains(*slot));
                let more: Slots = closed.take(target - count).collect();
                self.healthy.add(&more);
            }
            return;
        }
        let present = count - target;
        let Surplus { since, least } = self.surplus.unwrap_or(Surplus { since: now, least: present });
        let least = if self.hurries { present } else { least.min(present) };
        self.surplus = Some(Surplus { since, least });
        if is_settled && (self.hurries || now.saturating_sub(since) >= patience) {
            self.hurries = false;
            let kept = count - least;
            self.healthy.remove(&open.iter().skip(kept).collect());
            self.surplus = (kept > target).then_some(Surplus { since: now, least: kept - target });
        }
    }

    /// Returns since when there is a surplus.
    pub fn surplus_since(&self) -> Option<Duration> {
        self.surplus.map(|surplus| surplus.since)
    }

    /// Returns the number of healthy devices.
    pub fn healthy(&self) -> usize {
        self.healthy.without(&self.lost).count()
    }

    /// Returns the healthy devices that no container has.
    pub fn open(&self, used: &Slots) -> Slots {
        self.healthy.without(used)
    }

    /// Returns the ids of all shares, each with whether it is healthy.
    pub fn devices(&self) -> impl Iterator<Item = (String, bool)> {
        (0..self.count).map(|slot| (id(slot), self.healthy.contains(slot) && !self.lost.contains(slot)))
    }

    /// Returns the devices with these ids, for one container.
    ///
    /// # Errors
    /// The reason for which no container can have these devices.
    pub fn checked(&self, ids: &[String]) -> Result<Slots, String> {
        let slots = Slots::of_ids(ids.iter().map(String::as_str));
        let slots = slots.map_err(|id| format!("this node has no device {id:?}"))?;
        if let Some(unknown) = slots.iter().find(|slot| *slot >= self.count) {
            return Err(format!("this node has no device {:?}", id(unknown)));
        }
        check_size(slots.count())?;
        Ok(slots)
    }

    /// Chooses `size` of the available devices for a container, among them those that it must get.
    /// Devices without a record come before devices with a record (`held`). The kubelet can offer
    /// devices with a record, because the kubelet learns of a container's end before the plugin.
    /// After a fault of its own, the kubelet can offer devices of running containers (`owned`).
    /// Beyond the devices that the container must get, this method chooses none of these.
    ///
    /// # Errors
    /// The reason for which no container can have so many devices.
    pub fn prefer(
        &self,
        available: Vec<String>,
        must: Vec<String>,
        size: usize,
        held: &BTreeSet<String>,
        owned: &BTreeSet<String>,
    ) -> Result<Vec<String>, String> {
        check_size(size)?;
        let rest = available.into_iter().filter(|id| !must.contains(id) && !owned.contains(id));
        let rest: BTreeSet<(bool, String)> = rest.map(|id| (held.contains(&id), id)).collect();
        let missing = size.saturating_sub(must.len());
        if rest.len() < missing {
            return Err(format!(
                "the kubelet offers {} devices that no running container has, and the container needs {missing}; a new pod can start when others end",
                rest.len()
            ));
        }
        Ok(must.iter().cloned().chain(rest.into_iter().map(|(_, id)| id).take(missing)).collect())
    }

    /// Chooses the GPU for a container with these devices, beside the containers of `parts`. Of the
    /// GPUs with room, placement takes the fullest. Without room, the container waits for the
    /// emptiest.
    ///
    /// # Errors
    /// All GPUs are shut.
    pub fn choose<'a>(
        &self,
        slots: &Slots,
        parts: impl Iterator<Item = Part<'a>> + Clone,
    ) -> Result<Choice<'_>, String> {
        self.choose_among(&self.gpus, slots, parts).ok_or_else(|| self.none())
    }

    /// Chooses as [`Self::choose`] does, but `among` these GPUs. Returns `None` if all GPUs are
    /// shut.
    fn choose_among<'a>(
        &self,
        among: &[String],
        slots: &Slots,
        parts: impl Iterator<Item = Part<'a>> + Clone,
    ) -> Option<Choice<'_>> {
        let may = |gpu: &usize| self.whole(&self.gpus[*gpu]) > 0 && among.contains(&self.gpus[*gpu]);
        let room =
            |gpu: &String| self.whole(gpu).saturating_sub(load(gpu, parts.clone()).without(slots).count());
        let rooms: Vec<usize> = self.gpus.iter().map(room).collect();
        let as_room = |room: &usize| Room { share_ppm: *room as u32 * SHARE_PPM, ..Room::default() };
        let request = Request {
            gpus: NonZero::<usize>::MIN,
            share_ppm: slots.count() as u32 * SHARE_PPM,
            memory_bytes: 0,
            among: (0..self.gpus.len()).filter(may).collect(),
        };
        let as_rooms: Vec<Room> = rooms.iter().map(as_room).collect();
        let placed = place(&Topology::unknown(self.gpus.len()), &as_rooms, &request);
        let fits = placed.ok().and_then(|placement| placement.gpus.iter().next());
        let emptiest = || (0..rooms.len()).rev().filter(may).max_by_key(|gpu| rooms[*gpu]);
        let gpu = fits.or_else(emptiest)?;
        Some(Choice { gpu: &self.gpus[gpu], waits: fits.is_none() })
    }

    fn none(&self) -> String {
        if self.gpus.is_empty() {
            return "this node has no GPU for shares".to_owned();
        }
        "each GPU of this node has a fault, or a container that has the whole GPU; `deepres ps` on the node names the faults".to_owned()
    }

    /// Returns the room that a GPU lacks for a container, in shares; 0 if the container can start
    /// there. `before` are the containers that come before it: those that do not wait, and those
    /// that have waited longer.
    pub fn lacking<'a>(&self, slots: &Slots, gpu: &str, before: impl Iterator<Item = Part<'a>>) -> usize {
        let mut all = load(gpu, before);
        all.add(slots);
        all.count().saturating_sub(self.whole(gpu))
    }

    /// Returns the next change for the containers that wait: a container's place in `parts`, and
    /// its choice among the GPUs on which it may start. The container can start, or waits for a GPU
    /// that lacks less. Those that wait come last in `parts`, the longest wait first. `None`: they
    /// all wait where they are.
    pub fn next_change(&self, parts: &[Part<'_>]) -> Option<(usize, Choice<'_>)> {
        let mut waiting = parts.iter().enumerate().filter(|(_, part)| part.waits);
        waiting.find_map(|(place, part)| {
            let before = || parts[..place].iter().copied();
            let choice = self.choose_among(part.among, part.slots, before())?;
            let lacks = |gpu: &str| self.lacking(part.slots, gpu, before());
            let is_better = choice.gpu != part.gpu && lacks(choice.gpu) < lacks(part.gpu);
            (!choice.waits || is_better).then_some((place, choice))
        })
    }
}

fn check_size(size: usize) -> Result<(), String> {
    if (1..=SHARES).contains(&size) {
        return Ok(());
    }
    Err(format!(
        "a container gets between 1 and {SHARES} of {SHARE_RESOURCE}, the shares of one GPU, not {size}; ask for {GPU_RESOURCE} to get whole GPUs"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;

    fn shares(gpus: usize) -> Shares {
        Shares::new((0..gpus).map(|gpu| format!("GPU-{gpu}")))
    }

    /// The containers of a test: the GPU and the devices of each.
    struct Node(Vec<(String, Slots, bool)>);

    impl Node {
        fn new(containers: &[(usize, Range<usize>)]) -> Self {
            let container =
                |(gpu, slots): &(usize, Range<usize>)| (format!("GPU-{gpu}"), slots.clone().collect(), false);
            Self(containers.iter().map(container).collect())
        }

        fn parts(&self) -> impl Iterator<Item = Part<'_>> + Clone {
            self.0.iter().map(|(gpu, slots, waits)| Part { gpu, slots, waits: *waits, among: &[] })
        }

        fn used(&self) -> Slots {
            self.0.iter().map(|(_, slots, _)| slots).collect()
        }

        /// Returns the number of healthy devices after this node was observed at a second.
        fn healthy(&self, shares: &mut Shares, is_settled: bool, at_s: u64) -> usize {
            shares.observe(&self.used(), self.parts(), is_settled, Duration::from_secs(at_s), PATIENCE);
            shares.healthy()
        }
    }

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn slots_are_read_as_they_are_written() {
        for (slots, text) in
            [(vec![0], "0"), ((0..30).chain([44]).collect(), "0-29,44"), (vec![998, 999], "998-999")]
        {
            let slots: Slots = slots.into_iter().collect();
            assert_eq!((slots.to_string().as_str(), Slots::parse(text)), (text, Some(slots.clone())));
            assert_eq!(Slots::of_ids(slots.ids().iter().map(String::as_str)), Ok(slots));
        }
        for garbage in ["", "9999999", "3-1", "a", "1,", "0-99999", "-1"] {
            assert_eq!(Slots::parse(garbage), None, "{garbage}");
        }
        for garbage in ["", "share-", "share-x", "share-+1", "share--1", "0001", "share-99999"] {
            assert_eq!(Slots::of_ids([garbage]), Err(garbage.to_owned()));
        }
    }

    #[test]
    fn as_many_free_shares_are_healthy_as_the_emptiest_gpu_has() {
        let mut shares = shares(4);
        assert_eq!(Node::new(&[]).healthy(&mut shares, true, 0), 100);
        let node = Node::new(&[(0, 0..60), (1, 100..160), (2, 200..250), (3, 300..360)]);
        node.healthy(&mut shares, true, 1);
        assert_eq!(node.healthy(&mut shares, true, 61), 230 + 50);
    }

    #[test]
    fn more_shares_become_healthy_once_a_pod_has_all_its_devices() {
        let mut shares = shares(2);
        Node::new(&[]).healthy(&mut shares, true, 0);
        let node = Node::new(&[(0, 0..30)]);
        assert_eq!(node.healthy(&mut shares, false, 1), 100);
        assert_eq!(node.healthy(&mut shares, true, 3), 130);
    }

    #[test]
    fn freed_shares_stay_healthy_for_a_minute() {
        let mut shares = shares(2);
        let full = Node::new(&[(0, 0..95), (1, 95..155), (1, 155..195)]);
        assert_eq!(full.healthy(&mut shares, true, 0), 195 + 5);
        let ended = Node::new(&[(0, 0..95), (1, 155..195)]);
        assert_eq!(ended.healthy(&mut shares, true, 100), 200, "the scheduler counts 65 free at once");
        assert_eq!(ended.healthy(&mut shares, true, 159), 200);
        assert_eq!(ended.healthy(&mut shares, true, 160), 135 + 60);
    }

    #[test]
    fn a_surplus_goes_also_while_pods_come_and_go() {
        let mut shares = shares(2);
        let full = Node::new(&[(0, 0..95), (1, 95..155), (1, 155..195)]);
        full.healthy(&mut shares, true, 0);
        // A pod of 2 comes and goes all the time, and never gives the node a quiet minute.
        let with = Node::new(&[(0, 0..95), (1, 155..195), (0, 196..198)]);
        let without = Node::new(&[(0, 0..95), (1, 155..195)]);
        for at_s in (0..120).step_by(20) {
            with.healthy(&mut shares, false, at_s);
            without.healthy(&mut shares, true, at_s + 10);
        }
        assert_eq!(without.healthy(&mut shares, true, 130), 135 + 62, "the pod takes two again and again");
        assert_eq!(without.healthy(&mut shares, true, 190), 135 + 60);
        assert_eq!(shares.surplus_since(), None);
    }

    #[test]
    fn a_gpu_that_is_shut_has_no_room_and_comes_back() {
        let mut shares = shares(2);
        let node = Node::new(&[(0, 0..60), (1, 100..130)]);
        assert_eq!(node.healthy(&mut shares, true, 0), 90 + 70);
        let slots: Slots = (150..190).collect();
        assert_eq!(shares.choose(&slots, node.parts()), Ok(Choice { gpu: "GPU-0", waits: false }));
        shares.set_shut([String::from("GPU-0")].into());
        assert_eq!(shares.choose(&slots, node.parts()), Ok(Choice { gpu: "GPU-1", waits: false }));
        assert_eq!(shares.lacking(&slots, "GPU-0", node.parts()), 100);
        // The scheduler still counts the 60 of the ill GPU. All other devices are healthy.
        assert_eq!(node.healthy(&mut shares, true, 10), 140);
        let of = |slot: usize| shares.devices().nth(slot).unwrap();
        assert_eq!((of(59), of(100)), (("share-0059".to_owned(), false), ("share-0100".to_owned(), true)));
        shares.set_shut(["GPU-0", "GPU-1"].map(String::from).into());
        assert!(shares.choose(&slots, node.parts()).unwrap_err().contains("fault"));
        shares.set_shut(BTreeSet::new());
        node.healthy(&mut shares, true, 20);
        assert_eq!(node.healthy(&mut shares, true, 80), 90 + 70);
    }

    #[test]
    fn a_surplus_that_comes_by_a_fault_goes_at_once() {
        let mut shares = shares(3);
        let full = Node::new(&[(0, 0..95), (1, 95..155), (1, 155..195)]);
        assert_eq!(full.healthy(&mut shares, true, 0), 195 + 100);
        shares.set_shut([String::from("GPU-2")].into());
        assert_eq!(full.healthy(&mut shares, false, 1), 195 + 100, "a pod is getting its devices");
        assert_eq!(full.healthy(&mut shares, true, 2), 195 + 5);
        // The share that a container leaves stays for a minute, also beside a fault.
        let ended = Node::new(&[(0, 0..95), (1, 155..195)]);
        for at_s in [3, 4] {
            shares.set_shut(["GPU-2", "of no shares"].map(String::from).into());
            assert_eq!(ended.healthy(&mut shares, true, at_s), 200);
        }
        assert_eq!(ended.healthy(&mut shares, true, 63), 135 + 60);
    }

    #[test]
    fn the_shares_of_containers_stay_in_the_list_when_a_gpu_is_gone() {
        let mut shares = shares(1);
        let node = Node::new(&[(0, 0..10), (0, 150..160)]);
        assert_eq!(node.healthy(&mut shares, true, 0), 20 + 80);
        assert_eq!(shares.devices().count(), 160);
        let gone = Node::new(&[(0, 0..10)]);
        gone.healthy(&mut shares, true, 1);
        assert_eq!((shares.devices().count(), shares.healthy()), (100, 100));
    }

    #[test]
    fn a_container_gets_the_fullest_gpu_with_room() {
        let shares = shares(3);
        let node = Node::new(&[(0, 0..70), (1, 70..130)]);
        let choose = |size: usize| {
            let slots: Slots = (200..200 + size).collect();
            shares.choose(&slots, node.parts()).unwrap()
        };
        assert_eq!(choose(30), Choice { gpu: "GPU-0", waits: false });
        assert_eq!(choose(31), Choice { gpu: "GPU-1", waits: false });
        assert_eq!(choose(41), Choice { gpu: "GPU-2", waits: false });
    }

    #[test]
    fn a_container_for_which_no_gpu_has_room_waits_for_the_emptiest() {
        let shares = shares(2);
        let node = Node::new(&[(0, 0..56), (1, 100..154)]);
        let slots: Slots = (200..262).collect();
        assert_eq!(shares.choose(&slots, node.parts()), Ok(Choice { gpu: "GPU-1", waits: true }));
        assert_eq!(shares.lacking(&slots, "GPU-1", node.parts()), 16);
        let ended = Node::new(&[(0, 0..56)]);
        assert_eq!(shares.lacking(&slots, "GPU-1", ended.parts()), 0);
        // The room is for the container that waits: the next goes elsewhere.
        let mut waiting = Node::new(&[(0, 0..56)]);
        waiting.0.push(("GPU-1".to_owned(), slots, true));
        let next: Slots = (300..340).collect();
        assert_eq!(shares.choose(&next, waiting.parts()), Ok(Choice { gpu: "GPU-0", waits: false }));
    }

    #[test]
    fn a_container_that_waits_starts_on_any_gpu_with_room() {
        let shares = shares(2);
        let slots: Slots = (200..262).collect();
        let other: Slots = (300..350).collect();
        let all = ["GPU-0", "GPU-1"].map(String::from);
        let change_among = |among: &[String], containers: &[(usize, Range<usize>)]| {
            let running = Node::new(containers);
            let waiting = [("GPU-1", &slots), ("GPU-0", &other)];
            let waiting = waiting.map(|(gpu, slots)| Part { gpu, slots, waits: true, among });
            let parts: Vec<Part<'_>> = running.parts().chain(waiting).collect();
            shares
                .next_change(&parts)
                .map(|(place, choice)| (place - containers.len(), choice.gpu.to_owned(), choice.waits))
        };
        let change = |containers: &[(usize, Range<usize>)]| change_among(&all, containers);
        assert_eq!(change(&[(0, 0..56), (1, 100..154)]), None);
        assert_eq!(change(&[(1, 100..154)]), Some((0, "GPU-0".to_owned(), false)));
        // Another GPU lacks less now, but has no room yet.
        assert_eq!(change(&[(0, 0..50), (1, 100..154)]), Some((0, "GPU-0".to_owned(), true)));
        assert_eq!(change_among(&all[1..], &[(1, 100..154)]), None, "they lack the files of GPU-0");
    }

    #[test]
    fn a_container_may_have_the_devices_of_its_pods_init_container() {
        let shares = shares(2);
        let node = Node::new(&[(0, 0..20), (0, 20..50), (1, 100..190)]);
        let main: Slots = (0..20).chain(50..100).collect();
        assert_eq!(shares.choose(&main, node.parts()), Ok(Choice { gpu: "GPU-0", waits: false }));
    }

    #[test]
    fn the_kubelet_gets_what_it_must_and_any_others() {
        let shares = shares(2);
        let ids = |slots: Range<usize>| slots.collect::<Slots>().ids().into_iter().collect::<Vec<_>>();
        let none = BTreeSet::new();
        let got = shares.prefer(ids(0..70), ids(50..70), 60, &none, &none).unwrap();
        assert!(got.len() == 60 && ids(50..70).iter().all(|id| got.contains(id)), "{got:?}");
        let held: BTreeSet<String> = ids(0..40).into_iter().collect();
        let free = shares.prefer(ids(0..70), Vec::new(), 30, &held, &none).unwrap();
        assert!(free.iter().all(|id| !held.contains(id)), "devices of a record come last: {free:?}");
        let said = shares.prefer(ids(0..70), Vec::new(), 40, &none, &held).unwrap_err();
        assert!(said.contains("30 devices that no running container has"), "{said}");
        for size in [0, 101, usize::MAX] {
            let said = shares.prefer(ids(0..200), Vec::new(), size, &none, &none).unwrap_err();
            assert!(said.contains("deepres.dev/gpu"), "{said}");
        }
    }

    #[test]
    fn unknown_devices_and_too_many_are_for_no_container() {
        let shares = shares(1);
        let ids = |slots: Range<usize>| slots.collect::<Slots>().ids().into_iter().collect::<Vec<_>>();
        assert_eq!(shares.checked(&ids(3..33)).map(|slots| slots.count()), Ok(30));
        assert!(shares.checked(&ids(99..101)).unwrap_err().contains("share-0100"));
        assert!(shares.checked(&["GPU-1".to_owned()]).unwrap_err().contains("GPU-1"));
        assert!(shares.checked(&[]).unwrap_err().contains("between 1 and 100"));
    }
}
