//! Every verb, both ways: `interop peer` here, `siwprobe` in the guest, each as client and as server.

use super::peer::{connect, listen};
use crate::{
    case::{Bench, Case, STEP},
    need::Need,
    program::{Output, Program},
    tshark::{self, Terminate},
};
use anyhow::{Context, Result, ensure};

/// Every operation that both sides have, with lengths around the edges of padding, FPDUs and TCP segments.
const ALL: &str = "send:1 send:61 send:1424 send:4000 zwrite zread write:1 write:1428 write:5003 write:200000 \
                   read:1 read:1429 read:5003 read:200000 sendinv:32";
/// What a peer of our own has beside that.
const OURS: &str = "zsend send-solicited:64 writes:200:4096 reads:64:4096";

pub(super) fn cases() -> Vec<Case> {
    let mut cases = client_cases();
    cases.extend(server_cases());
    cases.extend(private_data_cases());
    cases.extend(terminate_cases());
    cases.push(Case::new("verbs/server/late-receives", late_receives));
    cases.push(Case::new("verbs/client/rejected", client_is_rejected));
    cases.push(Case::new("verbs/server/rejects", server_rejects));
    cases.push(Case::new("verbs/client/markers-refused", markers_are_refused));
    cases.push(Case::new("verbs/client/rtr-send-refused", rtr_send_is_refused));
    cases.push(Case::new("verbs/client/crc-refused", crc_is_refused).params(&["mpa_crc_strict=1"]));
    cases.push(Case::new("verbs/server/crc-refused", crc_is_refused_here).params(&["mpa_crc_required=1"]));
    cases.push(Case::new("verbs/client/peer-killed", client_loses_peer));
    cases.push(Case::new("verbs/server/peer-killed", server_loses_peer));
    cases.push(Case::new("verbs/client/killed", peer_loses_client));
    cases.push(Case::new("verbs/server/killed", peer_loses_server));
    cases
}

/// `interop peer` as client with these options, all operations.
fn client(name: &str, options: &'static str, agreed: &'static str) -> Case {
    Case::new(format!("verbs/client/{name}"), move |bench| run_client(bench, options, agreed))
}

/// `siwprobe` as client, all operations; what the peer here must have negotiated.
fn server(name: &str, options: &'static str, agreed: &'static str) -> Case {
    Case::new(format!("verbs/server/{name}"), move |bench| run_server(bench, options, agreed))
}

fn client_cases() -> Vec<Case> {
    vec![
        client("all", "", "revision 2 crc false markers out false in false rtr none ord 4 ird 4"),
        client("crc", "--crc on", "crc true"),
        client("mpa-1", "--mpa 1", "revision 1 crc false"),
        client("mpa-1-crc", "--mpa 1 --crc on", "revision 1 crc true"),
        client("rtr-write", "--rtr write,read", "rtr write"),
        client("rtr-read", "--rtr read", "rtr read"),
        client("depth-1", "--ord 1 --ird 1", "ord 1 ird 1"),
        client("large-fpdu", "--fpdu large", ""),
        client("small-fpdu", "--fpdu 128 --crc on", ""),
        client("stock", "", "").stock(),
        client("stock-crc", "--crc on", "crc true").stock(),
        client("stock-rtr-write", "--rtr write", "rtr write").stock(),
        client("stock-rtr-read", "--rtr read", "rtr read").stock(),
        client("tap", "", "").tap(),
        client("tap-crc", "--crc on", "crc true").tap(),
        client("tap-large-fpdu", "--fpdu large", "").tap(),
        client("tap-stock", "", "").tap().stock(),
    ]
}

fn server_cases() -> Vec<Case> {
    vec![
        server("all", "", "revision 2 crc false markers out false in false rtr none ord 4 ird 4"),
        server("crc", "", "crc true").params(&["mpa_crc_required=1"]),
        server("crc-on", "--crc on", "crc true"),
        server("mpa-1", "", "revision 1 crc false").params(&["mpa_version=1"]),
        server("mpa-1-crc", "", "revision 1 crc true").params(&["mpa_version=1", "mpa_crc_required=1"]),
        server("rtr-write", "", "rtr write").params(&["peer_to_peer=1"]),
        server("rtr-read", "", "rtr read").params(&["peer_to_peer=1", "rtr_type=64"]),
        server("gso", "", "").params(&["try_gso=1"]),
        server("large-fpdu", "--fpdu large", ""),
        server("stock", "", "").stock(),
        server("tap", "", "").tap(),
        server("tap-crc", "", "crc true").tap().params(&["mpa_crc_required=1"]),
        server("tap-stock", "", "").tap().stock(),
    ]
}

