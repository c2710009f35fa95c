//! The engine's objects next to the reference, and the rules that tie them together.

use std::collections::VecDeque;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rnic_verbs::iwarp::mpa::startup::{CrcPolicy, Policy, Revision, RtrOffer};
use rnic_verbs::{
    Access, Completion, CompletionQueue, ConnParams, ConnPolicy, Device, DeviceConfig, FastRegion,
    FpduPolicy, MemoryRegion, MemoryWindow, ProtectionDomain, QpInit, QpState, QueuePair, Role,
    SharedReceiveQueue, SrqAttr, convert,
};

use super::reference::{Bytes, Expect, Half, Key, Kind, Memory, Message, Posted, Sent};

/// Far longer than anything here takes on a busy machine.
const WATCHDOG: Duration = Duration::from_secs(60);
/// Receives of the shared queue are this long, and messages to it no longer.
pub const SHARED_LEN: u32 = 512;
pub const SHARED_SLOTS: usize = 32;
pub const PAIRS: usize = 3;

/// Choices for a whole run.
#[derive(Clone, Copy, Debug)]
pub struct Config(pub u16);

impl Config {
    fn bit(self, n: u16) -> bool {
        self.0 >> n & 1 == 1
    }

    fn policy(self) -> ConnPolicy {
        let depth = [32, 1, 2, 4][usize::from(self.0 >> 8 & 3)];
        let mpa = Policy {
            crc: if self.bit(0) { CrcPolicy::On } else { CrcPolicy::Off },
            want_markers: self.bit(1),
            extensions: !self.bit(2) || !self.bit(3),
            revision: if self.bit(2) && self.bit(4) { Revision::V1 } else { Revision::V2 },
            p2p: (self.bit(5) && !self.bit(4)).then_some(RtrOffer { write: true, read: false, send: false }),
            ord: depth,
            ird: depth,
            ..Policy::default()
        };
        let mut policy = ConnPolicy::default();
        policy.mpa = mpa;
        policy.settle = Duration::ZERO;
        policy.fpdu = match self.0 >> 6 & 3 {
            0 | 1 => FpduPolicy::Mss,
            2 => FpduPolicy::Large,
            _ => FpduPolicy::Bytes(1500),
        };
        policy
    }

    fn one_queue(self) -> bool {
        self.bit(10)
    }

    fn max_send(self) -> u32 {
        if self.bit(11) { 6 } else { 64 }
    }

    fn max_recv(self) -> u32 {
        if self.bit(12) { 4 } else { 64 }
    }

    pub fn signal_all(self) -> bool {
        self.bit(13)
    }
}

/// A registered region and the reference's buffer of it.
#[derive(Debug)]
pub struct Region {
    pub mr: MemoryRegion,
    pub buf: usize,
    pub pd: usize,
}

/// One device and what was made from it.
#[derive(Debug)]
pub struct Side {
    pub pds: [ProtectionDomain; 2],
    pub cqs: [CompletionQueue; 2],
    pub regions: Vec<Region>,
    pub windows: Vec<(u32, MemoryWindow)>,
    pub fasts: Vec<(u32, FastRegion)>,
    pub device: Device,
}

/// How a pair is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    Well,
    /// Memory was withdrawn under it: it may fail or not.
    Doubt,
    /// A request of this side was refused by the other.
    Refused(usize),
    /// This side ended it.
    Ended(usize),
    /// A local request cannot be carried out when its turn comes.
    Failing,
    /// Several reasons at once.
    Both,
}

/// Two queue pairs, one on each device.
#[derive(Debug)]
pub struct Pair {
    pub qps: [Option<QueuePair>; 2],
    pub halves: [Half; 2],
    pub live: bool,
    /// The initiator has sent something, so the responder may.
    pub opened: bool,
    pub extensions: bool,
    pub fate: Fate,
    /// This side's handle is gone; what it had is being collected.
    pub dropping: Option<usize>,
    /// Bytes sent and received before this connection.
    base: [(u64, u64); 2],
}

