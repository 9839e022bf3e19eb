//! What the environment asks for. A value that makes no sense is reported in one line and treated as absent.

use std::env;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use deepres_abi::PPM;

use crate::log::say;

/// Requests and addresses from the environment.
#[derive(Debug)]
pub struct Config {
    /// The tenant socket.
    pub socket: PathBuf,
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
        let socket = text("DEEPRES_SOCKET");
        let share = text("DEEPRES_SHARE");
        let memory = text("DEEPRES_MEMORY");
        let tenant = text("DEEPRES_TENANT");
        Self {
            is_asked_for: socket.is_some() || share.is_some() || memory.is_some() || tenant.is_some(),
            socket: socket.map_or_else(default_socket, PathBuf::from),
            tenant: tenant.unwrap_or_default(),
            share_ppm: share.as_deref().map_or(0, |value| {
                parse_share(value).unwrap_or_else(|| {
                    say!(
                        Warn,
                        "DEEPRES_SHARE={value} is not a share like 30% (above 0, at most 100); ignored"
                    );
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

/// `tenant/tenant.sock` where the daemon puts it by default.
fn default_socket() -> PathBuf {
    let directory =
        env::var_os("DEEPRES_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from).unwrap_or_else(|| {
            // SAFETY: no arguments, cannot fail.
            let user = unsafe { libc::geteuid() };
            let runtime = env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.as_bytes().is_empty());
            match runtime {
                _ if user == 0 => PathBuf::from("/run/deepres"),
                Some(runtime) => PathBuf::from(runtime).join("deepres"),
                None => PathBuf::from(format!("/tmp/deepres-{user}")),
            }
        });
    directory.join("tenant/tenant.sock")
}

/// `30%` or `12.5%` as parts per million.
fn parse_share(text: &str) -> Option<u32> {
    let percent: f64 = text.trim().strip_suffix('%')?.trim_end().parse().ok()?;
    let ppm = (percent * f64::from(PPM) / 100.0).round();
    (ppm >= 1.0 && ppm <= f64::from(PPM)).then_some(ppm as u32)
}

/// `8GiB`, `500 MB`, `1.5T` or a number of bytes. One letter alone means the binary unit.
fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit_bytes: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(unit_bytes).filter(|bytes| *bytes > 0);
    }
    let bytes = number.parse::<f64>().ok()? * unit_bytes as f64;
    (bytes >= 1.0 && bytes < u64::MAX as f64).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percentages_above_zero_and_up_to_a_whole() {
        assert_eq!(parse_share("30%"), Some(300_000));
        assert_eq!(parse_share(" 12.5 %"), Some(125_000));
        assert_eq!(parse_share("100%"), Some(1_000_000));
        for bad in ["0%", "120%", "abc", "30", "", "%", "-5%", "NaN%", "inf%"] {
            assert_eq!(parse_share(bad), None, "{bad}");
        }
    }

    #[test]
    fn sizes_have_binary_and_decimal_units() {
        assert_eq!(parse_bytes("8GiB"), Some(8 << 30));
        assert_eq!(parse_bytes("8g"), Some(8 << 30));
        assert_eq!(parse_bytes("500 MB"), Some(500_000_000));
        assert_eq!(parse_bytes("1.5KiB"), Some(1536));
        assert_eq!(parse_bytes("4096"), Some(4096));
        for bad in ["12XB", "", "GiB", "0", "-1GiB", "1.2.3GiB", "99999999999TiB"] {
            assert_eq!(parse_bytes(bad), None, "{bad}");
        }
    }
}
