//! Effects of work on memory and on the host: copies, memsets, host functions, and writes and waits
//! in memory. An effect takes place when the virtual GPU reaches the effect's work.
//!
//! The engine only knows the times of events. The next call that looks at a stream, event or
//! context applies the effects that are due. If the program only looks at memory, a helper thread
//! applies the effects. Effects of completed work take place in the order of submission. Work is
//! always submitted after the work that it depends on, so a GPU could have used the same order.
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Condvar, Mutex, OnceLock};
use std::time::Duration;

use deepres_abi::driver::types as cu;
use simgpu_engine::{Ticket, WaitPolicy};

use crate::context::lock;
use crate::copy::{Fill, Plan};
use crate::mapping;
use crate::process::host;

/// Interval of the helper thread's looks while an effect is pending. An effect is late by at most
/// this time.
const LOOK_INTERVAL: Duration = Duration::from_micros(50);

/// A host function and its arguments.
#[derive(Clone, Copy, Debug)]
pub enum HostCall {
    /// cuLaunchHostFunc.
    Function(unsafe extern "C" fn(*mut c_void), usize),
    /// cuStreamAddCallback: the stream's handle in the client's form, and the client's data.
    Callback(unsafe extern "C" fn(cu::CUstream, cu::CUresult, *mut c_void), usize, usize),
}

/// Comparison of a value in memory with the value of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The wait ends once the value in memory is cyclically at least the wait's value.
    AtLeast,
    /// The wait ends once the value in memory is equal to the wait's value.
    Equal,
    /// The wait ends once the value in memory and the wait's value have a set bit in common.
    And,
    /// The wait ends once a bit is clear both in the value in memory and in the wait's value.
    Nor,
}

/// A value in memory, 32 or 64 bits wide.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// Address of the value.
    pub address: u64,
    /// The value to write or to wait for.
    pub value: u64,
    /// Whether the value has 64 bits instead of 32.
    pub wide: bool,
}

impl Cell {
    fn is_in(self, address: u64, bytes: u64) -> bool {
        (address..address.saturating_add(bytes)).contains(&self.address)
    }

    fn read(self) -> u64 {
        // SAFETY: the submitting call checked that the driver knows the memory at this address. A
        // free of the memory waits for this operation.
        unsafe {
            if self.wide {
                (self.address as *const u64).read_volatile()
            } else {
                u64::from((self.address as *const u32).read_volatile())
            }
        }
    }

    fn write(self) {
        let _stay = mapping::stay();
        // SAFETY: as for `read`.
        unsafe {
            if self.wide {
                (self.address as *mut u64).write_volatile(self.value);
            } else {
                (self.address as *mut u32).write_volatile(self.value as u32);
            }
        }
    }

    /// Returns whether the value in memory ends a wait with `comparison`.
    pub fn satisfied(self, comparison: Comparison) -> bool {
        compare(self.read(), self.value, comparison, self.wide)
    }
}

fn compare(found: u64, wanted: u64, comparison: Comparison, wide: bool) -> bool {
    match (comparison, wide) {
        (Comparison::AtLeast, true) => found.wrapping_sub(wanted) as i64 >= 0,
        (Comparison::AtLeast, false) => (found as u32).wrapping_sub(wanted as u32) as i32 >= 0,
        (Comparison::Equal, _) => found == wanted,
        (Comparison::And, _) => found & wanted != 0,
        (Comparison::Nor, true) => !(found | wanted) != 0,
        (Comparison::Nor, false) => !(found as u32 | wanted as u32) != 0,
    }
}

/// An effect of GPU work on memory or on the host.
#[derive(Debug)]
pub enum Effect {
    /// Copies bytes from one address to another.
    Copy(Plan),
    /// Writes a pattern, as a memset does.
    Fill(Fill),
    /// Writes one value to memory.
    Write(Cell),
    /// Runs a host function, and then lets the stream go on past the ticket's item.
    Call(HostCall, Ticket),
    /// Once memory holds the value, lets the stream go on past the ticket's item.
    Wait(Cell, Comparison, Ticket),
}

impl Effect {
    fn touches(&self, address: u64, bytes: u64) -> bool {
        match self {
            Self::Copy(plan) => plan.touches(address, bytes),
            Self::Fill(fill) => fill.touches(address, bytes),
            Self::Write(cell) => cell.is_in(address, bytes),
            Self::Call(..) | Self::Wait(..) => false,
        }
    }
}

struct Pending {
    /// The ticket at whose completion the effect takes place.
    due: Ticket,
    effect: Effect,
}

static QUEUE: Mutex<Vec<Pending>> = Mutex::new(Vec::new());
static LENGTH: AtomicUsize = AtomicUsize::new(0);
static WAKE: Condvar = Condvar::new();

/// Adds an effect that takes place when `due` is complete.
pub fn add(due: Ticket, effect: Effect) {
    helper();
    let mut queue = lock(&QUEUE);
    queue.push(Pending { due, effect });
    LENGTH.store(queue.len(), Ordering::Release);
    if queue.len() == 1 {
        WAKE.notify_one();
    }
}

