//! The responder: serves the measurements of one initiator after another.
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Instant;

use rnic_verbs::{ConnRequest, Device, ListenConfig, Listener, ProtectionDomain};

use super::check::{self, Role};
use super::control::{ControlError, Hello, Message, Purpose, Round, Settings, TcpRound};
use super::lane::{Lane, Memory, Unconnected};
use super::link::{Link, PATIENCE};
use super::plan::{Fpdu, Kind};
use super::tcp::TcpEnd;
use super::verify::Verdict;
use super::{bandwidth, crew, latency};
use crate::cli::PerfArgs;
use crate::error::{Failure, Result};
use crate::{cpu, fabric, signal};

/// The port unless another is named.
pub(crate) const PORT: u16 = 7175;

/// `rnic perf --listen`
pub(crate) fn run(args: &PerfArgs, listen: SocketAddr) -> Result<()> {
    let device = fabric::open()?;
    let config = ListenConfig::with_policy(fabric::policy(false, false, Fpdu::Large));
    let listener = Listener::bind(&device, listen, config)?;
    announce(args, listener.local_addr()?)?;
    let mut server =
        Server { device, listener, tcp_port: args.tcp_port.unwrap_or(0), verdict: Verdict::default() };
    loop {
        let outcome = server.serve();
        match outcome {
            // The usual way to end a server.
            Err(_) if signal::interrupted() => return Ok(()),
            Err(failure) if args.once => return Err(failure),
            Err(failure) => eprintln!("{failure}"),
            // The parent knows the sum, and says it.
            Ok(()) if args.child => return Ok(()),
            Ok(()) if args.once => return server.finish(),
            Ok(()) => {}
        }
    }
}

fn announce(args: &PerfArgs, address: SocketAddr) -> Result<()> {
    if args.child {
        let mut out = std::io::stdout();
        writeln!(out, "{}", address.port())?;
        out.flush()?;
        // The parent holds the other end of this pipe for as long as it lives.
        std::thread::spawn(|| {
            let mut rest = Vec::new();
            let _ = std::io::stdin().read_to_end(&mut rest);
            std::process::exit(1);
        });
    } else {
        eprintln!("rnic perf: listening on {address}");
    }
    Ok(())
}

/// The waiting server.
struct Server {
    device: Device,
    listener: Listener,
    tcp_port: u16,
    verdict: Verdict,
}

/// One initiator's run.
struct Session {
    pd: ProtectionDomain,
    run: u64,
    memories: Vec<Arc<Memory>>,
    lanes: HashMap<String, Vec<Lane>>,
    tcp: Vec<TcpEnd>,
}

impl Server {
    fn finish(&self) -> Result<()> {
        match self.verdict.wrong {
            0 => Ok(()),
            wrong => Err(Failure::failed(format!("{wrong} bytes were wrong at this end"))),
        }
    }

    /// The next connection, and what it says it is for.
    fn next(&self) -> Result<(ConnRequest, Hello)> {
        loop {
            signal::check()?;
            let Some(request) = fabric::accept(&self.listener)? else { continue };
            match Hello::decode(request.private_data()) {
                Ok(hello) => return Ok((request, hello)),
                Err(error) => {
                    eprintln!("rnic perf: {} is turned away: {error}", request.peer_addr());
                    // It is gone or will be.
                    let _ = request.reject(&error.encode());
                }
            }
        }
    }

    /// Waits for an initiator and serves it to its end.
    fn serve(&mut self) -> Result<()> {
        let (request, hello) = self.next()?;
        if hello.purpose != Purpose::Control {
            let _ = request.reject(&ControlError::NotExpected.encode());
            return Ok(());
        }
        let from = request.peer_addr();
        let local = request.local_addr();
        let pd = self.device.alloc_pd()?;
        let link = Link::accept(&self.device, &pd, request, hello.run)?;
        tracing::info!(%from, "run begins");
        let mut session =
            Session { pd, run: hello.run, memories: Vec::new(), lanes: HashMap::new(), tcp: Vec::new() };
        while let Some(message) = link.receive(None)? {
            match self.handle(&link, &mut session, local, message) {
                Ok(true) => {}
                Ok(false) => break,
                Err(failure) => {
                    // The initiator learns of it where it still can.
                    let _ = link.send(&Message::Failed { cause: failure.cause.clone() });
                    return Err(failure);
                }
            }
        }
        tracing::info!(%from, "run ends");
        link.close();
        Ok(())
    }

