//! The end that answers.
use std::net::SocketAddr;

use rnic_verbs::{Access, ConnRequest, Device, ListenConfig, Listener};

use super::end::{End, params, policy};
use super::message::{self, Advertisement, MAX_SIZE, PORT};
use crate::address::HostPort;
use crate::cli::PingArgs;
use crate::error::{Failure, Result};
use crate::perf::progress::say;
use crate::{fabric, signal};

/// `rnic ping --listen`
pub(crate) fn run(args: &PingArgs, listen: &HostPort) -> Result<()> {
    let device = fabric::open()?;
    let config = ListenConfig::with_policy(policy(args));
    let listener = Listener::bind(&device, listen.resolve_local(PORT)?, config)?;
    if !args.quiet {
        eprintln!("rnic ping: listening on {}", listener.local_addr()?);
    }
    std::thread::scope(|scope| {
        loop {
            if signal::interrupted() {
                return Ok(());
            }
            let Some(request) = fabric::accept(&listener)? else { continue };
            let peer = request.peer_addr();
            if args.once {
                return serve(args, &device, request, peer);
            }
            let device = &device;
            scope.spawn(move || match serve(args, device, request, peer) {
                Err(failure) if !signal::interrupted() => eprintln!("{failure}"),
                _ => {}
            });
        }
    })
}

/// One client, until it disconnects.
fn serve(args: &PingArgs, device: &Device, request: ConnRequest, peer: SocketAddr) -> Result<()> {
    let mut end = End::new(device, None)?;
    request.accept(&end.qp, params(args))?;
    let buffer = end.register(MAX_SIZE as usize, Access::LOCAL_WRITE)?;
    let mut pings = 0u64;
    let outcome = loop {
        match answer(args, &mut end, &buffer) {
            Ok(true) => pings += 1,
            Ok(false) => break Ok(()),
            Err(failure) => break Err(failure.during(format!("client {peer}"))),
        }
    };
    end.qp.disconnect();
    if !args.quiet {
        say(&format!("{pings} pings answered for {peer}"))?;
    }
    outcome
}

/// One ping; false when the client has gone instead, which it may between two pings.
fn answer(args: &PingArgs, end: &mut End, buffer: &rnic_verbs::MemoryRegion) -> Result<bool> {
    let Some(source) = end.receive("the next ping")? else { return Ok(false) };
    check_size(source)?;
    end.read(buffer, source)?;
    if args.verbose {
        let mut data = vec![0; source.size as usize];
        buffer.read_at(0, &mut data)?;
        say(&format!("server ping data: {}", message::printable(&data)))?;
    }
    end.send(None)?;
    let gone = || Failure::failed("the client closed the connection in the middle of a ping");
    let sink = end.receive("the second half of a ping")?.ok_or_else(gone)?;
    check_size(sink)?;
    end.write(buffer, sink)?;
    end.send(None)?;
    Ok(true)
}

fn check_size(advertisement: Advertisement) -> Result<()> {
    match advertisement.size {
        0..=MAX_SIZE => Ok(()),
        size => Err(Failure::failed(format!("the client's ping of {size} bytes is longer than {MAX_SIZE}"))
            .hint("the client must be `rnic ping` or `rping`")),
    }
}
