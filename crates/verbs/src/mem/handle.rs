//! The application's hold on a memory region.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use iwarp::Stag;

use super::access::Access;
use super::buffer::Buffer;
use super::region::{Backing, Region};
use super::table::MemoryTable;
use crate::error::{DeregisterError, Result};
use crate::wr::{RemoteBuffer, Sge};

/// Registered memory.
///
/// Peers may read and change it at any time, as far as its [`Access`] lets them, so its bytes are reached by
/// copy or as atomics. Dropped, it is deregistered together with the windows and fast regions bound over it.
pub struct MemoryRegion {
    pub(super) region: Arc<Region>,
    pub(super) table: Arc<MemoryTable>,
    gone: bool,
}

impl MemoryRegion {
    /// Registers memory in a protection domain. `iova` is the address that peers and work requests use for
    /// its first byte; `None`: where it lies in this process. With [`Access::ZERO_BASED`] it is 0.
    pub(crate) fn register(
        table: &Arc<MemoryTable>,
        pd: u32,
        backing: Backing,
        access: Access,
        iova: Option<u64>,
    ) -> Result<Self> {
        let region = table.register(pd, backing, access, iova)?;
        Ok(Self { region, table: table.clone(), gone: false })
    }

    /// Its steering tag.
    pub fn stag(&self) -> Stag {
        self.region.stag()
    }

    /// The key for work requests of this side; the same number as [`Self::rkey`].
    pub fn lkey(&self) -> u32 {
        self.stag().0
    }

    /// The key for peers.
    pub fn rkey(&self) -> u32 {
        self.stag().0
    }

    /// Address of its first byte in the terms of [`Sge`] and of peers (the tagged offset).
    pub fn addr(&self) -> u64 {
        self.region.iova()
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.region.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What it grants.
    pub fn access(&self) -> Access {
        self.region.access()
    }

    /// False once a peer or a work request has invalidated it; it can then only be read, written and
    /// deregistered by this handle.
    pub fn is_valid(&self) -> bool {
        self.region.is_valid()
    }

    /// An element of a work request: `len` bytes from `offset` on. Checked when posted, not here.
    pub fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge { addr: self.addr().wrapping_add(offset), len, lkey: self.lkey() }
    }

    /// The whole region as a peer names it.
    pub fn remote(&self) -> RemoteBuffer {
        RemoteBuffer { rkey: self.rkey(), addr: self.addr(), len: self.len() }
    }

    /// The memory that it keeps; `None` where the memory is the caller's own.
    pub fn buffer(&self) -> Option<&Arc<Buffer>> {
        self.region.memory.buffer()
    }

    /// Copies `bytes` to `offset`, in ascending order.
    ///
    /// # Errors
    /// [`OutOfRange`](crate::Error::OutOfRange).
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.region.write_at(offset, bytes)
    }

    /// Copies from `offset` to `bytes`. What a peer writes at the same time may be seen in part.
    ///
    /// # Errors
    /// [`OutOfRange`](crate::Error::OutOfRange).
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.region.read_at(offset, bytes)
    }

    /// The eight bytes at `offset`, in this machine's byte order, read as one (acquire).
    ///
    /// # Errors
    /// [`OutOfRange`](crate::Error::OutOfRange); [`Misaligned`](crate::Error::Misaligned) unless the memory is 8-byte aligned there.
    pub fn load_u64(&self, offset: u64) -> Result<u64> {
        Ok(self.region.atomic_at(offset)?.load(Ordering::Acquire))
    }

    /// Writes the eight bytes at `offset` as one (release).
    ///
    /// # Errors
    /// As [`Self::load_u64`].
    pub fn store_u64(&self, offset: u64, value: u64) -> Result<()> {
        self.region.atomic_at(offset)?.store(value, Ordering::Release);
        Ok(())
    }

    /// Sets `len` bytes from `offset` on to `byte`.
    ///
    /// # Errors
    /// [`OutOfRange`](crate::Error::OutOfRange).
    pub fn fill(&self, offset: u64, len: usize, byte: u8) -> Result<()> {
        self.region.fill(offset, len, byte)
    }

    /// Withdraws the steering tag: when this returns nothing is placed in the memory or read from it any
    /// more, and work requests that name it fail. The memory is freed when those are done, too.
    ///
    /// # Errors
    /// [`RegionBusy`](crate::Error::RegionBusy) while windows or fast regions refer to it; the region comes back unchanged.
    pub fn deregister(mut self) -> Result<(), DeregisterError> {
        match self.table.deregister(&self.region) {
            Ok(()) => {
                self.gone = true;
                Ok(())
            }
            Err(error) => Err(DeregisterError { region: self, error }),
        }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if !self.gone {
            self.table.force_deregister(&self.region);
        }
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("stag", &self.stag())
            .field("addr", &self.addr())
            .field("len", &self.len())
            .field("access", &self.access())
            .finish_non_exhaustive()
    }
}
