//! Macros that read raw arguments and write results. Every use relies on the driver API's contract:
//! a pointer that is not NULL points at the object that the reference names.

/// Writes a result to the caller's pointer; refuses NULL.
macro_rules! give {
    ($to:expr, $value:expr) => {{
        let (to, value) = ($to, $value);
        if to.is_null() {
            return Err(crate::status::INVALID_VALUE);
        }
        // SAFETY: by the API's contract a non-NULL result pointer points at room for the result.
        unsafe { to.write(value) }
    }};
}

/// Writes a result to the caller's pointer, unless it is NULL.
macro_rules! give_if_wanted {
    ($to:expr, $value:expr) => {{
        let (to, value) = ($to, $value);
        if !to.is_null() {
            // SAFETY: by the API's contract a non-NULL result pointer points at room for the
            // result.
            unsafe { to.write(value) }
        }
    }};
}

/// Reads a value that the caller passes by pointer; refuses NULL.
macro_rules! read {
    ($from:expr) => {{
        let from = $from;
        if from.is_null() {
            return Err(crate::status::INVALID_VALUE);
        }
        // SAFETY: by the API's contract a non-NULL argument points at a value of its type.
        unsafe { from.read() }
    }};
}

/// Returns the elements of an array that the caller passes. Refuses NULL unless the array is empty.
macro_rules! slice {
    ($from:expr, $length:expr) => {{
        let (from, length) = ($from.cast_const(), $length as usize);
        if length == 0 {
            &[]
        } else if from.is_null() {
            return Err(crate::status::INVALID_VALUE);
        } else {
            // SAFETY: by the API's contract the array has as many elements as the caller says.
            unsafe { std::slice::from_raw_parts(from, length) }
        }
    }};
}

/// Returns the text of a C string; refuses NULL.
macro_rules! text {
    ($from:expr) => {{
        let from = $from;
        if from.is_null() {
            return Err(crate::status::INVALID_VALUE);
        }
        // SAFETY: by the API's contract a non-NULL name is a C string.
        unsafe { std::ffi::CStr::from_ptr(from) }.to_str().map_err(|_| crate::status::INVALID_VALUE)?
    }};
}

/// Declares driver functions. A body ends with success unless it returns an error before.
macro_rules! calls {
    ($($(#[$meta:meta])* $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        pub fn $name($($arg: $ty),*) -> crate::status::Result<()> {
            $body;
            Ok(())
        }
    )*};
}

/// Declares functions with two variants, one for each meaning of stream 0. The body knows its
/// variant by the name between bars.
macro_rules! for_both_default_streams {
    ($($legacy:ident / $per_thread:ident ($($arg:ident: $ty:ty),* $(,)?) |$default:ident| $body:block)*) => {$(
        pub fn $legacy($($arg: $ty),*) -> crate::status::Result<()> {
            let $default = crate::stream::DefaultStream::Legacy;
            $body
        }

        pub fn $per_thread($($arg: $ty),*) -> crate::status::Result<()> {
            let $default = crate::stream::DefaultStream::PerThread;
            $body
        }
    )*};
}
