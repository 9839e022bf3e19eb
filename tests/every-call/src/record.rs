//! What a call's arguments were, as bytes: written by the driver and by the client, and compared.

/// Room for the arguments of any function.
const BYTES: usize = 1024;

/// The armed function's last call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Record {
    /// How often it was called since it was armed.
    pub calls: u32,
    /// How many of `bytes` are used.
    pub length: u32,
    bytes: [u8; BYTES],
}

impl Record {
    /// No call yet.
    pub const EMPTY: Self = Self { calls: 0, length: 0, bytes: [0; BYTES] };

    /// Adds an argument.
    pub fn add<T>(&mut self, argument: &T) {
        let (from, at) = (self.length as usize, size_of::<T>());
        assert!(from + at <= BYTES, "a function with more arguments than there is room for");
        // SAFETY: both have room for as many bytes, and arguments are plain data.
        unsafe {
            std::ptr::copy_nonoverlapping(
                std::ptr::from_ref(argument).cast::<u8>(),
                self.bytes.as_mut_ptr().add(from),
                at,
            );
        }
        self.length += at as u32;
    }

    /// The arguments one after another.
    pub fn arguments(&self) -> &[u8] {
        &self.bytes[..self.length as usize]
    }
}
