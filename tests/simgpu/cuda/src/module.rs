//! Loaded code: modules in a context, libraries without a context, and their kernels and variables.
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use deepres_abi::driver::types as cu;
use simgpu_engine::KernelCost;

use crate::context::{self, Context, lock};
use crate::handle::{Kind as HandleKind, Table};
use crate::image::{Image, KernelImage, Parameter};
use crate::memory::{self, Kind};
use crate::process;
use crate::status::{self, Result};

/// All live modules.
pub static MODULES: Table<Module> = Table::new(HandleKind::Module);
/// All functions of live modules.
pub static FUNCTIONS: Table<Function> = Table::new(HandleKind::Function);
/// All live libraries.
pub static LIBRARIES: Table<Library> = Table::new(HandleKind::Library);
/// All kernels of live libraries.
pub static KERNELS: Table<Kernel> = Table::new(HandleKind::Kernel);

/// The most threads in a block if the code sets no bound.
const MAX_THREADS_PER_BLOCK: u32 = 1024;
/// Number of attributes of a function.
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

    /// Copies all values of `from`.
    fn take_over(&self, from: &Self) {
        for (to, from) in self.0.iter().zip(&from.0) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
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
        status::refuse(!is_allowed)?;
        self.0[attribute as usize].store(value, Ordering::Relaxed);
        Ok(())
    }
}

/// The kernel's last cost: launch shape and cost.
type LastCost = Option<([u32; 7], KernelCost)>;

/// A kernel in a context.
pub struct Function {
    /// The handle by which clients name the function.
    pub handle: usize,
    /// The kernel's symbol, as a C string.
    pub name: std::ffi::CString,
    /// Handle of the function's module.
    pub module: usize,
    /// The context of the function's module.
    pub context: Arc<Context>,
    /// The kernel's parameters.
    pub parameters: Vec<Parameter>,
    attributes: Attributes,
    last_cost: Mutex<LastCost>,
    /// Block shape and dynamic shared memory that the oldest launch calls set.
    old_shape: Mutex<([u32; 3], u32)>,
}

impl Function {
    /// Returns the block shape and dynamic shared memory for cuLaunchGrid and its relatives.
    pub fn old_shape(&self) -> ([u32; 3], u32) {
        *lock(&self.old_shape)
    }

    /// Sets the block shape for cuLaunchGrid and its relatives.
    pub fn set_old_block(&self, block: [u32; 3]) {
        lock(&self.old_shape).0 = block;
    }

    /// Sets the dynamic shared memory for cuLaunchGrid and its relatives.
    pub fn set_old_shared(&self, bytes: u32) {
        lock(&self.old_shape).1 = bytes;
    }

    /// Returns an attribute.
    pub fn attribute(&self, attribute: u32) -> Result<i32> {
        self.attributes.get(attribute)
    }

    /// Changes an attribute, if it can be changed.
    pub fn set_attribute(&self, attribute: u32, value: i32) -> Result<()> {
        self.attributes.set(attribute, value)
    }

    /// Returns the name as text.
    pub fn name(&self) -> &str {
        self.name.to_str().unwrap_or_default()
    }

    /// Returns the cost of a launch of this shape. Keeps the last result, because most kernels are
    /// launched in one shape only.
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
    /// The handle by which clients name the module.
    pub handle: usize,
    /// The context in which the code is loaded.
    pub context: Arc<Context>,
    /// Functions in the image's order.
    pub functions: Vec<Arc<Function>>,
    /// Variables: address and length.
    globals: HashMap<String, (u64, u64)>,
    /// Memory of the variables, and of the code if it is loaded with them: address and length.
    memory: Option<(u64, u64)>,
}

