//! Hooks of the calls that allocate, free or report device memory.

use deepres_abi::coverage::Bypass;
use deepres_abi::driver::ApiId;
use deepres_abi::driver::result::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS};
use deepres_abi::driver::types::{
    CU_MEM_ALLOCATION_TYPE_MANAGED, CU_MEM_OPERATION_TYPE_MAP, CU_MEM_OPERATION_TYPE_UNMAP,
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY_DESCRIPTOR_v1, CUDA_ARRAY3D_CUBEMAP, CUDA_ARRAY3D_DEFERRED_MAPPING,
    CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR_v1, CUDA_ARRAY3D_LAYERED, CUDA_ARRAY3D_SPARSE, CUarray,
    CUarray_format, CUdevice, CUdeviceptr, CUdeviceptr_v1, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation, CUmemPoolProps, CUmemoryPool,
    CUmipmappedArray, CUresult, CUstream, c_void,
};
use deepres_abi::grant::NO_LIMIT;
use deepres_abi::meter::MemoryKind;

use super::{MISSING, clear, entered};
use crate::blocked_calls;
use crate::capture;
use crate::coverage;
use crate::driver::calls::Stream;
use crate::driver::managed;
use crate::driver::memory::{PoolHandle, insist, ordinal_at};
use crate::driver::real;
use crate::memory::charge::{self, Shape};
use crate::memory::oversubscription::Way;
use crate::memory::tiles::Operation;
use crate::memory::{Answer, Name, Request, graphs};
use crate::meter::context::ContextState;
use crate::process::{self, Process};
use crate::record;
use crate::thread;

/// Returns the process, and the context to which the interposer charges a call: the current
/// context, or the likely context if none is current. If there is no session or no such context,
/// counts a bypass and returns `None`.
fn current() -> Option<(&'static Process, &'static ContextState)> {
    let process = process::current_or_bypass()?;
    let context = process.current_context().or_else(|| process.likely_context());
    if context.is_none() {
        coverage::bypass(Bypass::UnchargedContext);
    }
    Some((process, context?))
}

/// Returns the process, and the context to which the interposer charges a call on `stream`. Counts
/// a bypass as [`current`] does.
fn of(stream: Stream) -> Option<(&'static Process, &'static ContextState)> {
    if stream.is_default() {
        return current();
    }
    let process = process::current_or_bypass()?;
    let said = || process.calls.context_of(stream).and_then(|handle| process.context(handle));
    // If the driver does not name the context, the interposer takes the context of the thread's
    // lane on the stream. If there is no lane, it takes the current context, which is mostly right.
    let likely = || thread::lane(&process.calls, stream).map(|lane| lane.context);
    Some((process, said().or_else(likely).or_else(|| Some(current()?.1))?))
}

fn request_on(context: &ContextState, api: ApiId, kind: MemoryKind, bytes: u64) -> Request {
    // Memory that a job allocates in a green context belongs to the primary context.
    Request { api, kind, ordinal: context.ordinal, context: context.home().0, bytes }
}

/// Frees the object that the driver wrote to `place` by `free`, and clears `place`.
///
/// # Safety
/// The driver reported success, wrote a value that `free` takes, and all zeroes is a value of `T`.
pub unsafe fn give_back<T: Copy>(place: *mut T, free: Option<unsafe extern "C" fn(T) -> CUresult>) {
    // SAFETY: the caller guarantees that the driver reported success and wrote to `place`.
    if let (Some(given), Some(free)) = unsafe { (written(place), free) } {
        // SAFETY: the driver wrote the value just now, and no other code has it.
        unsafe {
            insist(|| free(given));
            clear(place);
        }
    }
}

/// Makes an allocation by `call`, and charges `bytes` to the GPU of the current context. `call`
/// writes the allocation's name to `place`. `call` returns the driver's result, the name, and the
/// bytes that the allocation counts for in the end. The function returns the final result.
fn on_current_gpu<T: Copy>(
    (api, kind, bytes): (ApiId, MemoryKind, u64),
    place: *mut T,
    mut call: impl FnMut(Way) -> Answer,
) -> CUresult {
    record::memory(api, bytes);
    let _blocked = blocked_calls::begin();
    let Some((process, context)) = current() else { return call(Way::Device).0 };
    let mut was_given = false;
    let result = process.memory.allocate(process, request_on(context, api, kind, bytes), &mut |way| {
        let answer = call(way);
        was_given |= answer.0 == CUDA_SUCCESS;
        answer
    });
    // SAFETY: the value is an address or a handle, which the driver wrote if it reported success.
    unsafe { answered(result, was_given, place) }
}

