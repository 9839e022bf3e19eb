//! `deepres cdi`: devices with which container runtimes bring deepres into a container. The image
//! needs no change.

mod file;

use super::run;
use crate::mps;
use crate::out;
use crate::wishes::{self, Elsewhere, Wishes};
use anyhow::{Context, Result, bail};
use deepres_abi::directory::DIRECTORY_VARIABLE;
use deepres_abi::oversubscribe::Oversubscribe;
use deepres_model::cdi::{ContainerEdits, Device, DeviceName, KIND, Mount, Spec};
use deepres_model::directory::{Directory, named_socket};
use deepres_model::mps::PIPES_VARIABLE;
use deepres_model::wish::Key;
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The place in which container runtimes look for the administrator's specifications.
const DEFAULT_FILE: &str = "/etc/cdi/deepres.json";
/// File name that stands for standard output.
const STANDARD_OUTPUT: &str = "-";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  deepres cdi generate --name train --share 30% --memory 2GiB
  deepres cdi list
  deepres cdi remove train")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Make or change a device, for `podman run --device deepres.dev/share=NAME`
    Generate(Box<Generate>),
    /// List the devices
    List {
        #[command(flatten)]
        file: SpecFile,
    },
    /// Remove a device
    Remove {
        /// Device to remove
        name: DeviceName,
        #[command(flatten)]
        file: SpecFile,
    },
}

#[derive(Debug, clap::Args)]
struct SpecFile {
    /// CDI specification
    #[arg(long, default_value = DEFAULT_FILE)]
    file: PathBuf,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The container gets the library and the directory of the daemon's tenant socket, both read-only. It also gets \
LD_PRELOAD, DEEPRES_SOCKET and the variables of the wishes (DEEPRES_SHARE and so on). The daemon decides about \
the wishes, as for every other program; only the part of the SMs (--sm) stays as it is here. With --sm, the \
container also gets the directory of the MPS control daemon that runs now (writable), and \
CUDA_MPS_PIPE_DIRECTORY. Each container is a tenant of its own. --tenant names the tenant; containers of one \
name are one tenant only if the daemon's configuration has the name in shared_names. Other devices in the file \
stay as they are.

Examples:
  deepres cdi generate --name train --share 30% --memory 2GiB
  podman run --device deepres.dev/share=train --device nvidia.com/gpu=0 IMAGE python train.py")]
struct Generate {
    /// Name of the device
    #[arg(long)]
    name: DeviceName,
    /// Name of a container's tenant; a name in the configuration's shared_names makes one tenant of
    /// all containers [default: the runtime's and the container's id]
    #[arg(long, value_parser = run::parse_name)]
    tenant: Option<String>,
    #[command(flatten)]
    wishes: Wishes<Elsewhere>,
    /// Use more memory than there is. suspend: move the whole tenant to the host while others need
    /// memory. managed: move memory beyond the limit between host and GPU as needed
    #[arg(long, value_name = "HOW")]
    oversubscribe: Option<Oversubscribe>,
    /// CDI specification to put the device into; `-` prints a specification with this device alone
    #[arg(long, value_name = "FILE", default_value = DEFAULT_FILE)]
    output: PathBuf,
}

/// Runs a subcommand of `deepres cdi`.
pub fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Generate(args) => generate(&args),
        Command::List { file } => list(&file.file),
        Command::Remove { name, file } => remove(&name, &file.file),
    }
}

