//! Allocations: the parts of GPUs that a node's agent, such as the Kubernetes device plugin, has
//! given to containers.
//!
//! The agent tells the daemon each allocation, with a secret token. The agent gives the token to
//! the container in `DEEPRES_TENANT`, in place of a tenant's name. A process with the token gets
//! the allocation of the daemon's record, whatever its other variables say.

use deepres_abi::PPM;
use deepres_abi::wire::{TENANT_NAME_BYTES, Uuid};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The prefix of each token. A tenant's name with this prefix is a token.
pub const TOKEN_PREFIX: &str = "allocation:";
/// Hexadecimal digits of a token after its beginning.
pub const TOKEN_DIGITS: usize = 32;

/// The secret name of an allocation: [`TOKEN_PREFIX`] and [`TOKEN_DIGITS`] random digits.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Token(String);

/// The error for a text that is no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a token is `{TOKEN_PREFIX}` and {TOKEN_DIGITS} digits from 0 to 9 and a to f")]
pub struct NotAToken;

impl Token {
    /// Returns the token with these random bytes.
    pub fn of(random: [u8; TOKEN_DIGITS / 2]) -> Self {
        let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        Self(format!("{TOKEN_PREFIX}{digits}"))
    }

    /// Returns the token as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Token {
    type Error = NotAToken;

    fn try_from(text: String) -> Result<Self, NotAToken> {
        let digits = text.strip_prefix(TOKEN_PREFIX).ok_or(NotAToken)?;
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if digits.len() == TOKEN_DIGITS && digits.bytes().all(is_digit) {
            Ok(Self(text))
        } else {
            Err(NotAToken)
        }
    }
}

impl From<Token> for String {
    fn from(token: Token) -> Self {
        token.0
    }
}

/// Shows no digits, because logs must not contain secrets.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{TOKEN_PREFIX}…")
    }
}

/// A container of a Kubernetes pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodContainer {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container's name in the pod.
    pub container: String,
}

impl fmt::Display for PodContainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.namespace, self.pod, self.container)
    }
}

/// The part of GPUs that a container has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allocation {
    /// The secret by which a process shows that the allocation is its own.
    pub token: Token,
    /// The share of each GPU, parts per million.
    pub share_ppm: u32,
    /// The memory on each GPU, bytes.
    pub memory_bytes: u64,
    /// The UUIDs of the GPUs, `GPU-…`.
    pub gpus: Vec<String>,
    /// The container that has the allocation. The agent learns of the container after the
    /// allocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<PodContainer>,
}

impl Allocation {
    /// Returns a fault in the allocation, as a sentence; `None` if the allocation is possible.
    pub fn fault(&self) -> Option<String> {
        if !(1..=PPM).contains(&self.share_ppm) {
            return Some(format!(
                "a share of {} parts per million is not between 0 and {PPM}",
                self.share_ppm
            ));
        }
        if self.memory_bytes == 0 {
            return Some("an allocation without memory is of no use".to_owned());
        }
        if self.gpus.is_empty() {
            return Some("the allocation names no GPU".to_owned());
        }
        None
    }
}

const _: () =
    assert!(TOKEN_PREFIX.len() + TOKEN_DIGITS < TENANT_NAME_BYTES, "a token fits where a name fits");
const _: () = assert!(size_of::<Uuid>() == TOKEN_DIGITS / 2, "a token is as random as a UUID");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::is_name;

    fn allocation() -> Allocation {
        Allocation {
            token: Token::of([0xab; 16]),
            share_ppm: 300_000,
            memory_bytes: 1 << 30,
            gpus: vec!["GPU-1".to_owned()],
            holder: None,
        }
    }

    #[test]
    fn a_token_can_stand_for_a_name_and_is_not_shown() {
        let token = Token::of([0xab; 16]);
        assert_eq!(token.as_str(), format!("allocation:{}", "ab".repeat(16)));
        assert!(is_name(token.as_str()));
        assert_eq!(Token::try_from(token.as_str().to_owned()), Ok(token.clone()));
        assert!(!format!("{token:?}").contains("ab"), "{token:?}");
        for no in ["", "allocation:", "train", &"ab".repeat(16), &format!("allocation:{}", "AB".repeat(16))] {
            assert_eq!(Token::try_from((*no).to_owned()), Err(NotAToken), "{no}");
        }
    }

    #[test]
    fn an_impossible_allocation_has_a_reason() {
        assert_eq!(allocation().fault(), None);
        for (fault, word) in [
            (Allocation { share_ppm: 0, ..allocation() }, "share"),
            (Allocation { share_ppm: PPM + 1, ..allocation() }, "share"),
            (Allocation { memory_bytes: 0, ..allocation() }, "memory"),
            (Allocation { gpus: Vec::new(), ..allocation() }, "no GPU"),
        ] {
            assert!(fault.fault().is_some_and(|reason| reason.contains(word)), "{fault:?}");
        }
    }
}
