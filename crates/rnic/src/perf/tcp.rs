//! Plain TCP, the measure of what RDMA costs: the same message sizes, the same two processes, the same socket options, the
//! same way to wait (spinning or asleep) and the same memory, filled and checked alike.
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::check::{Role, peer_of};
use super::control::{TcpKind, TcpRound};
use super::lane::POLLS_TO_YIELD;
use super::plan::stride;
use super::verify::{Pattern, Verdict};
use super::{Span, Timed};
use crate::error::{Failure, Result};
use crate::signal;

/// Longest without a byte.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest that a new connection is silent; short, since others wait behind it.
const GREETING_PATIENCE: Duration = Duration::from_secs(2);
/// Spins between two looks at the clock.
const SPINS: u32 = 4096;
/// Bytes of a request ([`TcpKind::Request`]).
const REQUEST: usize = 8;
/// What the initiator says first on each connection: the run's number and the connection's.
const GREETING: usize = 12;

/// One end of a plain TCP connection.
#[derive(Debug)]
pub(crate) struct TcpEnd {
    index: u32,
    stream: TcpStream,
    sink: Vec<u8>,
    source: Vec<u8>,
    spinning: bool,
}

impl TcpEnd {
    fn new(stream: TcpStream, index: u32, region: u32) -> io::Result<Self> {
        // As the engine's sockets.
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nonblocking(false)?;
        let region = region as usize;
        Ok(Self { index, stream, sink: vec![0; region], source: vec![0; region], spinning: false })
    }

    /// Connects as number `index` of run `run`.
    pub(crate) fn connect(to: SocketAddr, run: u64, index: u32, region: u32) -> Result<Self> {
        let connect = || {
            let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
            stream.write_all(&greeting(run, index))?;
            Self::new(stream, index, region)
        };
        connect().map_err(|error| Failure::from(error).during(format!("plain TCP connection to {to}")))
    }

