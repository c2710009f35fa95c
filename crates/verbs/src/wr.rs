//! Work requests: what an application posts to a send or receive queue.

use crate::mem::Access;

/// One piece of local memory. Verbs name: scatter/gather element.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Sge {
    /// Address in the region's terms ([`crate::MemoryRegion::addr`] plus an offset).
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// The region's local key.
    pub lkey: u32,
}

/// Registered memory as a peer names it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RemoteBuffer {
    /// The region's or window's remote key (its STag).
    pub rkey: u32,
    /// Tagged offset of the first byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
}

impl RemoteBuffer {
    /// The part that starts `offset` bytes in and has `len` bytes; `None` if it is not inside.
    pub fn slice(&self, offset: u64, len: u64) -> Option<Self> {
        let end = offset.checked_add(len)?;
        if end > self.len {
            return None;
        }
        Some(Self { rkey: self.rkey, addr: self.addr.wrapping_add(offset), len })
    }
}

/// A request to bind a memory window (or to unbind it, with `len` 0).
///
/// Made by [`crate::MemoryWindow::bind`] and [`crate::MemoryWindow::unbind`], or by hand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BindWindow {
    /// The window's remote key once bound: its index (upper 24 bits) names the window, its key (lower 8
    /// bits) is new.
    pub rkey: u32,
    /// Local key of the region bound over; needs [`Access::MW_BIND`].
    pub region: u32,
    /// Address of the window's first byte, in the region's terms.
    pub addr: u64,
    /// Bytes; 0 unbinds.
    pub len: u64,
    /// What the window grants.
    pub access: Access,
}

/// A request that gives a fast region its memory, access and key.
///
/// Made by [`crate::FastRegion::register`], or by hand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FastRegister {
    /// The fast region's key once registered: its index (upper 24 bits) names the region, its key (lower 8
    /// bits) is new.
    pub rkey: u32,
    /// Local key of the region whose memory it is given.
    pub region: u32,
    /// Address of the first byte, in that region's terms.
    pub addr: u64,
    /// Bytes; no more than the fast region was allocated for.
    pub len: u64,
    /// Address that the first byte gets in the fast region's terms.
    pub iova: u64,
    /// What the fast region grants.
    pub access: Access,
}

/// What a send-queue request does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SendOp {
    /// A message for the peer's next receive. RFC 5040 §5.3.
    Send,
    /// The same, and the peer's region or window with this key becomes invalid.
    SendInvalidate(u32),
    /// Places the payload in the peer's memory. RFC 5040 §5.1.
    Write {
        /// Tagged offset at the peer.
        raddr: u64,
        /// The peer's key.
        rkey: u32,
    },
    /// Fetches the peer's memory into the payload's. RFC 5040 §5.2.
    Read {
        /// Tagged offset at the peer.
        raddr: u64,
        /// The peer's key.
        rkey: u32,
    },
    /// The same, and the payload's local key becomes invalid when the data is there.
    ReadInvalidate {
        /// Tagged offset at the peer.
        raddr: u64,
        /// The peer's key.
        rkey: u32,
    },
    /// Adds to eight bytes of the peer's memory; the payload's memory gets the former value. RFC 7306 §5.1.
    FetchAdd {
        /// Tagged offset at the peer, a multiple of 8.
        raddr: u64,
        /// The peer's key.
        rkey: u32,
        /// What is added.
        add: u64,
        /// Each set bit ends a field of the addition; 0 adds all 64 bits as one.
        mask: u64,
    },
    /// Compares eight bytes of the peer's memory and replaces them where equal. RFC 7306 §5.1.
    CmpSwap {
        /// Tagged offset at the peer, a multiple of 8.
        raddr: u64,
        /// The peer's key.
        rkey: u32,
        /// What is compared with.
        compare: u64,
        /// Bits that are compared.
        compare_mask: u64,
        /// What is written.
        swap: u64,
        /// Bits that are written.
        swap_mask: u64,
    },
    /// Replaces eight bytes of the peer's memory. RFC 7306 §5.1.
    Swap {
        /// Tagged offset at the peer, a multiple of 8.
        raddr: u64,
        /// The peer's key.
        rkey: u32,
        /// What is written.
        swap: u64,
        /// Bits that are written.
        mask: u64,
    },
    /// Eight bytes for the completion of the peer's next receive. RFC 7306 §6.
    Immediate(u64),
    /// Makes a region or type 2 window of this side invalid.
    LocalInvalidate(u32),
    /// Binds or unbinds a memory window.
    BindWindow(BindWindow),
    /// Gives a fast region its memory.
    FastRegister(FastRegister),
}

