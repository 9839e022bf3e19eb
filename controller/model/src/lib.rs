//! Code that the daemon, the command and other parts share. It has no threads and no event loop.
//!
//! | module | job |
//! |---|---|
//! | [`admin`] | the protocol of the admin socket, and the output of `deepres ps --json` |
//! | [`authority`] | which part of a wish is granted, and by which rule |
//! | [`wish`] | the wishes: how each is read, shown and explained |
//! | [`config`] | the daemon's configuration file |
//! | [`probes`] | the findings of the probes, as they are shown |
//! | [`identity`] | how a tenant was found |
//! | [`quantity`] | shares, sizes and times in text |
//! | [`text`] | names, and text from other programs |
//! | [`directory`] | where the sockets are, and whether they can be trusted |
//! | [`packet`] | packets with descriptors over a socket |
//! | [`peer`] | the process at the other end of a socket |
//! | [`process`] | the identity of a process, which a later process with the same id does not have
//! |
//! | [`clock`] | the only clock |

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
