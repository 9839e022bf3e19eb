//! `deepres trace`: ioctls of the GPU's devices, one by one, by name.
//!
//! | module | job |
//! |---|---|
//! | [`layout`] | commands and their arguments, as NVIDIA publishes them |
//! | [`names`] | names of numbers inside arguments |
//! | [`decode`] | an event of the kernel's as people read it |
//! | [`summary`] | what a trace adds up to |

pub mod decode;
pub mod layout;
pub mod names;
pub mod summary;

use deepres_abi::probe::{BYTES_NOWHERE, BYTES_OFFSET, CommandKey, CommandValue, Family};

/// What the kernel programs have to know of each command.
pub fn commands() -> impl Iterator<Item = (CommandKey, CommandValue)> {
    [Family::Rm, Family::Uvm, Family::Modeset].into_iter().flat_map(|family| {
        layout::of_family(family).iter().filter_map(move |command| {
            let key = CommandKey { family: family as u32, command: layout::ioctl(family, command)? };
            let bytes_at = command.amount.map_or(BYTES_NOWHERE as u32, |at| at as u32 + BYTES_OFFSET as u32);
            Some((key, CommandValue { bytes_at, argument_bytes: command.bytes as u32 }))
        })
    })
}