/// Bytes of a request under way.
#[derive(Clone, Copy, Debug)]
pub struct Foot {
    pub by: (usize, usize),
    /// Device and buffer.
    pub buf: (usize, usize),
    pub range: (u64, u64),
    pub write: bool,
    /// At the peer, where requests take effect in order.
    pub remote: bool,
}

impl Foot {
    fn conflicts(&self, new: &Self) -> bool {
        let apart = self.buf != new.buf || self.range.1 <= new.range.0 || new.range.1 <= self.range.0;
        let ordered = self.by == new.by && self.remote && new.remote && self.write;
        !apart && (self.write || new.write) && !ordered
    }
}

#[derive(Debug)]
pub struct World {
    pub config: Config,
    pub pairs: Vec<Pair>,
    pub srq: SharedReceiveQueue,
    pub srq_posted: Vec<Posted>,
    pub srq_region: Region,
    pub sides: [Side; 2],
    pub mem: [Memory; 2],
    pub flight: Vec<Foot>,
    /// Bytes of the shared queue's region that nothing is known about.
    wild: Vec<(u64, u64)>,
    pub next_id: u64,
    /// What was done, for the report of a failure.
    pub trace: Vec<String>,
}

/// Everything a region can grant.
pub fn all_rights() -> Access {
    Access::all() - Access::ZERO_BASED
}

impl World {
    pub fn new(config: Config) -> Self {
        let sides = [0, 1].map(|_| {
            let mut c = DeviceConfig::default();
            c.linger = Duration::from_millis(500);
            let device = Device::open(c).expect("device");
            let pds = [0, 1].map(|_| device.alloc_pd().expect("pd"));
            let first = device.create_cq(4096, None).expect("cq");
            let second =
                if config.one_queue() { first.clone() } else { device.create_cq(4096, None).expect("cq") };
            Side { device, pds, cqs: [first, second], regions: vec![], windows: vec![], fasts: vec![] }
        });
        let pd = &sides[1].pds[0];
        let srq = pd.create_srq(SrqAttr { max_wr: SHARED_SLOTS as u32, limit: 0 }).expect("srq");
        let mr = pd.register(SHARED_LEN as usize * SHARED_SLOTS, Access::LOCAL_WRITE).expect("region");
        let mut w = Self {
            config,
            pairs: vec![],
            srq,
            srq_posted: vec![],
            srq_region: Region { mr, buf: 0, pd: 0 },
            sides,
            mem: Default::default(),
            flight: vec![],
            wild: vec![],
            next_id: 0,
            trace: vec![],
        };
        let remote = w.srq_region.mr.remote();
        w.srq_region.buf = w.learn(1, &remote, Access::LOCAL_WRITE, 0);
        for dev in 0..2 {
            w.register(dev, 0, 40_960, all_rights());
            w.register(dev, 0, 4096, all_rights() | Access::ZERO_BASED);
            w.register(dev, 1, 8192, all_rights());
        }
        for p in 0..PAIRS {
            let made = [0, 1].map(|dev| w.create(p, dev));
            let [a, b] = made;
            w.pairs.push(Pair {
                qps: [Some(a.0), Some(b.0)],
                halves: [a.1, b.1],
                live: false,
                opened: false,
                extensions: false,
                fate: Fate::Well,
                dropping: None,
                base: Default::default(),
            });
        }
        w.connect(0);
        w
    }

    /// Tells the reference of a region; its buffer's number.
    fn learn(&mut self, dev: usize, r: &rnic_verbs::RemoteBuffer, access: Access, pd: usize) -> usize {
        let mem = &mut self.mem[dev];
        let buf = mem.bufs.len();
        mem.bufs.push(Bytes { now: vec![0; r.len as usize], changes: vec![] });
        let (key, iova, len) = (r.rkey, r.addr, r.len);
        let kind = Kind::Region;
        mem.keys.push(Key {
            key,
            kind,
            pd,
            qp: None,
            access,
            iova,
            len,
            buf,
            at: 0,
            parent: None,
            valid: true,
        });
        buf
    }

