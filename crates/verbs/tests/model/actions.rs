//! Verbs calls on the engine and on the reference, and what the reference says of each.

use rnic_verbs::{
    Access, CompletionOp, Error, Payload, QpState, RecvWr, SendFlags, SendOp, SendWr, Sge, Status,
};

use super::reference::{Expect, Key, Message, Posted, Sent, Spec, atomic};
use super::world::{Fate, Foot, SHARED_LEN, SHARED_SLOTS, World};

/// An error without its details.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    State,
    QueueFull,
    NotNegotiated,
    LocalMemory,
    Limit,
    Invalid,
    OtherDomain,
    OutOfRange,
    AccessRights,
    RegionBusy,
    Other,
}

impl From<&Error> for Refusal {
    fn from(e: &Error) -> Self {
        match e {
            Error::State { .. } => Self::State,
            Error::QueueFull(_) => Self::QueueFull,
            Error::NotNegotiated => Self::NotNegotiated,
            Error::LocalMemory { .. } => Self::LocalMemory,
            Error::Limit { .. } => Self::Limit,
            Error::Invalid(_) => Self::Invalid,
            Error::OtherDomain => Self::OtherDomain,
            Error::OutOfRange { .. } => Self::OutOfRange,
            Error::AccessRights { .. } => Self::AccessRights,
            Error::RegionBusy { .. } => Self::RegionBusy,
            _ => Self::Other,
        }
    }
}

/// What the reference says of a post.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Accepted,
    Refused(Refusal),
    /// It depends on how far the queue has got.
    Open,
}

/// Bytes of messages for which no receive is posted, at most.
const HELD: usize = 200_000;

/// Whether it waits for the peer's answer.
fn asks(op: &SendOp) -> bool {
    matches!(op, SendOp::Read { .. } | SendOp::ReadInvalidate { .. }) || is_atomic(op)
}

fn is_atomic(op: &SendOp) -> bool {
    matches!(op, SendOp::FetchAdd { .. } | SendOp::CmpSwap { .. } | SendOp::Swap { .. })
}

fn is_local(op: &SendOp) -> bool {
    matches!(op, SendOp::LocalInvalidate(_) | SendOp::BindWindow(_) | SendOp::FastRegister(_))
}

fn is_message(op: &SendOp) -> bool {
    matches!(op, SendOp::Send | SendOp::SendInvalidate(_) | SendOp::Immediate(_))
}

fn target(op: &SendOp) -> Option<(u32, u64)> {
    match *op {
        SendOp::Write { raddr, rkey }
        | SendOp::Read { raddr, rkey }
        | SendOp::ReadInvalidate { raddr, rkey }
        | SendOp::FetchAdd { raddr, rkey, .. }
        | SendOp::CmpSwap { raddr, rkey, .. }
        | SendOp::Swap { raddr, rkey, .. } => Some((rkey, raddr)),
        _ => None,
    }
}

fn completion_op(op: &SendOp) -> CompletionOp {
    match op {
        SendOp::Write { .. } => CompletionOp::Write,
        SendOp::Read { .. } | SendOp::ReadInvalidate { .. } => CompletionOp::Read,
        SendOp::FetchAdd { .. } => CompletionOp::FetchAdd,
        SendOp::CmpSwap { .. } => CompletionOp::CmpSwap,
        SendOp::Swap { .. } => CompletionOp::Swap,
        SendOp::Immediate(_) => CompletionOp::Immediate,
        SendOp::LocalInvalidate(_) => CompletionOp::LocalInvalidate,
        SendOp::BindWindow(_) => CompletionOp::BindWindow,
        SendOp::FastRegister(_) => CompletionOp::FastRegister,
        _ => CompletionOp::Send,
    }
}

fn total(sges: &[Sge]) -> u64 {
    sges.iter().map(|s| u64::from(s.len)).sum()
}

impl Spec {
    fn len(&self) -> u64 {
        self.inline.as_ref().map_or_else(|| total(&self.sges), |b| b.len() as u64)
    }

    fn wr(&self) -> SendWr<'_> {
        let payload = self.inline.as_deref().map_or(Payload::Sges(&self.sges), Payload::Inline);
        let mut wr = SendWr::new(self.id, self.op, payload);
        wr.flags.set(SendFlags::SIGNALED, self.signaled);
        wr.flags.set(SendFlags::FENCE, self.fenced);
        wr.flags.set(SendFlags::SOLICITED, self.solicited);
        wr
    }
}

