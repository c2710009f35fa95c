//! Receive queues: a queue pair's own, or a shared one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::QpInner;
use super::wqe::RecvWqe;
use crate::device::DeviceInner;
use crate::error::{Error, Result};
use crate::event::{AsyncEvent, SrqId};

/// A bounded queue of receives.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    inner: Mutex<Inner>,
    shared: Option<SharedPart>,
}

#[derive(Debug)]
struct Inner {
    wqes: VecDeque<RecvWqe>,
    max: usize,
    /// Shared queues: fire the limit event when fewer than this are left; 0 is off.
    limit: usize,
    /// Shared queues: queue pairs that hold messages for which no receive was posted.
    hungry: Vec<Weak<QpInner>>,
}

#[derive(Debug)]
struct SharedPart {
    id: SrqId,
    device: Weak<DeviceInner>,
}

impl RecvQueue {
    /// A queue pair's own.
    pub(crate) fn own(max: u32) -> Arc<Self> {
        Arc::new(Self { inner: Mutex::new(Inner::new(max)), shared: None })
    }

    /// A shared one.
    pub(crate) fn shared(max: u32, id: SrqId, device: Weak<DeviceInner>) -> Arc<Self> {
        Arc::new(Self { inner: Mutex::new(Inner::new(max)), shared: Some(SharedPart { id, device }) })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Posts one. Returns queue pairs that wait for receives.
    pub(crate) fn post(&self, wqe: RecvWqe) -> Result<Vec<Weak<QpInner>>> {
        let mut q = self.lock();
        if q.wqes.len() >= q.max {
            return Err(Error::QueueFull("receive"));
        }
        q.wqes.push_back(wqe);
        Ok(std::mem::take(&mut q.hungry))
    }

    /// Posts one to be flushed: any number of them.
    pub(crate) fn post_last(&self, wqe: RecvWqe) {
        self.lock().wqes.push_back(wqe);
    }

    /// Reports all that are posted, in order: nobody else takes one meanwhile.
    pub(crate) fn flush(&self, report: impl Fn(RecvWqe)) {
        self.lock().wqes.drain(..).for_each(report);
    }

    /// Takes the oldest.
    pub(crate) fn take(&self) -> Option<RecvWqe> {
        let mut q = self.lock();
        let wqe = q.wqes.pop_front();
        if wqe.is_some() && q.limit > 0 && q.wqes.len() < q.limit {
            q.limit = 0;
            drop(q);
            self.report_limit();
        }
        wqe
    }

    fn report_limit(&self) {
        if let Some(part) = &self.shared
            && let Some(device) = part.device.upgrade()
        {
            device.report(AsyncEvent::SrqLimitReached(part.id));
        }
    }

    /// Whether nothing is posted.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().wqes.is_empty()
    }

    /// Receives posted and not taken.
    pub(crate) fn len(&self) -> usize {
        self.lock().wqes.len()
    }

    /// A queue pair holds a message and wants to hear of the next receive.
    pub(crate) fn hungry(&self, qp: Weak<QpInner>) {
        let mut q = self.lock();
        if !q.hungry.iter().any(|w| w.ptr_eq(&qp)) {
            q.hungry.push(qp);
        }
    }

    /// Arms the limit event.
    pub(crate) fn set_limit(&self, limit: u32) -> Result<()> {
        let mut q = self.lock();
        if limit as usize > q.max {
            return Err(Error::Limit { what: "srq_limit", value: limit.into(), limit: q.max as u64 });
        }
        q.limit = limit as usize;
        let below = limit > 0 && q.wqes.len() < q.limit;
        if below {
            q.limit = 0;
        }
        drop(q);
        if below {
            self.report_limit();
        }
        Ok(())
    }

    /// Capacity, and the armed limit.
    pub(crate) fn attr(&self) -> (u32, u32) {
        let q = self.lock();
        (q.max as u32, q.limit as u32)
    }

    /// Changes the capacity.
    pub(crate) fn resize(&self, max: u32) -> Result<()> {
        let mut q = self.lock();
        if q.wqes.len() > max as usize {
            return Err(Error::Busy("the queue holds more receives than the new size"));
        }
        q.max = max as usize;
        Ok(())
    }
}

impl Inner {
    fn new(max: u32) -> Self {
        Self { wqes: VecDeque::new(), max: max as usize, limit: 0, hungry: Vec::new() }
    }
}
