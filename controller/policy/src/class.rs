//! The class of a tenant: the kind of promise that the daemon gives the tenant. The wire protocol
//! defines the name and number of each class.

pub use deepres_abi::class::{Class, ClassError};