impl World {
    fn who(&self, p: usize, x: usize) -> (usize, u32) {
        let h = &self.pairs[p].halves[x];
        (h.pd, h.num)
    }

    /// What posting this says; `before`: requests of the same list, which are not begun yet.
    fn verdict(&self, p: usize, x: usize, s: &Spec, before: usize) -> Verdict {
        use Verdict::Refused;
        let (pair, h) = (&self.pairs[p], &self.pairs[p].halves[x]);
        if !matches!(h.state, QpState::Rts | QpState::Sqd | QpState::Error) {
            return Refused(Refusal::State);
        }
        let (least, most) = h.outstanding();
        // A queue pair in error flushes at once.
        let before = if h.state == QpState::Error { 0 } else { before };
        let full = least + before >= h.max_send;
        if !full && most >= h.max_send {
            return Verdict::Open;
        }
        if full {
            return Refused(Refusal::QueueFull);
        }
        let extension = is_atomic(&s.op) || matches!(s.op, SendOp::Immediate(_));
        if extension && h.state != QpState::Error && !pair.extensions {
            return Refused(Refusal::NotNegotiated);
        }
        if let Some(bytes) = &s.inline {
            if !matches!(s.op, SendOp::Send | SendOp::SendInvalidate(_) | SendOp::Write { .. }) {
                return Refused(Refusal::Invalid);
            }
            if bytes.len() > 128 {
                return Refused(Refusal::Limit);
            }
        } else if s.sges.len() > 8 {
            return Refused(Refusal::Limit);
        } else if self.mem[x].local(&s.sges, asks(&s.op), h.pd).is_err() {
            return Refused(Refusal::LocalMemory);
        }
        let aligned = target(&s.op).is_none_or(|(_, to)| to % 8 == 0);
        if is_atomic(&s.op) && (s.len() != 8 || !aligned) {
            return Refused(Refusal::Invalid);
        }
        if (is_local(&s.op) || matches!(s.op, SendOp::Immediate(_))) && s.len() != 0 {
            return Refused(Refusal::Invalid);
        }
        if matches!(s.op, SendOp::ReadInvalidate { .. }) && (s.sges.len() != 1 || s.len() == 0) {
            return Refused(Refusal::Invalid);
        }
        Verdict::Accepted
    }

    /// The bytes that it touches.
    fn feet(&self, p: usize, x: usize, s: &Spec) -> Vec<Foot> {
        let (y, pair) = (1 - x, &self.pairs[p]);
        let by = (p, x);
        let mut feet = vec![];
        let mut whole = |dev: usize, key: u32| {
            let keys = self.mem[dev].keys.iter().filter(|k| k.key >> 8 == key >> 8);
            feet.extend(keys.map(|k| Foot {
                by,
                buf: (dev, k.buf),
                range: (0, u64::MAX),
                write: true,
                remote: false,
            }));
        };
        match s.op {
            SendOp::SendInvalidate(key) => whole(y, key),
            SendOp::LocalInvalidate(key) => whole(x, key),
            SendOp::ReadInvalidate { .. } => s.sges.iter().for_each(|s| whole(x, s.lkey)),
            SendOp::BindWindow(b) => [b.rkey, b.region].into_iter().for_each(|k| whole(x, k)),
            SendOp::FastRegister(f) => [f.rkey, f.region].into_iter().for_each(|k| whole(x, k)),
            _ => {}
        }
        // A key that is not valid may still be so, until what withdraws it is carried out.
        let stale = |dev: usize, key: u32| self.mem[dev].valid(key).is_none().then_some((dev, key));
        let keys = s.sges.iter().filter_map(|s| stale(x, s.lkey));
        for (dev, key) in keys.chain(target(&s.op).and_then(|(key, _)| stale(y, key))) {
            let known = self.mem[dev].keys.iter().filter(|k| k.key == key);
            feet.extend(known.map(|k| Foot {
                by,
                buf: (dev, k.buf),
                range: (0, u64::MAX),
                write: false,
                remote: false,
            }));
        }
        let local = self.mem[x].local(&s.sges, asks(&s.op), self.who(p, x).0).unwrap_or_default();
        let foot = |dev, (buf, at, len): (usize, u64, u64), write, remote| Foot {
            by,
            buf: (dev, buf),
            range: (at, at + len),
            write,
            remote,
        };
        feet.extend(local.into_iter().map(|l| foot(x, l, asks(&s.op), false)));
        if let Some((key, to)) = target(&s.op) {
            let write = !matches!(s.op, SendOp::Read { .. } | SendOp::ReadInvalidate { .. });
            let within = self.mem[y].reach(key, to, s.len());
            if let Ok((buf, at)) = self.mem[y].check(key, to, within, Access::empty(), self.who(p, y)) {
                feet.push(foot(y, (buf, at, within), write, true));
            }
        }
        if is_message(&s.op)
            && let Some(r) = pair.halves[y].rq.iter().find(|r| r.open && r.message.is_none())
        {
            let at = self.mem[y].local(&r.sges, true, self.who(p, y).0).unwrap_or_default();
            feet.extend(at.into_iter().map(|l| foot(y, l, true, true)));
        }
        feet
    }