fn private_data_cases() -> Vec<Case> {
    // siw takes 256 bytes, the four of MPA revision 2 among them, and fails at 252 to 255.
    let lengths = [0, 1, 64, 192];
    let length = |n: usize| {
        Case::new(format!("verbs/client/private-data-{n}"), move |bench| {
            let port = bench.guest.port();
            let server = bench.guest.serve(port, &format!("siwprobe -s -p {}", port.port), STEP)?;
            connect(port.addr, &format!("--private-data {n} send:8"))?.success()?;
            let theirs = bench.guest.wait(server, STEP)?;
            ensure!(
                theirs.text.contains(&format!("private data {n} bytes \"{}\"", "x".repeat(n))),
                "siwprobe: {theirs}"
            );
            Ok(())
        })
    };
    lengths.into_iter().map(length).collect()
}

fn run_client(bench: &Bench<'_>, options: &str, agreed: &str) -> Result<()> {
    let guest = bench.guest;
    let port = guest.port();
    let server = guest.serve(port, &format!("siwprobe -s -p {}", port.port), STEP)?;
    let ours = connect(port.addr, &format!("{options} {OURS} {ALL} quit"))?;
    let theirs = guest.wait(server, STEP)?;
    ensure!(ours.status == 0 && theirs.status == 0, "peer: {ours}\nsiwprobe: {theirs}");
    ensure!(ours.text.contains(agreed), "peer: not agreed upon: {agreed:?}: {ours}");
    Ok(())
}

fn run_server(bench: &Bench<'_>, options: &str, agreed: &str) -> Result<()> {
    let guest = bench.guest;
    let (ours, port) = listen(bench, options, None)?;
    let theirs = guest.run(&format!("siwprobe -c {} -p {port} {ALL} quit", guest.host_ip()), STEP)?;
    let ours = ours.wait(STEP)?;
    ensure!(ours.status == 0 && theirs.status == 0, "peer: {ours}\nsiwprobe: {theirs}");
    ensure!(ours.text.contains(agreed), "peer: not agreed upon: {agreed:?}: {ours}");
    ensure!(ours.text.contains("received 32 bytes with invalidate"), "peer: {ours}");
    Ok(())
}

// --- Terminates -----------------------------------------------------------------------------------

/// What one side does wrong and the Terminate of the other.
struct Offence {
    name: &'static str,
    /// Of the client that commits it.
    operation: &'static str,
    /// Of a siwprobe that commits it.
    siw_operation: &'static str,
    /// Of a siwprobe that suffers it.
    siwprobe: &'static str,
    /// Of a peer of ours that suffers it.
    peer: &'static str,
    /// What siw says.
    from_siw: Terminate,
    /// What we say.
    from_us: Terminate,
}

const fn terminate(layer: u8, etype: u8, code: u8) -> Terminate {
    Terminate { layer, etype, code }
}

const OFFENCES: [Offence; 7] = [
    Offence::new("bad-rkey-write", "badwrite", terminate(1, 1, 0), terminate(1, 1, 0)),
    Offence::new("bad-rkey-read", "badread", terminate(0, 1, 0), terminate(0, 1, 0)),
    Offence::new("past-end-write", "pastwrite", terminate(1, 1, 1), terminate(1, 1, 1)),
    Offence::new("past-end-read", "pastread", terminate(0, 1, 1), terminate(0, 1, 1)),
    Offence::new("invalidated-rkey", "sendinv:16 stalewrite", terminate(1, 1, 0), terminate(1, 1, 0)),
    // siw has one code for both of these.
    Offence::new("too-long-send", "send:5000", terminate(1, 2, 2), terminate(1, 2, 5)),
    Offence {
        siwprobe: "-q 0",
        peer: "--receives 0",
        ..Offence::new("no-receive", "send:64", terminate(1, 2, 2), terminate(1, 2, 2))
    },
];

impl Offence {
    const fn new(
        name: &'static str,
        operation: &'static str,
        from_siw: Terminate,
        from_us: Terminate,
    ) -> Self {
        Self { name, operation, siw_operation: operation, siwprobe: "", peer: "", from_siw, from_us }
    }
}

