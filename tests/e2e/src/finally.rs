//! The end of a test's threads, also if the test fails.

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets a flag when it is dropped. The threads of a test run until the flag is set. If the test
/// panics, the panic drops this value, the threads end, and the scope that waits for them passes
/// the panic on.
#[derive(Debug)]
#[must_use = "dropped, it sets the flag"]
pub struct Finally<'a>(pub &'a AtomicBool);

impl Drop for Finally<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{panic, thread};

    #[test]
    fn a_test_that_panics_ends_its_threads() {
        let is_over = AtomicBool::new(false);
        let test = panic::AssertUnwindSafe(|| {
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        thread::yield_now();
                    }
                });
                let _finally = Finally(&is_over);
                panic!("the test fails");
            });
        });
        assert!(panic::catch_unwind(test).is_err());
    }
}