    pub fn register(&mut self, dev: usize, pd: usize, len: usize, access: Access) {
        let made = self.sides[dev].pds[pd].register(len, access);
        if !super::reference::may_register(access) {
            assert!(matches!(made, Err(rnic_verbs::Error::AccessRights { .. })), "{access:?}: {made:?}");
            return;
        }
        let mr = made.expect("register");
        let buf = self.learn(dev, &mr.remote(), access, pd);
        let data: Vec<u8> = (0..len).map(|i| (i * 7 + buf * 31 + dev * 101) as u8).collect();
        mr.write_at(0, &data).expect("write_at");
        self.mem[dev].bufs[buf].now = data;
        self.sides[dev].regions.push(Region { mr, buf, pd });
    }

    /// The domain of a pair's queue pairs.
    fn domain(p: usize) -> usize {
        usize::from(p == 2)
    }

    fn create(&self, p: usize, dev: usize) -> (QueuePair, Half) {
        let (c, side, pd) = (self.config, &self.sides[dev], Self::domain(p));
        let shared = dev == 1 && p > 0;
        let mut init =
            QpInit::with_cqs(&side.cqs[0], &side.cqs[1]).depth(c.max_send(), c.max_recv()).sge(8).inline(128);
        if shared {
            init = init.srq(&self.srq);
        }
        if c.signal_all() {
            init = init.signal_all();
        }
        let qp = side.pds[pd].create_qp(&init).expect("create_qp");
        assert_eq!(qp.state(), QpState::Init);
        let half = Half {
            num: qp.num(),
            pd,
            state: QpState::Init,
            shared,
            max_send: c.max_send() as usize,
            max_recv: c.max_recv() as usize,
            sq: VecDeque::new(),
            rq: VecDeque::new(),
            waiting: VecDeque::new(),
            blamed: [false; 2],
            sent: 0,
            got: 0,
            given: 0,
        };
        (qp, half)
    }

    /// Connects a pair, with new queue pairs or reset ones where the old ones have failed.
    pub fn connect(&mut self, p: usize) {
        self.settle();
        if self.pairs[p].live {
            return;
        }
        for x in 0..2 {
            if self.pairs[p].qps[x].is_none() {
                let (qp, half) = self.create(p, x);
                (self.pairs[p].qps[x], self.pairs[p].halves[x]) = (Some(qp), half);
            }
            if self.pairs[p].halves[x].state == QpState::Error {
                self.modify(p, x, QpState::Reset);
            }
            self.modify(p, x, QpState::Init);
        }
        let policy = self.config.policy();
        let pair = &mut self.pairs[p];
        let [Some(a), Some(b)] = &pair.qps else { unreachable!("both were made") };
        pair.base = [a, b].map(|q| (q.counters().tx_bytes, q.counters().rx_bytes));
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let active = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        let passive = listener.accept().expect("accept").0;
        let params = || ConnParams::with_policy(policy.clone());
        let n = std::thread::scope(|s| {
            s.spawn(|| convert(b, passive, Role::Responder, params()).expect("accept"));
            convert(a, active, Role::Initiator, params()).expect("connect").negotiated
        });
        assert_eq!((a.state(), b.state()), (QpState::Rts, QpState::Rts));
        (pair.live, pair.opened, pair.extensions) = (true, n.rtr.is_some(), n.extensions);
        pair.fate = Fate::Well;
        for h in &mut pair.halves {
            (h.state, h.blamed, h.sent, h.got, h.given) = (QpState::Rts, [false; 2], 0, 0, 0);
            h.waiting.clear();
        }
    }

    pub fn id(&mut self, recv: bool) -> u64 {
        self.next_id += 1;
        self.next_id << 1 | u64::from(recv)
    }

    pub fn conflicts(&self, feet: &[Foot]) -> bool {
        feet.iter().any(|new| self.flight.iter().any(|old| old.conflicts(new)))
    }

