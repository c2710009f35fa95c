//! An embedding of the core that checks everything twice: regions, rights, receives and Read queues in
//! plain arrays. What the core promises and does not keep is a panic here, not a silent success.

use std::collections::{BTreeMap, VecDeque};

use iwarp::host::{Event, Host, ReceiveSlot, ResponsePlace};
use iwarp::rdmap::{InboundReads, Outstanding, OutstandingReads};
use iwarp::rx::{Dest, Direct};
use iwarp::types::{AtomicRequest, InboundRead, Opcode, Stag};
use iwarp::{Fault, TaggedFault};

/// What a peer may do with a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rights {
    /// RDMA Write.
    pub write: bool,
    /// RDMA Read.
    pub read: bool,
    /// RFC 7306 atomics.
    pub atomic: bool,
    /// Send with Invalidate.
    pub invalidate: bool,
}

impl Rights {
    /// Everything.
    pub const ALL: Self = Self { write: true, read: true, atomic: true, invalidate: true };
    /// Nothing: for local use only.
    pub const NONE: Self = Self { write: false, read: false, atomic: false, invalidate: false };
}

/// Registered memory.
#[derive(Clone, PartialEq, Eq)]
pub struct Region {
    /// Tagged offset of its first byte.
    pub base: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its protection domain.
    pub pd: u32,
    /// What a peer may do with it.
    pub rights: Rights,
    /// Whether the memory behind it can be reached.
    pub mapped: bool,
}

impl Region {
    /// Zeroed, in protection domain 1, every right granted.
    pub fn new(base: u64, len: usize) -> Self {
        Self { base, bytes: vec![0; len], pd: PD, rights: Rights::ALL, mapped: true }
    }

    /// With this content.
    pub fn with_bytes(self, bytes: Vec<u8>) -> Self {
        Self { bytes, ..self }
    }

    /// With these rights only.
    pub fn with_rights(self, rights: Rights) -> Self {
        Self { rights, ..self }
    }

    /// In another protection domain.
    pub fn in_pd(self, pd: u32) -> Self {
        Self { pd, ..self }
    }

    /// Where `len` bytes at `to` lie, if the region holds them all.
    fn range(&self, to: u64, len: usize) -> Option<std::ops::Range<usize>> {
        let from = to.checked_sub(self.base)?;
        let end = u128::from(from) + len as u128;
        (end <= self.bytes.len() as u128).then_some(from as usize..end as usize)
    }
}

/// The protection domain of the stream.
pub const PD: u32 = 1;

#[derive(Clone, Copy)]
enum Want {
    Write,
    Read,
    Atomic,
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { base, bytes, pd, rights, mapped } = self;
        write!(f, "Region {{ base {base:#x}, {:?}, pd {pd}, {rights:?}, mapped {mapped} }}", Bytes(bytes))
    }
}

/// Long contents in a failed assertion: length, sum and the first few.
struct Bytes<'a>(&'a [u8]);

impl std::fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let head = &self.0[..self.0.len().min(24)];
        write!(f, "{} bytes {head:02x?} sum {:08x}", self.0.len(), crate::craft::crc32c(self.0))
    }
}

/// A message that was delivered.
#[derive(Clone, PartialEq, Eq)]
pub struct Delivered {
    /// The receive that it took.
    pub cookie: u64,
    /// Its bytes.
    pub data: Vec<u8>,
    /// Its kind.
    pub opcode: Opcode,
    /// What it invalidated.
    pub invalidated: Option<Stag>,
    /// Immediate Data's value.
    pub immediate: Option<u64>,
}

impl std::fmt::Debug for Delivered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cookie, data, opcode, invalidated, immediate } = self;
        write!(f, "{opcode:?} in {cookie}: {:?}, {invalidated:?}, {immediate:?}", Bytes(data))
    }
}

/// A receive that was taken and not delivered yet.
#[derive(Clone, Debug)]
struct Taken {
    room: Vec<u8>,
    placed: usize,
}

/// Where the bytes of an outstanding Read go, by cookie.
#[derive(Clone, Copy, Debug)]
struct Sink {
    stag: Stag,
    to: u64,
    placed: u32,
}

