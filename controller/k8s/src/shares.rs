//! The shares of a node's GPUs, as devices of the kubelet. Each device is a hundredth of some GPU.
//!
//! The scheduler counts the free devices of a node, and does not know GPUs. So a device belongs to no
//! GPU until a container has it, and the plugin publishes as many free devices as the GPU with the
//! most room has, *the hole*. What the scheduler then admits fits on the hole, in any sizes and order.
//!
//! The scheduler's view lags behind the list of devices by up to ten seconds, but it counts the devices
//! of a container that ends at once. For that time, it can admit a pod for which no GPU has room. Such
//! a container waits at its node until a GPU has room, and the pod does not fail. Two rules keep the
//! kubelet from refusing pods that are on their way:
//!
//! - Devices that become free stay healthy until it has been quiet on the node for a minute.
//! - More devices become healthy only a moment after the last allocation, because the containers of a
//!   pod get their devices one after the other.

use crate::api::{Device, HEALTHY, UNHEALTHY};
use deepres_abi::PPM;
use deepres_policy::placement::{GpuSet, Request, Room, Topology, place};
use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZero;

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

/// Devices, by their numbers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Slots(BTreeSet<usize>);

impl Slots {
    /// Returns the devices with these ids.
    ///
    /// # Errors
    /// The first text that is no id.
    pub fn of_ids<'a>(ids: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let slot = |id: &str| {
            let digits =
                id.strip_prefix(PREFIX).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
            digits.and_then(|digits| digits.parse().ok()).filter(|slot| *slot < MOST)
        };
        ids.into_iter().map(|id| slot(id).ok_or_else(|| id.to_owned())).collect::<Result<_, _>>().map(Self)
    }

    /// Returns the devices' ids.
    pub fn ids(&self) -> BTreeSet<String> {
        self.0.iter().map(|slot| id(*slot)).collect()
    }

    /// Returns the number of devices.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Reads the text that [`fmt::Display`] wrote.
    pub fn parse(text: &str) -> Option<Self> {
        let mut slots = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            if first > last || last >= MOST {
                return None;
            }
            slots.extend(first..=last);
        }
        Some(Self(slots))
    }
}

/// Writes ranges, for example `0-29,44`.
impl fmt::Display for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut slots = self.0.iter().copied().peekable();
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

impl FromIterator<usize> for Slots {
    fn from_iter<I: IntoIterator<Item = usize>>(slots: I) -> Self {
        Self(slots.into_iter().collect())
    }
}

impl FromIterator<Slots> for Slots {
    fn from_iter<I: IntoIterator<Item = Slots>>(parts: I) -> Self {
        Self(parts.into_iter().flat_map(|slots| slots.0).collect())
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
    /// Whether the container waits until the GPU has room.
    pub waits: bool,
}

/// The GPU that a container gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice<'a> {
    /// The GPU's UUID.
    pub gpu: &'a str,
    /// Whether the container has to wait until the GPU has room.
    pub waits: bool,
}

/// The shares of all GPUs of a node that are not set aside.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shares {
    gpus: Vec<String>,
    healthy: BTreeSet<usize>,
}

/// Returns the number of devices of containers on a GPU. An init container and a later container of
/// its pod, which never run together, may have the same devices.
fn load<'a>(gpu: &str, parts: impl Iterator<Item = Part<'a>>) -> BTreeSet<usize> {
    parts.filter(|part| part.gpu == gpu).flat_map(|part| part.slots.0.iter().copied()).collect()
}

impl Shares {
    /// Returns the shares of these GPUs. None is in use, and none is healthy yet.
    pub fn new(gpus: impl IntoIterator<Item = String>) -> Self {
        Self { gpus: gpus.into_iter().collect(), healthy: BTreeSet::new() }
    }

    /// Returns whether there are no GPUs.
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    fn count(&self) -> usize {
        self.gpus.len() * SHARES
    }

