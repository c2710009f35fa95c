//! A connection as TCP packets.

use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use etherparse::{IpHeaders, Ipv4Header, Ipv6Header, PacketBuilder, TcpHeader, TcpOptionElement, ip_number};

use super::file::File;
use super::{Ends, lock};

/// Which end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// Sent the Request.
    Initiator = 0,
    /// Sent the Reply.
    Responder = 1,
}

impl Side {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Initiator => Self::Responder,
            Self::Responder => Self::Initiator,
        }
    }
}

/// Payload of a packet: what IPv4 has room for behind two headers without options.
pub(super) const MAX_PAYLOAD: usize = 65_535 - 20 - 20;
/// Bytes after which the silent end acknowledges: decoders take sequence numbers half their range apart
/// for old ones.
const ACK_EVERY: u32 = 1 << 29;
const WINDOW: u16 = u16::MAX;
/// Announced in the handshake, so that nothing exceeds the window.
const WINDOW_SCALE: u8 = 14;
const TTL: u8 = 64;

/// The state of both ends.
#[derive(Debug)]
pub(super) struct Conversation {
    ends: Ends,
    /// Both ends are in this process and record what they send.
    both: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Next sequence number, and the acknowledgement sent last, of each side.
    seq: [u32; 2],
    acked: [u32; 2],
    /// Ends that ever were in this process, and those that sent a FIN.
    here: [bool; 2],
    fin: [bool; 2],
}

impl Conversation {
    pub(super) fn new(ends: Ends, side: Side) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        // Another start for each, so that ports used again are told apart.
        let isn = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b1);
        let mut here = [false; 2];
        here[side as usize] = true;
        Self {
            ends,
            both: AtomicBool::new(false),
            state: Mutex::new(State { seq: [isn, !isn], acked: [0; 2], here, fin: [false; 2] }),
        }
    }

    /// The other end is here, too. False if this one already was: another connection.
    pub(super) fn join(&self, side: Side) -> bool {
        let mut s = lock(&self.state);
        if s.here[side as usize] || s.fin.contains(&true) {
            return false;
        }
        s.here[side as usize] = true;
        self.both.store(true, Ordering::SeqCst);
        true
    }

    pub(super) fn has_both(&self) -> bool {
        self.both.load(Ordering::SeqCst)
    }

    /// SYN, SYN-ACK, ACK.
    pub(super) fn handshake(&self, file: &File) {
        use Side::{Initiator, Responder};
        let mut s = lock(&self.state);
        self.packet(file, &mut s, Initiator, Flags { syn: true, ..Flags::default() }, &[]);
        self.packet(file, &mut s, Responder, Flags { syn: true, ack: true, ..Flags::default() }, &[]);
        self.packet(file, &mut s, Initiator, Flags { ack: true, ..Flags::default() }, &[]);
    }

    /// Bytes that `from` sent: one packet, or several where they do not fit.
    pub(super) fn data(&self, file: &File, from: Side, bytes: &[u8]) {
        let mut s = lock(&self.state);
        if s.fin[from as usize] {
            return;
        }
        let count = bytes.len().div_ceil(MAX_PAYLOAD);
        for (n, part) in bytes.chunks(MAX_PAYLOAD).enumerate() {
            self.packet(
                file,
                &mut s,
                from,
                Flags { ack: true, psh: n + 1 == count, ..Flags::default() },
                part,
            );
        }
        if s.seq[from as usize].wrapping_sub(s.acked[from.other() as usize]) > ACK_EVERY {
            self.packet(file, &mut s, from.other(), Flags { ack: true, ..Flags::default() }, &[]);
        }
    }

    /// An end is done: its FIN, the peer's if nobody here speaks for it, and the last ACK.
    pub(super) fn close(&self, file: &File, side: Side) {
        let fin = Flags { fin: true, ack: true, ..Flags::default() };
        let mut s = lock(&self.state);
        let done = |s: &State, side: Side| s.fin[side as usize];
        for end in [side, side.other()] {
            if !done(&s, end) && (end == side || !self.has_both()) {
                self.packet(file, &mut s, end, fin, &[]);
                s.fin[end as usize] = true;
                if done(&s, end.other()) {
                    self.packet(file, &mut s, end.other(), Flags { ack: true, ..Flags::default() }, &[]);
                }
            }
        }
    }

    fn packet(&self, file: &File, s: &mut State, from: Side, flags: Flags, payload: &[u8]) {
        let (me, other) = (from as usize, from.other() as usize);
        let (source, target) = match from {
            Side::Initiator => self.ends,
            Side::Responder => (self.ends.1, self.ends.0),
        };
        let mut tcp = TcpHeader::new(source.port(), target.port(), s.seq[me], WINDOW);
        (tcp.syn, tcp.ack, tcp.psh, tcp.fin) = (flags.syn, flags.ack, flags.psh, flags.fin);
        if flags.ack {
            tcp.acknowledgment_number = s.seq[other];
            s.acked[me] = s.seq[other];
        }
        if flags.syn {
            let options = [
                TcpOptionElement::MaximumSegmentSize(MAX_PAYLOAD as u16),
                TcpOptionElement::Noop,
                TcpOptionElement::WindowScale(WINDOW_SCALE),
            ];
            // Eight bytes of the forty that there may be.
            let _ = tcp.set_options(&options);
        }
        let step = payload.len() as u32 + u32::from(flags.syn) + u32::from(flags.fin);
        s.seq[me] = s.seq[me].wrapping_add(step);
        file.packet(|out| {
            // Writing to a vector fails only for payloads longer than a packet.
            PacketBuilder::ip(ip(source, target)?).tcp_header(tcp).write(out, payload).ok()
        });
    }
}

#[derive(Clone, Copy, Default)]
struct Flags {
    syn: bool,
    ack: bool,
    psh: bool,
    fin: bool,
}

/// The IP header; the builder fills lengths and checksums in. `None`: the families differ.
fn ip(source: SocketAddr, target: SocketAddr) -> Option<IpHeaders> {
    match (source.ip(), target.ip()) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let mut header = Ipv4Header::new(0, TTL, ip_number::TCP, a.octets(), b.octets()).ok()?;
            header.dont_fragment = true;
            Some(IpHeaders::Ipv4(header, Default::default()))
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let header = Ipv6Header {
                hop_limit: TTL,
                source: a.octets(),
                destination: b.octets(),
                ..Ipv6Header::default()
            };
            Some(IpHeaders::Ipv6(header, Default::default()))
        }
        _ => None,
    }
}
