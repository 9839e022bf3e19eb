//! Memory from cuMemAlloc and its relatives: the requests that the driver refuses, the memory that
//! a request takes, and the attributes of addresses.

use super::prelude::*;

checks! { "memory":
    Documented sizes_and_places_that_are_refused;
    Documented more_than_there_is;
    Guess addresses_that_are_not_allocations;
    Guess memory_is_taken_in_pieces_of_two_mebibytes;
    Documented rows_are_aligned;
    Documented addresses_say_what_they_are;
    Documented host_memory_is_registered_once;
    Documented managed_memory;
    Documented managed_memory_goes_where_it_is_prefetched;
    Guess arrays;
    Documented levels_of_a_mipmapped_array_are_arrays;
    Guess a_context_takes_memory_and_gives_it_back;
    Guess memory_that_no_allocation_took_is_in_use_like_any_other;
    Documented a_free_waits_for_the_work_before_it;
    Guess copies_beyond_an_allocation;
    Documented a_batch_copies_within_the_device_and_from_the_host;
}

const MIB: usize = 1 << 20;

fn sizes_and_places_that_are_refused(facts: &mut Facts) -> Result<(), Stop> {
    let _gpu = Gpu::new()?;
    let mut address = 0;
    facts.code("no bytes", cu!(cuMemAlloc_v2(&mut address, 0)), CUDA_ERROR_INVALID_VALUE);
    facts.code("no place for the answer", cu!(cuMemAlloc_v2(null_mut(), 64)), CUDA_ERROR_INVALID_VALUE);
    let flags = cu!(cuMemAllocManaged(&mut address, 64, 0));
    facts.code("managed without an attachment", flags, CUDA_ERROR_INVALID_VALUE);
    let element = cu!(cuMemAllocPitch_v2(&mut address, &mut 0, 64, 1, 3));
    facts.code("rows of elements of 3 bytes", element, CUDA_ERROR_INVALID_VALUE);
    Ok(())
}

fn more_than_there_is(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let (mut address, mut total, mut free, mut whole) = (0, 0, 0, 0);
    must!(cuDeviceTotalMem_v2(&mut total, 0));
    must!(cuMemGetInfo_v2(&mut free, &mut whole));
    facts.is("both ways to ask for the total", whole, total);
    facts.has("free", (free, total), "less than all", free < total);
    facts.code("a byte more", cu!(cuMemAlloc_v2(&mut address, total + 1)), CUDA_ERROR_OUT_OF_MEMORY);
    let code = cu!(cuMemAlloc_v2(&mut address, usize::MAX));
    facts.code("as much as can be said", code, CUDA_ERROR_OUT_OF_MEMORY);
    facts.code("a small allocation after these", cu!(cuMemAlloc_v2(&mut address, 64)), CUDA_SUCCESS);
    facts.code("the context is well", gpu.nothing(null_mut())?, CUDA_SUCCESS);
    Ok(())
}

fn addresses_that_are_not_allocations(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let address = gpu.memory(64)?;
    facts.code("freeing null", cu!(cuMemFree_v2(0)), CUDA_SUCCESS);
    facts.code("freeing what never was", cu!(cuMemFree_v2(0x1234_0000)), CUDA_ERROR_INVALID_VALUE);
    facts.code("freeing the middle", cu!(cuMemFree_v2(address + 8)), CUDA_ERROR_INVALID_VALUE);
    facts.code("freeing", cu!(cuMemFree_v2(address)), CUDA_SUCCESS);
    facts.code("freeing it again", cu!(cuMemFree_v2(address)), CUDA_ERROR_INVALID_VALUE);
    let mut word = 0_u32;
    let host = cu!(cuMemFreeHost((&raw mut word).cast()));
    facts.code("freeing host memory of ours", host, CUDA_ERROR_INVALID_VALUE);
    Ok(())
}

