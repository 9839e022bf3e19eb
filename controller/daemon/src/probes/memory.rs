//! Finds where the kernel's own mapping of all memory begins. The kernel programs read the
//! arguments of ioctls through it, in a tenth of a helper's time (`ebpf/src/user.rs`).

use super::kernel::{KernelError, attached_to_nothing, refused};
use aya::Ebpf;
use aya::{RawTracePointRunOptions, TestRun as _};
use deepres_abi::probe::mapping;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::OnceLock;

/// The program that tests one candidate.
const PROGRAM: &str = "find_mapping";
/// Length of the longest mapping with four table levels (64 TiB), in steps. The helper reads memory
/// beyond that.
const MOST_STEPS: u64 = 1 << 16;

/// Whether page tables have five levels. The kernel shows the flag only if it uses them.
pub(super) fn has_fifth_level() -> bool {
    let told = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = told.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.split_ascii_whitespace().any(|flag| flag == "la57"))
}

/// Finds the mapping for programs that were just loaded. Returns false if it is not found; the
/// programs then read by the helper.
///
/// # Errors
/// [`KernelError`] if the test cannot run.
pub(super) fn find(ebpf: &mut Ebpf) -> Result<bool, KernelError> {
    /// The result of an earlier search; it stays valid because this process's first table stays in
    /// place.
    static STEPS: OnceLock<Option<u64>> = OnceLock::new();
    let program = attached_to_nothing(ebpf, PROGRAM)?;
    // This value has just been written, so its page is present in this process's memory.
    let number = Box::new(RandomState::new().build_hasher().finish());
    let is_there = |below: u64| -> Result<bool, KernelError> {
        let mut options = RawTracePointRunOptions::new();
        options.args[..3].copy_from_slice(&[below, &raw const *number as u64, *number]);
        Ok(program.test_run(options).map_err(refused)?.return_value == mapping::FOUND as u32)
    };
    if let Some(steps) = STEPS.get() {
        return steps.map_or(Ok(false), is_there);
    }
    let mut found = None;
    for below in 0..MOST_STEPS {
        if is_there(below)? {
            found = Some(below);
            break;
        }
    }
    Ok(STEPS.get_or_init(|| found).is_some())
}
