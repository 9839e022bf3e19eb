//! `deepres trace`: shows each ioctl on the GPU's devices by name.
//!
//! | module | job |
//! |---|---|
//! | [`layout`] | commands and their arguments, as NVIDIA publishes them |
//! | [`names`] | names of numbers inside arguments |
//! | [`decode`] | turns an event of the kernel into readable form |
//! | [`summary`] | the sums of a trace |

pub mod decode;
pub mod layout;
pub mod names;
pub mod summary;

use deepres_abi::probe::{CommandKey, CommandValue, Family, facts};
use layout::Amount;

/// Returns the facts about the GPU driver's ioctl commands that the eBPF programs need. An
/// example is the place of a status, or of an amount of memory, in a command's argument.
pub fn commands() -> impl Iterator<Item = (CommandKey, CommandValue)> {
    [Family::Rm, Family::Uvm, Family::Modeset].into_iter().flat_map(|family| {
        layout::of_family(family).iter().filter_map(move |command| {
            let key = CommandKey { family: family as u32, command: layout::ioctl(family, command)? };
            let (kind, at) = match command.amount {
                None => (facts::NO_MEMORY, 0),
                Some(Amount::Mapped(at)) => (facts::MAPS, at),
                Some(Amount::AllocatedUpTo(at)) => (facts::ALLOCATES_UP_TO, at),
                Some(Amount::ByFunction) => (facts::HEAP, 0),
                Some(Amount::ByClass) => (facts::OBJECT, 0),
            };
            let facts = facts::new(command.status.map(|at| at as u16), kind, at as u16);
            Some((key, CommandValue { facts, argument_bytes: command.bytes as u32, reserved: 0 }))
        })
    })
}
