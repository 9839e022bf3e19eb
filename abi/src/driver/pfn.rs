//! For each driver function, the type of a pointer to it, under the function's exported name.
#![expect(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    reason = "names are NVIDIA's, documented in its driver API reference"
)]

use super::types::*;

macro_rules! expand {
    ($({ id: $id:literal, symbol: $symbol:ident, family: $family:literal, since: $since:literal, stream: $stream:ident, errors: $errors:tt, args: ($($args:tt)*) })*) => {
        $(pub type $symbol = unsafe extern "C" fn($($args)*) -> CUresult;)*
    };
}
crate::for_each_driver_function!(expand);