/// All that a stream did to its host, for comparing two runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Regions by STag.
    pub regions: BTreeMap<u32, Region>,
    /// Messages in order.
    pub delivered: Vec<Delivered>,
    /// Events in order.
    pub events: Vec<Event>,
    /// The peer's requests in order, as far as nobody took them.
    pub inbound: Vec<InboundRead>,
    /// Receives that were posted and not taken.
    pub receives_left: usize,
}

/// The embedding.
#[derive(Debug)]
pub struct ArrayHost {
    regions: BTreeMap<u32, Region>,
    receives: VecDeque<(u64, usize)>,
    taken: BTreeMap<u64, Taken>,
    next_cookie: u64,
    /// Answer of an empty receive queue: `None` waits.
    pub no_receive: Option<Fault>,
    /// Answer of every placement into a receive, where its memory was withdrawn.
    pub receive_memory: Option<Fault>,
    reads: OutstandingReads<Vec<Outstanding>>,
    sinks: BTreeMap<u64, Sink>,
    inbound: InboundReads<Vec<Option<InboundRead>>>,
    inbound_log: Vec<InboundRead>,
    delivered: Vec<Delivered>,
    events: Vec<Event>,
    /// Bytes placed into memory of any kind.
    placed: u64,
}

impl ArrayHost {
    /// No memory, no receives; at most `ord` requests of ours and `ird` of the peer's.
    pub fn new(ord: usize, ird: usize) -> Self {
        Self {
            regions: BTreeMap::new(),
            receives: VecDeque::new(),
            taken: BTreeMap::new(),
            next_cookie: 1,
            no_receive: None,
            receive_memory: None,
            reads: OutstandingReads::new(vec![Outstanding::default(); ord], ord),
            sinks: BTreeMap::new(),
            inbound: InboundReads::new(vec![None; ird], ird),
            inbound_log: Vec::new(),
            delivered: Vec::new(),
            events: Vec::new(),
            placed: 0,
        }
    }

    /// Registers memory under an STag.
    pub fn register(&mut self, stag: u32, region: Region) -> &mut Self {
        self.regions.insert(stag, region);
        self
    }

    /// Takes a registration away.
    pub fn deregister(&mut self, stag: u32) {
        self.regions.remove(&stag);
    }

    /// Registered memory.
    ///
    /// # Panics
    /// Where nothing is registered under that STag.
    pub fn region(&self, stag: u32) -> &Region {
        &self.regions[&stag]
    }

    /// Registered memory, for the application to change.
    pub fn region_mut(&mut self, stag: u32) -> Option<&mut Region> {
        self.regions.get_mut(&stag)
    }

    /// Posts a receive of this length; its cookie counts from 1.
    pub fn post_receive(&mut self, len: usize) -> u64 {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.receives.push_back((cookie, len));
        cookie
    }

    /// Messages delivered so far.
    pub fn delivered(&self) -> &[Delivered] {
        &self.delivered
    }

    /// Events so far.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Bytes placed into memory so far.
    pub fn placed(&self) -> u64 {
        self.placed
    }

    /// Receives taken for messages that are not complete.
    pub fn receives_in_use(&self) -> usize {
        self.taken.len()
    }

    /// Notes a Read or Atomic that is about to be sent. `false` where the ORD is used up.
    pub fn expect_response(&mut self, request: Outstanding) -> bool {
        let noted = self.reads.push(request);
        if noted {
            let sink = Sink { stag: request.sink_stag, to: request.sink_to, placed: 0 };
            assert!(self.sinks.insert(request.cookie, sink).is_none(), "cookie {} twice", request.cookie);
        }
        noted
    }

    /// Requests of ours under way.
    pub fn outstanding(&self) -> usize {
        self.reads.len()
    }

    /// Whether the ORD is used up.
    pub fn ord_used_up(&self) -> bool {
        self.reads.is_full()
    }

    /// The peer's oldest request that nobody has answered yet.
    pub fn next_inbound(&mut self) -> Option<InboundRead> {
        self.inbound.pop()
    }

    /// Requests of the peer that wait.
    pub fn inbound_waiting(&self) -> usize {
        self.inbound.len()
    }

    /// The peer's requests so far, answered or not.
    pub fn inbound_log(&self) -> &[InboundRead] {
        &self.inbound_log
    }

