//! How the two ends of `rnic perf` agree: private data when a connection starts, then messages on the control connection.
//!
//! ```text
//! initiator                                   responder
//!   connect [Hello control]        ------>
//!                                  <------      accept [Hello control] or reject [reason]
//!   Open {settings}                ------>      makes queue pairs
//!                                  <------      Opened
//!   connect [Hello data, n]        ------>      once for each queue pair
//!                                  <------      accept [Hello data, its regions]
//!   Round {verb, size, count, ...} ------>      posts receives, prepares data
//!                                  <------      Ready
//!   the timed part, on the data connections, ended by a Send and its answer
//!                                  <------      Done {verdict, CPU time}
//!   Close                          ------>
//!                                  <------      Closed
//! ```
//!
//! TCP's own measurements use the same messages, and plain sockets as data connections.
use std::fmt;

use serde::{Deserialize, Serialize};

use super::plan::{Fpdu, Kind, Verb};
use super::verify::Verdict;

/// Version of everything in this file. Both ends must have the same.
pub(crate) const VERSION: u16 = 1;
/// Longest message on the control connection.
pub(crate) const MAX_MESSAGE: usize = 4096;
const MAGIC: [u8; 8] = *b"rnicperf";
const HELLO_LEN: usize = 48;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Messages of this protocol.
    Control,
    /// Data of queue pair `index`.
    Data {
        /// Which of the queue pairs of the opened settings.
        index: u32,
    },
}

/// Memory that the peer may write to or read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Window {
    /// Where it starts, in the owner's addresses.
    pub(crate) addr: u64,
    /// Its steering tag.
    pub(crate) rkey: u32,
}

/// Private data of both the MPA Request and the Reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    /// What for.
    pub(crate) purpose: Purpose,
    /// Which run: drawn by the initiator, repeated by the responder.
    pub(crate) run: u64,
    /// The sender's memory for incoming data.
    pub(crate) sink: Window,
    /// The sender's memory with outgoing data.
    pub(crate) source: Window,
}

/// Why two ends cannot work together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ControlError {
    /// The peer is no `rnic perf`.
    NotPerf,
    /// The peer speaks another version.
    Version {
        /// The peer's.
        theirs: u16,
    },
    /// The responder serves another initiator.
    Busy,
    /// A data connection of another run, or one too many.
    NotExpected,
    /// A message that does not parse.
    Malformed(String),
    /// A message that has no place here.
    OutOfOrder {
        /// What was waited for.
        expected: &'static str,
        /// What came.
        got: &'static str,
    },
    /// The responder could not do as asked.
    Refused(String),
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPerf => f.write_str("the other end is no `rnic perf`"),
            Self::Version { theirs } => {
                write!(f, "the other end speaks version {theirs} of the control protocol, this one {VERSION}")
            }
            Self::Busy => f.write_str("the other end is serving somebody else"),
            Self::NotExpected => f.write_str("the other end does not expect this connection"),
            Self::Malformed(why) => write!(f, "the other end sent a message that does not parse: {why}"),
            Self::OutOfOrder { expected, got } => write!(f, "the other end sent {got}, {expected} was due"),
            Self::Refused(why) => write!(f, "the other end cannot: {why}"),
        }
    }
}

impl ControlError {
    /// What to do about it.
    pub(crate) fn remedy(&self) -> &'static str {
        match self {
            Self::NotPerf => "start `rnic perf --listen` there; `rnic ping` and rping use port 7174",
            Self::Version { .. } => "run the same version of rnic at both ends",
            Self::Busy => "wait until that run is over, or listen on another port",
            Self::NotExpected => "does a NAT or a proxy stand between the two ends?",
            Self::Malformed(_) | Self::OutOfOrder { .. } => "run the same version of rnic at both ends",
            Self::Refused(_) => "look at what the other end printed",
        }
    }

    /// Private data of a rejection.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let code = match self {
            Self::Busy => 1u16,
            Self::NotExpected => 2,
            _ => 0,
        };
        [&MAGIC[..], &VERSION.to_be_bytes(), &code.to_be_bytes()].concat()
    }

    /// The reason in the private data of a rejection.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        match version_of(bytes) {
            Err(error) => error,
            Ok(rest) => match rest {
                [0, 1, ..] => Self::Busy,
                [0, 2, ..] => Self::NotExpected,
                _ => Self::Malformed("a rejection without a reason".to_owned()),
            },
        }
    }
}

/// Checks magic and version; what follows them.
fn version_of(bytes: &[u8]) -> Result<&[u8], ControlError> {
    let rest = bytes.strip_prefix(&MAGIC).ok_or(ControlError::NotPerf)?;
    let (version, rest) = rest.split_first_chunk().ok_or(ControlError::NotPerf)?;
    match u16::from_be_bytes(*version) {
        VERSION => Ok(rest),
        theirs => Err(ControlError::Version { theirs }),
    }
}

