//! Linear memory of one process that another opens.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::prelude::*;

checks! { "ipc":
    Documented both_processes_see_one_memory;
    Guess opening_takes_nothing_of_the_device;
    Documented memory_opened_again_has_one_address_until_it_is_closed_as_often;
    Guess opened_memory_is_closed_and_not_freed;
    Guess the_exporter_does_not_open_its_own;
    Documented memory_at_the_same_address_has_another_handle;
    Guess only_whole_linear_memory_is_exported;
}

const BYTES: usize = 4 << 20;
const LAZY: CUipcMem_flags = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;

/// A second process with a context on the same device.
struct Other {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Other {
    fn start() -> Result<Self, Stop> {
        let started = std::env::current_exe().and_then(|program| {
            Command::new(program).arg("--opener").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
        });
        let lost = || Stop::Absent("no second process can be started".to_owned());
        let mut child = started.map_err(|_| lost())?;
        let (to, from) = (child.stdin.take().ok_or_else(lost)?, child.stdout.take().ok_or_else(lost)?);
        let mut other = Self { child, to, from: BufReader::new(from) };
        other.ask("ready")?;
        Ok(other)
    }

    fn ask(&mut self, line: &str) -> Result<u64, Stop> {
        let mut said = String::new();
        let asked = writeln!(self.to, "{line}").and_then(|()| self.from.read_line(&mut said));
        let answer = asked.ok().and_then(|_| said.trim().parse().ok());
        answer.ok_or(Stop::Failed("the second process", CUDA_ERROR_UNKNOWN))
    }

    fn code(&mut self, line: &str) -> Result<CUresult, Stop> {
        self.ask(line).map(|code| code as CUresult)
    }