fn terminate_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for offence in &OFFENCES {
        cases.push(Case::new(format!("verbs/terminate/from-siw/{}", offence.name), |bench| {
            from_siw(bench, offence)
        }));
        let ours =
            Case::new(format!("verbs/terminate/from-us/{}", offence.name), |bench| from_us(bench, offence));
        // Without a receive we hold the message aside: see `late_receives`.
        if offence.name != "no-receive" {
            cases.push(ours.needs(&[Need::Tshark]));
        }
    }
    cases
}

/// siw's Terminate, which has its bits swapped, is understood.
fn from_siw(bench: &Bench<'_>, offence: &Offence) -> Result<()> {
    let guest = bench.guest;
    let port = guest.port();
    let server = guest.serve(port, &format!("siwprobe -s -p {} {}", port.port, offence.siwprobe), STEP)?;
    let ours = connect(port.addr, offence.operation)?;
    let Terminate { layer, etype, code } = offence.from_siw;
    ensure!(ours.text.contains(&format!("end: terminated {layer}.{etype}.{code}\n")), "peer: {ours}");
    guest.wait(server, STEP)?;
    Ok(())
}

/// Ours is as the RFC has it: tshark says so. siw ends the connection on it.
fn from_us(bench: &Bench<'_>, offence: &Offence) -> Result<()> {
    let guest = bench.guest;
    let capture = bench.scratch.file("terminate.pcap");
    let (ours, port) = listen(bench, offence.peer, Some(&capture))?;
    let theirs =
        guest.run(&format!("siwprobe -c {} -p {port} {}", guest.host_ip(), offence.siw_operation), STEP)?;
    let ours = ours.wait(STEP)?;
    let Terminate { layer, etype, code } = offence.from_us;
    ensure!(
        ours.text.contains(&format!("end: fault {layer}.{etype}.{code} ")),
        "peer: {ours}\nsiwprobe: {theirs}"
    );
    // siw completes a Write when TCP has it: that probe is gone before the Terminate comes.
    let waits = !offence.siw_operation.contains("write");
    ensure!(!waits || theirs.text.contains("RDMA_CM_EVENT_DISCONNECTED"), "siwprobe: {theirs}");
    let seen = tshark::decode(&capture, "")?.clean()?.terminates;
    ensure!(seen == [offence.from_us], "tshark saw {seen:?}");
    Ok(())
}

/// Messages for which no receive is posted yet are held aside and delivered once there is one.
fn late_receives(bench: &Bench<'_>) -> Result<()> {
    let guest = bench.guest;
    let (ours, port) = listen(bench, "--late 300", None)?;
    guest
        .run(&format!("siwprobe -c {} -p {port} send:4000 send:8 quit", guest.host_ip()), STEP)?
        .success()?;
    ours.wait(STEP)?.success()?;
    Ok(())
}

// --- refusals -------------------------------------------------------------------------------------

fn client_is_rejected(bench: &Bench<'_>) -> Result<()> {
    let guest = bench.guest;
    let port = guest.port();
    let server = guest.serve(port, &format!("siwprobe -s -R -p {}", port.port), STEP)?;
    let ours = connect(port.addr, "send:1")?;
    ensure!(ours.text.contains("refused: rejected \"no thanks\""), "peer: {ours}");
    guest.wait(server, STEP)?;
    Ok(())
}

fn server_rejects(bench: &Bench<'_>) -> Result<()> {
    let guest = bench.guest;
    let (ours, port) = listen(bench, "--reject", None)?;
    let theirs = guest.run(&format!("siwprobe -c {} -p {port} send:1", guest.host_ip()), STEP)?;
    let rejected = theirs.text.contains("RDMA_CM_EVENT_REJECTED") && theirs.text.contains("\"no thanks\"");
    ensure!(theirs.status == 1 && rejected, "siwprobe: {theirs}");
    ours.wait(STEP)?.success()?;
    Ok(())
}

/// What siw refuses ends in a named error, in bounded time.
fn refused(bench: &Bench<'_>, options: &str) -> Result<Output> {
    let guest = bench.guest;
    let port = guest.port();
    let server = guest.serve(port, &format!("siwprobe -s -p {}", port.port), STEP)?;
    let ours = connect(port.addr, &format!("{options} send:1"))?;
    guest.kill(server, 9)?;
    guest.wait(server, STEP)?;
    ensure!(ours.status == 1 && ours.text.contains("refused: "), "peer: {ours}");
    Ok(ours)
}

