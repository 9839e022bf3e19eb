//! What the environment asks for. A value that makes no sense is reported in one line and treated as absent.

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use deepres_abi::directory::{Places, TENANT_DIRECTORY, TENANT_SOCKET};
use deepres_abi::quantity::{parse_bytes, parse_share};

use crate::log::say;

/// Requests and addresses from the environment.
#[derive(Debug)]
pub struct Config {
    /// Where the tenant socket may be, best first; never empty.
    pub sockets: Vec<PathBuf>,
    /// Whether the environment mentions deepres at all: if not, the absence of a daemon is nothing to talk about.
    pub is_asked_for: bool,
    /// The tenant's name, or empty.
    pub tenant: String,
    /// Share asked for, parts per million; 0: none.
    pub share_ppm: u32,
    /// Memory asked for, bytes; 0: none.
    pub memory_bytes: u64,
}

impl Config {
    /// Reads the environment.
    pub fn read() -> Self {
        let text = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let places = places();
        let share = text("DEEPRES_SHARE");
        let memory = text("DEEPRES_MEMORY");
        let tenant = text("DEEPRES_TENANT");
        Self {
            is_asked_for: places.socket().is_some()
                || share.is_some()
                || memory.is_some()
                || tenant.is_some(),
            sockets: sockets(&places),
            tenant: tenant.unwrap_or_default(),
            share_ppm: share.as_deref().map_or(0, |value| {
                parse_share(value).unwrap_or_else(|| {
                    say!(Warn, "DEEPRES_SHARE={value} is not a share from 1% to 100%, like 30%; ignored");
                    0
                })
            }),
            memory_bytes: memory.as_deref().map_or(0, |value| {
                parse_bytes(value).unwrap_or_else(|| {
                    say!(Warn, "DEEPRES_MEMORY={value} is not a size like 8GiB; ignored");
                    0
                })
            }),
        }
    }
}

/// What the environment and the user say about where files are.
fn places() -> Places<Vec<u8>> {
    // SAFETY: no arguments, cannot fail.
    let user = unsafe { libc::getuid() };
    Places::read(user, |name| env::var_os(name).map(OsString::into_vec))
}

fn sockets(places: &Places<Vec<u8>>) -> Vec<PathBuf> {
    let path = |bytes| PathBuf::from(OsString::from_vec(bytes));
    match places.socket() {
        Some(named) => vec![path(named.clone())],
        None => places
            .candidates()
            .map(|directory| path(directory.path().collect()).join(TENANT_DIRECTORY).join(TENANT_SOCKET))
            .collect(),
    }
}
