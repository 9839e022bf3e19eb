//! A `libcuda.so.1` with every function of the table. The armed function records its arguments and
//! returns the code it was armed with. All other functions succeed, and those that deepres calls by
//! itself give an answer.
//!
//! There is one device. `STUB_DRIVER_UUID` (32 hexadecimal digits) sets its UUID.

mod record;

use std::sync::{Mutex, PoisonError};

use deepres_abi::driver::ApiId;
use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::driver::types::*;

use record::Record;

/// The code that one function must return, and the record of its calls.
struct Armed {
    id: u32,
    code: CUresult,
    record: Record,
}

static ARMED: Mutex<Armed> = Mutex::new(Armed { id: u32::MAX, code: CUDA_SUCCESS, record: Record::EMPTY });
/// Target of all handles. No code reads it.
static SOMETHING: u8 = 0;

/// Arms the function of this id, which returns `code` from now on.
#[unsafe(no_mangle)]
pub extern "C" fn recording_arm(id: u32, code: CUresult) {
    let mut armed = ARMED.lock().unwrap_or_else(PoisonError::into_inner);
    *armed = Armed { id, code, record: Record::EMPTY };
}

/// Writes the record of the armed function's calls.
///
/// # Safety
/// `to` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recording_read(to: *mut Record) {
    let armed = ARMED.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the caller promises that `to` is valid for a write.
    unsafe { to.write(armed.record) };
}

/// Records the call if this function is the armed one, and returns its code then.
fn note(id: ApiId, arguments: impl FnOnce(&mut Record)) -> Option<CUresult> {
    let mut armed = ARMED.lock().unwrap_or_else(PoisonError::into_inner);
    if armed.id != id as u32 {
        return None;
    }
    armed.record.calls += 1;
    armed.record.length = 0;
    arguments(&mut armed.record);
    Some(armed.code)
}

/// Gives the answers to functions that deepres calls by itself.
///
/// # Safety
/// `first` and `second` are the first two arguments of the function, whose pointers are valid.
unsafe fn serve(id: ApiId, first: u64, second: u64) {
    let handle = (&raw const SOMETHING) as u64;
    // SAFETY: the caller promises valid pointers, and the types are those of the functions.
    unsafe {
        match id {
            ApiId::cuDeviceGetCount => *(first as *mut i32) = 1,
            ApiId::cuCtxGetDevice => *(first as *mut i32) = 0,
            ApiId::cuDeviceGetUuid | ApiId::cuDeviceGetUuid_v2 => *(first as *mut [u8; 16]) = uuid(),
            ApiId::cuCtxGetCurrent | ApiId::cuEventCreate | ApiId::cuCtxFromGreenCtx => {
                *(first as *mut u64) = handle;
            }
            ApiId::cuStreamGetCtx => *(second as *mut u64) = handle,
            _ => {}
        }
    }
}

fn uuid() -> [u8; 16] {
    let digits = std::env::var("STUB_DRIVER_UUID").unwrap_or_default();
    u128::from_str_radix(&digits, 16).unwrap_or_default().to_be_bytes()
}

/// Returns the first bytes of an argument as a number.
fn word<T>(argument: &T) -> u64 {
    let mut word = 0_u64;
    let bytes = size_of::<T>().min(size_of::<u64>());
    // SAFETY: both values have at least `bytes` bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(
            std::ptr::from_ref(argument).cast::<u8>(),
            (&raw mut word).cast(),
            bytes,
        );
    }
    word
}

macro_rules! expand {
    ($({ id: $id:literal, symbol: $symbol:ident, family: $family:literal, since: $since:literal, stream: $stream:ident, errors: $errors:tt, args: ($($argument:ident: $ty:ty),*) })*) => {
        $(
            /// Records its arguments if it is armed, and otherwise succeeds.
            ///
            /// # Safety
            /// Pointers are valid, as the driver API demands.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol($($argument: $ty),*) -> CUresult {
                if let Some(code) = note(ApiId::$symbol, |_record| { $(_record.add(&$argument);)* }) {
                    return code;
                }
                let words: &[u64] = &[$(word(&$argument),)* 0, 0];
                // SAFETY: the caller's arguments, under the same contract.
                unsafe { serve(ApiId::$symbol, words[0], words[1]) };
                CUDA_SUCCESS
            }
        )*
    };
}
deepres_abi::for_each_driver_function!(expand);