    /// Posts these, as one list as far as the reference is sure of each.
    pub fn post(&mut self, p: usize, x: usize, specs: Vec<Spec>) {
        let mut list: Vec<Spec> = vec![];
        for s in specs {
            if self.pairs[p].qps[x].is_none() || self.too_much(p, x, &s) {
                continue;
            }
            if x == 0 && self.pairs[p].halves[1].sq.iter().any(|s| s.queued.is_some()) {
                // It may open the gate for what the responder has queued.
                self.hand_over(p, x, &mut list, None);
                self.settle();
            }
            let mut feet = self.feet(p, x, &s);
            let begun = |s: &&Sent| s.queued.is_none() && list.iter().any(|l| l.id == s.id);
            let before = self.pairs[p].halves[x].sq.iter().filter(begun).count();
            let mut verdict = self.verdict(p, x, &s, before);
            if self.pairs[p].fate == Fate::Well && (self.conflicts(&feet) || verdict == Verdict::Open) {
                self.hand_over(p, x, &mut list, None);
                self.settle();
                feet = self.feet(p, x, &s);
                verdict = self.verdict(p, x, &s, 0);
                assert_ne!(verdict, Verdict::Open, "nothing is under way");
            }
            if self.conflicts(&feet) {
                // With a request that cannot begin yet, or one that may never have happened.
                continue;
            }
            let sure = matches!(self.pairs[p].fate, Fate::Well);
            self.trace.push(format!("  pair {p} side {x}: {s:?}: {verdict:?}, sure: {sure}"));
            if !sure {
                self.hand_over(p, x, &mut list, None);
                self.post_unsure(p, x, s, feet);
                continue;
            }
            if let Verdict::Refused(why) = verdict {
                list.push(s);
                self.hand_over(p, x, &mut list, Some(why));
                continue;
            }
            self.flight.extend(feet);
            self.enqueue(p, x, &s);
            list.push(s);
        }
        self.hand_over(p, x, &mut list, None);
    }

    /// Posts a list of which the last is refused, or none.
    fn hand_over(&self, p: usize, x: usize, list: &mut Vec<Spec>, refused: Option<Refusal>) {
        if list.is_empty() {
            return;
        }
        let Some(qp) = &self.pairs[p].qps[x] else { return };
        let wrs: Vec<_> = list.iter().map(Spec::wr).collect();
        let got = qp.post_send_list(&wrs).map_err(|e| (e.index, Refusal::from(&e.error)));
        let want = refused.map_or(Ok(()), |why| Err((list.len() - 1, why)));
        assert_eq!(got, want, "posting on pair {p} side {x}: {list:?}");
        list.clear();
    }

    /// On a connection that is about to fail: whether it is accepted depends on how far that has got.
    fn post_unsure(&mut self, p: usize, x: usize, s: Spec, feet: Vec<Foot>) {
        let Some(qp) = &self.pairs[p].qps[x] else { return };
        match qp.post_send(&s.wr()) {
            Ok(()) => {
                self.flight.extend(feet);
                self.enqueue(p, x, &s);
            }
            Err(e) => {
                let why = Refusal::from(&e);
                let possible = self.verdict(p, x, &s, 0) == Verdict::Refused(why);
                // Which of several reasons comes first depends on timing, too.
                let never = [Refusal::State, Refusal::Other];
                assert!(possible || !never.contains(&why), "{why:?} for {s:?}");
            }
        }
    }

