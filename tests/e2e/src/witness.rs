//! Observes a client's look-ups of driver functions from outside. `tests/workloads/c/witness.c`
//! logs the answer to each look-up.

use std::{collections::BTreeSet, fs, path::Path, process::Command, sync::OnceLock, time::Duration};

use deepres_abi::driver::{self, types::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM};
use object::Object as _;

use crate::{Host, artefacts::artefacts, clients::c_library, host::COMMAND_LIMIT};

/// One look-up that found a function, as `witness.c` saw it.
#[derive(Debug)]
struct LookUp {
    /// Exported symbol that a driver of this version has for the name asked for.
    symbol: String,
    /// File that contains the function found.
    owner: String,
    /// File that contains the caller of the look-up.
    asker: String,
}

/// Returns the look-ups in a witness's log that found a function.
fn look_ups(log: &Path) -> Vec<LookUp> {
    let text = fs::read_to_string(log).expect("the witness was loaded and saw something");
    let parse = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let [how, name, version, flags, owner, asker] = words[..] else {
            panic!("the witness wrote {line:?}")
        };
        if owner == "nobody" {
            return None;
        }
        let symbol = match how {
            "dlsym" => name.to_owned(),
            _ => {
                let flags: u64 = flags.parse().expect("flags");
                let per_thread = flags & u64::from(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
                let found = driver::resolve(name.as_bytes(), version.parse().expect("a version"), per_thread);
                found
                    .unwrap_or_else(|| panic!("the driver has what the table has not: {line}"))
                    .symbol()
                    .to_owned()
            }
        };
        Some(LookUp { symbol, owner: owner.to_owned(), asker: asker.to_owned() })
    };
    text.lines().filter_map(parse).collect()
}

/// Returns every driver function that deepres hooks. The library exports each hook under the
/// function's name.
fn hooked() -> &'static BTreeSet<String> {
    static HOOKED: OnceLock<BTreeSet<String>> = OnceLock::new();
    HOOKED.get_or_init(|| {
        let bytes = fs::read(&artefacts().library).expect("the library under test");
        let library = object::File::parse(&*bytes).expect("an ELF file");
        let names = library.exports().expect("exported symbols").into_iter();
        let names = names.map(|export| String::from_utf8_lossy(export.name()).into_owned());
        names.filter(|name| driver::by_symbol(name.as_bytes()).is_some()).collect()
    })
}

/// A program that a witness observes.
pub struct Client<'a> {
    /// Path of the program.
    pub program: &'a Path,
    /// Arguments of the program.
    pub arguments: &'a [&'a str],
    /// Variables in addition to the inherited environment.
    pub variables: &'a [(&'a str, &'a str)],
    /// Folders of libraries, as LD_LIBRARY_PATH lists them. These folders follow the folder of the
    /// simulated GPU.
    pub libraries: &'a str,
    /// Libraries of the program that define functions with the driver's names. Such a library
    /// itself looks up the driver's functions that it calls. Because the hooks of deepres come
    /// before the library's functions, such a look-up can get the driver's own function.
    pub forwarders: &'a [&'a str],
    /// The time limit of the program.
    pub within: Duration,
}

impl<'a> Client<'a> {
    /// Returns a program without arguments, variables or libraries.
    pub fn new(program: &'a Path) -> Self {
        Self {
            program,
            arguments: &[],
            variables: &[],
            libraries: "",
            forwarders: &[],
            within: COMMAND_LIMIT,
        }
    }

    /// Adds the client's arguments, variables and libraries to a command that runs its program.
    pub fn prepare(&self, command: &mut Command) {
        command.args(self.arguments).envs(self.variables.iter().copied());
        if !self.libraries.is_empty() {
            let folders = format!("{}:{}", artefacts().simgpu.display(), self.libraries);
            command.env("LD_LIBRARY_PATH", folders);
        }
    }
}

/// Runs a client with a witness preloaded before deepres, and checks the answer to each look-up.
/// The answer must be a hook if deepres hooks the function, and the driver's own function if not.
/// Returns the client's output and the functions whose hooks it got.
#[track_caller]
pub fn assert_every_look_up_is_answered_with_our_hook(client: &Client<'_>) -> (String, Vec<String>) {
    let host = Host::new();
    let _daemon = host.daemon();
    let log = host.path().join("witness.log");
    let preload = format!("{}:{}", c_library("witness").display(), artefacts().library.display());
    let mut command = host.preloaded(client.program);
    client.prepare(&mut command);
    command.env("LD_PRELOAD", preload).env("WITNESS_LOG", &log).env("DEEPRES_LOG", "debug");
    let finished = host.spawn(command).finish_within(client.within).success();

    let mut got = BTreeSet::new();
    // When a session begins, deepres itself looks functions up, to see whether it gets its hooks.
    for look_up in look_ups(&log).into_iter().filter(|look_up| look_up.asker != "libdeepres.so") {
        let is_ours = look_up.owner == "libdeepres.so";
        let is_hooked = hooked().contains(&look_up.symbol);
        let is_behind_a_hook = is_hooked && client.forwarders.contains(&look_up.asker.as_str());
        assert!(is_ours == is_hooked || is_behind_a_hook, "{look_up:?}");
        if is_hooked {
            got.insert(look_up.symbol);
        }
    }
    let reports: Vec<&str> = finished.stderr.lines().filter(|line| line.contains("look-ups:")).collect();
    assert!(!reports.is_empty(), "deepres reports at the end:\n{}", finished.stderr);
    for report in &reports {
        assert!(report.contains(" 0 from another libcuda, 0 of unknown address"), "{report}");
    }
    let counted = format!("look-ups: {} functions hooked;", got.len());
    assert!(
        reports.iter().any(|report| report.contains(&counted)),
        "the witness saw {}: {reports:?}",
        got.len()
    );
    (finished.stdout, got.into_iter().collect())
}