    /// Takes all completions there are and checks each.
    pub fn drain(&mut self) -> usize {
        let mut n = 0;
        let mut out = [Completion::default(); 7];
        for dev in 0..2 {
            for q in 0..2 {
                loop {
                    let got = self.sides[dev].cqs[q].poll(&mut out).expect("poll");
                    for c in &out[..got] {
                        self.observe(dev, c);
                    }
                    n += got;
                    if got == 0 {
                        break;
                    }
                }
            }
        }
        n
    }

    fn observe(&mut self, dev: usize, c: &Completion) {
        self.trace.push(format!("      seen on {dev}: {c:?}"));
        let there = |p: &Pair| p.qps[dev].is_some() || p.dropping == Some(dev);
        let p = self.pairs.iter().position(|p| p.halves[dev].num == c.qp_num && there(p));
        let p = p.unwrap_or_else(|| panic!("a completion of a queue pair that is gone: {c:?}"));
        if self.pairs[p].fate == Fate::Doubt && !c.status.is_success() {
            self.kill(p, Fate::Both);
        }
        let half = &mut self.pairs[p].halves[dev];
        if c.wr_id & 1 == 0 {
            half.sent_done(c);
        } else if half.shared {
            self.shared_done(p, c);
        } else {
            half.recv_done(c);
        }
    }

    /// A receive of the shared queue is over: it was posted, and its message is this pair's next.
    fn shared_done(&mut self, p: usize, c: &Completion) {
        let at = self.srq_posted.iter().position(|r| r.id == c.wr_id);
        let r =
            self.srq_posted.remove(at.unwrap_or_else(|| panic!("completed twice or never posted: {c:?}")));
        let key = self.srq_region.mr.addr();
        if c.status.is_success() {
            let half = &mut self.pairs[p].halves[1];
            let m = half.waiting.pop_front().unwrap_or_else(|| panic!("no message for {c:?}"));
            half.got += 1;
            check_message(&m, c);
            let mut rest = &m.bytes[..];
            for s in &r.sges {
                let n = rest.len().min(s.len as usize);
                let at = (s.addr - key) as usize;
                self.mem[1].bufs[self.srq_region.buf].now[at..at + n].copy_from_slice(&rest[..n]);
                rest = &rest[n..];
            }
        } else {
            assert_ne!(
                self.pairs[p].fate,
                Fate::Well,
                "a shared receive failed on a sound connection: {c:?}"
            );
            self.wild.extend(r.sges.iter().map(|s| (s.addr - key, u64::from(s.len))));
        }
    }

    /// Why a pair's queue pairs ended, for a message.
    pub fn ends(&self, p: usize) -> String {
        let of = |q: &Option<QueuePair>| q.as_ref().map(|q| (q.state(), q.end(), q.query().outstanding));
        format!(
            "pair {p}: {:?} / {:?}; {:#?}",
            of(&self.pairs[p].qps[0]),
            of(&self.pairs[p].qps[1]),
            self.pairs[p]
        )
    }

    /// Waits until nothing is under way, and compares all memory and queues with the reference.
    pub fn settle(&mut self) {
        let start = Instant::now();
        let mut rounds = 0u32;
        while self.drain() > 0 || !self.quiet() {
            rounds += 1;
            if rounds > 50 {
                std::thread::sleep(Duration::from_micros(200));
            } else {
                std::thread::yield_now();
            }
            if start.elapsed() > WATCHDOG {
                let ends: Vec<_> = (0..PAIRS).map(|p| self.ends(p)).collect();
                panic!("not quiet after {WATCHDOG:?}: {}", ends.join("\n"));
            }
        }
        let failing = self.pairs.iter().any(|p| p.fate != Fate::Well);
        for p in 0..PAIRS {
            self.close_books(p);
        }
        self.compare_keys(failing);
        self.compare_memory();
        // Requests that are not begun keep their memory in use.
        let pairs = &self.pairs;
        let queued = |by: (usize, usize)| pairs[by.0].halves[by.1].sq.iter().any(|s| s.queued.is_some());
        self.flight.retain(|f| queued(f.by));
        assert_eq!(self.srq.len(), self.srq_posted.len(), "receives in the shared queue");
    }

