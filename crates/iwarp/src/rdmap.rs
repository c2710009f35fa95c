//! The two request queues of RDMAP: Reads that we asked for (ORD deep) and Reads asked of us (IRD deep).
//!
//! Storage comes from the caller, so the same code serves a heap, an array and a kernel.

use crate::error::Fault;
use crate::host::ResponsePlace;
use crate::types::{InboundRead, Stag};

/// One outstanding Read or Atomic of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Outstanding {
    /// The caller's name for it.
    pub cookie: u64,
    /// Sink STag that the request named.
    pub sink_stag: Stag,
    /// Sink tagged offset that the request named.
    pub sink_to: u64,
    /// Bytes asked for (8 for an atomic).
    pub len: u32,
    /// Bytes that came so far.
    pub received: u32,
    /// The request identifier, where it is an atomic.
    pub atomic: Option<u32>,
}

/// Requests that wait for their responses, in the order sent. RFC 5040 §5.5, RFC 7306 §7:
/// responses come in the order of the requests, so only the head may be answered.
#[derive(Debug)]
pub struct OutstandingReads<S> {
    slots: S,
    head: usize,
    count: usize,
    limit: usize,
}

impl<S: AsRef<[Outstanding]> + AsMut<[Outstanding]>> OutstandingReads<S> {
    /// An empty queue over `slots`; `limit` is the negotiated ORD (no more than there are slots).
    pub fn new(slots: S, limit: usize) -> Self {
        let limit = limit.min(slots.as_ref().len());
        Self { slots, head: 0, count: 0, limit }
    }

    /// Requests under way.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether the ORD is used up.
    pub fn is_full(&self) -> bool {
        self.count >= self.limit
    }

    /// Note a request that is about to be sent. `false` where the ORD is used up. RFC 5040 §5.2.1.
    pub fn push(&mut self, request: Outstanding) -> bool {
        // rule 5040-5.2.1-1, 7306-5.2.1-3
        if self.is_full() {
            return false;
        }
        let n = self.slots.as_ref().len();
        let at = (self.head + self.count) % n;
        let Some(slot) = self.slots.as_mut().get_mut(at) else { return false };
        *slot = Outstanding { received: 0, ..request };
        self.count += 1;
        true
    }

    /// The oldest one.
    pub fn front(&self) -> Option<&Outstanding> {
        if self.count == 0 { None } else { self.slots.as_ref().get(self.head) }
    }

    /// Remove the oldest one.
    pub fn pop(&mut self) -> Option<Outstanding> {
        let front = *self.front()?;
        self.head = (self.head + 1) % self.slots.as_ref().len();
        self.count -= 1;
        Some(front)
    }

    /// A Read Response segment: it must answer the oldest request, continue where the last segment
    /// ended, stay within the length asked for and end exactly there.
    pub fn on_response(&mut self, stag: Stag, to: u64, len: u32, last: bool) -> Result<ResponsePlace, Fault> {
        if self.count == 0 {
            return Err(Fault::UnexpectedResponse);
        }
        let Some(head) = self.slots.as_mut().get_mut(self.head) else {
            return Err(Fault::UnexpectedResponse);
        };
        if head.atomic.is_some() {
            return Err(Fault::UnexpectedResponse);
        }
        // Stock siw answers a zero-length Read that had to wait with another request's bytes. They are
        // thrown away; nothing else about such a response means anything.
        if head.len == 0 {
            return Ok(ResponsePlace { cookie: head.cookie, offset: 0, discard: true });
        }
        // rule 5040-5.2.2-2
        let end = head.received.checked_add(len).filter(|end| *end <= head.len);
        let continues = stag == head.sink_stag && to == head.sink_to.wrapping_add(u64::from(head.received));
        match end {
            Some(end) if continues && (end == head.len) == last => {
                let offset = head.received;
                head.received = end;
                Ok(ResponsePlace { cookie: head.cookie, offset, discard: false })
            }
            _ => Err(Fault::ResponseMismatch),
        }
    }

    /// An Atomic Response: it must answer the oldest request. RFC 7306 §5.2.2.
    pub fn on_atomic(&mut self, id: u32) -> Result<ResponsePlace, Fault> {
        match self.front() {
            // rule 7306-5.2.2-2
            Some(head) if head.atomic == Some(id) => {
                Ok(ResponsePlace { cookie: head.cookie, offset: 0, discard: false })
            }
            _ => Err(Fault::UnexpectedResponse),
        }
    }
}

/// Requests of the peer that wait for our transmit side, in the order received. RFC 5040 §5.2.2.
#[derive(Debug)]
pub struct InboundReads<S> {
    slots: S,
    head: usize,
    count: usize,
    limit: usize,
}

