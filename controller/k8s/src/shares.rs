//! The shares of a node's GPUs, as devices of the kubelet. Each share is a hundredth of a GPU.
//!
//! The scheduler counts the free shares of a node, and does not know GPUs. So the plugin publishes as
//! healthy the shares in use, and of the free shares only those of one GPU, *the hole*: the GPU with
//! the most free shares. Whatever the scheduler then admits fits on the hole, in any sizes and order.
//!
//! The scheduler's view lags by up to ten seconds behind the list of devices. Two rules keep pods that
//! are on their way from failing:
//!
//! - The hole changes only to a GPU with more free shares, so everything that was admitted for the old
//!   hole fits on the new.
//! - For a while after each allocation the list stays as it is, except for shares that come into use.
//!   A pod's containers get their devices one after the other, and shares that have just become free
//!   stay usable for a pod that the scheduler admits because of them.

use crate::api::{Device, HEALTHY, UNHEALTHY};
use deepres_abi::PPM;
use deepres_policy::placement::{GpuSet, Request, Room, Topology, place};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::num::NonZero;

/// The number of shares of a GPU.
pub const SHARES: usize = 100;
/// The resource of shares.
pub const SHARE_RESOURCE: &str = "deepres.dev/share";
/// The resource of whole GPUs.
pub const GPU_RESOURCE: &str = "deepres.dev/gpu";
/// The text between a GPU's UUID and the number of a share, in a device's id.
const SEPARATOR: &str = "::";
/// The share of a GPU's time that one device stands for, parts per million.
pub const SHARE_PPM: u32 = PPM / SHARES as u32;

/// Shares of one GPU, as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Slots(u128);

impl Slots {
    /// All shares of a GPU.
    pub const ALL: Self = Self((1 << SHARES) - 1);

    /// Returns the number of shares.
    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns these shares without those of `other`.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the shares of both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the numbers of the shares.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..SHARES).filter(move |slot| self.0 >> slot & 1 == 1)
    }

    /// Reads the text that [`std::fmt::Display`] wrote.
    pub fn parse(text: &str) -> Option<Self> {
        let mut slots = Self::default();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            if first > last || last >= SHARES {
                return None;
            }
            slots = (first..=last).fold(slots, |slots, slot| Self(slots.0 | 1 << slot));
        }
        Some(slots)
    }
}

/// Writes ranges, for example `0-29,44`.
impl std::fmt::Display for Slots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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

impl FromIterator<usize> for Slots {
    fn from_iter<I: IntoIterator<Item = usize>>(slots: I) -> Self {
        Self(slots.into_iter().filter(|slot| *slot < SHARES).fold(0, |bits, slot| bits | 1 << slot))
    }
}

/// Returns the id of a share as a device.
fn id(uuid: &str, slot: usize) -> String {
    format!("{uuid}{SEPARATOR}{slot:02}")
}

/// Returns the ids of shares of a GPU as devices.
pub fn ids(uuid: &str, slots: Slots) -> BTreeSet<String> {
    slots.iter().map(|slot| id(uuid, slot)).collect()
}

/// A GPU whose shares are devices.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Gpu {
    uuid: String,
    /// The shares that containers have.
    used: Slots,
    /// The shares that are healthy without being in use.
    open: Slots,
}

/// The shares of all GPUs of a node that are not set aside.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shares {
    gpus: Vec<Gpu>,
    hole: Option<usize>,
}

impl Shares {
    /// Returns the shares of these GPUs. None is in use.
    pub fn new(uuids: impl IntoIterator<Item = String>) -> Self {
        let gpu = |uuid| Gpu { uuid, used: Slots::default(), open: Slots::default() };
        let mut shares = Self { gpus: uuids.into_iter().map(gpu).collect(), hole: None };
        shares.settle();
        shares
    }

