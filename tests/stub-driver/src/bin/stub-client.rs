//! Times driver calls. After a warm-up it measures the mean of ten million calls of each function.
//! It also measures how launches of two threads scale. The result is one line of JSON.
//!
//! The environment decides whether hooks are in the way, and the line shows which library was
//! found. The program ends when its standard input is closed, so that its starter can look at the
//! running program first. `--calls NAME COUNT` makes COUNT calls of one function and ends, for
//! counting instructions.

use std::ffi::{CStr, c_void};
use std::hint::black_box;
use std::io::Read as _;
use std::ptr::null_mut;
use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use deepres_abi::driver::pfn;
use deepres_abi::driver::types::{
    CUcontext, CUdeviceptr, CUfunction, CUgraph, CUgraphExec, CUlaunchConfig, CUstream,
};
use libloading::os::unix::{Library, RTLD_NOW};
use serde_json::{Map, Value, json};

/// Number of timed calls.
const CALLS: u32 = 10_000_000;
/// Number of calls before them, for lazy initialisation, branch predictors and caches.
const WARM_UP_CALLS: u32 = 100_000;
/// Size of each allocation, bytes.
const ALLOCATION_BYTES: usize = 4096;

/// Number of threads that launch at a time, each on a core of its own.
const THREADS: usize = 2;

fn main() -> Result<()> {
    let driver = Driver::load()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *words {
        [] => {}
        ["--calls", name, count] => {
            let count = count.parse().context("the number of calls")?;
            let mut repeat = Repeat { name, count: Some(count) };
            driver.visit(&mut repeat)?;
            ensure!(repeat.count.is_none(), "no call is named {name}");
            return Ok(());
        }
        _ => bail!("usage: stub-client [--calls NAME COUNT]"),
    }
    let mut line = Map::new();
    line.insert("hooked_by".into(), json!(driver.object_of("cuLaunchKernel")?));
    driver.visit(&mut Time { line: &mut line })?;
    line.insert("scale".into(), json!(driver.scale()?));
    println!("{}", Value::Object(line));
    std::io::stdin().read_to_end(&mut Vec::new()).context("standard input")?;
    Ok(())
}

/// Action for each call.
trait Visitor {
    fn visit(&mut self, name: &'static str, call: impl FnMut() -> u32) -> Result<()>;
}

/// Records the mean time of each call, ns.
struct Time<'a> {
    line: &'a mut Map<String, Value>,
}

impl Visitor for Time<'_> {
    fn visit(&mut self, name: &'static str, call: impl FnMut() -> u32) -> Result<()> {
        self.line.insert(name.into(), json!(mean_ns(call)?));
        Ok(())
    }
}

/// Makes calls of one function.
struct Repeat<'a> {
    name: &'a str,
    count: Option<u32>,
}

impl Visitor for Repeat<'_> {
    fn visit(&mut self, name: &'static str, mut call: impl FnMut() -> u32) -> Result<()> {
        if name == self.name
            && let Some(count) = self.count.take()
        {
            let results = (0..count).fold(0, |results, _| results | black_box(call()));
            ensure!(results == 0, "calls failed: {results:#x} is the union of the result codes");
        }
        Ok(())
    }
}

/// Returns a function of the driver with its type.
macro_rules! function {
    ($driver:expr, $name:ident) => {{
        // SAFETY: the symbol of this name has this type in every driver.
        unsafe { std::mem::transmute::<*mut c_void, pfn::$name>($driver.address(stringify!($name))?) }
    }};
}

struct Driver {
    library: Library,
}

