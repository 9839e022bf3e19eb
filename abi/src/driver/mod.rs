//! NVIDIA's driver API: one table of each exported function, and the types and look-ups that follow
//! from the table.
//!
//! `for_each_driver_function!` passes the table to another macro. From the table, this module makes
//! the enumeration [`ApiId`] and the function pointer types in [`pfn`]. The module also has the two
//! functions that look a driver function up: [`by_symbol`] (as `dlsym` does) and [`resolve`] (as
//! `cuGetProcAddress` does). [`driver_function`](crate::driver_function) passes one row of the
//! table to another macro.

/// Defines the result codes, and the function that returns their names.
macro_rules! codes {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        $(pub const $name: CUresult = $value;)*

        /// Returns the name of a result code; `None` for a code that the headers do not have.
        #[must_use]
        pub const fn name(code: CUresult) -> Option<&'static CStr> {
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
    reason = "names are NVIDIA's, documented in its driver API reference"
)]
pub mod constants;
mod functions;
mod needed;
pub mod pfn;
#[expect(missing_docs, reason = "names are NVIDIA's, documented in its driver API reference")]
pub mod result;
pub mod types;

pub use self::needed::NEEDED;
pub use self::result::CUresult;

/// The default stream that a function uses for stream 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// The function has only one form, for both default streams.
    Any,
    /// The legacy default stream. The function also has a per-thread form.
    Legacy,
    /// The calling thread's default stream (`_ptds`, `_ptsz`).
    PerThread,
}

/// The table's entry for one function.
struct Row {
    symbol: &'static str,
    family: &'static str,
    since: u32,
    stream: StreamKind,
}

macro_rules! expand {
    ($({ id: $id:literal, symbol: $symbol:ident, family: $family:literal, since: $since:literal, stream: $stream:ident, errors: $errors:tt, args: ($($args:tt)*) })*) => {
        /// A function that the driver exports, in one variant. Ids follow the order of the symbols,
        /// and are valid for one version of the table. So only processes of one deepres build may
        /// exchange ids.
        #[expect(non_camel_case_types, reason = "variants are symbols")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum ApiId {
            $(#[doc = concat!("`", stringify!($symbol), "`")] $symbol = $id,)*
        }

        impl ApiId {
            /// All functions, sorted by symbol: `ALL[id as usize] == id`.
            pub const ALL: [ApiId; 0 $(+ { let _ = $id; 1 })*] = [$(ApiId::$symbol,)*];
        }

        /// The rows of the table, by id.
        static ROWS: [Row; ApiId::COUNT] = [
            $(Row { symbol: stringify!($symbol), family: $family, since: $since, stream: StreamKind::$stream },)*
        ];

        /// The errors that the reference of each function names. The errors are apart from the
        /// rows, so that the interposer does not contain the errors.
        static ERRORS: [&[CUresult]; ApiId::COUNT] = [$(&$errors),*];
    };
}
crate::for_each_driver_function!(expand);

/// Defines [`driver_function`](crate::driver_function). The output of a macro cannot contain the
/// token `$` before another token. So the first step passes the token `$` to the second step.
macro_rules! function_macro {
    (($d:tt) $({ id: $id:literal, symbol: $symbol:ident, family: $family:literal, since: $since:literal, stream: $stream:ident, errors: $errors:tt, args: ($($args:tt)*) })*) => {
        /// Calls a macro with the table's row of one function:
        /// `driver_function!(SYMBOL => [MACRO] MORE)` becomes
        /// `MACRO! { SYMBOL Any|Legacy|PerThread (name: type, …) MORE }`.
        ///
        /// The types are from `driver::types`, and must be in the caller's scope.
        #[macro_export]
        macro_rules! driver_function {
            $(($symbol => [$d($d callback:tt)+] $d($d more:tt)*) => {
                $d($d callback)+! { $symbol $stream ($($args)*) $d($d more)* }
            };)*
        }
    };
    ($($row:tt)*) => { function_macro! { ($) $($row)* } };
}
crate::for_each_driver_function!(function_macro);

