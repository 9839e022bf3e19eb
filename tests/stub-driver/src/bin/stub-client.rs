//! Times driver calls. After a warm-up it measures the mean of ten million calls of each function.
//! The client also measures how launches of two threads scale. The result is one line of JSON.
//!
//! The environment decides whether hooks are in the way, and the line shows which library was
//! found. The program ends when its standard input is closed, so that its starter can look at the
//! running program first. `--calls NAME COUNT` makes COUNT calls of one function and ends, for
//! counting instructions.
//!
//! `--bursts COUNT` times the launches of a program that launches every 5 µs, and counts the events
//! that are recorded meanwhile. `--busy` prints an empty object, and launches until its standard
//! input is closed. `--first-call` times the load of the driver and the first call into it.

use std::ffi::{CStr, c_void};
use std::hint::black_box;
use std::io::Read as _;
use std::ptr::null_mut;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

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

/// Number of launches in a burst. At the end of a burst, the client waits for the GPU.
const BURST: u32 = 100;
/// Time from launch to launch in a burst, as in eager training programs.
const PACE: Duration = Duration::from_micros(5);
/// Number of bursts before the timed bursts.
const WARM_UP_BURSTS: u32 = 200;
/// A call that takes this long did not only launch. Its thread waited for a lease or for its CPU.
const WAITED: Duration = Duration::from_micros(3);

/// Returns a function of the driver with its type.
macro_rules! function {
    ($driver:expr, $name:ident) => {{
        // SAFETY: the symbol of this name has this type in every driver.
        unsafe { std::mem::transmute::<*mut c_void, pfn::$name>($driver.address(stringify!($name))?) }
    }};
}

fn main() -> Result<()> {
    let began = Instant::now();
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
        ["--bursts", count] => {
            let count = count.parse().context("the number of bursts")?;
            let mut bursts = Bursts { driver: &driver, count, line: Map::new() };
            driver.visit(&mut bursts)?;
            return say_and_wait(bursts.line);
        }
        ["--busy"] => {
            driver.visit(&mut Busy { driver: &driver })?;
            return Ok(());
        }
        ["--first-call"] => {
            let init = function!(driver, cuInit);
            // SAFETY: the call has no pointers.
            ensure!(unsafe { init(0) } == 0, "the driver does not start");
            let first_call_ms = began.elapsed().as_secs_f64() * 1e3;
            return say_and_wait(Map::from_iter([("first_call_ms".into(), json!(first_call_ms))]));
        }
        _ => bail!("usage: stub-client [--calls NAME COUNT | --bursts COUNT | --busy | --first-call]"),
    }
    let mut line = Map::new();
    line.insert("hooked_by".into(), json!(driver.object_of("cuLaunchKernel")?));
    driver.visit(&mut Time { line: &mut line })?;
    line.insert("scale".into(), json!(driver.scale()?));
    say_and_wait(line)
}

/// Prints the line, and waits until the standard input is closed.
fn say_and_wait(line: Map<String, Value>) -> Result<()> {
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

/// Times launches in bursts.
struct Bursts<'a> {
    driver: &'a Driver,
    count: u32,
    line: Map<String, Value>,
}

impl Visitor for Bursts<'_> {
    fn visit(&mut self, name: &'static str, mut call: impl FnMut() -> u32) -> Result<()> {
        if name != "cuLaunchKernel" {
            return Ok(());
        }
        let (synchronize, records) = (function!(self.driver, cuCtxSynchronize), self.driver.records()?);
        let (mut results, mut sum_ns, mut counted) = (0, 0, 0_u64);
        let mut burst = |sum_ns: &mut u64, counted: &mut u64| {
            for _ in 0..BURST {
                let start = Instant::now();
                results |= black_box(call());
                let took = start.elapsed();
                if took < WAITED {
                    *sum_ns += took.as_nanos() as u64;
                    *counted += 1;
                }
                while start.elapsed() < PACE {
                    std::hint::spin_loop();
                }
            }
            // SAFETY: the call has no arguments.
            results |= unsafe { synchronize() };
        };
        (0..WARM_UP_BURSTS).for_each(|_| burst(&mut 0, &mut 0));
        let before = records();
        (0..self.count).for_each(|_| burst(&mut sum_ns, &mut counted));
        let recorded = records() - before;
        ensure!(results == 0, "calls failed: {results:#x} is the union of the result codes");
        self.line.insert("hooked_by".into(), json!(self.driver.object_of("cuLaunchKernel")?));
        self.line.insert("launch_ns".into(), json!(sum_ns as f64 / counted as f64));
        let launches = f64::from(self.count) * f64::from(BURST);
        self.line.insert("records_per_launch".into(), json!(recorded as f64 / launches));
        Ok(())
    }
}

/// Makes bursts of launches until the standard input is closed.
struct Busy<'a> {
    driver: &'a Driver,
}

impl Visitor for Busy<'_> {
    fn visit(&mut self, name: &'static str, mut call: impl FnMut() -> u32) -> Result<()> {
        if name != "cuLaunchKernel" {
            return Ok(());
        }
        let synchronize = function!(self.driver, cuCtxSynchronize);
        println!("{{}}");
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // An error ends the bursts too.
                let _ = std::io::stdin().read_to_end(&mut Vec::new());
                is_over.store(true, Ordering::Relaxed);
            });
            let mut results = 0;
            while !is_over.load(Ordering::Relaxed) {
                (0..BURST).for_each(|_| results |= black_box(call()));
                // SAFETY: the call has no arguments.
                results |= unsafe { synchronize() };
            }
            ensure!(results == 0, "calls failed: {results:#x} is the union of the result codes");
            Ok(())
        })
    }
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

    /// Returns the function of the stub driver that counts the recorded events.
    fn records(&self) -> Result<extern "C" fn() -> u64> {
        // SAFETY: the stub driver's function has this type.
        Ok(unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn() -> u64>(self.address("stubEventRecords")?)
        })
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
