//! Wire bytes written straight from the RFCs' figures: what a peer of another make, or a hostile one,
//! would send. Shares no code with the codecs under test, CRC and markers included.

/// The sum of each byte: the polynomial 0x1EDC6F41, reflected, divided bit by bit.
const TABLE: [u32; 256] = {
    let mut table = [0u32; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// Sums CRC32c. RFC 5044 §4.4 (as iSCSI, RFC 7143 §13.1).
pub fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| TABLE[usize::from(crc as u8 ^ byte)] ^ crc >> 8)
}

/// A stream of FPDUs under construction.
#[derive(Clone, Debug)]
pub struct Craft {
    crc: bool,
    markers: bool,
    bytes: Vec<u8>,
    /// Where in `bytes` each FPDU starts.
    starts: Vec<usize>,
}

impl Craft {
    /// An empty stream, at its first FPDU.
    pub fn new(crc: bool, markers: bool) -> Self {
        Self { crc, markers, bytes: Vec::new(), starts: Vec::new() }
    }

    /// The stream so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Where each FPDU starts (with a marker that falls before it).
    pub fn starts(&self) -> &[usize] {
        &self.starts
    }

    /// Appends an FPDU that carries this ULPDU.
    pub fn ulpdu(&mut self, ulpdu: impl AsRef<[u8]>) -> &mut Self {
        let ulpdu = ulpdu.as_ref();
        let declared = u16::try_from(ulpdu.len()).expect("a ULPDU has at most 65535 bytes");
        self.declared(declared, ulpdu)
    }

    /// Appends an FPDU whose length field says `declared`, whatever `ulpdu` holds.
    pub fn declared(&mut self, declared: u16, ulpdu: &[u8]) -> &mut Self {
        let mut plain = declared.to_be_bytes().to_vec();
        plain.extend_from_slice(ulpdu);
        while !plain.len().is_multiple_of(4) {
            plain.push(0);
        }
        let start = self.bytes.len();
        self.starts.push(start);
        // The length field's place in the stream: FPDUPTR of every marker counts from it. RFC 5044 §4.3.
        let field = start + if self.markers && start.is_multiple_of(512) { 4 } else { 0 };
        for byte in plain {
            self.push(byte, field);
        }
        let sum = if self.crc { crc32c(&self.marked_tail(start, field)) } else { 0 };
        for byte in sum.to_le_bytes() {
            self.push(byte, field);
        }
        self
    }

    /// What the CRC covers: the FPDU from its start, with a marker that is due before the CRC field.
    fn marked_tail(&mut self, start: usize, field: usize) -> Vec<u8> {
        self.marker_if_due(field);
        self.bytes[start..].to_vec()
    }

    fn push(&mut self, byte: u8, field: usize) {
        self.marker_if_due(field);
        self.bytes.push(byte);
    }

    fn marker_if_due(&mut self, field: usize) {
        if self.markers && self.bytes.len().is_multiple_of(512) {
            let back = self.bytes.len().saturating_sub(field) as u16;
            self.bytes.extend_from_slice(&[0, 0]);
            self.bytes.extend_from_slice(&back.to_be_bytes());
        }
    }

    /// Appends bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }
}

/// Fields of a segment's two control bytes that tests bend. RFC 5041 §4.1, RFC 5040 §4.1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Control {
    /// L: last segment of its message.
    pub last: bool,
    /// RDMAP opcode, 4 bits.
    pub opcode: u8,
    /// DDP version, 2 bits; 1 is right.
    pub ddp_version: u8,
    /// RDMAP version, 2 bits; 1 is right.
    pub rdmap_version: u8,
}

impl Control {
    /// A last segment of this opcode, versions as they should be.
    pub fn last(opcode: u8) -> Self {
        Self { last: true, opcode, ddp_version: 1, rdmap_version: 1 }
    }

    /// A segment that others follow.
    pub fn more(opcode: u8) -> Self {
        Self { last: false, ..Self::last(opcode) }
    }

    fn bytes(self, tagged: bool) -> [u8; 2] {
        let first = u8::from(tagged) << 7 | u8::from(self.last) << 6 | self.ddp_version & 3;
        [first, self.rdmap_version << 6 | self.opcode & 15]
    }
}