impl Hello {
    /// As private data: magic, version, purpose (16 bits), index, run, then twice steering tag and address.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (purpose, index) = match self.purpose {
            Purpose::Control => (0u16, 0),
            Purpose::Data { index } => (1, index),
        };
        let mut out = Vec::with_capacity(HELLO_LEN);
        out.extend(MAGIC);
        out.extend(VERSION.to_be_bytes());
        out.extend(purpose.to_be_bytes());
        out.extend(index.to_be_bytes());
        out.extend(self.run.to_be_bytes());
        for window in [self.sink, self.source] {
            out.extend(window.rkey.to_be_bytes());
            out.extend(window.addr.to_be_bytes());
        }
        out
    }

    /// Reads private data. What follows the known part is ignored.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, ControlError> {
        let mut rest = version_of(bytes)?;
        let short = || ControlError::Malformed("private data too short".to_owned());
        fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
            let (head, tail) = rest.split_first_chunk()?;
            *rest = tail;
            Some(*head)
        }
        let mut parse = || -> Option<(u16, u32, u64, Window, Window)> {
            let purpose = u16::from_be_bytes(take(&mut rest)?);
            let index = u32::from_be_bytes(take(&mut rest)?);
            let run = u64::from_be_bytes(take(&mut rest)?);
            let mut window = || {
                let rkey = u32::from_be_bytes(take(&mut rest)?);
                Some(Window { rkey, addr: u64::from_be_bytes(take(&mut rest)?) })
            };
            Some((purpose, index, run, window()?, window()?))
        };
        let (purpose, index, run, sink, source) = parse().ok_or_else(short)?;
        let purpose = match purpose {
            0 => Purpose::Control,
            1 => Purpose::Data { index },
            other => return Err(ControlError::Malformed(format!("purpose {other}"))),
        };
        Ok(Self { purpose, run, sink, source })
    }
}

/// What the queue pairs of a group of rounds have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// MPA CRC both ways.
    pub(crate) crc: bool,
    /// MPA markers both ways.
    pub(crate) markers: bool,
    /// Segment size, of both ends.
    pub(crate) fpdu: Fpdu,
    /// Number of queue pairs.
    pub(crate) qps: u32,
    /// Sleep for completions instead of polling.
    pub(crate) events: bool,
    /// Bytes of each of the two regions of a queue pair.
    pub(crate) region: u32,
    /// Work requests under way.
    pub(crate) depth: u32,
}

/// One round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Round {
    /// Bandwidth or latency.
    pub(crate) kind: Kind,
    /// The operation.
    pub(crate) verb: Verb,
    /// Bytes a message.
    pub(crate) size: u32,
    /// Messages a queue pair.
    pub(crate) count: u32,
    /// Names the round; part of its data.
    pub(crate) generation: u64,
    /// Work requests posted by one call.
    pub(crate) batch: u32,
    /// Self-test: the end that sends falsifies one byte.
    pub(crate) corrupt: bool,
}

/// What plain TCP does in one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TcpKind {
    /// One way, a write call a message; ended by one byte back.
    Stream,
    /// `size` bytes there and as many back.
    PingPong,
    /// 8 bytes there and `size` back.
    Request,
}

/// One round of plain TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TcpRound {
    /// What is done.
    pub(crate) kind: TcpKind,
    /// Bytes a message.
    pub(crate) size: u32,
    /// Messages a connection.
    pub(crate) count: u32,
    /// Spin on non-blocking sockets, as opposed to blocking calls.
    pub(crate) spin: bool,
    /// Names the round; part of its data.
    pub(crate) generation: u64,
}

/// A message of the control connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "kebab-case")]
pub(crate) enum Message {
    /// Make queue pairs, replacing those of the same settings.
    Open(Settings),
    /// Connect now.
    Opened,
    /// Make a TCP listener for so many connections.
    OpenTcp {
        /// Number of connections.
        connections: u32,
        /// Bytes of the memory at each end of a connection.
        region: u32,
    },
    /// Connect now.
    OpenedTcp {
        /// Where to, at the same address.
        port: u16,
    },
    /// Prepare a round on the queue pairs opened with these settings.
    Round {
        /// Which queue pairs.
        settings: Settings,
        /// What to do.
        round: Round,
    },
    /// Prepare a round of plain TCP.
    RoundTcp(TcpRound),
    /// Prepared.
    Ready,
    /// The round is over at this end.
    Done {
        /// What this end checked.
        verdict: Verdict,
        /// CPU time of this process during the timed part, in nanoseconds.
        cpu_ns: u64,
    },
    /// The last answer of this end: it could not.
    Failed {
        /// Why.
        cause: String,
    },
    /// The end of the run.
    Close,
    /// Confirmed.
    Closed,
}

