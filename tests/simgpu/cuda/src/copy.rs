//! Copies and memsets: converts the API's structs to plain strided moves of bytes.
use deepres_abi::driver::types as cu;
use simgpu_engine::CopyKind;

use crate::array;
use crate::ipc;
use crate::mapping;
use crate::memory::{self, Allocation, Kind};
use crate::status::{self, Result};

/// From this size on, a fill with zeros drops pages instead of writing them.
const DROP_PAGES_BYTES: u64 = 1 << 20;

/// One side of a copy: the address of the first byte and the distances of rows and layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    /// Address of the first byte.
    pub address: u64,
    /// Distance from one row to the next.
    pub pitch_bytes: u64,
    /// Distance from one layer to the next.
    pub layer_bytes: u64,
}

/// A copy that is ready to run.
#[derive(Debug)]
pub struct Plan {
    source: Side,
    target: Side,
    width_bytes: u64,
    height: u64,
    depth: u64,
    /// Contents of the source at the time of the call. Set if the client may change the source
    /// right after the call.
    staged: Option<Vec<u8>>,
    /// The link that carries the copy.
    pub kind: CopyKind,
    /// Whether the driver does not know the source memory. The call must read such memory before it
    /// returns.
    pub from_pageable: bool,
    /// Whether the driver does not know the target memory. The call must write such memory before
    /// it returns.
    pub to_pageable: bool,
}

fn lies_in_gpu(allocation: Option<&Allocation>) -> bool {
    allocation.is_some_and(Allocation::is_device)
}

/// Returns the number of bytes from the first to the last byte of a strided region.
fn span(side: Side, width_bytes: u64, height: u64, depth: u64) -> Option<u64> {
    let layers = side.layer_bytes.checked_mul(depth.checked_sub(1)?)?;
    let rows = side.pitch_bytes.checked_mul(height.checked_sub(1)?)?;
    layers.checked_add(rows)?.checked_add(width_bytes)
}

fn overlap(one: u64, one_bytes: u64, other: u64, other_bytes: u64) -> bool {
    one < other.saturating_add(other_bytes) && other < one.saturating_add(one_bytes)
}

impl Plan {
    /// Returns the copy of `bytes` contiguous bytes. The kinds of both addresses come from the
    /// ledger.
    pub fn linear(target: u64, source: u64, bytes: u64) -> Result<Self> {
        let side = |address| Side { address, pitch_bytes: bytes, layer_bytes: bytes };
        Self::new(side(target), side(source), bytes, 1, 1)
    }

    fn new(target: Side, source: Side, width_bytes: u64, height: u64, depth: u64) -> Result<Self> {
        let from = memory::find(source.address);
        let to = memory::find(target.address);
        for (side, found) in [(source, &from), (target, &to)] {
            status::refuse(side.address == 0)?;
            // The client is responsible for host memory. The driver checks device memory, as a
            // GPU's page tables would do.
            let length = span(side, width_bytes, height, depth).ok_or(status::INVALID_VALUE)?;
            status::refuse(lies_in_gpu(found.as_ref()) && !memory::is_usable(side.address, length))?;
        }
        let kind = match (lies_in_gpu(from.as_ref()), lies_in_gpu(to.as_ref())) {
            (true, true) if from.as_ref().map(Allocation::device) == to.as_ref().map(Allocation::device) => {
                CopyKind::DeviceToDevice
            }
            (true, true) => CopyKind::PeerToPeer,
            (true, false) => CopyKind::DeviceToHost,
            (false, _) => CopyKind::HostToDevice,
        };
        let (from_pageable, to_pageable) = (from.is_none(), to.is_none());
        Ok(Self {
            source,
            target,
            width_bytes,
            height,
            depth,
            staged: None,
            kind,
            from_pageable,
            to_pageable,
        })
    }

    /// Returns the copy that the API's largest copy struct describes.
    pub fn strided(params: &cu::CUDA_MEMCPY3D) -> Result<Self> {
        let (width_bytes, height, depth) =
            (params.WidthInBytes as u64, params.Height as u64, params.Depth as u64);
        let source = side(
            Corner {
                memory_type: params.srcMemoryType,
                host: params.srcHost as u64,
                device: params.srcDevice,
                array: params.srcArray as usize,
                pitch_bytes: params.srcPitch as u64,
                rows: params.srcHeight as u64,
                at: [params.srcXInBytes as u64, params.srcY as u64, params.srcZ as u64],
            },
            width_bytes,
            height,
        )?;
        let target = side(
            Corner {
                memory_type: params.dstMemoryType,
                host: params.dstHost as u64,
                device: params.dstDevice,
                array: params.dstArray as usize,
                pitch_bytes: params.dstPitch as u64,
                rows: params.dstHeight as u64,
                at: [params.dstXInBytes as u64, params.dstY as u64, params.dstZ as u64],
            },
            width_bytes,
            height,
        )?;
        if width_bytes == 0 || height == 0 || depth == 0 {
            return Ok(Self::nothing());
        }
        Self::new(target, source, width_bytes, height, depth)
    }

