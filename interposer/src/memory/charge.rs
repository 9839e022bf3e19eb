//! The charging rule: what an allocation counts for. Every account goes by it, so it stands here alone.
//!
//! The driver hands out device memory in blocks of [`BLOCK_BYTES`]. It serves small requests from shared blocks, in units of [`UNIT_BYTES`],
//! and larger ones from blocks of their own. So a request up to half a block counts for whole units, and any other for whole blocks.

/// What the driver takes from the device at a time.
pub const BLOCK_BYTES: u64 = 2 << 20;
/// What a small allocation is rounded to inside a shared block.
pub const UNIT_BYTES: u64 = 512;
/// Requests larger than this get blocks of their own.
pub const SHARED_MAX_BYTES: u64 = BLOCK_BYTES / 2;
/// Rows of pitched memory begin at multiples of this, at least.
pub const PITCH_BYTES: u64 = 512;

/// Linear memory: `cuMemAlloc`, managed memory, and memory from pools.
pub fn linear(bytes: u64) -> u64 {
    let unit = if bytes <= SHARED_MAX_BYTES { UNIT_BYTES } else { BLOCK_BYTES };
    round_up(bytes, unit)
}

/// Physical memory by `cuMemCreate`, which accepts whole blocks only.
pub fn physical(bytes: u64) -> u64 {
    round_up(bytes, BLOCK_BYTES)
}

/// Rows of `width` bytes before the driver has said how far apart it will put them.
pub fn pitched(width: u64, rows: u64) -> u64 {
    linear(round_up(width, PITCH_BYTES).saturating_mul(rows))
}

/// An array: its elements, as linear memory. (What the tiling of a given GPU adds is not known without it.)
pub fn array(shape: Shape, levels: u32) -> u64 {
    let mut bytes = 0_u64;
    let halved = |extent: u64, level: u32| (extent.checked_shr(level).unwrap_or(0)).max(1);
    for level in 0..levels.clamp(1, u64::BITS) {
        // Layers are not halved from level to level; depth is.
        let depth = if shape.is_layered { shape.depth.max(1) } else { halved(shape.depth, level) };
        let texels =
            halved(shape.width, level).saturating_mul(halved(shape.height, level)).saturating_mul(depth);
        bytes = bytes.saturating_add(texels.saturating_mul(shape.texel_bits) / u64::from(u8::BITS));
    }
    linear(bytes)
}

/// What an array consists of. An extent of 0 is a dimension that the array lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Elements in a row.
    pub width: u64,
    /// Rows.
    pub height: u64,
    /// Slices, or layers.
    pub depth: u64,
    /// Whether they are layers.
    pub is_layered: bool,
    /// Bits of an element, all channels together.
    pub texel_bits: u64,
}

fn round_up(bytes: u64, unit: u64) -> u64 {
    bytes.checked_next_multiple_of(unit).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_requests_count_for_units_and_large_ones_for_blocks() {
        assert_eq!(linear(1), 512);
        assert_eq!(linear(512), 512);
        assert_eq!(linear(SHARED_MAX_BYTES), SHARED_MAX_BYTES);
        assert_eq!(linear(SHARED_MAX_BYTES + 1), BLOCK_BYTES);
        assert_eq!(linear(BLOCK_BYTES + 1), 2 * BLOCK_BYTES);
        assert_eq!(linear(u64::MAX), u64::MAX);
        assert_eq!(physical(1), BLOCK_BYTES);
        assert_eq!(pitched(1, 4), 2048);
        assert_eq!(pitched(u64::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn arrays_count_for_their_elements_and_mipmaps_for_every_level() {
        let shape = Shape { width: 64, height: 64, depth: 0, is_layered: false, texel_bits: 32 };
        assert_eq!(array(shape, 1), 64 * 64 * 4);
        assert_eq!(array(shape, 2), 64 * 64 * 4 + 32 * 32 * 4);
        let layered = Shape { depth: 6, is_layered: true, ..shape };
        assert_eq!(array(layered, 2), 6 * (64 * 64 * 4 + 32 * 32 * 4));
        let endless =
            Shape { width: u64::MAX, height: u64::MAX, depth: 2, is_layered: false, texel_bits: 128 };
        assert!(array(endless, 64) > 1 << 60);
    }
}
