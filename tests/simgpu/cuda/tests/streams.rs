//! Streams: work goes on without any call of the client.
#[macro_use]
mod common;
use std::time::{Duration, Instant};

use common::*;

#[test]
fn page_locked_memory_changes_by_itself() {
    let gpu = Gpu::new();
    let stream = gpu.stream(CU_STREAM_NON_BLOCKING);
    let (host, device) = (gpu.pinned(1), gpu.memory(4));
    ok!(cuMemsetD32Async(device, 9, 1, stream));
    ok!(cuMemcpyDtoHAsync_v2(host.as_mut_ptr().cast(), device, 4, stream));
    let deadline = Instant::now() + Duration::from_secs(5);
    // SAFETY: the word is valid, and only the driver's thread writes it.
    while unsafe { std::ptr::read_volatile(host.as_ptr()) } != 9 {
        assert!(Instant::now() < deadline, "nobody asked, and nothing happened");
        std::thread::yield_now();
    }
}