    /// Bytes of a region that a peer may read.
    ///
    /// # Errors
    /// As [`Host::check_read`].
    pub fn read(&self, stag: Stag, to: u64, len: usize) -> Result<Vec<u8>, TaggedFault> {
        let (region, range) = self.access(stag, to, len, Want::Read)?;
        Ok(region.bytes[range].to_vec())
    }

    /// What became of everything.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            regions: self.regions.clone(),
            delivered: self.delivered.clone(),
            events: self.events.clone(),
            inbound: self.inbound_log.clone(),
            receives_left: self.receives.len(),
        }
    }

    /// Stands for a receive call straight into the target of [`iwarp::rx::Receiver::direct`].
    ///
    /// # Errors
    /// What the placement call for this target answers.
    pub fn place_direct(&mut self, direct: Direct, bytes: &[u8]) -> Result<(), Fault> {
        assert!(bytes.len() <= direct.remaining as usize, "more than the segment has left");
        match direct.dest {
            Dest::Write { stag, to } => self
                .place_write(stag, to.wrapping_add(u64::from(direct.done)), bytes)
                .map_err(|f| Fault::Write(stag, f)),
            Dest::Receive { cookie, offset } => self.place_receive(cookie, offset + direct.done, bytes),
            Dest::Response(p) => {
                self.place_response(ResponsePlace { offset: p.offset + direct.done, ..p }, bytes)
            }
            Dest::Discard => panic!("nothing may be received straight into nowhere"),
        }
    }

    fn access(
        &self,
        stag: Stag,
        to: u64,
        len: usize,
        want: Want,
    ) -> Result<(&Region, std::ops::Range<usize>), TaggedFault> {
        let region = self.regions.get(&stag.0).ok_or(TaggedFault::InvalidStag)?;
        if region.pd != PD {
            return Err(TaggedFault::NotAssociated);
        }
        // A range that ends exactly at 2^64 does not wrap. RFC 5041 §7.1.
        if u128::from(to) + len as u128 > 1 << 64 {
            return Err(TaggedFault::Wrap);
        }
        let range = region.range(to, len).ok_or(TaggedFault::Bounds)?;
        let granted = match want {
            Want::Write => region.rights.write,
            Want::Read => region.rights.read,
            Want::Atomic => region.rights.atomic,
        };
        if !granted {
            return Err(TaggedFault::Access);
        }
        if !region.mapped {
            return Err(TaggedFault::Unreachable);
        }
        Ok((region, range))
    }

    fn store(&mut self, stag: Stag, to: u64, bytes: &[u8]) -> Result<(), Fault> {
        let region = self.regions.get_mut(&stag.0).filter(|r| r.mapped).ok_or(Fault::LocalMemory)?;
        let range = region.range(to, bytes.len()).ok_or(Fault::LocalMemory)?;
        region.bytes[range].copy_from_slice(bytes);
        self.placed += bytes.len() as u64;
        Ok(())
    }

    fn deliver(&mut self, event: Event) {
        let Event::ReceiveDone { cookie, len, opcode, invalidated, immediate } = event else { return };
        let taken = self.taken.remove(&cookie).expect("a receive is delivered once, after it was taken");
        assert_eq!(taken.placed, len as usize, "a message is as long as what was placed of it");
        let data = taken.room[..taken.placed].to_vec();
        self.delivered.push(Delivered { cookie, data, opcode, invalidated, immediate });
    }

    fn answered(&mut self, event: Event) {
        let Event::ResponseDone { cookie, len } = event else { return };
        let oldest = self.reads.pop().expect("a response completes a request");
        assert_eq!(oldest.cookie, cookie, "responses complete the oldest request");
        assert_eq!(oldest.len, len, "a completed request got what it asked for");
        let sink = self.sinks.remove(&cookie).expect("its sink was noted");
        assert_eq!(sink.placed, len, "and all of it was placed");
    }
}

impl Host for ArrayHost {
    fn check_write(&mut self, stag: Stag, to: u64, len: u32) -> Result<(), TaggedFault> {
        self.access(stag, to, len as usize, Want::Write).map(drop)
    }

