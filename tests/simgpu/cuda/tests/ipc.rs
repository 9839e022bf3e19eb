//! Linear memory that another process opens. The processes share the memory, the driver charges it
//! once, and the memory ends with its owner.
#[macro_use]
mod common;
use std::path::PathBuf;
use std::ptr::null_mut;

use common::*;

const MIB: usize = 1 << 20;
const PIECE: usize = 2 * MIB;

/// Another process on the same GPUs, with the test `the_other_process`.
struct Peer {
    process: Other,
    _freed: Freed,
}

impl Peer {
    /// Starts the process. The caller holds a [`Gpu`], which sets the variables that name the GPUs.
    fn start() -> Self {
        let process = Other::start("the_other_process", |_| ());
        Self { _freed: Freed(process.pid()), process }
    }

    fn ask(&mut self, order: &str) -> u64 {
        self.process.ask(order)
    }

    fn open(&mut self, handle: &CUipcMemHandle) -> u64 {
        self.ask(&format!("open {}", hex(handle)))
    }

    /// Returns a handle of memory that the other process owns.
    fn exported(&mut self, bytes: usize) -> CUipcMemHandle {
        assert_eq!(self.ask(&format!("export {bytes}")), 0);
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        for at in 0..handle.reserved.len() {
            handle.reserved[at] = self.ask(&format!("byte {at}")) as u8;
        }
        handle
    }
}

/// Drop waits until a process that has ended has no GPU memory.
struct Freed(u32);

impl Drop for Freed {
    fn drop(&mut self) {
        await_that("a dead process is charged for nothing", || held_bytes(self.0) == 0);
    }
}

fn state() -> PathBuf {
    std::env::var_os("SIMGPU_STATE").expect("a state of our own").into()
}

/// Returns the GPU memory of a process, alive or dead.
fn held_bytes(pid: u32) -> u64 {
    let processes = simgpu_engine::truth::snapshot(&state()).expect("there is a state").processes;
    processes.iter().filter(|process| process.pid == pid).map(|process| process.gpus[0].memory_bytes).sum()
}

fn hex(handle: &CUipcMemHandle) -> String {
    handle.reserved.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn of_hex(text: &str) -> CUipcMemHandle {
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hexadecimal");
    CUipcMemHandle { reserved: std::array::from_fn(byte) }
}

#[test]
#[ignore = "does nothing by itself: the other tests start it"]
fn the_other_process() {
    if std::env::var_os("SIMGPU_STATE").is_none() {
        // No test started this process.
        return;
    }
    let mut context = null_mut();
    ok!(cuInit(0));
    ok!(cuCtxCreate_v2(&mut context, 0, 0));
    let (mut opened, mut own) = (0, 0);
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    obey(|words| {
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        match words[0] {
            "open" => {
                let flags = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
                u64::from(code!(cuIpcOpenMemHandle_v2(&mut opened, of_hex(words[1]), flags)))
            }
            "close" => u64::from(code!(cuIpcCloseMemHandle(opened))),
            "address" => opened,
            "write" => {
                ok!(cuMemsetD32_v2(opened + number(1), number(2) as u32, 1));
                ok!(cuCtxSynchronize());
                0
            }
            "zero" => {
                ok!(cuMemsetD8_v2(opened, 0, number(1) as usize));
                ok!(cuCtxSynchronize());
                0
            }
            "read" => {
                let mut word = 0_u32;
                ok!(cuMemcpyDtoH_v2((&raw mut word).cast(), opened + number(1), size_of::<u32>()));
                word.into()
            }
            "bytes" => {
                let (mut base, mut bytes) = (0, 0);
                ok!(cuMemGetAddressRange_v2(&mut base, &mut bytes, opened));
                assert_eq!(base, opened);
                bytes as u64
            }
            "export" => {
                ok!(cuMemAlloc_v2(&mut own, number(1) as usize));
                ok!(cuMemsetD32_v2(own, 99, 1));
                ok!(cuCtxSynchronize());
                u64::from(code!(cuIpcGetMemHandle(&mut handle, own)))
            }
            "byte" => handle.reserved[number(1) as usize].into(),
            "give-back" => u64::from(code!(cuMemFree_v2(own))),
            "new-context" => {
                ok!(cuCtxDestroy_v2(context));
                ok!(cuCtxCreate_v2(&mut context, 0, 0));
                0
            }
            "second-context" => {
                made!(cuCtxCreate_v2(0, 0));
                0
            }
            "away" => {
                let pid = std::process::id() as i32;
                ok!(cuCheckpointProcessLock(pid, null_mut()));
                let said = code!(cuCheckpointProcessCheckpoint(pid, null_mut()));
                if said == CUDA_SUCCESS {
                    ok!(cuCheckpointProcessRestore(pid, null_mut()));
                }
                ok!(cuCheckpointProcessUnlock(pid, null_mut()));
                said.into()
            }
            other => panic!("the question {other} has no answer"),
        }
    });
}

fn export(address: CUdeviceptr) -> CUipcMemHandle {
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    ok!(cuIpcGetMemHandle(&mut handle, address));
    handle
}

fn write(address: CUdeviceptr, value: u32) {
    ok!(cuMemsetD32_v2(address, value, 1));
    ok!(cuCtxSynchronize());
}

fn open(handle: CUipcMemHandle) -> CUdeviceptr {
    made!(cuIpcOpenMemHandle_v2(handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS))
}

fn files() -> usize {
    let entries = std::fs::read_dir(state()).expect("a folder of our own").flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("memory-")).count()
}

