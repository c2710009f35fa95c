//! Captures read back: per TCP connection the two byte streams, as an endpoint's socket would have
//! delivered them.
//!
//! Reads classic pcap files (either byte order, micro- or nanoseconds) of Ethernet, raw IP or Linux
//! "cooked" frames with TCP over IPv4 or IPv6. Everything else in a capture is passed over.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

#[cfg(test)]
mod tests;

/// How one direction of a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum End {
    /// Neither FIN nor RST was captured.
    #[default]
    Open,
    /// The sender closed its side.
    Fin,
    /// The sender reset the connection.
    Reset,
}

/// What one side sent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stream {
    /// The bytes in order, retransmissions once.
    pub bytes: Vec<u8>,
    /// How it ended.
    pub end: End,
    /// Later bytes were captured but some before them were not; those later ones are left out.
    pub gap: bool,
}

/// One TCP connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// Who opened it (who sent first, where the SYN is not in the capture).
    pub client: SocketAddr,
    /// Who accepted it.
    pub server: SocketAddr,
    /// What the client sent.
    pub from_client: Stream,
    /// What the server sent.
    pub from_server: Stream,
}

/// Why a capture could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PcapError {
    /// Not a classic pcap file.
    Format,
    /// Frames of this link type (`LINKTYPE_` number) are not understood.
    LinkType(u32),
    /// The file ends within a frame.
    Truncated,
}

impl fmt::Display for PcapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Format => f.write_str("not a classic pcap file (pcapng: convert with `tshark -F pcap`)"),
            Self::LinkType(n) => write!(f, "link type {n} is not understood"),
            Self::Truncated => f.write_str("the capture ends within a frame"),
        }
    }
}

impl std::error::Error for PcapError {}

/// The connections of a capture, in the order in which they start.
///
/// # Errors
/// Where `capture` is not a pcap file that this module reads.
pub fn connections(capture: &[u8]) -> Result<Vec<Connection>, PcapError> {
    let mut flows: Vec<Flow<'_>> = Vec::new();
    for frame in frames(capture)? {
        let Some(segment) = segment(frame?) else { continue };
        // A new SYN on old ports is a new connection.
        let opens = segment.flags & (SYN | ACK) == SYN;
        let known = flows.iter_mut().rev().find_map(|f| f.side(&segment).map(|side| (f, side)));
        match known {
            Some((flow, side)) if !opens || flow.halves[side].is_syn(&segment) => {
                flow.halves[side].take(&segment)
            }
            _ => {
                let mut flow = Flow::new(&segment);
                // Where the SYN was missed, its answer names the server.
                if segment.flags & (SYN | ACK) == SYN | ACK {
                    flow.ends.swap(0, 1);
                    flow.halves[1].take(&segment);
                } else {
                    flow.halves[0].take(&segment);
                }
                flows.push(flow);
            }
        }
    }
    Ok(flows.into_iter().map(Flow::finish).collect())
}

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// One TCP segment.
#[derive(Debug)]
struct Segment<'a> {
    from: SocketAddr,
    to: SocketAddr,
    seq: u32,
    flags: u8,
    payload: &'a [u8],
}

/// A connection under way: ends and halves are client, server.
#[derive(Debug)]
struct Flow<'a> {
    ends: [SocketAddr; 2],
    halves: [Half<'a>; 2],
}

impl<'a> Flow<'a> {
    fn new(segment: &Segment<'a>) -> Self {
        Self { ends: [segment.from, segment.to], halves: [Half::default(), Half::default()] }
    }

    /// Which end sent the segment, if it is of this connection.
    fn side(&self, s: &Segment<'_>) -> Option<usize> {
        match self.ends {
            [a, b] if (a, b) == (s.from, s.to) => Some(0),
            [a, b] if (b, a) == (s.from, s.to) => Some(1),
            _ => None,
        }
    }

    fn finish(self) -> Connection {
        let [client, server] = self.ends;
        let [from_client, from_server] = self.halves.map(Half::finish);
        Connection { client, server, from_client, from_server }
    }
}

/// What one side sent, as captured.
#[derive(Debug, Default)]
struct Half<'a> {
    /// Sequence number of the first byte of data.
    start: Option<u32>,
    syn: Option<u32>,
    pieces: Vec<(u64, &'a [u8])>,
    end: End,
}

impl<'a> Half<'a> {
    /// Whether this is (a copy of) the SYN that opened this side.
    fn is_syn(&self, s: &Segment<'_>) -> bool {
        self.syn == Some(s.seq)
    }

    fn take(&mut self, s: &Segment<'a>) {
        let syn = s.flags & SYN != 0;
        let seq = if syn { s.seq.wrapping_add(1) } else { s.seq };
        if syn {
            self.syn = Some(s.seq);
            self.start = Some(seq);
        }
        let start = *self.start.get_or_insert(seq);
        // Streams shorter than 2 GiB: what lies "behind" by more is before the start (a keep-alive probe).
        let offset = seq.wrapping_sub(start);
        if !s.payload.is_empty() && offset < 1 << 31 {
            self.pieces.push((offset.into(), s.payload));
        }
        if s.flags & RST != 0 {
            self.end = End::Reset;
        } else if s.flags & FIN != 0 && self.end == End::Open {
            self.end = End::Fin;
        }
    }

