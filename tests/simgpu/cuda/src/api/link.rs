//! The linker, which only checks whether its input is code. It reads PTX and cubins and links
//! nothing.
use std::ffi::{c_char, c_void};
use std::sync::Arc;

use deepres_abi::driver::types::*;

use crate::context;
use crate::handle::{Kind, Table};
use crate::image;
use crate::status;

/// A linker. It keeps none of its input.
struct Link(usize);

static LINKS: Table<Link> = Table::new(Kind::Link);

calls! {
    cuLinkCreate_v2(
        _numOptions: u32, _options: *mut CUjit_option, _optionValues: *mut *mut c_void,
        stateOut: *mut CUlinkState
    ) {
        context::current()?;
        let link = LINKS.insert_with(|handle| Arc::new(Link(handle))).ok_or(status::OUT_OF_MEMORY)?;
        give!(stateOut, link.0 as CUlinkState);
    }
    cuLinkAddData_v2(
        state: CUlinkState, r#type: CUjitInputType, data: *mut c_void, size: usize, _name: *const c_char,
        _numOptions: u32, _options: *mut CUjit_option, _optionValues: *mut *mut c_void
    ) {
        LINKS.get(state as usize).ok_or(status::INVALID_HANDLE)?;
        if !matches!(r#type, CU_JIT_INPUT_PTX | CU_JIT_INPUT_CUBIN) {
            return Err(status::NOT_SUPPORTED);
        }
        let bytes: &[u8] = slice!(data.cast::<u8>(), size);
        image::load_bytes(bytes, super::module::architecture()).map(drop)?;
    }
    cuLinkDestroy(state: CUlinkState) {
        LINKS.remove(state as usize).map(drop).ok_or(status::INVALID_HANDLE)?;
    }
}