    fn open(&mut self, handle: &CUipcMemHandle) -> Result<CUresult, Stop> {
        let text: String = handle.reserved.iter().map(|byte| format!("{byte:02x}")).collect();
        self.code(&format!("open {text}"))
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the second process. The child process executes the lines of its input, and answers each
/// line with a number.
pub fn be_the_other_process() -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let mut opened = 0;
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let (order, word) = line.split_once(' ').unwrap_or((&line, ""));
        let answer = match order {
            "open" => {
                let byte =
                    |at: usize| word.get(2 * at..2 * at + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
                let handle =
                    CUipcMemHandle { reserved: std::array::from_fn(|at| byte(at).unwrap_or_default()) };
                u64::from(cu!(cuIpcOpenMemHandle_v2(&mut opened, handle, LAZY)))
            }
            "close" => u64::from(cu!(cuIpcCloseMemHandle(opened))),
            "free" => u64::from(cu!(cuMemFree_v2(opened))),
            "address" => opened,
            "read" => u64::from(gpu.read(opened, 1)?[0]),
            "write" => {
                must!(cuMemsetD32_v2(opened, word.parse().unwrap_or_default(), 1));
                must!(cuCtxSynchronize());
                0
            }
            _ => 0,
        };
        println!("{answer}");
    }
    Ok(())
}

fn export(address: CUdeviceptr) -> Result<CUipcMemHandle, Stop> {
    let supported = made!(cuDeviceGetAttribute(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 0));
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    match cu!(cuIpcGetMemHandle(&mut handle, address)) {
        CUDA_SUCCESS if supported != 0 => Ok(handle),
        CUDA_ERROR_NOT_SUPPORTED => Err(Stop::Absent("memory of other processes".to_owned())),
        code => Err(Stop::Failed("cuIpcGetMemHandle", code)),
    }
}

fn write(address: CUdeviceptr, value: u32) -> Result<(), Stop> {
    must!(cuMemsetD32_v2(address, value, 1));
    must!(cuCtxSynchronize());
    Ok(())
}

fn both_processes_see_one_memory(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let memory = gpu.memory(BYTES)?;
    write(memory, 7)?;
    let handle = export(memory)?;
    let mut other = Other::start()?;
    facts.code("opening", other.open(&handle)?, CUDA_SUCCESS);
    facts.is("the value written before", other.ask("read")?, 7);
    other.ask("write 8")?;
    facts.is("the value that the other wrote", gpu.read(memory, 1)?, vec![8]);
    facts.code("closing", other.code("close")?, CUDA_SUCCESS);
    write(memory, 9)?;
    facts.is("after it was closed", gpu.read(memory, 1)?, vec![9]);
    facts.code("freeing", cu!(cuMemFree_v2(memory)), CUDA_SUCCESS);
    Ok(())
}

fn opening_takes_nothing_of_the_device(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let mut other = Other::start()?;
    let before = gpu.used_bytes()?;
    let memory = gpu.memory(BYTES)?;
    facts.is("allocating takes", gpu.used_bytes()? - before, BYTES);
    let handle = export(memory)?;
    facts.is("exporting takes no more", gpu.used_bytes()? - before, BYTES);
    facts.code("opening", other.open(&handle)?, CUDA_SUCCESS);
    facts.is("nor does opening", gpu.used_bytes()? - before, BYTES);
    facts.code("closing", other.code("close")?, CUDA_SUCCESS);
    facts.is("closing gives nothing back", gpu.used_bytes()? - before, BYTES);
    must!(cuMemFree_v2(memory));
    facts.is("freeing does", gpu.used_bytes()?, before);
    Ok(())
}

fn memory_opened_again_has_one_address_until_it_is_closed_as_often(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let handle = export(gpu.memory(BYTES)?)?;
    let mut other = Other::start()?;
    facts.code("opening", other.open(&handle)?, CUDA_SUCCESS);
    let address = other.ask("address")?;
    facts.code("opening again", other.open(&handle)?, CUDA_SUCCESS);
    facts.is("where", other.ask("address")?, address);
    facts.code("closing once", other.code("close")?, CUDA_SUCCESS);
    other.ask("write 4")?;
    facts.is("it is still open", other.ask("read")?, 4);
    facts.code("closing twice", other.code("close")?, CUDA_SUCCESS);
    facts.code("closing what is closed", other.code("close")?, CUDA_ERROR_INVALID_VALUE);
    Ok(())
}

fn opened_memory_is_closed_and_not_freed(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let memory = gpu.memory(BYTES)?;
    let handle = export(memory)?;
    let mut other = Other::start()?;
    facts.code("opening", other.open(&handle)?, CUDA_SUCCESS);
    facts.code("freeing what was opened", other.code("free")?, CUDA_ERROR_INVALID_VALUE);
    facts.code("closing what was allocated", cu!(cuIpcCloseMemHandle(memory)), CUDA_ERROR_INVALID_VALUE);
    facts.code("closing what was opened", other.code("close")?, CUDA_SUCCESS);
    Ok(())
}

fn the_exporter_does_not_open_its_own(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let handle = export(gpu.memory(BYTES)?)?;
    let mut address = 0;
    let own = cu!(cuIpcOpenMemHandle_v2(&mut address, handle, LAZY));
    facts.code("opening one's own", own, CUDA_ERROR_INVALID_CONTEXT);
    must!(cuCtxSetCurrent(null_mut()));
    let without = cu!(cuIpcOpenMemHandle_v2(&mut address, handle, LAZY));
    facts.code("opening without a context", without, CUDA_ERROR_INVALID_CONTEXT);
    Ok(())
}

fn memory_at_the_same_address_has_another_handle(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let memory = gpu.memory(BYTES)?;
    let first = export(memory)?;
    facts.is("exported again", export(memory)?.reserved == first.reserved, true);
    must!(cuMemFree_v2(memory));
    let second = export(gpu.memory(BYTES)?)?;
    facts.is("other memory has the same handle", second.reserved == first.reserved, false);
    let mut other = Other::start()?;
    facts.code("opening what lives", other.open(&second)?, CUDA_SUCCESS);
    Ok(())
}

fn only_whole_linear_memory_is_exported(facts: &mut Facts) -> Result<(), Stop> {
    let gpu = Gpu::new()?;
    let memory = gpu.memory(BYTES)?;
    export(memory)?;
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    let mut get = |address: CUdeviceptr| Ok(cu!(cuIpcGetMemHandle(&mut handle, address)));
    facts.code("from its middle", get(memory + 4096)?, CUDA_ERROR_INVALID_VALUE);
    let (mut managed, mut pooled) = (0, 0);
    must!(cuMemAllocManaged(&mut managed, BYTES, CU_MEM_ATTACH_GLOBAL));
    facts.code("managed memory", get(managed)?, CUDA_ERROR_INVALID_VALUE);
    must!(cuMemAllocAsync(&mut pooled, BYTES, null_mut()));
    must!(cuCtxSynchronize());
    facts.code("memory of a pool", get(pooled)?, CUDA_ERROR_INVALID_VALUE);
    must!(cuMemFreeAsync(pooled, null_mut()));
    Ok(())
}
