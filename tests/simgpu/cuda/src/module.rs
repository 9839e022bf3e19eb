//! Loaded code: modules in a context, libraries without one, and the kernels and variables of both.
use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use deepres_abi::driver::types as cu;
use simgpu_engine::KernelCost;

use crate::context::{self, Context, lock};
use crate::handle::{Kind as HandleKind, Table};
use crate::image::{Image, KernelImage, Parameter};
use crate::memory::{self, Kind};
use crate::process;
use crate::status::{self, Result};

/// All modules that live.
pub static MODULES: Table<Module> = Table::new(HandleKind::Module);
/// All functions of them.
pub static FUNCTIONS: Table<Function> = Table::new(HandleKind::Function);
/// All libraries that live.
pub static LIBRARIES: Table<Library> = Table::new(HandleKind::Library);
/// All kernels of them.
pub static KERNELS: Table<Kernel> = Table::new(HandleKind::Kernel);

/// Threads of a block when the code sets no bound.
const MAX_THREADS_PER_BLOCK: u32 = 1024;
/// How many attributes a function has.
const ATTRIBUTE_COUNT: usize = cu::CU_FUNC_ATTRIBUTE_MAX as usize;

/// Attributes of a function or kernel, by `CUfunction_attribute`.
struct Attributes([AtomicI32; ATTRIBUTE_COUNT]);

impl Attributes {
    fn new(image: &Image, kernel: &KernelImage) -> Self {
        let attributes = Self(std::array::from_fn(|_| AtomicI32::new(0)));
        let default_shared =
            process::config().shared_memory_per_block_bytes.saturating_sub(kernel.shared_bytes);
        for (attribute, value) in [
            (
                cu::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                kernel.max_threads.unwrap_or(MAX_THREADS_PER_BLOCK),
            ),
            (cu::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel.shared_bytes),
            (cu::CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES, kernel.const_bytes),
            (cu::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, kernel.local_bytes),
            (cu::CU_FUNC_ATTRIBUTE_NUM_REGS, kernel.registers),
            (
                cu::CU_FUNC_ATTRIBUTE_PTX_VERSION,
                if image.ptx_version == 0 { image.architecture } else { image.ptx_version },
            ),
            (cu::CU_FUNC_ATTRIBUTE_BINARY_VERSION, image.architecture),
            (cu::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, default_shared),
        ] {
            attributes.0[attribute as usize].store(value as i32, Ordering::Relaxed);
        }
        let carveout = &attributes.0[cu::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT as usize];
        carveout.store(-1, Ordering::Relaxed);
        attributes
    }

    fn get(&self, attribute: u32) -> Result<i32> {
        self.0.get(attribute as usize).map(|value| value.load(Ordering::Relaxed)).ok_or(status::INVALID_VALUE)
    }

    fn set(&self, attribute: u32, value: i32) -> Result<()> {
        let config = process::config();
        let is_allowed = match attribute {
            cu::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                let fixed = self.get(cu::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
                value >= 0 && value + fixed <= config.shared_memory_per_block_optin_bytes as i32
            }
            cu::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => (-1..=100).contains(&value),
            cu::CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET
            | cu::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH
            | cu::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT
            | cu::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH
            | cu::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            | cu::CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE => value >= 0,
            _ => false,
        };
        if !is_allowed {
            return Err(status::INVALID_VALUE);
        }
        self.0[attribute as usize].store(value, Ordering::Relaxed);
        Ok(())
    }
}

/// What a kernel cost when it was last launched: shape, then duration and the part of the SMs it can use.
type LastCost = Option<([u32; 7], KernelCost)>;

/// A kernel in a context.
pub struct Function {
    /// What clients hold.
    pub handle: usize,
    /// Its symbol, with a NUL.
    pub name: std::ffi::CString,
    /// The module it is of.
    pub module: usize,
    /// The context that is loaded in.
    pub context: Arc<Context>,
    /// Its parameters.
    pub parameters: Vec<Parameter>,
    attributes: Attributes,
    last_cost: Mutex<LastCost>,
    /// Block and dynamic shared memory as the oldest launch calls take them.
    old_shape: Mutex<([u32; 3], u32)>,
}

impl Function {
    /// Block and dynamic shared memory that cuLaunchGrid and its kin use.
    pub fn old_shape(&self) -> ([u32; 3], u32) {
        *lock(&self.old_shape)
    }

    /// Sets the block of those.
    pub fn set_old_block(&self, block: [u32; 3]) {
        lock(&self.old_shape).0 = block;
    }

    /// Sets the shared memory of those.
    pub fn set_old_shared(&self, bytes: u32) {
        lock(&self.old_shape).1 = bytes;
    }

    /// One of its attributes.
    pub fn attribute(&self, attribute: u32) -> Result<i32> {
        self.attributes.get(attribute)
    }

    /// Changes one of them, of those that can be changed.
    pub fn set_attribute(&self, attribute: u32, value: i32) -> Result<()> {
        self.attributes.set(attribute, value)
    }

    /// Its name as text.
    pub fn name(&self) -> &str {
        self.name.to_str().unwrap_or_default()
    }

