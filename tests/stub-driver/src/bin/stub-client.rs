//! Times driver calls: a warm-up, then the mean of a million calls of each function, as one line of JSON.
//!
//! Whether hooks are in the way is the environment's business; the line says what was found. It ends when its
//! standard input does, so that whoever started it can look at it first.

use std::ffi::{CStr, c_void};
use std::hint::black_box;
use std::io::Read as _;
use std::ptr::null_mut;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use deepres_abi::driver::pfn;
use deepres_abi::driver::types::{
    CUcontext, CUdeviceptr, CUfunction, CUgraph, CUgraphExec, CUlaunchConfig, CUstream,
};
use serde_json::{Map, Value, json};

/// Calls that are timed.
const CALLS: u32 = 1_000_000;
/// Calls before them: lazy initialisation, branch predictors, caches.
const WARM_UP_CALLS: u32 = 100_000;
/// What each allocation asks for.
const ALLOCATION_BYTES: usize = 4096;

fn main() -> Result<()> {
    let driver = Driver::load()?;
    let mut line = Map::new();
    line.insert("hooked_by".into(), json!(driver.object_of(c"cuLaunchKernel")?));
    for (name, ns) in driver.measure()? {
        line.insert(name.into(), json!(ns));
    }
    println!("{}", Value::Object(line));
    std::io::stdin().read_to_end(&mut Vec::new()).context("standard input")?;
    Ok(())
}

struct Driver {
    library: *mut c_void,
}

impl Driver {
    fn load() -> Result<Self> {
        // SAFETY: loading a driver library runs its initialisers, which every client does.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        ensure!(!library.is_null(), "no libcuda.so.1: LD_LIBRARY_PATH has to name its folder");
        Ok(Self { library })
    }

    fn address(&self, name: &CStr) -> Result<*mut c_void> {
        // SAFETY: `library` is open and `name` ends with a NUL.
        let address = unsafe { libc::dlsym(self.library, name.as_ptr()) };
        ensure!(!address.is_null(), "the driver does not export {name:?}");
        Ok(address)
    }

    /// The shared object that a look-up of `name` led to.
    fn object_of(&self, name: &CStr) -> Result<String> {
        let address = self.address(name)?;
        let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: any address may be asked about; `info` is valid for a write.
        let found = unsafe { libc::dladdr(address, info.as_mut_ptr()) };
        ensure!(found != 0, "nobody knows whose {name:?} is");
        // SAFETY: `dladdr` succeeded, so it filled `info` in; the name is that of a loaded object.
        let object = unsafe { CStr::from_ptr(info.assume_init().dli_fname) };
        Ok(object.to_string_lossy().into_owned())
    }

    fn measure(&self) -> Result<Vec<(&'static str, f64)>> {
        macro_rules! function {
            ($name:ident) => {{
                let name = std::ffi::CString::new(stringify!($name))?;
                // SAFETY: the symbol of this name has this type in every driver.
                unsafe { std::mem::transmute::<*mut c_void, pfn::$name>(self.address(&name)?) }
            }};
        }
        let (init, retain, set_current) =
            (function!(cuInit), function!(cuDevicePrimaryCtxRetain), function!(cuCtxSetCurrent));
        let (create_stream, load, get_function) =
            (function!(cuStreamCreate), function!(cuModuleLoadData), function!(cuModuleGetFunction));
        let (create_graph, instantiate) = (function!(cuGraphCreate), function!(cuGraphInstantiateWithFlags));
        let (launch, launch_ex, launch_graph) =
            (function!(cuLaunchKernel), function!(cuLaunchKernelEx), function!(cuGraphLaunch));
        let (alloc, free, info) =
            (function!(cuMemAlloc_v2), function!(cuMemFree_v2), function!(cuMemGetInfo_v2));

        let mut context: CUcontext = null_mut();
        let mut stream: CUstream = null_mut();
        let mut module = null_mut();
        let mut kernel: CUfunction = null_mut();
        let mut graph: CUgraph = null_mut();
        let mut executable: CUgraphExec = null_mut();
        // SAFETY: the calls follow the driver API's order, and every pointer is to a live local.
        let results = unsafe {
            [
                init(0),
                retain(&raw mut context, 0),
                set_current(context),
                create_stream(&raw mut stream, 0),
                load(&raw mut module, c"".as_ptr().cast()),
                get_function(&raw mut kernel, module, c"kernel".as_ptr()),
                create_graph(&raw mut graph, 0),
                instantiate(&raw mut executable, graph, 0),
            ]
        };
        ensure!(results == [0; 8], "setting up gave the result codes {results:?}");

        let config = CUlaunchConfig {
            gridDimX: 1,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 1,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: stream,
            attrs: null_mut(),
            numAttrs: 0,
        };
        let mut address: CUdeviceptr = 0;
        let (mut free_bytes, mut total_bytes) = (0, 0);
        // SAFETY: for every call below, handles are live and pointers are to live locals.
        unsafe {
            Ok(vec![
                (
                    "cuLaunchKernel",
                    mean_ns(|| launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, null_mut(), null_mut()))?,
                ),
                (
                    "cuLaunchKernelEx",
                    mean_ns(|| launch_ex(&raw const config, kernel, null_mut(), null_mut()))?,
                ),
                ("cuMemAlloc+Free", mean_ns(|| alloc(&raw mut address, ALLOCATION_BYTES) | free(address))?),
                ("cuMemGetInfo", mean_ns(|| info(&raw mut free_bytes, &raw mut total_bytes))?),
                ("cuGraphLaunch", mean_ns(|| launch_graph(executable, stream))?),
            ])
        }
    }
}

/// Nanoseconds a call, over all timed calls together.
fn mean_ns(mut call: impl FnMut() -> u32) -> Result<f64> {
    let mut results = 0;
    for _ in 0..WARM_UP_CALLS {
        results |= black_box(call());
    }
    let start = Instant::now();
    for _ in 0..CALLS {
        results |= black_box(call());
    }
    let elapsed = start.elapsed();
    ensure!(results == 0, "calls failed: {results:#x} is the union of the result codes");
    Ok(elapsed.as_nanos() as f64 / f64::from(CALLS))
}
