//! Random sequences of driver calls, right and wrong, by two processes at once. With deepres the
//! calls get the same answers as without, also while the driver injects failures. Afterwards the
//! account is empty.
//!
//! The committed pairs lie in tests/fuzz/seeds/calls. A file has two seeds, and `failing` if the
//! driver injects failures. `cargo xtask fuzz calls` draws more pairs.

use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::process::Command;

use deepres_e2e::artefacts::repository;
use deepres_e2e::clients::conformance;
use deepres_e2e::prelude::*;

/// Number of calls in a sequence.
const CALLS: &str = "2000";
/// Folder of the committed pairs.
const SEEDS: &str = "tests/fuzz/seeds/calls";
/// Variable with the time for drawing fresh pairs, seconds (`cargo xtask fuzz calls --seconds N`).
const SECONDS_VARIABLE: &str = "DEEPRES_CALLS_SECONDS";
/// Number of fresh pairs that share a host.
const PAIRS_ON_A_HOST: u32 = 20;
/// Errors that the driver injects: codes of the reference, and one unknown code.
const CODES: [u32; 7] = [1, 2, 700, 719, 801, 999, 98765];
/// Functions that clients call and deepres does not call itself. If such a function fails, only the
/// client is affected.
const FUNCTIONS: &str = "cuMemAlloc_v2 cuMemAllocPitch_v2 cuMemAllocManaged cuMemFree_v2 cuMemAllocAsync \
     cuMemFreeAsync cuMemCreate cuMemRelease cuMemMap cuMemUnmap cuArrayCreate_v2 cuArrayDestroy \
     cuLaunchKernel cuLaunchKernelEx cuLaunchGridAsync cuGraphLaunch cuStreamBeginCapture_v2 \
     cuStreamEndCapture cuCtxDestroy_v2 cuStreamDestroy_v2 cuStreamSynchronize cuCtxSynchronize \
     cuCtxAttach cuCtxDetach cuDevicePrimaryCtxReset_v2 cuMemPoolCreate cuMemAllocFromPoolAsync \
     cuMemPoolDestroy cuArray3DCreate_v2 cuMemcpy2D_v2 cuMemcpy3D_v2 cuLaunchHostFunc \
     cuLibraryUnload cuModuleUnload cuGraphExecUpdate_v2 cuMemExportToShareableHandle \
     cuMemImportFromShareableHandle";

/// Two processes that run at once, each with its seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pair {
    seeds: [u64; 2],
    is_failing: bool,
}

impl Pair {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let seeds = [words.next()?.parse().ok()?, words.next()?.parse().ok()?];
        match words.next() {
            None => Some(Self { seeds, is_failing: false }),
            Some("failing") => Some(Self { seeds, is_failing: true }),
            Some(_) => None,
        }
    }

    /// Returns the errors that the driver injects into one process, in the format of
    /// `SIMGPU_FAULTS`.
    fn faults(self, seed: u64) -> String {
        if !self.is_failing {
            return String::new();
        }
        let (code, every) = (CODES[seed as usize % CODES.len()], 3 + seed % 4);
        let rules: Vec<String> =
            FUNCTIONS.split(' ').map(|function| format!("{function}:every:{every}:{code}")).collect();
        rules.join(",")
    }

    /// Starts both processes.
    fn start(self, host: &Host, make: impl Fn(usize) -> Command) -> [Process; 2] {
        [0, 1].map(|which| {
            let seed = self.seeds[which];
            let mut command = make(which);
            command.args(["--sequence", CALLS, "--seed", &seed.to_string()]);
            command.env("SIMGPU_FAULTS", self.faults(seed));
            host.spawn(command)
        })
    }

    /// Runs both processes bare, and then as tenants. Asserts equal output, and empty accounts at
    /// the end.
    fn assert_same_answers(self, host: &Host) {
        let bare = self
            .start(host, |_| host.command(conformance()))
            .map(|process| process.finish().success().stdout);
        let name = |which: usize| format!("{}-of-{}-{}", which, self.seeds[0], self.seeds[1]);
        let mut tenants = self.start(host, |which| {
            let mut command = host.preloaded(conformance());
            command.env("DEEPRES_TENANT", name(which));
            command
        });
        for tenant in &mut tenants {
            tenant.await_exactly("end");
        }
        let ps = host.ps();
        for (which, (tenant, bare)) in tenants.into_iter().zip(bare).enumerate() {
            let account = ps.tenant(&name(which));
            assert_eq!(account.sessions.len(), 1, "{self:?}: process {which} ran as a tenant");
            assert_eq!(account.memory_bytes, 0, "{self:?}: process {which} freed everything");
            let said = tenant.finish().success().stdout;
            let differs = said.lines().zip(bare.lines()).find(|(said, bare)| said != bare);
            assert_eq!(differs, None, "{self:?}: process {which}, with deepres and without");
            assert_eq!(said.len(), bare.len(), "{self:?}: process {which}");
        }
    }
}

