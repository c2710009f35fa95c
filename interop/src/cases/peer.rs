//! Starting `interop peer`, which is this program once more.

use crate::{
    case::{Bench, STEP},
    program::{Output, Program, free_ports},
};
use anyhow::Result;
use std::{
    env,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::Command,
};

fn command(words: &str, capture: Option<&Path>) -> Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.arg("peer").args(words.split_whitespace()).env("RUST_BACKTRACE", "0");
    if let Some(file) = capture {
        command.env("RNIC_PCAP", file);
    }
    Ok(command)
}

/// Starts a client with these options and operations.
pub(super) fn client(addr: SocketAddr, words: &str, capture: Option<&Path>) -> Result<Program> {
    Program::spawn(command(words, capture)?.arg("--connect").arg(addr.to_string()))
}

/// Runs a client to its end.
pub(super) fn connect(addr: SocketAddr, words: &str) -> Result<Output> {
    client(addr, words, None)?.wait(STEP)
}

/// Starts a server with these options where the guest reaches it; the port.
pub(super) fn listen(bench: &Bench<'_>, words: &str, capture: Option<&Path>) -> Result<(Program, u16)> {
    listen_on(bench.guest.listen_ip(), words, capture)
}

/// Likewise on this address.
pub(super) fn listen_on(ip: Ipv4Addr, words: &str, capture: Option<&Path>) -> Result<(Program, u16)> {
    let [port] = free_ports()?;
    let mut server = Program::spawn(command(words, capture)?.args(["--listen", &format!("{ip}:{port}")]))?;
    server.wait_for("listening", STEP)?;
    Ok((server, port))
}
