//! CUDA arrays: opaque two- and three-dimensional memory, here with plain rows behind it.
use std::sync::Arc;

use deepres_abi::driver::types as cu;
use simgpu_engine::Config;

use crate::context;
use crate::handle::{Kind as HandleKind, Table};
use crate::memory::{self, Kind};
use crate::status::{self, Result};

/// All arrays that live.
pub static ARRAYS: Table<Array> = Table::new(HandleKind::Array);

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

/// Creates an array in the current context.
pub fn create(descriptor: cu::CUDA_ARRAY3D_DESCRIPTOR) -> Result<Arc<Array>> {
    let element = element_bytes(descriptor.Format, descriptor.NumChannels)?;
    let width = descriptor.Width as u64;
    if width == 0 {
        return Err(status::INVALID_VALUE);
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
        // Arrays do not share pieces with linear memory.
        .and_then(|bytes| bytes.checked_next_multiple_of(Config::ALLOCATION_GRANULARITY_BYTES))
        .ok_or(status::OUT_OF_MEMORY)?;
    let base = memory::allocate(bytes, Kind::Array)?;
    let layout = Layout { base, pitch_bytes, rows };
    let context = context::current_handle();
    ARRAYS
        .insert_with(|handle| Arc::new(Array { handle, descriptor, layout, context }))
        .ok_or(status::OUT_OF_MEMORY)
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
}

/// Destroys an array.
pub fn destroy(handle: usize) -> Result<()> {
    let array = ARRAYS.remove(handle).ok_or(status::INVALID_HANDLE)?;
    memory::free_internal(array.layout.base);
    Ok(())
}
