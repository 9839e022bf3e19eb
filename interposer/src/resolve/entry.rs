//! `dlsym` and `dlvsym` as the process sees them. They are assembly, because they must keep the
//! caller's return address.
//!
//! `RTLD_NEXT` and `RTLD_DEFAULT` are relative to the caller, which the real function knows only by
//! its return address. So a look-up that deepres does not answer continues by a jump, with every
//! argument and the stack unchanged.

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
    /// `dlsym`, in front of the next definition in the search order.
    dlsym_entry, decide_dlsym
}
dlsym! {
    /// `dlsym`, in front of the C library's.
    dlsym_by_handle_entry, decide_dlsym_by_handle
}
dlvsym! {
    /// `dlvsym`, in front of the next definition in the search order.
    dlvsym_entry, decide_dlvsym
}
dlvsym! {
    /// `dlvsym`, in front of the C library's.
    dlvsym_by_handle_entry, decide_dlvsym_by_handle
}

/// The export `dlsym`. It is separate from `dlsym_entry`, whose address then is in this library
/// even if another library's export comes first.
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
