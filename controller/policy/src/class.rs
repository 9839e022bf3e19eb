//! The class of a tenant: the kind of promise that the tenant is given. The wire protocol defines
//! the class's name and number.

pub use deepres_abi::class::{Class, ClassError};
