//! The objects behind the handles and descriptors of the libraries. The functions return the status of
//! success, which is 0 in each library.

/// `CUBLAS_STATUS_SUCCESS`, `CUDNN_STATUS_SUCCESS`
const SUCCESS: u32 = 0;

/// Makes an object.
///
/// # Safety
/// `to` points at room for the address.
pub unsafe fn create<T>(to: *mut *mut T, object: T) -> u32 {
    // SAFETY: the caller promises it.
    unsafe { to.write(Box::into_raw(Box::new(object))) };
    SUCCESS
}

/// Ends an object.
///
/// # Safety
/// The object comes from [`create`], and the caller does not use the object afterwards.
pub unsafe fn destroy<T>(object: *mut T) -> u32 {
    // SAFETY: the caller promises it.
    drop(unsafe { Box::from_raw(object) });
    SUCCESS
}
