//! A cap is a user's, however many tenants the user makes of it: what each of them may have of it.
//!
//! Who asked first keeps what it asked for. What was asked later is given as far as something is left, and what nobody asked for is split evenly among
//! those tenants that are not above the cap by an administrator's word.

use crate::config::Caps;
use deepres_abi::PPM;
use deepres_abi::grant::NO_LIMIT;
use deepres_abi::quantity::MIN_SHARE_PPM;
use serde::{Deserialize, Serialize};

/// What a tenant wants of one of its user's caps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// It asked for so much.
    Asked(u64),
    /// It asked for nothing, and takes what it can get.
    Rest,
    /// An administrator said what it has: caps do not bind it, and what it has is not the user's doing.
    Above,
}

/// What a tenant wants, of each cap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wants {
    /// Share, parts per million.
    pub share: Want,
    /// Memory, bytes.
    pub memory: Want,
}

/// What a tenant may have of its user's caps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The most of what it asks for as its own share, parts per million.
    pub share_ppm: u32,
    /// The most that it can be owed, whatever others leave, parts per million.
    pub cap_ppm: u32,
    /// Memory on each GPU, bytes.
    pub memory_bytes: u64,
}

impl Part {
    /// The part of a tenant that is its user's only one.
    pub fn whole(caps: &Caps) -> Self {
        Self { share_ppm: caps.share_ppm, cap_ppm: caps.share_ppm, memory_bytes: caps.memory_bytes }
    }

    /// The greater of both, value by value.
    pub fn max(self, other: Self) -> Self {
        Self {
            share_ppm: self.share_ppm.max(other.share_ppm),
            cap_ppm: self.cap_ppm.max(other.cap_ppm),
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
        }
    }

    /// The lesser of both, value by value.
    pub fn min(self, other: Self) -> Self {
        Self {
            share_ppm: self.share_ppm.min(other.share_ppm),
            cap_ppm: self.cap_ppm.min(other.cap_ppm),
            memory_bytes: self.memory_bytes.min(other.memory_bytes),
        }
    }

    /// The part of the tenant at `own` among all of its user's, in the order in which they asked. Nobody is left without anything to run on: a share is
    /// the least that there is, at least.
    pub fn of(own: usize, wants: &[Wants], caps: &Caps) -> Self {
        let mut part = Self::whole(caps);
        if caps.share_ppm < PPM {
            let shares = || wants.iter().map(|wants| wants.share);
            let split = split(own, shares, u64::from(caps.share_ppm));
            let least = u64::from(MIN_SHARE_PPM);
            let ppm = |ppm: u64| u32::try_from(ppm.max(least)).unwrap_or(PPM).min(caps.share_ppm);
            part.share_ppm = ppm(split.left);
            part.cap_ppm = ppm(split.had.saturating_add(split.rest));
        }
        if caps.memory_bytes != NO_LIMIT {
            let split = split(own, || wants.iter().map(|wants| wants.memory), caps.memory_bytes);
            let is_asked = wants.get(own).is_some_and(|wants| matches!(wants.memory, Want::Asked(_)));
            // What is split among those who asked for nothing is theirs alone: who asked has its limit.
            part.memory_bytes = if is_asked { split.left } else { split.rest_of_unasked };
        }
        part
    }
}

/// A cap as one tenant sees it.
struct Split {
    /// What those before it left.
    left: u64,
    /// What it has of what it asked for.
    had: u64,
    /// Its part of what nobody asked for, if all have one.
    rest: u64,
    /// The same, if only those have one who asked for nothing.
    rest_of_unasked: u64,
}

fn split<I: Iterator<Item = Want>>(own: usize, wants: impl Fn() -> I, cap: u64) -> Split {
    let mut split = Split { left: cap, had: 0, rest: 0, rest_of_unasked: 0 };
    let mut left = cap;
    for (at, want) in wants().enumerate() {
        let Want::Asked(asked) = want else { continue };
        let had = asked.min(left);
        if at == own {
            (split.left, split.had) = (left, had);
        }
        left -= had;
    }
    if wants().nth(own) == Some(Want::Rest) {
        split.left = left;
    }
    let count = |of: fn(&Want) -> bool| wants().filter(of).count().max(1) as u64;
    split.rest = left / count(|want| *want != Want::Above);
    split.rest_of_unasked = left / count(|want| *want == Want::Rest);
    split
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::class::Class;

    const CAPS: Caps = Caps { share_ppm: 500_000, memory_bytes: 1_000, class: Class::Fair, ..Caps::NONE };

    fn wants(share: Want, memory: Want) -> Wants {
        Wants { share, memory }
    }

    fn parts(wants: &[Wants]) -> Vec<(u32, u32, u64)> {
        let part = |own| Part::of(own, wants, &CAPS);
        (0..wants.len()).map(part).map(|part| (part.share_ppm, part.cap_ppm, part.memory_bytes)).collect()
    }

    #[test]
    fn one_tenant_has_the_whole_cap() {
        for want in [Want::Rest, Want::Above] {
            assert_eq!(parts(&[wants(want, want)]), [(500_000, 500_000, 1_000)]);
        }
        let asked = wants(Want::Asked(200_000), Want::Asked(300));
        assert_eq!(parts(&[asked]), [(500_000, 500_000, 1_000)], "and may raise what it asks for");
        assert_eq!(
            Part::of(0, &[asked, asked], &Caps::NONE),
            Part::whole(&Caps::NONE),
            "no cap, nothing to split"
        );
    }

    #[test]
    fn who_asked_first_keeps_it_and_who_comes_later_has_what_is_left() {
        let asked = wants(Want::Asked(300_000), Want::Asked(700));
        assert_eq!(
            parts(&[asked, asked, asked]),
            [(500_000, 300_000, 1_000), (200_000, 200_000, 300), (10_000, 10_000, 0)]
        );
    }

    #[test]
    fn what_nobody_asked_for_is_split_evenly() {
        let rest = wants(Want::Rest, Want::Rest);
        assert_eq!(parts(&[rest; 10]).iter().map(|part| part.1).sum::<u32>(), 500_000);
        assert_eq!(parts(&[rest; 10]).iter().map(|part| part.2).sum::<u64>(), 1_000);
        let asked = wants(Want::Asked(300_000), Want::Asked(400));
        let above = wants(Want::Above, Want::Above);
        assert_eq!(
            parts(&[rest, asked, above, rest]).iter().map(|part| (part.1, part.2)).collect::<Vec<_>>(),
            [(66_666, 300), (366_666, 1_000), (66_666, 300), (66_666, 300)],
            "what an administrator set is beside the cap"
        );
    }
}