    /// Renews the health of the devices. `used` are the devices of all containers, and `parts` say on
    /// which GPUs. If `is_settled`, no pod is getting its devices now, and more devices may become
    /// healthy. If `is_quiet`, none has come or gone for a while, and devices may become unhealthy.
    pub fn observe<'a>(
        &mut self,
        used: &Slots,
        parts: impl Iterator<Item = Part<'a>> + Clone,
        is_settled: bool,
        is_quiet: bool,
    ) {
        let room = |gpu: &String| SHARES.saturating_sub(load(gpu, parts.clone()).len());
        let hole = self.gpus.iter().map(room).max().unwrap_or(0);
        let count = self.count();
        self.healthy.extend(used.0.iter().copied().filter(|slot| *slot < count));
        let is_free = |slot: &usize| !used.0.contains(slot);
        let open: Vec<usize> = self.healthy.iter().copied().filter(is_free).collect();
        if is_settled && open.len() < hole {
            let shut = (0..count).filter(|slot| is_free(slot) && !self.healthy.contains(slot));
            let more: Vec<usize> = shut.take(hole - open.len()).collect();
            self.healthy.extend(more);
        }
        if is_quiet {
            for slot in open.iter().skip(hole) {
                self.healthy.remove(slot);
            }
        }
    }

    /// Returns all shares as devices, with their health.
    pub fn devices(&self) -> Vec<Device> {
        let health = |slot| if self.healthy.contains(&slot) { HEALTHY } else { UNHEALTHY };
        (0..self.count()).map(|slot| Device { id: id(slot), health: health(slot).to_owned() }).collect()
    }

    /// Returns the devices with these ids, for one container.
    ///
    /// # Errors
    /// The reason for which no container can have these devices.
    pub fn checked(&self, ids: &[String]) -> Result<Slots, String> {
        let slots = Slots::of_ids(ids.iter().map(String::as_str));
        let slots = slots.map_err(|id| format!("this node has no device {id:?}"))?;
        if let Some(unknown) = slots.0.iter().find(|slot| **slot >= self.count()) {
            return Err(format!("this node has no device {:?}", id(*unknown)));
        }
        check_size(slots.count())?;
        Ok(slots)
    }

    /// Chooses `size` of the available devices for a container, among them those that it must get.
    /// Devices in no record (`held`) come first. The kubelet may offer devices that a container of
    /// which it has not told yet has.
    ///
    /// # Errors
    /// The reason for which no container can have so many devices.
    pub fn prefer(
        &self,
        available: Vec<String>,
        must: Vec<String>,
        size: usize,
        held: &BTreeSet<String>,
    ) -> Result<Vec<String>, String> {
        check_size(size)?;
        let rest = available.into_iter().filter(|id| !must.contains(id));
        let rest: BTreeSet<(bool, String)> = rest.map(|id| (held.contains(&id), id)).collect();
        let missing = size.saturating_sub(must.len());
        Ok(must.iter().cloned().chain(rest.into_iter().map(|(_, id)| id).take(missing)).collect())
    }

    /// Chooses the GPU for a container with these devices, beside the containers of `parts`. Of the GPUs
    /// with room, placement takes the fullest. Without room, the container waits for the emptiest.
    ///
    /// # Errors
    /// The node has no GPU.
    pub fn choose<'a>(
        &self,
        slots: &Slots,
        parts: impl Iterator<Item = Part<'a>> + Clone,
    ) -> Result<Choice<'_>, String> {
        let room = |gpu: &String| {
            let others = load(gpu, parts.clone());
            SHARES.saturating_sub(others.difference(&slots.0).count())
        };
        let rooms: Vec<usize> = self.gpus.iter().map(room).collect();
        let as_room = |room: &usize| Room { share_ppm: *room as u32 * SHARE_PPM, ..Room::default() };
        let request = Request {
            gpus: NonZero::<usize>::MIN,
            share_ppm: slots.count() as u32 * SHARE_PPM,
            memory_bytes: 0,
            among: GpuSet::first(self.gpus.len()),
        };
        let as_rooms: Vec<Room> = rooms.iter().map(as_room).collect();
        let placed = place(&Topology::unknown(self.gpus.len()), &as_rooms, &request);
        let fits = placed.ok().and_then(|placement| placement.gpus.iter().next());
        let emptiest = || (0..rooms.len()).rev().max_by_key(|gpu| rooms[*gpu]);
        let gpu = fits.or_else(emptiest).ok_or("this node has no GPU for shares")?;
        Ok(Choice { gpu: &self.gpus[gpu], waits: fits.is_none() })
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

