//! `deepres cdi`: devices by which container runtimes bring deepres into a container, with nothing changed in the image.

mod file;
mod spec;

use super::run;
use crate::wishes::{self, Elsewhere, Wishes};
use anyhow::{Context, Result, bail};
use deepres_abi::directory::{DIRECTORY_VARIABLE, SOCKET_VARIABLE};
use deepres_abi::oversubscribe::Oversubscribe;
use deepres_model::directory::{Directory, named_socket};
use deepres_model::wish::Key;
use spec::{ContainerEdits, Device, DeviceName, KIND, Mount, Spec};
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Where container runtimes look for what administrators put there.
const DEFAULT_FILE: &str = "/etc/cdi/deepres.json";
/// Standard output, as a file's name.
const STANDARD_OUTPUT: &str = "-";
/// Where the library appears in a container.
const LIBRARY_PLACE: &str = "/usr/lib/deepres";
const LIBRARY_NAME: &str = "libdeepres.so";
/// What glibc's loader may put for `$LIB`: Debian's way, Red Hat's, and the plain one.
const LIB_NAMES: [&str; 3] = ["lib/x86_64-linux-gnu", "lib64", "lib"];
/// Where the directory of the tenant socket appears in a container.
const SOCKET_PLACE: &str = "/run/deepres/tenant";

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Make a device, or change it, for `podman run --device deepres.dev/share=NAME`
    Generate(Box<Generate>),
    /// List the devices there are
    List {
        #[command(flatten)]
        file: SpecFile,
    },
    /// Take a device away
    Remove {
        /// The device
        name: DeviceName,
        #[command(flatten)]
        file: SpecFile,
    },
}

#[derive(Debug, clap::Args)]
struct SpecFile {
    /// The CDI specification
    #[arg(long, default_value = DEFAULT_FILE)]
    file: PathBuf,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The container gets the library, the directory of the daemon's tenant socket (both read-only) and the \
variables LD_PRELOAD, DEEPRES_SOCKET and those for what is asked for (DEEPRES_SHARE and so on). What its limits are in the end \
the daemon decides, as for every other program. Each container is a tenant of its own; --tenant gives \
it a name, and makes one of all containers with that name only where the daemon's configuration says so (shared_names). Other devices in the file stay as they are.

Examples:
  deepres cdi generate --name train --share 30% --memory 2GiB
  podman run --device deepres.dev/share=train --device nvidia.com/gpu=0 IMAGE python train.py")]
struct Generate {
    /// The device's name
    #[arg(long)]
    name: DeviceName,
    /// Name of a container's tenant; one for all containers if it is among the configuration's shared_names [default: the runtime's and the container's id]
    #[arg(long, value_parser = run::parse_name)]
    tenant: Option<String>,
    #[command(flatten)]
    wishes: Wishes<Elsewhere>,
    /// Use more memory than there is: suspend (others' need takes the tenant off the GPU for a while, memory and all) or managed (what is beyond its limit moves to
    /// the GPU and back)
    #[arg(long, value_name = "HOW")]
    oversubscribe: Option<Oversubscribe>,
    /// The CDI specification to put it into; `-` prints one with this device alone
    #[arg(long, value_name = "FILE", default_value = DEFAULT_FILE)]
    output: PathBuf,
}

/// Does what was asked with the devices.
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
    // Where the daemon will be that a job would start or find.
    let socket = running.or_else(named_socket).unwrap_or_else(|| Directory::own().tenant_socket());
    let socket = std::path::absolute(socket)?;
    let sockets = socket.parent().context("the tenant socket is in no directory")?;
    let qualified = format!("{KIND}={}", args.name);
    let device = device(args, &library, &socket, sockets)?;
    if args.output == Path::new(STANDARD_OUTPUT) {
        let mut spec = Spec::new();
        spec.put(device)?;
        std::io::stdout().write_all(spec.to_string().as_bytes())?;
    } else {
        file::update(&args.output, |spec| Ok(spec.put(device)?))?;
        println!("{qualified} is in {}", args.output.display());
    }
    if !sockets.is_dir() {
        eprintln!(
            "deepres: no daemon has made {} yet: containers with {qualified} start once `deepres daemon` runs",
            sockets.display()
        );
    }
    if let Some(other) = Directory::candidates().first().filter(|_| !is_running && named_socket().is_none())
        && *other != Directory::own()
        && other.tenant_directory().is_dir()
    {
        eprintln!(
            "deepres: root's daemon does not run now: {qualified} is for your own, in {}; for root's start that one, or set {DIRECTORY_VARIABLE}={other}, and generate it again",
            sockets.display()
        );
    }
    Ok(())
}

/// The device that is asked for.
fn device(args: &Generate, library: &Path, socket: &Path, sockets: &Path) -> Result<Device> {
    let name = socket.file_name().and_then(OsStr::to_str);
    let name = name.with_context(|| format!("{} is no name of a socket", socket.display()))?;
    // Only glibc's loader replaces `$LIB`. That of musl finds no such file and goes on without, where a library that it found
    // but cannot link would end the program.
    let mut env = vec![
        format!("{}={LIBRARY_PLACE}/$LIB/{LIBRARY_NAME}", run::PRELOAD_VARIABLE),
        format!("{SOCKET_VARIABLE}={SOCKET_PLACE}/{name}"),
    ];
    env.extend(args.tenant.as_ref().map(|tenant| format!("{}={tenant}", run::TENANT_VARIABLE)));
    env.extend(wishes::variables(&args.wishes.wish).map(|(name, value)| format!("{name}={value}")));
    env.extend(args.oversubscribe.map(|way| format!("{}={}", run::OVERSUBSCRIBE_VARIABLE, way.name())));
    let library_in =
        |lib| Mount::read_only(library.to_owned(), format!("{LIBRARY_PLACE}/{lib}/{LIBRARY_NAME}"));
    let mut mounts: Vec<_> = LIB_NAMES.into_iter().map(library_in).collect();
    mounts.push(Mount::read_only(sockets.to_owned(), SOCKET_PLACE.to_owned()));
    Ok(Device { name: args.name.clone(), container_edits: ContainerEdits { env, mounts } })
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
        println!("{}", [&[format!("{KIND}={name}").as_str()], &requests[..]].concat().join("  "));
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
