//! A random sequence of driver calls, valid and invalid. The sequence depends only on its seed and
//! on the driver's answers. So two runs print the same text, with and without deepres between
//! program and driver. The program prints a line for each call, and frees everything at the end.
//! The sequence omits calls that depend on time (queries). The sequence also omits calls that would
//! hang or crash even on a correct driver (waits for values, invalid host addresses).

use std::ffi::CString;
use std::fmt::Display;
use std::ops::{Index, IndexMut};
use std::ptr::{null, null_mut};
use std::time::Duration;

use deepres_abi::driver::result::*;
use deepres_abi::driver::types::*;

use crate::check::Stop;
use crate::gpu::{ONE_THREAD, PTX, launch};

/// Calls a driver function, and returns its name with its code.
macro_rules! call {
    ($symbol:ident($($argument:expr),* $(,)?)) => {
        (stringify!($symbol), cu!($symbol($($argument),*)))
    };
}

/// The most objects of one kind that the program keeps at a time.
const KEPT: usize = 24;
/// Percentage of calls with an operand that is not an object, or is not an object any more.
const STRANGE_PERCENT: u64 = 12;
/// Sizes of requests, bytes.
const SIZES: [usize; 10] = [0, 1, 511, 512, 4096, 1 << 20, (1 << 20) + 1, 2 << 20, 3 << 20, usize::MAX >> 8];
/// Number of parts that the kinds of calls share in [`World::step`], without and with the last
/// kinds.
const KINDS_OF_CALLS: usize = 53;
const WILD_KINDS: usize = 65;
/// Size of a granule of physical memory.
const GRANULE_BYTES: usize = 2 << 20;
/// Granules of address space that are reserved at a time.
const RESERVED_GRANULES: usize = 4;
const RESERVED_BYTES: usize = RESERVED_GRANULES * GRANULE_BYTES;
/// Number and length of the rests before the account is printed.
const RESTS: usize = 3;
const REST: Duration = Duration::from_millis(10);
/// Number of attempts to free an object. If an injected error makes an attempt fail, the next
/// attempt succeeds.
const ATTEMPTS: usize = 3;

/// Pseudo-random numbers (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 16) as usize % limit.max(1)
    }
}

/// Kinds of objects that the program holds.
#[derive(Clone, Copy)]
enum Kind {
    Contexts,
    Streams,
    Events,
    Linear,
    Pooled,
    Host,
    Arrays,
    Mipmapped,
    Physical,
    Reserved,
    Graphs,
    Executables,
    /// Executable graphs that allocate.
    Allocating,
    Kernels,
    Pools,
    Modules,
    /// Modules with a variable. The kernels of these modules are never launched.
    Variables,
    Libraries,
    Primaries,
    Descriptors,
}

use Kind::*;

/// The objects that the program holds, as numbers, by [`Kind`].
#[derive(Default)]
struct Held([Vec<u64>; Descriptors as usize + 1]);

impl Index<Kind> for Held {
    type Output = Vec<u64>;

    fn index(&self, kind: Kind) -> &Vec<u64> {
        &self.0[kind as usize]
    }
}

impl IndexMut<Kind> for Held {
    fn index_mut(&mut self, kind: Kind) -> &mut Vec<u64> {
        &mut self.0[kind as usize]
    }
}

/// Returns the image of a module with a variable of this many bytes.
fn with_variable(bytes: usize) -> CString {
    let text = format!(
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 8 .b8 large[{bytes}];\n.visible .entry nothing() {{ ret; }}\n"
    );
    CString::new(text).unwrap_or_default()
}

struct World {
    random: Random,
    held: Held,
    /// Whether streams may be captured.
    is_wild: bool,
    /// Handles of objects that no longer exist.
    dead: Vec<u64>,
}

/// Number of kinds of memory in the simulated driver's account.
const KINDS: usize = 7;

/// Returns the amount that this process's memory counts for, by kind, as the simulated driver
/// reports it. Returns `None` on any other driver.
fn account() -> Option<[u64; KINDS]> {
    let address = crate::driver::find("simgpu_account")?;
    let mut sums = [0; KINDS];
    // SAFETY: the simulated driver exports this symbol with this type, and writes [`KINDS`]
    // numbers.
    unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(*mut u64)>(address)(sums.as_mut_ptr()) };
    Some(sums)
}