impl<S: AsRef<[Option<InboundRead>]> + AsMut<[Option<InboundRead>]>> InboundReads<S> {
    /// An empty queue over `slots`; `limit` is the negotiated IRD (no more than there are slots).
    pub fn new(slots: S, limit: usize) -> Self {
        let limit = limit.min(slots.as_ref().len());
        Self { slots, head: 0, count: 0, limit }
    }

    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether the IRD has room for one more.
    pub fn has_room(&self) -> bool {
        self.count < self.limit
    }

    /// Queue one; more than the IRD at once is the peer's fault. RFC 5040 §5.2.1.
    pub fn push(&mut self, read: InboundRead) -> Result<(), Fault> {
        // rule 5040-5.2.1-2, 7306-5.2.1-3
        if self.count >= self.limit {
            return Err(Fault::IrdExceeded);
        }
        let n = self.slots.as_ref().len();
        let at = (self.head + self.count) % n;
        let slot = self.slots.as_mut().get_mut(at).ok_or(Fault::IrdExceeded)?;
        *slot = Some(read);
        self.count += 1;
        Ok(())
    }

    /// Take the oldest one.
    pub fn pop(&mut self) -> Option<InboundRead> {
        if self.count == 0 {
            return None;
        }
        let n = self.slots.as_ref().len();
        // rule 5040-5.2.2-1, 7306-5.2.2-3
        let read = self.slots.as_mut().get_mut(self.head)?.take();
        self.head = (self.head + 1) % n;
        self.count -= 1;
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(cookie: u64, len: u32) -> Outstanding {
        Outstanding { cookie, sink_stag: Stag(7), sink_to: 100, len, ..Outstanding::default() }
    }

    #[test]
    fn ord_limits_what_is_under_way() {
        // rule 5040-5.2.1-1
        let mut q = OutstandingReads::new([Outstanding::default(); 4], 2);
        assert!(q.push(read(1, 8)) && q.push(read(2, 8)) && !q.push(read(3, 8)));
        assert_eq!(q.pop().map(|r| r.cookie), Some(1));
        assert!(q.push(read(3, 8)));
        assert_eq!(q.len(), 2);
    }

    #[test]
    fn responses_must_match_the_oldest_request_exactly() {
        // rule 5040-5.2.2-2
        let fresh = || {
            let mut q = OutstandingReads::new([Outstanding::default(); 2], 2);
            q.push(read(1, 100));
            q
        };
        assert_eq!(
            fresh().on_response(Stag(7), 100, 100, true),
            Ok(ResponsePlace { cookie: 1, offset: 0, discard: false })
        );
        for (stag, to, len, last) in [
            (Stag(8), 100, 100, true),      // another sink
            (Stag(7), 101, 99, true),       // not where it should start
            (Stag(7), 100, 101, true),      // longer than asked for
            (Stag(7), 100, 99, true),       // ends early
            (Stag(7), 100, 100, false),     // does not end
            (Stag(7), 100, u32::MAX, true), // length overflow
        ] {
            assert_eq!(
                fresh().on_response(stag, to, len, last),
                Err(Fault::ResponseMismatch),
                "{to} {len} {last}"
            );
        }
        let mut q = fresh();
        assert_eq!(q.on_response(Stag(7), 100, 40, false).map(|p| p.offset), Ok(0));
        assert_eq!(q.on_response(Stag(7), 140, 60, true).map(|p| p.offset), Ok(40));
    }

    #[test]
    fn nobody_asked() {
        // rule 5040-5.2.2-2, 7306-5.2.2-2
        let mut q = OutstandingReads::new([Outstanding::default(); 2], 2);
        assert_eq!(q.on_response(Stag(7), 0, 0, true), Err(Fault::UnexpectedResponse));
        assert_eq!(q.on_atomic(1), Err(Fault::UnexpectedResponse));
        q.push(Outstanding { cookie: 9, len: 8, atomic: Some(5), ..Outstanding::default() });
        assert_eq!(q.on_response(Stag(0), 0, 8, true), Err(Fault::UnexpectedResponse));
        assert_eq!(q.on_atomic(6), Err(Fault::UnexpectedResponse));
        assert_eq!(q.on_atomic(5).map(|p| p.cookie), Ok(9));
    }

    #[test]
    fn bytes_for_a_zero_length_read_are_discarded() {
        let mut q = OutstandingReads::new([Outstanding::default(); 2], 2);
        q.push(read(4, 0));
        assert_eq!(q.on_response(Stag(1), 0, 60, true).map(|p| p.discard), Ok(true));
    }

    #[test]
    fn ird_is_enforced() {
        // rule 5040-5.2.1-2, 7306-5.2.1-3
        let mut q = InboundReads::new([None; 4], 1);
        let r = InboundRead::Atomic { id: 1, original: 2 };
        assert_eq!(q.push(r), Ok(()));
        assert_eq!(q.push(r), Err(Fault::IrdExceeded));
        assert_eq!(q.pop(), Some(r));
        assert_eq!(q.pop(), None);
        assert_eq!(q.push(r), Ok(()));
    }
}