    fn finish(mut self) -> Stream {
        self.pieces.sort_by_key(|&(offset, _)| offset);
        let mut bytes = Vec::new();
        let mut gap = false;
        for (offset, piece) in self.pieces {
            let Some(known) = (bytes.len() as u64).checked_sub(offset) else {
                gap = true;
                break;
            };
            bytes.extend_from_slice(piece.get(known as usize..).unwrap_or_default());
        }
        Stream { bytes, end: self.end, gap }
    }
}

/// What is needed to take a frame apart: its link type and bytes.
#[derive(Debug, Clone, Copy)]
struct Frame<'a> {
    link: u32,
    bytes: &'a [u8],
}

const LINK_ETHERNET: u32 = 1;
const LINK_RAW: u32 = 101;
const LINK_COOKED: u32 = 113;

/// The frames of a pcap file.
fn frames(capture: &[u8]) -> Result<impl Iterator<Item = Result<Frame<'_>, PcapError>>, PcapError> {
    let header = capture.first_chunk::<24>().ok_or(PcapError::Format)?;
    let big = match header[..4] {
        [0xa1, 0xb2, 0xc3, 0xd4] | [0xa1, 0xb2, 0x3c, 0x4d] => true,
        [0xd4, 0xc3, 0xb2, 0xa1] | [0x4d, 0x3c, 0xb2, 0xa1] => false,
        _ => return Err(PcapError::Format),
    };
    let word = move |bytes: &[u8], at: usize| -> Option<u32> {
        let b = *bytes.get(at..)?.first_chunk::<4>()?;
        Some(if big { u32::from_be_bytes(b) } else { u32::from_le_bytes(b) })
    };
    // The upper bits may tell the length of a frame check sequence.
    let link = word(header, 20).unwrap_or_default() & 0x0fff_ffff;
    if ![LINK_ETHERNET, LINK_RAW, LINK_COOKED].contains(&link) {
        return Err(PcapError::LinkType(link));
    }
    let mut rest = &capture[24..];
    Ok(std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let len = word(rest, 8).map(|n| n as usize);
        let Some(bytes) = len.and_then(|len| rest.get(16..)?.get(..len)) else {
            rest = &[];
            return Some(Err(PcapError::Truncated));
        };
        rest = &rest[16 + bytes.len()..];
        Some(Ok(Frame { link, bytes }))
    }))
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The TCP segment in a frame, if there is one.
fn segment(frame: Frame<'_>) -> Option<Segment<'_>> {
    let packet = match frame.link {
        LINK_RAW => frame.bytes,
        LINK_COOKED => frame.bytes.get(16..)?,
        _ => {
            let tagged = be16(frame.bytes, 12)? == 0x8100;
            frame.bytes.get(if tagged { 18 } else { 14 }..)?
        }
    };
    let (from, to, tcp) = match packet.first()? >> 4 {
        4 => ipv4(packet)?,
        6 => ipv6(packet)?,
        _ => return None,
    };
    let seq = u32::from_be_bytes(*tcp.get(4..)?.first_chunk()?);
    let header = usize::from(tcp.get(12)? >> 4) * 4;
    Some(Segment {
        from: SocketAddr::new(from, be16(tcp, 0)?),
        to: SocketAddr::new(to, be16(tcp, 2)?),
        seq,
        flags: *tcp.get(13)?,
        payload: tcp.get(header..)?,
    })
}

/// Addresses and TCP bytes of an IPv4 packet. Short frames have padding behind the packet; a frame
/// that was offloaded may state a length of zero.
fn ipv4(packet: &[u8]) -> Option<(IpAddr, IpAddr, &[u8])> {
    let header = usize::from(packet.first()? & 15) * 4;
    let fragment = be16(packet, 6)? & 0x3fff;
    if *packet.get(9)? != 6 || fragment != 0 {
        return None;
    }
    let total = match be16(packet, 2)? {
        0 => packet.len(),
        total => packet.len().min(total.into()),
    };
    let from = Ipv4Addr::from(*packet.get(12..)?.first_chunk::<4>()?);
    let to = Ipv4Addr::from(*packet.get(16..)?.first_chunk::<4>()?);
    Some((from.into(), to.into(), packet.get(header..total)?))
}

/// Addresses and TCP bytes of an IPv6 packet without extension headers.
fn ipv6(packet: &[u8]) -> Option<(IpAddr, IpAddr, &[u8])> {
    if *packet.get(6)? != 6 {
        return None;
    }
    let end = match be16(packet, 4)? {
        0 => packet.len(),
        len => packet.len().min(40 + usize::from(len)),
    };
    let from = Ipv6Addr::from(*packet.get(8..)?.first_chunk::<16>()?);
    let to = Ipv6Addr::from(*packet.get(24..)?.first_chunk::<16>()?);
    Some((from.into(), to.into(), packet.get(40..end)?))
}
