//! A peer that speaks the wire by hand over a plain socket: well-behaved in start-up, hostile after it.
//! Bytes are written from the RFCs' figures (`rnic_testkit::craft`) and read back by code of its own.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test file uses a part")]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use rnic_testkit::craft::{Craft, crc32c};
use rnic_verbs::{ConnParams, ConnPolicy, DeviceConfig, ListenConfig, Listener, connect};

use super::{PATIENCE, Side, side};

/// Which side of start-up the raw peer plays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plays {
    /// Connects to the engine.
    Initiator,
    /// Answers the engine.
    Responder,
}

/// What the raw peer asks for in its start-up frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wire {
    pub crc: bool,
    /// The engine wants markers in what the raw peer sends.
    pub markers: bool,
    /// RFC 7306 is agreed upon.
    pub extensions: bool,
}

impl Wire {
    pub const PLAIN: Self = Self { crc: false, markers: false, extensions: true };
    pub const CRC: Self = Self { crc: true, ..Self::PLAIN };
    pub const MARKERS: Self = Self { crc: true, markers: true, extensions: true };
}

const REQUEST: &[u8; 16] = b"MPA ID Req Frame";
const REPLY: &[u8; 16] = b"MPA ID Rep Frame";
const CRC: u8 = 0x40;
const ENHANCED: u8 = 0x10;
const OFFER: u8 = 0x04;
const ACCEPT: u8 = 0x02;

/// A start-up frame of revision 2 without private data; both depths as given.
pub fn frame(key: &[u8; 16], flags: u8, depth: u16) -> Vec<u8> {
    let mut out = key.to_vec();
    out.extend_from_slice(&[flags | ENHANCED, 2, 0, 4]);
    out.extend_from_slice(&depth.to_be_bytes());
    out.extend_from_slice(&depth.to_be_bytes());
    out
}

pub fn request(wire: Wire, depth: u16) -> Vec<u8> {
    frame(REQUEST, bits(wire, OFFER), depth)
}

fn bits(wire: Wire, extensions: u8) -> u8 {
    (if wire.crc { CRC } else { 0 }) | if wire.extensions { extensions } else { 0 }
}

/// The engine's rules for raw peers: no pause after the Reply, and the other limits as they are.
pub fn policy(wire: Wire) -> ConnPolicy {
    let mut policy = ConnPolicy::default();
    policy.mpa.want_markers = wire.markers;
    policy.settle = std::time::Duration::ZERO;
    policy
}

pub struct Raw {
    pub stream: TcpStream,
    wire: Wire,
    /// What was sent since start-up: markers go by stream position.
    sent: Craft,
    /// Received and not yet taken apart.
    inbox: Vec<u8>,
}

/// How the engine's stream ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    EndOfStream,
    Reset,
    /// Nothing more came in time.
    Silence,
}

impl Raw {
    /// A device of the engine with one queue pair, connected to a raw peer.
    pub fn meet(plays: Plays, wire: Wire) -> (Side, Self) {
        let engine = side(DeviceConfig::default(), |i| i);
        let raw = Self::join(&engine, plays, wire, 32);
        (engine, raw)
    }

    /// Connects the engine's queue pair; `depth` is what the raw peer says of its IRD and ORD.
    pub fn join(engine: &Side, plays: Plays, wire: Wire, depth: u16) -> Self {
        let params = ConnParams::with_policy(policy(wire));
        let local: SocketAddr = "127.0.0.1:0".parse().unwrap();
        match plays {
            Plays::Initiator => {
                let listener = Listener::bind(&engine.device, local, ListenConfig::default()).unwrap();
                let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                let mut raw = Self::over(stream, wire);
                raw.stream.write_all(&request(wire, depth)).unwrap();
                listener.accept(Some(PATIENCE)).unwrap().accept(&engine.qp, params).unwrap();
                raw.skip_frame(REPLY);
                raw
            }
            Plays::Responder => {
                let listener = TcpListener::bind(local).unwrap();
                let addr = listener.local_addr().unwrap();
                std::thread::scope(|s| {
                    let raw = s.spawn(|| {
                        let mut raw = Self::over(listener.accept().unwrap().0, wire);
                        raw.skip_frame(REQUEST);
                        raw.stream.write_all(&frame(REPLY, bits(wire, ACCEPT), depth)).unwrap();
                        raw
                    });
                    connect(&engine.qp, addr, params).unwrap();
                    raw.join().unwrap()
                })
            }
        }
    }

