//! CUDA arrays: opaque memory of up to three dimensions, here with plain rows behind it, and mipmapped ones, whose levels are arrays.
use std::sync::Arc;

use deepres_abi::driver::types as cu;
use simgpu_engine::Config;

use crate::context;
use crate::handle::{Kind as HandleKind, Table};
use crate::memory::{self, Kind};
use crate::status::{self, Result};

/// All arrays that live, levels of mipmapped ones among them.
pub static ARRAYS: Table<Array> = Table::new(HandleKind::Array);
/// All mipmapped arrays that live.
static MIPMAPPED: Table<Mipmapped> = Table::new(HandleKind::Mipmapped);

/// Rows start at multiples of this.
const ROW_ALIGNMENT_BYTES: u64 = 512;

/// Where an array's bytes are.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The first byte.
    pub base: u64,
    /// From one row to the next.
    pub pitch_bytes: u64,
    /// Rows of a layer.
    pub rows: u64,
}

/// One array.
pub struct Array {
    /// What clients hold.
    pub handle: usize,
    /// What it was created from.
    pub descriptor: cu::CUDA_ARRAY3D_DESCRIPTOR,
    layout: Layout,
    /// The context that it ends with.
    context: usize,
    /// Whether it is a mipmapped array's, which it then ends with.
    is_level: bool,
}

/// One mipmapped array.
pub struct Mipmapped {
    /// What clients hold.
    pub handle: usize,
    levels: Vec<Arc<Array>>,
    base: u64,
    context: usize,
}

// SAFETY: the descriptor is plain numbers and the base address is only used through copies, which the ledger checks.
unsafe impl Send for Array {}
// SAFETY: as above; nothing in it changes after creation.
unsafe impl Sync for Array {}

fn element_bytes(format: u32, channels: u32) -> Result<u64> {
    let channel_bytes = match format {
        cu::CU_AD_FORMAT_UNSIGNED_INT8 | cu::CU_AD_FORMAT_SIGNED_INT8 => 1,
        cu::CU_AD_FORMAT_UNSIGNED_INT16 | cu::CU_AD_FORMAT_SIGNED_INT16 | cu::CU_AD_FORMAT_HALF => 2,
        cu::CU_AD_FORMAT_UNSIGNED_INT32 | cu::CU_AD_FORMAT_SIGNED_INT32 | cu::CU_AD_FORMAT_FLOAT => 4,
        _ => return Err(status::INVALID_VALUE),
    };
    if matches!(channels, 1 | 2 | 4) {
        Ok(channel_bytes * u64::from(channels))
    } else {
        Err(status::INVALID_VALUE)
    }
}

/// What an array of this shape takes, and how its rows lie from address 0 on.
fn lay_out(descriptor: &cu::CUDA_ARRAY3D_DESCRIPTOR) -> Result<(u64, Layout)> {
    let element = element_bytes(descriptor.Format, descriptor.NumChannels)?;
    let width = descriptor.Width as u64;
    if width == 0 {
        return Err(status::INVALID_VALUE);
    }
    if descriptor.Flags & (cu::CUDA_ARRAY3D_SPARSE | cu::CUDA_ARRAY3D_DEFERRED_MAPPING) != 0 {
        return Err(status::NOT_SUPPORTED);
    }
    let rows = (descriptor.Height as u64).max(1);
    let layers = (descriptor.Depth as u64).max(1);
    let pitch_bytes = width
        .checked_mul(element)
        .and_then(|bytes| bytes.checked_next_multiple_of(ROW_ALIGNMENT_BYTES))
        .ok_or(status::INVALID_VALUE)?;
    let bytes = pitch_bytes
        .checked_mul(rows)
        .and_then(|bytes| bytes.checked_mul(layers))
        .ok_or(status::OUT_OF_MEMORY)?;
    Ok((bytes, Layout { base: 0, pitch_bytes, rows }))
}

/// Memory for arrays, which do not share pieces with linear memory.
fn allocate(bytes: u64) -> Result<u64> {
    let bytes =
        bytes.checked_next_multiple_of(Config::ALLOCATION_GRANULARITY_BYTES).ok_or(status::OUT_OF_MEMORY)?;
    memory::allocate(bytes, Kind::Array)
}

