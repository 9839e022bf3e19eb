//! A tenant's account as the memory of the daemon has it.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::PathBuf,
};

use crate::process::Process;

/// Behind the page's head: the first word of the first GPU's account.
const SLOTS_USED_AT: u64 = 64;
/// Behind that account's head.
const SLOTS_AT: u64 = 128;
/// A session's words.
pub const SLOT_BYTES: usize = 64;

/// See the module.
pub struct Ledger(File);

impl Ledger {
    /// That of the only tenant there is, on the first GPU.
    #[track_caller]
    pub fn of(daemon: &Process) -> Self {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("the daemon runs");
        let is_ledger = |path: &PathBuf| {
            fs::read_link(path).is_ok_and(|target| target.to_string_lossy().contains("memfd:deepres-ledger"))
        };
        let ledger = descriptors.flatten().map(|entry| entry.path()).find(is_ledger).expect("a ledger");
        Self(File::open(ledger).expect("a file of the daemon's"))
    }

    fn read<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact_at(&mut bytes, at).expect("the ledger is so long");
        bytes
    }

    /// How many slots are looked at whenever memory is asked for.
    pub fn slots_looked_at(&self) -> usize {
        u32::from_ne_bytes(self.read(SLOTS_USED_AT)) as usize
    }

    /// All words of a slot.
    pub fn slot(&self, number: usize) -> [u8; SLOT_BYTES] {
        self.read(SLOTS_AT + (number * SLOT_BYTES) as u64)
    }
}
