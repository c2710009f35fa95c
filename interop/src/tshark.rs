//! What tshark, an independent decoder, says of a capture.

use crate::program::Program;
use anyhow::{Context, Result, ensure};
use std::{collections::BTreeMap, path::Path, process::Command, time::Duration};

/// Longest that decoding one capture may take.
const LIMIT: Duration = Duration::from_secs(120);

/// A Terminate message as tshark reads it, that is as RFC 5040 says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Terminate {
    /// 0 RDMAP, 1 DDP, 2 MPA.
    pub layer: u8,
    /// Error type.
    pub etype: u8,
    /// Error code.
    pub code: u8,
}

/// The iWARP in a capture.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// MPA Requests and Replies.
    pub startups: usize,
    /// FPDUs.
    pub fpdus: usize,
    /// FPDUs by RDMAP opcode.
    pub opcodes: BTreeMap<u8, usize>,
    /// FPDUs with a CRC that is right.
    pub good_crcs: usize,
    /// Markers in the stream.
    pub markers: usize,
    /// Terminates.
    pub terminates: Vec<Terminate>,
    /// What is wrong: malformed frames, bad CRCs, bad lengths.
    pub faults: Vec<String>,
}

impl Decoded {
    /// How many FPDUs have this RDMAP opcode.
    pub fn count(&self, opcode: u8) -> usize {
        self.opcodes.get(&opcode).copied().unwrap_or(0)
    }

    /// Itself if nothing in it is wrong and there is something in it.
    ///
    /// # Errors
    /// What tshark found wrong.
    pub fn clean(self) -> Result<Self> {
        ensure!(self.faults.is_empty(), "tshark found faults: {}", self.faults.join("; "));
        ensure!(self.startups > 0 && self.fpdus > 0, "tshark found no iWARP: {self:?}");
        let known: usize = self.opcodes.values().sum();
        ensure!(known == self.fpdus, "{} FPDUs, but {known} with an opcode", self.fpdus);
        Ok(self)
    }
}

/// Decodes a capture; `filter` is a display filter, or empty.
///
/// # Errors
/// If tshark fails.
pub fn decode(capture: &Path, filter: &str) -> Result<Decoded> {
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(capture).args(["-O", "iwarp_mpa,iwarp_ddp_rdmap", "-Y", filter]);
    // rpcordma takes small Sends for its own and calls them malformed; without the heuristic a client's port that is
    // known for another protocol hides its connection.
    tshark.args(["--disable-protocol", "rpcordma", "-o", "tcp.try_heuristic_first:TRUE"]);
    let text = Program::run(&mut tshark, LIMIT)?
        .success()
        .with_context(|| format!("tshark -r {}", capture.display()))?;
    Ok(parse(&text))
}

fn parse(text: &str) -> Decoded {
    let mut d = Decoded::default();
    let mut frame = "";
    for line in text.lines() {
        // Bit fields stand before the name: `.... 0011 = OpCode: Send (0x3)`.
        let line = line.trim();
        let (bits, item) = line.split_once(" = ").unwrap_or(("", line));
        let (name, value) = item.split_once(": ").unwrap_or((item, ""));
        match name {
            _ if line.starts_with("Frame ") => frame = line.split(':').next().unwrap_or(line),
            "Request frame header" | "Reply frame header" => d.startups += 1,
            "FPDU" => d.fpdus += 1,
            // RDMAP's has four bits; an Atomic Request has another one.
            "OpCode" if bits.len() == ".... 0011".len() => *d.opcodes.entry(number(value)).or_default() += 1,
            "FPDU back pointer" => d.markers += 1,
            "CRC check" if value.contains("(Good") => d.good_crcs += 1,
            "Layer" => d.terminates.push(Terminate { layer: number(value), etype: 0, code: 0 }),
            _ if name.starts_with("Error Types") => d.last_terminate(|t| t.etype = number(value)),
            _ if name.starts_with("Error Code") => d.last_terminate(|t| t.code = number(value)),
            _ if item.contains("Malformed") || name == "CRC check" || item.contains("Bad length") => {
                d.faults.push(format!("{frame}: {item}"));
            }
            _ => {}
        }
    }
    d
}

impl Decoded {
    fn last_terminate(&mut self, set: impl FnOnce(&mut Terminate)) {
        if let Some(t) = self.terminates.last_mut() {
            set(t);
        }
    }
}

/// The number in `Send (0x3)` or `0x03`.
fn number(value: &str) -> u8 {
    let digits = value.rsplit("0x").next().unwrap_or("").trim_end_matches(')');
    u8::from_str_radix(digits, 16).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "\
Frame 4: 90 bytes on wire (720 bits), 90 bytes captured (720 bits)
iWARP Marker Protocol data unit Aligned framing
    Request frame header
        0... .... = Marker flag: False
Frame 8: 150 bytes on wire (1200 bits), 150 bytes captured (1200 bits)
    FPDU
        ULPDU length: 34 bytes
        CRC: 0x69b134ad
        CRC check: 0x69b134ad (Good CRC32)
            .... 0011 = OpCode: Send (0x3)
    FPDU
        CRC check: 0x69b134ae (Good CRC32)
            .... 0111 = OpCode: Terminate (0x7)
            0000 0000 0000 0000 0000 0000 0000 0001 = OpCode: CmpSwap (0x00000001)
        Terminate
            Terminate Control
                0010 .... = Layer: LLP (0x2)
                .... 0000 = Error Types for LLP layer: MPA Error (0x0)
                Error Code for LLP layer: Insufficient IRD Resources (0x06)
";

    #[test]
    fn a_sound_capture_is_counted() {
        let d = parse(SOUND).clean().unwrap();
        assert_eq!((d.startups, d.fpdus, d.good_crcs), (1, 2, 2));
        assert_eq!((d.count(3), d.count(7), d.count(0)), (1, 1, 0));
        assert_eq!(d.terminates, [Terminate { layer: 2, etype: 0, code: 6 }]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_frame() {
        let bad = SOUND.replace("0x69b134ad (Good CRC32)", "0x1e7204ae (Bad CRC32, should be 0xb3ac04ae)");
        let err = parse(&bad).clean().unwrap_err().to_string();
        assert!(err.contains("Frame 8: CRC check: 0x1e7204ae (Bad CRC32"), "{err}");
        let err =
            parse(&format!("{SOUND}[Malformed Packet: iWARP DDP RDMAP]")).clean().unwrap_err().to_string();
        assert!(err.contains("Frame 8: [Malformed"), "{err}");
    }

    #[test]
    fn a_capture_without_iwarp_is_not_clean() {
        assert!(parse("Frame 1: 74 bytes on wire").clean().is_err());
        let undecoded = SOUND.replace("OpCode: Send (0x3)", "Data");
        assert!(parse(&undecoded).clean().is_err());
    }
}
