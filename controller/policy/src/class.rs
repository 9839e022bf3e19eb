//! The class of a tenant: what kind of promise it is given. The word and its number are the wire's.

pub use deepres_abi::class::{Class, ClassError};