    /// Accepts connections 0 to `count - 1` of run `run`; others are closed.
    pub(crate) fn accept(listener: &TcpListener, run: u64, count: u32, region: u32) -> Result<Vec<Self>> {
        listener.set_nonblocking(true)?;
        let mut ends: Vec<Option<Self>> = (0..count).map(|_| None).collect();
        let deadline = Instant::now() + PATIENCE;
        while ends.iter().any(Option::is_none) {
            signal::check()?;
            match listener.accept() {
                Ok((stream, _)) => {
                    let mut end = Self::new(stream, 0, region)?;
                    // A stranger is dropped, and that closes its connection.
                    if let Some(index) = end.greeted(run)
                        && let Some(place) = ends.get_mut(index as usize)
                    {
                        end.index = index;
                        *place = Some(end);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if Instant::now() > deadline {
                        return Err(Failure::failed("the plain TCP connections did not come")
                            .hint("open the port named by --tcp-port in the firewall, or use --no-tcp"));
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(ends.into_iter().flatten().collect())
    }

    /// Which connection of run `run` this says it is.
    fn greeted(&mut self, run: u64) -> Option<u32> {
        let mut said = [0; GREETING];
        self.stream.set_read_timeout(Some(GREETING_PATIENCE)).ok()?;
        self.stream.read_exact(&mut said).ok()?;
        self.stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let index = u32::from_be_bytes(*said.last_chunk()?);
        (said == greeting(run, index)).then_some(index)
    }

    /// Makes the data of a round, as for the queue pairs.
    pub(crate) fn prepare(&mut self, round: &TcpRound, role: Role) -> Result<()> {
        let needed = (stride(round.size) as usize).saturating_mul(round.count as usize).max(REQUEST);
        if needed > self.sink.len() {
            return Err(Failure::failed(format!("a round of {needed} bytes exceeds the region")));
        }
        self.spinning = round.spin;
        self.stream.set_nonblocking(round.spin)?;
        if sends(round, role) {
            Pattern::new(round.generation, self.index, role).fill(0, &mut self.source[..needed]);
        }
        Ok(())
    }

    /// Checks what came in.
    pub(crate) fn verify(&self, round: &TcpRound, role: Role) -> Verdict {
        if !sends(round, peer_of(role)) {
            return Verdict::default();
        }
        let pattern = Pattern::new(round.generation, self.index, peer_of(role));
        let (size, stride) = (round.size as usize, stride(round.size) as usize);
        if round.kind == TcpKind::Stream {
            return pattern.check(0, &self.sink[..size * round.count as usize]);
        }
        let mut verdict = Verdict::default();
        for message in 0..round.count as usize {
            let at = message * stride;
            verdict.merge(pattern.check(at as u64, &self.sink[at..at + size]));
        }
        verdict
    }

    /// The connecting end of a prepared round.
    pub(crate) fn initiate(&mut self, round: &TcpRound) -> Result<Timed> {
        match round.kind {
            TcpKind::Stream => self.send_stream(round),
            TcpKind::PingPong => self.ping(round, round.size as usize),
            TcpKind::Request => self.ping(round, REQUEST),
        }
    }

    /// The other end.
    pub(crate) fn respond(&mut self, round: &TcpRound) -> Result<Timed> {
        let (size, stride) = (round.size as usize, stride(round.size) as usize);
        let start = Instant::now();
        match round.kind {
            TcpKind::Stream => self.receive_stream(round)?,
            TcpKind::PingPong | TcpKind::Request => {
                let asked = if round.kind == TcpKind::Request { REQUEST } else { size };
                for message in 0..round.count as usize {
                    let at = message * stride;
                    self.read(at, asked)?;
                    self.write(at, size)?;
                }
            }
        }
        Ok(Timed { span: Span { start, end: Instant::now() }, samples: Vec::new() })
    }

    fn send_stream(&mut self, round: &TcpRound) -> Result<Timed> {
        let size = round.size as usize;
        let start = Instant::now();
        for message in 0..round.count as usize {
            self.write(message * size, size)?;
        }
        self.read(0, 1)?;
        Ok(Timed { span: Span { start, end: Instant::now() }, samples: Vec::new() })
    }

    /// Takes bytes as they come, and confirms the last.
    fn receive_stream(&mut self, round: &TcpRound) -> Result<()> {
        let total = round.size as usize * round.count as usize;
        let mut got = 0;
        let mut spins = 0;
        while got < total {
            match self.stream.read(&mut self.sink[got..total]) {
                Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
                Ok(bytes) => got += bytes,
                Err(error) => retry(error, self.spinning, &mut spins)?,
            }
        }
        self.write(0, 1)
    }

    /// `asked` bytes there, a message back, each timed.
    fn ping(&mut self, round: &TcpRound, asked: usize) -> Result<Timed> {
        let (size, stride) = (round.size as usize, stride(round.size) as usize);
        let mut samples = Vec::with_capacity(round.count as usize);
        let start = Instant::now();
        let mut last = start;
        for message in 0..round.count as usize {
            let at = message * stride;
            self.write(at, asked)?;
            self.read(at, size)?;
            let now = Instant::now();
            samples.push((now - last).as_nanos() as u64);
            last = now;
        }
        Ok(Timed { span: Span { start, end: last }, samples })
    }

    fn write(&mut self, at: usize, len: usize) -> Result<()> {
        let mut done = 0;
        let mut spins = 0;
        while done < len {
            match self.stream.write(&self.source[at + done..at + len]) {
                Ok(bytes) => done += bytes,
                Err(error) => retry(error, self.spinning, &mut spins)?,
            }
        }
        Ok(())
    }

    fn read(&mut self, at: usize, len: usize) -> Result<()> {
        let mut done = 0;
        let mut spins = 0;
        while done < len {
            match self.stream.read(&mut self.sink[at + done..at + len]) {
                Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
                Ok(bytes) => done += bytes,
                Err(error) => retry(error, self.spinning, &mut spins)?,
            }
        }
        Ok(())
    }
}

/// Whether the end `role` sends messages that are checked.
fn sends(round: &TcpRound, role: Role) -> bool {
    match round.kind {
        TcpKind::Stream => role == Role::Initiator,
        TcpKind::PingPong => true,
        TcpKind::Request => role == Role::Responder,
    }
}

/// Whether to try again after an error of a socket call.
fn retry(error: io::Error, spinning: bool, spins: &mut u64) -> Result<()> {
    match error.kind() {
        ErrorKind::WouldBlock if spinning => {
            *spins += 1;
            if spins.is_multiple_of(u64::from(POLLS_TO_YIELD)) {
                std::thread::yield_now();
            }
            if spins.is_multiple_of(u64::from(SPINS)) {
                signal::check()?;
                // A spin is a system call of some 300 ns at least: this is more than the patience.
                if *spins > u64::from(SPINS) << 14 {
                    return Err(stalled(error));
                }
            }
            Ok(())
        }
        ErrorKind::Interrupted => signal::check(),
        _ => Err(stalled(error)),
    }
}

fn stalled(error: io::Error) -> Failure {
    match error.kind() {
        // What a socket's own time-out gives.
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            Failure::failed(format!("plain TCP: nothing moved for {} s", PATIENCE.as_secs()))
        }
        _ => Failure::from(error).during("plain TCP"),
    }
}

fn greeting(run: u64, index: u32) -> [u8; GREETING] {
    let mut out = [0; GREETING];
    out[..8].copy_from_slice(&run.to_be_bytes());
    out[8..].copy_from_slice(&index.to_be_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ends of one connection.
    fn pair(region: u32) -> (TcpEnd, TcpEnd) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| TcpEnd::accept(&listener, 7, 1, region).unwrap());
            // A stranger is closed, and does not take the place of the real one.
            let mut stranger = TcpStream::connect(to).unwrap();
            stranger.write_all(&[0; GREETING]).unwrap();
            let near = TcpEnd::connect(to, 7, 0, region).unwrap();
            (near, accepting.join().unwrap().remove(0))
        })
    }

    fn round(kind: TcpKind, size: u32, spin: bool) -> TcpRound {
        TcpRound { kind, size, count: 10, spin, generation: u64::from(size) }
    }

    #[test]
    fn every_kind_of_round_moves_its_messages() {
        let (mut near, mut far) = pair(1 << 16);
        for kind in [TcpKind::Stream, TcpKind::PingPong, TcpKind::Request] {
            for (size, spin) in [(8, true), (100, false), (101, true), (4096, true)] {
                let round = round(kind, size, spin);
                near.prepare(&round, Role::Initiator).unwrap();
                far.prepare(&round, Role::Responder).unwrap();
                let timed = std::thread::scope(|scope| {
                    let far = scope.spawn(|| far.respond(&round).unwrap());
                    let timed = near.initiate(&round).unwrap();
                    far.join().unwrap();
                    timed
                });
                let mut verdict = near.verify(&round, Role::Initiator);
                verdict.merge(far.verify(&round, Role::Responder));
                let ways = if kind == TcpKind::PingPong { 2 } else { 1 };
                assert_eq!((verdict.checked, verdict.wrong), (ways * 10 * u64::from(size), 0), "{round:?}");
                let expected = if kind == TcpKind::Stream { 0 } else { 10 };
                assert_eq!(timed.samples.len(), expected, "{round:?}");
                assert!(timed.span.end > timed.span.start);
            }
        }
    }

    #[test]
    fn a_vanished_peer_is_an_error() {
        let (mut near, far) = pair(1 << 10);
        drop(far);
        let round = round(TcpKind::PingPong, 64, true);
        near.prepare(&round, Role::Initiator).unwrap();
        assert!(near.initiate(&round).unwrap_err().hint.is_some());
    }

    #[test]
    fn a_round_larger_than_the_region_is_refused() {
        let (mut near, _far) = pair(1 << 10);
        let failure = near.prepare(&round(TcpKind::Stream, 1024, false), Role::Initiator).unwrap_err();
        assert!(failure.cause.contains("exceeds the region"));
    }
}