    fn place_write(&mut self, stag: Stag, to: u64, bytes: &[u8]) -> Result<(), TaggedFault> {
        assert!(!bytes.is_empty(), "nothing to place is not placed: its STag is not looked at");
        let (_, range) = self.access(stag, to, bytes.len(), Want::Write)?;
        let region = self.regions.get_mut(&stag.0).ok_or(TaggedFault::InvalidStag)?;
        region.bytes[range].copy_from_slice(bytes);
        self.placed += bytes.len() as u64;
        Ok(())
    }

    fn take_receive(&mut self) -> Result<Option<ReceiveSlot>, Fault> {
        let Some((cookie, len)) = self.receives.pop_front() else {
            return self.no_receive.map_or(Ok(None), Err);
        };
        self.taken.insert(cookie, Taken { room: vec![0; len], placed: 0 });
        Ok(Some(ReceiveSlot { cookie, len: len as u64 }))
    }

    fn place_receive(&mut self, cookie: u64, offset: u32, bytes: &[u8]) -> Result<(), Fault> {
        let taken = self.taken.get_mut(&cookie).expect("only a taken receive is placed into");
        assert_eq!(taken.placed, offset as usize, "a message is placed in order, without gaps");
        let end = taken.placed + bytes.len();
        assert!(end <= taken.room.len(), "within the receive's length");
        if let Some(fault) = self.receive_memory {
            return Err(fault);
        }
        taken.room[taken.placed..end].copy_from_slice(bytes);
        taken.placed = end;
        self.placed += bytes.len() as u64;
        Ok(())
    }

    fn response_place(&mut self, stag: Stag, to: u64, len: u32, last: bool) -> Result<ResponsePlace, Fault> {
        self.reads.on_response(stag, to, len, last)
    }

    fn place_response(&mut self, place: ResponsePlace, bytes: &[u8]) -> Result<(), Fault> {
        assert!(!place.discard, "what is discarded is not placed");
        let oldest = *self.reads.front().expect("a response answers a request");
        assert_eq!(oldest.cookie, place.cookie, "the oldest one");
        let sink = self.sinks.get_mut(&place.cookie).expect("whose sink was noted");
        assert_eq!(sink.placed, place.offset, "in order, without gaps");
        assert!(place.offset as usize + bytes.len() <= oldest.len as usize, "within what was asked for");
        sink.placed += bytes.len() as u32;
        let (stag, to) = (sink.stag, sink.to.wrapping_add(u64::from(place.offset)));
        self.store(stag, to, bytes)
    }

    fn atomic_response(&mut self, id: u32) -> Result<ResponsePlace, Fault> {
        self.reads.on_atomic(id)
    }

    fn check_read(&mut self, stag: Stag, to: u64, len: u32) -> Result<(), TaggedFault> {
        self.access(stag, to, len as usize, Want::Read).map(drop)
    }

    fn atomic(&mut self, request: &AtomicRequest) -> Result<u64, TaggedFault> {
        assert_eq!(request.to % 8, 0, "alignment was to be checked before");
        assert!(self.inbound.has_room(), "an atomic that cannot be answered must not happen");
        let (_, range) = self.access(request.stag, request.to, 8, Want::Atomic)?;
        let region = self.regions.get_mut(&request.stag.0).ok_or(TaggedFault::InvalidStag)?;
        let word = &mut region.bytes[range];
        let old = u64::from_ne_bytes(<[u8; 8]>::try_from(&*word).map_err(|_| TaggedFault::Bounds)?);
        word.copy_from_slice(&request.apply(old).to_ne_bytes());
        Ok(old)
    }

    fn inbound_has_room(&mut self) -> bool {
        self.inbound.has_room()
    }

    fn push_inbound(&mut self, read: InboundRead) -> Result<(), Fault> {
        self.inbound.push(read)?;
        self.inbound_log.push(read);
        Ok(())
    }

    fn invalidate(&mut self, stag: Stag) -> Result<(), Fault> {
        let granted = self.regions.get(&stag.0).is_some_and(|r| r.pd == PD && r.rights.invalidate);
        if !granted {
            return Err(Fault::Invalidate(stag));
        }
        self.regions.remove(&stag.0);
        Ok(())
    }

    fn event(&mut self, event: Event) {
        self.events.push(event);
        self.deliver(event);
        self.answered(event);
    }
}
