//! Two peers of our own, and what tshark finds in the captures that they wrote: opcodes that siw does not know, markers.

use super::peer::{client, listen_on};
use crate::{
    case::{Case, STEP},
    need::Need,
    scratch::Scratch,
    tshark::{Decoded, decode},
};
use anyhow::{Result, ensure};
use std::net::Ipv4Addr;

const OPERATIONS: &str = "zsend send:1 send:61 send:4000 send-solicited:64 zwrite zread write:1 write:5003 write:70001 \
                          read:1 read:5003 read:70001 sendinv:32";
/// RDMAP opcodes of those: Write, Read Request, Read Response, Send, with invalidate, with solicited event.
const OPCODES: [u8; 6] = [0, 1, 2, 3, 4, 5];
/// Those of RFC 7306: Immediate Data, Atomic Request, Atomic Response.
const EXTENSIONS: [u8; 3] = [8, 10, 11];

pub(super) fn cases() -> Vec<Case> {
    let variant = |name: &str, options: &'static str| {
        Case::host(format!("capture/{name}"), move |scratch| check(scratch, options)).needs(&[Need::Tshark])
    };
    vec![
        variant("plain", ""),
        variant("crc", "--crc on"),
        variant("markers", "--markers --crc on"),
        variant("mpa-1", "--mpa 1 --crc on"),
        variant("large-fpdu", "--fpdu large --crc on"),
        variant("rtr", "--rtr write --crc on"),
    ]
}

fn check(scratch: &Scratch, options: &str) -> Result<()> {
    let files = [scratch.file("client.pcap"), scratch.file("server.pcap")];
    let (server, port) = listen_on(Ipv4Addr::LOCALHOST, options, Some(&files[1]))?;
    // Before the discovery of RFC 7306 there was no revision 2 to carry it.
    let extensions = if options.contains("--mpa 1") { "" } else { "atomics immediate" };
    let words = format!("{options} {OPERATIONS} {extensions} quit");
    let ours = client((Ipv4Addr::LOCALHOST, port).into(), &words, Some(&files[0]))?.wait(STEP)?;
    let theirs = server.wait(STEP)?;
    ensure!(ours.status == 0 && theirs.status == 0, "client: {ours}\nserver: {theirs}");
    for file in files {
        let d = decode(&file, "")?.clean()?;
        ensure!(d.startups == 2 && d.terminates.is_empty(), "{d:?}");
        ensure!(
            !options.contains("--crc on") || d.good_crcs == d.fpdus,
            "{} of {} CRCs",
            d.good_crcs,
            d.fpdus
        );
        ensure!(options.contains("--markers") == (d.markers > 0), "{} markers", d.markers);
        expect(&d, &OPCODES)?;
        if !extensions.is_empty() {
            expect(&d, &EXTENSIONS)?;
        }
    }
    Ok(())
}

fn expect(d: &Decoded, opcodes: &[u8]) -> Result<()> {
    for opcode in opcodes {
        ensure!(d.count(*opcode) > 0, "no opcode {opcode:#x} in {:?}", d.opcodes);
    }
    Ok(())
}
