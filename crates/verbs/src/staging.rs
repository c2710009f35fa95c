//! Receive buffers, shared by all queue pairs: an idle one has none.

use std::sync::{Mutex, PoisonError};

/// Bytes of a staging buffer: two of the longest FPDUs and then some, and still in the cache.
pub(crate) const STAGING: usize = 256 * 1024;

/// Buffers kept for reuse.
const KEPT: usize = 8;

/// The pool.
#[derive(Debug, Default)]
pub(crate) struct Pool(Mutex<Vec<Box<[u8]>>>);

impl Pool {
    pub(crate) fn take(&self) -> Box<[u8]> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.unwrap_or_else(|| vec![0; STAGING].into_boxed_slice())
    }

    pub(crate) fn put(&self, buffer: Box<[u8]>) {
        let mut pool = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.len() < KEPT {
            pool.push(buffer);
        }
    }
}