/// Returns `result`, the final result of a request. `was_given`: the driver gave an object in
/// between. If deepres freed that object for lack of room, clears `place`, so that the job gets no
/// dead address.
///
/// # Safety
/// If `was_given`, the driver wrote to `place`, and all zeroes is a value of `T`.
unsafe fn answered<T: Copy>(result: CUresult, was_given: bool, place: *mut T) -> CUresult {
    if result == CUDA_ERROR_OUT_OF_MEMORY && was_given {
        // SAFETY: the caller guarantees that the driver wrote to `place`, and that zeroes are valid
        // there.
        unsafe { clear(place) };
    }
    result
}

/// Returns the answer of a call that wrote the name of an allocation to `place`.
///
/// # Safety
/// If `result` is a success, the driver wrote to `place`, or `place` is null.
unsafe fn answer<T: Copy>(result: CUresult, place: *const T, named: impl FnOnce(T) -> (Name, u64)) -> Answer {
    // SAFETY: the caller guarantees that `place` is null, or that the driver wrote there.
    let given = if result == CUDA_SUCCESS { unsafe { written(place) } } else { None };
    (result, given.map(named))
}

/// Makes an allocation from `pool` by `call`, and charges the allocation. Without `pool`, the
/// allocation is from the pool of the stream's device. A captured allocation takes no memory,
/// because the graph takes the memory at its launch. Returns the final result.
fn from_pool(
    api: ApiId,
    pool: Option<CUmemoryPool>,
    stream: Stream,
    bytes: u64,
    place: *mut CUdeviceptr,
    mut call: impl FnMut() -> CUresult,
) -> CUresult {
    record::memory(api, bytes);
    let _blocked = blocked_calls::begin();
    let Some((process, context)) = of(stream) else { return call() };
    let is_captured = capture::is_active().then(|| process.calls.is_capturing(stream));
    if is_captured.is_some_and(|is_captured| is_captured != Some(false)) {
        graphs::note();
    }
    let mut was_given = false;
    let mut call = || {
        let result = call();
        was_given |= result == CUDA_SUCCESS;
        // SAFETY: the driver wrote the address if it reports success.
        (result, if result == CUDA_SUCCESS { unsafe { written(place) } } else { None })
    };
    // If the driver does not say whether the stream captures, the interposer charges the
    // allocation. A capture would not make the pool grow, and so would cost nothing.
    if is_captured == Some(Some(true)) {
        let (result, address) = call();
        if let Some(address) = address {
            process.memory.graphs.added(address);
        }
        return result;
    }
    let request = request_on(context, api, MemoryKind::Pool, bytes);
    let pool = pool.map(|pool| PoolHandle(pool as usize));
    let result = process.memory.allocate_from_pool(process, request, pool, call);
    // SAFETY: the value is an address, which the driver wrote if it reported success.
    unsafe { answered(result, was_given, place) }
}

/// Returns the value that the driver wrote through `pointer`, after a success.
///
/// # Safety
/// The driver wrote to `pointer`, or `pointer` is null.
unsafe fn written<T: Copy>(pointer: *const T) -> Option<T> {
    // SAFETY: the caller guarantees that `pointer` is null, or that the driver wrote there.
    unsafe { pointer.as_ref() }.copied()
}

/// Allocates managed memory in place of device memory, and writes its address to `pointer`. Returns
/// the answer.
///
/// # Safety
/// `pointer` is null or may be written through.
unsafe fn allocate_managed<T: TryFrom<u64>>(bytes: u64, pointer: *mut T) -> Answer {
    if pointer.is_null() {
        return (CUDA_ERROR_INVALID_VALUE, None);
    }
    let Some((result, address)) = managed::allocate(bytes) else { return (MISSING, None) };
    // If the caller's type is too narrow for the address, the caller cannot use the memory.
    // Programs of CUDA 3.1 and before have such types.
    match address.and_then(|address| Some((address, T::try_from(address).ok()?))) {
        Some((address, narrow)) => {
            // SAFETY: the caller guarantees that `pointer` is null or may be written through, and
            // it is not null.
            unsafe { pointer.write(narrow) };
            (result, Some((Name::Address(address), bytes)))
        }
        None => {
            if let (Some(address), Some(free)) = (address, real!(cuMemFree_v2)) {
                // SAFETY: the allocation is new, and no caller has its address yet.
                unsafe { free(address) };
            }
            (result, None)
        }
    }
}