    /// What a launch of this shape costs, with the last answer kept: most kernels are launched in one shape.
    pub fn cost(&self, grid: [u32; 3], block: [u32; 3], shared_bytes: u32) -> KernelCost {
        let shape = [grid[0], grid[1], grid[2], block[0], block[1], block[2], shared_bytes];
        let mut last = lock(&self.last_cost);
        match *last {
            Some((known, cost)) if known == shape => cost,
            _ => {
                let fixed = self.attribute(cu::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES).unwrap_or(0) as u32;
                let cost = process::config().kernel_cost(self.name(), grid, block, shared_bytes + fixed);
                *last = Some((shape, cost));
                cost
            }
        }
    }
}

/// Code loaded in a context.
pub struct Module {
    /// What clients hold.
    pub handle: usize,
    /// The context.
    pub context: Arc<Context>,
    /// Its kernels, in the image's order.
    pub functions: Vec<Arc<Function>>,
    /// Its variables: address and length.
    globals: HashMap<String, (u64, u64)>,
    /// Where its variables lie, and its code where that is loaded with them: address and length.
    memory: Option<(u64, u64)>,
}

/// Whether code and libraries are loaded at once (`CUDA_MODULE_LOADING`), not when they are used first.
pub fn is_eager() -> bool {
    static IS_EAGER: OnceLock<bool> = OnceLock::new();
    *IS_EAGER.get_or_init(|| std::env::var("CUDA_MODULE_LOADING").is_ok_and(|mode| mode == "EAGER"))
}

impl Module {
    fn load(context: &Arc<Context>, image: &Image) -> Result<Arc<Self>> {
        let text_bytes = if is_eager() { image.text_bytes } else { 0 };
        let bytes = image.data_bytes.checked_add(text_bytes).ok_or(status::OUT_OF_MEMORY)?;
        let memory = if bytes == 0 { None } else { Some((memory::take_zeroed(context, bytes)?, bytes)) };
        let mut globals = HashMap::new();
        if let Some((base, _)) = memory {
            for global in &image.globals {
                let at = base + global.offset_bytes;
                let length = global.initial.len().min(global.size_bytes);
                // SAFETY: the image's data has room for each of its variables, and this is as long.
                unsafe { std::ptr::copy_nonoverlapping(global.initial.as_ptr(), at as *mut u8, length) };
                let size_bytes = global.size_bytes as u64;
                let kind = Kind::Variable { managed: global.managed };
                memory::enter(at, size_bytes, kind, Some(Arc::clone(context)));
                // Of two of one name the later counts.
                if let Some((earlier, _)) = globals.insert(global.name.clone(), (at, size_bytes)) {
                    memory::forget_variable(earlier);
                }
            }
        }
        let module = MODULES.insert_with(|module| {
            let functions = image.kernels.iter().filter_map(|kernel| {
                let name = std::ffi::CString::new(kernel.name.as_str()).ok()?;
                FUNCTIONS.insert_with(|handle| {
                    Arc::new(Function {
                        handle,
                        name,
                        module,
                        context: Arc::clone(context),
                        parameters: kernel.parameters.clone(),
                        attributes: Attributes::new(image, kernel),
                        last_cost: Mutex::new(None),
                        old_shape: Mutex::new(([1; 3], 0)),
                    })
                })
            });
            Arc::new(Self {
                handle: module,
                context: Arc::clone(context),
                functions: functions.collect(),
                globals: std::mem::take(&mut globals),
                memory,
            })
        });
        if module.is_none() {
            globals.values().for_each(|(at, _)| memory::forget_variable(*at));
            if let Some((base, bytes)) = memory {
                memory::give_drained(context, base, bytes);
            }
        }
        module.ok_or(status::OUT_OF_MEMORY)
    }

    fn drop_contents(&self) {
        for function in &self.functions {
            FUNCTIONS.remove(function.handle);
        }
        for (at, _) in self.globals.values() {
            memory::forget_variable(*at);
        }
        if let Some((base, bytes)) = self.memory {
            memory::give_drained(&self.context, base, bytes);
        }
    }

    /// What its memory counts for, bytes: more than half a piece in pieces, less in units.
    pub fn counts_for(&self) -> u64 {
        self.memory.map_or(0, |(_, bytes)| memory::counts_for(bytes))
    }

    /// The piece that its memory shares with others, if it does.
    pub fn shared_piece(&self) -> Option<u64> {
        self.memory.filter(|(_, bytes)| memory::is_small(*bytes)).map(|(base, _)| memory::piece_at(base))
    }

    /// The kernel of that name.
    pub fn function(&self, name: &str) -> Result<Arc<Function>> {
        self.functions.iter().find(|one| one.name() == name).cloned().ok_or(status::NOT_FOUND)
    }

    /// Address and length of the variable of that name.
    pub fn global(&self, name: &str) -> Result<(u64, u64)> {
        self.globals.get(name).copied().ok_or(status::NOT_FOUND)
    }
}

