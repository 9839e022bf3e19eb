//! The GPUs among which the daemon chooses, and the variable by which the job sees the chosen GPUs.

use anyhow::{Result, bail};
use deepres_daemon::Gpu;

/// The variable with the GPUs that CUDA shows a program.
pub const VISIBLE_VARIABLE: &str = "CUDA_VISIBLE_DEVICES";
/// The prefixes of the UUIDs of GPUs and MIG devices in the variable.
const UUID_PREFIXES: [&str; 2] = ["GPU-", "MIG-"];

/// Returns the GPUs among which the daemon may choose: those that the environment shows, or all of
/// the machine. The list leaves out lost GPUs.
///
/// # Errors
/// NVML does not list the GPUs, or the environment names GPUs by numbers. CUDA numbers GPUs in
/// another order than NVML.
pub fn candidates() -> Result<Vec<Gpu>> {
    among(Gpu::all()?, std::env::var(VISIBLE_VARIABLE).ok().as_deref())
}

fn among(mut gpus: Vec<Gpu>, visible: Option<&str>) -> Result<Vec<Gpu>> {
    gpus.retain(|gpu| !gpu.is_lost);
    let Some(visible) = visible else { return Ok(gpus) };
    let names: Vec<&str> = visible.split(',').map(str::trim).collect();
    let is_uuid = |name: &str| UUID_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    if let Some(other) = names.iter().find(|name| !is_uuid(name)) {
        bail!(
            "{VISIBLE_VARIABLE} has `{other}`, which is not the UUID of a GPU; unset it, or name GPUs by UUID (`nvidia-smi -L`)"
        );
    }
    // CUDA accepts the beginning of a UUID.
    gpus.retain(|gpu| names.iter().any(|name| gpu.uuid_text.starts_with(name)));
    Ok(gpus)
}

/// Returns the value of the variable that shows a job these GPUs alone. `chosen` has their places
/// in `gpus`.
pub fn visible(gpus: &[Gpu], chosen: &[usize]) -> String {
    let uuids: Vec<&str> = chosen.iter().map(|place| gpus[*place].uuid_text.as_str()).collect();
    uuids.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_bounds_the_candidates() {
        let gpu =
            |place| Gpu::new(&format!("GPU-{place}0000000-0000-0000-0000-000000000000"), "H", 1).unwrap();
        let all = || vec![gpu(1), gpu(2), gpu(3)];
        assert_eq!(among([all(), vec![Gpu::lost(3)]].concat(), None).unwrap(), all());
        assert_eq!(among(all(), Some("GPU-3, GPU-10000000")).unwrap(), [gpu(1), gpu(3)]);
        let error = among(all(), Some("0,1")).unwrap_err().to_string();
        assert!(error.starts_with("CUDA_VISIBLE_DEVICES has `0`"), "{error}");
        let expected = "GPU-10000000-0000-0000-0000-000000000000,GPU-30000000-0000-0000-0000-000000000000";
        assert_eq!(visible(&all(), &[0, 2]), expected);
    }
}
