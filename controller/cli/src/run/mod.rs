//! `deepres run`: runs a program with its share of the GPU.

mod connect;
mod inherited;
mod job;
mod libraries;
mod metered;
mod placement;
mod profiled;
mod program;
mod record;
mod start;

use crate::mps;
use crate::wishes::{self, Now, Wishes};
pub use connect::{ensure, running, running_before_named};
pub use inherited::heed_children;
pub use libraries::{HasLibraryArgs, find_interposer, has_library, preload_with, require_driver};
pub use placement::{VISIBLE_VARIABLE, visible};

use crate::doctor::{NO_CHECKPOINTS, has_checkpoints};
use anyhow::Result;
use deepres_abi::directory::SOCKET_VARIABLE;
use deepres_abi::fallback::FALLBACK_VARIABLE;
use deepres_abi::oversubscribe::Oversubscribe;
use deepres_abi::wire::TENANT_NAME_BYTES;
use deepres_model::text::{is_harmful, is_name};
use std::ffi::OsString;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Variable that names the tenant of a process.
pub const TENANT_VARIABLE: &str = "DEEPRES_TENANT";
/// Variable with the tenant's way of oversubscription.
pub const OVERSUBSCRIBE_VARIABLE: &str = "DEEPRES_OVERSUBSCRIBE";
/// Variable with the libraries that the dynamic linker loads before all others.
pub const PRELOAD_VARIABLE: &str = "LD_PRELOAD";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The program needs no change, and all its child processes belong to the same tenant. Without --share the \
tenant gets a part of the time that others leave, by its priority (docs/policy.md). Other tenants get the \
unused part of a tenant. An allocation beyond --memory fails as on a full GPU. If no daemon runs, the \
command starts a daemon, which ends after ten idle minutes.

