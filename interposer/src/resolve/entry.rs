//! `dlsym` and `dlvsym` as the process sees them: assembly that keeps the caller's return address.
//!
//! `RTLD_NEXT` and `RTLD_DEFAULT` mean something relative to the caller, which the real function knows by its return address
//! alone. So what is not ours to answer goes on by a jump, with every argument and the stack as they came.

use std::arch::naked_asm;

use super::decide::{decide_dlsym, decide_dlvsym};

/// Stands in for `dlsym(handle, symbol)`.
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym_entry() {
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
        decide = sym decide_dlsym,
    )
}

/// Stands in for `dlvsym(handle, symbol, version)`.
#[unsafe(naked)]
pub unsafe extern "C" fn dlvsym_entry() {
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
        decide = sym decide_dlvsym,
    )
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