    /// Would make the peer hold more than it can, or be too long for the shared queue.
    fn too_much(&self, p: usize, x: usize, s: &Spec) -> bool {
        let peer = &self.pairs[p].halves[1 - x];
        let held: usize = peer.waiting.iter().map(|m| m.bytes.len() + 64).sum();
        let queued = self.pairs[p].halves[x].sq.iter().filter(|s| s.queued.is_some()).count();
        is_message(&s.op) && (held > HELD || queued > 8 || (peer.shared && s.len() > u64::from(SHARED_LEN)))
    }

    /// An accepted request: flushed, queued, or begun.
    fn enqueue(&mut self, p: usize, x: usize, s: &Spec) {
        let pair = &mut self.pairs[p];
        let gated = x == 1 && !pair.opened;
        let h = &mut pair.halves[x];
        let waits = h.state == QpState::Sqd || gated || h.sq.iter().any(|s| s.queued.is_some());
        let mut sent = Sent {
            id: s.id,
            signaled: s.signaled || self.config.signal_all(),
            expect: Expect::Success,
            queued: None,
            len: s.len() as u32,
            op: completion_op(&s.op),
            asks: asks(&s.op),
        };
        if h.state == QpState::Error {
            sent.expect = Expect::Exactly(Status::WrFlush);
            h.sq.push_back(sent);
            return;
        }
        if pair.fate != Fate::Well {
            sent.expect = Expect::Any;
        }
        if waits {
            if pair.fate != Fate::Well {
                // It may be begun yet, if what opens the gate is on its way.
                h.sq.push_back(sent);
                return;
            }
            sent.queued = Some(s.clone());
            h.sq.push_back(sent);
            return;
        }
        h.sq.push_back(sent);
        self.begin(p, x, s);
    }

    fn expect(&mut self, p: usize, x: usize, id: u64, expect: Expect) {
        let sure = self.pairs[p].fate == Fate::Well;
        if let Some(s) = self.pairs[p].halves[x].sq.iter_mut().find(|s| s.id == id) {
            s.expect = if sure { expect } else { Expect::Any };
        }
    }

    /// The initiator's first FPDU lets the responder send.
    fn open_gate(&mut self, p: usize, x: usize) {
        if x == 0 && !std::mem::replace(&mut self.pairs[p].opened, true) {
            self.begin_queued(p, 1);
        }
    }

    /// Begins what waited for this queue pair to send.
    pub fn begin_queued(&mut self, p: usize, x: usize) {
        if self.pairs[p].halves[x].state != QpState::Rts || (x == 1 && !self.pairs[p].opened) {
            return;
        }
        let queued = |s: &mut Sent| s.queued.take();
        let specs: Vec<_> = self.pairs[p].halves[x].sq.iter_mut().filter_map(queued).collect();
        for s in specs {
            if self.pairs[p].fate != Fate::Well {
                self.expect(p, x, s.id, Expect::Any);
            }
            self.begin(p, x, &s);
        }
    }

    /// The request takes effect, or ends the connection.
    fn begin(&mut self, p: usize, x: usize, s: &Spec) {
        if is_local(&s.op) {
            return self.begin_local(p, x, s);
        }
        self.open_gate(p, x);
        let y = 1 - x;
        match self.pairs[p].fate {
            // The peer looks at nothing that comes behind what it refused, or after it ended.
            Fate::Refused(asker) if asker == x => return,
            Fate::Ended(by) if by == y => return,
            _ => {}
        }
        let Ok(local) = self.mem[x].local(&s.sges, asks(&s.op), self.who(p, x).0) else {
            // Withdrawn since it was posted.
            self.expect(p, x, s.id, Expect::Any);
            return self.kill(p, Fate::Both);
        };
        let mut bytes = s.inline.clone().unwrap_or_default();
        if !asks(&s.op) {
            for (buf, at, len) in &local {
                bytes.extend(self.mem[x].bufs[*buf].get(*at, *len));
            }
        }
        match s.op {
            SendOp::Write { raddr, rkey } => self.begin_write(p, x, s.id, (rkey, raddr), &bytes),
            SendOp::Send => self.message(p, x, Message { bytes, immediate: None, invalidated: None }),
            SendOp::SendInvalidate(key) => {
                self.message(p, x, Message { bytes, immediate: None, invalidated: Some(key) });
            }
            SendOp::Immediate(v) => {
                self.message(p, x, Message { bytes, immediate: Some(v), invalidated: None })
            }
            _ => self.begin_asking(p, x, s, &local),
        }
    }