/// Returns the room that a waiting container's GPU lacks, in shares; 0 if the container can start.
/// `before` are the containers that come before it: those that do not wait, and those that have waited
/// longer.
pub fn lacking<'a>(slots: &Slots, gpu: &str, before: impl Iterator<Item = Part<'a>>) -> usize {
    let others = load(gpu, before);
    others.union(&slots.0).count().saturating_sub(SHARES)
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
            self.0.iter().map(|(gpu, slots, waits)| Part { gpu, slots, waits: *waits })
        }

        fn used(&self) -> Slots {
            self.0.iter().flat_map(|(_, slots, _)| slots.0.iter().copied()).collect()
        }

        /// Returns the number of healthy devices after this node was observed.
        fn healthy(&self, shares: &mut Shares, is_settled: bool, is_quiet: bool) -> usize {
            shares.observe(&self.used(), self.parts(), is_settled, is_quiet);
            shares.devices().iter().filter(|device| device.health == HEALTHY).count()
        }
    }

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
        assert_eq!(Node::new(&[]).healthy(&mut shares, true, true), 100);
        let node = Node::new(&[(0, 0..60), (1, 100..160), (2, 200..250), (3, 300..360)]);
        assert_eq!(node.healthy(&mut shares, true, true), 230 + 50);
    }

    #[test]
    fn more_shares_become_healthy_once_a_pod_has_all_its_devices() {
        let mut shares = shares(2);
        Node::new(&[]).healthy(&mut shares, true, true);
        let node = Node::new(&[(0, 0..30)]);
        assert_eq!(node.healthy(&mut shares, false, false), 100);
        assert_eq!(node.healthy(&mut shares, true, false), 130);
    }

    #[test]
    fn freed_shares_stay_healthy_until_it_is_quiet() {
        let mut shares = shares(2);
        let full = Node::new(&[(0, 0..95), (1, 95..155), (1, 155..195)]);
        assert_eq!(full.healthy(&mut shares, true, true), 195 + 5);
        let ended = Node::new(&[(0, 0..95), (1, 155..195)]);
        assert_eq!(ended.healthy(&mut shares, true, false), 200, "the scheduler counts 65 free at once");
        assert_eq!(ended.healthy(&mut shares, true, true), 135 + 60);
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
        assert_eq!(lacking(&slots, "GPU-1", node.parts()), 16);
        let ended = Node::new(&[(0, 0..56)]);
        assert_eq!(lacking(&slots, "GPU-1", ended.parts()), 0);
        // The room is for the container that waits: the next goes elsewhere.
        let mut waiting = Node::new(&[(0, 0..56)]);
        waiting.0.push(("GPU-1".to_owned(), slots, true));
        let next: Slots = (300..340).collect();
        assert_eq!(shares.choose(&next, waiting.parts()), Ok(Choice { gpu: "GPU-0", waits: false }));
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
        let got = shares.prefer(ids(0..70), ids(50..70), 60, &BTreeSet::new()).unwrap();
        assert!(got.len() == 60 && ids(50..70).iter().all(|id| got.contains(id)), "{got:?}");
        let held: BTreeSet<String> = ids(0..40).into_iter().collect();
        let free = shares.prefer(ids(0..70), Vec::new(), 30, &held).unwrap();
        assert!(free.iter().all(|id| !held.contains(id)), "devices of a record come last: {free:?}");
        for size in [0, 101, usize::MAX] {
            let said = shares.prefer(ids(0..200), Vec::new(), size, &BTreeSet::new()).unwrap_err();
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