Examples:
  deepres run -- python train.py
  deepres run --share 30% --memory 8GiB -- python train.py --epochs 3
  deepres run --criticality high --deadline 2h --size 40min -- python train.py
  deepres run --slo 30ms -- python serve.py
  deepres run --sm 40% -- python serve.py     (on a host with NVIDIA's MPS)
  deepres run --profile infer.toml --sm auto --slo 30ms -- python serve.py
  deepres run --no-preload -- ./static-program
  deepres run --gpus 2 --share 50% -- torchrun --nproc-per-node 2 train.py
  deepres run --name sweep --share 50% -- ./worker.sh     (start it twice: both are one tenant)")]
pub struct Args {
    /// Name of the tenant; programs with the same name share one part [default: command and process
    /// id]
    #[arg(long, env = TENANT_VARIABLE, value_parser = parse_name)]
    name: Option<String>,
    #[command(flatten)]
    wishes: Wishes<Now>,
    /// Record the program's calls to the GPU's driver in this file (docs/traces.md)
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Profile of the program (`deepres profile`): the daemon advises a part of the SMs and a
    /// batch, and `--sm auto` takes the part from it
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Do not load deepres into the program: the daemon counts launches from outside, and limits
    /// nothing
    #[arg(long, conflicts_with_all = ["share", "memory", "class", "record"])]
    no_preload: bool,
    /// Use more memory than there is. suspend: move the whole tenant to the host while others need
    /// memory. managed: move memory beyond the limit between host and GPU as needed
    #[arg(long, env = OVERSUBSCRIBE_VARIABLE, value_name = "HOW")]
    oversubscribe: Option<Oversubscribe>,
    /// Number of GPUs. The daemon chooses GPUs with room for --share and --memory on each, and the
    /// program sees only these (docs/placement.md) [default: the program sees all GPUs]
    #[arg(long, value_name = "NUMBER")]
    gpus: Option<NonZero<u32>>,
    /// Wait instead of failing. deepres waits while too few GPUs have room (--gpus), or while the
    /// user's other tenants have too much of the user's caps. deepres also waits while guarantees
    /// to others leave no room for this tenant's memory (--class guaranteed --share SHARE --memory
    /// SIZE)
    #[arg(long)]
    wait: bool,
    /// Program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Returns the text if it can be a tenant's name, else the reason for which the text cannot be a
/// name.
pub fn parse_name(text: &str) -> Result<String, String> {
    if !is_name(text) {
        return Err(format!(
            "a name has from 1 to {} bytes, all visible characters, no blank at either end, and does not begin with a dash",
            TENANT_NAME_BYTES - 1
        ));
    }
    Ok(text.to_owned())
}

/// Runs the program and returns its exit status.
pub fn run(args: Args) -> Result<ExitCode> {
    inherited::heed_children();
    let [program, arguments @ ..] = args.command.as_slice() else {
        anyhow::bail!("no command was given");
    };
    // The command finds all mistakes of its caller before it starts anything.
    let file = match job::find_program(program) {
        Ok(file) => file,
        Err(unusable) => {
            eprintln!("deepres: {unusable}");
            return Ok(unusable.exit_code());
        }
    };
    // Without preloading, the program may not need a driver that this machine's linker finds.
    let preload = match args.no_preload {
        true => None,
        false => Some(libraries::require_driver(&libraries::find_interposer()?)?),
    };
    if preload.is_some()
        && let Some(obstacle) = program::obstacle(&file)
    {
        eprintln!(
            "deepres: {} {obstacle}: deepres neither meters nor limits its own work on the GPU",
            program.display()
        );
    }

    if preload.is_none() && args.oversubscribe == Some(Oversubscribe::Managed) {
        anyhow::bail!("--oversubscribe managed needs deepres in the program; leave out --no-preload");
    }
    if args.oversubscribe == Some(Oversubscribe::Suspend) && has_checkpoints() == Some(false) {
        anyhow::bail!("{NO_CHECKPOINTS}; leave out --oversubscribe suspend, or try --oversubscribe managed");
    }
    let mut wish = args.wishes.wish;
    let profile = profiled::heed(args.profile.as_deref(), args.wishes.has_auto_sm, &mut wish, &args.command)?;
    let name = args.name.unwrap_or_else(|| default_name(program));
    let candidates = args.gpus.map(|_| placement::candidates()).transpose()?.unwrap_or_default();
    let gpus = args.gpus.map(|wanted| connect::GpuRequest { wanted, candidates: &candidates });
    let request = connect::Request { name: &name, wish, profile, gpus, waits: args.wait };
    let keeper = connect::keep(&request)?;
    if wish.sm_ppm.is_some() {
        mps::tell_of_another_part(keeper.sm_ppm, keeper.mps.pipes());
    }
    let record = args.record.as_deref().map(record::begin).transpose()?;

    let mut command = Command::new(program);
    command.args(arguments);
    match &preload {
        Some(preload) => {
            let others = std::env::var_os(PRELOAD_VARIABLE);
            command.env(PRELOAD_VARIABLE, libraries::preload_with(preload, others));
        }
        None => metered::meter(&mut command, &file, keeper.socket.clone(), name.clone()),
    }
    if args.gpus.is_some() {
        command.env(placement::VISIBLE_VARIABLE, placement::visible(&candidates, &keeper.chosen));
    }
    command.env(SOCKET_VARIABLE, &keeper.socket);
    command.env(TENANT_VARIABLE, &name);
    command.envs(wishes::variables(&wish));
    command.env(FALLBACK_VARIABLE, keeper.fallback.to_string());
    command.envs(keeper.sm_ppm.map(mps::variable));
    command.envs(keeper.mps.variables());
    command.envs(record.map(|file| (record::VARIABLE, file)));
    if let Some(way) = args.oversubscribe {
        command.env(OVERSUBSCRIBE_VARIABLE, way.name());
    }
    let is_metered = preload.is_none();
    job::run(command, |child| keeper.stay(is_metered.then_some(child)))
}

/// Returns the program's name with this process's id. So no two concurrent runs have the same name.
fn default_name(program: &OsString) -> String {
    let suffix = format!("-{}", std::process::id());
    let stem = Path::new(program).file_name().unwrap_or(program).to_string_lossy();
    let stem: String = stem.chars().filter(|c| !is_harmful(*c)).collect();
    let stem = match stem.trim_start_matches(|c: char| c == '-' || c.is_whitespace()) {
        "" => "job",
        stem => stem,
    };
    let mut end = stem.len().min(TENANT_NAME_BYTES - 1 - suffix.len());
    while !stem.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{suffix}", &stem[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_name_fits_the_field_and_is_cut_at_a_character() {
        let name = default_name(&OsString::from(format!("/usr/bin/{}", "é".repeat(100))));
        assert!(name.len() < TENANT_NAME_BYTES);
        assert!(name.ends_with(&format!("é-{}", std::process::id())));
        for (program, stem) in [("python", "python"), ("-bash", "bash"), (" a b", "a b"), ("--", "job")] {
            let name = default_name(&program.into());
            assert_eq!(name, format!("{stem}-{}", std::process::id()));
            assert!(is_name(&name));
        }
    }
}
