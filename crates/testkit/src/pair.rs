//! Two endpoints and the wire between them, on a virtual clock: what an engine does with the core,
//! without its sockets and threads.

use std::collections::VecDeque;

use iwarp::Fault;
use iwarp::mpa::startup::{Negotiated, Revision, Rtr};

use crate::host::ArrayHost;
use crate::pipe::{Chunking, Pipe};
use crate::seed::Seed;

mod endpoint;
mod work;

pub use endpoint::Endpoint;
pub use work::{Done, Work};

/// A connection's agreement and the manner of its wire.
#[derive(Clone, Debug)]
pub struct Config {
    /// CRCs both ways.
    pub crc: bool,
    /// Markers in what the initiator receives.
    pub markers_to_initiator: bool,
    /// Markers in what the responder receives.
    pub markers_to_responder: bool,
    /// Largest ULPDU, in bytes.
    pub mulpdu: usize,
    /// Reads outstanding, each way.
    pub depth: u16,
    /// RFC 7306 both ways.
    pub extensions: bool,
    /// The initiator's first message.
    pub rtr: Option<Rtr>,
    /// How the stream is cut.
    pub chunking: Chunking,
    /// Bytes that each direction holds.
    pub capacity: usize,
    /// Ticks from writing to reading.
    pub latency: u64,
    /// Payload is received straight into memory where the core says so.
    pub direct: bool,
    /// Decides every choice.
    pub seed: u64,
}

impl Default for Config {
    /// No CRC, no markers, ULPDUs of an Ethernet's size, RFC 7306 known, the stream cut at random.
    fn default() -> Self {
        Self {
            crc: false,
            markers_to_initiator: false,
            markers_to_responder: false,
            mulpdu: 1442,
            depth: 4,
            extensions: true,
            rtr: None,
            chunking: Chunking::Random(3000),
            capacity: 64 << 10,
            latency: 3,
            direct: false,
            seed: 1,
        }
    }
}

impl Config {
    /// What one side negotiated.
    pub fn negotiated(&self, initiator: bool) -> Negotiated {
        let (rx_markers, tx_markers) = if initiator {
            (self.markers_to_initiator, self.markers_to_responder)
        } else {
            (self.markers_to_responder, self.markers_to_initiator)
        };
        Negotiated {
            revision: Revision::V2,
            crc: self.crc,
            tx_markers,
            rx_markers,
            ord: self.depth,
            ird: self.depth,
            rtr: self.rtr,
            extensions: self.extensions,
        }
    }
}

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Nothing is left to do on either side.
    Idle,
    /// Nothing can move, though work is left: a receive is missing, or a fault stopped it.
    Stuck,
}

/// The two ends: `initiator` connected, `responder` accepted.
#[derive(Debug)]
pub struct Pair {
    /// The end that connected.
    pub initiator: Endpoint,
    /// The end that accepted.
    pub responder: Endpoint,
    /// Initiator to responder, responder to initiator.
    wires: [Pipe; 2],
    now: u64,
    seed: Seed,
}

impl Pair {
    /// Both ends in full operation, as `config` says.
    pub fn new(config: &Config) -> Self {
        Self::agreed(config, &config.negotiated(true), &config.negotiated(false))
    }

    /// Both ends in full operation with what each took from start-up (initiator, responder); the rest is
    /// `config`'s. An RTR frame that was agreed on is the initiator's first message.
    pub fn agreed(config: &Config, ours: &Negotiated, theirs: &Negotiated) -> Self {
        let mut seed = Seed::new(config.seed);
        let wire = |seed: &mut Seed| {
            Pipe::new(config.chunking.clone(), config.capacity, config.latency, seed.fork())
        };
        let wires = [wire(&mut seed), wire(&mut seed)];
        let mut initiator = Endpoint::new(config, ours, true);
        match ours.rtr {
            Some(Rtr::Write) => initiator.post(Work::write(1, 0, Vec::new())),
            Some(Rtr::Read) => initiator.post(Work::read((0, 0), 0, (1, 0))),
            Some(Rtr::Send) => initiator.post(Work::send(Vec::new())),
            None => {}
        }
        Self { initiator, responder: Endpoint::new(config, theirs, false), wires, now: 0, seed }
    }

    /// The virtual time, in ticks.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// One end by its side.
    pub fn end(&mut self, initiator: bool) -> &mut Endpoint {
        if initiator { &mut self.initiator } else { &mut self.responder }
    }

    /// The memory of one end.
    pub fn host(&mut self, initiator: bool) -> &mut ArrayHost {
        &mut self.end(initiator).host
    }

    /// Bytes that each direction carried: initiator to responder, and back.
    pub fn carried(&self) -> (u64, u64) {
        (self.wires[0].total(), self.wires[1].total())
    }

    /// Does one thing that can be done, chosen by the seed. `false` where nothing can be done.
    pub fn step(&mut self) -> bool {
        let mut moves = VecDeque::from([0, 1, 2, 3]);
        moves.rotate_left(self.seed.below(4));
        for m in moves {
            let done = match m {
                0 => self.transmit(true),
                1 => self.transmit(false),
                2 => self.deliver(true),
                _ => self.deliver(false),
            };
            if done {
                self.now += 1;
                return true;
            }
        }
        // Only time can help.
        let later = self.wires.iter().filter_map(Pipe::ready_at).filter(|&at| at > self.now).min();
        match later {
            Some(at) => {
                self.now = at;
                true
            }
            None => false,
        }
    }

    /// Steps until nothing can be done.
    ///
    /// # Panics
    /// After a million steps: something goes on for ever.
    pub fn run(&mut self) -> End {
        for _ in 0..1_000_000 {
            if !self.step() {
                let idle = self.initiator.is_idle() && self.responder.is_idle();
                let quiet = idle && self.wires.iter().all(Pipe::is_empty);
                return if quiet { End::Idle } else { End::Stuck };
            }
        }
        panic!("no end in sight after a million steps");
    }

    /// The faults that each end found in what it received.
    pub fn faults(&self) -> (Option<Fault>, Option<Fault>) {
        (self.initiator.fault(), self.responder.fault())
    }

    fn transmit(&mut self, initiator: bool) -> bool {
        let (end, wire) = if initiator {
            (&mut self.initiator, &mut self.wires[0])
        } else {
            (&mut self.responder, &mut self.wires[1])
        };
        if !wire.has_room(end.mulpdu()) {
            return false;
        }
        match end.next_fpdu() {
            Some(bytes) => {
                wire.write(self.now, bytes);
                true
            }
            None => false,
        }
    }

    fn deliver(&mut self, to_initiator: bool) -> bool {
        let (end, wire) = if to_initiator {
            (&mut self.initiator, &mut self.wires[1])
        } else {
            (&mut self.responder, &mut self.wires[0])
        };
        if !end.wants_bytes() {
            return end.resume();
        }
        let bytes = wire.read(self.now);
        if bytes.is_empty() {
            return end.resume();
        }
        end.receive(bytes);
        true
    }
}
