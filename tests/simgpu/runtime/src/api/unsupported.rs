//! Default implementations of all functions of the API: each reports that it is not supported.
#![expect(dead_code, reason = "it holds the whole table, and what is implemented hides its part of it")]

use simgpu_driver::{Error, Result};

use super::Api;
use crate::table::types::*;
use crate::table::{Function, errors};

macro_rules! expand {
    ($({ symbol: $symbol:ident, args: ($($argument:ident: $type:ty),*) })*) => {
        /// All functions of the API.
        pub trait Unsupported {
            $(fn $symbol($(_: $type),*) -> Result<()> {
                refuse(Function::$symbol)
            })*
        }
    };
}
for_each_function!(expand);

impl Unsupported for Api {}

#[cold]
fn refuse(function: Function) -> Result<()> {
    simgpu_driver::unsupported(function.symbol());
    Err(Error(errors::cudaErrorNotSupported))
}
