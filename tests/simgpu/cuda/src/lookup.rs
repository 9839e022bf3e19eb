//! cuGetProcAddress: the choice of a function's variant by name, version and flags.
use deepres_abi::driver::{self, types as cu};

use crate::exports;
use crate::status::{self, Result};

/// Result of a look-up: the address, or the reason of the failure
/// (`CUdriverProcAddressQueryResult`).
pub type Outcome = std::result::Result<*const (), u32>;

/// Looks up a name as the driver does.
pub fn look_up(name: &[u8], version: i32, flags: u64) -> Result<Outcome> {
    let known =
        u64::from(cu::CU_GET_PROC_ADDRESS_LEGACY_STREAM | cu::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    status::refuse(flags & !known != 0 || flags == known)?;
    let per_thread = flags & u64::from(cu::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    let version = u32::try_from(version).map_err(|_| status::INVALID_VALUE)?;
    Ok(match driver::resolve(name, version, per_thread) {
        Some(id) => Ok(exports::address(id)),
        None if driver::is_family(name) => Err(cu::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT),
        None => Err(cu::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_abi::driver::ApiId;

    fn found(name: &str, version: i32, flags: u64) -> Outcome {
        look_up(name.as_bytes(), version, flags).unwrap()
    }

    #[test]
    fn a_look_up_gives_the_exported_address_of_the_right_variant() {
        assert_eq!(found("cuMemAlloc", 13000, 0), Ok(exports::address(ApiId::cuMemAlloc_v2)));
        assert_eq!(found("cuLaunchKernel", 13000, 2), Ok(exports::address(ApiId::cuLaunchKernel_ptsz)));
        assert_eq!(found("cuLaunchKernel", 13000, 1), Ok(exports::address(ApiId::cuLaunchKernel)));
    }

    #[test]
    fn a_miss_says_whether_the_name_or_the_version_is_wrong() {
        assert_eq!(found("cuNoSuchThing", 13000, 0), Err(cu::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND));
        assert_eq!(found("", 0, 0), Err(cu::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND));
        assert_eq!(found("cuLaunchKernelEx", 11000, 0), Err(cu::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT));
        assert_eq!(look_up(b"cuInit", 13000, 3), Err(status::INVALID_VALUE));
    }
}