    fn begin_local(&mut self, p: usize, x: usize, s: &Spec) {
        let who = self.who(p, x);
        let (fine, status) = match &s.op {
            SendOp::BindWindow(b) => (self.mem[x].bind(b, who), Status::MwBind),
            SendOp::FastRegister(f) => (self.mem[x].fast(f, who), Status::MwBind),
            SendOp::LocalInvalidate(key) => {
                (self.mem[x].invalidate_local(*key, who), Status::LocalProtection)
            }
            _ => return,
        };
        if !fine {
            self.expect(p, x, s.id, Expect::Exactly(status));
            // The Terminate is the initiator's first FPDU, if there was none.
            self.open_gate(p, x);
            // Not at once, if it waits for a response or for the gate.
            self.kill(p, Fate::Failing);
        }
    }

    /// A tagged message to the peer's memory; its sender knows it done when TCP has it.
    fn begin_write(&mut self, p: usize, x: usize, id: u64, (key, to): (u32, u64), bytes: &[u8]) {
        let y = 1 - x;
        if bytes.is_empty() {
            return;
        }
        let doubt = self.pairs[p].fate != Fate::Well;
        let who = self.who(p, y);
        match self.mem[y].check(key, to, bytes.len() as u64, Access::REMOTE_WRITE, who) {
            Ok((buf, at)) => self.mem[y].bufs[buf].put(at, bytes, (p, x), false, doubt),
            Err(_) => {
                self.expect(p, x, id, Expect::Any);
                self.kill(p, Fate::Refused(x));
                // Each FPDU is looked at when it comes: those before the bounds are placed.
                let within = self.mem[y].reach(key, to, bytes.len() as u64);
                if let Ok((buf, at)) = self.mem[y].check(key, to, within, Access::REMOTE_WRITE, who) {
                    self.mem[y].bufs[buf].put(at, &bytes[..within as usize], (p, x), false, true);
                }
            }
        }
    }

    fn begin_asking(&mut self, p: usize, x: usize, s: &Spec, local: &[(usize, u64, u64)]) {
        let y = 1 - x;
        let doubt = self.pairs[p].fate != Fate::Well;
        let Some((key, to)) = target(&s.op) else { return };
        let right = if is_atomic(&s.op) { Access::REMOTE_ATOMIC } else { Access::REMOTE_READ };
        let mut bytes = vec![];
        if s.len() > 0 {
            let Ok((buf, at)) = self.mem[y].check(key, to, s.len(), right, self.who(p, y)) else {
                // The oldest unanswered request is blamed.
                let alone = self.pairs[p].halves[x].sq.iter().filter(|s| s.asks).count() == 1;
                let status = Expect::Exactly(Status::RemoteAccess);
                self.expect(p, x, s.id, if alone { status } else { Expect::Any });
                return self.kill(p, Fate::Refused(x));
            };
            bytes = self.mem[y].bufs[buf].get(at, s.len());
            if is_atomic(&s.op) {
                let old = u64::from_ne_bytes(bytes[..].try_into().expect("eight bytes"));
                let new = atomic(&s.op, old).to_ne_bytes();
                self.mem[y].bufs[buf].put(at, &new, (p, x), false, doubt);
            }
        }
        let mut rest = &bytes[..];
        for (buf, at, len) in local {
            let (head, tail) = rest.split_at(*len as usize);
            self.mem[x].bufs[*buf].put(*at, head, (p, x), true, doubt);
            rest = tail;
        }
        if let (SendOp::ReadInvalidate { .. }, [sink]) = (&s.op, &s.sges[..]) {
            let who = self.who(p, x);
            // The key may be in use by a window; the Read itself succeeds.
            self.mem[x].invalidate_local(sink.lkey, who);
        }
    }

