//! Calls that the driver makes to its own exported functions.
//!
//! A driver library that is not linked to its own symbols calls its exports by the dynamic linker,
//! which binds such calls to the hooks. The driver makes these calls in the middle of a call from a
//! hook. The outer hook can hold locks, and accounts for the whole call. So a hook that a thread
//! enters inside another hook only passes the call on.
//!
//! Look-ups, and kernel launches that go at once, take no lock. Such calls neither set nor read the
//! mark.

use std::cell::Cell;
use std::marker::PhantomData;
use std::mem;

thread_local! {
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Marks the thread as inside a hook until the drop of this value.
#[must_use = "dropped, it says that the thread has left the hook"]
pub struct Inside(PhantomData<*const ()>);

/// Marks the thread as inside a hook. Returns `None` if the thread is inside a hook already.
#[inline]
pub fn enter() -> Option<Inside> {
    let was_inside = IS_INSIDE.replace(true);
    // A value that is made and dropped here would remove the mark.
    if was_inside { None } else { Some(Inside(PhantomData)) }
}

/// Marks the thread as inside a hook for ever. The thread calls the driver only for the interposer.
pub fn stay() {
    mem::forget(enter());
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        IS_INSIDE.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_enters_a_hook_once_until_it_leaves_it() {
        let inside = enter();
        assert!(inside.is_some());
        assert!(enter().is_none() && enter().is_none(), "a refused entry leaves the mark");
        assert!(std::thread::spawn(|| enter().is_some()).join().unwrap());
        drop(inside);
        assert!(enter().is_some());
        assert!(enter().is_some());
        stay();
        assert!(enter().is_none());
    }
}
