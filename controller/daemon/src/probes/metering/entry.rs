//! The driver's functions that metering from outside counts, and their kinds.

use deepres_abi::driver::{ApiId, by_symbol};
use deepres_abi::probe::cookie;

/// The kind of a counted function, by which the status adds up the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Launches a kernel.
    Launch,
    /// Launches a graph.
    Graph,
    /// Asks for device memory.
    Allocation,
    /// Gives device memory back.
    Free,
}

/// The function that every program calls before any other function of the driver.
const BEGINNING: &str = "cuInit";
/// The first version of CUDA with 64-bit sizes.
const WIDE_SIZES: u32 = 3020;
/// The counted functions: the name without version and variant, the kind, and whether the second
/// argument is an amount of bytes.
const COUNTED: [(&str, Kind, bool); 22] = [
    ("cuArray3DCreate", Kind::Allocation, false),
    ("cuArrayCreate", Kind::Allocation, false),
    ("cuArrayDestroy", Kind::Free, false),
    ("cuGraphLaunch", Kind::Graph, false),
    ("cuLaunch", Kind::Launch, false),
    ("cuLaunchCooperativeKernel", Kind::Launch, false),
    ("cuLaunchCooperativeKernelMultiDevice", Kind::Launch, false),
    ("cuLaunchGrid", Kind::Launch, false),
    ("cuLaunchGridAsync", Kind::Launch, false),
    ("cuLaunchKernel", Kind::Launch, false),
    ("cuLaunchKernelEx", Kind::Launch, false),
    ("cuMemAlloc", Kind::Allocation, true),
    ("cuMemAllocAsync", Kind::Allocation, true),
    ("cuMemAllocFromPoolAsync", Kind::Allocation, true),
    ("cuMemAllocManaged", Kind::Allocation, true),
    ("cuMemAllocPitch", Kind::Allocation, false),
    ("cuMemCreate", Kind::Allocation, true),
    ("cuMemFree", Kind::Free, false),
    ("cuMemFreeAsync", Kind::Free, false),
    ("cuMemRelease", Kind::Free, false),
    ("cuMipmappedArrayCreate", Kind::Allocation, false),
    ("cuMipmappedArrayDestroy", Kind::Free, false),
];

fn rule(function: ApiId) -> Option<(Kind, bool)> {
    let at = COUNTED.binary_search_by_key(&function.family(), |(family, ..)| family).ok()?;
    let (_, kind, is_sized) = COUNTED[at];
    Some((kind, is_sized && function.since() >= WIDE_SIZES))
}

/// Returns the cookie of the probe at this symbol; `None` if metering does not probe the function.
pub fn cookie_of(symbol: &[u8]) -> Option<u64> {
    let function = by_symbol(symbol)?;
    if function.symbol() == BEGINNING {
        return Some(cookie::telling(function as u16));
    }
    rule(function).map(|(_, is_sized)| cookie::counted(function as u16, is_sized))
}

/// Returns the name and the kind of the function with this number; `None` if metering does not
/// count the function.
pub fn of(entry: u32) -> Option<(&'static str, Kind)> {
    let function = ApiId::from_index(entry as usize)?;
    Some((function.symbol(), rule(function)?.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_and_allocations_are_counted_in_every_variant() {
        assert!(COUNTED.is_sorted_by_key(|(family, ..)| *family));
        let carried = |symbol: &str| cookie_of(symbol.as_bytes());
        for symbol in ["cuLaunchKernel", "cuLaunchKernel_ptsz", "cuLaunchKernelEx_ptsz", "cuMemFree_v2"] {
            let carried = carried(symbol).unwrap();
            assert!(!cookie::tells(carried));
            assert_eq!(of(cookie::entry(carried)).unwrap().0, symbol);
        }
        assert!(cookie::is_sized(carried("cuMemAlloc_v2").unwrap()));
        assert!(!cookie::is_sized(carried("cuMemAlloc").unwrap()), "its size has 32 bits");
        assert!(cookie::tells(carried("cuInit").unwrap()));
        assert_eq!((carried("cuMemcpyHtoD_v2"), carried("malloc"), carried("")), (None, None, None));
        for (family, ..) in COUNTED {
            assert!(deepres_abi::driver::is_family(family.as_bytes()), "{family}");
        }
    }

    #[test]
    fn a_number_of_no_counted_function_has_no_name() {
        assert_eq!(of(u32::MAX), None);
        assert_eq!(of(cookie::entry(cookie_of(b"cuInit").unwrap())), None);
    }
}