    /// An untagged message to the peer's receives.
    fn message(&mut self, p: usize, x: usize, m: Message) {
        let y = 1 - x;
        let sure = self.pairs[p].fate == Fate::Well;
        let waiting = self.pairs[p].halves[y].waiting.len();
        if !self.deliver(p, x, m.clone()) {
            return self.kill(p, Fate::Refused(x));
        }
        let placed = self.pairs[p].halves[y].waiting.len() == waiting;
        let who = self.who(p, y);
        if m.invalidated.is_some_and(|key| !self.mem[y].invalidate_remote(key, who)) {
            // Placed, but never delivered.
            let h = &mut self.pairs[p].halves[y];
            let last = h.rq.iter_mut().rev().find(|r| r.message.is_some());
            match last.filter(|_| placed) {
                Some(r) => {
                    r.expect = if sure { Expect::Exactly(Status::WrFlush) } else { Expect::Any };
                    h.given -= 1;
                }
                None => drop(h.waiting.pop_back()),
            }
            self.kill(p, Fate::Refused(x));
            let bufs = self.mem[y].bufs.iter_mut().flat_map(|b| &mut b.changes);
            bufs.filter(|c| c.by == (p, x)).for_each(|c| c.doubt = true);
        }
    }

    /// Gives it to the oldest receive, if there is one. False: that cannot take it.
    fn deliver(&mut self, p: usize, x: usize, m: Message) -> bool {
        let (y, doubt) = (1 - x, self.pairs[p].fate != Fate::Well);
        let pd = self.who(p, y).0;
        let h = &mut self.pairs[p].halves[y];
        let free = h.rq.iter_mut().find(|r| r.open && r.message.is_none());
        let Some(r) = free.filter(|_| !h.shared && h.waiting.is_empty()) else {
            h.waiting.push_back(m);
            return true;
        };
        r.message = Some(m.clone());
        if m.bytes.len() as u64 > total(&r.sges) {
            r.expect = if doubt { Expect::Any } else { Expect::Exactly(Status::LocalLengthError) };
            let sges = r.sges.clone();
            self.scatter(p, x, &sges, &m.bytes, true);
            return false;
        }
        // Only what the message fills is looked at.
        let mut left = m.bytes.len() as u32;
        let part = |s: &Sge| {
            let len = s.len.min(left);
            left -= len;
            Sge { len, ..*s }
        };
        let used: Vec<_> = r.sges.iter().map(part).collect();
        let fine = self.mem[y].local(&used, true, pd).is_ok();
        let expect = if fine { Expect::Success } else { Expect::Exactly(Status::LocalProtection) };
        r.expect = if doubt { Expect::Any } else { expect };
        h.given += usize::from(fine && !doubt);
        self.scatter(p, x, &used, &m.bytes, doubt || !fine);
        fine
    }

    /// A message's bytes to where a receive wants them, as far as that can be reached.
    fn scatter(&mut self, p: usize, x: usize, sges: &[Sge], bytes: &[u8], doubt: bool) {
        let (y, pd) = (1 - x, self.who(p, 1 - x).0);
        let mut rest = bytes;
        for s in sges {
            let (head, tail) = rest.split_at(rest.len().min(s.len as usize));
            rest = tail;
            let Ok(places) = self.mem[y].local(std::slice::from_ref(s), true, pd) else { continue };
            for (buf, at, len) in places {
                self.mem[y].bufs[buf].put(at, head, (p, x), false, doubt);
                let range = (at, at + len);
                self.flight.push(Foot { by: (p, x), buf: (y, buf), range, write: true, remote: true });
            }
        }
    }