/// The expectation holds on a GPU that no other process uses meanwhile.
fn memory_is_taken_in_pieces_of_two_mebibytes(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    // The block that small allocations share must exist before the measurement.
    let _small = gpu.memory(64)?;
    let before = gpu.used_bytes()?;
    let large = gpu.memory(3 * MIB)?;
    facts.is("3 MiB take", gpu.used_bytes()? - before, 4 * MIB);
    let small: Vec<_> = (0..100).map(|_| gpu.memory(1000)).collect::<Result<_, _>>()?;
    let taken = gpu.used_bytes()? - before;
    facts.has("a hundred of 1000 bytes beside it", taken, "at most one piece more", taken <= 6 * MIB);
    facts.is("where they begin, modulo 256", small.iter().map(|address| address % 256).max(), Some(0));
    for address in small {
        must!(cuMemFree_v2(address));
    }
    must!(cuMemFree_v2(large));
    facts.is("freed", gpu.used_bytes()?, before);
    Ok(())
}

fn rows_are_aligned(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let (mut address, mut pitch) = (0, 0);
    must!(cuMemAllocPitch_v2(&mut address, &mut pitch, 12, 3, 4));
    facts.has(
        "the pitch of rows of 12 bytes",
        pitch,
        "at least 12, a multiple of 256",
        pitch >= 12 && pitch % 256 == 0,
    );
    let rows: Vec<u32> = (0..9).collect();
    let mut copy = zeroed!(CUDA_MEMCPY2D);
    (copy.srcMemoryType, copy.srcHost, copy.srcPitch) = (CU_MEMORYTYPE_HOST, rows.as_ptr().cast(), 12);
    (copy.dstMemoryType, copy.dstDevice, copy.dstPitch) = (CU_MEMORYTYPE_DEVICE, address, pitch);
    (copy.WidthInBytes, copy.Height) = (12, 3);
    must!(cuMemcpy2D_v2(&copy));
    facts.is("the last row of a copy", gpu.read(address + 2 * pitch as u64, 3)?, vec![6, 7, 8]);
    must!(cuMemsetD2D32_v2(address, pitch, 9, 2, 2));
    facts.is("a row that is set in part", gpu.read(address + pitch as u64, 3)?, vec![9, 9, 5]);
    copy.dstPitch = 8;
    facts.code("a copy with such a pitch", cu!(cuMemcpy2D_v2(&copy)), CUDA_ERROR_INVALID_VALUE);
    must!(cuMemsetD2D32_v2(address, pitch, 5, 3, 3));
    facts.is("the last row", gpu.read(address + 2 * pitch as u64, 3)?, vec![5; 3]);
    let code = cu!(cuMemsetD2D32_v2(address, 8, 5, 3, 3));
    facts.code("a pitch smaller than a row", code, CUDA_ERROR_INVALID_VALUE);
    Ok(())
}

