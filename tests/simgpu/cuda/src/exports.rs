//! Every function of the driver API under its exported name, expanded from the table of the API.
#![expect(
    clippy::missing_safety_doc,
    reason = "names, arguments and contracts are NVIDIA's, documented in its driver API reference"
)]

use deepres_abi::driver::types::*;
use deepres_abi::driver::{ApiId, CUresult};

use crate::api::Api;
use crate::api::unsupported::Unsupported as _;
use crate::{edge, status};

macro_rules! expand {
    ($({
        id: $id:literal, symbol: $symbol:ident, family: $family:literal, since: $since:literal, stream: $stream:ident,
        errors: $errors:tt, args: ($($arg:ident: $ty:ty),*)
    })*) => {
        $(
            #[doc = concat!("`", stringify!($symbol), "` of the driver API.")]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol($($arg: $ty),*) -> CUresult {
                let entered = edge::enter::<
                    { edge::needs_initialisation(ApiId::$symbol) },
                    { edge::waits_for_unlock(ApiId::$symbol) },
                >(stringify!($symbol));
                let call = || {
                    let _call = edge::begin::<{ edge::waits_for_unlock(ApiId::$symbol) }>();
                    Api::$symbol($($arg),*)
                };
                let end = || edge::end::<{ edge::needs_initialisation(ApiId::$symbol) }>();
                let done = entered.and_then(|()| call()).and_then(|()| end());
                edge::leave(stringify!($symbol));
                match done {
                    Ok(()) => status::SUCCESS,
                    Err(code) => code.0,
                }
            }
        )*

        /// Returns the address of a function by its id.
        pub(crate) fn address(id: ApiId) -> *const () {
            match id {
                $(ApiId::$symbol => $symbol as *const (),)*
            }
        }
    };
}
deepres_abi::for_each_driver_function!(expand);