/// A tagged segment. RFC 5041 §4.2.
pub fn tagged(control: Control, stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = control.bytes(true).to_vec();
    out.extend_from_slice(&stag.to_be_bytes());
    out.extend_from_slice(&to.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// Queue number, message sequence number and message offset of an untagged segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Queue number.
    pub qn: u32,
    /// Message sequence number, from 1.
    pub msn: u32,
    /// Message offset in bytes.
    pub mo: u32,
}

/// An untagged segment. RFC 5041 §4.3.
pub fn untagged(control: Control, inv_stag: u32, place: Place, payload: &[u8]) -> Vec<u8> {
    let mut out = control.bytes(false).to_vec();
    for word in [inv_stag, place.qn, place.msn, place.mo] {
        out.extend_from_slice(&word.to_be_bytes());
    }
    out.extend_from_slice(payload);
    out
}

/// A one-segment Send (opcode 3) on queue 0.
pub fn send(msn: u32, payload: &[u8]) -> Vec<u8> {
    untagged(Control::last(3), 0, Place { qn: 0, msn, mo: 0 }, payload)
}

/// A one-segment Write (opcode 0).
pub fn write(stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    tagged(Control::last(0), stag, to, payload)
}

/// A one-segment Read Response (opcode 2).
pub fn read_response(stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    tagged(Control::last(2), stag, to, payload)
}

/// A Read Request (opcode 1, queue 1). RFC 5040 §4.4.
pub fn read_request(msn: u32, sink: (u32, u64), len: u32, source: (u32, u64)) -> Vec<u8> {
    let mut body = sink.0.to_be_bytes().to_vec();
    body.extend_from_slice(&sink.1.to_be_bytes());
    body.extend_from_slice(&len.to_be_bytes());
    body.extend_from_slice(&source.0.to_be_bytes());
    body.extend_from_slice(&source.1.to_be_bytes());
    untagged(Control::last(1), 0, Place { qn: 1, msn, mo: 0 }, &body)
}

/// Fields of an Atomic Request. RFC 7306 §5.2.1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Atomic {
    /// 0 FetchAdd, 1 Swap, 2 CmpSwap.
    pub op: u32,
    /// Request identifier.
    pub id: u32,
    /// The responder's STag.
    pub stag: u32,
    /// The responder's tagged offset.
    pub to: u64,
    /// Addend or swapped value, its mask, comparand, its mask.
    pub operands: [u64; 4],
}

/// An Atomic Request (opcode 10, queue 1).
pub fn atomic_request(msn: u32, a: Atomic) -> Vec<u8> {
    let mut body = Vec::new();
    for word in [a.op, a.id, a.stag] {
        body.extend_from_slice(&word.to_be_bytes());
    }
    for word in [a.to].into_iter().chain(a.operands) {
        body.extend_from_slice(&word.to_be_bytes());
    }
    untagged(Control::last(10), 0, Place { qn: 1, msn, mo: 0 }, &body)
}

/// An Atomic Response (opcode 11, queue 3).
pub fn atomic_response(msn: u32, id: u32, original: u64) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    body.extend_from_slice(&original.to_be_bytes());
    untagged(Control::last(11), 0, Place { qn: 3, msn, mo: 0 }, &body)
}

/// Immediate Data (opcode 8, queue 0). RFC 7306 §6.
pub fn immediate(msn: u32, value: u64) -> Vec<u8> {
    untagged(Control::last(8), 0, Place { qn: 0, msn, mo: 0 }, &value.to_be_bytes())
}

/// A Terminate (opcode 7, queue 2) with this body. RFC 5040 §4.8.
pub fn terminate(body: &[u8]) -> Vec<u8> {
    untagged(Control::last(7), 0, Place { qn: 2, msn: 1, mo: 0 }, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_check_value() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn a_small_fpdu_with_and_without_markers() {
        let ulpdu = write(0x0102_0304, 9, b"x");
        let mut c = Craft::new(false, false);
        c.ulpdu(&ulpdu);
        assert_eq!(
            c.bytes(),
            [0, 15, 0xc1, 0x40, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 9, b'x', 0, 0, 0, 0, 0, 0, 0]
        );
        let mut c = Craft::new(false, true);
        c.ulpdu(&ulpdu);
        assert_eq!(c.bytes()[..6], [0, 0, 0, 0, 0, 15]);
        assert_eq!(c.bytes().len(), 28);
    }

    #[test]
    fn markers_point_back_to_the_length_field() {
        let mut c = Craft::new(true, true);
        c.ulpdu(write(1, 0, &[7; 1200]));
        let b = c.bytes();
        assert_eq!((b[512..516].to_vec(), b[1024..1028].to_vec()), (vec![0, 0, 1, 252], vec![0, 0, 3, 252]));
    }
}