macro_rules! linear {
    ($($name:ident: $symbol:ident($pointer:ident: *mut $written:ty, $bytes:ident: $size:ty);)+) => {$(
        #[doc = concat!("Hook of `", stringify!($symbol), "`.")]
        pub unsafe extern "C" fn $name($pointer: *mut $written, $bytes: $size) -> CUresult {
            let (call, _inside) = entered!($symbol($pointer, $bytes));
            let bytes = $bytes as u64;
            on_current_gpu((ApiId::$symbol, MemoryKind::Linear, bytes), $pointer, |way| {
                if way == Way::Managed {
                    // SAFETY: the caller wants the address at `pointer`.
                    return unsafe { allocate_managed(bytes, $pointer) };
                }
                // SAFETY: the driver wrote the address if it reports success.
                unsafe { answer(call(), $pointer, |at| (Name::Address(at.into()), bytes)) }
            })
        }
    )+};
}

linear! {
    alloc_v1: cuMemAlloc(pointer: *mut CUdeviceptr_v1, bytes: u32);
    alloc: cuMemAlloc_v2(pointer: *mut CUdeviceptr, bytes: usize);
}

/// Hook of `cuMemAllocManaged`.
pub unsafe extern "C" fn alloc_managed(pointer: *mut CUdeviceptr, bytes: usize, flags: u32) -> CUresult {
    let (call, _inside) = entered!(cuMemAllocManaged(pointer, bytes, flags));
    let charged = charge::managed(bytes as u64);
    on_current_gpu((ApiId::cuMemAllocManaged, MemoryKind::Managed, charged), pointer, |_| {
        // SAFETY: the driver wrote the address if it reports success.
        unsafe { answer(call(), pointer, |at| (Name::Address(at), charged)) }
    })
}

macro_rules! pooled {
    ($($name:ident: $symbol:ident($($pool:ident: $handle:ty)?), $per_thread:literal;)+) => {$(
        #[doc = concat!("Hook of `", stringify!($symbol), "`.")]
        pub unsafe extern "C" fn $name(
            pointer: *mut CUdeviceptr,
            bytes: usize,
            $($pool: $handle,)?
            stream: CUstream,
        ) -> CUresult {
            let (call, _inside) = entered!($symbol(pointer, bytes $(, $pool)?, stream));
            let pool = [$($pool)?].into_iter().next();
            let on = Stream::new(stream, $per_thread);
            from_pool(ApiId::$symbol, pool, on, bytes as u64, pointer, call)
        }
    )+};
}

pooled! {
    alloc_async: cuMemAllocAsync(), false;
    alloc_async_ptsz: cuMemAllocAsync_ptsz(), true;
    alloc_pool: cuMemAllocFromPoolAsync(pool: CUmemoryPool), false;
    alloc_pool_ptsz: cuMemAllocFromPoolAsync_ptsz(pool: CUmemoryPool), true;
}

/// Hook of `cuMemPoolCreate`. The pool's properties name the device whose memory the pool holds.
pub unsafe extern "C" fn create_pool(pool: *mut CUmemoryPool, properties: *const CUmemPoolProps) -> CUresult {
    let (call, _inside) = entered!(cuMemPoolCreate(pool, properties));
    let result = call();
    // SAFETY: `properties` is null, or the caller passes it for the driver to read. The driver
    // wrote the handle if it reports success.
    if let (CUDA_SUCCESS, Some(process), Some(properties), Some(pool)) = unsafe {
        (
            result,
            process::current(),
            properties.as_ref(),
            if result == CUDA_SUCCESS { written(pool) } else { None },
        )
    } {
        let ordinal = ordinal_of_pool(process, properties.location, properties.allocType);
        process.memory.pools.created(PoolHandle(pool as usize), ordinal);
    }
    result
}

/// Returns the device to which the interposer charges a pool of this location and type of memory,
/// if any.
fn ordinal_of_pool(
    process: &'static Process,
    location: CUmemLocation,
    kind: CUmemAllocationType,
) -> Option<usize> {
    // Managed memory can lie anywhere. So the interposer charges a managed pool without a device to
    // the current device, or to the first device if no context is current.
    let is_managed = kind == CU_MEM_ALLOCATION_TYPE_MANAGED;
    let current = || process.current_context().map_or(0, |context| context.ordinal);
    ordinal_at(location).or_else(|| is_managed.then(current))
}

