//! Plain TCP, the measure of what RDMA costs: the same message sizes, the same two processes, the same socket options and
//! the same memory footprint as the queue pairs have.
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::control::{TcpKind, TcpRound};
use super::lane::POLLS_TO_YIELD;
use super::plan::stride;
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
    stream: TcpStream,
    memory: Vec<u8>,
    spinning: bool,
}

impl TcpEnd {
    fn new(stream: TcpStream, region: u32) -> io::Result<Self> {
        // As the engine's sockets.
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nonblocking(false)?;
        Ok(Self { stream, memory: vec![0x5a; region as usize], spinning: false })
    }

    /// Connects as number `index` of run `run`.
    pub(crate) fn connect(to: SocketAddr, run: u64, index: u32, region: u32) -> Result<Self> {
        let connect = || {
            let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
            stream.write_all(&greeting(run, index))?;
            Self::new(stream, region)
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
                    let mut end = Self::new(stream, region)?;
                    // A stranger is dropped, and that closes its connection.
                    if let Some(place) = end.greeted(run).and_then(|index| ends.get_mut(index as usize)) {
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

    /// The connecting end of a round.
    pub(crate) fn initiate(&mut self, round: &TcpRound) -> Result<Timed> {
        self.prepare(round)?;
        match round.kind {
            TcpKind::Stream => self.send_stream(round),
            TcpKind::PingPong => self.ping(round, round.size as usize),
            TcpKind::Request => self.ping(round, REQUEST),
        }
    }

    /// The other end.
    pub(crate) fn respond(&mut self, round: &TcpRound) -> Result<Timed> {
        self.prepare(round)?;
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

    fn prepare(&mut self, round: &TcpRound) -> Result<()> {
        let needed = (stride(round.size) as usize).saturating_mul(round.count as usize).max(REQUEST);
        if needed > self.memory.len() {
            return Err(Failure::failed(format!("a round of {needed} bytes exceeds the region")));
        }
        let spinning = round.spin && round.kind != TcpKind::Stream;
        self.stream.set_nonblocking(spinning)?;
        self.spinning = spinning;
        Ok(())
    }

    fn send_stream(&mut self, round: &TcpRound) -> Result<Timed> {
        let (size, stride) = (round.size as usize, stride(round.size) as usize);
        let start = Instant::now();
        for message in 0..round.count as usize {
            self.write(message * stride, size)?;
        }
        self.read(0, 1)?;
        Ok(Timed { span: Span { start, end: Instant::now() }, samples: Vec::new() })
    }

    /// Takes bytes as they come, each to its final place, and confirms the last.
    fn receive_stream(&mut self, round: &TcpRound) -> Result<()> {
        let total = round.size as usize * round.count as usize;
        let mut got = 0;
        while got < total {
            match self.stream.read(&mut self.memory[got..total]) {
                Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
                Ok(bytes) => got += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => signal::check()?,
                Err(error) => return Err(stalled(error)),
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
            match self.stream.write(&self.memory[at + done..at + len]) {
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
            match self.stream.read(&mut self.memory[at + done..at + len]) {
                Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
                Ok(bytes) => done += bytes,
                Err(error) => retry(error, self.spinning, &mut spins)?,
            }
        }
        Ok(())
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

    #[test]
    fn every_kind_of_round_moves_its_messages() {
        let (mut near, mut far) = pair(1 << 16);
        for kind in [TcpKind::Stream, TcpKind::PingPong, TcpKind::Request] {
            for (size, spin) in [(8, true), (100, false), (4096, true)] {
                let round = TcpRound { kind, size, count: 10, spin };
                let timed = std::thread::scope(|scope| {
                    let far = scope.spawn(|| far.respond(&round).unwrap());
                    let timed = near.initiate(&round).unwrap();
                    far.join().unwrap();
                    timed
                });
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
        let round = TcpRound { kind: TcpKind::PingPong, size: 64, count: 2, spin: true };
        assert!(near.initiate(&round).unwrap_err().hint.is_some());
    }

    #[test]
    fn a_round_larger_than_the_region_is_refused() {
        let (mut near, _far) = pair(1 << 10);
        let round = TcpRound { kind: TcpKind::Stream, size: 1024, count: 2, spin: false };
        assert!(near.initiate(&round).unwrap_err().cause.contains("exceeds the region"));
    }
}