/// Returns the committed pairs.
fn pairs(is_failing: bool) -> Vec<Pair> {
    let folder = repository().join(SEEDS);
    let files = fs::read_dir(&folder).expect("the folder of seeds");
    let mut pairs: Vec<Pair> = files
        .map(|file| {
            let path = file.expect("a folder of ours").path();
            let text = fs::read_to_string(&path).expect("a file of ours");
            Pair::parse(&text).unwrap_or_else(|| panic!("{}: not two seeds: {text}", path.display()))
        })
        .filter(|pair| pair.is_failing == is_failing)
        .collect();
    pairs.sort_by_key(|pair| pair.seeds);
    assert!(!pairs.is_empty(), "no seeds in {}", folder.display());
    pairs
}

fn assert_committed(is_failing: bool) {
    let (host, _daemon) = Host::new().with_daemon();
    for pair in pairs(is_failing) {
        pair.assert_same_answers(&host);
    }
}

#[test]
fn random_calls_of_two_processes_are_answered_as_without_deepres() {
    assert_committed(false);
}

#[test]
fn random_calls_of_two_processes_on_a_failing_driver_are_answered_as_without_deepres() {
    assert_committed(true);
}

/// The test that `cargo xtask fuzz calls` runs. A pair that fails is printed, and should be added
/// to the folder of seeds.
#[test]
#[ignore = "deep: draws fresh pairs for as long as it is told"]
fn fresh_pairs_are_answered_as_without_deepres() {
    let seconds = std::env::var(SECONDS_VARIABLE).ok().and_then(|text| text.parse().ok());
    let until = Instant::now() + Duration::from_secs(seconds.expect("a number of seconds"));
    let random = RandomState::new();
    let (mut host, mut drawn) = (None, 0_u32);
    while Instant::now() < until {
        if drawn.is_multiple_of(PAIRS_ON_A_HOST) {
            host = None;
        }
        let (_daemon, host) = host.get_or_insert_with(|| {
            let host = Host::new();
            (host.daemon(), host)
        });
        let seed = |which: u32| u64::from(random.hash_one((drawn, which)) as u32);
        let pair = Pair { seeds: [seed(0), seed(1)], is_failing: drawn % 2 == 1 };
        // The output shows the pair to repeat if the test is killed.
        println!("{} {}{}", pair.seeds[0], pair.seeds[1], if pair.is_failing { " failing" } else { "" });
        pair.assert_same_answers(host);
        drawn += 1;
    }
    println!("{drawn} pairs, and each was answered as without deepres");
}

#[test]
fn a_file_of_seeds_holds_two_numbers_and_nothing_unknown() {
    assert_eq!(Pair::parse("1 2\n"), Some(Pair { seeds: [1, 2], is_failing: false }));
    assert_eq!(Pair::parse("1 2 failing"), Some(Pair { seeds: [1, 2], is_failing: true }));
    for text in ["", "1", "1 x", "1 2 often"] {
        assert_eq!(Pair::parse(text), None, "{text}");
    }
}
