//! Macros that define functions, read raw arguments and write results. Every use relies on the
//! contract of the runtime's API: a pointer that is not NULL points at the object that the
//! reference names.

/// Writes a result to the caller's pointer; refuses NULL.
macro_rules! give {
    ($to:expr, $value:expr) => {{
        let (to, value) = ($to, $value);
        crate::edge::refuse(to.is_null())?;
        // SAFETY: by the API's contract a non-NULL result pointer points at room for the result.
        unsafe { to.write(value) }
    }};
}

/// Reads a value that the caller passes by pointer; refuses NULL.
macro_rules! read {
    ($from:expr) => {{
        let from = $from;
        crate::edge::refuse(from.is_null())?;
        // SAFETY: by the API's contract a non-NULL argument points at a value of its type.
        unsafe { from.read() }
    }};
}

/// Declares functions of the runtime. The table of the API gives the types of their arguments. A
/// body ends with success unless it returns an error before.
macro_rules! calls {
    ($($name:ident ($($argument:ident),*) $body:block)*) => {
        $(function! { $name => [define_call] ($($argument),*) $body })*
    };
}

/// Defines one function of [`calls`], from its row of the table.
macro_rules! define_call {
    ($symbol:ident ($($name:ident: $type:ty),*) ($($argument:ident),*) $body:block) => {
        impl crate::api::Api {
            pub fn $symbol($($argument: $type),*) -> simgpu_driver::Result<()> {
                $body;
                Ok(())
            }
        }
    };
}

/// Declares functions that pass all their arguments on to a function of the driver.
macro_rules! forwards {
    ($($name:ident => $driver:ident;)*) => {
        $(function! { $name => [define_forward] $driver })*
    };
}

/// Defines one function of [`forwards`], from its row of the table.
macro_rules! define_forward {
    ($symbol:ident ($($argument:ident: $type:ty),*) $driver:ident) => {
        impl crate::api::Api {
            pub fn $symbol($($argument: $type),*) -> simgpu_driver::Result<()> {
                simgpu_driver::driver!($driver($($argument as _),*));
                Ok(())
            }
        }
    };
}
