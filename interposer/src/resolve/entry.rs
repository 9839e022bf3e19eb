//! `dlsym` and `dlvsym` as the process sees them: assembly that keeps the caller's return address.
//!
//! `RTLD_NEXT` and `RTLD_DEFAULT` mean something relative to the caller, which the real function knows by its return address
//! alone. So what is not ours to answer goes on by a jump, with every argument and the stack as they came.

use std::arch::naked_asm;

use super::decide::{decide_dlsym, decide_dlsym_by_handle, decide_dlvsym, decide_dlvsym_by_handle};

/// Defines what stands in for `dlsym(handle, symbol)`.
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

/// Defines what stands in for `dlvsym(handle, symbol, version)`.
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
    /// `dlsym`, before the next one in the search order.
    dlsym_entry, decide_dlsym
}
dlsym! {
    /// `dlsym`, before that of the C library.
    dlsym_by_handle_entry, decide_dlsym_by_handle
}
dlvsym! {
    /// `dlvsym`, before the next one in the search order.
    dlvsym_entry, decide_dlvsym
}
dlvsym! {
    /// `dlvsym`, before that of the C library.
    dlvsym_by_handle_entry, decide_dlvsym_by_handle
}

/// The export `dlsym`. Apart from the entry, whose address is then ours even where another library's export comes first.
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
