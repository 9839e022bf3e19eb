//! Hooks of NVML. If a tenant asks for the state of a GPU, the hooks answer with the tenant's own
//! part of the GPU.

use std::ffi::CStr;

use crate::nvml::types::{
    DETAIL_LIST_V1, DetailList, Device, FUNCTION_NOT_FOUND, GPU_UTILIZATION_SAMPLES, INSUFFICIENT_SIZE,
    MEMORY_UTILIZATION_SAMPLES, Memory, MemoryV2, NOT_FOUND, OfProcess, ProcessSample, ProcessV1, ProcessV2,
    Return, SUCCESS, Sample, UTILIZATION_LIST_V1, Utilization, UtilizationList,
};
use crate::nvml::{self, Function, OwnProcesses};

/// A hooked function of NVML.
pub struct Hook {
    /// The function's name, and the real function.
    pub function: Function,
    hook: *const (),
}

// SAFETY: the pointer is the address of a function, and no code writes through the pointer.
unsafe impl Sync for Hook {}

impl Hook {
    /// Returns the address of the hook.
    pub fn address(&self) -> usize {
        self.hook as usize
    }
}

/// Returns the hook of the function exported under `symbol`, if there is a hook.
pub fn by_symbol(symbol: &CStr) -> Option<&'static Hook> {
    ALL.iter().find(|hook| hook.function.name == symbol)
}

/// Gives the answer of a hook: NVML's answer with changes, or an answer in its place.
macro_rules! answer {
    (after $real:ident $call:ident($device:ident $(, $argument:ident)*) |$part:ident| $body:block) => {{
        let result = $call();
        if result == SUCCESS
            && let Some($part) = nvml::part($device)
        {
            $body
        }
        result
    }};
    (instead $real:ident $call:ident($device:ident $(, $argument:ident)*) |$own:ident, $ask:ident| $body:block) => {
        match nvml::part($device).and_then(|part| part.processes()) {
            Some($own) => {
                let $ask = $real;
                $body
            }
            None => $call(),
        }
    };
    (list $real:ident $call:ident($device:ident, $count:ident, $list:ident)) => {
        answer!(instead $real $call($device, $count, $list) |own, real| {
            // SAFETY: the arguments are the caller's, as NVML's protocol requires.
            unsafe { answer_list(&own, $count, $list, |count, list| real($device, count, list)) }
        })
    };
}

/// Defines hooks as `name = symbol(arguments)` and a way to answer. `after |part|` changes a
/// successful answer of NVML. If the tenant's processes are known, `instead |own, real|` answers in
/// place of NVML. `list` does the same for a list of processes. In the body, the arguments are the
/// caller's.
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
                // SAFETY: the caller owes the hook what it owes NVML's function of this name, which
                // gets the caller's arguments unchanged.
                let call = || unsafe { real($device $(, $argument)*) };
                answer!($way real call($device $(, $argument)*) $(|$($known),+| $body)?)
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

/// Answers a question for a list by NVML's protocol, with the tenant's own processes alone. `count`
/// is the room at `list`, and receives the number of entries. Neither the count nor the list shows
/// anything about other tenants' processes. `ask` calls NVML. Returns NVML's result code for this
/// answer.
///
/// # Safety
/// `count` and `list` are null, or as the protocol requires.
unsafe fn answer_list<T: OfProcess>(
    own: &OwnProcesses,
    count: *mut u32,
    list: *mut T,
    ask: impl Fn(*mut u32, *mut T) -> Return,
) -> Return {
    // SAFETY: the caller guarantees that `count` is null or as the protocol requires.
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
        // NVML has an error of its own for this case, so NVML gives the answer.
        return ask(&mut room, list);
    }
    if !found.is_empty() {
        // SAFETY: the caller says that the list has room for this many entries.
        unsafe { list.copy_from_nonoverlapping(found.as_ptr(), found.len()) };
    }
    SUCCESS
}

/// Answers as [`answer_list`] does, for samples of the recent activity of processes. If there is no
/// sample, returns `NOT_FOUND`, as NVML does.
///
/// # Safety
/// The same requirements as for [`answer_list`].
unsafe fn answer_samples<T: OfProcess>(
    own: &OwnProcesses,
    count: *mut u32,
    list: *mut T,
    ask: impl Fn(*mut u32, *mut T) -> Return,
) -> Return {
    // SAFETY: the caller guarantees that `count` and `list` are null or as the protocol requires.
    match unsafe { (answer_list(own, count, list, ask), count.as_ref()) } {
        (SUCCESS, Some(0)) => NOT_FOUND,
        (result, _) => result,
    }
}

