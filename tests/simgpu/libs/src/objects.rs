//! The objects behind the handles and descriptors of the libraries, and the status of their
//! functions.

/// The status of success: `CUBLAS_STATUS_SUCCESS`, `CUDNN_STATUS_SUCCESS` or `ncclSuccess`.
pub const SUCCESS: u32 = 0;

/// The status that the body of an exported function gives.
pub trait Status {
    /// Returns the status as a number.
    fn number(self) -> u32;
}

impl Status for u32 {
    fn number(self) -> u32 {
        self
    }
}

impl Status for () {
    fn number(self) -> u32 {
        SUCCESS
    }
}

/// Makes an object.
///
/// # Safety
/// `to` points at room for the address.
pub unsafe fn create<T>(to: *mut *mut T, object: T) {
    // SAFETY: the caller promises it.
    unsafe { to.write(Box::into_raw(Box::new(object))) };
}

/// Ends an object.
///
/// # Safety
/// The object comes from [`create`], and the caller does not use the object afterwards.
pub unsafe fn destroy<T>(object: *mut T) {
    // SAFETY: the caller promises it.
    drop(unsafe { Box::from_raw(object) });
}
