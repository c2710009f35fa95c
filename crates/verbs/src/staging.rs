//! Receive buffers, shared by all queue pairs: an idle one has none.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

/// Bytes of a staging buffer: two of the longest FPDUs and then some, and still in the cache.
pub(crate) const STAGING: usize = 256 * 1024;

/// Buffers kept for reuse by a device.
const KEPT: usize = 8;

thread_local! {
    /// The buffer that this thread used last: most threads need one, again and again.
    static SPARE: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// The pool.
#[derive(Debug, Default)]
pub(crate) struct Pool(Mutex<Vec<Box<[u8]>>>);

impl Pool {
    pub(crate) fn take(&self) -> Box<[u8]> {
        let spare = SPARE.try_with(Cell::take).ok().flatten();
        spare
            .or_else(|| self.0.lock().unwrap_or_else(PoisonError::into_inner).pop())
            .unwrap_or_else(|| vec![0; STAGING].into_boxed_slice())
    }

    pub(crate) fn put(&self, buffer: Box<[u8]>) {
        let Ok(Some(other)) = SPARE.try_with(|spare| spare.replace(Some(buffer))) else { return };
        let mut pool = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.len() < KEPT {
            pool.push(other);
        }
    }
}
