//! Hooks of NVML: a tenant that asks how a GPU is sees its own part of it.

use std::ffi::CStr;

use crate::nvml::types::{
    DETAIL_LIST_V1, DetailList, Device, FUNCTION_NOT_FOUND, GPU_UTILIZATION_SAMPLES, INSUFFICIENT_SIZE,
    MEMORY_UTILIZATION_SAMPLES, Memory, MemoryV2, NOT_FOUND, OfProcess, ProcessSample, ProcessV1, ProcessV2,
    Return, SUCCESS, Sample, UTILIZATION_LIST_V1, Utilization, UtilizationList,
};
use crate::nvml::{self, Function, OwnProcesses};

/// A hooked function of NVML.
pub struct Hook {
    /// Its name and the real one.
    pub function: Function,
    hook: *const (),
}

// SAFETY: the pointer is a function's address and never written through.
unsafe impl Sync for Hook {}

impl Hook {
    /// Where the hook is.
    pub fn address(&self) -> usize {
        self.hook as usize
    }
}

/// The hook of the function exported under `symbol`.
pub fn by_symbol(symbol: &CStr) -> Option<&'static Hook> {
    ALL.iter().find(|hook| hook.function.name == symbol)
}

/// What a hook answers, after NVML or instead of it.
macro_rules! answer {
    (after $real:ident($device:ident $(, $argument:ident)*) |$part:ident| $body:block) => {{
        // SAFETY: the caller's arguments, as they came.
        let result = unsafe { $real($device $(, $argument)*) };
        if result == SUCCESS
            && let Some($part) = nvml::part($device)
        {
            $body
        }
        result
    }};
    (instead $real:ident($device:ident $(, $argument:ident)*) |$own:ident, $ask:ident| $body:block) => {
        match nvml::part($device).and_then(|part| part.processes()) {
            Some($own) => {
                let $ask = $real;
                $body
            }
            // SAFETY: the caller's arguments, as they came.
            None => unsafe { $real($device $(, $argument)*) },
        }
    };
    (list $real:ident($device:ident, $count:ident, $list:ident)) => {
        answer!(instead $real($device, $count, $list) |own, real| {
            // SAFETY: the caller's, by NVML's protocol.
            unsafe { answer_list(&own, $count, $list, |count, list| real($device, count, list)) }
        })
    };
}