/// Applies every effect that is due.
#[inline]
pub fn settle() {
    if LENGTH.load(Ordering::Acquire) != 0 {
        settle_now(&mut lock(&QUEUE));
    }
}

/// Waits for every effect that reads or writes the range, in any stream and context. The caller is
/// about to release the memory.
pub fn drain(address: u64, bytes: u64) {
    loop {
        let mut queue = lock(&QUEUE);
        // Ends the waits for values in this memory, because no program can write the values any
        // more.
        for pending in queue.iter() {
            if let Effect::Wait(cell, _, gate) = &pending.effect
                && cell.is_in(address, bytes)
            {
                host().release(*gate);
            }
        }
        queue.retain(
            |pending| !matches!(&pending.effect, Effect::Wait(cell, ..) if cell.is_in(address, bytes)),
        );
        LENGTH.store(queue.len(), Ordering::Release);
        let due =
            queue.iter().find(|pending| pending.effect.touches(address, bytes)).map(|pending| pending.due);
        drop(queue);
        match due {
            Some(ticket) => host().wait(ticket, WaitPolicy::Block),
            None => return,
        };
        settle();
    }
}

/// Applies the effects that are due, in the order of submission. If a wait ends, more effects can
/// become due. The next call applies them.
fn settle_now(queue: &mut Vec<Pending>) {
    // The loop goes from the back. If the loop finds an item complete, it queries the item's
    // dependencies later, and so finds them complete too.
    let mut due = vec![false; queue.len()];
    for (at, pending) in queue.iter().enumerate().rev() {
        due[at] = host().query(pending.due).is_some();
    }
    let mut at = 0;
    queue.retain(|pending| {
        let is_due = due[at];
        at += 1;
        !(is_due && apply(&pending.effect))
    });
    LENGTH.store(queue.len(), Ordering::Release);
}

/// Applies one effect. Returns false if the caller has to try the effect again.
fn apply(effect: &Effect) -> bool {
    match effect {
        Effect::Copy(plan) => plan.run(),
        Effect::Fill(fill) => fill.run(),
        Effect::Write(cell) => cell.write(),
        Effect::Call(call, gate) => {
            // The send cannot fail, because the receiving thread lives as long as the process.
            let _ = callers().send((*call, *gate));
        }
        Effect::Wait(cell, comparison, gate) => {
            if !cell.satisfied(*comparison) {
                return false;
            }
            host().release(*gate);
        }
    }
    true
}

/// Returns the channel to the thread that runs host functions one after another. CUDA allows this
/// order, and each function can take long.
fn callers() -> &'static Sender<(HostCall, Ticket)> {
    static CALLERS: OnceLock<Sender<(HostCall, Ticket)>> = OnceLock::new();
    CALLERS.get_or_init(|| {
        let (sender, receiver) = channel::<(HostCall, Ticket)>();
        let run = move || {
            for (call, gate) in receiver {
                // SAFETY: the client passed the function and its data for one call in stream order,
                // which is this call.
                unsafe {
                    match call {
                        HostCall::Function(function, data) => function(data as *mut c_void),
                        HostCall::Callback(function, stream, data) => {
                            function(stream as cu::CUstream, crate::status::SUCCESS, data as *mut c_void);
                        }
                    }
                }
                host().release(gate);
            }
        };
        spawn("simgpu-callback", run);
        sender
    })
}

fn helper() {
    static STARTED: OnceLock<()> = OnceLock::new();
    STARTED.get_or_init(|| {
        spawn("simgpu-effects", || {
            let mut queue = lock(&QUEUE);
            loop {
                while queue.is_empty() {
                    queue = WAKE.wait(queue).unwrap_or_else(std::sync::PoisonError::into_inner);
                }
                settle_now(&mut queue);
                drop(queue);
                std::thread::sleep(LOOK_INTERVAL);
                queue = lock(&QUEUE);
            }
        });
    });
}

/// Starts a thread of the driver with all signals blocked, because signals belong to the client.
fn spawn(name: &str, run: impl FnOnce() + Send + 'static) {
    // SAFETY: the calls below initialise the sets before use, and the last call restores the old
    // mask.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        thread.expect("a driver that cannot start its thread cannot go on");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_compared_as_the_driver_documents() {
        assert!(compare(5, 5, Comparison::AtLeast, false));
        assert!(compare(3, 0xffff_fff0, Comparison::AtLeast, false), "cyclic: 3 is 19 after -16");
        assert!(!compare(3, 0xffff_fff0, Comparison::AtLeast, true));
        assert!(
            compare(0b110, 0b010, Comparison::And, false) && !compare(0b100, 0b010, Comparison::And, false)
        );
        assert!(compare(7, 7, Comparison::Equal, true) && !compare(7, 8, Comparison::Equal, true));
        assert!(
            compare(1, 2, Comparison::Nor, false) && !compare(0xffff_0000, 0xffff, Comparison::Nor, false)
        );
    }
}