impl Message {
    /// As bytes: JSON, since a captured message then explains itself.
    pub(crate) fn encode(&self) -> Vec<u8> {
        // Serialising such plain types to memory cannot fail; an empty message is refused by the peer.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// From bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, ControlError> {
        serde_json::from_slice(bytes).map_err(|error| ControlError::Malformed(error.to_string()))
    }

    /// Its name, for errors.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Open(_) => "Open",
            Self::Opened => "Opened",
            Self::OpenTcp { .. } => "OpenTcp",
            Self::OpenedTcp { .. } => "OpenedTcp",
            Self::Round { .. } => "Round",
            Self::RoundTcp(_) => "RoundTcp",
            Self::Ready => "Ready",
            Self::Done { .. } => "Done",
            Self::Failed { .. } => "Failed",
            Self::Close => "Close",
            Self::Closed => "Closed",
        }
    }

    /// The error that this message is, where `expected` was due.
    pub(crate) fn unexpected(self, expected: &'static str) -> ControlError {
        match self {
            Self::Failed { cause } => ControlError::Refused(cause),
            other => ControlError::OutOfOrder { expected, got: other.name() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            purpose: Purpose::Data { index: 7 },
            run: 0x1122_3344_5566_7788,
            sink: Window { addr: 0x1000, rkey: 0xaabb_cc01 },
            source: Window { addr: 0x2000, rkey: 0xaabb_cc02 },
        }
    }

    #[test]
    fn a_hello_survives_the_wire_and_fits_private_data() {
        let bytes = hello().encode();
        assert_eq!(bytes.len(), HELLO_LEN);
        assert_eq!(Hello::decode(&bytes).unwrap(), hello());
        let control = Hello { purpose: Purpose::Control, ..hello() };
        assert_eq!(Hello::decode(&control.encode()).unwrap(), control);
    }

    #[test]
    fn a_stranger_is_told_from_another_version_and_from_a_cut_hello() {
        let bytes = hello().encode();
        assert_eq!(Hello::decode(b"hello siw"), Err(ControlError::NotPerf));
        assert_eq!(Hello::decode(b""), Err(ControlError::NotPerf));
        let mut newer = bytes.clone();
        newer[9] = 9;
        assert_eq!(Hello::decode(&newer), Err(ControlError::Version { theirs: 9 }));
        for len in 10..bytes.len() {
            assert!(matches!(Hello::decode(&bytes[..len]), Err(ControlError::Malformed(_))), "{len}");
        }
        let mut odd = bytes;
        odd[11] = 5;
        assert!(matches!(Hello::decode(&odd), Err(ControlError::Malformed(_))));
    }

    #[test]
    fn rejections_carry_their_reason() {
        for error in [ControlError::Busy, ControlError::NotExpected] {
            assert_eq!(ControlError::decode(&error.encode()), error);
        }
        assert_eq!(ControlError::decode(b"no thanks"), ControlError::NotPerf);
    }

    #[test]
    fn messages_survive_the_wire_and_stay_short() {
        let settings = Settings {
            crc: true,
            markers: false,
            fpdu: Fpdu::Bytes(9000),
            qps: 4,
            events: false,
            region: 1 << 24,
            depth: 64,
        };
        let round = Round {
            kind: Kind::Latency,
            verb: Verb::CmpSwap,
            size: 8,
            count: u32::MAX,
            generation: u64::MAX,
            batch: 32,
            corrupt: false,
        };
        for message in [
            Message::Open(settings),
            Message::Round { settings, round },
            Message::Done { verdict: Verdict::of_word(u64::MAX >> 4, 1, 2), cpu_ns: u64::MAX },
            Message::Failed { cause: "out of \"memory\"".to_owned() },
            Message::Closed,
        ] {
            let bytes = message.encode();
            assert!(bytes.len() < MAX_MESSAGE / 4);
            assert_eq!(Message::decode(&bytes).unwrap(), message);
        }
        assert!(matches!(Message::decode(b"{}"), Err(ControlError::Malformed(_))));
    }

    #[test]
    fn a_message_out_of_place_is_named() {
        let error = Message::Close.unexpected("Ready");
        assert_eq!(error.to_string(), "the other end sent Close, Ready was due");
        let refused = Message::Failed { cause: "no memory".to_owned() }.unexpected("Ready");
        assert_eq!(refused, ControlError::Refused("no memory".to_owned()));
    }
}