/// Defines hooks: `name = symbol(arguments) after |part| what to change of a successful answer`, `instead |own, real| the answer` where the tenant's processes
/// are known, or `list` where that is a list of processes. In the body the arguments are the caller's.
macro_rules! hooks {
    ($($name:ident = $symbol:ident($device:ident: Device $(, $argument:ident: $type:ty)*)
        $way:ident $(|$($known:ident),+| $body:block)?)+) => {
        #[expect(non_camel_case_types, reason = "one for each hook, named after it")]
        #[derive(Clone, Copy)]
        #[repr(usize)]
        enum Id { $($name),+ }

        static ALL: [Hook; [$(Id::$name),+].len()] = [$(Hook {
            function: Function::new(match CStr::from_bytes_with_nul(concat!(stringify!($symbol), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            }),
            hook: $name as *const (),
        }),+];

        $(
            #[doc = concat!("Hook of `", stringify!($symbol), "`.")]
            unsafe extern "C" fn $name($device: Device $(, $argument: $type)*) -> Return {
                type Real = unsafe extern "C" fn(Device $(, $type)*) -> Return;
                let real = ALL[Id::$name as usize].function.real();
                if real == 0 {
                    return FUNCTION_NOT_FOUND;
                }
                // SAFETY: NVML's function of that name has this type.
                let real = unsafe { std::mem::transmute::<usize, Real>(real) };
                answer!($way real($device $(, $argument)*) $(|$($known),+| $body)?)
            }
        )+

        #[cfg_attr(test, expect(non_snake_case, reason = "exports carry NVML's names"))]
        mod exports {
            $(
                #[unsafe(naked)]
                #[cfg_attr(not(test), unsafe(no_mangle))]
                #[cfg_attr(test, unsafe(export_name = concat!("hook_", stringify!($symbol))))]
                pub unsafe extern "C" fn $symbol() {
                    std::arch::naked_asm!("endbr64", "jmp {}", sym super::$name)
                }
            )+
        }
    };
}

/// Answers for a list by NVML's protocol with the tenant's own alone: `count` says for how many there is room at `list`, and is told how many there are. Which
/// are the others' is not to be seen in either. `ask` is NVML.
///
/// # Safety
/// `count` and `list` are null, or as the protocol wants them.
unsafe fn answer_list<T: OfProcess>(
    own: &OwnProcesses,
    count: *mut u32,
    list: *mut T,
    ask: impl Fn(*mut u32, *mut T) -> Return,
) -> Return {
    // SAFETY: the caller's promise.
    let Some(count) = (unsafe { count.as_mut() }) else { return ask(count, list) };
    let found = match own.list(|count, list| ask(count, list)) {
        Ok(found) => found,
        Err(error) => return error,
    };
    let mut room = std::mem::replace(count, found.len() as u32);
    if found.len() > room as usize {
        return INSUFFICIENT_SIZE;
    }
    if list.is_null() && !found.is_empty() {
        // Its own word for that.
        return ask(&mut room, list);
    }
    if !found.is_empty() {
        // SAFETY: room for as many, by the caller's word.
        unsafe { list.copy_from_nonoverlapping(found.as_ptr(), found.len()) };
    }
    SUCCESS
}

/// The same for samples of what processes did lately: that nobody did anything is an error of NVML's.
///
/// # Safety
/// As above.
unsafe fn answer_samples<T: OfProcess>(
    own: &OwnProcesses,
    count: *mut u32,
    list: *mut T,
    ask: impl Fn(*mut u32, *mut T) -> Return,
) -> Return {
    // SAFETY: the caller's promise.
    match unsafe { (answer_list(own, count, list, ask), count.as_ref()) } {
        (SUCCESS, Some(0)) => NOT_FOUND,
        (result, _) => result,
    }
}

/// How busy the whole GPU is, by NVML's word.
fn whole_percent(device: Device) -> Option<u32> {
    type Rates = unsafe extern "C" fn(Device, *mut Utilization) -> Return;
    let real = ALL[Id::utilization as usize].function.real();
    if real == 0 {
        return None;
    }
    // SAFETY: NVML's function of that name has this type.
    let real = unsafe { std::mem::transmute::<usize, Rates>(real) };
    let mut rates = Utilization { gpu: 0, memory: 0 };
    // SAFETY: the caller's device, and a place of our own.
    (unsafe { real(device, &mut rates) } == SUCCESS).then_some(rates.gpu)
}

hooks! {
    memory_info = nvmlDeviceGetMemoryInfo(device: Device, memory: *mut Memory) after |part| {
        // SAFETY: NVML wrote it.
        if let Some(memory) = unsafe { memory.as_mut() }
            && let Some((total, free, used)) = part.memory(memory.total, memory.free)
        {
            *memory = Memory { total, free, used };
        }
    }

    memory_info_v2 = nvmlDeviceGetMemoryInfo_v2(device: Device, memory: *mut MemoryV2) after |part| {
        // SAFETY: NVML wrote it.
        if let Some(memory) = unsafe { memory.as_mut() }
            && let Some((total, free, used)) = part.memory(memory.total, memory.free)
        {
            // What others hold of the tenant's part is what it cannot have: the sum is the total.
            let reserved = total.saturating_sub(free).saturating_sub(used);
            *memory = MemoryV2 { version: memory.version, total, reserved, free, used };
        }
    }

    utilization = nvmlDeviceGetUtilizationRates(device: Device, rates: *mut Utilization) after |part| {
        // SAFETY: NVML wrote it.
        if let Some(rates) = unsafe { rates.as_mut() } {
            let own = part.busy_of(rates.gpu);
            // Of the memory's time nobody knows whose it was: it goes by the GPU's.
            *rates = Utilization { gpu: own.percent(), memory: own.of(u64::from(rates.memory)) as u32 };
        }
    }

    samples = nvmlDeviceGetSamples(device: Device, kind: u32, since: u64, value_kind: *mut u32, count: *mut u32, list: *mut Sample) after |part| {
        // SAFETY: null, or written by NVML.
        let written = unsafe { (count.as_ref(), value_kind.as_ref()) };
        if [GPU_UTILIZATION_SAMPLES, MEMORY_UTILIZATION_SAMPLES].contains(&kind)
            // Without a list it has told only for how many there has to be room.
            && !list.is_null()
            && let (Some(count), Some(value_kind)) = written
            && let Some(whole) = whole_percent(device)
        {
            let own = part.busy_of(whole);
            // SAFETY: NVML wrote so many.
            let samples = unsafe { std::slice::from_raw_parts_mut(list, *count as usize) };
            samples.iter_mut().for_each(|sample| sample.scale(*value_kind, |value| own.of(value)));
        }
    }

    compute_processes = nvmlDeviceGetComputeRunningProcesses(device: Device, count: *mut u32, list: *mut ProcessV1) list

    compute_processes_v2 = nvmlDeviceGetComputeRunningProcesses_v2(device: Device, count: *mut u32, list: *mut ProcessV2) list

    compute_processes_v3 = nvmlDeviceGetComputeRunningProcesses_v3(device: Device, count: *mut u32, list: *mut ProcessV2) list

    graphics_processes = nvmlDeviceGetGraphicsRunningProcesses(device: Device, count: *mut u32, list: *mut ProcessV1) list

    graphics_processes_v2 = nvmlDeviceGetGraphicsRunningProcesses_v2(device: Device, count: *mut u32, list: *mut ProcessV2) list

    graphics_processes_v3 = nvmlDeviceGetGraphicsRunningProcesses_v3(device: Device, count: *mut u32, list: *mut ProcessV2) list

    mps_processes = nvmlDeviceGetMPSComputeRunningProcesses(device: Device, count: *mut u32, list: *mut ProcessV1) list

    mps_processes_v2 = nvmlDeviceGetMPSComputeRunningProcesses_v2(device: Device, count: *mut u32, list: *mut ProcessV2) list

    mps_processes_v3 = nvmlDeviceGetMPSComputeRunningProcesses_v3(device: Device, count: *mut u32, list: *mut ProcessV2) list

    accounting_processes = nvmlDeviceGetAccountingPids(device: Device, count: *mut u32, list: *mut u32) list

    process_utilization = nvmlDeviceGetProcessUtilization(device: Device, list: *mut ProcessSample, count: *mut u32, since: u64) instead |own, real| {
        // SAFETY: the caller's, by NVML's protocol.
        unsafe { answer_samples(&own, count, list, |count, list| real(device, list, count, since)) }
    }

    process_details = nvmlDeviceGetRunningProcessDetailList(device: Device, details: *mut DetailList) instead |own, real| {
        // SAFETY: null, or what its caller has filled in.
        match unsafe { details.as_mut() } {
            Some(details) if details.version == DETAIL_LIST_V1 => {
                let asked = *details;
                let ask = |count: *mut u32, list| {
                    // SAFETY: the number of those for which there is room, which it is to say of the list.
                    let count = unsafe { &mut *count };
                    let mut here = DetailList { count: *count, list, ..asked };
                    // SAFETY: the caller's list with other room.
                    let result = unsafe { real(device, &mut here) };
                    *count = here.count;
                    result
                };
                // SAFETY: the caller's, by NVML's protocol.
                unsafe { answer_list(&own, &mut details.count, details.list, ask) }
            }
            // SAFETY: the caller's arguments, as they came.
            _ => unsafe { real(device, details) },
        }
    }

    processes_utilization = nvmlDeviceGetProcessesUtilizationInfo(device: Device, info: *mut UtilizationList) instead |own, real| {
        // SAFETY: null, or what its caller has filled in.
        match unsafe { info.as_mut() } {
            Some(info) if info.version == UTILIZATION_LIST_V1 => {
                let asked = *info;
                let ask = |count: *mut u32, list| {
                    // SAFETY: the number of those for which there is room, which it is to say of the list.
                    let count = unsafe { &mut *count };
                    let mut here = UtilizationList { count: *count, list, ..asked };
                    // SAFETY: the caller's list with other room.
                    let result = unsafe { real(device, &mut here) };
                    *count = here.count;
                    result
                };
                // SAFETY: the caller's, by NVML's protocol.
                unsafe { answer_samples(&own, &mut info.count, info.list, ask) }
            }
            // SAFETY: the caller's arguments, as they came.
            _ => unsafe { real(device, info) },
        }
    }
}
