//! Work queue elements as the engine keeps them: keys resolved, memory held.

use std::sync::Arc;

use iwarp::TaggedFault;
use iwarp::{AtomicRequest, Stag};

use crate::mem::Segment;
use crate::queue::CompletionOp;
use crate::wr::{SendFlags, SendOp};

/// Scattered memory of one work request. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) enum Segments {
    /// No bytes.
    #[default]
    None,
    /// The common case.
    One(Segment),
    /// Several, in order.
    Many(Arc<[Segment]>),
}

/// A run of bytes within one segment.
pub(crate) struct Run<'a> {
    pub(crate) segment: &'a Segment,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

impl Segments {
    pub(crate) fn from_vec(mut segments: Vec<Segment>) -> Self {
        match segments.len() {
            0 => Self::None,
            1 => segments.pop().map_or(Self::None, Self::One),
            _ => Self::Many(segments.into()),
        }
    }

    fn as_slice(&self) -> &[Segment] {
        match self {
            Self::None => &[],
            Self::One(s) => std::slice::from_ref(s),
            Self::Many(m) => m,
        }
    }

    /// The runs that cover `len` bytes from `offset` on (fewer where the list ends).
    pub(crate) fn runs(&self, mut offset: usize, mut len: usize) -> impl Iterator<Item = Run<'_>> {
        self.as_slice().iter().filter_map(move |segment| {
            let have = segment.len() as usize;
            if offset >= have {
                offset -= have;
                return None;
            }
            let n = (have - offset).min(len);
            let run = Run { segment, offset, len: n };
            offset = 0;
            len -= n;
            (n > 0).then_some(run)
        })
    }

    /// Scatters bytes.
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<(), TaggedFault> {
        let mut done = 0;
        for run in self.runs(offset, bytes.len()) {
            run.segment.enter_part(run.offset, run.len)?.copy_in_checked(0, &bytes[done..done + run.len])?;
            done += run.len;
        }
        if done == bytes.len() { Ok(()) } else { Err(TaggedFault::Bounds) }
    }

    /// Gathers bytes behind `out`.
    pub(crate) fn append_to(&self, offset: usize, len: usize, out: &mut Vec<u8>) -> Result<(), TaggedFault> {
        let mut done = 0;
        for run in self.runs(offset, len) {
            run.segment.enter_part(run.offset, run.len)?.append_to(out)?;
            done += run.len;
        }
        if done == len { Ok(()) } else { Err(TaggedFault::Bounds) }
    }
}

/// Where a send work request's payload is.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// In registered memory, read when it is sent.
    Memory(Segments),
    /// Copied at posting time.
    Inline(Box<[u8]>),
}

impl Default for Source {
    fn default() -> Self {
        Self::none()
    }
}

impl Source {
    /// No payload.
    pub(crate) fn none() -> Self {
        Self::Memory(Segments::None)
    }

    /// Gathers bytes behind `out`.
    pub(crate) fn append_to(&self, offset: usize, len: usize, out: &mut Vec<u8>) -> Result<(), TaggedFault> {
        match self {
            Self::Memory(segments) => segments.append_to(offset, len, out),
            Self::Inline(bytes) => {
                let part = bytes.get(offset..).and_then(|b| b.get(..len)).ok_or(TaggedFault::Bounds)?;
                out.extend_from_slice(part);
                Ok(())
            }
        }
    }
}

/// A posted send work request.
#[derive(Debug)]
pub(crate) struct SendWqe {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) flags: SendFlags,
    pub(crate) len: u32,
    pub(crate) source: Source,
}

/// A posted receive work request.
#[derive(Debug)]
pub(crate) struct RecvWqe {
    pub(crate) wr_id: u64,
    pub(crate) segments: Segments,
    pub(crate) len: u64,
}

/// The completion opcode of a send operation.
pub(crate) fn completion_op(op: &SendOp) -> CompletionOp {
    match op {
        SendOp::Send | SendOp::SendInvalidate(_) => CompletionOp::Send,
        SendOp::Immediate(_) => CompletionOp::Immediate,
        SendOp::Write { .. } => CompletionOp::Write,
        SendOp::Read { .. } | SendOp::ReadInvalidate { .. } => CompletionOp::Read,
        SendOp::FetchAdd { .. } => CompletionOp::FetchAdd,
        SendOp::CmpSwap { .. } => CompletionOp::CmpSwap,
        SendOp::Swap { .. } => CompletionOp::Swap,
        SendOp::LocalInvalidate(_) => CompletionOp::LocalInvalidate,
        SendOp::BindWindow(_) => CompletionOp::BindWindow,
        SendOp::FastRegister(_) => CompletionOp::FastRegister,
    }
}

/// Whether it waits for a response and so uses ORD.
pub(crate) fn needs_response(op: &SendOp) -> bool {
    matches!(
        op,
        SendOp::Read { .. }
            | SendOp::ReadInvalidate { .. }
            | SendOp::FetchAdd { .. }
            | SendOp::CmpSwap { .. }
            | SendOp::Swap { .. }
    )
}

/// The wire's request for an atomic work request. RFC 7306 §5.2.1.
pub(crate) fn atomic_request(op: &SendOp, id: u32) -> Option<AtomicRequest> {
    use iwarp::AtomicOp as A;
    let (kind, raddr, rkey, add_swap, mask, compare, compare_mask) = match *op {
        SendOp::FetchAdd { raddr, rkey, add, mask } => (A::FetchAdd, raddr, rkey, add, mask, 0, 0),
        SendOp::Swap { raddr, rkey, swap, mask } => (A::Swap, raddr, rkey, swap, mask, 0, 0),
        SendOp::CmpSwap { raddr, rkey, compare, swap, compare_mask, swap_mask } => {
            (A::CmpSwap, raddr, rkey, swap, swap_mask, compare, compare_mask)
        }
        _ => return None,
    };
    Some(AtomicRequest {
        op: kind,
        id,
        stag: Stag(rkey),
        to: raddr,
        add_swap,
        add_swap_mask: mask,
        compare,
        compare_mask,
    })
}
