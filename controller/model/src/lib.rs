//! What the daemon, the command and every other face of deepres share: no thread, no event loop.
//!
//! | module | job |
//! |---|---|
//! | [`admin`] | the language of the admin socket, which is also that of `deepres ps --json` |
//! | [`authority`] | what of a wish is granted, and by which rule |
//! | [`wish`] | the wishes: how each is read, shown and explained |
//! | [`config`] | the daemon's configuration file |
//! | [`probes`] | what the kernel programs found, as it is shown |
//! | [`identity`] | how a tenant was found |
//! | [`quantity`] | shares, sizes and times as people write them |
//! | [`text`] | names and other people's text |
//! | [`directory`] | where the sockets are, and whether they can be trusted |
//! | [`packet`] | packets with descriptors over a socket |
//! | [`peer`] | the process at the other end of a socket |
//! | [`process`] | a process that cannot be mistaken for a later one of its number |
//! | [`clock`] | the one clock |

pub mod admin;
pub mod authority;
pub mod clock;
pub mod config;
pub mod directory;
pub mod identity;
pub mod packet;
pub mod peer;
pub mod probes;
pub mod process;
pub mod quantity;
pub mod text;
pub mod wish;