/// The local memory of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload<'a> {
    /// Registered memory; not to be changed until the request completes.
    Sges(&'a [Sge]),
    /// Bytes copied when the request is posted; Send and Write only.
    Inline(&'a [u8]),
}

bitflags::bitflags! {
    /// How a send-queue request is treated.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct SendFlags: u32 {
        /// Success makes a completion (failure always does).
        const SIGNALED = 1 << 1;
        /// The peer's completion counts as solicited.
        const SOLICITED = 1 << 2;
        /// Starts only when all earlier Reads and atomics of the queue pair have completed.
        const FENCE = 1 << 0;
    }
}

/// A request for a send queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendWr<'a> {
    /// The application's name for it, found again in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// With which local memory.
    pub payload: Payload<'a>,
    /// How.
    pub flags: SendFlags,
}

impl<'a> SendWr<'a> {
    /// A signalled request.
    pub fn new(wr_id: u64, op: SendOp, payload: Payload<'a>) -> Self {
        Self { wr_id, op, payload, flags: SendFlags::SIGNALED }
    }

    /// A signalled request on registered memory.
    fn gather(wr_id: u64, op: SendOp, sges: &'a [Sge]) -> Self {
        Self::new(wr_id, op, Payload::Sges(sges))
    }

    /// A Send.
    pub fn send(wr_id: u64, sges: &'a [Sge]) -> Self {
        Self::gather(wr_id, SendOp::Send, sges)
    }

    /// A Send of bytes copied at once.
    pub fn send_inline(wr_id: u64, bytes: &'a [u8]) -> Self {
        Self::new(wr_id, SendOp::Send, Payload::Inline(bytes))
    }

    /// A Send that invalidates the peer's `rkey`.
    pub fn send_invalidate(wr_id: u64, sges: &'a [Sge], rkey: u32) -> Self {
        Self::gather(wr_id, SendOp::SendInvalidate(rkey), sges)
    }

    /// A Write to the start of `to`.
    pub fn write(wr_id: u64, sges: &'a [Sge], to: RemoteBuffer) -> Self {
        Self::gather(wr_id, SendOp::Write { raddr: to.addr, rkey: to.rkey }, sges)
    }

    /// A Write of bytes copied at once.
    pub fn write_inline(wr_id: u64, bytes: &'a [u8], to: RemoteBuffer) -> Self {
        Self::new(wr_id, SendOp::Write { raddr: to.addr, rkey: to.rkey }, Payload::Inline(bytes))
    }

    /// A Read from the start of `from`, as long as the local memory.
    pub fn read(wr_id: u64, sges: &'a [Sge], from: RemoteBuffer) -> Self {
        Self::gather(wr_id, SendOp::Read { raddr: from.addr, rkey: from.rkey }, sges)
    }

    /// A 64-bit addition at the start of `at`; the former value goes to `sge` (8 bytes).
    pub fn fetch_add(wr_id: u64, sge: &'a Sge, at: RemoteBuffer, add: u64) -> Self {
        let op = SendOp::FetchAdd { raddr: at.addr, rkey: at.rkey, add, mask: 0 };
        Self::gather(wr_id, op, std::slice::from_ref(sge))
    }

    /// A 64-bit compare-and-swap at the start of `at`; the former value goes to `sge` (8 bytes).
    pub fn cmp_swap(wr_id: u64, sge: &'a Sge, at: RemoteBuffer, compare: u64, swap: u64) -> Self {
        let op =
            SendOp::CmpSwap { raddr: at.addr, rkey: at.rkey, compare, compare_mask: !0, swap, swap_mask: !0 };
        Self::gather(wr_id, op, std::slice::from_ref(sge))
    }