    /// Returns a copy of no bytes.
    fn nothing() -> Self {
        let nowhere = Side { address: 0, pitch_bytes: 0, layer_bytes: 0 };
        Self {
            source: nowhere,
            target: nowhere,
            width_bytes: 0,
            height: 0,
            depth: 0,
            staged: None,
            kind: CopyKind::DeviceToDevice,
            from_pageable: false,
            to_pageable: false,
        }
    }

    /// Returns the number of bytes that the copy moves.
    pub fn bytes(&self) -> u64 {
        self.width_bytes * self.height * self.depth
    }

    /// Returns whether either side has bytes in a range.
    pub fn touches(&self, address: u64, bytes: u64) -> bool {
        [self.source, self.target].into_iter().any(|side| {
            let length = span(side, self.width_bytes, self.height, self.depth).unwrap_or(0);
            overlap(side.address, length, address, bytes)
        })
    }

    /// Reads the source now, so that the client may change the source before the copy runs.
    pub fn stage(&mut self) {
        let mut staged = vec![0_u8; self.bytes() as usize];
        let dense = Side {
            address: staged.as_mut_ptr() as u64,
            pitch_bytes: self.width_bytes,
            layer_bytes: self.width_bytes * self.height,
        };
        self.moved(self.source, dense);
        self.source = dense;
        self.staged = Some(staged);
    }

    /// Copies the bytes from the source to the target.
    pub fn run(&self) {
        let _stay = mapping::stay();
        self.moved(self.source, self.target);
    }

    fn moved(&self, source: Side, target: Side) {
        let dense_rows = |side: Side| side.pitch_bytes == self.width_bytes || self.height == 1;
        let dense_layers = |side: Side| side.layer_bytes == self.width_bytes * self.height || self.depth == 1;
        let is_dense = [source, target].into_iter().all(|side| dense_rows(side) && dense_layers(side));
        let (row_bytes, rows, layers) =
            if is_dense { (self.bytes(), 1, 1) } else { (self.width_bytes, self.height, self.depth) };
        for layer in 0..layers {
            for row in 0..rows {
                let at = |side: Side| side.address + layer * side.layer_bytes + row * side.pitch_bytes;
                // SAFETY: device ranges were checked against the ledger, and a free waits for this
                // copy. The client promises that host ranges are valid.
                unsafe { std::ptr::copy(at(source) as *const u8, at(target) as *mut u8, row_bytes as usize) };
            }
        }
    }
}

/// The source or the target of a strided copy, as the API's structs give it.
struct Corner {
    memory_type: u32,
    host: u64,
    device: u64,
    array: usize,
    pitch_bytes: u64,
    rows: u64,
    at: [u64; 3],
}

fn side(corner: Corner, width_bytes: u64, height: u64) -> Result<Side> {
    let base = match corner.memory_type {
        cu::CU_MEMORYTYPE_HOST => corner.host,
        cu::CU_MEMORYTYPE_DEVICE | cu::CU_MEMORYTYPE_UNIFIED => corner.device,
        cu::CU_MEMORYTYPE_ARRAY => {
            let layout = array::layout(corner.array)?;
            let [x, y, z] = corner.at;
            status::refuse(x + width_bytes > layout.pitch_bytes || y + height > layout.rows)?;
            let layer_bytes = layout.pitch_bytes * layout.rows;
            let address = layout.base + z * layer_bytes + y * layout.pitch_bytes + x;
            return Ok(Side { address, pitch_bytes: layout.pitch_bytes, layer_bytes });
        }
        _ => return Err(status::INVALID_VALUE),
    };
    let is_device = corner.memory_type == cu::CU_MEMORYTYPE_DEVICE;
    status::refuse(is_device && width_bytes != 0 && height != 0 && memory::find(base).is_none())?;
    let [x, y, z] = corner.at;
    let pitch_bytes = if corner.pitch_bytes == 0 { x + width_bytes } else { corner.pitch_bytes };
    let rows = if corner.rows == 0 { y + height } else { corner.rows };
    status::refuse(x + width_bytes > pitch_bytes || y + height > rows)?;
    let layer_bytes = pitch_bytes.checked_mul(rows).ok_or(status::INVALID_VALUE)?;
    let offset = z
        .checked_mul(layer_bytes)
        .and_then(|layers| layers.checked_add(y.checked_mul(pitch_bytes)?)?.checked_add(x));
    let address = offset.and_then(|offset| base.checked_add(offset)).ok_or(status::INVALID_VALUE)?;
    Ok(Side { address, pitch_bytes, layer_bytes })
}