    fn quiet(&mut self) -> bool {
        for p in 0..PAIRS {
            let pair = &self.pairs[p];
            if !pair.live {
                continue;
            }
            let failed = pair
                .qps
                .iter()
                .any(|q| q.as_ref().is_none_or(|q| q.state() != QpState::Rts && q.state() != QpState::Sqd));
            match pair.fate {
                Fate::Well if failed => panic!("a sound connection ended: {}", self.ends(p)),
                Fate::Doubt if failed => {
                    self.kill(p, Fate::Both);
                    return false;
                }
                Fate::Well | Fate::Doubt if !pair.is_quiet() => return false,
                Fate::Well | Fate::Doubt => {}
                _ if !pair.is_over() => return false,
                _ => {}
            }
        }
        // Shared receives go to whoever is first: either they or the messages run out.
        let unserved = |p: &Pair| {
            p.live && matches!(p.fate, Fate::Well | Fate::Doubt) && !p.halves[1].waiting.is_empty()
        };
        let hungry = self.pairs.iter().any(|p| p.halves[1].shared && unserved(p));
        self.srq.len() == self.srq_posted.len() && (!hungry || self.srq_posted.is_empty())
    }

    /// The connection will end, for this reason.
    pub fn kill(&mut self, p: usize, why: Fate) {
        let pair = &mut self.pairs[p];
        if !pair.live {
            return;
        }
        let why = if matches!(pair.fate, Fate::Well) { why } else { Fate::Both };
        pair.fate = why;
        for (x, h) in pair.halves.iter_mut().enumerate() {
            for s in h.sq.iter_mut() {
                if s.queued.is_some() {
                    s.expect = Expect::Exactly(rnic_verbs::Status::WrFlush);
                } else if s.expect == Expect::Success || why == Fate::Both {
                    s.expect = Expect::Any;
                }
            }
            // What was asked before a refused request was carried out in full.
            let safe = why == Fate::Refused(1 - x);
            for r in h.rq.iter_mut().filter(|r| r.open) {
                match r.message {
                    None => r.expect = Expect::Exactly(rnic_verbs::Status::WrFlush),
                    Some(_) if !safe && r.expect == Expect::Success || why == Fate::Both => {
                        r.expect = Expect::Any
                    }
                    Some(_) => {}
                }
            }
        }
        let bufs = self.mem.iter_mut().flat_map(|m| &mut m.bufs);
        for c in bufs.flat_map(|b| &mut b.changes).filter(|c| c.by.0 == p) {
            c.doubt |= why != Fate::Refused(c.by.1) || c.at_asker;
        }
    }

    /// At a quiet point: what is left of a pair's queues.
    fn close_books(&mut self, p: usize) {
        let pair = &mut self.pairs[p];
        let over = pair.live && !matches!(pair.fate, Fate::Well | Fate::Doubt);
        if over {
            let culprit = match pair.fate {
                Fate::Ended(x) => Some(x),
                _ => None,
            };
            for x in 0..2 {
                if matches!(pair.halves[x].state, QpState::Rts | QpState::Sqd) {
                    pair.halves[x].state = QpState::Error;
                    pair.halves[x].all_done();
                }
                // What TCP had when this side ended the connection reached the peer.
                let (sent, h) = (pair.halves[x].sent, &pair.halves[1 - x]);
                if culprit == Some(x) && !h.shared && pair.qps[1 - x].is_some() {
                    assert!(h.got >= sent.min(h.given), "{sent} were sent, {} of {} came", h.got, h.given);
                }
                pair.halves[x].waiting.clear();
            }
            pair.live = false;
        }
        pair.fate = Fate::Well;
        for h in &mut pair.halves {
            assert!(pair.live || !h.sq.iter().any(Sent::must_report), "never completed: {:?}", h.sq);
            assert!(h.state != QpState::Error || h.rq.is_empty(), "never completed: {:?}", h.rq);
            h.sq.retain(|s| s.queued.is_some());
        }
    }

