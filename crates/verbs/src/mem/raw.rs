//! Registration of memory that stays the caller's: the one unsafe call of the public interface.
#![expect(unsafe_code, reason = "the caller vouches for the memory")]

use super::{Access, Backing, MemoryRegion};
use crate::error::Result;
use crate::pd::ProtectionDomain;

impl ProtectionDomain {
    /// Registers memory that stays the caller's. `iova` is the address of its first byte in the region's
    /// terms; `None`: `ptr` itself.
    ///
    /// # Safety
    /// `ptr..ptr+len` must be valid for reads (and, where `access` has a write or atomic right, for writes)
    /// by any thread until the region is deregistered and the last work request that uses it is
    /// completed; it may be accessed concurrently by this crate, so no reference may cover it in that time.
    /// If it is unmapped before, that is an access error of the request or stream that touches it.
    ///
    /// # Errors
    /// As [`ProtectionDomain::register`].
    pub unsafe fn register_raw(
        &self,
        ptr: *mut u8,
        len: usize,
        access: Access,
        iova: Option<u64>,
    ) -> Result<MemoryRegion> {
        self.0.device.check_fork()?;
        // SAFETY: the caller promises what the callee asks for.
        let backing = unsafe { Backing::raw(ptr, len) };
        MemoryRegion::register(&self.0.device.table, self.0.id, backing, access, iova)
    }
}
