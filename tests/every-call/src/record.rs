//! The arguments of a call as bytes. The driver and the client both write such a record, and the
//! client compares the two.

/// Room for the arguments of any function, bytes.
const BYTES: usize = 1024;

/// Record of the armed function's last call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Record {
    /// Number of calls since the function was armed.
    pub calls: u32,
    /// Number of used bytes in `bytes`.
    pub length: u32,
    bytes: [u8; BYTES],
}

impl Record {
    /// Record without a call.
    pub const EMPTY: Self = Self { calls: 0, length: 0, bytes: [0; BYTES] };

    /// Adds an argument.
    pub fn add<T>(&mut self, argument: &T) {
        let (from, at) = (self.length as usize, size_of::<T>());
        assert!(from + at <= BYTES, "a function with more arguments than there is room for");
        // SAFETY: the assertion ensures that `bytes` has room for the argument. Arguments are plain
        // data.
        unsafe {
            std::ptr::copy_nonoverlapping(
                std::ptr::from_ref(argument).cast::<u8>(),
                self.bytes.as_mut_ptr().add(from),
                at,
            );
        }
        self.length += at as u32;
    }

    /// Returns the arguments one after another.
    pub fn arguments(&self) -> &[u8] {
        &self.bytes[..self.length as usize]
    }
}
