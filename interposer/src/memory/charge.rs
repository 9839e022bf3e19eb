//! The charging rule: the amount of memory for which an allocation counts. All accounts use this
//! rule.
//!
//! The driver hands out device memory in blocks of [`BLOCK_BYTES`]. The driver serves small
//! requests from shared blocks, in units of [`UNIT_BYTES`]. A larger request gets blocks of its
//! own. The interposer charges whole blocks.

/// The size of a block: the amount that the driver takes from the device at a time, bytes.
pub const BLOCK_BYTES: u64 = 2 << 20;
/// The unit to which the driver rounds a small allocation inside a shared block, bytes.
pub const UNIT_BYTES: u64 = 512;
/// The largest request from shared blocks, bytes. Larger requests get blocks of their own.
pub const SHARED_MAX_BYTES: u64 = BLOCK_BYTES / 2;
/// The smallest alignment of the rows of pitched memory, bytes.
pub const PITCH_BYTES: u64 = 512;

/// Returns the charge for memory in blocks of its own, or in blocks that all belong to one owner,
/// bytes.
pub fn blocks(bytes: u64) -> u64 {
    round_up(bytes, BLOCK_BYTES)
}

/// Returns the unused part of a limit, in whole blocks, bytes. A job can allocate this amount at
/// once.
pub fn left(limit_bytes: u64, held_bytes: u64) -> u64 {
    let left_bytes = limit_bytes.saturating_sub(held_bytes);
    left_bytes - left_bytes % BLOCK_BYTES
}

/// Returns the charge for managed memory, bytes. Managed memory is in the host's memory until the
/// GPU uses it.
pub fn managed(bytes: u64) -> u64 {
    let unit = if bytes <= SHARED_MAX_BYTES { UNIT_BYTES } else { BLOCK_BYTES };
    round_up(bytes, unit)
}

/// Returns the distance between rows of `width` bytes, bytes, for memory whose layout deepres
/// chooses.
pub fn pitch(width: u64) -> u64 {
    round_up(width, PITCH_BYTES)
}

/// Returns the bytes to reserve for rows of `width` bytes, before the driver has said how far apart
/// the rows will be.
pub fn pitched(width: u64, rows: u64) -> u64 {
    pitch(width).saturating_mul(rows)
}

/// Returns the charge for an array, bytes. Each row begins at a multiple of the pitch, as in
/// pitched memory. The array counts for blocks of its own, because no call returns its address. The
/// charge leaves out the padding by the GPU's tiling, because its size is unknown.
pub fn array(shape: Shape, levels: u32) -> u64 {
    let mut bytes = 0_u64;
    let halved = |extent: u64, level: u32| (extent.checked_shr(level).unwrap_or(0)).max(1);
    // Once every extent is 1, the driver makes no further levels.
    let longest = shape.width.max(shape.height).max(if shape.is_layered { 0 } else { shape.depth });
    for level in 0..levels.clamp(1, longest.max(1).ilog2() + 1) {
        // Each level has half the depth of the level before. The number of layers stays the same.
        let depth = if shape.is_layered { shape.depth.max(1) } else { halved(shape.depth, level) };
        let row_bits = halved(shape.width, level).saturating_mul(shape.texel_bits);
        let pitch = round_up(row_bits.div_ceil(u64::from(u8::BITS)), PITCH_BYTES);
        let rows = halved(shape.height, level).saturating_mul(depth);
        bytes = bytes.saturating_add(pitch.saturating_mul(rows));
    }
    blocks(bytes)
}

/// The dimensions of an array. If the array lacks a dimension, its extent is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The number of elements in a row.
    pub width: u64,
    /// The number of rows.
    pub height: u64,
    /// The number of slices or layers.
    pub depth: u64,
    /// Whether `depth` counts layers, such as the faces of a cube map.
    pub is_layered: bool,
    /// Whether the array has no memory until the job maps memory into it.
    pub is_unbacked: bool,
    /// The number of bits of an element, all channels together.
    pub texel_bits: u64,
}

fn round_up(bytes: u64, unit: u64) -> u64 {
    bytes.checked_next_multiple_of(unit).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_counts_for_whole_blocks_and_small_managed_memory_for_units() {
        assert_eq!(blocks(1), BLOCK_BYTES);
        assert_eq!(blocks(BLOCK_BYTES + 1), 2 * BLOCK_BYTES);
        assert_eq!(blocks(u64::MAX), u64::MAX);
        assert_eq!(managed(1), 512);
        assert_eq!(managed(SHARED_MAX_BYTES), SHARED_MAX_BYTES);
        assert_eq!(managed(SHARED_MAX_BYTES + 1), BLOCK_BYTES);
        assert_eq!(left(5 * BLOCK_BYTES + 1, BLOCK_BYTES), 4 * BLOCK_BYTES);
        assert_eq!(left(5 * BLOCK_BYTES, BLOCK_BYTES + UNIT_BYTES), 3 * BLOCK_BYTES);
        assert_eq!(left(1, 2), 0);
        assert_eq!(pitched(1, 4), 2048);
        assert_eq!(pitched(u64::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn arrays_count_for_their_rows_and_mipmaps_for_every_level() {
        let shape = Shape {
            width: 1,
            height: 65_535,
            depth: 0,
            is_layered: false,
            is_unbacked: false,
            texel_bits: 32,
        };
        assert_eq!(array(shape, 1), 32 << 20, "every row begins at a pitch");
        let shape = Shape { width: 1024, height: 1024, ..shape };
        assert_eq!(array(shape, 1), 4 << 20);
        assert_eq!(
            array(shape, 2),
            (4 << 20) + (2 << 20),
            "and half the rows of half the length, in whole blocks"
        );
        let layered = Shape { depth: 6, is_layered: true, ..shape };
        assert_eq!(array(layered, 2), 6 * ((4 << 20) + (1 << 20)));
        let flat = Shape { width: 4, height: 4096, ..shape };
        assert_eq!(array(flat, 40), array(flat, 13), "no level is left after the one of a single element");
        let solid = Shape { depth: 4, ..shape };
        assert_eq!(array(solid, 2), 4 * (4 << 20) + 2 * (1 << 20));
        let endless = Shape {
            width: u64::MAX,
            height: u64::MAX,
            depth: 2,
            is_layered: false,
            is_unbacked: false,
            texel_bits: 128,
        };
        assert!(array(endless, 64) > 1 << 60);
    }
}
