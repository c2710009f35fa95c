//! Shared receive queues.

use std::sync::Arc;

use crate::device::limits;
use crate::error::{Error, PostError, Result};
use crate::event::SrqId;
use crate::pd::{PdInner, ProtectionDomain, within};
use crate::qp::recvq::RecvQueue;
use crate::wr::RecvWr;

/// Size and limit of a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqAttr {
    /// Receives that it holds.
    pub max_wr: u32,
    /// [`crate::AsyncEvent::SrqLimitReached`] fires once when fewer than this are left; 0 is off.
    pub limit: u32,
}

/// Receives for many queue pairs.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue {
    pub(crate) queue: Arc<RecvQueue>,
    pub(crate) pd: Arc<PdInner>,
    id: SrqId,
}

impl SharedReceiveQueue {
    pub(crate) fn new(pd: &ProtectionDomain, attr: SrqAttr) -> Result<Self> {
        within("max_wr", attr.max_wr, limits::SRQ_WR)?;
        if attr.max_wr == 0 || attr.limit > attr.max_wr {
            return Err(Error::Invalid("a shared receive queue needs max_wr > 0 and a limit within it"));
        }
        let id = SrqId(pd.0.device.next_id());
        let queue = RecvQueue::shared(attr.max_wr, id, Arc::downgrade(&pd.0.device));
        let srq = Self { queue, pd: Arc::clone(&pd.0), id };
        // Nothing is posted yet: a limit set now would fire at once, so it waits for `modify`.
        Ok(srq)
    }

    /// Its name in events.
    pub fn id(&self) -> SrqId {
        self.id
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// [`Error::QueueFull`], [`Error::LocalMemory`], [`Error::Limit`] (scatter list too long).
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<()> {
        self.pd.device.check_fork()?;
        let wqe = crate::qp::resolve_recv(&self.pd, wr)?;
        for qp in self.queue.post(wqe)? {
            if let Some(qp) = qp.upgrade() {
                qp.receive_posted();
            }
        }
        Ok(())
    }

    /// Posts several.
    ///
    /// # Errors
    /// The first that failed; those before it are posted.
    pub fn post_recv_list(&self, wrs: &[RecvWr<'_>]) -> std::result::Result<(), PostError> {
        wrs.iter()
            .enumerate()
            .try_for_each(|(index, wr)| self.post_recv(wr).map_err(|error| PostError { index, error }))
    }

    /// Arms the limit event, or changes the capacity.
    ///
    /// # Errors
    /// [`Error::Limit`] out of range, [`Error::Busy`] if more receives are posted than the new capacity.
    pub fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<()> {
        self.pd.device.check_fork()?;
        if let Some(max) = max_wr {
            within("max_wr", max, limits::SRQ_WR)?;
            self.queue.resize(max)?;
        }
        limit.map_or(Ok(()), |l| self.queue.set_limit(l))
    }

    /// Capacity and armed limit.
    pub fn query(&self) -> SrqAttr {
        let (max_wr, limit) = self.queue.attr();
        SrqAttr { max_wr, limit }
    }

    /// Receives posted and not used.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether none is posted.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}