fn generate(args: &Generate) -> Result<()> {
    let library = run::find_interposer()?;
    let running = run::running()?;
    let is_running = running.is_some();
    // The socket of the daemon that a job would find now, or of the daemon that a job would start.
    let socket = running.or_else(named_socket).unwrap_or_else(|| Directory::own().tenant_socket());
    let socket = std::path::absolute(socket)?;
    let sockets = socket.parent().context("the tenant socket is in no directory")?;
    let qualified = format!("{KIND}={}", args.name);
    let has_part = args.wishes.wish.sm_ppm.is_some();
    let pipes = if has_part { mps::running().map(std::path::absolute).transpose()? } else { None };
    let device = device(args, &library, &socket, sockets, pipes.as_deref())?;
    if args.output == Path::new(STANDARD_OUTPUT) {
        let mut spec = Spec::default();
        spec.put(device)?;
        out::print(|out| out.write_all(spec.to_string().as_bytes()))?;
    } else {
        file::update(&args.output, |spec| Ok(spec.put(device)?))?;
        out::say(format_args!("{qualified} is in {}", args.output.display()))?;
    }
    if !sockets.is_dir() {
        eprintln!(
            "deepres: no daemon has made {} yet: containers with {qualified} start once `deepres daemon` runs",
            sockets.display()
        );
    }
    if has_part && pipes.is_none() {
        eprintln!(
            "deepres: no MPS control daemon runs, so {qualified} has no directory of MPS, and --sm has no effect in its containers; start MPS, and run this command again"
        );
    }
    if let Some(other) = Directory::candidates().first().filter(|_| !is_running && named_socket().is_none())
        && *other != Directory::own()
        && other.tenant_directory().is_dir()
    {
        eprintln!(
            "deepres: root's daemon does not run, so {qualified} is for your own daemon, in {}; for root's daemon, start it or set {DIRECTORY_VARIABLE}={other}, and run this command again",
            sockets.display()
        );
    }
    Ok(())
}

/// Returns the device that the arguments describe. `pipes` is the directory of the MPS control
/// daemon that the container is to use.
fn device(
    args: &Generate,
    library: &Path,
    socket: &Path,
    sockets: &Path,
    pipes: Option<&Path>,
) -> Result<Device> {
    let name = socket.file_name().and_then(OsStr::to_str);
    let name = name.with_context(|| format!("{} is not the name of a socket", socket.display()))?;
    let tenant = args.tenant.as_ref().map(|tenant| format!("{}={tenant}", run::TENANT_VARIABLE));
    let wish = &args.wishes.wish;
    let variables = wishes::variables(wish).chain(wish.sm_ppm.map(mps::variable));
    let wishes = variables.map(|(name, value)| format!("{name}={value}"));
    let way = args.oversubscribe.map(|way| format!("{}={}", run::OVERSUBSCRIBE_VARIABLE, way.name()));
    let mut container_edits =
        ContainerEdits::new(library, sockets, name, tenant.into_iter().chain(wishes).chain(way));
    if let Some(pipes) = pipes {
        // The directory has one path for the control daemon and its clients.
        let place = pipes.to_str().with_context(|| format!("{} is not UTF-8", pipes.display()))?;
        container_edits.env.push(format!("{PIPES_VARIABLE}={place}"));
        container_edits.mounts.push(Mount::writable(pipes.to_owned(), place.to_owned()));
    }
    Ok(Device { name: args.name.clone(), container_edits })
}

fn list(path: &Path) -> Result<()> {
    let Some(spec) = file::read(path)? else { return Ok(()) };
    for (name, env) in spec.devices() {
        let asks = |variable: &&&str| {
            let mut ours = [run::TENANT_VARIABLE, run::OVERSUBSCRIBE_VARIABLE]
                .into_iter()
                .chain(Key::ALL.map(Key::variable));
            variable.split_once('=').is_some_and(|(name, _)| ours.any(|ours| ours == name))
        };
        let requests: Vec<&str> = env.iter().filter(asks).copied().collect();
        out::say([&[format!("{KIND}={name}").as_str()], &requests[..]].concat().join("  "))?;
    }
    Ok(())
}

fn remove(name: &DeviceName, path: &Path) -> Result<()> {
    let missing = || format!("there is no device {KIND}={name} in {}", path.display());
    if file::read(path)?.is_none() {
        bail!(missing());
    }
    file::update(path, |spec| if spec.remove(name) { Ok(()) } else { bail!(missing()) })
}
