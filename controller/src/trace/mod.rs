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

/// Escapes that allocate and whose amount stands behind another pointer: NV_ESC_RM_ALLOC_MEMORY, NV_ESC_RM_VID_HEAP_CONTROL.
const ALLOCATING: [u32; 2] = [0x27, 0x4a];

/// Whether a command allocates, maps or moves memory.
pub fn concerns_memory(family: u32, command: u32) -> bool {
    let family = Family::from_u32(family);
    layout::find(family, command).is_some_and(|known| {
        known.amount.is_some() || family == Family::Rm && ALLOCATING.contains(&known.number)
    })
}
