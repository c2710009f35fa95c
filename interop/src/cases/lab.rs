//! The lab itself, without any program of the project: guest against guest, and the ways in and out.

use crate::case::{Bench, Case, STEP};
use anyhow::{Result, ensure};
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    thread,
};

const REQUEST_V1: &[u8; 20] = b"MPA ID Req Frame\0\x01\0\0";
/// Reply of revision 1 with the Reject flag.
const REJECT_V1: &[u8; 20] = b"MPA ID Rep Frame\x20\x01\0\0";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("lab/agent", agent),
        Case::new("lab/rping-in-guest", rping_in_guest),
        Case::new("lab/siwprobe-in-guest", siwprobe_in_guest),
        Case::new("lab/way-in", way_in),
        Case::new("lab/way-out", way_out).params(&["mpa_version=1"]),
        Case::new("lab/stock-siw", stock_siw).stock(),
        Case::new("lab/tap-way-in", way_in).tap(),
    ]
}

/// Statuses, output, background jobs and signals.
fn agent(bench: &Bench<'_>) -> Result<()> {
    let guest = bench.guest;
    let out = guest.run("echo one; echo two >&2; exit 7", STEP)?;
    ensure!(out.status == 7 && out.text == "one\ntwo\n", "{out}");
    let sleeper = guest.spawn("echo up; sleep 300 & sleep 300")?;
    guest.wait_for(sleeper, "up\n", STEP)?;
    guest.kill(sleeper, 9)?;
    let out = guest.wait(sleeper, STEP)?;
    ensure!(out.status == 137, "a killed command: {out}");
    let left = guest.run("pidof sleep", STEP)?;
    ensure!(left.status == 1, "left behind: {left}");
    let big = guest.run("head -c 300000 /dev/zero | tr '\\0' x", STEP)?.success()?;
    ensure!(big.len() == 300_000 && big.bytes().all(|b| b == b'x'), "{} bytes", big.len());
    Ok(())
}

fn rping_in_guest(bench: &Bench<'_>) -> Result<()> {
    let guest = bench.guest;
    let (ip, port) = (guest.own_ip(), guest.port());
    let server = guest.serve(port, &format!("rping -s -v -a {ip} -p {} -C 3", port.port), STEP)?;
    let client = guest.run(&format!("rping -c -v -V -a {ip} -p {} -C 3", port.port), STEP)?;
    ensure!(client.lines_after("ping data: rdma-ping-").count() == 3, "client: {client}");
    let server = guest.wait(server, STEP)?;
    ensure!(
        server.status == 0 && server.lines_after("server ping data: rdma-ping-").count() == 3,
        "server: {server}"
    );
    Ok(())
}

fn siwprobe_in_guest(bench: &Bench<'_>) -> Result<()> {
    let guest = bench.guest;
    let (ip, port) = (guest.own_ip(), guest.port());
    let server = guest.serve(port, &format!("siwprobe -s -p {}", port.port), STEP)?;
    let ops = "send:64 write:5000 read:5000 zwrite zread sendinv:32 quit";
    guest.run(&format!("siwprobe -c {ip} -p {} {ops}", port.port), STEP)?.success()?;
    guest.wait(server, STEP)?.success()?;
    Ok(())
}

/// A connection from here reaches siw in the guest: an MPA Request is answered.
fn way_in(bench: &Bench<'_>) -> Result<()> {
    let guest = bench.guest;
    let port = guest.port();
    let server = guest.serve(port, &format!("siwprobe -s -R -p {}", port.port), STEP)?;
    let mut stream = TcpStream::connect(port.addr)?;
    stream.set_read_timeout(Some(STEP))?;
    stream.write_all(REQUEST_V1)?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply)?;
    ensure!(reply == b"MPA ID Rep Frame\x20\x01\0\x09no thanks", "reply {reply:02x?}");
    guest.wait(server, STEP)?.success()?;
    Ok(())
}

/// A connection from siw in the guest reaches a listener here.
fn way_out(bench: &Bench<'_>) -> Result<()> {
    let guest = bench.guest;
    let listener = TcpListener::bind((guest.listen_ip(), 0))?;
    let port = listener.local_addr()?.port();
    let client = guest.spawn(&format!("siwprobe -c {} -p {port} send:1", guest.host_ip()))?;
    let serve = thread::spawn(move || -> Result<[u8; 20]> {
        let (mut stream, _) = listener.accept()?;
        stream.set_read_timeout(Some(STEP))?;
        let mut request = [0; 20];
        stream.read_exact(&mut request)?;
        stream.write_all(REJECT_V1)?;
        // siw takes a FIN that comes with the Reject for the connection's failure: it closes first.
        ensure!(stream.read(&mut [0])? == 0, "data behind a rejected Request");
        Ok(request)
    });
    let out = guest.wait(client, STEP)?;
    ensure!(out.status == 1 && out.text.contains("RDMA_CM_EVENT_REJECTED"), "client: {out}");
    let request = serve.join().map_err(|_| anyhow::anyhow!("the listener panicked"))??;
    ensure!(&request == REQUEST_V1, "request {request:02x?}");
    Ok(())
}

fn stock_siw(bench: &Bench<'_>) -> Result<()> {
    let out = bench.guest.run("rdma link; ls /sys/module/siw/parameters", STEP)?;
    ensure!(
        out.status != 0 && out.text.contains("siw0/1 state ACTIVE"),
        "parameters in the stock siw: {out}"
    );
    siwprobe_in_guest(bench)
}
