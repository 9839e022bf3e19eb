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

/// Declares driver functions. The table of the API gives the types of their arguments. Functions
/// whose names stand between bars share their arguments and their body. A body ends with success
/// unless it returns an error before. Stream 0 is the legacy stream in some functions and the
/// thread's own stream in others. A body reads its function's meaning from the name between bars
/// behind the arguments.
macro_rules! calls {
    ($($($name:ident)|+ ($($argument:ident),*) $(|$default:ident|)? $body:block)*) => {
        $(calls! { @named [$($name)+] ($($argument),*) [$($default)?] $body })*
    };
    (@named [$($name:ident)+] $arguments:tt $default:tt $body:block) => {
        $(deepres_abi::driver_function! { $name => [define_call] $arguments $default $body })+
    };
}

/// Defines one function of [`calls`], from its row of the table.
macro_rules! define_call {
    (
        $symbol:ident $stream:ident ($($name:ident: $type:ty),*)
        ($($argument:ident),*) [$($default:ident)?] $body:block
    ) => {
        impl crate::api::Api {
            pub fn $symbol($($argument: $type),*) -> crate::status::Result<()> {
                $(let $default = crate::stream::DefaultStream::$stream;)?
                $body;
                Ok(())
            }
        }
    };
}