impl Driver {
    fn load() -> Result<Self> {
        // SAFETY: loading a driver library runs its initialisers, which every client does.
        let library = unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW) };
        let library = library.context("no libcuda.so.1: LD_LIBRARY_PATH has to name its folder")?;
        Ok(Self { library })
    }

    fn address(&self, name: &str) -> Result<*mut c_void> {
        // SAFETY: only the symbol's address is used.
        let found = unsafe { self.library.get::<*mut c_void>(name.as_bytes()) };
        let address = *found.with_context(|| format!("the driver does not export {name}"))?;
        ensure!(!address.is_null(), "the driver does not export {name}");
        Ok(address)
    }

    /// Returns the shared object to which a look-up of `name` leads.
    fn object_of(&self, name: &str) -> Result<String> {
        let address = self.address(name)?;
        let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: `dladdr` accepts any address, and `info` is valid for a write.
        let found = unsafe { libc::dladdr(address, info.as_mut_ptr()) };
        ensure!(found != 0, "nobody knows whose {name} is");
        // SAFETY: `dladdr` succeeded, so it filled in `info`. The name is that of a loaded object.
        let object = unsafe { CStr::from_ptr(info.assume_init().dli_fname) };
        Ok(object.to_string_lossy().into_owned())
    }

    /// Passes every measured call to the visitor.
    fn visit(&self, visitor: &mut impl Visitor) -> Result<()> {
        let (init, retain, set_current) = (
            function!(self, cuInit),
            function!(self, cuDevicePrimaryCtxRetain),
            function!(self, cuCtxSetCurrent),
        );
        let (create_stream, load, get_function) = (
            function!(self, cuStreamCreate),
            function!(self, cuModuleLoadData),
            function!(self, cuModuleGetFunction),
        );
        let (create_graph, instantiate) =
            (function!(self, cuGraphCreate), function!(self, cuGraphInstantiateWithFlags));
        let (launch, launch_ex, launch_graph) = (
            function!(self, cuLaunchKernel),
            function!(self, cuLaunchKernelEx),
            function!(self, cuGraphLaunch),
        );
        let (alloc, free, info) =
            (function!(self, cuMemAlloc_v2), function!(self, cuMemFree_v2), function!(self, cuMemGetInfo_v2));
        let get_device = function!(self, cuCtxGetDevice);

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
        let mut device = 0;
        // SAFETY: for every call below, handles are live and pointers are to live locals.
        unsafe {
            visitor.visit("cuLaunchKernel", || {
                launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, null_mut(), null_mut())
            })?;
            visitor
                .visit("cuLaunchKernelEx", || launch_ex(&raw const config, kernel, null_mut(), null_mut()))?;
            visitor.visit("cuMemAlloc+Free", || alloc(&raw mut address, ALLOCATION_BYTES) | free(address))?;
            visitor.visit("cuMemGetInfo", || info(&raw mut free_bytes, &raw mut total_bytes))?;
            visitor.visit("cuGraphLaunch", || launch_graph(executable, stream))?;
            // This function is only forwarded.
            visitor.visit("cuCtxGetDevice", || get_device(&raw mut device))
        }
    }

    /// Returns the launch rate of [`THREADS`] threads, each on its own stream, divided by
    /// [`THREADS`] times the rate of one thread.
    fn scale(&self) -> Result<f64> {
        let (alone, together) = (self.launching(1)?, self.launching(THREADS)?);
        Ok(alone / together)
    }

    /// Returns the mean time of a launch in each of `threads` threads, ns.
    fn launching(&self, threads: usize) -> Result<f64> {
        let (launch, create_stream) = (function!(self, cuLaunchKernel), function!(self, cuStreamCreate));
        let (get_current, set_current) = (function!(self, cuCtxGetCurrent), function!(self, cuCtxSetCurrent));
        let mut context: CUcontext = null_mut();
        // SAFETY: `context` is valid for a write.
        ensure!(unsafe { get_current(&raw mut context) } == 0, "no context is current");
        let (context, begin) = (context as usize, Barrier::new(threads));
        let one = || -> Result<f64> {
            let mut stream: CUstream = null_mut();
            // SAFETY: the context is live, and `stream` is valid for a write.
            let results = unsafe { set_current(context as CUcontext) | create_stream(&raw mut stream, 0) };
            ensure!(results == 0, "setting up gave {results:#x}");
            begin.wait();
            // SAFETY: the stub dereferences no handle but the stream's, which is live.
            mean_ns(|| unsafe { launch(null_mut(), 1, 1, 1, 1, 1, 1, 0, stream, null_mut(), null_mut()) })
        };
        std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
            let means = running.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a launching thread panicked")))
            });
            Ok(means.sum::<Result<f64>>()? / threads as f64)
        })
    }
}

/// Returns the mean time of a call over all timed calls, ns.
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
