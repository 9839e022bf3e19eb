//! Code that the daemon, the command and other parts share. This crate has no threads and no event
//! loop.
//!
//! | module | job |
//! |---|---|
//! | [`admin`] | the protocol of the admin socket, and the output of `deepres ps --json` |
//! | [`authority`] | the part of a wish that the daemon grants, and the rule for it |
//! | [`wish`] | the wishes: how deepres reads, shows and explains each |
//! | [`allocation`] | the parts of GPUs that a node's agent gave to containers |
//! | [`cdi`] | the document that brings devices into containers |
//! | [`config`] | the daemon's configuration file |
//! | [`probes`] | the findings of the probes, in the form in which deepres shows them |
//! | [`identity`] | how the daemon found a tenant |
//! | [`fitted`] | a fitted profile: the choice of `--sm auto`, and figures for operating points |
//! | [`mps`] | the MPS control daemon of a directory |
//! | [`profile`] | the file of a profile: the time of a program by part of the SMs and batch |
//! | [`quantity`] | shares, sizes and times in text |
//! | [`slurm`] | the GPUs that Slurm gave to a job |
//! | [`text`] | names, and text from other programs |
//! | [`directory`] | where the sockets are, and whether they can be trusted |
//! | [`packet`] | packets with descriptors over a socket |
//! | [`peer`] | the process at the other end of a socket |
//! | [`process`] | the identity of a process: no later process with the same id has it |
//! | [`clock`] | the only clock |

pub mod admin;
pub mod allocation;
pub mod authority;
pub mod cdi;
pub mod clock;
pub mod config;
pub mod directory;
pub mod fitted;
pub mod identity;
pub mod mps;
pub mod packet;
pub mod peer;
pub mod probes;
pub mod process;
pub mod profile;
pub mod quantity;
pub mod slurm;
pub mod text;
pub mod wish;