fn enter(descriptor: cu::CUDA_ARRAY3D_DESCRIPTOR, layout: Layout, is_level: bool) -> Result<Arc<Array>> {
    let context = context::current_handle();
    ARRAYS
        .insert_with(|handle| Arc::new(Array { handle, descriptor, layout, context, is_level }))
        .ok_or(status::OUT_OF_MEMORY)
}

/// Creates an array in the current context.
pub fn create(descriptor: cu::CUDA_ARRAY3D_DESCRIPTOR) -> Result<Arc<Array>> {
    let (bytes, layout) = lay_out(&descriptor)?;
    enter(descriptor, Layout { base: allocate(bytes)?, ..layout }, false)
}

/// Creates a mipmapped array in the current context, of as many levels as its extents have, at most.
pub fn create_mipmapped(descriptor: cu::CUDA_ARRAY3D_DESCRIPTOR, levels: u32) -> Result<usize> {
    let is_layered = descriptor.Flags & (cu::CUDA_ARRAY3D_LAYERED | cu::CUDA_ARRAY3D_CUBEMAP) != 0;
    let longest = descriptor.Width.max(descriptor.Height).max(if is_layered { 0 } else { descriptor.Depth });
    let halved = |extent: usize, level: u32| if extent == 0 { 0 } else { (extent >> level).max(1) };
    let mut bytes = 0_u64;
    let mut places = Vec::new();
    for level in 0..levels.clamp(1, longest.max(1).ilog2() + 1) {
        let of_level = cu::CUDA_ARRAY3D_DESCRIPTOR {
            Width: halved(descriptor.Width, level),
            Height: halved(descriptor.Height, level),
            Depth: if is_layered { descriptor.Depth } else { halved(descriptor.Depth, level) },
            ..descriptor
        };
        let (level_bytes, layout) = lay_out(&of_level)?;
        places.push((of_level, Layout { base: bytes, ..layout }));
        bytes = bytes.checked_add(level_bytes).ok_or(status::OUT_OF_MEMORY)?;
    }
    let base = allocate(bytes)?;
    let levels: Result<Vec<_>> = places
        .into_iter()
        .map(|(descriptor, layout)| enter(descriptor, Layout { base: base + layout.base, ..layout }, true))
        .collect();
    let (levels, context) = (levels?, context::current_handle());
    MIPMAPPED
        .insert_with(|handle| Arc::new(Mipmapped { handle, levels, base, context }))
        .map(|array| array.handle)
        .ok_or(status::OUT_OF_MEMORY)
}

/// The array that a level of a mipmapped array is.
pub fn level(handle: usize, level: u32) -> Result<usize> {
    let array = MIPMAPPED.get(handle).ok_or(status::INVALID_HANDLE)?;
    array.levels.get(level as usize).map(|level| level.handle).ok_or(status::INVALID_VALUE)
}

/// Destroys a mipmapped array.
pub fn destroy_mipmapped(handle: usize) -> Result<()> {
    let array = MIPMAPPED.remove(handle).ok_or(status::INVALID_HANDLE)?;
    for level in &array.levels {
        ARRAYS.remove(level.handle);
    }
    memory::free_internal(array.base);
    Ok(())
}

impl Array {
    /// Its first byte.
    pub fn base(&self) -> u64 {
        self.layout.base
    }
}

/// The array behind a handle.
pub fn by_handle(handle: usize) -> Result<Arc<Array>> {
    ARRAYS.get(handle).ok_or(status::INVALID_HANDLE)
}

/// Where an array's bytes are.
pub fn layout(handle: usize) -> Result<Layout> {
    Ok(by_handle(handle)?.layout)
}

/// A context is gone, and its arrays with it.
pub fn forget_context(context: usize) {
    for array in ARRAYS.all().into_iter().filter(|array| array.context == context) {
        ARRAYS.remove(array.handle);
    }
    for array in MIPMAPPED.all().into_iter().filter(|array| array.context == context) {
        MIPMAPPED.remove(array.handle);
    }
}

/// Destroys an array.
pub fn destroy(handle: usize) -> Result<()> {
    if by_handle(handle)?.is_level {
        return Err(status::INVALID_HANDLE);
    }
    let array = ARRAYS.remove(handle).ok_or(status::INVALID_HANDLE)?;
    memory::free_internal(array.layout.base);
    Ok(())
}
