//! A tenant's ledger, read from the memfd that the daemon has open.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::PathBuf,
};

use crate::process::Process;

/// Offset of the first word of the first GPU's account. The word follows the page's head.
const SLOTS_USED_AT: u64 = 64;
/// Offset of the slots, which follow the head of the account.
const SLOTS_AT: u64 = 128;
/// Size of a session's slot, bytes.
pub const SLOT_BYTES: usize = 64;

/// The ledger of a tenant.
pub struct Ledger(File);

impl Ledger {
    /// Opens the ledger of the host's only tenant. The methods read the account on the first GPU.
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

    /// Returns the number of slots that the interposer adds up for each request for memory.
    pub fn slots_looked_at(&self) -> usize {
        u32::from_ne_bytes(self.read(SLOTS_USED_AT)) as usize
    }

    /// Returns all words of a slot.
    pub fn slot(&self, number: usize) -> [u8; SLOT_BYTES] {
        self.read(SLOTS_AT + (number * SLOT_BYTES) as u64)
    }
}