    /// Returns whether there are no GPUs.
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// Records which devices containers have. If `is_settled`, no pod is getting its devices now, and
    /// the hole may change.
    pub fn observe<'a>(&mut self, used: impl IntoIterator<Item = &'a str>, is_settled: bool) {
        let mut now = vec![Slots::default(); self.gpus.len()];
        for (gpu, slot) in used.into_iter().filter_map(|id| self.find(id)) {
            now[gpu] = now[gpu].with([slot].into_iter().collect());
        }
        for (gpu, now) in self.gpus.iter_mut().zip(now) {
            gpu.open = gpu.open.with(gpu.used.without(now));
            gpu.used = now;
        }
        if is_settled {
            self.settle();
        }
    }

    /// Chooses the hole, and withdraws the free shares of all other GPUs.
    fn settle(&mut self) {
        let free = |gpu: usize| Slots::ALL.without(self.gpus[gpu].used).count();
        let best = (0..self.gpus.len()).rev().max_by_key(|gpu| (free(*gpu), self.hole == Some(*gpu)));
        self.hole = best;
        for (number, gpu) in self.gpus.iter_mut().enumerate() {
            gpu.open = if best == Some(number) { Slots::ALL.without(gpu.used) } else { Slots::default() };
        }
    }

    /// Returns all shares as devices, with their health.
    pub fn devices(&self) -> Vec<Device> {
        let device = |gpu: &Gpu, slot: usize| {
            let healthy = gpu.used.with(gpu.open);
            let health = if healthy.0 >> slot & 1 == 1 { HEALTHY } else { UNHEALTHY };
            Device { id: id(&gpu.uuid, slot), health: health.to_owned() }
        };
        self.gpus.iter().flat_map(|gpu| (0..SHARES).map(move |slot| device(gpu, slot))).collect()
    }

    /// Returns the number of a device's GPU, and the number of the share.
    fn find(&self, id: &str) -> Option<(usize, usize)> {
        let (uuid, slot) = id.rsplit_once(SEPARATOR)?;
        let slot = slot.parse().ok().filter(|slot| *slot < SHARES)?;
        Some((self.gpus.iter().position(|gpu| gpu.uuid == uuid)?, slot))
    }

    /// Returns the GPU and the shares of devices that a container gets.
    ///
    /// # Errors
    /// The reason for which no container can have these devices together.
    pub fn one_gpu<'a>(&self, ids: impl IntoIterator<Item = &'a str>) -> Result<(&str, Slots), String> {
        let mut of_gpu = vec![Slots::default(); self.gpus.len()];
        for id in ids {
            let (gpu, slot) = self.find(id).ok_or_else(|| format!("this node has no device {id:?}"))?;
            of_gpu[gpu] = of_gpu[gpu].with([slot].into_iter().collect());
        }
        let mut used = self.gpus.iter().zip(of_gpu).filter(|(_, slots)| slots.count() > 0);
        let (gpu, slots) = used.next().ok_or("the kubelet named no devices")?;
        match used.next() {
            None => Ok((&gpu.uuid, slots)),
            Some((other, others)) => Err(format!(
                "the devices are {} shares of GPU {} and {} of GPU {}, but a container gets its shares from one GPU",
                slots.count(),
                gpu.uuid,
                others.count(),
                other.uuid
            )),
        }
    }

    /// Chooses `size` of the available devices for a container, all on one GPU, among them those that
    /// the container must get. Of the GPUs with room, placement takes the fullest.
    ///
    /// # Errors
    /// The reason for which no GPU has room.
    pub fn prefer(&self, available: &[String], must: &[String], size: usize) -> Result<Vec<String>, String> {
        let count = NonZero::new(size).filter(|size| size.get() <= SHARES).ok_or_else(|| {
            format!(
                "a container gets between 1 and {SHARES} of {SHARE_RESOURCE}, the shares of one GPU, not {size}; ask for {GPU_RESOURCE} to get whole GPUs"
            )
        })?;
        let mut free = vec![Slots::default(); self.gpus.len()];
        for (gpu, slot) in available.iter().filter_map(|id| self.find(id)) {
            free[gpu] = free[gpu].with([slot].into_iter().collect());
        }
        let rooms: Vec<Room> = free
            .iter()
            .map(|slots| Room { share_ppm: slots.count() as u32 * SHARE_PPM, ..Room::default() })
            .collect();
        let (must, among) = if must.is_empty() {
            (Slots::default(), GpuSet::first(self.gpus.len()))
        } else {
            let (uuid, slots) = self.one_gpu(must.iter().map(String::as_str))?;
            (slots, self.gpus.iter().position(|gpu| gpu.uuid == uuid).into_iter().collect())
        };
        let request = Request {
            gpus: NonZero::<usize>::MIN,
            share_ppm: count.get() as u32 * SHARE_PPM,
            memory_bytes: 0,
            among,
        };
        let placed = place(&Topology::unknown(self.gpus.len()), &rooms, &request);
        let Some(gpu) = placed.ok().and_then(|placement| placement.gpus.iter().next()) else {
            let mut reason = format!("no GPU has {size} free shares:");
            for (gpu, slots) in among.iter().map(|gpu| (&self.gpus[gpu].uuid, free[gpu])) {
                // Writing to a text cannot fail.
                let _ = write!(reason, " {gpu} has {},", slots.count());
            }
            if must.count() > 0 {
                reason.push_str(" and an earlier container of the pod has its shares there,");
            }
            reason.push_str(" and a container gets its shares from one GPU; start the pod again");
            return Err(reason);
        };
        let rest = free[gpu].without(must).iter().take(size - must.count().min(size));
        let chosen = must.with(rest.collect());
        Ok(ids(&self.gpus[gpu].uuid, chosen).into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(gpus: usize) -> Shares {
        Shares::new((0..gpus).map(|gpu| format!("GPU-{gpu}")))
    }

    fn take(gpu: usize, slots: std::ops::Range<usize>) -> Vec<String> {
        ids(&format!("GPU-{gpu}"), slots.collect()).into_iter().collect()
    }

    fn observe(shares: &mut Shares, used: &[Vec<String>], is_settled: bool) {
        shares.observe(used.iter().flatten().map(String::as_str), is_settled);
    }

    /// Returns the number of healthy devices of each GPU.
    fn healthy(shares: &Shares) -> Vec<usize> {
        let devices = shares.devices();
        let of = |gpu: usize| {
            let uuid = format!("GPU-{gpu}::");
            let healthy = |device: &&Device| device.health == HEALTHY && device.id.starts_with(&uuid);
            devices.iter().filter(healthy).count()
        };
        (0..shares.gpus.len()).map(of).collect()
    }

    #[test]
    fn slots_are_read_as_they_are_written() {
        for (slots, text) in [(vec![0], "0"), ((0..30).chain([44]).collect(), "0-29,44"), (vec![98, 99], "98-99")]
        {
            let slots: Slots = slots.into_iter().collect();
            assert_eq!((slots.to_string().as_str(), Slots::parse(text)), (text, Some(slots)));
        }
        for garbage in ["", "100", "3-1", "a", "1,", "0-100", "-1"] {
            assert_eq!(Slots::parse(garbage), None, "{garbage}");
        }
        assert_eq!(Slots::ALL.count(), SHARES);
    }

    #[test]
    fn an_id_is_short_enough_for_the_kubelet() {
        let longest = id("GPU-00000000-0000-0000-0000-000000000000", 99);
        assert!(longest.len() <= 63, "{longest}");
    }

    #[test]
    fn of_the_free_shares_only_those_of_the_emptiest_gpu_are_healthy() {
        let mut shares = shares(4);
        assert_eq!(healthy(&shares), [100, 0, 0, 0]);
        let used = [take(0, 0..60), take(1, 0..60), take(2, 0..50), take(3, 0..60)];
        observe(&mut shares, &used, true);
        assert_eq!(healthy(&shares), [60, 60, 100, 60]);
    }

    #[test]
    fn the_hole_stays_until_another_gpu_has_more_free_and_no_pod_is_on_its_way() {
        let mut shares = shares(2);
        observe(&mut shares, &[take(0, 0..10)], false);
        assert_eq!(healthy(&shares), [100, 0], "the next container of the pod may need the rest");
        observe(&mut shares, &[take(0, 0..10)], true);
        assert_eq!(healthy(&shares), [10, 100]);
        observe(&mut shares, &[take(0, 0..10), take(1, 0..10)], true);
        assert_eq!(healthy(&shares), [10, 100], "an equal GPU is no reason");
    }

    #[test]
    fn shares_that_become_free_while_a_pod_is_on_its_way_stay_healthy() {
        let mut shares = shares(2);
        observe(&mut shares, &[take(0, 0..95), take(1, 0..60)], true);
        assert_eq!(healthy(&shares), [95, 100]);
        observe(&mut shares, &[take(0, 0..95), take(1, 0..100)], false);
        observe(&mut shares, &[take(1, 0..100)], false);
        assert_eq!(healthy(&shares), [95, 100]);
        observe(&mut shares, &[take(1, 0..100)], true);
        assert_eq!(healthy(&shares), [100, 100]);
    }

    #[test]
    fn a_container_gets_its_shares_from_the_fullest_gpu_with_room() {
        let shares = shares(3);
        let available = [take(0, 0..30), take(1, 40..80), take(2, 0..100)].concat();
        let prefer = |size| shares.prefer(&available, &[], size).unwrap();
        assert_eq!(prefer(30), take(0, 0..30));
        assert_eq!(prefer(31), take(1, 40..71));
        assert_eq!(prefer(41), take(2, 0..41));
    }

    #[test]
    fn a_container_gets_what_it_must_get_and_the_rest_from_the_same_gpu() {
        let shares = shares(2);
        let must = take(0, 50..70);
        let available = [take(0, 0..70), take(1, 0..100)].concat();
        let got = shares.prefer(&available, &must, 60).unwrap();
        assert_eq!(got.len(), 60);
        assert!(must.iter().all(|id| got.contains(id)) && got.iter().all(|id| id.starts_with("GPU-0")));
        assert_eq!(shares.prefer(&available, &must, 10).unwrap(), must, "the kubelet takes what it needs");
        let said = shares.prefer(&available, &must, 80).unwrap_err();
        assert!(said.contains("GPU-0 has 70") && said.contains("an earlier container"), "{said}");
        let both = [take(0, 0..1), take(1, 0..1)].concat();
        assert!(shares.prefer(&available, &both, 10).unwrap_err().contains("one GPU"));
    }

    #[test]
    fn a_container_that_no_gpu_has_room_for_is_told_what_is_free() {
        let shares = shares(2);
        let available = [take(0, 0..40), take(1, 0..50)].concat();
        let said = shares.prefer(&available, &[], 60).unwrap_err();
        assert!(said.contains("no GPU has 60") && said.contains("GPU-0 has 40") && said.contains("GPU-1 has 50"));
        for size in [0, 101, usize::MAX] {
            assert!(shares.prefer(&available, &[], size).unwrap_err().contains("deepres.dev/gpu"), "{size}");
        }
    }

    #[test]
    fn devices_of_two_gpus_and_unknown_devices_are_for_no_container() {
        let shares = shares(2);
        let one_gpu = |ids: &[String]| {
            let (uuid, slots) = shares.one_gpu(ids.iter().map(String::as_str))?;
            Ok::<_, String>((uuid.to_owned(), slots.count()))
        };
        assert_eq!(one_gpu(&take(1, 3..33)), Ok(("GPU-1".to_owned(), 30)));
        assert!(one_gpu(&[take(0, 0..20), take(1, 0..60)].concat()).unwrap_err().contains("20 shares of GPU GPU-0"));
        for unknown in ["GPU-2::00", "GPU-0::100", "GPU-0", "", "GPU-0::-1"] {
            assert!(one_gpu(&[unknown.to_owned()]).is_err(), "{unknown}");
        }
        assert!(one_gpu(&[]).is_err());
    }
}