macro_rules! gets_pool {
    ($($name:ident: $symbol:ident;)+) => {$(
        #[doc = concat!("Hook of `", stringify!($symbol), "`. The hook notes the place of the pool's memory.")]
        pub unsafe extern "C" fn $name(
            pool: *mut CUmemoryPool,
            location: *mut CUmemLocation,
            kind: CUmemAllocationType,
        ) -> CUresult {
            let (call, _inside) = entered!($symbol(pool, location, kind));
            let result = call();
            if result == CUDA_SUCCESS
                && let Some(process) = process::current()
                // SAFETY: each pointer is null, or the driver has read or written there.
                && let (Some(location), Some(pool)) = unsafe { (written(location), written(pool)) }
            {
                let ordinal = || ordinal_of_pool(process, location, kind);
                process.memory.pools.get(PoolHandle(pool as usize), ordinal);
            }
            result
        }
    )+};
}

gets_pool! {
    default_pool: cuMemGetDefaultMemPool;
    present_pool: cuMemGetMemPool;
}

/// Hook of `cuMemPoolImportFromShareableHandle`. The process that exported the pool pays for the
/// pool's memory.
pub unsafe extern "C" fn import_pool(
    pool: *mut CUmemoryPool,
    handle: *mut c_void,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> CUresult {
    let (call, _inside) = entered!(cuMemPoolImportFromShareableHandle(pool, handle, kind, flags));
    let result = call();
    if result == CUDA_SUCCESS
        && let Some(process) = process::current()
        // SAFETY: the driver wrote the handle if it reports success.
        && let Some(pool) = unsafe { written(pool) }
    {
        process.memory.pools.created(PoolHandle(pool as usize), None);
    }
    result
}

/// Hook of `cuDeviceGraphMemTrim`, after which the process can hold less memory.
pub unsafe extern "C" fn trim_graphs(device: CUdevice) -> CUresult {
    let (call, _inside) = entered!(cuDeviceGraphMemTrim(device));
    let _blocked = blocked_calls::begin();
    let result = call();
    refresh();
    result
}

/// Brings the accounts up to date. The process has waited for the GPU, or has made the driver give
/// memory back.
pub fn refresh() {
    if let Some(process) = process::current() {
        process.memory.refresh(process);
    }
}

macro_rules! pitch {
    ($($name:ident: $symbol:ident, $address:ty, $size:ty;)+) => {$(
        #[doc = concat!("Hook of `", stringify!($symbol), "`.")]
        pub unsafe extern "C" fn $name(
            pointer: *mut $address,
            pitch: *mut $size,
            width: $size,
            height: $size,
            element: u32,
        ) -> CUresult {
            let (call, _inside) = entered!($symbol(pointer, pitch, width, height, element));
            let expected = charge::pitched(width as u64, height as u64);
            on_current_gpu((ApiId::$symbol, MemoryKind::Pitch, expected), pointer, |way| {
                if way == Way::Managed {
                    let row = <$size>::try_from(charge::pitch(width as u64)).ok();
                    // SAFETY: the pointer is null, or the caller wants the pitch there.
                    let (Some(row), Some(pitch)) = (row, unsafe { pitch.as_mut() }) else {
                        return (CUDA_ERROR_INVALID_VALUE, None);
                    };
                    // SAFETY: the caller wants the address at `pointer`.
                    let answer = unsafe { allocate_managed(expected, pointer) };
                    if answer.0 == CUDA_SUCCESS {
                        *pitch = row;
                    }
                    return answer;
                }
                // SAFETY: if the driver reports success, it wrote the address and the pitch.
                unsafe {
                    answer(call(), pointer, |at| {
                        let bytes = written(pitch).map(|pitch| (pitch as u64).saturating_mul(height as u64));
                        (Name::Address(at.into()), bytes.unwrap_or(expected))
                    })
                }
            })
        }
    )+};
}

pitch! {
    alloc_pitch_v1: cuMemAllocPitch, CUdeviceptr_v1, u32;
    alloc_pitch: cuMemAllocPitch_v2, CUdeviceptr, usize;
}

/// Hook of `cuMemCreate`. The properties name the device, so the call needs no current context.
pub unsafe extern "C" fn create(
    handle: *mut CUmemGenericAllocationHandle,
    bytes: usize,
    properties: *const CUmemAllocationProp,
    flags: u64,
) -> CUresult {
    let (call, _inside) = entered!(cuMemCreate(handle, bytes, properties, flags));
    let _blocked = blocked_calls::begin();
    // SAFETY: the pointer is null, or the caller passes it as properties for the driver to read.
    let location = unsafe { properties.as_ref() }.map(|properties| properties.location);
    let Some((process, ordinal)) = process::current_or_bypass().zip(location.and_then(ordinal_at)) else {
        return call();
    };
    let charged = charge::blocks(bytes as u64);
    let request =
        Request { api: ApiId::cuMemCreate, kind: MemoryKind::Physical, ordinal, context: 0, bytes: charged };
    process.memory.allocate(process, request, &mut |_| {
        // SAFETY: the driver wrote the handle if it reports success.
        unsafe { answer(call(), handle, |handle| (Name::Handle(handle), charged)) }
    })
}

/// Hook of `cuMemRetainAllocationHandle`.
pub unsafe extern "C" fn retain(handle: *mut CUmemGenericAllocationHandle, address: *mut c_void) -> CUresult {
    let (make, _inside) = entered!(cuMemRetainAllocationHandle(handle, address));
    let call = || {
        let result = make();
        // SAFETY: the driver wrote the handle if it reports success.
        (result, if result == CUDA_SUCCESS { unsafe { written(handle) } } else { None })
    };
    match process::current() {
        Some(process) => process.memory.retain(process, address as u64, call),
        None => call().0,
    }
}

/// Hook of `cuMemExportToShareableHandle`. This process pays for exported memory until the memory
/// is gone.
pub unsafe extern "C" fn export(
    place: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> CUresult {
    let (call, _inside) = entered!(cuMemExportToShareableHandle(place, handle, kind, flags));
    let result = call();
    if let Some(process) = process::current().filter(|_| result == CUDA_SUCCESS) {
        process.memory.exported(handle);
    }
    result
}

/// Hook of `cuMemImportFromShareableHandle`. Each process pays for the memory that it exported:
/// another process for its memory, and this process for memory that it exported itself.
pub unsafe extern "C" fn import(
    handle: *mut CUmemGenericAllocationHandle,
    from: *mut c_void,
    kind: CUmemAllocationHandleType,
) -> CUresult {
    let (call, _inside) = entered!(cuMemImportFromShareableHandle(handle, from, kind));
    let Some(process) = process::current().filter(|process| process.memory.has_exported()) else {
        coverage::OWN.note_call(ApiId::cuMemImportFromShareableHandle);
        return call();
    };
    let release = || {
        let release = real!(cuMemRelease);
        // SAFETY: the driver wrote the handle, because it reported success.
        unsafe { give_back(handle, release) }
    };
    process.memory.import(process, call, release)
}

/// Defines hooks of calls that change allocations which the process already has.
macro_rules! changes {
    ($($name:ident: $symbol:ident($($argument:ident: $type:ty),*) => |$process:ident, $call:ident| $body:expr;)+) => {$(
        #[doc = concat!("Hook of `", stringify!($symbol), "`.")]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> CUresult {
            let ($call, _inside) = entered!($symbol($($argument),*));
            let _blocked = blocked_calls::begin();
            match process::current() {
                Some($process) => $body,
                None => $call(),
            }
        }
    )+};
}

changes! {
    free_v1: cuMemFree(address: CUdeviceptr_v1) =>
        |process, call| process.memory.free_address(process, address.into(), call);
    free_v2: cuMemFree_v2(address: CUdeviceptr) =>
        |process, call| process.memory.free_address(process, address, call);
    destroy_pool: cuMemPoolDestroy(pool: CUmemoryPool) =>
        |process, call| process.memory.pools.destroy(process, PoolHandle(pool as usize), call);
    trim_pool: cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) =>
        |process, call| process.memory.pools.trim_one(process, (PoolHandle(pool as usize), keep == 0), call);
    release: cuMemRelease(handle: CUmemGenericAllocationHandle) =>
        |process, call| process.memory.release_handle(process, handle, call);
    map: cuMemMap(
        address: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64
    ) => |process, call| process.memory.map(process, address, bytes as u64, handle, call);
    unmap: cuMemUnmap(address: CUdeviceptr, bytes: usize) =>
        |process, call| process.memory.unmap(process, address, bytes as u64, call);
    destroy_array: cuArrayDestroy(array: CUarray) =>
        |process, call| process.memory.destroy_array(process, array as u64, call);
    destroy_mipmapped: cuMipmappedArrayDestroy(array: CUmipmappedArray) =>
        |process, call| process.memory.destroy_array(process, array as u64, call);
}

