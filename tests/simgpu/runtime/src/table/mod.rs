//! The runtime's API: its functions, types and error codes. `xtask` generates all modules except
//! `types` from NVIDIA's header.

use core::ffi::CStr;

/// Defines the error codes, and the function that returns their names.
macro_rules! codes {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        $(pub const $name: u32 = $value;)*

        /// Returns the name of an error code; `None` for a code that the header does not have.
        pub const fn name(code: u32) -> Option<&'static super::CStr> {
            match code {
                $($name => Some($text),)*
                _ => None,
            }
        }
    };
}

#[expect(
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    reason = "names are NVIDIA's, documented in its runtime API reference"
)]
pub mod constants;
#[expect(
    missing_docs,
    non_upper_case_globals,
    reason = "names are NVIDIA's, documented in its runtime API reference"
)]
pub mod errors;
#[macro_use]
mod functions;
pub mod types;

macro_rules! expand {
    ($({ symbol: $symbol:ident, args: ($($args:tt)*) })*) => {
        /// A function of the header.
        #[expect(non_camel_case_types, reason = "variants are symbols")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u16)]
        pub enum Function {
            $(#[doc = concat!("`", stringify!($symbol), "`")] $symbol,)*
        }

        impl Function {
            /// Returns the exported name.
            pub fn symbol(self) -> &'static str {
                match self {
                    $(Self::$symbol => stringify!($symbol),)*
                }
            }
        }
    };
}
for_each_function!(expand);

/// Defines [`function`]. The output of a macro cannot contain the token `$` before another token.
/// So the first step passes the token `$` to the second step.
macro_rules! function_macro {
    (($d:tt) $({ symbol: $symbol:ident, args: ($($args:tt)*) })*) => {
        /// Calls a macro with the arguments of one function:
        /// `function!(SYMBOL => [MACRO] MORE)` becomes `MACRO! { SYMBOL (name: type, …) MORE }`.
        macro_rules! function {
            $(($symbol => [$d($d callback:tt)+] $d($d more:tt)*) => {
                $d($d callback)+! { $symbol ($($args)*) $d($d more)* }
            };)*
        }
    };
    ($($row:tt)*) => { function_macro! { ($) $($row)* } };
}
for_each_function!(function_macro);