/// Returns the utilization of the whole GPU, in percent, as NVML reports it.
fn whole_percent(device: Device) -> Option<u32> {
    type Rates = unsafe extern "C" fn(Device, *mut Utilization) -> Return;
    let real = ALL[Id::utilization as usize].function.real();
    if real == 0 {
        return None;
    }
    // SAFETY: NVML's function of that name has this type.
    let real = unsafe { std::mem::transmute::<usize, Rates>(real) };
    let mut rates = Utilization { gpu: 0, memory: 0 };
    // SAFETY: the device is the caller's, and the result has room.
    (unsafe { real(device, &mut rates) } == SUCCESS).then_some(rates.gpu)
}

hooks! {
    memory_info = nvmlDeviceGetMemoryInfo(device: Device, memory: *mut Memory) after |part| {
        // SAFETY: `memory` is null, or NVML wrote the struct there.
        if let Some(memory) = unsafe { memory.as_mut() }
            && let Some((total, free, used)) = part.memory(memory.total, memory.free)
        {
            *memory = Memory { total, free, used };
        }
    }

    memory_info_v2 = nvmlDeviceGetMemoryInfo_v2(device: Device, memory: *mut MemoryV2) after |part| {
        // SAFETY: `memory` is null, or NVML wrote the struct there.
        if let Some(memory) = unsafe { memory.as_mut() }
            && let Some((total, free, used)) = part.memory(memory.total, memory.free)
        {
            // Other tenants can hold memory of this tenant's part, which is then not available to
            // this tenant. The hook reports such memory as reserved, so that the sum is the total.
            let reserved = total.saturating_sub(free).saturating_sub(used);
            *memory = MemoryV2 { version: memory.version, total, reserved, free, used };
        }
    }

    utilization = nvmlDeviceGetUtilizationRates(device: Device, rates: *mut Utilization) after |part| {
        // SAFETY: `rates` is null, or NVML wrote the struct there.
        if let Some(rates) = unsafe { rates.as_mut() } {
            let own = part.busy_of(rates.gpu);
            // NVML does not tell which tenant used the memory's time, so the hook divides it as the
            // GPU's time.
            *rates = Utilization { gpu: own.percent(), memory: own.of(u64::from(rates.memory)) as u32 };
        }
    }

    samples = nvmlDeviceGetSamples(device: Device, kind: u32, since: u64, value_kind: *mut u32, count: *mut u32, list: *mut Sample) after |part| {
        // SAFETY: each pointer is null, or NVML wrote there.
        let written = unsafe { (count.as_ref(), value_kind.as_ref()) };
        if [GPU_UTILIZATION_SAMPLES, MEMORY_UTILIZATION_SAMPLES].contains(&kind)
            // Without a list, NVML only tells the number of entries for which it needs room.
            && !list.is_null()
            && let (Some(count), Some(value_kind)) = written
            && let Some(whole) = whole_percent(device)
        {
            let own = part.busy_of(whole);
            // SAFETY: NVML wrote this many samples.
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
        // SAFETY: the arguments are the caller's, as NVML's protocol requires.
        unsafe { answer_samples(&own, count, list, |count, list| real(device, list, count, since)) }
    }

    process_details = nvmlDeviceGetRunningProcessDetailList(device: Device, details: *mut DetailList) instead |own, real| {
        // SAFETY: the pointer is null, or the caller has filled the struct in.
        match unsafe { details.as_mut() } {
            Some(details) if details.version == DETAIL_LIST_V1 => {
                let asked = *details;
                let ask = |count: *mut u32, list| {
                    // SAFETY: `answer_list` passes the count that belongs to the list.
                    let count = unsafe { &mut *count };
                    let mut here = DetailList { count: *count, list, ..asked };
                    // SAFETY: this is the caller's struct with another list, and room for `count`
                    // entries.
                    let result = unsafe { real(device, &mut here) };
                    *count = here.count;
                    result
                };
                // SAFETY: the arguments are the caller's, as NVML's protocol requires.
                unsafe { answer_list(&own, &mut details.count, details.list, ask) }
            }
            // SAFETY: the arguments are the caller's, unchanged.
            _ => unsafe { real(device, details) },
        }
    }

    processes_utilization = nvmlDeviceGetProcessesUtilizationInfo(device: Device, info: *mut UtilizationList) instead |own, real| {
        // SAFETY: the pointer is null, or the caller has filled the struct in.
        match unsafe { info.as_mut() } {
            Some(info) if info.version == UTILIZATION_LIST_V1 => {
                let asked = *info;
                let ask = |count: *mut u32, list| {
                    // SAFETY: `answer_samples` passes the count that belongs to the list.
                    let count = unsafe { &mut *count };
                    let mut here = UtilizationList { count: *count, list, ..asked };
                    // SAFETY: this is the caller's struct with another list, and room for `count`
                    // entries.
                    let result = unsafe { real(device, &mut here) };
                    *count = here.count;
                    result
                };
                // SAFETY: the arguments are the caller's, as NVML's protocol requires.
                unsafe { answer_samples(&own, &mut info.count, info.list, ask) }
            }
            // SAFETY: the arguments are the caller's, unchanged.
            _ => unsafe { real(device, info) },
        }
    }
}