/// A memset that is ready to run.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    /// Address of the first byte.
    pub address: u64,
    /// Distance from one row to the next.
    pub pitch_bytes: u64,
    /// The pattern that the memset writes.
    pub value: u32,
    /// Width of the pattern in bytes: 1, 2 or 4.
    pub element_bytes: u32,
    /// Number of elements in a row.
    pub width: u64,
    /// Number of rows.
    pub height: u64,
}

impl Fill {
    /// Checks a memset against the ledger of addresses, and returns the memset.
    pub fn check(self) -> Result<Self> {
        let element_bytes = u64::from(self.element_bytes);
        if !matches!(self.element_bytes, 1 | 2 | 4) || !self.address.is_multiple_of(element_bytes) {
            return Err(status::INVALID_VALUE);
        }
        let row_bytes = self.width.checked_mul(element_bytes).ok_or(status::INVALID_VALUE)?;
        status::refuse(self.height > 1 && self.pitch_bytes < row_bytes)?;
        let side = Side { address: self.address, pitch_bytes: self.pitch_bytes, layer_bytes: 0 };
        match span(side, row_bytes, self.height, 1) {
            Some(length) if row_bytes == 0 || memory::is_usable(self.address, length) => Ok(self),
            None if self.height == 0 => Ok(self),
            _ => Err(status::INVALID_VALUE),
        }
    }

    /// Returns the number of bytes that the memset writes.
    pub fn bytes(&self) -> u64 {
        self.width * u64::from(self.element_bytes) * self.height
    }

    /// Returns whether the memset writes in a range.
    pub fn touches(&self, address: u64, bytes: u64) -> bool {
        let side = Side { address: self.address, pitch_bytes: self.pitch_bytes, layer_bytes: 0 };
        let row_bytes = self.width * u64::from(self.element_bytes);
        overlap(self.address, span(side, row_bytes, self.height, 1).unwrap_or(0), address, bytes)
    }

    /// Writes the pattern into every element of the memset.
    pub fn run(&self) {
        let _stay = mapping::stay();
        let row_bytes = self.width * u64::from(self.element_bytes);
        let is_dense = self.height == 1 || self.pitch_bytes == row_bytes;
        let (row_bytes, rows) =
            if is_dense { (self.bytes(), self.height.min(1)) } else { (row_bytes, self.height) };
        for row in 0..rows {
            fill_row(self.address + row * self.pitch_bytes, row_bytes, self.value, self.element_bytes);
        }
    }
}

fn fill_row(address: u64, bytes: u64, value: u32, element_bytes: u32) {
    let is_zero = value.to_le_bytes()[..element_bytes as usize].iter().all(|byte| *byte == 0);
    let drop_pages = match memory::find(address).map(|found| found.kind) {
        _ if !is_zero || bytes < DROP_PAGES_BYTES => None,
        Some(Kind::Device | Kind::Pooled(_)) if !ipc::is_shared(address) => {
            Some(mapping::drop_pages as fn(u64, u64) -> bool)
        }
        Some(Kind::Device | Kind::Opened { .. } | Kind::Pooled(_)) => {
            Some(mapping::drop_shared_pages as fn(u64, u64) -> bool)
        }
        _ => None,
    };
    if let Some(drop_pages) = drop_pages {
        const PAGE_BYTES: u64 = 4096;
        let first = address.next_multiple_of(PAGE_BYTES);
        let last = (address + bytes) / PAGE_BYTES * PAGE_BYTES;
        if drop_pages(first, last - first) {
            fill_row(address, first - address, value, element_bytes);
            fill_row(last, address + bytes - last, value, element_bytes);
            return;
        }
    }
    let count = bytes as usize / element_bytes as usize;
    // SAFETY: the range was checked against the ledger with this element's alignment. A free of it
    // waits for this memset.
    unsafe {
        match element_bytes {
            1 => std::slice::from_raw_parts_mut(address as *mut u8, count).fill(value as u8),
            2 => std::slice::from_raw_parts_mut(address as *mut u16, count).fill(value as u16),
            _ => std::slice::from_raw_parts_mut(address as *mut u32, count).fill(value),
        }
    }
}

/// Returns a strided struct with all fields 0.
pub fn blank() -> cu::CUDA_MEMCPY3D {
    // SAFETY: the struct holds numbers and pointers only.
    unsafe { std::mem::zeroed() }
}

/// Returns the strided struct for a linear copy. Graphs describe all copies with this struct.
pub fn describe_linear(target: u64, source: u64, bytes: u64) -> cu::CUDA_MEMCPY3D {
    cu::CUDA_MEMCPY3D {
        srcMemoryType: cu::CU_MEMORYTYPE_UNIFIED,
        srcDevice: source,
        srcPitch: bytes as usize,
        srcHeight: 1,
        dstMemoryType: cu::CU_MEMORYTYPE_UNIFIED,
        dstDevice: target,
        dstPitch: bytes as usize,
        dstHeight: 1,
        WidthInBytes: bytes as usize,
        Height: 1,
        Depth: 1,
        ..blank()
    }
}
