//! `dlsym` and `dlvsym` as the job sees them. Both functions are assembly, because they must keep
//! the caller's return address.
//!
//! `RTLD_NEXT` and `RTLD_DEFAULT` are relative to the caller, and the real function knows the
//! caller only by the return address. If deepres does not answer a look-up, the entry point
//! therefore jumps to the real function, with every argument and the stack unchanged.

use std::arch::naked_asm;

use super::decide::{decide_dlsym, decide_dlsym_by_handle, decide_dlvsym, decide_dlvsym_by_handle};

/// Defines a function that stands in for `dlsym(handle, symbol)`.
macro_rules! dlsym {
    ($(#[$about:meta])* $name:ident, $decide:ident) => {
        $(#[$about])*
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                "endbr64",
                "push rdi",
                "push rsi",
                "sub rsp, 8",
                "mov rdx, [rsp + 24]",
                "call {decide}",
                "test rax, rax",
                "jz 2f",
                "add rsp, 8",
                "pop rsi",
                "pop rdi",
                "jmp rax",
                "2:",
                "mov rax, rdx",
                "add rsp, 24",
                "ret",
                decide = sym $decide,
            )
        }
    };
}

/// Defines a function that stands in for `dlvsym(handle, symbol, version)`.
macro_rules! dlvsym {
    ($(#[$about:meta])* $name:ident, $decide:ident) => {
        $(#[$about])*
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                "endbr64",
                "push rdi",
                "push rsi",
                "push rdx",
                "mov rcx, [rsp + 24]",
                "call {decide}",
                "test rax, rax",
                "jz 2f",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "jmp rax",
                "2:",
                "mov rax, rdx",
                "add rsp, 24",
                "ret",
                decide = sym $decide,
            )
        }
    };
}

dlsym! {
    /// Stands in for `dlsym`, in front of the next definition in the search order.
    dlsym_entry, decide_dlsym
}
dlsym! {
    /// Stands in for `dlsym`, in front of the C library's function.
    dlsym_by_handle_entry, decide_dlsym_by_handle
}
dlvsym! {
    /// Stands in for `dlvsym`, in front of the next definition in the search order.
    dlvsym_entry, decide_dlvsym
}
dlvsym! {
    /// Stands in for `dlvsym`, in front of the C library's function.
    dlvsym_by_handle_entry, decide_dlvsym_by_handle
}

/// The export `dlsym`. The export is separate from `dlsym_entry`. So even if another library's
/// export comes first, the address of `dlsym_entry` is in this library.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(export_name = "dlsym"))]
#[cfg_attr(test, unsafe(export_name = "hook_dlsym"))]
pub unsafe extern "C" fn dlsym_export() {
    naked_asm!("endbr64", "jmp {}", sym dlsym_entry)
}

/// The export `dlvsym`.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(export_name = "dlvsym"))]
#[cfg_attr(test, unsafe(export_name = "hook_dlvsym"))]
pub unsafe extern "C" fn dlvsym_export() {
    naked_asm!("endbr64", "jmp {}", sym dlvsym_entry)
}
