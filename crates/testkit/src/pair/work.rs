//! What an application asks of an endpoint.

use iwarp::types::{AtomicOp, AtomicRequest, Stag};

/// A work request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Work {
    pub(super) op: Op,
    /// Waits until every earlier Read and Atomic is answered.
    pub(super) fence: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Op {
    Send { data: Vec<u8>, invalidate: Option<Stag>, solicited: bool },
    Write { stag: Stag, to: u64, data: Vec<u8> },
    Read { sink: (Stag, u64), len: u32, source: (Stag, u64) },
    Atomic { request: AtomicRequest, sink: (Stag, u64) },
    Immediate { value: u64, solicited: bool },
}

/// A completed request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// Its number, counted from 0 in posting order.
    pub index: u64,
    /// Whether it was a Read or Atomic, complete with its response; others complete when they left.
    pub answered: bool,
}

impl Work {
    fn new(op: Op) -> Self {
        Self { op, fence: false }
    }

    /// A Send.
    pub fn send(data: Vec<u8>) -> Self {
        Self::new(Op::Send { data, invalidate: None, solicited: false })
    }

    /// Any kind of Send.
    pub fn send_with(data: Vec<u8>, invalidate: Option<u32>, solicited: bool) -> Self {
        Self::new(Op::Send { data, invalidate: invalidate.map(Stag), solicited })
    }

    /// An RDMA Write.
    pub fn write(stag: u32, to: u64, data: Vec<u8>) -> Self {
        Self::new(Op::Write { stag: Stag(stag), to, data })
    }

    /// An RDMA Read: sink here, source there.
    pub fn read(sink: (u32, u64), len: u32, source: (u32, u64)) -> Self {
        Self::new(Op::Read { sink: (Stag(sink.0), sink.1), len, source: (Stag(source.0), source.1) })
    }

    /// An atomic: `operands` are addend or new value, its mask, comparand, its mask.
    pub fn atomic(op: AtomicOp, target: (u32, u64), operands: [u64; 4], sink: (u32, u64)) -> Self {
        let [add_swap, add_swap_mask, compare, compare_mask] = operands;
        // The identifier is the endpoint's to choose.
        let request = AtomicRequest {
            op,
            id: 0,
            stag: Stag(target.0),
            to: target.1,
            add_swap,
            add_swap_mask,
            compare,
            compare_mask,
        };
        Self::new(Op::Atomic { request, sink: (Stag(sink.0), sink.1) })
    }

    /// Immediate Data.
    pub fn immediate(value: u64, solicited: bool) -> Self {
        Self::new(Op::Immediate { value, solicited })
    }

    /// The same, behind a fence.
    pub fn fenced(self) -> Self {
        Self { fence: true, ..self }
    }
}