    /// After a queue pair was ended from here: it says so, and everything it had is reported.
    pub fn ended(&mut self, p: usize, x: usize, state: QpState) {
        self.drain();
        if let Some(q) = &self.pairs[p].qps[x] {
            assert_eq!(q.state(), state, "after it was ended: {}", self.ends(p));
        }
        let h = &mut self.pairs[p].halves[x];
        h.all_done();
        h.sq.clear();
        h.state = state;
    }

    /// The keys of all handles; where something failed, what the engine says is believed.
    fn compare_keys(&mut self, failing: bool) {
        for (side, mem) in self.sides.iter().zip(&mut self.mem) {
            let compare = |k: &mut Key, valid: bool| {
                assert!(failing || k.valid == valid, "valid: {valid}, for {k:?}");
                k.valid = valid;
            };
            for r in &side.regions {
                for k in mem.keys.iter_mut().filter(|k| k.kind == Kind::Region && k.buf == r.buf) {
                    compare(k, r.mr.is_valid());
                }
            }
            for (index, w) in &side.windows {
                for k in mem.keys.iter_mut().filter(|k| k.kind != Kind::Region && k.key >> 8 == *index) {
                    compare(k, w.is_bound() && w.rkey() == k.key);
                }
            }
            for (index, f) in &side.fasts {
                for k in mem.keys.iter_mut().filter(|k| k.kind != Kind::Region && k.key >> 8 == *index) {
                    compare(k, f.is_valid() && f.rkey() == k.key);
                }
            }
        }
    }

    fn compare_memory(&mut self) {
        let wild = std::mem::take(&mut self.wild);
        for dev in 0..2 {
            let shared = (dev == 1).then_some(&self.srq_region);
            for (r, is_shared) in
                self.sides[dev].regions.iter().map(|r| (r, false)).chain(shared.map(|r| (r, true)))
            {
                let bytes = &mut self.mem[dev].bufs[r.buf];
                let mut actual = vec![0; bytes.now.len()];
                r.mr.read_at(0, &mut actual).expect("read_at");
                if actual != bytes.now {
                    let any = |i: u64| is_shared && wild.iter().any(|w| i >= w.0 && i < w.0 + w.1);
                    for (i, (a, b)) in actual.iter().zip(&bytes.now).enumerate() {
                        assert!(
                            a == b || any(i as u64) || bytes.allows(i, *a),
                            "device {dev}, buffer {}, byte {i}: {a}, the reference has {b}",
                            r.buf
                        );
                    }
                }
                bytes.now = actual;
                bytes.changes.clear();
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("what was done, with {:?}:\n{}", self.config, self.trace.join("\n"));
            for (p, pair) in self.pairs.iter().enumerate() {
                let ends = pair.qps.iter().flatten().map(|q| (q.num(), q.state(), q.end()));
                eprintln!("pair {p}, {:?}: {:?}", pair.fate, ends.collect::<Vec<_>>());
            }
        }
    }
}

impl Pair {
    /// Nothing is on its way: all that was sent was received, and nothing waits for an answer.
    fn is_quiet(&self) -> bool {
        let [Some(a), Some(b)] = &self.qps else { return false };
        let moved = || {
            let [a, b] = [a, b].map(QueuePair::counters);
            let [base_a, base_b] = self.base;
            let sent = (a.tx_bytes - base_a.0, b.tx_bytes - base_b.0);
            (sent, sent == (b.rx_bytes - base_b.1, a.rx_bytes - base_a.1))
        };
        let (sent, same) = moved();
        // The query waits for whoever digests what came.
        let idle = |q: &QueuePair, h: &Half| q.query().outstanding as usize == h.outstanding().0;
        let done = |h: &Half| {
            h.sq.iter().all(|s| !s.signaled || s.queued.is_some()) && h.rq.iter().all(|r| r.message.is_none())
        };
        same && self.halves.iter().all(done)
            && idle(a, &self.halves[0])
            && idle(b, &self.halves[1])
            && moved() == (sent, true)
    }

