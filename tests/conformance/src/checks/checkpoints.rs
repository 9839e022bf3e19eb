//! Checkpoints: a process is locked, checkpointed, restored and unlocked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use deepres_abi::driver::constants::{
    CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_RUNNING,
};

use super::prelude::*;

checks! { "checkpoints":
    Documented a_process_goes_through_the_states_in_their_order_alone;
    Documented memory_is_as_it_was_after_a_restore;
    Documented a_call_waits_until_the_process_is_unlocked;
    Guess managed_memory_is_left_out_and_its_process_goes_on;
    Documented submitted_work_is_complete_once_the_process_is_locked;
}

/// A time longer than any call takes that does not wait.
const PATIENCE: Duration = Duration::from_millis(200);

fn own_pid() -> i32 {
    std::process::id() as i32
}

fn state() -> Result<CUprocessState, Stop> {
    let mut state = CUprocessState::MAX;
    must!(cuCheckpointProcessGetState(own_pid(), &mut state));
    Ok(state)
}

fn a_process_goes_through_the_states_in_their_order_alone(facts: &mut Facts) -> Result<(), Stop> {
    let _gpu = Gpu::new()?;
    let pid = own_pid();
    facts.is("at first", state()?, CU_PROCESS_STATE_RUNNING);
    let code = cu!(cuCheckpointProcessCheckpoint(pid, null_mut()));
    facts.code("checkpoint unlocked", code, CUDA_ERROR_ILLEGAL_STATE);
    facts.code("unlock unlocked", cu!(cuCheckpointProcessUnlock(pid, null_mut())), CUDA_ERROR_ILLEGAL_STATE);
    must!(cuCheckpointProcessLock(pid, null_mut()));
    facts.is("locked", state()?, CU_PROCESS_STATE_LOCKED);
    let code = cu!(cuCheckpointProcessRestore(pid, null_mut()));
    facts.code("restore what is not away", code, CUDA_ERROR_ILLEGAL_STATE);
    must!(cuCheckpointProcessCheckpoint(pid, null_mut()));
    facts.is("checkpointed", state()?, CU_PROCESS_STATE_CHECKPOINTED);
    let code = cu!(cuCheckpointProcessUnlock(pid, null_mut()));
    facts.code("unlock what is away", code, CUDA_ERROR_ILLEGAL_STATE);
    must!(cuCheckpointProcessRestore(pid, null_mut()));
    facts.is("restored", state()?, CU_PROCESS_STATE_LOCKED);
    must!(cuCheckpointProcessUnlock(pid, null_mut()));
    facts.is("unlocked", state()?, CU_PROCESS_STATE_RUNNING);
    facts.code("no process", cu!(cuCheckpointProcessLock(0, null_mut())), CUDA_ERROR_INVALID_VALUE);
    Ok(())
}

fn memory_is_as_it_was_after_a_restore(facts: &mut Facts) -> Result<(), Stop> {
    const BYTES: usize = 4 << 20;
    let gpu = Gpu::new()?;
    let pid = own_pid();
    let address = gpu.memory(BYTES)?;
    let written: Vec<u8> = (0..BYTES).map(|at| (at * 7 % 251) as u8).collect();
    must!(cuMemcpyHtoD_v2(address, written.as_ptr().cast(), BYTES));
    let before = gpu.used_bytes()?;
    must!(cuCheckpointProcessLock(pid, null_mut()));
    must!(cuCheckpointProcessCheckpoint(pid, null_mut()));
    must!(cuCheckpointProcessRestore(pid, null_mut()));
    must!(cuCheckpointProcessUnlock(pid, null_mut()));
    let mut read = vec![0_u8; BYTES];
    must!(cuMemcpyDtoH_v2(read.as_mut_ptr().cast(), address, BYTES));
    facts.is("every byte is as before", read == written, true);
    facts.is("the process takes as much as before", gpu.used_bytes()?, before);
    facts.code("kernels run", gpu.nothing(null_mut())?, CUDA_SUCCESS);
    must!(cuCtxSynchronize());
    Ok(())
}

fn a_call_waits_until_the_process_is_unlocked(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let pid = own_pid();
    let is_back = AtomicBool::new(false);
    let context = gpu.context as usize;
    must!(cuCheckpointProcessLock(pid, null_mut()));
    thread::scope(|scope| -> Result<(), Stop> {
        let caller = scope.spawn(|| -> Result<CUresult, Stop> {
            must!(cuCtxSetCurrent(context as CUcontext));
            let mut address = 0;
            let code = cu!(cuMemAlloc_v2(&mut address, 4 << 20));
            is_back.store(true, Ordering::SeqCst);
            Ok(code)
        });
        thread::sleep(PATIENCE);
        facts.is("it is back while locked", is_back.load(Ordering::SeqCst), false);
        must!(cuCheckpointProcessUnlock(pid, null_mut()));
        let code = caller.join().map_err(|_| Stop::Failed("a thread", CUDA_ERROR_UNKNOWN))??;
        facts.code("it succeeds once unlocked", code, CUDA_SUCCESS);
        Ok(())
    })
}

fn managed_memory_is_left_out_and_its_process_goes_on(facts: &mut Facts) -> Result<(), Stop> {
    const BYTES: usize = 4 << 20;
    let gpu = Gpu::new()?;
    let pid = own_pid();
    let address = made!(cuMemAllocManaged(BYTES, CU_MEM_ATTACH_GLOBAL));
    must!(cuCheckpointProcessLock(pid, null_mut()));
    let code = cu!(cuCheckpointProcessCheckpoint(pid, null_mut()));
    facts.code("with managed memory", code, CUDA_ERROR_NOT_SUPPORTED);
    facts.is("it stays locked", state()?, CU_PROCESS_STATE_LOCKED);
    must!(cuCheckpointProcessUnlock(pid, null_mut()));
    must!(cuMemFree_v2(address));
    must!(cuCheckpointProcessLock(pid, null_mut()));
    facts.code("without it", cu!(cuCheckpointProcessCheckpoint(pid, null_mut())), CUDA_SUCCESS);
    must!(cuCheckpointProcessRestore(pid, null_mut()));
    must!(cuCheckpointProcessUnlock(pid, null_mut()));
    facts.code("kernels run", gpu.nothing(null_mut())?, CUDA_SUCCESS);
    must!(cuCtxSynchronize());
    Ok(())
}

fn submitted_work_is_complete_once_the_process_is_locked(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let (pid, stream) = (own_pid(), gpu.stream(CU_STREAM_NON_BLOCKING)?);
    gpu.spin(stream, crate::gpu::SPIN_NS)?;
    must!(cuCheckpointProcessLock(pid, null_mut()));
    must!(cuCheckpointProcessUnlock(pid, null_mut()));
    facts.code("the stream", cu!(cuStreamQuery(stream)), CUDA_SUCCESS);
    // A process that cannot be locked in time goes on.
    let mut limit = [0_u32; 16];
    limit[0] = 1;
    gpu.spin(stream, crate::gpu::SPIN_NS)?;
    let code = cu!(cuCheckpointProcessLock(pid, limit.as_mut_ptr().cast()));
    facts.code("in a millisecond", code, CUDA_ERROR_NOT_READY);
    facts.is("it runs on", state()?, CU_PROCESS_STATE_RUNNING);
    must!(cuCtxSynchronize());
    Ok(())
}
