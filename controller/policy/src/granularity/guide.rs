//! An estimate of the time that is left, by the places of the tenants in their iterations.
//!
//! The estimate cuts each iteration into slots of one length, and lets the tenants stop between any
//! two slots. Then the least time from each combination of places follows from those after it
//! (dynamic programming). Real kernels do not stop, so the estimate is a little too low.

use alloc::vec;
use alloc::vec::Vec;

use super::MOST_TENANTS;
use super::device::Mix;

/// The shortest slot, ns, and the growth of a slot until the combinations are few enough.
const LEAST_SLOT_NS: f64 = 1_000.0;
const GROWTH: f64 = 1.1;

/// The estimate of the time that is left, for each combination of places.
pub(super) struct Guide {
    slot_ns: f64,
    /// The number of slots of each tenant.
    slots: [usize; MOST_TENANTS],
    /// The time of a tenant's slots, as a part of the pauses and durations of its kernels. With
    /// several streams it is less than 1.
    scale: [f64; MOST_TENANTS],
    /// The time that is left from each combination of places, in slots.
    left: Vec<f32>,
}

impl Guide {
    /// Computes the estimate for a mix, from at most so many combinations of places. More take
    /// longer, and make the estimate more exact.
    pub fn new(mix: &Mix, most_cells: usize) -> Self {
        let mut sums_ns = [0.0; MOST_TENANTS];
        let mut lengths_ns = [0.0; MOST_TENANTS];
        for (tenant, kernels) in mix.tenants.iter().enumerate() {
            sums_ns[tenant] = kernels.iter().map(|work| work.pause_ns + work.duration_ns).sum();
            lengths_ns[tenant] = mix.alone_ns(tenant);
        }
        let of = |slot_ns: f64| {
            lengths_ns.map(|length_ns: f64| {
                let whole = (length_ns / slot_ns) as usize;
                whole + usize::from((whole as f64) < length_ns / slot_ns)
            })
        };
        let mut slot_ns = LEAST_SLOT_NS;
        let cells = |slot_ns: f64| of(slot_ns).iter().map(|slots| *slots as f64 + 1.0).product::<f64>();
        // A tenant has a slot at least, so that the combinations cannot become fewer than these.
        let most_cells = most_cells.max(1 << MOST_TENANTS) as f64;
        while cells(slot_ns) > most_cells {
            slot_ns *= GROWTH;
        }
        let slots = of(slot_ns);
        let scale = core::array::from_fn(|tenant| match sums_ns[tenant] > 0.0 {
            true => lengths_ns[tenant] / sums_ns[tenant],
            false => 0.0,
        });
        // The part of the SMs that each slot uses.
        let mut used: [Vec<f64>; MOST_TENANTS] = slots.map(|slots| vec![0.0; slots]);
        for (tenant, kernels) in mix.tenants.iter().enumerate() {
            let mut at = 0.0;
            for work in kernels {
                at += work.pause_ns * scale[tenant] / slot_ns;
                let length = work.duration_ns * scale[tenant] / slot_ns;
                let area = work.duration_ns * work.width / slot_ns;
                pour(&mut used[tenant], at, length, area);
                at += length;
            }
        }
        let mut guide = Self { slot_ns, slots, scale, left: Vec::new() };
        guide.fill(&used);
        guide
    }

    /// Returns the distance in `left` between neighbouring places of each tenant.
    fn strides(&self) -> [usize; MOST_TENANTS] {
        let mut strides = [1; MOST_TENANTS];
        for tenant in 1..MOST_TENANTS {
            strides[tenant] = strides[tenant - 1] * (self.slots[tenant - 1] + 1);
        }
        strides
    }

    fn fill(&mut self, used: &[Vec<f64>; MOST_TENANTS]) {
        let strides = self.strides();
        let cells = self.slots.iter().map(|slots| slots + 1).product();
        self.left = vec![0.0; cells];
        let mut places = self.slots;
        for cell in (0..cells - 1).rev() {
            // One cell back: the first tenant's place changes first.
            for (place, slots) in places.iter_mut().zip(self.slots) {
                if *place > 0 {
                    *place -= 1;
                    break;
                }
                *place = slots;
            }
            let mut least = f32::INFINITY;
            for set in 1..1_usize << MOST_TENANTS {
                let (mut sum, mut next, mut fits) = (0.0, cell, true);
                for tenant in (0..MOST_TENANTS).filter(|tenant| set >> tenant & 1 == 1) {
                    match used[tenant].get(places[tenant]) {
                        Some(part) => (sum, next) = (sum + part, next + strides[tenant]),
                        None => fits = false,
                    }
                }
                if fits {
                    least = least.min(sum.max(1.0) as f32 + self.left[next]);
                }
            }
            self.left[cell] = least;
        }
    }

    /// Returns the estimated time that is left, ns, if so much of each tenant's pauses and
    /// durations is over, ns.
    pub fn left_ns(&self, past_ns: [f64; MOST_TENANTS]) -> f64 {
        let strides = self.strides();
        let mut cell = 0;
        let mut beyond = [0.0; MOST_TENANTS];
        for tenant in 0..MOST_TENANTS {
            let at = (past_ns[tenant] * self.scale[tenant] / self.slot_ns).max(0.0);
            let place = (at as usize).min(self.slots[tenant]);
            cell += place * strides[tenant];
            if place < self.slots[tenant] {
                beyond[tenant] = at - place as f64;
            }
        }
        let mut left = 0.0;
        for set in 0..1_usize << MOST_TENANTS {
            let (mut weight, mut corner) = (1.0, cell);
            for tenant in 0..MOST_TENANTS {
                if set >> tenant & 1 == 1 {
                    weight *= beyond[tenant];
                    corner += strides[tenant];
                } else {
                    weight *= 1.0 - beyond[tenant];
                }
            }
            if weight > 0.0 {
                left += weight * f64::from(self.left[corner]);
            }
        }
        left * self.slot_ns
    }
}

/// Adds an area to the slots from `at` on, evenly over this length, in slots.
fn pour(slots: &mut [f64], at: f64, length: f64, area: f64) {
    let end = at + length;
    let mut from = at;
    while from < end {
        let slot = (from as usize).min(slots.len() - 1);
        let is_last = slot == slots.len() - 1;
        let to = if is_last { end } else { end.min(slot as f64 + 1.0) };
        slots[slot] += area * (to - from) / length;
        if to <= from {
            break;
        }
        from = to;
    }
}