#[test]
fn small_allocations_are_opened_by_themselves_though_they_share_a_piece() {
    let gpu = Gpu::new();
    let mut other = Peer::start();
    let (one, two) = (gpu.memory(1000), gpu.memory(2000));
    assert_eq!(one / PIECE as u64, two / PIECE as u64);
    write(one, 1);
    write(two, 2);
    let (first, second) = (export(one), export(two));
    assert_eq!(other.open(&first), 0);
    assert_eq!((other.ask("read 0"), other.ask("bytes")), (1, 1000));
    assert_eq!(other.open(&second), 0);
    assert_eq!((other.ask("read 0"), other.ask("bytes")), (2, 2000));
    // The neighbour in the piece still lives, so the piece does too. A new allocation gets the same
    // address.
    ok!(cuMemFree_v2(one));
    let again = gpu.memory(1000);
    assert_eq!(again, one);
    assert_ne!(export(again).reserved, first.reserved);
    let mut third = Peer::start();
    assert_eq!(third.open(&first), u64::from(CUDA_ERROR_INVALID_HANDLE));
    assert_eq!(third.open(&second), 0);
}

#[test]
fn memory_that_the_exporter_frees_stays_readable_where_it_is_open_and_costs_the_gpu_nothing() {
    let gpu = Gpu::new();
    let mut other = Peer::start();
    assert_eq!(other.ask("address"), 0);
    let before = gpu.used_bytes();
    let memory = gpu.memory(PIECE);
    write(memory, 3);
    assert_eq!(other.open(&export(memory)), 0);
    ok!(cuMemFree_v2(memory));
    assert_eq!(gpu.used_bytes(), before);
    assert_eq!(other.ask("read 0"), 3);
    assert_eq!(other.ask("close"), 0);
}

#[test]
fn neither_process_loses_anything_by_the_death_of_the_other() {
    let gpu = Gpu::new();
    let before = gpu.used_bytes();
    let memory = gpu.memory(PIECE);
    let handle = export(memory);
    let mut opener = Peer::start();
    assert_eq!((opener.open(&handle), opener.ask("write 0 17")), (0, 0));
    drop(opener);
    assert_eq!(gpu.read(memory, 1), [17]);
    let mut another = Peer::start();
    assert_eq!((another.open(&handle), another.ask("read 0")), (0, 17));
    drop(another);
    ok!(cuMemFree_v2(memory));

    let mut exporter = Peer::start();
    let theirs = exporter.exported(PIECE);
    let opened = open(theirs);
    assert_eq!(gpu.read(opened, 1), [99]);
    drop(exporter);
    assert_eq!(gpu.read(opened, 1), [99], "open memory stays");
    assert_eq!(gpu.used_bytes(), before, "and counts for nobody");
    let mut late = Peer::start();
    assert_eq!(late.open(&theirs), u64::from(CUDA_ERROR_INVALID_HANDLE));
    assert_eq!(files(), 0, "the next process to start removes a dead exporter's files");
    ok!(cuIpcCloseMemHandle(opened));
}

