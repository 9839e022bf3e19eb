//! A set of the GPUs of a machine.

use deepres_abi::MAX_GPUS;

/// A set of GPUs, by their places in the machine's list, which are below [`MAX_GPUS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GpuSet(u32);

const _: () = assert!(MAX_GPUS < u32::BITS as usize, "a set has a bit for each GPU");

impl GpuSet {
    /// The set without GPUs.
    pub const EMPTY: Self = Self(0);

    /// Returns the set of the first `count` GPUs.
    pub fn first(count: usize) -> Self {
        Self((1 << count.min(MAX_GPUS)) - 1)
    }

    /// Returns the set whose GPUs are the bits of `bits`, the first GPU in the lowest bit.
    pub fn from_bits(bits: u32) -> Self {
        Self(bits) & Self::first(MAX_GPUS)
    }

    /// Returns the number of GPUs in the set.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns whether the set has no GPU.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns whether the GPU is in the set.
    pub fn contains(self, gpu: usize) -> bool {
        self.0 >> gpu & 1 == 1
    }

    /// Returns whether all GPUs of this set are in `other`.
    pub fn is_within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// Returns the set with this GPU added.
    pub fn with(self, gpu: usize) -> Self {
        Self(self.0 | 1 << gpu)
    }

    /// Returns the set without the GPUs of `other`.
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the GPUs in the order of their places.
    pub fn iter(self) -> impl Iterator<Item = usize> + Clone {
        (0..MAX_GPUS).filter(move |gpu| self.contains(*gpu))
    }

    /// Returns the pairs of GPUs of the set, the lower place first.
    pub fn pairs(self) -> impl Iterator<Item = (usize, usize)> {
        self.iter().flat_map(move |a| self.iter().filter(move |b| a < *b).map(move |b| (a, b)))
    }
}

impl core::ops::BitAnd for GpuSet {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl core::ops::BitOr for GpuSet {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl FromIterator<usize> for GpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(gpus: I) -> Self {
        gpus.into_iter().fold(Self::EMPTY, Self::with)
    }
}