    /// Posts a receive to a queue pair's own queue.
    pub fn post_recv(&mut self, p: usize, x: usize, sges: Vec<Sge>) {
        let id = self.id(true);
        let pd = self.who(p, x).0;
        let touched = self.mem[x].local(&sges, true, pd).unwrap_or_default();
        let filled = !self.pairs[p].halves[x].waiting.is_empty();
        let by = (p, 1 - x);
        // A message that came before goes there now: in no order with what its sender does.
        let place =
            |(buf, at, len)| Foot { by, buf: (x, buf), range: (at, at + len), write: filled, remote: false };
        let mut feet: Vec<_> = touched.into_iter().map(place).collect();
        let named = |k: &&Key| !k.valid && sges.iter().any(|s| s.lkey == k.key);
        let whole = |k: &Key| Foot { by, buf: (x, k.buf), range: (0, u64::MAX), write: false, remote: false };
        feet.extend(self.mem[x].keys.iter().filter(named).map(whole));
        if self.conflicts(&feet) {
            self.settle();
            if self.conflicts(&feet) {
                return;
            }
        }
        let mut verdict = self.recv_verdict(p, x, &sges);
        if verdict == Verdict::Open && self.pairs[p].fate == Fate::Well {
            self.settle();
            verdict = self.recv_verdict(p, x, &sges);
            assert_ne!(verdict, Verdict::Open, "nothing is under way");
        }
        let sure = self.pairs[p].fate == Fate::Well;
        self.trace.push(format!("  pair {p} side {x}: receive {id} {sges:?}: {verdict:?}, sure: {sure}"));
        let Some(qp) = &self.pairs[p].qps[x] else { return };
        let got = qp.post_recv(&RecvWr::new(id, &sges)).map_err(|e| Refusal::from(&e));
        if sure {
            let want = if let Verdict::Refused(why) = verdict { Err(why) } else { Ok(()) };
            assert_eq!(got, want, "posting a receive on pair {p} side {x}: {sges:?}");
        }
        if got.is_err() {
            return;
        }
        let flush = Expect::Exactly(Status::WrFlush);
        let pair = &mut self.pairs[p];
        let over = pair.halves[x].state == QpState::Error;
        let expect = if over || !sure { flush } else { Expect::Success };
        let h = &mut pair.halves[x];
        h.rq.push_back(Posted { id, sges, message: None, open: !over, expect });
        if !over && !h.waiting.is_empty() {
            // Gives the oldest of the waiting messages to it.
            let rest = h.waiting.split_off(1);
            let first = h.waiting.pop_front().expect("not empty");
            let fine = self.deliver(p, 1 - x, first);
            self.pairs[p].halves[x].waiting = rest;
            self.flight.extend(feet);
            if !fine {
                // It came long ago; what the peer sent behind it may have been seen, or not.
                self.kill(p, Fate::Failing);
            }
        }
    }

    fn recv_verdict(&self, p: usize, x: usize, sges: &[Sge]) -> Verdict {
        let h = &self.pairs[p].halves[x];
        if h.shared {
            return Verdict::Refused(Refusal::Invalid);
        }
        if sges.len() > 8 {
            return Verdict::Refused(Refusal::Limit);
        }
        if h.state == QpState::Reset {
            return Verdict::Refused(Refusal::State);
        }
        if self.mem[x].local(sges, true, h.pd).is_err() {
            return Verdict::Refused(Refusal::LocalMemory);
        }
        if h.state == QpState::Error || h.rq.len() < h.max_recv {
            return Verdict::Accepted;
        }
        if h.unmatched() >= h.max_recv { Verdict::Refused(Refusal::QueueFull) } else { Verdict::Open }
    }

    /// Posts a receive to the shared queue: a slot of its region, in pieces.
    pub fn post_shared(&mut self, pieces: u32) {
        let base = self.srq_region.mr.addr();
        let used = |at: u64| self.srq_posted.iter().any(|r| r.sges[0].addr == base + at);
        let free = (0..SHARED_SLOTS as u64 + 1).map(|n| n * u64::from(SHARED_LEN)).find(|at| !used(*at));
        let at = free.unwrap_or_default();
        if self.srq_posted.len() >= SHARED_SLOTS {
            self.settle();
        }
        let id = self.id(true);
        let full = self.srq_posted.len() >= SHARED_SLOTS;
        let len = SHARED_LEN / pieces;
        let at = if full { 0 } else { at };
        let sges: Vec<_> = (0..pieces)
            .map(|n| {
                let len = if n + 1 == pieces { SHARED_LEN - n * len } else { len };
                self.srq_region.mr.sge(at + u64::from(n * (SHARED_LEN / pieces)), len)
            })
            .collect();
        self.trace.push(format!("  shared receive {id} {sges:?}"));
        let got = self.srq.post_recv(&RecvWr::new(id, &sges)).map_err(|e| Refusal::from(&e));
        let want = if full { Err(Refusal::QueueFull) } else { Ok(()) };
        assert_eq!(got, want, "posting a shared receive");
        if !full {
            self.srq_posted.push(Posted { id, sges, message: None, open: true, expect: Expect::Success });
        }
    }

