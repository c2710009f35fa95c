//! Received bytes cut at FPDU boundaries.

use iwarp::mpa::deframe::Deframer;

/// Collects a stream and gives its FPDUs.
#[derive(Debug, Default)]
pub(super) struct Cutter {
    /// `None` where boundaries cannot be told (any more): bytes are given as they come.
    deframer: Option<Deframer>,
    bytes: Vec<u8>,
}

impl Cutter {
    /// FPDUs follow.
    pub(super) fn start(&mut self, markers: bool) {
        self.deframer = Some(Deframer::new(false, markers));
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole FPDU, markers included; where the stream is no sequence of FPDUs, all there is.
    pub(super) fn next(&mut self) -> Option<Vec<u8>> {
        if self.bytes.is_empty() {
            return None;
        }
        let Some(deframer) = &mut self.deframer else { return Some(std::mem::take(&mut self.bytes)) };
        let total = match deframer.peek(&self.bytes) {
            Ok(Some(total)) if total <= self.bytes.len() => total,
            Ok(_) => return None,
            Err(_) => {
                self.deframer = None;
                return Some(std::mem::take(&mut self.bytes));
            }
        };
        let rest = self.bytes.split_off(total);
        let fpdu = std::mem::replace(&mut self.bytes, rest);
        // Only to move on behind it; it strips the markers, so it gets a copy. A bad marker loses the track.
        if deframer.take(&mut fpdu.clone(), total, |_, _| 0).is_err() {
            self.deframer = None;
        }
        Some(fpdu)
    }

    /// What came of an FPDU that never became whole.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}
