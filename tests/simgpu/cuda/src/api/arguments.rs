//! How raw arguments are read and answers written. The contract behind every use is the driver API's own: a pointer that is not NULL
//! points at what the reference says it points at.

/// Writes an answer where the caller wants it; NULL is refused.
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

/// Writes an answer where the caller may want it.
macro_rules! give_if_wanted {
    ($to:expr, $value:expr) => {{
        let (to, value) = ($to, $value);
        if !to.is_null() {
            // SAFETY: by the API's contract a non-NULL result pointer points at room for the result.
            unsafe { to.write(value) }
        }
    }};
}

/// Reads a value that the caller passes by pointer; NULL is refused.
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

/// The elements of an array that the caller passes; NULL is refused unless it is empty.
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

/// The bytes of a C string; NULL is refused.
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

/// Functions that come in two variants, one per meaning of stream 0. The body sees the variant under the name between bars.
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