/// Code loaded without a context; each context that uses it gets a module of it when it first does.
pub struct Library {
    /// What clients hold.
    pub handle: usize,
    image: Image,
    /// Its kernels, in the image's order.
    pub kernels: Vec<Arc<Kernel>>,
    modules: Mutex<HashMap<u64, Arc<Module>>>,
}

/// A kernel of a library.
pub struct Kernel {
    /// What clients hold.
    pub handle: usize,
    /// Its symbol, with a NUL.
    pub name: std::ffi::CString,
    /// The library it is of.
    pub library: usize,
    /// Its parameters.
    pub parameters: Vec<Parameter>,
    /// Attributes set for all devices at once, which functions made later take over.
    attributes: Attributes,
}

impl Library {
    /// The library's module in a context.
    pub fn module(&self, context: &Arc<Context>) -> Result<Arc<Module>> {
        let mut modules = lock(&self.modules);
        if let Some(module) = modules.get(&context.id) {
            return Ok(Arc::clone(module));
        }
        let module = Module::load(context, &self.image)?;
        modules.insert(context.id, Arc::clone(&module));
        Ok(module)
    }

    /// Whether the variable of that name is managed; `None` without one.
    pub fn is_managed(&self, name: &str) -> Option<bool> {
        self.image.globals.iter().find(|global| global.name == name).map(|global| global.managed)
    }
}

impl Kernel {
    /// The function it is in a context.
    pub fn function(&self, context: &Arc<Context>) -> Result<Arc<Function>> {
        let library = LIBRARIES.get(self.library).ok_or(status::INVALID_HANDLE)?;
        library.module(context)?.function(self.name.to_str().unwrap_or_default())
    }

    /// One of its attributes on a device.
    pub fn attribute(&self, attribute: u32) -> Result<i32> {
        self.attributes.get(attribute)
    }

    /// Changes one of them, in the contexts that have it loaded too.
    pub fn set_attribute(&self, attribute: u32, value: i32) -> Result<()> {
        self.attributes.set(attribute, value)?;
        let library = LIBRARIES.get(self.library).ok_or(status::INVALID_HANDLE)?;
        for module in lock(&library.modules).values() {
            module.function(self.name.to_str().unwrap_or_default())?.set_attribute(attribute, value)?;
        }
        Ok(())
    }
}

/// Loads a module into the current context.
pub fn load(image: &Image) -> Result<usize> {
    Ok(Module::load(&context::current()?, image)?.handle)
}

/// Unloads a module.
pub fn unload(handle: usize) -> Result<()> {
    let module = MODULES.remove(handle).ok_or(status::INVALID_HANDLE)?;
    module.drop_contents();
    Ok(())
}

/// Loads a library.
pub fn load_library(image: Image) -> Result<usize> {
    let library = LIBRARIES.insert_with(|library| {
        let kernels = image.kernels.iter().filter_map(|kernel| {
            let name = std::ffi::CString::new(kernel.name.as_str()).ok()?;
            KERNELS.insert_with(|handle| {
                Arc::new(Kernel {
                    handle,
                    name,
                    library,
                    parameters: kernel.parameters.clone(),
                    attributes: Attributes::new(&image, kernel),
                })
            })
        });
        let kernels = kernels.collect();
        Arc::new(Library { handle: library, kernels, image, modules: Mutex::default() })
    });
    let library = library.ok_or(status::OUT_OF_MEMORY)?;
    if is_eager() {
        let loaded = context::CONTEXTS
            .all()
            .iter()
            .filter(|one| one.is_alive())
            .try_for_each(|context| library.module(context).map(drop));
        if let Err(error) = loaded {
            unload_library(library.handle)?;
            return Err(error);
        }
    }
    Ok(library.handle)
}

/// Loads into a new context what is loaded at once.
pub fn load_libraries(context: &Arc<Context>) -> Result<()> {
    if is_eager() {
        LIBRARIES.all().iter().try_for_each(|library| library.module(context).map(drop))?;
    }
    Ok(())
}

/// Unloads a library with its kernels and modules.
pub fn unload_library(handle: usize) -> Result<()> {
    let library = LIBRARIES.remove(handle).ok_or(status::INVALID_HANDLE)?;
    for kernel in &library.kernels {
        KERNELS.remove(kernel.handle);
    }
    for module in lock(&library.modules).values() {
        MODULES.remove(module.handle);
        module.drop_contents();
    }
    Ok(())
}

/// The function that a `CUfunction` means: one of a module, or a kernel in the current context, which launches accept in its place.
#[inline]
pub fn function(handle: usize) -> Result<Arc<Function>> {
    match FUNCTIONS.get(handle) {
        Some(function) => Ok(function),
        None => KERNELS.get(handle).ok_or(status::INVALID_HANDLE)?.function(&context::current()?),
    }
}

/// Drops the code loaded in a context that ends.
pub fn forget_context(context: usize) {
    for module in MODULES.all() {
        if module.context.handle == context {
            MODULES.remove(module.handle);
            module.drop_contents();
        }
    }
    for library in LIBRARIES.all() {
        lock(&library.modules).retain(|_, module| module.context.handle != context);
    }
}
