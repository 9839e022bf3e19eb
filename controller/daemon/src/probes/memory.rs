//! Where the kernel has its own mapping of all memory: the programs look at the arguments of ioctls through it, which takes a tenth of what a helper
//! takes (`ebpf/src/user.rs`).

use super::kernel::{KernelError, attached_to_nothing, refused};
use aya::Ebpf;
use aya::{RawTracePointRunOptions, TestRun as _};
use deepres_abi::probe::mapping;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::OnceLock;

/// The program that tries.
const PROGRAM: &str = "find_mapping";
/// The mapping is at most so many steps long with tables of four levels (64 TiB). Memory beyond is left to the helper.
const MOST_STEPS: u64 = 1 << 16;

/// Whether tables have five levels: the kernel tells of it only if it uses it.
pub(super) fn has_fifth_level() -> bool {
    let told = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = told.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.split_ascii_whitespace().any(|flag| flag == "la57"))
}

/// Finds the mapping for programs that were just loaded; where it cannot be found they do without.
///
/// # Errors
/// [`KernelError`] if it cannot be tried.
pub(super) fn find(ebpf: &mut Ebpf) -> Result<bool, KernelError> {
    /// Where it was found before: this process's first table stays where it is.
    static STEPS: OnceLock<Option<u64>> = OnceLock::new();
    let program = attached_to_nothing(ebpf, PROGRAM)?;
    // In memory of this process's own that is there, since it is written to.
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
