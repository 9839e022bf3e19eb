//! Managed memory: the place of the memory, its moves, and the cost of the moves.
#[macro_use]
mod common;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use common::*;

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;
const PIECE: usize = 2 * MIB;

fn managed(bytes: usize) -> CUdeviceptr {
    made!(cuMemAllocManaged(bytes, CU_MEM_ATTACH_GLOBAL))
}

fn prefetch(address: CUdeviceptr, bytes: usize, device: CUdevice) -> Duration {
    let begun = Instant::now();
    ok!(cuMemPrefetchAsync(address, bytes, device, null_mut()));
    ok!(cuCtxSynchronize());
    begun.elapsed()
}

fn attribute(attribute: CUmem_range_attribute, address: CUdeviceptr, bytes: usize) -> i32 {
    let mut value = 0;
    ok!(cuMemRangeGetAttribute((&raw mut value).cast(), 4, attribute, address, bytes));
    value
}

/// Launches a kernel with an address as parameter.
fn launch_with(gpu: &Gpu, mut address: CUdeviceptr) {
    let mut n = 0_u32;
    let mut parameters = [(&raw mut address).cast(), (&raw mut n).cast()];
    let kernel = gpu.kernel(c"small");
    ok!(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, null_mut(), parameters.as_mut_ptr(), null_mut()));
    ok!(cuCtxSynchronize());
}

#[test]
fn it_is_on_the_host_until_it_is_brought_and_moving_it_takes_its_time_once() {
    let gpu = Gpu::new();
    let before = gpu.used_bytes();
    let address = managed(4 * GIB);
    assert_eq!(gpu.used_bytes(), before);
    // The default bus has 55 GB/s.
    let at_least = Duration::from_millis(40);
    assert!(prefetch(address, 4 * GIB, 0) > at_least);
    assert_eq!(gpu.used_bytes() - before, 4 * GIB);
    assert!(prefetch(address, 4 * GIB, 0) < at_least, "memory that is there is not moved");
    ok!(cuMemPrefetchAsync(address, PIECE, CU_DEVICE_CPU, null_mut()));
    assert_eq!(gpu.used_bytes() - before, 4 * GIB - PIECE, "by pieces");
    ok!(cuMemFree_v2(address));
    assert_eq!(gpu.used_bytes(), before);
}

#[test]
fn a_kernel_that_gets_its_address_brings_it() {
    let gpu = Gpu::new();
    let before = gpu.used_bytes();
    let address = managed(3 * MIB);
    launch_with(&gpu, 0x1234);
    assert_eq!(gpu.used_bytes(), before);
    launch_with(&gpu, address + MIB as u64);
    assert_eq!(gpu.used_bytes() - before, 4 * MIB);
    ok!(cuMemFree_v2(address));
}

#[test]
fn memory_of_the_device_drives_it_out_and_not_the_other_way_round() {
    let gpu = Gpu::new();
    let (mut free, mut total) = (0, 0);
    ok!(cuMemGetInfo_v2(&mut free, &mut total));
    let before = total - free;
    let address = managed(2 * total);
    ok!(cuMemPrefetchAsync(address, 2 * total, 0, null_mut()));
    ok!(cuMemGetInfo_v2(&mut free, &mut total));
    assert!(free < PIECE, "it has what is free, and no more: {free}");
    let taken = gpu.memory(8 * GIB);
    ok!(cuMemPrefetchAsync(address, PIECE, CU_DEVICE_CPU, null_mut()));
    ok!(cuMemFree_v2(taken));
    ok!(cuMemGetInfo_v2(&mut free, &mut total));
    assert!((8 * GIB..9 * GIB).contains(&free), "the taken memory drove it out: {free}");
    ok!(cuMemsetD8_v2(address + (2 * total - 1) as u64, 7, 1));
    ok!(cuCtxSynchronize());
    ok!(cuMemFree_v2(address));
    assert_eq!(gpu.used_bytes(), before);
}

#[test]
fn advice_is_reported_for_ranges_that_agree() {
    let gpu = Gpu::new();
    let address = managed(2 * PIECE);
    let all = 2 * PIECE;
    let preferred = CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION;
    assert_eq!(attribute(preferred, address, all), CU_DEVICE_INVALID);
    ok!(cuMemAdvise(address, PIECE, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 1));
    assert_eq!(attribute(preferred, address, PIECE), 1);
    assert_eq!(attribute(preferred, address, all), CU_DEVICE_INVALID);
    ok!(cuMemAdvise(address, PIECE, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, 0));
    assert_eq!(attribute(preferred, address, PIECE), CU_DEVICE_INVALID);
    ok!(cuMemPrefetchAsync(address, all, 0, null_mut()));
    assert_eq!(attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, address, all), 0);
    ok!(cuMemAdvise(address, all, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
    assert_eq!(attribute(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, address, all), 1);
    ok!(cuMemAdvise(address, all, CU_MEM_ADVISE_SET_ACCESSED_BY, CU_DEVICE_CPU));
    ok!(cuMemAdvise(address, all, CU_MEM_ADVISE_SET_ACCESSED_BY, 1));
    let mut by = [0; 3];
    let accessed_by = CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY;
    ok!(cuMemRangeGetAttribute(by.as_mut_ptr().cast(), 12, accessed_by, address, all));
    assert_eq!(by, [1, CU_DEVICE_CPU, CU_DEVICE_INVALID]);
    let device = gpu.memory(64);
    let refused = code!(cuMemRangeGetAttribute(by.as_mut_ptr().cast(), 4, preferred, device, 64));
    assert_eq!(refused, CUDA_ERROR_INVALID_VALUE);
    ok!(cuMemFree_v2(address));
}
