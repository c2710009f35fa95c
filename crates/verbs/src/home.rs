//! Whose objects are whose. A forked child inherits memory and descriptors, but neither the threads nor
//! the locks' owners: what the parent made is out of bounds there, and letting go of it must not touch
//! what the two share (sockets, epoll and event descriptors).

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Error, Result};
use crate::net::sys;

/// Counts the forks between the first process that used this crate and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

extern "C" fn forked() {
    GENERATION.fetch_add(1, Ordering::SeqCst);
}

/// The process that an object was made in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Home(u32);

impl Home {
    /// This process.
    pub(crate) fn here() -> Self {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| sys::at_fork_child(forked));
        Self(GENERATION.load(Ordering::SeqCst))
    }

    /// Whether the object was made in this process.
    #[inline]
    pub(crate) fn is_here(self) -> bool {
        self.0 == GENERATION.load(Ordering::Relaxed)
    }

    /// Refuses what a forked child must not do.
    ///
    /// # Errors
    /// [`Error::Forked`].
    #[inline]
    pub(crate) fn check(self) -> Result<()> {
        if self.is_here() { Ok(()) } else { Err(Error::Forked) }
    }
}
