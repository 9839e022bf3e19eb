//! The controller of deepres: who shares which GPU, and the commands to start, watch and change it.
//!
//! | module | job |
//! |---|---|
//! | [`policy`] | pure decisions: shares, leases |
//! | [`arbiter`] | one thread for each GPU that carries them out |
//! | [`authority`] | what of a request is granted, and why |
//! | [`identity`] | which tenant a process belongs to |
//! | [`daemon`] | sockets, tenants and their processes, GPUs |
//! | [`admin`] | the language of the admin socket |
//! | [`config`] | the daemon's configuration file |
//! | [`doctor`] | what deepres needs of a machine |
//! | [`probes`] | the kernel programs, and who uses a GPU without being a tenant |
//! | [`trace`] | ioctls of the GPU's devices, by name |

pub mod admin;
pub mod arbiter;
pub mod authority;
pub mod clock;
pub mod config;
pub mod daemon;
pub mod directory;
pub mod doctor;
pub mod identity;
pub mod lines;
pub mod packet;
pub mod policy;
pub mod probes;
pub mod process;
pub mod quantity;
pub mod shm;
pub mod text;
pub mod trace;