fn markers_are_refused(bench: &Bench<'_>) -> Result<()> {
    let ours = refused(bench, "--markers")?;
    ensure!(ours.text.contains("refused: rejected"), "peer: {ours}");
    Ok(())
}

/// siw never takes a Send as the ready-to-receive message: it asks for a Write that was not on offer. (A Terminate at this
/// point crashes that kernel's connection manager: the runner boots another guest then.)
fn rtr_send_is_refused(bench: &Bench<'_>) -> Result<()> {
    refused(bench, "--rtr send").map(|_| ())
}

fn crc_is_refused(bench: &Bench<'_>) -> Result<()> {
    let ours = refused(bench, "--crc on")?;
    ensure!(ours.text.contains("refused: rejected"), "peer: {ours}");
    Ok(())
}

fn crc_is_refused_here(bench: &Bench<'_>) -> Result<()> {
    let guest = bench.guest;
    let (ours, port) = listen(bench, "--crc never", None)?;
    let theirs = guest.run(&format!("siwprobe -c {} -p {port} send:1", guest.host_ip()), STEP)?;
    ensure!(theirs.status == 1 && theirs.text.contains("RDMA_CM_EVENT_REJECTED"), "siwprobe: {theirs}");
    let ours = ours.wait(STEP)?;
    ensure!(ours.status != 0, "peer: {ours}");
    Ok(())
}

// --- abrupt ends ----------------------------------------------------------------------------------

fn client_loses_peer(bench: &Bench<'_>) -> Result<()> {
    let guest = bench.guest;
    let port = guest.port();
    let server = guest.serve(port, &format!("siwprobe -s -p {}", port.port), STEP)?;
    let mut ours =
        super::peer::client(port.addr, &format!("send:8{}", " writes:200:4096".repeat(200)), None)?;
    ours.wait_for("writes:200:4096: as expected", STEP)?;
    guest.kill(server, 9)?;
    let ours = ours.wait(STEP)?;
    ensure!(ours.status == 1 && ours.text.contains("end: "), "peer: {ours}");
    guest.wait(server, STEP)?;
    Ok(())
}

fn server_loses_peer(bench: &Bench<'_>) -> Result<()> {
    let guest = bench.guest;
    let (mut ours, port) = listen(bench, "", None)?;
    let words = "write:100000 ".repeat(500);
    let client = guest.spawn(&format!("siwprobe -c {} -p {port} {words}", guest.host_ip()))?;
    ours.wait_for("verify 100000 bytes: right", STEP)?;
    guest.kill(client, 9)?;
    guest.wait(client, STEP)?;
    let ours = ours.wait(STEP)?;
    ensure!(ours.text.contains("end: ") && !ours.text.contains("end: none"), "peer: {ours}");
    Ok(())
}

fn peer_loses_client(bench: &Bench<'_>) -> Result<()> {
    let guest = bench.guest;
    let port = guest.port();
    let server = guest.serve(port, &format!("siwprobe -s -p {}", port.port), STEP)?;
    let mut ours = super::peer::client(port.addr, &"writes:200:4096 ".repeat(200), None)?;
    ours.wait_for("writes:200:4096: as expected", STEP)?;
    ours.kill()?;
    ours.wait(STEP)?;
    let theirs = guest.wait(server, STEP).context("siwprobe")?;
    ensure!(theirs.text.contains("RDMA_CM_EVENT_DISCONNECTED"), "siwprobe: {theirs}");
    Ok(())
}

fn peer_loses_server(bench: &Bench<'_>) -> Result<()> {
    let guest = bench.guest;
    let (mut ours, port): (Program, u16) = listen(bench, "", None)?;
    let words = "write:100000 ".repeat(500);
    let client = guest.spawn(&format!("siwprobe -c {} -p {port} {words}", guest.host_ip()))?;
    ours.wait_for("verify 100000 bytes: right", STEP)?;
    ours.kill()?;
    ours.wait(STEP)?;
    let theirs = guest.wait(client, STEP).context("siwprobe")?;
    ensure!(theirs.status == 1 && theirs.text.contains("RDMA_CM_EVENT_DISCONNECTED"), "siwprobe: {theirs}");
    Ok(())
}
