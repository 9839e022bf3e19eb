//! Default implementations of all functions of the API: each function reports that it is not
//! supported.
#![expect(dead_code, reason = "it holds the whole table, and what is implemented hides its part of it")]

use deepres_abi::driver::ApiId;

use super::Api;
use super::prelude::*;
use crate::edge;

macro_rules! expand {
    ($({
        id: $id:literal, symbol: $symbol:ident, family: $family:literal, since: $since:literal, stream: $stream:ident,
        errors: $errors:tt, args: ($($arg:ident: $ty:ty),*)
    })*) => {
        /// All functions of the API.
        pub trait Unsupported {
            $(fn $symbol($(_: $ty),*) -> Result<()> {
                edge::unsupported(ApiId::$symbol)
            })*
        }
    };
}
deepres_abi::for_each_driver_function!(expand);

impl Unsupported for Api {}
