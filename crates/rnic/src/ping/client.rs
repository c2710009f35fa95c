//! The end that pings.
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rnic_verbs::{Access, MemoryRegion};
use serde::Serialize;

use super::end::{End, params};
use super::message::{self, PORT};
use crate::cli::PingArgs;
use crate::error::{Failure, Result};
use crate::perf::progress::say;
use crate::stats::{Summary, micros};
use crate::{fabric, signal};

/// One ping as JSON.
#[derive(Serialize)]
struct Line<'a> {
    seq: u64,
    size: u32,
    time_us: f64,
    verified: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a str>,
}

/// The whole as JSON.
#[derive(Serialize)]
struct Closing {
    peer: SocketAddr,
    pings: u64,
    verified: u64,
    wrong: u64,
    min_us: Option<f64>,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    max_us: Option<f64>,
}

/// A connected client.
struct Client<'a> {
    args: &'a PingArgs,
    peer: SocketAddr,
    end: End,
    source: MemoryRegion,
    sink: MemoryRegion,
    times: Vec<u64>,
    wrong: u64,
}

/// `rnic ping HOST`
pub(crate) fn run(args: &PingArgs) -> Result<()> {
    let host = args.host.clone().unwrap_or_default();
    let peer = host.resolve_remote(PORT)?;
    let device = fabric::open()?;
    let end = End::new(&device, Some(args.timeout))?;
    let established = rnic_verbs::connect(&end.qp, peer, params(args))
        .map_err(|error| Failure::from(error).hint("start `rnic ping --listen` or `rping -s` there"))?;
    let size = args.size as usize;
    let source = end.register(size, Access::REMOTE_READ)?;
    let sink = end.register(size, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    if !args.json {
        let negotiated = established.negotiated;
        let crc = if negotiated.crc { "on" } else { "off" };
        say(&format!(
            "PING {host} ({peer}): {size} bytes, MPA revision {}, CRC {crc}",
            negotiated.revision as u8
        ))?;
    }
    let mut client = Client { args, peer, end, source, sink, times: Vec::new(), wrong: 0 };
    let outcome = client.all();
    client.close(outcome)
}

impl Client<'_> {
    /// Pings until the count is reached or a signal comes.
    fn all(&mut self) -> Result<()> {
        let one_second = Duration::from_secs(1);
        let default = if self.args.count.is_some() { Duration::ZERO } else { one_second };
        let interval = self.args.interval.unwrap_or(default);
        let mut next = Instant::now();
        for number in 0..self.args.count.unwrap_or(u64::MAX) {
            while let Some(left) = next.checked_duration_since(Instant::now()) {
                if signal::interrupted() {
                    return Ok(());
                }
                std::thread::sleep(left.min(signal::LOOK));
            }
            if signal::interrupted() {
                return Ok(());
            }
            next = Instant::now() + interval;
            self.one(number)?;
        }
        Ok(())
    }

    /// One ping: the peer fetches the text, then puts it back elsewhere.
    fn one(&mut self, number: u64) -> Result<()> {
        let text = message::text(number, self.args.size as usize);
        self.source.write_at(0, &text)?;
        self.sink.fill(0, text.len(), 0)?;
        let start = Instant::now();
        for buffer in [&self.source, &self.sink] {
            self.end.send(Some(buffer))?;
            if self.end.receive("the peer's go-ahead")?.is_none() {
                return Err(Failure::failed(format!("the peer closed the connection during ping {number}"))
                    .hint("a peer whose buffer is smaller does so: give the same -S at both ends"));
            }
        }
        let time = start.elapsed();
        let mut echo = vec![0; text.len()];
        self.sink.read_at(0, &mut echo)?;
        self.times.push(time.as_nanos() as u64);
        let verified = echo == text;
        self.wrong += u64::from(!verified);
        self.show(number, time, verified, &echo)
    }

    fn show(&self, number: u64, time: Duration, verified: bool, echo: &[u8]) -> Result<()> {
        let data = self.args.verbose.then(|| message::printable(echo));
        if self.args.quiet {
            return Ok(());
        }
        if self.args.json {
            let time_us = micros(time.as_nanos() as u64);
            let line = Line { seq: number, size: self.args.size, time_us, verified, data: data.as_deref() };
            return say(&json(&line));
        }
        let state = if verified { "" } else { "  WRONG DATA" };
        let (size, peer, ms) = (self.args.size, self.peer.ip(), time.as_secs_f64() * 1e3);
        say(&format!("{size} bytes from {peer}: seq={number} time={ms:.3} ms{state}"))?;
        match data {
            Some(data) => say(&format!("ping data: {data}")),
            None => Ok(()),
        }
    }

    /// The summary; then what the run came to.
    fn close(mut self, outcome: Result<()>) -> Result<()> {
        self.end.qp.disconnect();
        let pings = self.times.len() as u64;
        let summary = Summary::of(&mut self.times);
        let us = |value: fn(&Summary) -> u64| summary.as_ref().map(|summary| micros(value(summary)));
        if self.args.json {
            say(&json(&Closing {
                peer: self.peer,
                pings,
                verified: pings - self.wrong,
                wrong: self.wrong,
                min_us: us(|s| s.min),
                p50_us: us(|s| s.p50),
                p99_us: us(|s| s.p99),
                max_us: us(|s| s.max),
            }))?;
        } else {
            say(&format!("--- {} ---", self.peer))?;
            say(&format!("{pings} pings came back, {} verified, {} wrong", pings - self.wrong, self.wrong))?;
            if let Some(Summary { min, p50, p99, max, .. }) = summary {
                let [min, p50, p99, max] = [min, p50, p99, max].map(micros);
                say(&format!("round trip min/median/p99/max = {min:.1}/{p50:.1}/{p99:.1}/{max:.1} us"))?;
            }
        }
        match outcome {
            Err(_) if signal::interrupted() => {}
            Err(failure) => return Err(failure),
            Ok(()) => {}
        }
        match self.wrong {
            0 => Ok(()),
            wrong => Err(Failure::failed(format!("{wrong} of {pings} pings came back with wrong data"))
                .hint("--crc on tells damage on the way from faults at the ends")),
        }
    }
}

fn json(value: &impl Serialize) -> String {
    // Plain numbers and strings: serialising them cannot fail.
    serde_json::to_string(value).unwrap_or_default()
}
