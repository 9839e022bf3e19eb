//! CUDA arrays: opaque memory of up to three dimensions. The simulated driver stores plain rows.
//! The levels of mipmapped arrays are arrays too.
use std::sync::{Arc, Mutex};

use deepres_abi::driver::types as cu;
use simgpu_engine::Config;

use crate::account;
use crate::context::{self, lock};
use crate::handle::{Kind as HandleKind, Table};
use crate::mapping;
use crate::memory::{self, Kind};
use crate::pending;
use crate::status::{self, Result};
use crate::vmm;

/// All live arrays, including levels of mipmapped arrays.
pub static ARRAYS: Table<Array> = Table::new(HandleKind::Array);
/// All live mipmapped arrays.
static MIPMAPPED: Table<Mipmapped> = Table::new(HandleKind::Mipmapped);

/// Alignment of rows.
const ROW_ALIGNMENT_BYTES: u64 = 512;

/// Layout of an array's bytes.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Address of the first byte.
    pub base: u64,
    /// Distance between the begins of two successive rows, bytes.
    pub pitch_bytes: u64,
    /// Number of rows in a layer.
    pub rows: u64,
}

/// A CUDA array.
pub struct Array {
    /// The handle by which clients name the array.
    pub handle: usize,
    /// Descriptor that the client passed at the creation.
    pub descriptor: cu::CUDA_ARRAY3D_DESCRIPTOR,
    layout: Layout,
    /// Handle of the array's context. When the context ends, the array ends.
    context: usize,
    /// Whether the array is a level of a mipmapped array. A level lives as long as its mipmapped
    /// array.
    is_level: bool,
    /// Memory of the array, bytes.
    bytes: u64,
    /// Physical memory mapped into the array, if the array has no memory of its own.
    mapped: Mapped,
}

/// A CUDA mipmapped array.
pub struct Mipmapped {
    /// The handle by which clients name the mipmapped array.
    pub handle: usize,
    levels: Vec<Arc<Array>>,
    base: u64,
    context: usize,
    /// The flags that the client passed at the creation.
    flags: u32,
    bytes: u64,
    mapped: Mapped,
    /// The external memory in which the array lies, if any: address and length of the mapping.
    external: Option<(u64, u64)>,
}

/// Part of an array: a box in a layer of a level, or bytes of the levels that share tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A box of an array: level and layer, begin and end of the box.
    Box([u32; 2], [u32; 3], [u32; 3]),
    /// A range of bytes in the mip tail: layer, begin and end of the bytes.
    Tail(u32, u64, u64),
}

impl Part {
    /// Returns the parts of this part that lie outside `other`.
    fn without(self, other: &Self) -> Vec<Self> {
        match (self, other) {
            (Self::Box(at, mut from, mut to), Self::Box(other_at, other_from, other_to))
                if at == *other_at =>
            {
                if (0..3).any(|axis| to[axis] <= other_from[axis] || other_to[axis] <= from[axis]) {
                    return vec![self];
                }
                let mut left = Vec::new();
                for axis in 0..3 {
                    if from[axis] < other_from[axis] {
                        let mut end = to;
                        end[axis] = other_from[axis];
                        left.push(Self::Box(at, from, end));
                        from[axis] = other_from[axis];
                    }
                    if other_to[axis] < to[axis] {
                        let mut start = from;
                        start[axis] = other_to[axis];
                        left.push(Self::Box(at, start, to));
                        to[axis] = other_to[axis];
                    }
                }
                left
            }
            (Self::Tail(layer, from, to), Self::Tail(other, other_from, other_to)) if layer == *other => {
                let around = [(from, to.min(*other_from)), (from.max(*other_to), to)];
                let left = around.into_iter().filter(|(from, to)| from < to);
                left.map(|(from, to)| Self::Tail(layer, from, to)).collect()
            }
            _ => vec![self],
        }
    }
}

/// Mappings: for each the remaining parts of the array, and the physical memory.
type Mapped = Mutex<Vec<(Vec<Part>, usize)>>;

/// Returns whether an array has no memory until a client maps some into it.
fn is_unbacked(flags: u32) -> bool {
    flags & (cu::CUDA_ARRAY3D_SPARSE | cu::CUDA_ARRAY3D_DEFERRED_MAPPING) != 0
}

