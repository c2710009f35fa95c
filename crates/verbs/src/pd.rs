//! Protection domains.

use std::sync::Arc;

use crate::device::{DeviceInner, limits};
use crate::error::{Error, Result};
use crate::mem::{Access, Backing, Buffer, FastRegion, MemoryRegion, MemoryWindow, WindowKind};
use crate::qp::{QpInit, QueuePair};
use crate::srq::{SharedReceiveQueue, SrqAttr};

#[derive(Debug)]
pub(crate) struct PdInner {
    pub(crate) device: Arc<DeviceInner>,
    pub(crate) id: u32,
}

/// A protection domain. Memory of one domain is out of reach for queue pairs of another.
#[derive(Clone, Debug)]
pub struct ProtectionDomain(pub(crate) Arc<PdInner>);

impl ProtectionDomain {
    pub(crate) fn new(device: Arc<DeviceInner>) -> Self {
        let id = device.next_id();
        Self(Arc::new(PdInner { device, id }))
    }

    /// Registers `len` bytes of new, zeroed memory.
    ///
    /// # Errors
    /// [`Error::Os`] without memory, [`Error::Limit`] without an STag, [`Error::Invalid`] for access
    /// flags that contradict each other.
    pub fn register(&self, len: usize, access: Access) -> Result<MemoryRegion> {
        self.register_buffer(Buffer::zeroed(len)?, access)
    }

    /// Registers memory that the caller made (of a vector, of a memfd); the region owns it from now on.
    ///
    /// # Errors
    /// As [`ProtectionDomain::register`].
    pub fn register_buffer(&self, buffer: Buffer, access: Access) -> Result<MemoryRegion> {
        self.0.device.check_fork()?;
        MemoryRegion::register(
            &self.0.device.table,
            self.0.id,
            Backing::Owned(Arc::new(buffer)),
            access,
            None,
        )
    }

    /// A memory window, unbound.
    ///
    /// # Errors
    /// [`Error::Limit`] without an STag.
    pub fn alloc_window(&self, kind: WindowKind) -> Result<MemoryWindow> {
        self.0.device.check_fork()?;
        MemoryWindow::allocate(&self.0.device.table, self.0.id, kind)
    }

    /// A region of up to `max_len` bytes that a FastRegister work request makes valid.
    ///
    /// # Errors
    /// [`Error::Limit`] without an STag.
    pub fn alloc_fast_region(&self, max_len: usize) -> Result<FastRegion> {
        self.0.device.check_fork()?;
        FastRegion::allocate(&self.0.device.table, self.0.id, max_len as u64)
    }

    /// A shared receive queue.
    ///
    /// # Errors
    /// [`Error::Limit`] for sizes above the device's.
    pub fn create_srq(&self, attr: SrqAttr) -> Result<SharedReceiveQueue> {
        self.0.device.check_fork()?;
        SharedReceiveQueue::new(self, attr)
    }

    /// A queue pair, in state Init.
    ///
    /// # Errors
    /// [`Error::Limit`] for sizes above the device's, [`Error::Invalid`] for a shared receive queue of
    /// another domain.
    pub fn create_qp(&self, init: &QpInit) -> Result<QueuePair> {
        self.0.device.check_fork()?;
        QueuePair::new(self, init)
    }
}

/// Refuses what is above a limit.
pub(crate) fn within(what: &'static str, value: u32, limit: u32) -> Result<()> {
    if value > limit {
        return Err(Error::Limit { what, value: value.into(), limit: limit.into() });
    }
    Ok(())
}

/// Refuses a list of more elements than the device takes.
pub(crate) fn sge_count(n: usize) -> Result<()> {
    within("num_sge", u32::try_from(n).unwrap_or(u32::MAX), limits::SGE)
}
