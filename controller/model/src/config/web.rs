//! The address of the daemon's page: a loopback address or a Unix socket. Everybody who reaches the
//! page can read it, so no address of a network is allowed.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// The address of the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WebAddress {
    /// A loopback address with a port.
    Tcp(SocketAddr),
    /// The absolute path of a Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for WebAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

impl Serialize for WebAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The reason for which a text is no address of the page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WebAddressError {
    /// The text is neither an address with a port nor an absolute path.
    #[error(
        "`{0}` is neither an address with a port nor the path of a socket; give for example 127.0.0.1:9443, or /run/deepres/web.sock"
    )]
    Malformed(String),
    /// Other machines reach the address.
    #[error(
        "other machines may reach `{0}`, and the page has no password: give 127.0.0.1 with a port, and reach it from elsewhere with `ssh -L`"
    )]
    Exposed(SocketAddr),
}

impl FromStr for WebAddress {
    type Err = WebAddressError;

    fn from_str(text: &str) -> Result<Self, WebAddressError> {
        if text.starts_with('/') {
            return Ok(Self::Unix(text.into()));
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_loopback() => Ok(Self::Tcp(address)),
            Ok(address) => Err(WebAddressError::Exposed(address)),
            Err(_) => Err(WebAddressError::Malformed(text.to_owned())),
        }
    }
}

impl<'de> Deserialize<'de> for WebAddress {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        String::deserialize(value)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_at_a_loopback_address_or_a_socket() {
        for text in ["127.0.0.1:9443", "127.1.2.3:1", "[::1]:9443", "/run/deepres/web.sock"] {
            assert_eq!(text.parse::<WebAddress>().unwrap().to_string(), text);
        }
        for text in ["0.0.0.0:9443", "[::]:9443", "192.168.0.1:9443"] {
            let error = text.parse::<WebAddress>().unwrap_err();
            assert!(matches!(error, WebAddressError::Exposed(_)), "{text}: {error}");
        }
        for text in ["", "9443", "localhost:9443", "127.0.0.1", "web.sock"] {
            let error = text.parse::<WebAddress>().unwrap_err();
            assert!(matches!(error, WebAddressError::Malformed(_)), "{text}: {error}");
        }
    }
}