/// A hash of the table. If the hashes of two builds of deepres are equal, an [`ApiId`] names the
/// same function in both.
pub const TABLE_HASH: u64 = {
    // FNV-1a over the symbols, each followed by an end mark.
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let (mut hash, mut row) = (OFFSET, 0);
    while row < ROWS.len() {
        let symbol = ROWS[row].symbol.as_bytes();
        let mut at = 0;
        while at < symbol.len() {
            hash = (hash ^ symbol[at] as u64).wrapping_mul(PRIME);
            at += 1;
        }
        hash = hash.wrapping_mul(PRIME);
        row += 1;
    }
    hash
};

impl ApiId {
    /// The number of functions. Every id is below this number.
    pub const COUNT: usize = Self::ALL.len();

    /// Returns the function with this id, or `None` if no function has the id.
    #[must_use]
    pub fn from_index(id: usize) -> Option<Self> {
        Self::ALL.get(id).copied()
    }

    /// Returns the exported name, for example `cuMemcpyHtoDAsync_v2_ptsz`.
    #[must_use]
    pub fn symbol(self) -> &'static str {
        self.row().symbol
    }

    /// Returns the name for `cuGetProcAddress`, for example `cuMemcpyHtoDAsync`.
    #[must_use]
    pub fn family(self) -> &'static str {
        self.row().family
    }

    /// Returns the version of CUDA that introduced this variant: 1000 × major + 10 × minor.
    #[must_use]
    pub fn since(self) -> u32 {
        self.row().since
    }

    /// Returns the default stream that this function uses for stream 0.
    #[must_use]
    pub fn stream_kind(self) -> StreamKind {
        self.row().stream
    }

    /// Returns the errors that NVIDIA's reference lists for the function, in the order of their
    /// codes.
    #[must_use]
    pub fn documented_errors(self) -> &'static [CUresult] {
        ERRORS[self as usize]
    }

    fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }
}

/// Returns the function that the driver exports as `symbol` (without a terminating NUL), or `None`
/// if the driver exports no such function.
#[must_use]
pub fn by_symbol(symbol: &[u8]) -> Option<ApiId> {
    if !symbol.starts_with(b"cu") {
        return None;
    }
    let found = ROWS.binary_search_by(|row| row.symbol.as_bytes().cmp(symbol)).ok()?;
    ApiId::from_index(found)
}

/// Returns the answer of `cuGetProcAddress` for `family` (without a terminating NUL): the newest
/// variant that is no newer than `version`.
///
/// With `per_thread` (`CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`), returns the newest
/// per-thread variant. If there is none, returns the newest legacy variant.
///
/// Returns `None` if no family has this name, or if all variants are newer. [`is_family`]
/// distinguishes the two cases.
#[must_use]
pub fn resolve(family: &[u8], version: u32, per_thread: bool) -> Option<ApiId> {
    resolve_among(family, version, per_thread, |_| true)
}

/// Returns the answer of `cuGetProcAddress` as [`resolve`] does, for a driver that has only the
/// variants for which `has` returns true.
#[must_use]
pub fn resolve_among(
    family: &[u8],
    version: u32,
    per_thread: bool,
    has: impl Fn(ApiId) -> bool,
) -> Option<ApiId> {
    let variants = variants(family);
    let newest = |wanted: fn(StreamKind) -> bool| {
        variants.clone().rev().find(|id| id.since() <= version && wanted(id.stream_kind()) && has(*id))
    };
    let legacy = || newest(|stream| stream != StreamKind::PerThread);
    if per_thread { newest(|stream| stream == StreamKind::PerThread).or_else(legacy) } else { legacy() }
}

/// Returns whether `cuGetProcAddress` knows `name` in any version.
#[must_use]
pub fn is_family(name: &[u8]) -> bool {
    variants(name).len() != 0
}