/// `CUarrayMapInfo`, with words in place of the union that describes the part of the array.
#[repr(C)]
#[derive(Clone, Copy)]
struct MapInfo {
    resource_kind: u32,
    resource: u64,
    part_kind: u32,
    part: [u64; 4],
    operation: u32,
    handle_kind: u32,
    handle: u64,
    offset: u64,
    devices: u32,
    flags: u32,
    reserved: [u32; 2],
}

impl MapInfo {
    fn operation(&self) -> Option<Operation> {
        let handle = match self.operation {
            CU_MEM_OPERATION_TYPE_MAP => Some(self.handle),
            CU_MEM_OPERATION_TYPE_UNMAP => None,
            _ => return None,
        };
        Some(Operation { array: self.resource, part: (self.part_kind, self.part), handle })
    }
}

fn map_array(list: *const c_void, count: u32, stream: Stream, call: impl FnOnce() -> CUresult) -> CUresult {
    let Some((process, context)) = of(stream).filter(|_| !list.is_null()) else { return call() };
    // SAFETY: by the API's contract, this is a list of `count` entries.
    let list = unsafe { std::slice::from_raw_parts(list.cast::<MapInfo>(), count as usize) };
    let operations: Vec<Operation> = list.iter().filter_map(MapInfo::operation).collect();
    process.memory.map_tiles(process, context.home().0, &operations, call)
}

