//! The reference: memory as vectors, keys as lists, queues as sequences. No threads, no sockets, no locks.

use std::collections::VecDeque;

use rnic_verbs::iwarp::TaggedFault;
use rnic_verbs::{Access, BindWindow, CompletionOp, FastRegister, QpState, SendOp, Sge, Status};

/// What a key stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Region,
    Fast,
    Window1,
    Window2,
}

/// A key of a device: valid once or still.
#[derive(Clone, Debug)]
pub struct Key {
    pub key: u32,
    pub kind: Kind,
    pub pd: usize,
    /// The queue pair of a type 2 window.
    pub qp: Option<u32>,
    pub access: Access,
    pub iova: u64,
    pub len: u64,
    /// The buffer that it leads to, and where in it.
    pub buf: usize,
    pub at: u64,
    /// The region that a window or fast region is part of.
    pub parent: Option<u32>,
    pub valid: bool,
}

/// A window or fast region that may get keys of this index.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    pub index: u32,
    pub kind: Kind,
    pub pd: usize,
    pub max_len: u64,
}

/// A buffer's bytes, and what they were before changes that may not have happened.
#[derive(Debug, Default)]
pub struct Bytes {
    pub now: Vec<u8>,
    pub changes: Vec<Change>,
}

/// A change since the last quiet point.
#[derive(Debug)]
pub struct Change {
    pub at: usize,
    pub old: Vec<u8>,
    /// Pair and side that asked for it.
    pub by: (usize, usize),
    /// Whether it lies at the asker (a Read's sink) or at the peer.
    pub at_asker: bool,
    /// It may not have happened.
    pub doubt: bool,
}

impl Bytes {
    pub fn get(&self, at: u64, len: u64) -> Vec<u8> {
        self.now[at as usize..(at + len) as usize].to_vec()
    }

    pub fn put(&mut self, at: u64, bytes: &[u8], by: (usize, usize), at_asker: bool, doubt: bool) {
        let range = at as usize..at as usize + bytes.len();
        let old = self.now[range.clone()].to_vec();
        self.now[range].copy_from_slice(bytes);
        self.changes.push(Change { at: at as usize, old, by, at_asker, doubt });
    }

    /// Whether the byte at `i` may be `byte`.
    pub fn allows(&self, i: usize, byte: u8) -> bool {
        let was = |c: &Change| i.checked_sub(c.at).and_then(|n| c.old.get(n)) == Some(&byte);
        self.now[i] == byte || self.changes.iter().any(|c| c.doubt && was(c))
    }
}

/// One device's memory.
#[derive(Debug, Default)]
pub struct Memory {
    pub keys: Vec<Key>,
    pub slots: Vec<Slot>,
    pub bufs: Vec<Bytes>,
}

impl Memory {
    pub fn valid(&self, key: u32) -> Option<&Key> {
        self.keys.iter().find(|k| k.key == key && k.valid)
    }

    pub fn slot(&self, key: u32) -> Option<Slot> {
        self.slots.iter().find(|s| s.index == key >> 8).copied()
    }

    /// Where `len` bytes at (`key`, `to`) are, if `who` (domain, queue pair) may do `need` there.
    pub fn check(
        &self,
        key: u32,
        to: u64,
        len: u64,
        need: Access,
        who: (usize, u32),
    ) -> Result<(usize, u64), TaggedFault> {
        let k = self.valid(key).ok_or(TaggedFault::InvalidStag)?;
        if k.pd != who.0 || k.qp.is_some_and(|q| q != who.1) {
            return Err(TaggedFault::NotAssociated);
        }
        if !k.access.contains(need) {
            return Err(TaggedFault::Access);
        }
        let (first, end) = (u128::from(to), u128::from(to) + u128::from(len));
        if end > 1 << 64 {
            return Err(TaggedFault::Wrap);
        }
        let base = u128::from(k.iova);
        if first < base || end > base + u128::from(k.len) {
            return Err(TaggedFault::Bounds);
        }
        Ok((k.buf, k.at + (to - k.iova)))
    }

    /// How many of `len` bytes from there on are inside.
    pub fn reach(&self, key: u32, to: u64, len: u64) -> u64 {
        self.valid(key).map_or(0, |k| k.len.saturating_sub(to.wrapping_sub(k.iova)).min(len))
    }

    /// Where a work request's local elements are.
    pub fn local(&self, sges: &[Sge], write: bool, pd: usize) -> Result<Vec<(usize, u64, u64)>, TaggedFault> {
        let need = if write { Access::LOCAL_WRITE } else { Access::empty() };
        let mut out = Vec::new();
        for s in sges.iter().filter(|s| s.len > 0) {
            if self.valid(s.lkey).is_some_and(|k| matches!(k.kind, Kind::Window1 | Kind::Window2)) {
                return Err(TaggedFault::InvalidStag);
            }
            let (buf, at) = self.check(s.lkey, s.addr, s.len.into(), need, (pd, 0))?;
            out.push((buf, at, s.len.into()));
        }
        Ok(out)
    }

