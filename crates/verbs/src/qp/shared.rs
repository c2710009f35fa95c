//! What both directions of a queue pair touch: the Read queues and the order of completions.

use std::collections::VecDeque;

use iwarp::InboundRead;
use iwarp::rdmap::{InboundReads, Outstanding, OutstandingReads};

use super::wqe::Segments;
use crate::queue::{Completion, CompletionOp, Status};

/// A send work request that was begun and is not yet completed, in order of posting.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) wr_id: u64,
    pub(crate) op: CompletionOp,
    pub(crate) signaled: bool,
    pub(crate) len: u32,
    /// Where a response goes.
    pub(crate) sink: Segments,
    /// Local key to invalidate when the response is in.
    pub(crate) invalidate: Option<u32>,
    pub(crate) done: bool,
}

/// Shared state; its lock is held for moments only and is taken last.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) orq: OutstandingReads<Box<[Outstanding]>>,
    pub(crate) irq: InboundReads<Box<[Option<InboundRead>]>>,
    in_flight: VecDeque<InFlight>,
    base: u64,
    /// The send queue waits for ORD or a fence; a response must wake it.
    pub(crate) sq_waits: bool,
}

impl Shared {
    pub(crate) fn new(ord: u16, ird: u16) -> Self {
        let orq = vec![Outstanding::default(); usize::from(ord).max(1)].into_boxed_slice();
        let irq = vec![None; usize::from(ird)].into_boxed_slice();
        Self {
            orq: OutstandingReads::new(orq, usize::from(ord)),
            irq: InboundReads::new(irq, usize::from(ird)),
            in_flight: VecDeque::new(),
            base: 0,
            sq_waits: false,
        }
    }

    /// Notes a work request that begins; its sequence number names it from then on.
    pub(crate) fn begin(&mut self, entry: InFlight) -> u64 {
        self.in_flight.push_back(entry);
        self.base + self.in_flight.len() as u64 - 1
    }

    /// The sequence number that [`Shared::begin`] gives next.
    pub(crate) fn next_seq(&self) -> u64 {
        self.base + self.in_flight.len() as u64
    }

    /// The sequence number of the oldest one.
    pub(crate) fn first_seq(&self) -> u64 {
        self.base
    }

    pub(crate) fn get_mut(&mut self, seq: u64) -> Option<&mut InFlight> {
        self.in_flight.get_mut(usize::try_from(seq.checked_sub(self.base)?).ok()?)
    }

    /// Marks one as done.
    pub(crate) fn finish(&mut self, seq: u64) {
        if let Some(e) = self.get_mut(seq) {
            e.done = true;
        }
    }

    /// Takes the completed ones off the head: completions appear in the order of posting.
    pub(crate) fn retire(&mut self) -> Option<InFlight> {
        if !self.in_flight.front()?.done {
            return None;
        }
        self.base += 1;
        self.in_flight.pop_front()
    }

    /// Takes one off the head whatever its state (the queue pair failed).
    pub(crate) fn abandon(&mut self) -> Option<InFlight> {
        let e = self.in_flight.pop_front()?;
        self.base += 1;
        Some(e)
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }
}

impl InFlight {
    /// Its completion.
    pub(crate) fn completion(&self, status: Status, qp_num: u32) -> Completion {
        Completion {
            wr_id: self.wr_id,
            status,
            opcode: self.op,
            len: if status == Status::Success { self.len } else { 0 },
            qp_num,
            immediate: None,
            invalidated: None,
            vendor_err: 0,
        }
    }
}