/// Returns whether the driver loads code and libraries at once (`CUDA_MODULE_LOADING`) instead of
/// at their first use.
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
                // SAFETY: the image's data has room for each of its variables, and `memory` is as
                // long as that data.
                unsafe { std::ptr::copy_nonoverlapping(global.initial.as_ptr(), at as *mut u8, length) };
                let size_bytes = global.size_bytes as u64;
                let kind = Kind::Variable { managed: global.managed };
                memory::enter(at, size_bytes, kind, Some(Arc::clone(context)));
                // Of two variables with one name, the driver keeps the later variable.
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

    /// Returns the length of the module's memory, bytes.
    pub fn bytes(&self) -> u64 {
        self.memory.map_or(0, |(_, bytes)| bytes)
    }

    /// Returns the piece of memory that the module shares with other memory. Returns `None` if the
    /// module shares no piece.
    pub fn shared_piece(&self) -> Option<u64> {
        self.memory.filter(|(_, bytes)| memory::is_small(*bytes)).map(|(base, _)| memory::piece_at(base))
    }

    /// Returns the function of a name.
    pub fn function(&self, name: &str) -> Result<Arc<Function>> {
        // This comparison must be fast: the names of templates are long, and each launch of a
        // kernel looks for a name.
        let found = self.functions.iter().find(|one| one.name.as_bytes() == name.as_bytes());
        found.cloned().ok_or(status::NOT_FOUND)
    }

    /// Returns address and length of the variable of a name.
    pub fn global(&self, name: &str) -> Result<(u64, u64)> {
        self.globals.get(name).copied().ok_or(status::NOT_FOUND)
    }
}

/// Code loaded without a context. At the first use of the code in a context, the context gets a
/// module.
pub struct Library {
    /// The handle by which clients name the library.
    pub handle: usize,
    image: Image,
    /// Kernels in the image's order.
    pub kernels: Vec<Arc<Kernel>>,
    modules: Mutex<HashMap<u64, Arc<Module>>>,
}

/// A kernel of a library.
pub struct Kernel {
    /// The handle by which clients name the kernel.
    pub handle: usize,
    /// The kernel's symbol, as a C string.
    pub name: std::ffi::CString,
    /// Handle of the kernel's library.
    pub library: usize,
    /// The kernel's parameters.
    pub parameters: Vec<Parameter>,
    /// Attributes for all devices. The driver copies the attributes to each function that it makes
    /// of the kernel.
    attributes: Attributes,
    /// Whether a client changed an attribute.
    is_changed: AtomicBool,
}

impl Library {
    /// Returns the library's module in a context.
    pub fn module(&self, context: &Arc<Context>) -> Result<Arc<Module>> {
        let mut modules = lock(&self.modules);
        if let Some(module) = modules.get(&context.id) {
            return Ok(Arc::clone(module));
        }
        let module = Module::load(context, &self.image)?;
        for kernel in self.kernels.iter().filter(|kernel| kernel.is_changed.load(Ordering::Relaxed)) {
            module.function(kernel.name())?.attributes.take_over(&kernel.attributes);
        }
        modules.insert(context.id, Arc::clone(&module));
        Ok(module)
    }

    /// Returns whether the variable of a name is managed; `None` if there is no such variable.
    pub fn is_managed(&self, name: &str) -> Option<bool> {
        self.image.globals.iter().find(|global| global.name == name).map(|global| global.managed)
    }
}

impl Kernel {
    /// Returns the kernel's function in a context.
    pub fn function(&self, context: &Arc<Context>) -> Result<Arc<Function>> {
        let library = LIBRARIES.get(self.library).ok_or(status::INVALID_HANDLE)?;
        library.module(context)?.function(self.name())
    }

    /// Returns the name as text.
    fn name(&self) -> &str {
        self.name.to_str().unwrap_or_default()
    }

    /// Returns an attribute.
    pub fn attribute(&self, attribute: u32) -> Result<i32> {
        self.attributes.get(attribute)
    }

    /// Changes an attribute, also in the contexts that have the kernel loaded.
    pub fn set_attribute(&self, attribute: u32, value: i32) -> Result<()> {
        let library = LIBRARIES.get(self.library).ok_or(status::INVALID_HANDLE)?;
        let modules = lock(&library.modules);
        self.attributes.set(attribute, value)?;
        self.is_changed.store(true, Ordering::Relaxed);
        for module in modules.values() {
            module.function(self.name())?.set_attribute(attribute, value)?;
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
                    is_changed: AtomicBool::new(false),
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

/// Loads libraries into a new context if loading is eager.
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

/// Returns the function of a `CUfunction`: a module's function, or a kernel in the current context.
/// Launches accept kernels too.
#[inline]
pub fn function(handle: usize) -> Result<Arc<Function>> {
    match FUNCTIONS.get(handle) {
        Some(function) => Ok(function),
        None => KERNELS.get(handle).ok_or(status::INVALID_HANDLE)?.function(&context::current()?),
    }
}

/// Drops the code loaded in an ending context.
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