    /// Does what a message asks; false at the end of the run.
    fn handle(
        &mut self,
        link: &Link,
        session: &mut Session,
        local: SocketAddr,
        message: Message,
    ) -> Result<bool> {
        match message {
            Message::Open(settings) => self.open(link, session, settings)?,
            Message::OpenTcp { connections, region } => {
                let listener = TcpListener::bind((local.ip(), self.tcp_port))?;
                link.send(&Message::OpenedTcp { port: listener.local_addr()?.port() })?;
                session.tcp = TcpEnd::accept(&listener, session.run, connections, region)?;
            }
            Message::Round { settings, round } => {
                let lanes = session
                    .lanes
                    .get_mut(&key(&settings))
                    .ok_or_else(|| Failure::failed("a round for queue pairs that were never opened"))?;
                let verdict = run_round(link, lanes, &round)?;
                self.verdict.merge(verdict);
            }
            Message::RoundTcp(round) => run_tcp(link, &mut session.tcp, &round)?,
            Message::Close => {
                link.send(&Message::Closed)?;
                return Ok(false);
            }
            other => return Err(other.unexpected("a request").into()),
        }
        Ok(true)
    }

    /// Makes queue pairs and waits for their connections.
    fn open(&self, link: &Link, session: &mut Session, settings: Settings) -> Result<()> {
        session.lanes.remove(&key(&settings));
        session.memories.retain(|memory| memory.region == settings.region);
        while session.memories.len() < settings.qps as usize {
            session.memories.push(Arc::new(Memory::new(&session.pd, settings.region)?));
        }
        let mut waiting: Vec<Option<Unconnected>> = (0..settings.qps)
            .zip(&session.memories)
            .map(|(index, memory)| {
                Unconnected::new(&self.device, &session.pd, Arc::clone(memory), index, settings).map(Some)
            })
            .collect::<Result<_>>()?;
        link.send(&Message::Opened)?;
        let start = Instant::now();
        let mut lanes = Vec::new();
        while lanes.len() < settings.qps as usize {
            if start.elapsed() > PATIENCE {
                return Err(Failure::failed("the data connections did not come"));
            }
            let (request, hello) = self.next()?;
            let place = match hello.purpose {
                Purpose::Data { index } if hello.run == session.run => {
                    waiting.get_mut(index as usize).and_then(Option::take)
                }
                _ => None,
            };
            match place {
                Some(place) => lanes.push(place.accept(&self.device, request, hello)?),
                None => {
                    let error = match hello.purpose {
                        Purpose::Control => ControlError::Busy,
                        Purpose::Data { .. } => ControlError::NotExpected,
                    };
                    let _ = request.reject(&error.encode());
                }
            }
        }
        lanes.sort_by_key(|lane| lane.index);
        session.lanes.insert(key(&settings), lanes);
        Ok(())
    }
}

/// Settings as a key.
fn key(settings: &Settings) -> String {
    format!("{settings:?}")
}

fn run_round(link: &Link, lanes: &mut [Lane], round: &Round) -> Result<Verdict> {
    for lane in &mut *lanes {
        check::prepare(lane, round, Role::Responder)?;
    }
    link.send(&Message::Ready)?;
    let before = cpu::process_ns();
    let results = crew::together(lanes, |lane| match round.kind {
        Kind::Bandwidth => bandwidth::respond(lane, round),
        Kind::Latency => latency::respond(lane, round),
    })?;
    let cpu_ns = cpu::process_ns() - before;
    let mut verdict = Verdict::default();
    for (lane, (_, on_the_way)) in lanes.iter().zip(results) {
        verdict.merge(on_the_way);
        verdict.merge(check::verify(lane, round, Role::Responder)?);
    }
    link.send(&Message::Done { verdict, cpu_ns })?;
    Ok(verdict)
}

fn run_tcp(link: &Link, ends: &mut [TcpEnd], round: &TcpRound) -> Result<()> {
    for end in &mut *ends {
        end.prepare(round, Role::Responder)?;
    }
    link.send(&Message::Ready)?;
    let before = cpu::process_ns();
    crew::together(ends, |end| end.respond(round))?;
    let cpu_ns = cpu::process_ns() - before;
    let mut verdict = Verdict::default();
    for end in &*ends {
        verdict.merge(end.verify(round, Role::Responder));
    }
    link.send(&Message::Done { verdict, cpu_ns })
}