    pub fn children(&self, region: u32) -> usize {
        self.keys.iter().filter(|k| k.valid && k.parent == Some(region)).count()
    }

    fn withdraw(&mut self, key: u32) {
        if let Some(k) = self.keys.iter_mut().find(|k| k.key == key && k.valid) {
            k.valid = false;
        }
    }

    /// A handle is gone: its key and what is bound over it.
    pub fn remove(&mut self, key: u32) {
        self.withdraw(key);
        for k in self.keys.iter_mut().filter(|k| k.parent == Some(key)) {
            k.valid = false;
        }
    }

    /// A window or fast region is gone.
    pub fn remove_slot(&mut self, index: u32) {
        self.slots.retain(|s| s.index != index);
        for k in self.keys.iter_mut().filter(|k| k.kind != Kind::Region && k.key >> 8 == index) {
            k.valid = false;
        }
    }

    fn may_invalidate(&self, key: u32, who: (usize, u32)) -> Option<&Key> {
        self.valid(key).filter(|k| k.pd == who.0 && k.qp.is_none_or(|q| q == who.1))
    }

    pub fn invalidate_local(&mut self, key: u32, who: (usize, u32)) -> bool {
        let bare = self.children(key) == 0;
        let fine = self.may_invalidate(key, who).is_some_and(|k| match k.kind {
            Kind::Window1 => false,
            Kind::Region => bare,
            Kind::Window2 | Kind::Fast => true,
        });
        if fine {
            self.withdraw(key);
        }
        fine
    }

    pub fn invalidate_remote(&mut self, key: u32, who: (usize, u32)) -> bool {
        let bare = self.children(key) == 0;
        let fine = self.may_invalidate(key, who).is_some_and(|k| match k.kind {
            Kind::Window1 => false,
            Kind::Region => bare && k.access.contains(Access::REMOTE_INVALIDATE),
            Kind::Window2 | Kind::Fast => true,
        });
        if fine {
            self.withdraw(key);
        }
        fine
    }

    /// The region that may lend `addr..addr + len`: its buffer, and where.
    fn parent(&self, region: u32, addr: u64, len: u64, pd: usize) -> Option<(&Key, u64)> {
        let k = self.valid(region).filter(|k| k.kind == Kind::Region && k.pd == pd)?;
        let inside =
            addr >= k.iova && u128::from(addr) + u128::from(len) <= u128::from(k.iova) + u128::from(k.len);
        inside.then(|| (k, k.at + (addr - k.iova)))
    }

    pub fn bind(&mut self, b: &BindWindow, who: (usize, u32)) -> bool {
        let Some(slot) = self.slot(b.rkey) else { return false };
        let before = self.keys.iter().find(|k| k.valid && k.key >> 8 == slot.index).cloned();
        if slot.pd != who.0 || !matches!(slot.kind, Kind::Window1 | Kind::Window2) {
            return false;
        }
        if b.len == 0 {
            if before.as_ref().is_some_and(|k| k.qp.is_some_and(|q| q != who.1)) {
                return false;
            }
            if let Some(k) = before {
                self.withdraw(k.key);
            }
            return true;
        }
        let writes = b.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        if !(remote | Access::ZERO_BASED).contains(b.access) || !b.access.intersects(remote) {
            return false;
        }
        let Some((parent, at)) = self.parent(b.region, b.addr, b.len, who.0) else { return false };
        if !parent.access.contains(Access::MW_BIND)
            || (writes && !parent.access.contains(Access::LOCAL_WRITE))
        {
            return false;
        }
        let iova = if b.access.contains(Access::ZERO_BASED) { 0 } else { b.addr };
        if b.access.contains(Access::REMOTE_ATOMIC) && at % 8 != iova % 8 {
            return false;
        }
        let buf = parent.buf;
        if let Some(k) = before {
            if slot.kind == Kind::Window2 {
                return false;
            }
            self.withdraw(k.key);
        }
        self.keys.push(Key {
            key: b.rkey,
            kind: slot.kind,
            pd: slot.pd,
            qp: (slot.kind == Kind::Window2).then_some(who.1),
            access: b.access,
            iova,
            len: b.len,
            buf,
            at,
            parent: Some(b.region),
            valid: true,
        });
        true
    }

