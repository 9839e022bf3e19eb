//! Results of the driver before cuInit, and in a child forked after cuInit.
#[macro_use]
mod common;
use common::*;

#[test]
fn nothing_works_before_initialisation_or_in_a_forked_child_after_it() {
    let mut count = 0;
    assert_eq!(code!(cuDeviceGetCount(&mut count)), CUDA_ERROR_NOT_INITIALIZED);
    let mut context = std::ptr::null_mut();
    assert_eq!(code!(cuCtxGetCurrent(&mut context)), CUDA_ERROR_NOT_INITIALIZED);
    let mut version = 0;
    ok!(cuDriverGetVersion(&mut version));
    assert_eq!(version / 1000, 13);

    let gpu = Gpu::new();
    // SAFETY: the child calls only functions that return at once, and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let codes = [
            code!(cuInit(0)),
            code!(cuCtxSynchronize()),
            code!(launch(std::ptr::null_mut(), std::ptr::null_mut())),
        ];
        let is_right = codes == [CUDA_ERROR_NOT_INITIALIZED; 3];
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 0);
    gpu.launch(c"quick", std::ptr::null_mut());
    ok!(cuCtxSynchronize());
}