macro_rules! maps_array {
    ($($name:ident: $symbol:ident, $per_thread:literal;)+) => {$(
        #[doc = concat!("Hook of `", stringify!($symbol), "`.")]
        pub unsafe extern "C" fn $name(list: *mut c_void, count: u32, stream: CUstream) -> CUresult {
            let (call, _inside) = entered!($symbol(list, count, stream));
            map_array(list, count, Stream::new(stream, $per_thread), call)
        }
    )+};
}

maps_array! {
    map_array_async: cuMemMapArrayAsync, false;
    map_array_async_ptsz: cuMemMapArrayAsync_ptsz, true;
}

/// Returns whether `address` is oversubscribed memory: managed memory that the job takes for device
/// memory. The job frees the memory in the order of `stream`. During a capture, returns false,
/// because the call then only adds a node to a graph.
fn is_oversubscribed(address: u64, stream: Stream) -> bool {
    process::current().is_some_and(|process| {
        process.memory.oversubscription.has(address)
            && !(capture::is_active() && process.calls.may_be_capturing(stream))
    })
}

macro_rules! frees_on_streams {
    ($($name:ident: $symbol:ident, $per_thread:literal;)+) => {$(
        #[doc = concat!("Hook of `", stringify!($symbol), "`.")]
        pub unsafe extern "C" fn $name(address: CUdeviceptr, stream: CUstream) -> CUresult {
            let (free, _inside) = entered!($symbol(address, stream));
            let on = Stream::new(stream, $per_thread);
            let is_oversubscribed = is_oversubscribed(address, on);
            let _blocked = blocked_calls::begin();
            let call = || {
                if let Some(result) = is_oversubscribed.then(|| managed::free_behind(on, address)).flatten() {
                    return result;
                }
                free()
            };
            match process::current() {
                Some(process) => process.memory.free_address(process, address, call),
                None => call(),
            }
        }
    )+};
}

frees_on_streams! {
    free_async: cuMemFreeAsync, false;
    free_async_ptsz: cuMemFreeAsync_ptsz, true;
}

/// The most bits of one element of an array.
const MOST_TEXEL_BITS: u64 = 128;

