//! The bandwidth between two GPUs, in one direction. All policies of the evaluation use this table.
//!
//! The values of NVLink and of [`Level::Pix`] are those by which NCCL plans its rings
//! (NVIDIA/nccl, `src/graph/topo.h`). NCCL's values are what a copy reaches, not the data sheet's.
//! For 18 links of generation 4, 371 to 377 GB/s were measured (NVIDIA/nccl issue 1264), which is
//! 20.6 to 20.9 GB/s a link.
//!
//! The values of PCI Express are for generation 3 with 16 lanes. Each later generation doubles them
//! all, and a machine has only one generation. So placement needs only the ratio of the values.

use super::topology::Level;

/// Bandwidth of one NVLink, MB/s, by generation: `SM60_NVLINK_BW`, `SM70_…`, `SM80_…`, `SM90_…`
/// and `SM100_NVLINK_BW` of NCCL.
const NVLINK_MB_S: [u32; 5] = [18_000, 20_000, 20_000, 20_600, 40_100];

/// Bandwidth of copies from GPU to GPU over PCI Express, MB/s, by [`Level`].
///
/// - Behind a PCI Express switch, the GPU's own lanes are the limit (`PCI_BW` of NCCL). On a
///   machine with two rows of switches the limit is the same.
/// - Over the processor, copies take 6/5 of the lanes' bandwidth (`INTEL_P2P_OVERHEAD` of NCCL).
/// - From one processor to the other, copies reach nine tenths of what they reach within a
///   processor. The 6 GPUs of the matrix `6gpu-pix-node-sys-measured` reach 46 to 50 GB/s across,
///   and 52 to 55 GB/s within.
const PCI_MB_S: [(Level, u32); 6] = [
    (Level::Board, 12_000),
    (Level::Pix, 12_000),
    (Level::Pxb, 12_000),
    (Level::Phb, 10_000),
    (Level::Node, 10_000),
    (Level::System, 9_000),
];

/// Bandwidth between GPUs that cannot copy to each other directly, MB/s. Without direct copies,
/// data goes through the host's memory, and keeps the processor busy.
pub const WITHOUT_P2P_MB_S: u32 = 0;

/// Returns the bandwidth of `links` NVLinks of a generation, MB/s. For an unknown newer generation,
/// the function takes the last known one, and for 0 the first.
pub fn nvlink_mb_s(generation: u8, links: u8) -> u32 {
    let known = usize::from(generation).clamp(1, NVLINK_MB_S.len());
    NVLINK_MB_S[known - 1] * u32::from(links)
}

/// Returns the bandwidth over PCI Express between two GPUs with this common ancestor, MB/s.
pub fn pci_mb_s(level: Level) -> u32 {
    let found = PCI_MB_S.iter().find(|(of, _)| *of == level);
    found.map_or(WITHOUT_P2P_MB_S, |(_, mb_s)| *mb_s)
}