    /// Asks for another state.
    pub fn modify(&mut self, p: usize, x: usize, to: QpState) {
        use QpState::{Error as Failed, Init, Reset, Rts, Sqd};
        // What will end the connection is stopped, too, if it has not begun.
        if matches!(to, Rts | Sqd) && !matches!(self.pairs[p].fate, Fate::Ended(_)) {
            self.settle();
        }
        let from = self.pairs[p].halves[x].state;
        let allowed = matches!(
            (from, to),
            (_, Reset) | (Init | Rts | Sqd | Failed, Failed) | (Reset | Init, Init) | (Rts | Sqd, Sqd | Rts)
        );
        // On a connection that is about to fail these two depend on how far that has got.
        let timing = matches!(to, Rts | Sqd) && matches!(from, Rts | Sqd);
        let sure = self.pairs[p].fate == Fate::Well || !timing;
        self.trace.push(format!("  pair {p} side {x}: modify to {to:?}, allowed: {allowed}, sure: {sure}"));
        let Some(qp) = &self.pairs[p].qps[x] else { return };
        let got = qp.modify(to).map_err(|e| Refusal::from(&e));
        if sure {
            assert_eq!(got, if allowed { Ok(()) } else { Err(Refusal::State) }, "{from:?} to {to:?}");
        } else {
            return;
        }
        if !allowed {
            return;
        }
        match to {
            Reset => self.forget(p, x),
            Failed => self.finish(p, x, to),
            Rts => {
                self.pairs[p].halves[x].state = Rts;
                self.begin_queued(p, x);
            }
            _ => self.pairs[p].halves[x].state = to,
        }
        if let Some(qp) = &self.pairs[p].qps[x]
            && self.pairs[p].fate == Fate::Well
        {
            assert_eq!(qp.state(), to, "after a change of state");
        }
    }

    /// This side was ended from here.
    fn finish(&mut self, p: usize, x: usize, state: QpState) {
        self.kill(p, Fate::Ended(x));
        let h = &mut self.pairs[p].halves[x];
        if matches!(h.state, QpState::Init | QpState::Reset) {
            h.rq.iter_mut().for_each(|r| r.expect = Expect::Exactly(Status::WrFlush));
        }
        self.ended(p, x, state);
    }

    /// It begins anew: of what was posted nothing is reported, except what was over before.
    fn forget(&mut self, p: usize, x: usize) {
        self.kill(p, Fate::Ended(x));
        let h = &mut self.pairs[p].halves[x];
        h.sq.iter_mut().for_each(|s| s.expect = Expect::Any);
        h.rq.iter_mut().for_each(|r| r.expect = Expect::Any);
        self.drain();
        let h = &mut self.pairs[p].halves[x];
        (h.sq, h.rq, h.state) = (Default::default(), Default::default(), QpState::Reset);
    }

    pub fn disconnect(&mut self, p: usize, x: usize) {
        let from = self.pairs[p].halves[x].state;
        self.trace.push(format!("  pair {p} side {x}: disconnect in {from:?}"));
        let Some(qp) = &self.pairs[p].qps[x] else { return };
        qp.disconnect();
        let to = if from == QpState::Reset { QpState::Reset } else { QpState::Error };
        self.finish(p, x, to);
    }

    /// Lets go of the last handle; nothing may be reported of it later.
    pub fn destroy(&mut self, p: usize, x: usize) {
        self.trace.push(format!("  pair {p} side {x}: destroyed"));
        let Some(qp) = self.pairs[p].qps[x].take() else { return };
        drop(qp);
        self.kill(p, Fate::Ended(x));
        let h = &mut self.pairs[p].halves[x];
        if h.state == QpState::Init {
            h.rq.iter_mut().for_each(|r| r.expect = Expect::Exactly(Status::WrFlush));
        }
        self.pairs[p].dropping = Some(x);
        self.ended(p, x, QpState::Error);
        self.pairs[p].dropping = None;
    }
}
