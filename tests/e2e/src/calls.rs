//! A client that makes the driver calls that a test asks for, as Python expressions.

use std::process::Command;

use crate::{Host, Orders, clients};

/// A client that evaluates one expression after another with the functions of
/// `tests/workloads/python/pieces.py`. Most functions return the driver's code, and keep the object
/// that they make under a name.
pub struct Calls(pub Orders);

impl Calls {
    /// Starts a client with the library, these variables and a context.
    #[track_caller]
    pub fn start(host: &Host, variables: &[(&str, &str)]) -> Self {
        let mut command = host.preloaded("python3");
        command.envs(variables.iter().copied());
        let mut client = Self::run(host, command, "");
        client.does("start()");
        client
    }

    /// Starts a client by a command that runs Python. The client has no context, and knows these
    /// functions too.
    pub fn run(host: &Host, mut command: Command, functions: &str) -> Self {
        command.arg(clients::script("pieces"));
        let mut client = Self(Orders::new(host.spawn(command), 0, |number| format!("{number} ")));
        client.define(functions);
        client
    }

    /// Makes further functions known to the client.
    #[track_caller]
    pub fn define(&mut self, functions: &str) {
        // Rust escapes a text as Python does, as long as the text is ASCII.
        assert_eq!(self.asks(&format!("exec({functions:?})")), "None");
    }

    /// Returns the value of an expression.
    #[track_caller]
    pub fn asks(&mut self, expression: &str) -> String {
        self.0.ask(expression)
    }

    /// Asserts that the driver's code, which is the value of an expression, means success.
    #[track_caller]
    pub fn does(&mut self, expression: &str) {
        assert_eq!(self.asks(expression), "0", "{expression}");
    }

    /// Returns the client's process id.
    pub fn pid(&self) -> u32 {
        self.0.process.pid()
    }
}

/// Functions that make and end the objects for which the driver itself takes memory: contexts,
/// modules and libraries. A refused call must leave no handle behind.
pub const OVERHEADS: &str = r#"
must(cuda.cuInit(0))
def make(kind, which, call, *arguments):
    made = c_void_p()
    code = call(byref(made), *arguments)
    assert code == 0 or made.value is None, f"a dead handle of a {kind}"
    if code == 0: kept[kind, which] = made
    return code
def create(which): return make("context", which, cuda.cuCtxCreate_v2, 0, 0)
def destroy(which): return cuda.cuCtxDestroy_v2(kept["context", which])
def retain(): return make("primary", 0, cuda.cuDevicePrimaryCtxRetain, 0) or cuda.cuCtxSetCurrent(kept["primary", 0])
def reset(): return cuda.cuDevicePrimaryCtxReset_v2(0)
def allocate(which, size): return make("memory", which, cuda.cuMemAlloc_v2, c_size_t(size))
def free(which): return cuda.cuMemFree_v2(kept["memory", which])
def image(size, ptx):
    variable = f".visible .global .align 8 .b8 large[{size}];\n.visible .entry nothing()\n{{\n\tret;\n}}\n"
    return f".version {ptx}\n.target sm_70\n.address_size 64\n{variable}".encode()
def load(which, size, ptx="7.0"): return make("module", which, cuda.cuModuleLoadData, image(size, ptx))
def unload(which): return cuda.cuModuleUnload(kept["module", which])
def open_library(which, size, ptx="7.0"):
    return make("library", which, cuda.cuLibraryLoadData, image(size, ptx), None, None, 0, None, None, 0)
def use_library(which): return make("module", which, cuda.cuLibraryGetModule, kept["library", which])
def close_library(which): return cuda.cuLibraryUnload(kept["library", which])
def heap(size): return cuda.cuCtxSetLimit(2, c_size_t(size))
def allocate_rest(which):
    free = c_size_t()
    return cuda.cuMemGetInfo_v2(byref(free), byref(c_size_t())) or allocate(which, free.value)
"#;

/// A function that returns the exit code of a forked child. The code is the value of a call.
pub const FORKED: &str = r#"
import os
def forked(call):
    child = os.fork()
    if child == 0: os._exit(call())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"#;

/// Functions that launch kernels and graphs on a stream. Call them once the client has a context.
pub const WORK: &str = r#"
NON_BLOCKING, RELAXED = 1, 2
def new(call, *arguments):
    made = c_void_p()
    must(call(byref(made), *arguments))
    return made
def module(name):
    code = f".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry {name}()\n{{\n\tret;\n}}\n"
    return new(cuda.cuModuleLoadData, code.encode())
def kernel(name): return new(cuda.cuModuleGetFunction, module(name), name.encode())
def launch(kernel, stream): return cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, None, None)
stream = new(cuda.cuStreamCreate, NON_BLOCKING)
def executable(graph, flags=0): return new(cuda.cuGraphInstantiateWithFlags, graph, c_uint64(flags))
def launch_graph(executable):
    code = cuda.cuGraphLaunch(executable, stream)
    must(cuda.cuStreamSynchronize(stream))
    return code
def captured(size):
    graph, at = c_void_p(), c_uint64()
    must(cuda.cuStreamBeginCapture_v2(stream, RELAXED))
    must(cuda.cuMemAllocAsync(byref(at), c_size_t(size), stream))
    must(cuda.cuMemFreeAsync(at, stream))
    must(cuda.cuStreamEndCapture(stream, byref(graph)))
    return graph
"#;