/// Prints the amount that this process's memory counts for at the stage `stage`, and waits for a
/// line of input. First the function lets the GPU finish all work, so that code between program and
/// driver sees the end of the work. The driver then releases memory that was freed in a stream's
/// order.
fn tell(stage: impl Display) -> Result<(), Stop> {
    for _ in 0..RESTS {
        cu!(cuCtxSynchronize());
        std::thread::sleep(REST);
    }
    let sums =
        account().ok_or_else(|| Stop::Absent("only the simulated driver keeps this account".to_owned()))?;
    println!("account {stage} {}", sums.map(|sum| sum.to_string()).join(" "));
    // The result is ignored, because without a reader of the output there is nothing to wait for.
    let _ = std::io::stdin().read_line(&mut String::new());
    Ok(())
}

/// Runs `calls` calls and frees everything. Every `every` calls, and at the end, prints the amount
/// that its memory counts for and waits for a line.
pub fn run_accounted(seed: u64, calls: usize, every: usize) -> Result<(), Stop> {
    let mut world = World::begin(seed)?;
    // Memory that a capture allocates belongs to a graph, and is no memory yet.
    world.is_wild = false;
    for number in 1..=calls {
        world.step()?;
        if number.is_multiple_of(every) || number == calls {
            tell(number)?;
        }
    }
    world.clean()?;
    tell("cleaned")
}

/// Runs `calls` calls and frees everything.
pub fn run(seed: u64, calls: usize) -> Result<(), Stop> {
    let mut world = World::begin(seed)?;
    for number in 0..calls {
        let (name, code) = world.step()?;
        println!("{number} {name} {code}");
    }
    world.clean()
}

/// Returns whether a stream is being captured. If the driver cannot tell, returns true.
fn is_captured(stream: CUstream) -> Result<bool, Stop> {
    let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
    let code = cu!(cuStreamIsCapturing(stream, &mut status));
    Ok(code != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE)
}

/// A host function for streams.
extern "C" fn nothing(_data: *mut c_void) {}

/// A host function for streams, in its older form.
extern "C" fn called(_stream: CUstream, _status: CUresult, _data: *mut c_void) {}

