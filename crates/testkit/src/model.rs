//! What a stream of work does, in a few lines of arrays: the reference for endpoints and engines.
//!
//! One [`Model`] is one direction: a requester's work against a target. Each request is drawn from a
//! seed and carried out at once on plain arrays; the endpoints must come to the same in their own way.

use std::collections::BTreeMap;

use iwarp::types::{AtomicOp, Opcode, Stag};

use crate::host::{ArrayHost, Region, Rights};
use crate::pair::Work;
use crate::seed::Seed;

/// At the target: written, read and operated upon by the requester.
pub const TARGET: u32 = 0x0000_0a11;
/// At the target: only read.
pub const SOURCE: u32 = 0x0000_0b22;
/// At the requester: where Reads and atomics put their results.
pub const SINK: u32 = 0x0000_0c33;
/// At the target: STags to be invalidated count from here.
pub const VICTIM: u32 = 0x0001_0000;

/// Tagged offsets of the three regions: unaligned, across 4 GiB, and up to the last byte.
const TARGET_BASE: u64 = 0xffff_f008;
const SOURCE_BASE: u64 = 0x7fff_0000_0000_0003;
const LEN: usize = 20_000;
const SINK_BASE: u64 = u64::MAX - LEN as u64 + 1;

/// A message that the target must receive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// Its bytes.
    pub data: Vec<u8>,
    /// Its kind.
    pub opcode: Opcode,
    /// What it invalidates.
    pub invalidated: Option<Stag>,
    /// Immediate Data's value.
    pub immediate: Option<u64>,
}

/// One direction's arrays.
#[derive(Clone, Debug)]
pub struct Model {
    target: Vec<u8>,
    source: Vec<u8>,
    sink: Vec<u8>,
    messages: Vec<Message>,
    victims: u32,
    max_len: usize,
    extensions: bool,
    /// A Read of `target` is under way: what is next must not change its source.
    hazard: bool,
}

impl Model {
    /// Random content; requests of at most `max_len` bytes (no more than 20,000).
    pub fn new(seed: &mut Seed, max_len: usize, extensions: bool) -> Self {
        Self {
            target: seed.bytes(LEN),
            source: seed.bytes(LEN),
            sink: vec![0; LEN],
            messages: Vec::new(),
            victims: 0,
            max_len: max_len.min(LEN),
            extensions,
            hazard: false,
        }
    }

    /// Registers the target's side, as it is before any work.
    pub fn register_target(&self, host: &mut ArrayHost) {
        let readable = Rights { read: true, ..Rights::NONE };
        let rights = Rights { invalidate: false, ..Rights::ALL };
        host.register(
            TARGET,
            Region::new(TARGET_BASE, 0).with_bytes(self.target.clone()).with_rights(rights),
        );
        host.register(
            SOURCE,
            Region::new(SOURCE_BASE, 0).with_bytes(self.source.clone()).with_rights(readable),
        );
        for i in 0..64 {
            host.register(VICTIM + i, Region::new(0, 1));
        }
    }

    /// Registers the requester's side.
    pub fn register_requester(&self, host: &mut ArrayHost) {
        host.register(SINK, Region::new(SINK_BASE, LEN).with_rights(Rights::NONE));
    }

    /// Draws a request and carries it out.
    pub fn draw(&mut self, seed: &mut Seed) -> Work {
        let work = match seed.below(if self.extensions { 9 } else { 6 }) {
            0 | 1 => self.write(seed),
            2 | 3 => self.send(seed),
            4 => self.read(seed, false),
            5 => self.read(seed, true),
            6 => self.immediate(seed),
            _ => self.atomic(seed),
        };
        let fence = std::mem::take(&mut self.hazard) || seed.one_in(20);
        // A Read of `target` sets the hazard for what follows it.
        self.hazard = work.1;
        if fence { work.0.fenced() } else { work.0 }
    }

    fn len(&self, seed: &mut Seed) -> usize {
        match seed.below(6) {
            0 => 0,
            1 => seed.below(5),
            2 => seed.below(100),
            _ => seed.below(self.max_len + 1),
        }
    }

    fn write(&mut self, seed: &mut Seed) -> (Work, bool) {
        let len = self.len(seed);
        let at = seed.below(LEN - len + 1);
        let data = seed.bytes(len);
        self.target[at..at + len].copy_from_slice(&data);
        // Nothing looks at the STag of an empty Write. RFC 5040 §4.4.
        let stag = if len == 0 { 0 } else { TARGET };
        (Work::write(stag, TARGET_BASE + at as u64, data), false)
    }

    fn read(&mut self, seed: &mut Seed, of_target: bool) -> (Work, bool) {
        let len = self.len(seed);
        let (at, to) = (seed.below(LEN - len + 1), seed.below(LEN - len + 1));
        let (stag, base, from) =
            if of_target { (TARGET, TARGET_BASE, &self.target) } else { (SOURCE, SOURCE_BASE, &self.source) };
        self.sink[to..to + len].copy_from_slice(&from[at..at + len]);
        let sink = (SINK, SINK_BASE.wrapping_add(to as u64));
        (Work::read(sink, len as u32, (stag, base + at as u64)), of_target)
    }