/// Returns the bits of one element of an array, all channels together. 0 means that the driver
/// makes no such arrays.
fn texel_bits(format: CUarray_format, channels: u32) -> u64 {
    use deepres_abi::driver::constants as f;
    // Video formats have planes instead of channels, and can have three planes.
    let planes = if channels > 4 { 0 } else { u64::from(channels) };
    let channels = if planes == 3 { 0 } else { planes };
    match format {
        f::CU_AD_FORMAT_UNSIGNED_INT8 | f::CU_AD_FORMAT_SIGNED_INT8 => 8 * channels,
        f::CU_AD_FORMAT_UNSIGNED_INT16 | f::CU_AD_FORMAT_SIGNED_INT16 | f::CU_AD_FORMAT_HALF => 16 * channels,
        f::CU_AD_FORMAT_UNSIGNED_INT32 | f::CU_AD_FORMAT_SIGNED_INT32 | f::CU_AD_FORMAT_FLOAT => {
            32 * channels
        }
        f::CU_AD_FORMAT_UNORM_INT8X1 | f::CU_AD_FORMAT_SNORM_INT8X1 => 8,
        f::CU_AD_FORMAT_UNORM_INT8X2 | f::CU_AD_FORMAT_SNORM_INT8X2 => 16,
        f::CU_AD_FORMAT_UNORM_INT16X1 | f::CU_AD_FORMAT_SNORM_INT16X1 => 16,
        f::CU_AD_FORMAT_UNORM_INT8X4 | f::CU_AD_FORMAT_SNORM_INT8X4 => 32,
        f::CU_AD_FORMAT_UNORM_INT16X2 | f::CU_AD_FORMAT_SNORM_INT16X2 => 32,
        f::CU_AD_FORMAT_UNORM_INT16X4 | f::CU_AD_FORMAT_SNORM_INT16X4 => 64,
        // Blocks of 16 elements take 8 or 16 bytes.
        f::CU_AD_FORMAT_BC1_UNORM..=f::CU_AD_FORMAT_BC1_UNORM_SRGB
        | f::CU_AD_FORMAT_BC4_UNORM..=f::CU_AD_FORMAT_BC4_SNORM => 4,
        f::CU_AD_FORMAT_BC2_UNORM..=f::CU_AD_FORMAT_BC3_UNORM_SRGB
        | f::CU_AD_FORMAT_BC5_UNORM..=f::CU_AD_FORMAT_BC7_UNORM_SRGB => 8,
        // Video formats take 12 to 64 bits.
        f::CU_AD_FORMAT_NV12 => 12,
        _ => 32 * planes,
    }
}

/// A descriptor of an array, in any version, which can tell the array's shape.
trait Describe {
    fn shape(&self) -> Shape;
}

macro_rules! describe {
    ($($type:ty: ($depth:expr, $flags:expr);)+) => {$(
        impl Describe for $type {
            fn shape(&self) -> Shape {
                let depth: fn(&Self) -> u64 = $depth;
                let flags: fn(&Self) -> u32 = $flags;
                Shape {
                    width: self.Width as u64,
                    height: self.Height as u64,
                    depth: depth(self),
                    is_layered: flags(self) & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) != 0,
                    is_unbacked: flags(self) & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING) != 0,
                    texel_bits: texel_bits(self.Format, self.NumChannels),
                }
            }
        }
    )+};
}

describe! {
    CUDA_ARRAY_DESCRIPTOR: (|_| 0, |_| 0);
    CUDA_ARRAY_DESCRIPTOR_v1: (|_| 0, |_| 0);
    CUDA_ARRAY3D_DESCRIPTOR: (|array| array.Depth as u64, |array| array.Flags);
    CUDA_ARRAY3D_DESCRIPTOR_v1: (|array| u64::from(array.Depth), |array| array.Flags);
}

macro_rules! arrays {
    ($($name:ident: $symbol:ident($descriptor:ty) -> $handle:ty $(, $levels:ident: $type:ty)?;)+) => {$(
        #[doc = concat!("Hook of `", stringify!($symbol), "`.")]
        pub unsafe extern "C" fn $name(
            handle: *mut $handle,
            descriptor: *const $descriptor
            $(, $levels: $type)?
        ) -> CUresult {
            let (call, _inside) = entered!($symbol(handle, descriptor $(, $levels)?));
            // SAFETY: the pointer is null, or the caller passes it as a descriptor for the driver
            // to read.
            let Some(shape) = unsafe { descriptor.as_ref() }.map(Describe::shape) else { return call() };
            // Does not charge an array without memory of its own. The interposer charges memory
            // that the job maps into the array by itself.
            if shape.is_unbacked {
                return call();
            }
            let texel_bits = if shape.texel_bits == 0 { MOST_TEXEL_BITS } else { shape.texel_bits };
            let shape = Shape { texel_bits, ..shape };
            let charged = charge::array(shape, [1 $(, $levels)?].into_iter().max().unwrap_or(1));
            on_current_gpu((ApiId::$symbol, MemoryKind::Array, charged), handle, |_| {
                // SAFETY: the driver wrote the handle if it reports success.
                unsafe { answer(call(), handle, |handle| (Name::Array(handle as u64), charged)) }
            })
        }
    )+};
}

