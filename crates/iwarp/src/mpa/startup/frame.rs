//! The layout that Request and Reply Frames share. RFC 5044 §7.1.1, RFC 6581 §6.

use core::ops::Range;

use super::{MAX_FRAME, Revision, RtrOffer, StartupError};
use crate::wire::array;
use crate::wire::mpa::{
    CONTROL_LEN, DEPTH_MASK, DEPTH_UNSPECIFIED, FLAG_ENHANCED, FLAG_REJECT, FRAME_HEADER, IRD_PEER_TO_PEER,
    IRD_RTR_SEND, KEY_REPLY, KEY_REQUEST, MAX_PRIVATE_DATA, ORD_RTR_READ, ORD_RTR_WRITE,
};

/// Which of the two frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Request,
    Reply,
}

impl Kind {
    fn key(self) -> [u8; 16] {
        match self {
            Self::Request => KEY_REQUEST,
            Self::Reply => KEY_REPLY,
        }
    }
}

/// The IRD and ORD words of revision 2. RFC 6581 §9.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Control {
    /// `None`: not negotiated here.
    pub(super) ird: Option<u16>,
    /// `None`: not negotiated here.
    pub(super) ord: Option<u16>,
    /// Peer-to-peer mode with these RTR frames.
    pub(super) rtr: Option<RtrOffer>,
}

impl Control {
    fn parse(bytes: [u8; CONTROL_LEN]) -> Self {
        let [i0, i1, o0, o1] = bytes;
        let (ird, ord) = (u16::from_be_bytes([i0, i1]), u16::from_be_bytes([o0, o1]));
        // rule 6581-9-1, 6581-9.1-4
        let depth = |word: u16| Some(word & DEPTH_MASK).filter(|&d| d != DEPTH_UNSPECIFIED);
        let rtr = (ird & IRD_PEER_TO_PEER != 0).then_some(RtrOffer {
            write: ord & ORD_RTR_WRITE != 0,
            read: ord & ORD_RTR_READ != 0,
            send: ird & IRD_RTR_SEND != 0,
        });
        Self { ird: depth(ird), ord: depth(ord), rtr }
    }

    fn write(self) -> [u8; CONTROL_LEN] {
        let bit = |on: bool, bit: u16| if on { bit } else { 0 };
        let mut ird = self.ird.unwrap_or(DEPTH_UNSPECIFIED) & DEPTH_MASK;
        let mut ord = self.ord.unwrap_or(DEPTH_UNSPECIFIED) & DEPTH_MASK;
        if let Some(rtr) = self.rtr {
            ird |= IRD_PEER_TO_PEER | bit(rtr.send, IRD_RTR_SEND);
            ord |= bit(rtr.write, ORD_RTR_WRITE) | bit(rtr.read, ORD_RTR_READ);
        }
        let ([i0, i1], [o0, o1]) = (ird.to_be_bytes(), ord.to_be_bytes());
        [i0, i1, o0, o1]
    }
}

/// A frame, taken apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Frame {
    pub(super) flags: u8,
    pub(super) revision: Revision,
    pub(super) control: Option<Control>,
    /// The ULP's, behind the control words.
    pub(super) private_data: Range<usize>,
    pub(super) consumed: usize,
}

/// Parses a frame at the start of a stream. `None`: no fault so far, but more bytes are needed.
pub(super) fn parse(kind: Kind, bytes: &[u8]) -> Result<Option<Frame>, StartupError> {
    // A stranger is told by its first wrong byte, not after 20 that may never come.
    // rule 5044-7.1.1-1, 5044-7.1.2-6
    if bytes.iter().zip(kind.key()).any(|(&have, want)| have != want) {
        return Err(StartupError::Key);
    }
    let Some(&[.., flags, revision, hi, lo]) = bytes.first_chunk::<FRAME_HEADER>() else { return Ok(None) };
    // rule 5044-7.1.1-6
    let revision = Revision::from_wire(revision).ok_or(StartupError::Revision(revision))?;
    let declared = u16::from_be_bytes([hi, lo]);
    let len = usize::from(declared);
    // rule 5044-7.1.1-7
    if len > MAX_PRIVATE_DATA {
        return Err(StartupError::PrivateDataLength(declared));
    }
    // S is one of revision 1's reserved bits, which are not checked on receipt. RFC 5044 §7.1.1.
    // rule 6581-6-1, 6581-6-2, 6581-6-3
    let enhanced = revision == Revision::V2 && flags & FLAG_ENHANCED != 0;
    let has_control = enhanced && len >= CONTROL_LEN;
    // A peer that rejects may leave the words out: there is nothing to negotiate any more.
    let rejects = kind == Kind::Reply && flags & FLAG_REJECT != 0;
    if enhanced && !has_control && !rejects {
        return Err(StartupError::EnhancedLength(declared));
    }
    // rule 5044-7.1.1-8, 5044-7.1.2-4, 5044-9.1-1
    let consumed = FRAME_HEADER + len;
    // rule 5044-7.1.2-2, 5044-7.1.2-8
    if bytes.len() < consumed {
        return Ok(None);
    }
    let control = array(bytes, FRAME_HEADER).filter(|_| has_control).map(Control::parse);
    let start = FRAME_HEADER + if has_control { CONTROL_LEN } else { 0 };
    Ok(Some(Frame { flags, revision, control, private_data: start..consumed, consumed }))
}

/// Writes a frame and returns its length. The S flag follows from `control`.
pub(super) fn write(
    kind: Kind,
    flags: u8,
    revision: Revision,
    control: Option<Control>,
    private_data: &[u8],
    out: &mut [u8; MAX_FRAME],
) -> Result<usize, StartupError> {
    let words = control.map(Control::write);
    let words = words.as_ref().map_or(&[][..], |w| w);
    // rule 6581-6-4
    let max = MAX_PRIVATE_DATA - words.len();
    let declared = words.len() + private_data.len();
    if private_data.len() > max {
        return Err(StartupError::PrivateDataTooLong { len: private_data.len(), max });
    }
    let flags = if control.is_some() { flags | FLAG_ENHANCED } else { flags };
    let [hi, lo] = (declared as u16).to_be_bytes();
    let (header, body) = out.split_at_mut(FRAME_HEADER);
    let fields = [flags, revision as u8, hi, lo];
    for (to, from) in header.iter_mut().zip(kind.key().into_iter().chain(fields)) {
        *to = from;
    }
    for (to, from) in body.iter_mut().zip(words.iter().chain(private_data)) {
        *to = *from;
    }
    Ok(FRAME_HEADER + declared)
}
