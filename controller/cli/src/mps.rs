//! Parts of the SMs (`--sm`), by which NVIDIA's MPS bounds a process. The driver reads the part
//! from a variable when the process first uses CUDA.

use deepres_abi::quantity::parse_share;
use deepres_daemon::probes::kernel::is_in_host_pid_namespace;
use deepres_model::admin::client::Client;
use deepres_model::admin::{Reply, Request};
use deepres_model::mps::{DEFAULT_PIPES, PIPES_VARIABLE, ask, control_daemon, named, numbers};
use deepres_model::wish::Value;
use std::env;
use std::path::{Path, PathBuf};

/// The variable of NVIDIA's driver, a percentage without a sign.
const PERCENTAGE_VARIABLE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

/// The variable that names the job's static partition of the SMs, if the MPS control daemon has
/// static partitions (NVIDIA's MPS guide).
const PARTITION_VARIABLE: &str = "CUDA_MPS_SM_PARTITION";

/// Returns the driver's variable for a part of the SMs, parts per million.
pub fn variable(sm_ppm: u32) -> (&'static str, String) {
    let percent = Value::Share(sm_ppm).to_string();
    (PERCENTAGE_VARIABLE, percent.trim_end_matches('%').to_owned())
}

/// Says in one line why a job has another part of the SMs than it asked for, if so. `granted_ppm`
/// is the part that the daemon granted, parts per million. `handed` is the directory of MPS that
/// the daemon handed on.
pub fn tell_of_another_part(granted_ppm: Option<u32>, handed: Option<&Path>) {
    let Some(granted_ppm) = granted_ppm else {
        eprintln!(
            "deepres: --sm has no effect: the daemon granted no part (`mps = \"off\"`, or an older daemon)"
        );
        return;
    };
    if env::var_os(PARTITION_VARIABLE).is_some() {
        eprintln!(
            "deepres: --sm does not bind the job: {PARTITION_VARIABLE} is set, and with static partitions of the SMs the driver ignores percentages"
        );
        return;
    }
    let directory = directory(handed);
    if control_daemon(&directory).is_none() {
        if directory.is_dir() && !is_in_host_pid_namespace() {
            eprintln!(
                "deepres: --sm has an effect only if an MPS control daemon runs in {}; this container does not show the host's processes",
                directory.display()
            );
            return;
        }
        eprintln!(
            "deepres: --sm has no effect: no MPS control daemon runs in {}; start it by `nvidia-cuda-mps-control -d`, let deepres start it (`mps = \"start\"`), or set {PIPES_VARIABLE}",
            directory.display()
        );
    } else if let Some(ceiling) = ceiling_below(&directory, granted_ppm) {
        eprintln!("deepres: {ceiling}, so the job has less than {}", Value::Share(granted_ppm));
    }
}

/// Says which percentage of the MPS server binds each client, if this percentage is below a part,
/// parts per million. Returns `None` too if the control program does not tell.
pub fn ceiling_below(directory: &Path, ppm: u32) -> Option<String> {
    let share_ppm = |command: &str| parse_share(&ask(directory, command)?);
    let servers = ask(directory, "get_server_list")?;
    let of_servers =
        numbers(&servers).filter_map(|pid| share_ppm(&format!("get_active_thread_percentage {pid}")));
    // Without a server, the next client starts a server with the default.
    let ceiling_ppm = of_servers.max().or_else(|| share_ppm("get_default_active_thread_percentage"))?;
    (ceiling_ppm < ppm).then(|| {
        format!(
            "the MPS server gives each client at most {} of the SMs (`set_active_thread_percentage`)",
            Value::Share(ceiling_ppm)
        )
    })
}

/// Returns the directory in which the driver of a job looks for an MPS control daemon. The daemon
/// of deepres may have `handed` one on.
fn directory(handed: Option<&Path>) -> PathBuf {
    named(PIPES_VARIABLE).or_else(|| handed.map(Path::to_owned)).unwrap_or_else(|| DEFAULT_PIPES.into())
}

/// Returns the directory in which an MPS control daemon runs for the jobs of this user.
pub fn running() -> Option<PathBuf> {
    let told = || match Client::question(&Request::Status) {
        Ok(Reply::Status(status)) => status.daemon.mps_pipes.map(PathBuf::from),
        _ => None,
    };
    let handed = named(PIPES_VARIABLE).is_none().then(told).flatten();
    Some(directory(handed.as_deref())).filter(|directory| control_daemon(directory).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_given_to_the_driver_as_a_percentage() {
        for (ppm, percentage) in [(400_000, "40"), (12_500, "1.25"), (1_000_000, "100")] {
            assert_eq!(variable(ppm), (PERCENTAGE_VARIABLE, percentage.to_owned()));
        }
    }
}