arrays! {
    create_array_v1: cuArrayCreate(CUDA_ARRAY_DESCRIPTOR_v1) -> CUarray;
    create_array: cuArrayCreate_v2(CUDA_ARRAY_DESCRIPTOR) -> CUarray;
    create_array_3d_v1: cuArray3DCreate(CUDA_ARRAY3D_DESCRIPTOR_v1) -> CUarray;
    create_array_3d: cuArray3DCreate_v2(CUDA_ARRAY3D_DESCRIPTOR) -> CUarray;
    create_mipmapped: cuMipmappedArrayCreate(CUDA_ARRAY3D_DESCRIPTOR) -> CUmipmappedArray, levels: u32;
}

/// Returns the tenant's limit on a GPU of this process, and the bytes that the tenant holds there.
/// Returns `None` if the tenant has no limit.
fn limit(process: &Process, ordinal: usize) -> Option<(u64, u64)> {
    let gpu = process.gpus.get(ordinal)?;
    let limit_bytes = gpu.grant()?.memory_limit();
    if limit_bytes == NO_LIMIT {
        return None;
    }
    Some((limit_bytes, process.session()?.tenant_held_bytes(gpu)?))
}

macro_rules! info {
    ($name:ident, $symbol:ident, $size:ty) => {
        /// Hook of a variant of `cuMemGetInfo`. The hook reports the tenant's own part of the
        /// memory.
        pub unsafe extern "C" fn $name(free: *mut $size, total: *mut $size) -> CUresult {
            let (call, _inside) = entered!($symbol(free, total));
            let _blocked = blocked_calls::begin();
            let result = call();
            let Some(process) = process::current().filter(|_| result == CUDA_SUCCESS) else { return result };
            let Some(context) = process.current_context() else { return result };
            let Some((limit_bytes, held_bytes)) = limit(process, context.ordinal) else { return result };
            let narrow = |bytes: u64| <$size>::try_from(bytes).unwrap_or(<$size>::MAX);
            // SAFETY: if the driver reports success, it wrote to both pointers.
            if let (Some(free), Some(total)) = unsafe { (free.as_mut(), total.as_mut()) } {
                *free = (*free).min(narrow(charge::left(limit_bytes, held_bytes)));
                *total = (*total).min(narrow(limit_bytes));
            }
            result
        }
    };
}
info!(info_v1, cuMemGetInfo, u32);
info!(info_v2, cuMemGetInfo_v2, usize);

macro_rules! total {
    ($name:ident, $symbol:ident, $size:ty) => {
        /// Hook of a variant of `cuDeviceTotalMem`. The hook reports the size of the tenant's own
        /// part of the memory.
        pub unsafe extern "C" fn $name(bytes: *mut $size, device: CUdevice) -> CUresult {
            let (call, _inside) = entered!($symbol(bytes, device));
            let result = call();
            let Some(process) = process::current().filter(|_| result == CUDA_SUCCESS) else { return result };
            let ordinal = usize::try_from(device).ok();
            let Some((limit_bytes, _)) = ordinal.and_then(|ordinal| limit(process, ordinal)) else {
                return result;
            };
            // SAFETY: the driver wrote there if it reports success.
            if let Some(bytes) = unsafe { bytes.as_mut() } {
                *bytes = (*bytes).min(<$size>::try_from(limit_bytes).unwrap_or(<$size>::MAX));
            }
            result
        }
    };
}
total!(total_v1, cuDeviceTotalMem, u32);
total!(total_v2, cuDeviceTotalMem_v2, usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_that_memory_is_mapped_into_later_takes_none_and_a_cube_has_six_faces_on_every_level() {
        let array = |flags| CUDA_ARRAY3D_DESCRIPTOR {
            Width: 1024,
            Height: 1024,
            Depth: 6,
            Format: deepres_abi::driver::constants::CU_AD_FORMAT_FLOAT,
            NumChannels: 1,
            Flags: flags,
        };
        for (flags, is_layered, is_unbacked) in [
            (0, false, false),
            (CUDA_ARRAY3D_SPARSE, false, true),
            (CUDA_ARRAY3D_DEFERRED_MAPPING | CUDA_ARRAY3D_LAYERED, true, true),
            (CUDA_ARRAY3D_CUBEMAP, true, false),
        ] {
            let shape = array(flags).shape();
            assert_eq!((shape.is_layered, shape.is_unbacked), (is_layered, is_unbacked), "flags {flags}");
        }
    }
}
