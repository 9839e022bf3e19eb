//! Hooks of functions that put work on the GPU or take memory, and that deepres does not account
//! for. Each hook counts the call and passes the call on to the driver.
//!
//! `deepres_abi::for_each_unaccounted_function!` lists the functions. A call costs one increment
//! and one jump. The arguments stay where the caller put them, so the hooks need no types of the
//! functions.

use std::arch::naked_asm;

use deepres_abi::coverage;
use deepres_abi::driver::ApiId;

use super::{MISSING, Table};
use crate::coverage::OWN;
use crate::driver::{self, REAL};

/// Returns the address of the real function. A hook calls this at the first call of a program that
/// did not look the function up.
extern "C" fn find(id: u32) -> usize {
    ApiId::from_index(id as usize).map_or(0, driver::address)
}

macro_rules! counted {
    ($($class:ident $symbol:ident;)+) => {
        /// The table of the hooks, by the functions for which the hooks stand.
        pub const TABLE: Table = {
            let mut table = Table([std::ptr::null(); ApiId::COUNT]);
            $(table.0[ApiId::$symbol as usize] = exports::$symbol as *const ();)+
            table
        };

        mod exports {
            use super::*;

            $(
            #[doc = concat!("Counts a call of `", stringify!($symbol), "`. Exported, as every hook is.")]
            #[unsafe(naked)]
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[cfg_attr(test, unsafe(export_name = concat!("hook_", stringify!($symbol))))]
            pub unsafe extern "C" fn $symbol() {
                naked_asm!(
                    "endbr64",
                    "lock inc qword ptr [rip + {own} + {calls}]",
                    "mov rax, [rip + {real} + {place}]",
                    "test rax, rax",
                    "jz 2f",
                    "jmp rax",
                    "2:",
                    // The function was not looked up yet. The six argument registers are saved on
                    // the stack.
                    "push rdi",
                    "push rsi",
                    "push rdx",
                    "push rcx",
                    "push r8",
                    "push r9",
                    "sub rsp, 8",
                    "mov edi, {id}",
                    "call {find}",
                    "add rsp, 8",
                    "pop r9",
                    "pop r8",
                    "pop rcx",
                    "pop rdx",
                    "pop rsi",
                    "pop rdi",
                    "test rax, rax",
                    "jz 3f",
                    "jmp rax",
                    "3:",
                    "mov eax, {missing}",
                    "ret",
                    own = sym OWN,
                    real = sym REAL,
                    find = sym find,
                    calls = const coverage::calls_offset(ApiId::$symbol),
                    place = const ApiId::$symbol as usize * size_of::<usize>(),
                    id = const ApiId::$symbol as u32,
                    missing = const MISSING,
                )
            }
            )+
        }
    };
}
deepres_abi::for_each_unaccounted_function!(counted);
