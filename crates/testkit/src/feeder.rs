//! One receiver, fed by hand: for streams that no honest peer sends.

use iwarp::Fault;
use iwarp::mpa::startup::{Negotiated, Revision, Rtr};
use iwarp::rdmap::Outstanding;
use iwarp::rx::{Progress, Receiver};
use iwarp::types::Stag;
use iwarp::wire::terminate::{self, TerminateMessage};

use crate::host::{ArrayHost, Region, Rights, Snapshot};

/// What was agreed, for a receiver in a test: RFC 7306 known, 4 Reads each way.
pub fn agreed(crc: bool, rx_markers: bool) -> Negotiated {
    Negotiated {
        revision: Revision::V2,
        crc,
        tx_markers: false,
        rx_markers,
        ord: 4,
        ird: 4,
        rtr: None,
        extensions: true,
    }
}

/// As [`agreed`], with an RTR frame.
pub fn agreed_rtr(rtr: Rtr) -> Negotiated {
    Negotiated { rtr: Some(rtr), ..agreed(false, false) }
}

/// Every right, 8 KiB across the 4 GiB line.
pub const OPEN: u32 = 0x0000_0101;
/// Where [`OPEN`] starts.
pub const OPEN_BASE: u64 = 0xffff_f000;
/// No right at all.
pub const CLOSED: u32 = 0x0000_0202;
/// Of another protection domain.
pub const FOREIGN: u32 = 0x0000_0303;
/// Every right, but its memory is gone.
pub const UNMAPPED: u32 = 0x0000_0404;
/// Every right, the last 4 KiB of the 2^64 bytes.
pub const TOP: u32 = 0x0000_0505;
/// Where [`TOP`] starts.
pub const TOP_BASE: u64 = u64::MAX - 4095;
/// Where Reads put their bytes.
pub const SINK: u32 = 0x0000_0606;
/// May be invalidated by the peer.
pub const VICTIM: u32 = 0x0000_0707;
/// An STag of nobody.
pub const NOBODY: u32 = 0x0000_0999;
/// Bytes of the regions other than [`OPEN`] and [`TOP`], which start at 0.
pub const SMALL: usize = 16 << 10;

/// A host with one region of each kind, filled with `0xaa`, no receives, no Reads under way.
pub fn host(n: &Negotiated) -> ArrayHost {
    let mut host = ArrayHost::new(usize::from(n.ord), usize::from(n.ird));
    let filled = |base, len| Region::new(base, 0).with_bytes(vec![0xaa; len]);
    host.register(OPEN, filled(OPEN_BASE, 8192))
        .register(CLOSED, filled(0, SMALL).with_rights(Rights::NONE))
        .register(FOREIGN, filled(0, SMALL).in_pd(2))
        .register(UNMAPPED, Region { mapped: false, ..filled(0, SMALL) })
        .register(TOP, filled(TOP_BASE, 4096))
        .register(SINK, filled(0, SMALL).with_rights(Rights::NONE))
        .register(VICTIM, filled(0, SMALL));
    host
}

/// A Read of `len` bytes into [`SINK`] at `to`, noted as sent.
pub fn expect_read(host: &mut ArrayHost, cookie: u64, to: u64, len: u32) {
    let request = Outstanding { cookie, sink_stag: Stag(SINK), sink_to: to, len, ..Outstanding::default() };
    assert!(host.expect_response(request), "within the ORD");
}

/// An atomic with this identifier whose result goes to [`SINK`] at `to`, noted as sent.
pub fn expect_atomic(host: &mut ArrayHost, cookie: u64, to: u64, id: u32) {
    let request = Outstanding {
        cookie,
        sink_stag: Stag(SINK),
        sink_to: to,
        len: 8,
        atomic: Some(id),
        ..Outstanding::default()
    };
    assert!(host.expect_response(request), "within the ORD");
}

/// What a stream came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Memory, messages, events.
    pub snapshot: Snapshot,
    /// What the receiver said last.
    pub result: Result<Progress, Fault>,
    /// FPDUs taken.
    pub fpdus: u64,
    /// The Terminate that answers a fault.
    pub terminate: Option<TerminateMessage>,
}

/// A receiver, its host, and the bytes that it did not take yet.
#[derive(Debug)]
pub struct Feeder {
    /// The embedding.
    pub host: ArrayHost,
    /// The receiver.
    pub rx: Receiver,
    buffer: Vec<u8>,
    result: Result<Progress, Fault>,
    direct: bool,
    direct_bytes: u64,
    /// The fault is the host's, of which the receiver does not know.
    placing_failed: bool,
}

impl Feeder {
    /// A stream from its first FPDU on.
    pub fn new(n: &Negotiated, host: ArrayHost) -> Self {
        Self {
            host,
            rx: Receiver::new(n, true),
            buffer: Vec::new(),
            result: Ok(Progress::NeedBytes),
            direct: false,
            direct_bytes: 0,
            placing_failed: false,
        }
    }

    /// Puts payload straight to memory wherever the receiver offers it.
    pub fn with_direct(self) -> Self {
        Self { direct: true, ..self }
    }

    /// More of the stream.
    ///
    /// # Errors
    /// The fault that ended it.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Progress, Fault> {
        if let Err(fault) = self.result {
            // A receiver that found a fault takes nothing more, however good it looks.
            if !self.placing_failed {
                let again = self.rx.handle(&mut self.host, &mut bytes.to_vec());
                assert_eq!(again, Err(fault), "a fault stays");
            }
            return self.result;
        }
        let rest = if self.direct { self.feed_direct(bytes)? } else { bytes };
        self.buffer.extend_from_slice(rest);
        self.result = self.rx.handle(&mut self.host, &mut self.buffer).map(|(n, progress)| {
            self.buffer.drain(..n);
            progress
        });
        self.result
    }

    fn feed_direct<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Fault> {
        let Some(direct) = self.rx.direct() else { return Ok(bytes) };
        assert!(self.buffer.is_empty(), "payload under way leaves nothing behind");
        let (now, rest) = bytes.split_at(bytes.len().min(direct.remaining as usize));
        if let Err(fault) = self.host.place_direct(direct, now) {
            self.result = Err(fault);
            self.placing_failed = true;
            return Err(fault);
        }
        self.rx.direct_done(now.len());
        self.direct_bytes += now.len() as u64;
        Ok(rest)
    }

    /// Payload bytes that went straight to memory.
    pub fn direct_bytes(&self) -> u64 {
        self.direct_bytes
    }

    /// Bytes that the receiver has not taken.
    pub fn pending(&self) -> usize {
        self.buffer.len()
    }

    /// What the stream came to.
    pub fn outcome(&self) -> Outcome {
        Outcome {
            snapshot: self.host.snapshot(),
            result: self.result,
            fpdus: self.rx.fpdus(),
            terminate: self.terminate(),
        }
    }

    /// The Terminate that goes to the peer for the fault found, as its receiver would decode it.
    pub fn terminate(&self) -> Option<TerminateMessage> {
        let fault = self.result.err()?;
        let mut body = [0; terminate::MAX_LEN];
        let (quote, len) = self.rx.offending().map_or((None, 0), |(q, len)| (Some(q), len));
        let n = terminate::encode(fault.terminate(), quote, len, &mut body);
        TerminateMessage::decode(&body[..n])
    }
}