fn addresses_say_what_they_are(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let (device, host) = (gpu.memory(100)?, gpu.pinned(4)?);
    let kind = |address| {
        let mut kind = 0_u32;
        let code =
            cu!(cuPointerGetAttribute((&raw mut kind).cast(), CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
        Ok::<_, Stop>((code, kind))
    };
    facts.is("device memory", kind(device + 50)?, (CUDA_SUCCESS, CU_MEMORYTYPE_DEVICE));
    facts.is("host memory of the driver's", kind(host.as_ptr() as u64)?, (CUDA_SUCCESS, CU_MEMORYTYPE_HOST));
    facts.code("an unknown address", kind(0x1000)?.0, CUDA_ERROR_INVALID_VALUE);
    let managed = made!(cuMemAllocManaged(64, CU_MEM_ATTACH_GLOBAL));
    let place = |address| {
        let (mut kind, mut is_managed, mut ordinal) = (0_u32, 0_u64, 0_i32);
        let mut asked = [
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            CU_POINTER_ATTRIBUTE_IS_MANAGED,
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        ];
        let mut answers = [(&raw mut kind).cast(), (&raw mut is_managed).cast(), (&raw mut ordinal).cast()];
        must!(cuPointerGetAttributes(asked.len() as u32, asked.as_mut_ptr(), answers.as_mut_ptr(), address));
        Ok::<_, Stop>((kind == CU_MEMORYTYPE_DEVICE && is_managed == 0).then_some(ordinal))
    };
    facts.is("the device of device memory", place(device + 50)?, Some(0));
    facts.is("of host memory", place(host.as_ptr() as u64)?, None);
    facts.is("of managed memory", place(managed)?, None);
    facts.is("of what nobody knows", place(0x1000)?, None);
    let (mut base, mut bytes) = (0, 0);
    must!(cuMemGetAddressRange_v2(&mut base, &mut bytes, device + 50));
    facts.is("the allocation around an address", (base, bytes), (device, 100));
    Ok(())
}

fn host_memory_is_registered_once(facts: &mut Facts) -> Result<(), Stop> {
    const PAGE_BYTES: usize = 4096;
    let _gpu = Gpu::new()?;
    let mut own = vec![0_u8; 3 * PAGE_BYTES];
    let at = own.as_mut_ptr().cast();
    facts.code("once", cu!(cuMemHostRegister_v2(at, own.len(), 0)), CUDA_SUCCESS);
    let (mut kind, attribute) = (0_u32, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
    must!(cuPointerGetAttribute((&raw mut kind).cast(), attribute, at as u64));
    facts.is("the kind of the registered memory", kind, CU_MEMORYTYPE_HOST);
    let again = cu!(cuMemHostRegister_v2(at, own.len(), 0));
    facts.code("twice", again, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    facts.code("taking it back", cu!(cuMemHostUnregister(at)), CUDA_SUCCESS);
    facts.code("twice", cu!(cuMemHostUnregister(at)), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    facts.code("nothing of it", cu!(cuMemHostRegister_v2(at, 0, 0)), CUDA_ERROR_INVALID_VALUE);
    Ok(())
}

fn managed_memory(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let (mut address, mut is_managed) = (0, 0_u8);
    must!(cuMemAllocManaged(&mut address, 4096, CU_MEM_ATTACH_GLOBAL));
    must!(cuPointerGetAttribute((&raw mut is_managed).cast(), CU_POINTER_ATTRIBUTE_IS_MANAGED, address));
    facts.is("says that it is managed", is_managed, 1);
    must!(cuMemsetD32_v2(address, 9, 1));
    must!(cuCtxSynchronize());
    // SAFETY: the host may read managed memory once the device has finished.
    facts.is("the host reads what the device wrote", unsafe { *(address as *const u32) }, 9);
    facts.code("cuMemFree frees it", cu!(cuMemFree_v2(address)), CUDA_SUCCESS);
    let other = gpu.memory(4096)?;
    let advised = cu!(cuMemPrefetchAsync(other, 4096, CU_DEVICE_CPU, null_mut()));
    facts.code("prefetching what is not managed", advised, CUDA_ERROR_INVALID_VALUE);
    Ok(())
}

fn managed_memory_goes_where_it_is_prefetched(facts: &mut Facts) -> Result<(), Stop> {
    let _gpu = Gpu::new()?;
    const BYTES: usize = 4 * MIB;
    let migrates = made!(cuDeviceGetAttribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0));
    let address = made!(cuMemAllocManaged(BYTES, CU_MEM_ATTACH_GLOBAL));
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    let exported = cu!(cuIpcGetMemHandle(&mut handle, address));
    facts.has("exporting it to other processes", exported, "refused", exported != CUDA_SUCCESS);
    if migrates != 0 {
        let attribute = |attribute| {
            let mut value = 0_i32;
            must!(cuMemRangeGetAttribute((&raw mut value).cast(), 4, attribute, address, BYTES));
            Ok::<_, Stop>(value)
        };
        let (preferred, last) =
            (CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION);
        facts.is("where it belongs at first", attribute(preferred)?, CU_DEVICE_INVALID);
        must!(cuMemAdvise(address, BYTES, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 0));
        facts.is("where it belongs once that was advised", attribute(preferred)?, 0);
        must!(cuMemPrefetchAsync(address, BYTES, 0, null_mut()));
        must!(cuCtxSynchronize());
        facts.is("where it was prefetched to", attribute(last)?, 0);
        must!(cuMemAdvise(address, BYTES, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, 0));
        facts.is("where it belongs once that was taken back", attribute(preferred)?, CU_DEVICE_INVALID);
        must!(cuMemsetD32_v2(address, 9, 1));
        must!(cuMemPrefetchAsync(address, BYTES, CU_DEVICE_CPU, null_mut()));
        must!(cuCtxSynchronize());
        facts.is("where it was prefetched to then", attribute(last)?, CU_DEVICE_CPU);
    }
    let more = cu!(cuMemPrefetchAsync(address, BYTES + MIB, CU_DEVICE_CPU, null_mut()));
    facts.code("prefetching more than there is of it", more, CUDA_ERROR_INVALID_VALUE);
    // Where managed memory migrates by pages, a process can have more of it than the GPU has.
    let (mut total, mut large) = (0, 0);
    must!(cuDeviceTotalMem_v2(&mut total, 0));
    if migrates != 0 {
        let code = cu!(cuMemAllocManaged(&mut large, total + MIB, CU_MEM_ATTACH_GLOBAL));
        facts.code("more of it than the GPU has", code, CUDA_SUCCESS);
        must!(cuMemFree_v2(large));
    }
    must!(cuMemFree_v2(address));
    Ok(())
}

fn arrays(facts: &mut Facts) -> Result<(), Stop> {
    let _gpu = Gpu::new()?;
    let mut descriptor =
        CUDA_ARRAY_DESCRIPTOR { Width: 4, Height: 2, Format: CU_AD_FORMAT_UNSIGNED_INT32, NumChannels: 1 };
    let mut array = null_mut();
    must!(cuArrayCreate_v2(&mut array, &descriptor));
    let (sent, mut got) = ([1_u32, 2, 3, 4], [0_u32; 2]);
    must!(cuMemcpyHtoA_v2(array, 0, sent.as_ptr().cast(), 16));
    must!(cuMemcpyAtoH_v2(got.as_mut_ptr().cast(), array, 8, 8));
    facts.is("keep what is copied into them", got, [3, 4]);
    must!(cuArrayDestroy(array));
    facts.code("one that is destroyed", cu!(cuArrayDestroy(array)), CUDA_ERROR_INVALID_HANDLE);
    descriptor.NumChannels = 3;
    let code = cu!(cuArrayCreate_v2(&mut array, &descriptor));
    facts.code("elements of three parts", code, CUDA_ERROR_INVALID_VALUE);
    Ok(())
}

fn levels_of_a_mipmapped_array_are_arrays(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let descriptor = CUDA_ARRAY3D_DESCRIPTOR {
        Width: 1024,
        Height: 512,
        Depth: 0,
        Format: CU_AD_FORMAT_UNSIGNED_INT32,
        NumChannels: 4,
        Flags: 0,
    };
    let before = gpu.used_bytes()?;
    let (mut mipmapped, mut level) = (null_mut(), null_mut());
    must!(cuMipmappedArrayCreate(&mut mipmapped, &descriptor, 100));
    let taken = gpu.used_bytes()? - before;
    facts.has("all levels", taken, "more than the first alone", taken > 8 * MIB);
    let mut found = zeroed!(CUDA_ARRAY3D_DESCRIPTOR);
    must!(cuMipmappedArrayGetLevel(&mut level, mipmapped, 10));
    must!(cuArray3DGetDescriptor_v2(&mut found, level));
    facts.is("the last level is one element", (found.Width, found.Height), (1, 1));
    let beyond = cu!(cuMipmappedArrayGetLevel(&mut level, mipmapped, 11));
    facts.code("the levels end there", beyond, CUDA_ERROR_INVALID_VALUE);
    must!(cuMipmappedArrayGetLevel(&mut level, mipmapped, 1));
    let (sent, mut got) = ([1_u32, 2, 3, 4], [0_u32; 2]);
    must!(cuMemcpyHtoA_v2(level, 0, sent.as_ptr().cast(), 16));
    must!(cuMemcpyAtoH_v2(got.as_mut_ptr().cast(), level, 8, 8));
    facts.is("keep what is copied into them", got, [3, 4]);
    must!(cuMipmappedArrayDestroy(mipmapped));
    facts.is("the memory in use after the end", gpu.used_bytes()?, before);
    Ok(())
}

fn a_context_takes_memory_and_gives_it_back(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let before = gpu.used_bytes()?;
    let other = made!(cuCtxCreate_v2(0, 0));
    let _lost = gpu.memory(64 * MIB)?;
    let with = gpu.used_bytes()?;
    facts.has("a second context with 64 MiB", with - before, "more than that", with - before > 64 * MIB);
    must!(cuCtxDestroy_v2(other));
    facts.is("destroyed with what was in it", gpu.used_bytes()?, before);
    Ok(())
}

/// deepres charges what NVML reports for a process beyond its allocations, so such memory must
/// show.
fn memory_that_no_allocation_took_is_in_use_like_any_other(facts: &mut Facts) -> Result<(), Stop> {
    const HEAP_BYTES: usize = 256 * MIB;
    let gpu = Gpu::new()?;
    let before = gpu.used_bytes()?;
    must!(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, HEAP_BYTES));
    // A driver can take the heap only for the first kernel.
    facts.code("a kernel with a larger heap", gpu.nothing(null_mut())?, CUDA_SUCCESS);
    must!(cuCtxSynchronize());
    let grown = gpu.used_bytes()?.saturating_sub(before);
    let name = "a heap of 256 MiB takes";
    facts.has(name, grown, "nothing, or its size", grown == 0 || grown >= HEAP_BYTES - 64 * MIB);
    Ok(())
}

fn a_free_waits_for_the_work_before_it(facts: &mut Facts) -> Result<(), Stop> {
    let (gpu, [stream]) = Gpu::with_streams()?;
    let address = gpu.memory(4 * MIB)?;
    gpu.spin(stream, crate::gpu::SPIN_NS)?;
    facts.code("freeing behind work", cu!(cuMemFree_v2(address)), CUDA_SUCCESS);
    facts.code("that work is through then", cu!(cuStreamQuery(stream)), CUDA_SUCCESS);
    Ok(())
}

/// deepres makes a batch of each kind of such copies.
fn a_batch_copies_within_the_device_and_from_the_host(facts: &mut Facts) -> Result<(), Stop> {
    const BYTES: usize = 16;
    let (gpu, [stream]) = Gpu::with_streams()?;
    let (device, host) = (gpu.memory(3 * BYTES)?, gpu.pinned(4)?);
    host.copy_from_slice(&[1, 2, 3, 4]);
    must!(cuMemsetD32_v2(device, 9, 4));
    must!(cuCtxSynchronize());
    let mut targets = [device + BYTES as u64, device + 2 * BYTES as u64];
    let (mut sources, mut sizes, mut firsts) = ([device, host.as_ptr() as u64], [BYTES; 2], [0]);
    let hint = CUmemLocation { r#type: 0, id: 0 };
    let mut attributes =
        [CUmemcpyAttributes { srcAccessOrder: 1, srcLocHint: hint, dstLocHint: hint, flags: 0 }];
    let mut make = |firsts: &mut [usize; 1]| {
        Ok::<_, Stop>(cu!(cuMemcpyBatchAsync_v2(
            targets.as_mut_ptr(),
            sources.as_mut_ptr(),
            sizes.as_mut_ptr(),
            sizes.len(),
            attributes.as_mut_ptr(),
            firsts.as_mut_ptr(),
            firsts.len(),
            stream
        )))
    };
    facts.code("copies of both kinds", make(&mut firsts)?, CUDA_SUCCESS);
    must!(cuStreamSynchronize(stream));
    let copied = gpu.read(device + BYTES as u64, 8)?;
    facts.is("the copied bytes", copied, vec![9, 9, 9, 9, 1, 2, 3, 4]);
    facts.code("no attributes for the first", make(&mut [1])?, CUDA_ERROR_INVALID_VALUE);
    Ok(())
}

fn copies_beyond_an_allocation(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let device = gpu.memory(64)?;
    let mut host = [0_u8; 128];
    let read = cu!(cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), device, 65));
    facts.code("a byte beyond the end", read, CUDA_ERROR_INVALID_VALUE);
    facts.code("a set beyond the end", cu!(cuMemsetD32_v2(device, 0, 17)), CUDA_ERROR_INVALID_VALUE);
    facts.code("a set that is not aligned", cu!(cuMemsetD32_v2(device + 2, 0, 1)), CUDA_ERROR_INVALID_VALUE);
    let unknown = cu!(cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), 0x1000, 16));
    facts.code("from nowhere", unknown, CUDA_ERROR_INVALID_VALUE);
    Ok(())
}