    /// A 64-bit swap at the start of `at`; the former value goes to `sge` (8 bytes).
    pub fn swap(wr_id: u64, sge: &'a Sge, at: RemoteBuffer, swap: u64) -> Self {
        let op = SendOp::Swap { raddr: at.addr, rkey: at.rkey, swap, mask: !0 };
        Self::gather(wr_id, op, std::slice::from_ref(sge))
    }

    /// An Immediate Data message.
    pub fn immediate(wr_id: u64, value: u64) -> Self {
        Self::gather(wr_id, SendOp::Immediate(value), &[])
    }

    /// A request without payload: [`SendOp::LocalInvalidate`], [`SendOp::BindWindow`],
    /// [`SendOp::FastRegister`].
    pub fn local(wr_id: u64, op: SendOp) -> Self {
        Self::gather(wr_id, op, &[])
    }

    /// Without a completion on success.
    #[must_use]
    pub fn unsignaled(mut self) -> Self {
        self.flags.remove(SendFlags::SIGNALED);
        self
    }

    /// After all earlier Reads and atomics.
    #[must_use]
    pub fn fenced(mut self) -> Self {
        self.flags.insert(SendFlags::FENCE);
        self
    }

    /// With a solicited completion at the peer.
    #[must_use]
    pub fn solicited(mut self) -> Self {
        self.flags.insert(SendFlags::SOLICITED);
        self
    }
}

/// A request for a receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvWr<'a> {
    /// The application's name for it, found again in the completion.
    pub wr_id: u64,
    /// Where the message goes, filled in this order.
    pub sges: &'a [Sge],
}

impl<'a> RecvWr<'a> {
    /// A receive into `sges`.
    pub fn new(wr_id: u64, sges: &'a [Sge]) -> Self {
        Self { wr_id, sges }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SGES: [Sge; 2] = [Sge { addr: 1, len: 2, lkey: 3 }, Sge { addr: 4, len: 5, lkey: 6 }];
    const REMOTE: RemoteBuffer = RemoteBuffer { rkey: 9, addr: 0x50, len: 64 };

    #[test]
    fn requests_are_signalled_until_told_otherwise() {
        let wr = SendWr::send(5, &SGES);
        assert_eq!((wr.wr_id, wr.op, wr.flags), (5, SendOp::Send, SendFlags::SIGNALED));
        assert_eq!(wr.payload, Payload::Sges(&SGES));
        assert_eq!(wr.unsignaled().flags, SendFlags::empty());
        let all = wr.fenced().solicited().flags;
        assert_eq!(all, SendFlags::SIGNALED | SendFlags::FENCE | SendFlags::SOLICITED);
    }

    #[test]
    fn one_sided_requests_name_the_start_of_the_remote_buffer() {
        let (raddr, rkey) = (0x50, 9);
        assert_eq!(SendWr::write(0, &SGES, REMOTE).op, SendOp::Write { raddr, rkey });
        assert_eq!(SendWr::read(0, &SGES, REMOTE).op, SendOp::Read { raddr, rkey });
        let inline = SendWr::write_inline(0, b"abc", REMOTE);
        assert_eq!((inline.op, inline.payload), (SendOp::Write { raddr, rkey }, Payload::Inline(b"abc")));
    }

    /// Without masks all 64 bits take part. RFC 7306 §5.1.
    #[test]
    fn atomics_without_masks_use_the_whole_word() {
        let (raddr, rkey) = (0x50, 9);
        let wr = SendWr::fetch_add(0, &SGES[0], REMOTE, 7);
        assert_eq!(wr.op, SendOp::FetchAdd { raddr, rkey, add: 7, mask: 0 });
        assert_eq!(wr.payload, Payload::Sges(&SGES[..1]));
        let op = SendWr::cmp_swap(0, &SGES[0], REMOTE, 1, 2).op;
        let expected = SendOp::CmpSwap { raddr, rkey, compare: 1, compare_mask: !0, swap: 2, swap_mask: !0 };
        assert_eq!(op, expected);
        assert_eq!(SendWr::swap(0, &SGES[0], REMOTE, 3).op, SendOp::Swap { raddr, rkey, swap: 3, mask: !0 });
    }
}