/// Calls `on` for an array or mipmapped array into which memory can be mapped.
fn with_unbacked<T>(
    resource: cu::CUresourcetype,
    handle: usize,
    on: impl FnOnce(&Mapped, u64, u32) -> T,
) -> Result<T> {
    match resource {
        cu::CU_RESOURCE_TYPE_ARRAY => {
            let array = by_handle(handle).map_err(|_| status::INVALID_VALUE)?;
            let flags = array.descriptor.Flags;
            // The mipmapped array maps the memory of its levels.
            status::refuse(array.is_level || !is_unbacked(flags))?;
            Ok(on(&array.mapped, array.bytes, flags))
        }
        cu::CU_RESOURCE_TYPE_MIPMAPPED_ARRAY => {
            let array = MIPMAPPED.get(handle).ok_or(status::INVALID_VALUE)?;
            status::refuse(!is_unbacked(array.flags))?;
            Ok(on(&array.mapped, array.bytes, array.flags))
        }
        _ => Err(status::INVALID_VALUE),
    }
}

/// Maps physical memory into a part of an array.
pub fn map(resource: cu::CUresourcetype, handle: usize, part: Part, physical: usize) -> Result<()> {
    vmm::by_handle(physical)?;
    with_unbacked(resource, handle, |mapped, _, _| {
        vmm::keep(physical)?;
        lock(mapped).push((vec![part], physical));
        Ok(())
    })?
}

/// Unmaps a part of an array. If the physical memory then has no mapping any more, the function
/// releases the memory.
pub fn unmap(resource: cu::CUresourcetype, handle: usize, part: Part) -> Result<()> {
    with_unbacked(resource, handle, |mapped, _, _| {
        let mut mapped = lock(mapped);
        for (parts, _) in mapped.iter_mut() {
            *parts = std::mem::take(parts).into_iter().flat_map(|own| own.without(&part)).collect();
        }
        for (_, physical) in mapped.extract_if(.., |(parts, _)| parts.is_empty()) {
            vmm::let_go(physical);
        }
    })
}

/// Returns the memory that an array without own memory needs for a full mapping, and the array's
/// flags.
pub fn requirements(resource: cu::CUresourcetype, handle: usize) -> Result<(u64, u32)> {
    with_unbacked(resource, handle, |_, bytes, flags| (bytes, flags))
}

fn unmap_all(mapped: &Mapped) {
    lock(mapped).drain(..).for_each(|(_, physical)| vmm::let_go(physical));
}

// SAFETY: the descriptor is plain numbers. Only copies use the base address, and the ledger checks
// them.
unsafe impl Send for Array {}
// SAFETY: as above; nothing in an array changes after its creation.
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

/// Returns the size of an array of this shape, and the layout of its rows from address 0 on.
fn lay_out(descriptor: &cu::CUDA_ARRAY3D_DESCRIPTOR) -> Result<(u64, Layout)> {
    let element = element_bytes(descriptor.Format, descriptor.NumChannels)?;
    let width = descriptor.Width as u64;
    status::refuse(width == 0)?;
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

/// Allocates memory for arrays, which share no pieces with linear memory.
fn allocate(bytes: u64) -> Result<u64> {
    let bytes =
        bytes.checked_next_multiple_of(Config::ALLOCATION_GRANULARITY_BYTES).ok_or(status::OUT_OF_MEMORY)?;
    memory::allocate(bytes, Kind::Array)
}

fn enter(
    descriptor: cu::CUDA_ARRAY3D_DESCRIPTOR,
    (bytes, layout): (u64, Layout),
    is_level: bool,
) -> Result<Arc<Array>> {
    let context = context::current_handle();
    let mapped = Mapped::default();
    ARRAYS
        .insert_with(|handle| {
            Arc::new(Array { handle, descriptor, layout, context, is_level, bytes, mapped })
        })
        .ok_or(status::OUT_OF_MEMORY)
}

/// Creates an array in the current context.
pub fn create(descriptor: cu::CUDA_ARRAY3D_DESCRIPTOR) -> Result<Arc<Array>> {
    let (bytes, layout) = lay_out(&descriptor)?;
    if is_unbacked(descriptor.Flags) {
        // A sparse array consists of tiles, and one-dimensional arrays have no tiles.
        status::refuse(descriptor.Height == 0)?;
        context::current()?;
        return enter(descriptor, (bytes, layout), false);
    }
    enter(descriptor, (bytes, Layout { base: allocate(bytes)?, ..layout }), false)
}

/// Creates a mipmapped array in external memory. The memory is mapped at `mapping`, and the mapping
/// ends with the array.
pub fn create_external(
    descriptor: cu::CUDA_ARRAY3D_DESCRIPTOR,
    levels: u32,
    base: u64,
    mapping: (u64, u64),
) -> Result<usize> {
    create_levels(descriptor, levels, |bytes| {
        let fits = base.checked_add(bytes).is_some_and(|end| end <= mapping.0 + mapping.1);
        if fits { Ok((base, Some(mapping))) } else { Err(status::INVALID_VALUE) }
    })
}

/// Creates a mipmapped array in the current context, with at most as many levels as its extents
/// allow.
pub fn create_mipmapped(descriptor: cu::CUDA_ARRAY3D_DESCRIPTOR, levels: u32) -> Result<usize> {
    let is_unbacked = is_unbacked(descriptor.Flags);
    status::refuse(is_unbacked && descriptor.Height == 0)?;
    create_levels(descriptor, levels, |bytes| {
        context::current()?;
        Ok((if is_unbacked { 0 } else { allocate(bytes)? }, None))
    })
}

/// Creates a mipmapped array. `place` returns the memory for its bytes.
fn create_levels(
    descriptor: cu::CUDA_ARRAY3D_DESCRIPTOR,
    levels: u32,
    place: impl FnOnce(u64) -> Result<(u64, Option<(u64, u64)>)>,
) -> Result<usize> {
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
        places.push((of_level, level_bytes, Layout { base: bytes, ..layout }));
        bytes = bytes.checked_add(level_bytes).ok_or(status::OUT_OF_MEMORY)?;
    }
    let (base, external) = place(bytes)?;
    let at = |offset: u64| if base == 0 { 0 } else { base + offset };
    let levels: Result<Vec<_>> = places
        .into_iter()
        .map(|(descriptor, bytes, layout)| {
            enter(descriptor, (bytes, Layout { base: at(layout.base), ..layout }), true)
        })
        .collect();
    let (levels, context) = (levels?, context::current_handle());
    MIPMAPPED
        .insert_with(|handle| {
            let (flags, mapped) = (descriptor.Flags, Mapped::default());
            Arc::new(Mipmapped { handle, levels, base, context, flags, bytes, mapped, external })
        })
        .map(|array| array.handle)
        .ok_or(status::OUT_OF_MEMORY)
}