/// Returns all variants of `family`: first the legacy variants, then the per-thread variants, each
/// from oldest to newest.
#[must_use]
pub fn variants(family: &[u8]) -> impl DoubleEndedIterator<Item = ApiId> + ExactSizeIterator + Clone {
    let family_of = |id: &u16| ROWS[usize::from(*id)].family.as_bytes();
    let ids = &functions::BY_FAMILY;
    let first = ids.partition_point(|id| family_of(id) < family);
    let count = ids[first..].iter().take_while(|id| family_of(id) == family).count();
    ids[first..first + count].iter().map(|id| ApiId::ALL[usize::from(*id)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_by_symbol_and_ids_are_their_places() {
        assert!(ROWS.is_sorted_by(|one, next| one.symbol < next.symbol));
        for (place, id) in ApiId::ALL.iter().enumerate() {
            assert_eq!(*id as usize, place);
            assert_eq!(by_symbol(id.symbol().as_bytes()), Some(*id));
        }
    }

    #[test]
    fn families_are_found_whole() {
        let total: usize =
            ApiId::ALL.iter().filter(|id| variants(id.family().as_bytes()).any(|v| v == **id)).count();
        assert_eq!(total, ApiId::COUNT);
        let launches: [ApiId; 2] = [ApiId::cuLaunchKernel, ApiId::cuLaunchKernel_ptsz];
        assert!(variants(b"cuLaunchKernel").eq(launches));
    }

    #[test]
    fn symbols_that_are_not_the_drivers_are_not_found() {
        for name in
            ["", "cu", "cublasCreate_v2", "cuMemAlloc_v3", "curl_easy_init", "cudnnCreate", "cuMemAlloc_v2 "]
        {
            assert_eq!(by_symbol(name.as_bytes()), None, "{name}");
        }
    }

    #[test]
    fn resolving_gives_the_newest_variant_that_the_version_knows() {
        let legacy = |name: &str, version| resolve(name.as_bytes(), version, false);
        assert_eq!(legacy("cuMemAlloc", 13000), Some(ApiId::cuMemAlloc_v2));
        assert_eq!(legacy("cuMemAlloc", 3020), Some(ApiId::cuMemAlloc_v2));
        assert_eq!(legacy("cuMemAlloc", 3010), Some(ApiId::cuMemAlloc));
        assert_eq!(legacy("cuMemAlloc", 1000), None);
        assert_eq!(legacy("cuMemAlloc_v2", 13000), None, "a symbol is not a family");
        assert_eq!(legacy("", 13000), None);
        assert_eq!(legacy("cuCtxCreate", 11040), Some(ApiId::cuCtxCreate_v3));
        assert_eq!(legacy("cuGetProcAddress", 12000), Some(ApiId::cuGetProcAddress_v2));
        assert_eq!(legacy("cuGetProcAddress", 11030), Some(ApiId::cuGetProcAddress));
    }

    #[test]
    fn per_thread_look_ups_fall_back_to_the_legacy_variant() {
        let per_thread = |name: &str, version| resolve(name.as_bytes(), version, true);
        assert_eq!(per_thread("cuMemcpyHtoDAsync", 13000), Some(ApiId::cuMemcpyHtoDAsync_v2_ptsz));
        assert_eq!(per_thread("cuMemcpyHtoDAsync", 6050), Some(ApiId::cuMemcpyHtoDAsync_v2));
        assert_eq!(per_thread("cuMemAlloc", 13000), Some(ApiId::cuMemAlloc_v2));
        assert_eq!(per_thread("cuStreamBeginCapture", 10000), Some(ApiId::cuStreamBeginCapture_ptsz));
    }

    #[test]
    fn documented_errors_are_those_of_the_family() {
        for id in [ApiId::cuMemAlloc, ApiId::cuMemAlloc_v2] {
            assert!(id.documented_errors().contains(&result::CUDA_ERROR_OUT_OF_MEMORY));
            assert!(!id.documented_errors().contains(&result::CUDA_SUCCESS));
        }
        let with_some = ApiId::ALL.into_iter().filter(|id| !id.documented_errors().is_empty()).count();
        assert!(with_some > ApiId::COUNT / 2, "{with_some} functions whose reference names errors");
    }

    #[test]
    fn result_codes_have_their_names() {
        assert_eq!(result::name(result::CUDA_ERROR_OUT_OF_MEMORY), Some(c"CUDA_ERROR_OUT_OF_MEMORY"));
        assert_eq!(result::CUDA_ERROR_OUT_OF_MEMORY, 2);
        assert_eq!(result::name(424_242), None);
    }
}
