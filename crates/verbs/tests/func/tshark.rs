//! What tshark, an independent decoder, says of a capture.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

/// A capture as tshark reads it.
#[derive(Debug, Default)]
pub(crate) struct Decoded {
    /// TCP segments; those with payload.
    pub segments: usize,
    pub data_segments: usize,
    pub syns: usize,
    pub fins: usize,
    pub requests: usize,
    pub replies: usize,
    /// FPDUs by RDMAP opcode.
    pub opcodes: BTreeMap<u8, usize>,
    pub good_crcs: usize,
    pub markers: usize,
    /// Checksums of IP and TCP headers that are right.
    pub good_checksums: usize,
    /// Malformed frames, wrong sums, gaps, retransmissions.
    pub faults: Vec<String>,
}

impl Decoded {
    pub(crate) fn count(&self, opcode: u8) -> usize {
        self.opcodes.get(&opcode).copied().unwrap_or(0)
    }

    pub(crate) fn fpdus(&self) -> usize {
        self.opcodes.values().sum()
    }
}

/// Decodes a capture; `None`, with the reason printed, where there is no tshark. With `CI=true` there has to
/// be one.
pub(crate) fn decode(capture: &Path) -> Option<Decoded> {
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(capture).args(["-O", "iwarp_mpa,iwarp_ddp_rdmap,tcp,ip"]);
    // rpcordma takes small Sends for its own and calls them malformed; without the heuristic a port known for
    // another protocol hides its connection.
    tshark.args(["--disable-protocol", "rpcordma", "-o", "tcp.try_heuristic_first:TRUE"]);
    tshark.args(["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"]);
    let output = match tshark.stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            assert!(
                std::env::var("CI").as_deref() != Ok("true"),
                "tshark is missing: apt-get install tshark"
            );
            eprintln!("SKIPPED: tshark is missing (apt-get install --no-install-recommends tshark)");
            return None;
        }
        Err(e) => panic!("tshark: {e}"),
    };
    assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    Some(parse(&String::from_utf8_lossy(&output.stdout)))
}

fn parse(text: &str) -> Decoded {
    let mut d = Decoded::default();
    let mut frame = "";
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with("Frame ") {
            frame = line.split(':').next().unwrap_or(line);
            d.segments += 1;
        }
        // Bit fields stand before the name: `.... 0011 = OpCode: Send (0x3)`.
        let (bits, item) = line.split_once(" = ").unwrap_or(("", line));
        let (name, value) = item.split_once(": ").unwrap_or((item, ""));
        match name {
            "Request frame header" => d.requests += 1,
            "Reply frame header" => d.replies += 1,
            // The operation of an atomic has the same name, but is 32 bits wide.
            "OpCode" if bits.len() == 9 => *d.opcodes.entry(number(value)).or_default() += 1,
            "FPDU back pointer" => d.markers += 1,
            "CRC check" if value.contains("(Good") => d.good_crcs += 1,
            "Syn" if value == "Set" => d.syns += 1,
            "Fin" if value == "Set" => d.fins += 1,
            _ if name.starts_with("TCP payload") => d.data_segments += 1,
            _ if item.contains("Checksum Status: Good") || item.contains("checksum status: Good") => {
                d.good_checksums += 1;
            }
            _ if name == "CRC check" || is_fault(item) => d.faults.push(format!("{frame}: {item}")),
            _ => {}
        }
    }
    d
}

/// Severe remarks; tshark knows only RFC 5044, whose revision is 1 and which reserves flags that RFC 6581 uses.
fn is_fault(item: &str) -> bool {
    let remark = item.contains("Expert Info (Warning") || item.contains("Expert Info (Error");
    let revision = item.contains("field is NOT set to");
    (remark && !revision) || ["Malformed", "Bad length", "Status: Bad"].iter().any(|f| item.contains(f))
}

/// The number in `Send (0x3)` or `0x03`.
fn number(value: &str) -> u8 {
    let digits = value.rsplit("0x").next().unwrap_or("").trim_end_matches(')');
    u8::from_str_radix(digits, 16).unwrap_or(u8::MAX)
}