#[test]
fn the_end_of_a_context_ends_what_it_exported_and_what_it_opened() {
    let gpu = Gpu::new();
    let mut other = Peer::start();
    let (theirs, mine) = (other.exported(1000), gpu.memory(PIECE));
    let opened = open(theirs);
    assert_eq!(other.open(&export(mine)), 0);
    assert_eq!(other.ask("new-context"), 0);
    assert_eq!(other.ask("close"), u64::from(CUDA_ERROR_INVALID_VALUE));
    ok!(cuIpcCloseMemHandle(opened));
    let mut address = 0;
    let flags = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
    assert_eq!(code!(cuIpcOpenMemHandle_v2(&mut address, theirs, flags)), CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(other.open(&export(mine)), 0, "in the new context");
}

#[test]
fn checkpoints_leave_out_who_shares_memory() {
    let gpu = Gpu::new();
    let mut other = Peer::start();
    assert_eq!(other.ask("away"), 0);
    let handle = other.exported(PIECE);
    assert_eq!(other.ask("away"), u64::from(CUDA_ERROR_NOT_SUPPORTED), "it exports");
    ok!(cuIpcCloseMemHandle(open(handle)));
    assert_eq!(other.ask("give-back"), 0);
    let memory = gpu.memory(PIECE);
    assert_eq!(other.open(&export(memory)), 0);
    assert_eq!(other.ask("away"), u64::from(CUDA_ERROR_NOT_SUPPORTED), "it has something open");
    assert_eq!(other.ask("close"), 0);
}

#[test]
fn zeros_that_one_process_writes_are_the_others_too() {
    let gpu = Gpu::new();
    let mut other = Peer::start();
    let memory = gpu.memory(3 * MIB);
    let last = memory + (3 * MIB - 4) as u64;
    write(memory, 7);
    write(last, 8);
    assert_eq!(other.open(&export(memory)), 0);
    assert_eq!(other.ask(&format!("read {}", 3 * MIB - 4)), 8);
    // The driver writes so many zeros by dropping pages.
    assert_eq!(other.ask(&format!("zero {}", 3 * MIB)), 0);
    assert_eq!((gpu.read(memory, 1), gpu.read(last, 1)), (vec![0], vec![0]));
    write(memory, 5);
    ok!(cuMemsetD8_v2(memory, 0, 3 * MIB));
    ok!(cuCtxSynchronize());
    assert_eq!((other.ask("read 0"), other.ask("close")), (0, 0));
    ok!(cuMemFree_v2(memory));
    assert_eq!(files(), 0);
}

#[test]
fn one_context_opens_a_process_memory() {
    let gpu = Gpu::new();
    let mut other = Peer::start();
    let handle = export(gpu.memory(PIECE));
    assert_eq!((other.open(&handle), other.ask("second-context")), (0, 0));
    assert_eq!(other.open(&handle), u64::from(CUDA_ERROR_INVALID_CONTEXT));
}

#[test]
fn handles_that_are_none_are_refused() {
    let gpu = Gpu::new();
    let memory = gpu.memory(PIECE);
    let handle = export(memory);
    let (mut got, mut address) = (CUipcMemHandle { reserved: [0; 64] }, 0);
    let lazy = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
    assert_eq!(code!(cuIpcGetMemHandle(null_mut(), memory)), CUDA_ERROR_INVALID_VALUE);
    let pinned = gpu.pinned(16).as_ptr() as CUdeviceptr;
    for none in [0, pinned] {
        assert_eq!(code!(cuIpcGetMemHandle(&mut got, none)), CUDA_ERROR_INVALID_VALUE);
    }
    assert_eq!(code!(cuIpcOpenMemHandle_v2(&mut address, got, lazy)), CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(code!(cuIpcOpenMemHandle(&mut address, got, lazy)), CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(code!(cuIpcOpenMemHandle_v2(null_mut(), handle, lazy)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(code!(cuIpcOpenMemHandle_v2(&mut address, handle, 0)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(code!(cuIpcCloseMemHandle(0)), CUDA_ERROR_INVALID_VALUE);
    let mut other = Peer::start();
    let mut damaged = handle;
    damaged.reserved[40] ^= 1;
    assert_eq!(other.open(&damaged), u64::from(CUDA_ERROR_INVALID_HANDLE));
    ok!(cuMemFree_v2(memory));
    assert_eq!(other.open(&handle), u64::from(CUDA_ERROR_INVALID_HANDLE), "it was freed");
    ok!(cuCtxSetCurrent(null_mut()));
    assert_eq!(code!(cuIpcCloseMemHandle(0)), CUDA_ERROR_INVALID_CONTEXT);
    ok!(cuCtxSetCurrent(gpu.context));
}