    /// Both ends have failed and reported everything.
    fn is_over(&self) -> bool {
        self.qps.iter().zip(&self.halves).all(|(q, h)| {
            let connected = matches!(h.state, QpState::Rts | QpState::Sqd);
            !connected || q.as_ref().is_none_or(|q| q.state() == QpState::Error) && h.is_done()
        })
    }
}

fn check_message(m: &Message, c: &Completion) {
    use rnic_verbs::CompletionOp::{Recv, RecvImmediate};
    let op = if m.immediate.is_some() { RecvImmediate } else { Recv };
    let want = (op, m.bytes.len() as u32, m.immediate, m.invalidated);
    assert_eq!((c.opcode, c.len, c.immediate, c.invalidated), want, "{c:?}");
}

impl Half {
    /// A completion of the send queue: the oldest that can be meant, with a status that it can have.
    fn sent_done(&mut self, c: &Completion) {
        use rnic_verbs::Status as S;
        let s = loop {
            let s = self.sq.pop_front().unwrap_or_else(|| panic!("completed twice or never posted: {c:?}"));
            if s.id == c.wr_id {
                break s;
            }
            // Passed over: done, and not signalled.
            let silent =
                !s.signaled && matches!(s.expect, Expect::Success | Expect::Any) && s.queued.is_none();
            assert!(silent, "{c:?} before its elder {s:?}");
        };
        if c.status.is_success() {
            assert!(s.signaled && s.queued.is_none(), "{c:?} for {s:?}");
            assert!(matches!(s.expect, Expect::Success | Expect::Any), "{c:?} for {s:?}");
            assert_eq!((c.len, c.opcode), (s.len, s.op), "{c:?} for {s:?}");
            self.sent += usize::from(c.opcode == rnic_verbs::CompletionOp::Send);
            return;
        }
        match s.expect {
            Expect::Success => panic!("{c:?} on a sound connection, for {s:?}"),
            Expect::Exactly(status) => assert_eq!(c.status, status, "{c:?} for {s:?}"),
            Expect::Any if c.status == S::WrFlush => {}
            Expect::Any => {
                let known = [
                    S::LocalProtection,
                    S::MwBind,
                    S::RemoteAccess,
                    S::RemoteInvalidRequest,
                    S::RemoteOperation,
                    S::RetryExceeded,
                ];
                assert!(known.contains(&c.status), "{c:?} for {s:?}");
                assert!(!std::mem::replace(&mut self.blamed[0], true), "two requests blamed: {c:?}");
            }
        }
    }

    fn recv_done(&mut self, c: &Completion) {
        use rnic_verbs::Status as S;
        let r = self.rq.pop_front().unwrap_or_else(|| panic!("completed twice or never posted: {c:?}"));
        assert_eq!(r.id, c.wr_id, "{c:?} before its elder {r:?}");
        if c.status.is_success() {
            assert!(matches!(r.expect, Expect::Success | Expect::Any) && !self.blamed[1], "{c:?} for {r:?}");
            check_message(r.message.as_ref().unwrap_or_else(|| panic!("no message for {c:?}")), c);
            self.got += 1;
            return;
        }
        match r.expect {
            Expect::Success => panic!("{c:?} on a sound connection, for {r:?}"),
            Expect::Exactly(status) => assert_eq!(c.status, status, "{c:?} for {r:?}"),
            Expect::Any => {
                let known = [S::WrFlush, S::LocalLengthError, S::LocalProtection];
                assert!(known.contains(&c.status), "{c:?} for {r:?}");
            }
        }
        // From here on the rest is flushed.
        self.blamed[1] = true;
    }

    fn is_done(&self) -> bool {
        self.rq.is_empty() && !self.sq.iter().any(Sent::must_report)
    }

    fn all_done(&self) {
        assert!(self.is_done(), "never completed: {:?} {:?}", self.sq, self.rq);
    }
}

impl Sent {
    /// Whether the end of its queue pair must bring a completion of it.
    fn must_report(&self) -> bool {
        self.signaled || matches!(self.expect, Expect::Exactly(_))
    }
}
