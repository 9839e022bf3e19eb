//! A virtual GPU for this test process alone. The tests run one at a time, because captures and
//! primary contexts concern the whole process.
#![expect(dead_code, reason = "each test program uses its part")]

use std::ffi::c_void;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::{Duration, Instant};

pub use cuda::exports::*;
pub use deepres_abi::driver::result::*;
pub use deepres_abi::driver::types::*;

/// Calls a driver function and returns its code.
macro_rules! code {
    ($call:expr) => {{
        // SAFETY: the test passes arguments that the function's reference allows, or that the
        // function promises to refuse.
        unsafe { $call }
    }};
}

/// Calls a driver function that must succeed.
macro_rules! ok {
    ($call:expr) => {
        assert_eq!(code!($call), CUDA_SUCCESS, "{}", stringify!($call))
    };
}

/// Calls a driver function that has to succeed and whose first argument is the place of its result.
/// Returns the result.
macro_rules! made {
    ($symbol:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the driver's functions return handles and numbers, of which all zeroes is a valid
        // value.
        let mut result = unsafe { std::mem::zeroed() };
        ok!($symbol(&mut result $(, $argument)*));
        result
    }};
}

/// Time of the kernel `slow`, ns.
pub const SLOW_NS: u64 = 30_000_000;
pub const PTX: &std::ffi::CStr = c"
.version 8.5
.target sm_90
.address_size 64
.visible .global .align 4 .u32 answer = 42;
.visible .global .align 8 .b8 zeros[64];
.visible .entry quick() { ret; }
.visible .entry slow() { ret; }
.visible .entry small(.param .u64 out, .param .u32 n) .maxntid 64, 1, 1 { ret; }
";

/// Time within which processes start, end, and see the end of others, even on a busy machine.
const NOTICED_WITHIN: Duration = Duration::from_secs(20);
/// Prefix of the answers of an [`Other`]. The rest of its output comes from the test harness.
const ANSWER: &str = "answer ";

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();

extern "C" fn remove_directory() {
    if let Some(directory) = DIRECTORY.get() {
        let _ = std::fs::remove_dir_all(directory);
    }
}

/// Points the process at a state directory of its own. When the process ends, the harness removes
/// the directory.
pub fn private_state() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let directory =
            DIRECTORY.get_or_init(|| tempfile::tempdir().expect("a directory for the state").keep());
        // SAFETY: the handler only removes files.
        unsafe { libc::atexit(remove_directory) };
        let config = directory.join("config.toml");
        let text = format!("gpus = 2\nkernel = [{{ name = \"slow\", ns = {SLOW_NS} }}]\n");
        std::fs::write(&config, text).expect("a configuration");
        // SAFETY: every test calls this first, so no other thread reads the environment yet.
        unsafe {
            std::env::set_var("SIMGPU_STATE", directory.join("state"));
            std::env::set_var("SIMGPU_CONFIG", config);
        }
    });
}

/// A current context with the test's kernels loaded.
pub struct Gpu {
    pub context: CUcontext,
    pub module: CUmodule,
    _turn: MutexGuard<'static, ()>,
}

impl Gpu {
    pub fn new() -> Self {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        private_state();
        ok!(cuInit(0));
        let (mut context, mut module) = (std::ptr::null_mut(), std::ptr::null_mut());
        ok!(cuCtxCreate_v2(&mut context, 0, 0));
        ok!(cuModuleLoadData(&mut module, PTX.as_ptr().cast()));
        Self { context, module, _turn: turn }
    }

    pub fn kernel(&self, name: &std::ffi::CStr) -> CUfunction {
        let mut function = std::ptr::null_mut();
        ok!(cuModuleGetFunction(&mut function, self.module, name.as_ptr()));
        function
    }

    pub fn stream(&self, flags: u32) -> CUstream {
        let mut stream = std::ptr::null_mut();
        ok!(cuStreamCreate(&mut stream, flags));
        stream
    }

    pub fn event(&self, flags: u32) -> CUevent {
        let mut event = std::ptr::null_mut();
        ok!(cuEventCreate(&mut event, flags));
        event
    }

    pub fn memory(&self, bytes: usize) -> CUdeviceptr {
        made!(cuMemAlloc_v2(bytes))
    }

    /// Allocates page-locked host memory of `count` words.
    pub fn pinned(&self, count: usize) -> &'static mut [u32] {
        let mut address = std::ptr::null_mut();
        ok!(cuMemHostAlloc(&mut address, count * size_of::<u32>(), 0));
        // SAFETY: the memory is new, zeroed and long enough. The memory stays until the context
        // ends with the test.
        unsafe { std::slice::from_raw_parts_mut(address.cast(), count) }
    }

    pub fn launch(&self, name: &std::ffi::CStr, stream: CUstream) {
        ok!(launch(self.kernel(name), stream));
    }

    /// Reads words of device memory, and waits for them.
    pub fn read(&self, address: CUdeviceptr, count: usize) -> Vec<u32> {
        let mut words = vec![0; count];
        ok!(cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), address, count * size_of::<u32>()));
        words
    }

    pub fn used_bytes(&self) -> usize {
        let (mut free, mut total) = (0, 0);
        ok!(cuMemGetInfo_v2(&mut free, &mut total));
        total - free
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // A test that failed half-way can leave its context in any state.
        let _ = code!(cuCtxDestroy_v2(self.context));
    }
}

/// Launches one warp of a kernel without parameters.
///
/// # Safety
/// The handles are the driver's.
pub unsafe fn launch(function: CUfunction, stream: CUstream) -> u32 {
    let none = std::ptr::null_mut::<*mut c_void>();
    // SAFETY: the caller passes valid handles, and the kernel has no parameters.
    unsafe { cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, none, none) }
}

/// Waits until a condition holds.
pub fn await_that(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + NOTICED_WITHIN;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within {NOTICED_WITHIN:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Another process, which obeys orders line by line. The process is this test program with an
/// ignored test, which calls [`obey`].
pub struct Other {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Other {
    /// Starts the process with this test. `prepare` sets its variables.
    pub fn start(test: &str, prepare: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        prepare(command.args(["--exact", test, "--ignored", "--nocapture"]));
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("another process");
        let to = child.stdin.take().expect("piped");
        let from = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, to, from }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives an order, and returns the answer.
    pub fn ask(&mut self, order: &str) -> u64 {
        writeln!(self.to, "{order}").expect("it lives");
        loop {
            let mut said = String::new();
            assert_ne!(self.from.read_line(&mut said).expect("text"), 0, "it ended at: {order}");
            // The test harness prints the test's name on the same line.
            if let Some((_, answer)) = said.trim().split_once(ANSWER) {
                return answer.parse().expect("a number");
            }
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Obeys the orders on standard input. `answer` gets the words of each.
pub fn obey(mut answer: impl FnMut(&[&str]) -> u64) {
    for line in std::io::stdin().lines() {
        let line = line.expect("text");
        println!("{ANSWER}{}", answer(&line.split(' ').collect::<Vec<_>>()));
    }
}