    pub fn over(stream: TcpStream, wire: Wire) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream, wire, sent: Craft::new(wire.crc, wire.markers), inbox: Vec::new() }
    }

    pub fn skip_frame(&mut self, key: &[u8; 16]) {
        let mut head = [0; 20];
        self.stream.read_exact(&mut head).unwrap();
        assert_eq!(&head[..16], key);
        let mut rest = vec![0; usize::from(u16::from_be_bytes([head[18], head[19]]))];
        self.stream.read_exact(&mut rest).unwrap();
    }

    /// FPDUs for these ULPDUs, at this place in the stream. Lets the caller spoil them before
    /// [`Raw::put`].
    pub fn fpdus(&mut self, ulpdus: &[Vec<u8>]) -> Vec<u8> {
        let from = self.sent.bytes().len();
        for u in ulpdus {
            self.sent.ulpdu(u);
        }
        self.sent.bytes()[from..].to_vec()
    }

    /// An FPDU whose length field lies.
    pub fn declared(&mut self, declared: u16, ulpdu: &[u8]) -> Vec<u8> {
        let from = self.sent.bytes().len();
        self.sent.declared(declared, ulpdu);
        self.sent.bytes()[from..].to_vec()
    }

    pub fn send(&mut self, ulpdus: &[Vec<u8>]) {
        let bytes = self.fpdus(ulpdus);
        self.put(&bytes);
    }

    /// Writes bytes; the engine may have closed already, which is no fault of the raw peer.
    pub fn put(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// The next ULPDU from the engine, its CRC checked. `Err`: how the stream ended instead.
    pub fn next(&mut self) -> Result<Vec<u8>, Ending> {
        loop {
            if let Some(ulpdu) = self.take_ulpdu() {
                return Ok(ulpdu);
            }
            let mut chunk = [0; 65536];
            match self.stream.read(&mut chunk) {
                Ok(0) => {
                    assert!(self.inbox.is_empty(), "the engine's stream ends within an FPDU");
                    return Err(Ending::EndOfStream);
                }
                Ok(n) => self.inbox.extend_from_slice(&chunk[..n]),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Err(Ending::Silence);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Ending::Reset),
            }
        }
    }

    fn take_ulpdu(&mut self) -> Option<Vec<u8>> {
        let len = usize::from(u16::from_be_bytes(*self.inbox.first_chunk::<2>()?));
        let total = (2 + len).next_multiple_of(4) + 4;
        let fpdu = self.inbox.get(..total)?;
        let (body, sum) = fpdu.split_at(total - 4);
        let want = if self.wire.crc { crc32c(body) } else { 0 };
        assert_eq!(u32::from_le_bytes(sum.try_into().unwrap()), want, "CRC of what the engine sent");
        let ulpdu = fpdu[2..2 + len].to_vec();
        self.inbox.drain(..total);
        Some(ulpdu)
    }

    /// Reads to the end of the engine's stream: the ULPDUs, and how it ended.
    pub fn drain(&mut self) -> (Vec<Vec<u8>>, Ending) {
        let mut out = Vec::new();
        loop {
            match self.next() {
                Ok(u) => out.push(u),
                Err(end) => return (out, end),
            }
        }
    }

    /// The Terminate that ends the engine's stream, taken apart as RFC 5040 §4.8 draws it. The stream must
    /// end with it, in good order.
    pub fn terminate(&mut self) -> Told {
        let (ulpdus, end) = self.drain();
        let last = ulpdus.last().unwrap_or_else(|| panic!("no Terminate before {end:?}"));
        assert_eq!(end, Ending::EndOfStream, "behind {}", hex(last));
        Told::parse(last)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// A Terminate as it was on the wire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// Layer, type, code.
    pub what: (u8, u8, u8),
    /// M: the length of the segment at fault.
    pub segment_len: Option<u16>,
    /// D: its DDP header.
    pub ddp: Option<Vec<u8>>,
    /// R: its RDMAP (Read Request) header.
    pub rdmap: Option<Vec<u8>>,
}

impl Told {
    fn parse(ulpdu: &[u8]) -> Self {
        // L set, T clear, DDP version 1; RDMAP version 1, opcode 7; queue 2, MSN 1, MO 0.
        let head = [0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0];
        assert_eq!(ulpdu.get(..18), Some(&head[..]), "no Terminate: {}", hex(ulpdu));
        let [first, code, flags, reserved] = ulpdu[18..22] else { panic!("short: {}", hex(ulpdu)) };
        assert_eq!((flags & 0x1f, reserved), (0, 0), "reserved bits: {}", hex(ulpdu));
        let mut rest = &ulpdu[22..];
        let mut take = |n: usize| {
            let (head, tail) = rest.split_at(n);
            rest = tail;
            head.to_vec()
        };
        let segment_len = (flags & 0xc0 != 0).then(|| take(2));
        let ddp = (flags & 0x40 != 0).then(|| {
            let mut header = take(1);
            header.extend(take(if header[0] & 0x80 != 0 { 13 } else { 17 }));
            header
        });
        let rdmap = (flags & 0x20 != 0).then(|| take(28));
        assert!(rest.is_empty(), "bytes behind the Terminate's fields: {}", hex(ulpdu));
        let segment_len =
            segment_len.filter(|_| flags & 0x80 != 0).map(|l| u16::from_be_bytes(l.try_into().unwrap()));
        Self { what: (first >> 4, first & 15, code), segment_len, ddp, rdmap }
    }
}