    pub fn fast(&mut self, f: &FastRegister, who: (usize, u32)) -> bool {
        let Some(slot) = self.slot(f.rkey).filter(|s| s.kind == Kind::Fast && s.pd == who.0) else {
            return false;
        };
        if self.keys.iter().any(|k| k.valid && k.key >> 8 == slot.index) {
            return false;
        }
        if !may_register(f.access) || f.access.contains(Access::MW_BIND) || f.len > slot.max_len {
            return false;
        }
        let Some((parent, at)) = self.parent(f.region, f.addr, f.len, who.0) else { return false };
        if f.access.contains(Access::LOCAL_WRITE) && !parent.access.contains(Access::LOCAL_WRITE) {
            return false;
        }
        let iova = if f.access.contains(Access::ZERO_BASED) { 0 } else { f.iova };
        if u128::from(iova) + u128::from(f.len) > 1 << 64 {
            return false;
        }
        if f.access.contains(Access::REMOTE_ATOMIC) && at % 8 != iova % 8 {
            return false;
        }
        let (buf, kind, pd) = (parent.buf, Kind::Fast, slot.pd);
        let (key, access, len, parent) = (f.rkey, f.access, f.len, Some(f.region));
        self.keys.push(Key { key, kind, pd, qp: None, access, iova, len, buf, at, parent, valid: true });
        true
    }
}

/// Whether memory may be registered with these rights.
pub fn may_register(access: Access) -> bool {
    access.contains(Access::LOCAL_WRITE) || !access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
}

/// The new value of an atomic's target, field by field, bit by bit. RFC 7306 §5.1.
pub fn atomic(op: &SendOp, old: u64) -> u64 {
    match *op {
        SendOp::FetchAdd { add, mask, .. } => {
            let (mut sum, mut carry) = (0, 0);
            for bit in 0..64 {
                let (x, y) = (old >> bit & 1, add >> bit & 1);
                sum |= (x ^ y ^ carry) << bit;
                carry = if mask >> bit & 1 == 1 { 0 } else { x & y | carry & (x | y) };
            }
            sum
        }
        SendOp::CmpSwap { compare, compare_mask, .. } if old & compare_mask != compare & compare_mask => old,
        SendOp::CmpSwap { swap, swap_mask: mask, .. } | SendOp::Swap { swap, mask, .. } => {
            old & !mask | swap & mask
        }
        _ => old,
    }
}

/// A message on its way to a receive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    pub bytes: Vec<u8>,
    pub immediate: Option<u64>,
    pub invalidated: Option<u32>,
}

/// How a request may complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expect {
    /// Done.
    Success,
    /// With this and nothing else.
    Exactly(Status),
    /// The connection ended under it: done, flushed, or blamed.
    Any,
}

/// A send request without its completion yet.
#[derive(Clone, Debug)]
pub struct Sent {
    pub id: u64,
    pub signaled: bool,
    pub expect: Expect,
    /// Not begun: the queue pair is in SQD, or a responder waits for the initiator's first FPDU.
    pub queued: Option<Spec>,
    pub len: u32,
    pub op: CompletionOp,
    /// It waits for an answer.
    pub asks: bool,
}

/// A receive without its completion yet.
#[derive(Clone, Debug)]
pub struct Posted {
    pub id: u64,
    pub sges: Vec<Sge>,
    /// The message that it gets.
    pub message: Option<Message>,
    /// It may still get one.
    pub open: bool,
    pub expect: Expect,
}

/// A request for a send queue, with memory of its own.
#[derive(Clone, Debug)]
pub struct Spec {
    pub id: u64,
    pub op: SendOp,
    pub sges: Vec<Sge>,
    pub inline: Option<Vec<u8>>,
    pub signaled: bool,
    pub fenced: bool,
    pub solicited: bool,
}

/// One side of a pair.
#[derive(Debug)]
pub struct Half {
    pub num: u32,
    pub pd: usize,
    pub state: QpState,
    pub shared: bool,
    pub max_send: usize,
    pub max_recv: usize,
    pub sq: VecDeque<Sent>,
    pub rq: VecDeque<Posted>,
    /// Messages without a receive (own queue), or without an observed one (shared queue).
    pub waiting: VecDeque<Message>,
    /// A send, or receive, of this connection completed with neither success nor flush.
    pub blamed: [bool; 2],
    /// Signalled Sends that were reported done, and receives likewise, since the connection began.
    pub sent: usize,
    pub got: usize,
    /// Receives that messages were given to.
    pub given: usize,
}

impl Half {
    /// Requests that surely are outstanding, and those that may be.
    pub fn outstanding(&self) -> (usize, usize) {
        if self.state == QpState::Error {
            return (0, 0);
        }
        (self.sq.iter().filter(|s| s.queued.is_some()).count(), self.sq.len())
    }

    /// Receives that no message has been given to.
    pub fn unmatched(&self) -> usize {
        self.rq.iter().filter(|r| r.open && r.message.is_none()).count()
    }
}