/// Returns the array of a level of a mipmapped array.
pub fn level(handle: usize, level: u32) -> Result<usize> {
    let array = MIPMAPPED.get(handle).ok_or(status::INVALID_HANDLE)?;
    array.levels.get(level as usize).map(|level| level.handle).ok_or(status::INVALID_VALUE)
}

/// Destroys a mipmapped array.
pub fn destroy_mipmapped(handle: usize) -> Result<()> {
    account::note_free();
    let array = MIPMAPPED.remove(handle).ok_or(status::INVALID_HANDLE)?;
    for level in &array.levels {
        ARRAYS.remove(level.handle);
    }
    array.end();
    Ok(())
}

impl Array {
    /// Returns the address of the array's first byte.
    pub fn base(&self) -> u64 {
        self.layout.base
    }
}

impl Mipmapped {
    /// Releases the memory. The caller first makes sure that no client uses the array any more.
    fn end(&self) {
        unmap_all(&self.mapped);
        match self.external {
            Some((at, bytes)) => {
                pending::drain(at, bytes);
                mapping::unmap(at, bytes);
            }
            None => memory::free_internal(self.base),
        }
    }
}

/// Returns the array of a handle.
pub fn by_handle(handle: usize) -> Result<Arc<Array>> {
    ARRAYS.get(handle).ok_or(status::INVALID_HANDLE)
}

/// Returns the layout of an array's bytes. The contents of an array without memory of its own are
/// not modelled.
pub fn layout(handle: usize) -> Result<Layout> {
    let array = by_handle(handle)?;
    if array.layout.base == 0 { Err(status::NOT_SUPPORTED) } else { Ok(array.layout) }
}

/// Returns the size of an array's elements, bytes.
pub fn element_bytes_of(handle: usize) -> Result<u64> {
    let descriptor = by_handle(handle)?.descriptor;
    element_bytes(descriptor.Format, descriptor.NumChannels)
}

/// Removes the arrays of a destroyed context.
pub fn forget_context(context: usize) {
    for array in ARRAYS.all().into_iter().filter(|array| array.context == context) {
        ARRAYS.remove(array.handle);
        unmap_all(&array.mapped);
    }
    for array in MIPMAPPED.all().into_iter().filter(|array| array.context == context) {
        MIPMAPPED.remove(array.handle);
        unmap_all(&array.mapped);
        if array.external.is_some() {
            array.end();
        }
    }
}

/// Destroys an array.
pub fn destroy(handle: usize) -> Result<()> {
    account::note_free();
    status::refuse_as(by_handle(handle)?.is_level, status::INVALID_HANDLE)?;
    let array = ARRAYS.remove(handle).ok_or(status::INVALID_HANDLE)?;
    unmap_all(&array.mapped);
    memory::free_internal(array.layout.base);
    Ok(())
}