/// A call's name and its code.
type Call = (&'static str, CUresult);
type Answer = Result<Call, Stop>;

impl World {
    fn begin(seed: u64) -> Result<Self, Stop> {
        must!(cuInit(0));
        // The xorshift of 0 is 0, so the state must not be 0.
        let random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut world = Self { random, held: Held::default(), is_wild: true, dead: Vec::new() };
        world.context()?;
        Ok(world)
    }

    fn size(&mut self) -> usize {
        SIZES[self.random.below(SIZES.len())]
    }

    /// Returns one of the objects in `of`, or occasionally a number that is no such object.
    fn pick(&mut self, of: Kind) -> u64 {
        if self.random.next() % 100 < STRANGE_PERCENT {
            return match self.random.below(3) {
                0 => 0,
                1 => 0x1234_5000 + self.random.next() % 4096,
                _ => {
                    let place = self.random.below(self.dead.len());
                    self.dead.get(place).copied().unwrap_or(0)
                }
            };
        }
        let place = self.random.below(self.held[of].len());
        self.held[of].get(place).copied().unwrap_or(0)
    }

    fn stream(&mut self) -> CUstream {
        let default = self.random.below(4);
        if default == 0 { self.random.below(3) as CUstream } else { self.pick(Streams) as CUstream }
    }

    /// Returns whether there is room to keep another allocation of each kind.
    fn has_room(&self) -> bool {
        [Linear, Pooled, Host, Arrays, Mipmapped].into_iter().all(|kind| self.has_room_for(kind))
    }

    fn has_room_for(&self, kind: Kind) -> bool {
        self.held[kind].len() < KEPT
    }

    /// Keeps an object that a call made. If there is no room, the object stays with its context.
    fn keep(&mut self, of: Kind, call: Call, object: u64) -> Call {
        if call.1 == CUDA_SUCCESS && self.has_room_for(of) {
            self.held[of].push(object);
        }
        call
    }

    /// Keeps memory that came from a pool, unless the stream is being captured. Memory of a
    /// captured graph is released with the graph.
    fn keep_pooled(&mut self, stream: CUstream, call: Call, address: u64) -> Answer {
        if call.1 == CUDA_SUCCESS && !is_captured(stream)? {
            self.keep_always(Pooled, call, address);
        }
        Ok(call)
    }

    fn lose(&mut self, of: Kind, call: Call, object: u64) -> Call {
        if call.1 == CUDA_SUCCESS {
            self.held[of].retain(|kept| *kept != object);
            self.dead.push(object);
        }
        call
    }

    /// Removes an address like [`Self::lose`]. The program does not remember the address as dead,
    /// because the driver can give it out again.
    fn forget(&mut self, of: Kind, call: Call, address: u64) -> Call {
        if call.1 == CUDA_SUCCESS {
            self.held[of].retain(|kept| *kept != address);
        }
        call
    }

    fn context(&mut self) -> Answer {
        let (mut context, mut module, mut kernel) = (null_mut(), null_mut(), null_mut());
        let call = call!(cuCtxCreate_v2(&mut context, 0, 0));
        self.keep(Contexts, call, context as u64);
        if call.1 == CUDA_SUCCESS
            && cu!(cuModuleLoadData(&mut module, PTX.as_ptr().cast())) == CUDA_SUCCESS
            && cu!(cuModuleGetFunction(&mut kernel, module, c"nothing".as_ptr())) == CUDA_SUCCESS
        {
            self.keep(Kernels, call, kernel as u64);
        }
        Ok(call)
    }

    fn step(&mut self) -> Answer {
        // Without the last calls, the program uses only kinds of memory that both an account and
        // the driver report. So the test can compare both.
        let kinds = if self.is_wild { WILD_KINDS } else { KINDS_OF_CALLS };
        match self.random.below(kinds) {
            0..=7 if self.is_wild || self.has_room() => self.allocate(),
            0..=15 => self.free(),
            16..=21 => self.work(),
            22..=25 => self.capture(),
            26..=29 => self.order(),
            30..=33 => self.virtual_memory(),
            34..=36 => self.copy(),
            37..=39 => self.live(),
            40..=42 => self.variables(),
            43..=46 => self.own_pool(),
            47..=50 => self.graph_memory(),
            51..=52 => self.hand_over(),
            53..=55 => self.shape(),
            56..=58 => self.code(),
            59..=61 => self.share_context(),
            _ => self.graph(),
        }
    }

    /// Uses pools of the process's own.
    fn own_pool(&mut self) -> Answer {
        let (bytes, stream) = (self.size(), self.stream());
        let pool = self.pick(Pools) as CUmemoryPool;
        let (mut new, mut address) = (null_mut(), 0);
        Ok(match self.random.below(6) {
            0 if self.has_room_for(Pools) => {
                let mut properties = zeroed!(CUmemPoolProps);
                properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
                properties.location = self.location();
                self.keep(Pools, call!(cuMemPoolCreate(&mut new, &properties)), new as u64)
            }
            0 | 1 => self.lose(Pools, call!(cuMemPoolDestroy(pool)), pool as u64),
            2 => call!(cuMemPoolTrimTo(pool, bytes)),
            3 => {
                let mut kept_bytes = bytes as u64;
                let value = (&raw mut kept_bytes).cast();
                call!(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, value))
            }
            _ if self.is_wild || self.has_room() => self.keep_pooled(
                stream,
                call!(cuMemAllocFromPoolAsync(&mut address, bytes, pool, stream)),
                address,
            )?,
            _ => self.free()?,
        })
    }

    /// Returns the device, or occasionally one that does not exist.
    fn location(&mut self) -> CUmemLocation {
        CUmemLocation { r#type: CU_MEM_LOCATION_TYPE_DEVICE, id: self.random.below(8) as i32 / 7 * 99 }
    }

    /// Returns an array's description, of up to three dimensions. The description can be invalid.
    fn array(&mut self) -> CUDA_ARRAY3D_DESCRIPTOR {
        CUDA_ARRAY3D_DESCRIPTOR {
            Width: self.size().min(4096),
            Height: self.random.below(16),
            Depth: self.random.below(8),
            Format: CU_AD_FORMAT_UNSIGNED_INT32,
            NumChannels: 1 << self.random.below(4),
            Flags: self.random.below(3) as u32,
        }
    }

    fn create_array(&mut self) -> Answer {
        let (descriptor, mut array) = (self.array(), null_mut());
        Ok(self.keep(Arrays, call!(cuArray3DCreate_v2(&mut array, &descriptor)), array as u64))
    }

    /// Copies one element of an array, and asks for levels.
    fn shape(&mut self) -> Answer {
        let array = self.pick(Arrays) as CUarray;
        let (linear, stream) = (self.pick(Linear), self.stream());
        let mut element = [0_u8; 4];
        if is_captured(stream)? {
            return Ok(("a copy that is left out", CUDA_SUCCESS));
        }
        Ok(match self.random.below(5) {
            0 => self.create_array()?,
            1 => {
                let mipmapped = self.pick(Mipmapped) as CUmipmappedArray;
                let (level, mut array) = (self.random.below(12) as u32, null_mut());
                call!(cuMipmappedArrayGetLevel(&mut array, mipmapped, level))
            }
            2 => {
                let mut copy = zeroed!(CUDA_MEMCPY2D);
                copy.srcMemoryType = CU_MEMORYTYPE_HOST;
                copy.srcHost = element.as_ptr().cast();
                copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
                copy.dstArray = array;
                (copy.WidthInBytes, copy.Height) = (element.len(), self.random.below(2));
                call!(cuMemcpy2D_v2(&copy))
            }
            3 => {
                let mut copy = zeroed!(CUDA_MEMCPY3D);
                copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
                copy.srcArray = array;
                copy.dstMemoryType = CU_MEMORYTYPE_HOST;
                copy.dstHost = element.as_mut_ptr().cast();
                (copy.WidthInBytes, copy.Height, copy.Depth) = (element.len(), 1, self.random.below(2));
                call!(cuMemcpy3D_v2(&copy))
            }
            _ => {
                let width = self.random.below(2);
                call!(cuMemsetD2D8Async(linear, 4, 1, width, 1, stream))
            }
        })
    }

    /// Loads and unloads modules with a variable.
    fn variables(&mut self) -> Answer {
        let mut module = null_mut();
        if self.has_room_for(Variables) && self.random.below(2) == 0 {
            let image = with_variable(self.size());
            return Ok(self.keep(
                Variables,
                call!(cuModuleLoadData(&mut module, image.as_ptr().cast())),
                module as u64,
            ));
        }
        let module = self.pick(Variables);
        Ok(self.lose(Variables, call!(cuModuleUnload(module as CUmodule)), module))
    }

    /// Loads and unloads modules and libraries, also while their kernels are queued.
    fn code(&mut self) -> Answer {
        let module = self.pick(Modules) as CUmodule;
        let library = self.pick(Libraries) as CUlibrary;
        let stream = self.stream();
        let (mut new_module, mut new_library) = (null_mut(), null_mut());
        let (mut kernel, mut function) = (null_mut(), null_mut());
        Ok(match self.random.below(6) {
            0 => self.keep(
                Modules,
                call!(cuModuleLoadData(&mut new_module, PTX.as_ptr().cast())),
                new_module as u64,
            ),
            1 => self.lose(Modules, call!(cuModuleUnload(module)), module as u64),
            2 => self.keep(
                Libraries,
                call!(cuLibraryLoadData(
                    &mut new_library,
                    PTX.as_ptr().cast(),
                    null_mut(),
                    null_mut(),
                    0,
                    null_mut(),
                    null_mut(),
                    0
                )),
                new_library as u64,
            ),
            3 => self.lose(Libraries, call!(cuLibraryUnload(library)), library as u64),
            4 => {
                let code = cu!(cuLibraryGetKernel(&mut kernel, library, c"nothing".as_ptr()));
                // A graph would keep the kernel beyond its library's life.
                if code != CUDA_SUCCESS || is_captured(stream)? {
                    return Ok(("cuLibraryGetKernel", code));
                }
                ("cuLaunchKernel of a library's", launch(kernel.cast(), stream)?)
            }
            _ => {
                let code = cu!(cuModuleGetFunction(&mut function, module, c"nothing".as_ptr()));
                if code != CUDA_SUCCESS || is_captured(stream)? {
                    return Ok(("cuModuleGetFunction", code));
                }
                ("cuLaunchKernel of a module's", launch(function, stream)?)
            }
        })
    }

    /// Uses contexts with more than one user: the primary context, and contexts that are attached
    /// to.
    fn share_context(&mut self) -> Answer {
        let context = self.pick(Contexts) as CUcontext;
        let (mut new, mut flags, mut is_active, mut version) = (null_mut(), 0, 0, 0);
        Ok(match self.random.below(9) {
            0 | 1 => self.keep(Primaries, call!(cuDevicePrimaryCtxRetain(&mut new, 0)), new as u64),
            2 => {
                let call = call!(cuDevicePrimaryCtxRelease_v2(0));
                if call.1 == CUDA_SUCCESS {
                    self.held[Primaries].pop();
                    self.forget_memory();
                }
                call
            }
            3 => {
                let call = call!(cuDevicePrimaryCtxReset_v2(0));
                if call.1 == CUDA_SUCCESS {
                    self.forget_memory();
                }
                call
            }
            4 => {
                let code = cu!(cuDevicePrimaryCtxGetState(0, &mut flags, &mut is_active));
                (if is_active == 0 { "no primary context" } else { "a primary context" }, code)
            }
            5 => call!(cuDevicePrimaryCtxSetFlags_v2(0, flags)),
            6 => {
                let primary = self.pick(Primaries) as CUcontext;
                call!(cuCtxSetCurrent(primary))
            }
            7 => call!(cuCtxAttach(&mut new, 0)),
            _ => {
                let call = call!(cuCtxDetach(context));
                if call.1 == CUDA_SUCCESS && cu!(cuCtxGetApiVersion(context, &mut version)) != CUDA_SUCCESS {
                    self.lose(Contexts, call, context as u64);
                    self.forget_memory();
                }
                call
            }
        })
    }

    /// Forgets memory after a context has ended. Some of the memory ended with it. The rest ends
    /// with its own context.
    fn forget_memory(&mut self) {
        self.held[Linear].clear();
        self.held[Host].clear();
    }

    /// Builds graphs by hand, and uses host functions in streams.
    fn graph(&mut self) -> Answer {
        let graph = self.pick(Graphs) as CUgraph;
        let exec = self.pick(Executables) as CUgraphExec;
        let (kernel, stream) = (self.pick(Kernels) as CUfunction, self.stream());
        let (mut new, mut node) = (null_mut(), null_mut());
        let (mut params, mut update) =
            (zeroed!(CUDA_KERNEL_NODE_PARAMS), zeroed!(CUgraphExecUpdateResultInfo));
        Ok(match self.random.below(10) {
            0 => self.keep(Graphs, call!(cuGraphCreate(&mut new, 0)), new as u64),
            1 => {
                params.func = kernel;
                (params.gridDimX, params.gridDimY, params.gridDimZ) = (1, self.random.below(3) as u32, 1);
                (params.blockDimX, params.blockDimY, params.blockDimZ) = (32, 1, 1);
                call!(cuGraphAddKernelNode_v2(&mut node, graph, null(), 0, &params))
            }
            2 => call!(cuGraphAddEmptyNode(&mut node, graph, null(), 0)),
            3 => {
                let params = CUDA_HOST_NODE_PARAMS { r#fn: Some(nothing), userData: null_mut() };
                call!(cuGraphAddHostNode(&mut node, graph, null(), 0, &params))
            }
            4 => self.keep(Graphs, call!(cuGraphClone(&mut new, graph)), new as u64),
            5 => call!(cuGraphExecUpdate_v2(exec, graph, &mut update)),
            6 => self.lose(Executables, call!(cuGraphExecDestroy(exec)), exec as u64),
            7 => call!(cuGraphUpload(exec, stream)),
            8 => call!(cuStreamAddCallback(stream, Some(called), null_mut(), 0)),
            _ => call!(cuLaunchHostFunc(stream, Some(nothing), null_mut())),
        })
    }

    /// Uses graphs that allocate and free.
    fn graph_memory(&mut self) -> Answer {
        let exec = self.pick(Allocating);
        let stream = self.stream();
        Ok(match self.random.below(6) {
            0 if self.has_room_for(Allocating) => self.build_allocating()?,
            0 | 1 => self.lose(Allocating, call!(cuGraphExecDestroy(exec as CUgraphExec)), exec),
            2 => call!(cuDeviceGraphMemTrim(self.random.below(8) as i32 / 7 * 99)),
            // In a capture the launch would become part of the captured graph.
            _ if is_captured(stream)? => ("a graph that is left out", CUDA_SUCCESS),
            _ => call!(cuGraphLaunch(exec as CUgraphExec, stream)),
        })
    }

    /// Builds an executable graph that allocates twice and frees both.
    fn build_allocating(&mut self) -> Answer {
        let (mut graph, mut exec) = (null_mut(), null_mut());
        let (mut allocation, mut release) = ([null_mut(); 2], null_mut());
        // SAFETY: all zeroes is a valid value of this plain structure.
        let mut params: [CUDA_MEM_ALLOC_NODE_PARAMS; 2] = unsafe { std::mem::zeroed() };
        let mut code = cu!(cuGraphCreate(&mut graph, 0));
        for (params, node) in params.iter_mut().zip(&mut allocation) {
            params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
            params.poolProps.location = CUmemLocation { r#type: CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };
            params.bytesize = self.size();
            if code == CUDA_SUCCESS {
                code = cu!(cuGraphAddMemAllocNode(node, graph, null(), 0, params));
            }
        }
        // The frees come after both allocations, so the two have different addresses.
        for params in &params {
            if code == CUDA_SUCCESS {
                code = cu!(cuGraphAddMemFreeNode(&mut release, graph, allocation.as_ptr(), 2, params.dptr));
            }
        }
        if code == CUDA_SUCCESS {
            code = cu!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
            self.keep(Allocating, ("cuGraphInstantiate", code), exec as u64);
        }
        if !graph.is_null() {
            cu!(cuGraphDestroy(graph));
        }
        Ok(("a graph that allocates", code))
    }

    /// Exports physical memory and imports it again.
    fn hand_over(&mut self) -> Answer {
        let handle = self.pick(Physical);
        let file = self.pick(Descriptors);
        let (mut new, mut descriptor) = (0, -1_i32);
        Ok(match self.random.below(4) {
            0 if self.has_room_for(Physical) => {
                let mut properties = zeroed!(CUmemAllocationProp);
                properties.r#type = CU_MEM_ALLOCATION_TYPE_PINNED;
                properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
                properties.location = self.location();
                self.keep_always(Physical, call!(cuMemCreate(&mut new, GRANULE_BYTES, &properties, 0)), new)
            }
            1 => self.keep_always(
                Descriptors,
                call!(cuMemExportToShareableHandle(
                    (&raw mut descriptor).cast(),
                    handle,
                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                    0
                )),
                descriptor as u64,
            ),
            2 if self.has_room_for(Physical) => self.keep_always(
                Physical,
                call!(cuMemImportFromShareableHandle(
                    &mut new,
                    file as *mut c_void,
                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                )),
                new,
            ),
            _ => {
                if let Some(descriptor) = self.held[Descriptors].pop() {
                    // SAFETY: the driver gave the descriptor to this process, which uses it no
                    // more.
                    unsafe { libc::close(descriptor as i32) };
                }
                ("a descriptor is closed", CUDA_SUCCESS)
            }
        })
    }

    fn allocate(&mut self) -> Answer {
        let (bytes, stream) = (self.size(), self.stream());
        let (mut address, mut host, mut pitch) = (0, null_mut(), 0);
        Ok(match self.random.below(10) {
            8 => self.create_array()?,
            9 => {
                let descriptor = self.array();
                let (levels, mut array) = (self.random.below(20) as u32, null_mut());
                self.keep(
                    Mipmapped,
                    call!(cuMipmappedArrayCreate(&mut array, &descriptor, levels)),
                    array as u64,
                )
            }
            0 => self.keep(
                Linear,
                call!(cuMemAllocPitch_v2(&mut address, &mut pitch, bytes.min(1 << 30), 3, 4)),
                address,
            ),
            1 => self.keep(
                Linear,
                call!(cuMemAllocManaged(&mut address, bytes, CU_MEM_ATTACH_GLOBAL)),
                address,
            ),
            2 => self.keep_pooled(stream, call!(cuMemAllocAsync(&mut address, bytes, stream)), address)?,
            3 => {
                let call = call!(cuMemAllocAsync_ptsz(&mut address, bytes, stream));
                // In this variant the null stream is the per-thread stream.
                let stream = if stream.is_null() { CU_STREAM_PER_THREAD } else { stream };
                self.keep_pooled(stream, call, address)?
            }
            4 => {
                let mut pool = null_mut();
                cu!(cuDeviceGetDefaultMemPool(&mut pool, 0));
                self.keep_pooled(
                    stream,
                    call!(cuMemAllocFromPoolAsync(&mut address, bytes, pool, stream)),
                    address,
                )?
            }
            5 => self.keep(Host, call!(cuMemHostAlloc(&mut host, bytes.min(1 << 20), 0)), host as u64),
            6 => {
                let descriptor = CUDA_ARRAY_DESCRIPTOR {
                    Width: bytes.min(4096),
                    Height: self.random.below(64),
                    Format: CU_AD_FORMAT_UNSIGNED_INT32,
                    NumChannels: 1,
                };
                let mut array = null_mut();
                self.keep(Arrays, call!(cuArrayCreate_v2(&mut array, &descriptor)), array as u64)
            }
            _ => self.keep(Linear, call!(cuMemAlloc_v2(&mut address, bytes)), address),
        })
    }

    fn free(&mut self) -> Answer {
        let stream = self.stream();
        Ok(match self.random.below(7) {
            6 => {
                let array = self.pick(Mipmapped);
                self.lose(Mipmapped, call!(cuMipmappedArrayDestroy(array as CUmipmappedArray)), array)
            }
            0 => {
                let address = self.pick(Pooled);
                // A free in a captured stream does not free the memory yet.
                let is_captured = is_captured(stream)?;
                let call = call!(cuMemFreeAsync(address, stream));
                if !is_captured {
                    self.forget(Pooled, call, address);
                }
                call
            }
            1 => {
                let address = self.pick(Pooled);
                self.forget(Pooled, call!(cuMemFree_v2(address)), address)
            }
            2 => {
                let host = self.pick(Host);
                self.forget(Host, call!(cuMemFreeHost(host as *mut c_void)), host)
            }
            3 => {
                let array = self.pick(Arrays);
                self.lose(Arrays, call!(cuArrayDestroy(array as CUarray)), array)
            }
            _ => {
                let address = self.pick(Linear);
                self.forget(Linear, call!(cuMemFree_v2(address)), address)
            }
        })
    }

    fn work(&mut self) -> Answer {
        let (stream, kernel) = (self.stream(), self.pick(Kernels) as CUfunction);
        let grid = [0, 1, 1, 2, 70_000][self.random.below(5)];
        Ok(match self.random.below(7) {
            0 => {
                let config = CUlaunchConfig { gridDimY: grid, blockDimX: 32, hStream: stream, ..ONE_THREAD };
                call!(cuLaunchKernelEx(&config, kernel, null_mut(), null_mut()))
            }
            1 => call!(cuLaunchCooperativeKernel_ptsz(kernel, grid, 1, 1, 32, 1, 1, 0, stream, null_mut())),
            2 => call!(cuLaunchGridAsync(kernel, grid as i32 - 1, 1, stream)),
            3 => {
                let exec = self.pick(Executables) as CUgraphExec;
                call!(cuGraphLaunch(exec, stream))
            }
            4 => call!(cuLaunchKernel(kernel, 1, grid, 1, 32, 1, 1, 0, stream, null_mut(), null_mut())),
            _ => ("cuLaunchKernel", launch(kernel, stream)?),
        })
    }

    fn capture(&mut self) -> Answer {
        let stream = self.stream();
        let (mut graph, mut exec) = (null_mut(), null_mut());
        Ok(match self.random.below(5) {
            0 if self.is_wild => {
                let mode = self.random.below(4) as u32;
                call!(cuStreamBeginCapture_v2(stream, mode))
            }
            1 | 2 => self.keep(Graphs, call!(cuStreamEndCapture(stream, &mut graph)), graph as u64),
            3 => {
                let graph = self.pick(Graphs) as CUgraph;
                self.keep(Executables, call!(cuGraphInstantiateWithFlags(&mut exec, graph, 0)), exec as u64)
            }
            _ => {
                let graph = self.pick(Graphs);
                self.lose(Graphs, call!(cuGraphDestroy(graph as CUgraph)), graph)
            }
        })
    }

    fn order(&mut self) -> Answer {
        let (stream, event) = (self.stream(), self.pick(Events));
        let (mut new_event, mut new_stream) = (null_mut(), null_mut());
        Ok(match self.random.below(9) {
            0 => self.keep(Events, call!(cuEventCreate(&mut new_event, 0)), new_event as u64),
            1 => self.lose(Events, call!(cuEventDestroy_v2(event as CUevent)), event),
            2 => call!(cuEventRecord(event as CUevent, stream)),
            3 => call!(cuStreamWaitEvent(stream, event as CUevent, 0)),
            4 => call!(cuEventSynchronize(event as CUevent)),
            5 => call!(cuStreamSynchronize(stream)),
            6 => call!(cuCtxSynchronize()),
            7 => {
                let gone = self.pick(Streams);
                self.lose(Streams, call!(cuStreamDestroy_v2(gone as CUstream)), gone)
            }
            _ => {
                let flags = self.random.below(3) as u32;
                self.keep(Streams, call!(cuStreamCreate(&mut new_stream, flags)), new_stream as u64)
            }
        })
    }

    fn virtual_memory(&mut self) -> Answer {
        let mut properties = zeroed!(CUmemAllocationProp);
        properties.r#type = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = self.location();
        let bytes = GRANULE_BYTES + usize::from(self.random.below(8) == 0);
        let place = self.pick(Reserved);
        let handle = self.pick(Physical);
        let (mut new, mut retained) = (0, 0);
        Ok(match self.random.below(7) {
            0 | 1 if self.has_room_for(Physical) => {
                self.keep_always(Physical, call!(cuMemCreate(&mut new, bytes, &properties, 0)), new)
            }
            0..=2 => {
                let call = call!(cuMemRelease(handle));
                // Another handle of the memory can be left, so only one entry is removed.
                if call.1 == CUDA_SUCCESS
                    && let Some(place) = self.held[Physical].iter().position(|kept| *kept == handle)
                {
                    self.held[Physical].swap_remove(place);
                }
                call
            }
            3 if self.has_room_for(Reserved) => {
                self.keep_always(Reserved, call!(cuMemAddressReserve(&mut new, RESERVED_BYTES, 0, 0, 0)), new)
            }
            3 => self.forget(Reserved, call!(cuMemAddressFree(place, RESERVED_BYTES)), place),
            4 => {
                let at = place.wrapping_add((self.random.below(RESERVED_GRANULES) * GRANULE_BYTES) as u64);
                call!(cuMemMap(at, GRANULE_BYTES, 0, handle, 0))
            }
            5 => self.keep_always(
                Physical,
                call!(cuMemRetainAllocationHandle(&mut retained, place as *mut c_void)),
                retained,
            ),
            _ => {
                let granules = 1 + self.random.below(RESERVED_GRANULES);
                call!(cuMemUnmap(place, granules * GRANULE_BYTES))
            }
        })
    }

    /// Keeps an object that belongs to no context, so that the program can free it at the end.
    fn keep_always(&mut self, of: Kind, call: Call, object: u64) -> Call {
        if call.1 == CUDA_SUCCESS {
            self.held[of].push(object);
        }
        call
    }

    fn copy(&mut self) -> Answer {
        let (one, other) = (self.pick(Linear), self.pick(Pooled));
        // The bytes after an allocation depend on where the driver puts others. One byte is always
        // inside.
        let (stream, bytes) = (self.stream(), self.random.below(2));
        let mut host = [0_u8; 1];
        // A graph would keep the addresses beyond the life of the memory.
        if is_captured(stream)? {
            return Ok(("a copy that is left out", CUDA_SUCCESS));
        }
        Ok(match self.random.below(5) {
            0 => call!(cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), one, bytes)),
            1 => call!(cuMemcpyHtoD_v2(one, host.as_ptr().cast(), bytes)),
            2 => call!(cuMemcpyDtoDAsync_v2(one, other, bytes, stream)),
            3 => call!(cuMemsetD8Async(one, 7, bytes, stream)),
            _ => call!(cuMemsetD8_v2(other, 7, bytes)),
        })
    }

    fn live(&mut self) -> Answer {
        let context = self.pick(Contexts);
        let (mut popped, mut free, mut total) = (null_mut(), 0, 0);
        Ok(match self.random.below(12) {
            0 if self.held[Contexts].len() < 4 => self.context()?,
            1 if self.held[Contexts].len() > 1 => {
                let call = call!(cuCtxDestroy_v2(context as CUcontext));
                self.lose(Contexts, call, context);
                if call.1 == CUDA_SUCCESS {
                    self.forget_memory();
                }
                call
            }
            2 => call!(cuCtxPopCurrent_v2(&mut popped)),
            3 => call!(cuCtxPushCurrent_v2(context as CUcontext)),
            4 => call!(cuMemGetInfo_v2(&mut free, &mut total)),
            5 => call!(cuMemGetInfo_v2(&mut free, null_mut())),
            6 => call!(cuMemAlloc_v2(null_mut(), 512)),
            7 => call!(cuLaunchKernelEx(null(), null_mut(), null_mut(), null_mut())),
            8 => call!(cuMemCreate(null_mut(), GRANULE_BYTES, null(), 0)),
            _ => call!(cuCtxSetCurrent(context as CUcontext)),
        })
    }

    /// Frees the objects that outlive contexts, and then the contexts with everything else. Repeats
    /// each call as often as injected errors can make it fail.
    fn clean(&mut self) -> Result<(), Stop> {
        let insist = |call: &dyn Fn() -> Result<CUresult, Stop>| {
            for _ in 0..ATTEMPTS {
                if call()? == CUDA_SUCCESS {
                    break;
                }
            }
            Ok(())
        };
        for place in &self.held[Reserved] {
            for granule in 0..RESERVED_GRANULES {
                let at = place + (granule * GRANULE_BYTES) as u64;
                insist(&|| Ok(cu!(cuMemUnmap(at, GRANULE_BYTES))))?;
            }
        }
        for handle in &self.held[Physical] {
            insist(&|| Ok(cu!(cuMemRelease(*handle))))?;
        }
        for exec in &self.held[Allocating] {
            insist(&|| Ok(cu!(cuGraphExecDestroy(*exec as CUgraphExec))))?;
        }
        insist(&|| Ok(cu!(cuDeviceGraphMemTrim(0))))?;
        for context in &self.held[Contexts] {
            insist(&|| Ok(cu!(cuCtxDestroy_v2(*context as CUcontext))))?;
        }
        // Memory from pools belongs to no context. The test frees such memory in a context that
        // captures nothing.
        insist(&|| Ok(cu!(cuDevicePrimaryCtxReset_v2(0))))?;
        let mut last = null_mut();
        must!(cuDevicePrimaryCtxRetain(&mut last, 0));
        must!(cuCtxSetCurrent(last));
        for address in &self.held[Pooled] {
            insist(&|| Ok(cu!(cuMemFree_v2(*address))))?;
        }
        insist(&|| Ok(cu!(cuCtxSynchronize())))?;
        insist(&|| Ok(cu!(cuDevicePrimaryCtxReset_v2(0))))?;
        for pool in &self.held[Pools] {
            insist(&|| Ok(cu!(cuMemPoolDestroy(*pool as CUmemoryPool))))?;
        }
        Ok(())
    }
}