    fn send(&mut self, seed: &mut Seed) -> (Work, bool) {
        let len = self.len(seed);
        let data = seed.bytes(len);
        let solicited = seed.one_in(2);
        let invalidate = (self.victims < 64 && seed.one_in(4)).then(|| {
            self.victims += 1;
            VICTIM + self.victims - 1
        });
        let opcode = match (invalidate, solicited) {
            (None, false) => Opcode::Send,
            (None, true) => Opcode::SendSe,
            (Some(_), false) => Opcode::SendInvalidate,
            (Some(_), true) => Opcode::SendSeInvalidate,
        };
        let invalidated = invalidate.map(Stag);
        self.messages.push(Message { data: data.clone(), opcode, invalidated, immediate: None });
        (Work::send_with(data, invalidate, solicited), false)
    }

    fn immediate(&mut self, seed: &mut Seed) -> (Work, bool) {
        let (value, solicited) = (seed.u64(), seed.one_in(2));
        let opcode = if solicited { Opcode::ImmediateSe } else { Opcode::Immediate };
        self.messages.push(Message { data: Vec::new(), opcode, invalidated: None, immediate: Some(value) });
        (Work::immediate(value, solicited), false)
    }

    fn atomic(&mut self, seed: &mut Seed) -> (Work, bool) {
        let op = *seed.pick(&[AtomicOp::FetchAdd, AtomicOp::Swap, AtomicOp::CmpSwap]);
        let at = seed.below(LEN / 8 - 1) * 8;
        let to = seed.below(LEN - 8);
        let old = u64::from_ne_bytes(self.target[at..at + 8].try_into().expect("eight bytes"));
        // Sometimes a comparison that holds.
        let compare = if seed.one_in(2) { old } else { seed.u64() };
        let (value, mask) = (seed.u64(), if seed.one_in(2) { !0 } else { seed.u64() });
        let new = match op {
            AtomicOp::FetchAdd => add_by_bits(old, value, mask),
            AtomicOp::Swap => old & !mask | value & mask,
            AtomicOp::CmpSwap if old == compare => old & !mask | value & mask,
            AtomicOp::CmpSwap => old,
        };
        self.target[at..at + 8].copy_from_slice(&new.to_ne_bytes());
        self.sink[to..to + 8].copy_from_slice(&old.to_ne_bytes());
        let operands = [value, mask, compare, !0];
        let target = (TARGET, TARGET_BASE + at as u64);
        (Work::atomic(op, target, operands, (SINK, SINK_BASE + to as u64)), false)
    }

    /// Receives that the target needs for the work drawn so far.
    pub fn receives(&self) -> usize {
        self.messages.len()
    }

    /// The target's memory and messages are what the work makes of them.
    ///
    /// # Panics
    /// Where they are not.
    pub fn check_target(&self, host: &ArrayHost) {
        assert!(host.region(TARGET).bytes == self.target, "target memory");
        assert!(host.region(SOURCE).bytes == self.source, "source memory");
        let got: Vec<_> = host
            .delivered()
            .iter()
            .map(|d| Message {
                data: d.data.clone(),
                opcode: d.opcode,
                invalidated: d.invalidated,
                immediate: d.immediate,
            })
            .collect();
        assert_eq!(got.len(), self.messages.len(), "messages");
        for (i, (got, want)) in got.iter().zip(&self.messages).enumerate() {
            assert!(got == want, "message {i}: {:?}, wanted {:?}", got.opcode, want.opcode);
        }
        let left: BTreeMap<u32, bool> =
            (0..64).map(|i| (i, host.snapshot().regions.contains_key(&(VICTIM + i)))).collect();
        assert!(left.iter().all(|(i, there)| *there == (*i >= self.victims)), "invalidated STags");
    }

    /// The requester's memory is what the work makes of it.
    ///
    /// # Panics
    /// Where it is not.
    pub fn check_requester(&self, host: &ArrayHost) {
        assert!(host.region(SINK).bytes == self.sink, "sink memory");
        assert_eq!(host.outstanding(), 0, "every request is answered");
    }
}

/// RFC 7306 §5.1's masked addition, bit by bit: a set mask bit ends a field, no carry leaves it.
fn add_by_bits(a: u64, b: u64, ends: u64) -> u64 {
    let (mut sum, mut carry) = (0, 0);
    for bit in 0..64 {
        let (x, y) = (a >> bit & 1, b >> bit & 1);
        sum |= (x ^ y ^ carry) << bit;
        carry = if ends >> bit & 1 == 1 { 0 } else { x & y | carry & (x | y) };
    }
    sum
}
