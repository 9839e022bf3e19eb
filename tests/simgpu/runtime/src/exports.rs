//! Every function of the runtime's header under its exported name, expanded from the table.
#![expect(
    non_snake_case,
    clippy::missing_safety_doc,
    reason = "names, arguments and contracts are NVIDIA's, documented in its runtime API reference"
)]

use crate::api::Api;
use crate::api::unsupported::Unsupported as _;
use crate::edge;
use crate::table::Function;
use crate::table::types::*;

macro_rules! expand {
    ($({ symbol: $symbol:ident, args: ($($argument:ident: $type:ty),*) })*) => {
        $(
            #[doc = concat!("`", stringify!($symbol), "` of the runtime's API.")]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol($($argument: $type),*) -> u32 {
                edge::answer::<{ edge::needs_context(Function::$symbol) }>(
                    Function::$symbol,
                    || Api::$symbol($($argument),*),
                )
            }
        )*
    };
}
for_each_function!(expand);
