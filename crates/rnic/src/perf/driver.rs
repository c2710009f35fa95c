//! The initiator: goes through the rows, round by round, and reports.
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rnic_verbs::{Device, ProtectionDomain};

use super::check::{self, Role};
use super::control::{Message, Round, Settings, TcpKind, TcpRound};
use super::json::Report;
use super::lane::{Lane, Memory, Unconnected};
use super::link::Link;
use super::plan::{Goal, Kind, Pace, Row, Verb};
use super::progress::Output;
use super::tcp::TcpEnd;
use super::verify::Verdict;
use super::{Span, Timed, bandwidth, crew, latency};
use crate::error::{Failure, Result};
use crate::stats::{Summary, gbit_per_s, median, micros};
use crate::{cpu, fabric};

/// What is measured.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// The table's rows.
    pub(crate) rows: Vec<Row>,
    /// What all queue pairs have in common; `crc` is the row's.
    pub(crate) settings: Settings,
    /// Only this is measured.
    pub(crate) only: Option<Kind>,
    /// Work requests a posting call.
    pub(crate) batch: u32,
    /// Of each measurement.
    pub(crate) goal: Goal,
    /// Measure plain TCP too.
    pub(crate) tcp: bool,
    /// Self-test.
    pub(crate) corrupt: bool,
}

impl Plan {
    fn wants(&self, kind: Kind) -> bool {
        self.only.is_none_or(|only| only == kind)
    }
}

/// One measurement: many rounds.
#[derive(Debug, Default)]
struct Measured {
    /// Gigabits a second of each counted round.
    rates: Vec<f64>,
    /// Round trips in nanoseconds.
    samples: Vec<u64>,
    /// Payload bytes of the counted rounds.
    bytes: u64,
    /// CPU time of both ends in the counted rounds, in nanoseconds.
    cpu_ns: (u64, u64),
    /// Of all rounds.
    verdict: Verdict,
}

/// One round as both ends saw it.
struct Outcome {
    time: Duration,
    samples: Vec<u64>,
    cpu_ns: (u64, u64),
    verdict: Verdict,
}

impl Measured {
    fn of(mut pace: Pace, bytes: u64, mut round: impl FnMut(u32) -> Result<Outcome>) -> Result<Self> {
        let mut sum = Self::default();
        while let Some(count) = pace.next() {
            let outcome = round(count)?;
            sum.verdict.merge(outcome.verdict);
            if pace.record(count, outcome.time) {
                let moved = bytes * u64::from(count);
                sum.rates.push(gbit_per_s(moved, outcome.time));
                sum.samples.extend(outcome.samples);
                sum.bytes += moved;
                sum.cpu_ns.0 += outcome.cpu_ns.0;
                sum.cpu_ns.1 += outcome.cpu_ns.1;
            }
        }
        Ok(sum)
    }

    fn rate(&mut self) -> Option<f64> {
        median(&mut self.rates)
    }

    /// CPU seconds for 10^9 bytes, of the initiator and of the responder.
    fn cpu_per_gb(&self) -> Option<(f64, f64)> {
        let bytes = self.bytes as f64;
        // Nanoseconds a byte are seconds for 10^9 bytes.
        (self.bytes > 0).then(|| (self.cpu_ns.0 as f64 / bytes, self.cpu_ns.1 as f64 / bytes))
    }
}

/// A connected initiator.
pub(crate) struct Driver {
    device: Device,
    pd: ProtectionDomain,
    link: Link,
    to: SocketAddr,
    run: u64,
    plan: Plan,
    memories: Vec<Arc<Memory>>,
    lanes: HashMap<bool, Vec<Lane>>,
    tcp: Vec<TcpEnd>,
    generation: u64,
}

impl Driver {
    /// Connects to the responder at `to`.
    pub(crate) fn connect(to: SocketAddr, plan: Plan) -> Result<Self> {
        let device = fabric::open()?;
        let pd = device.alloc_pd()?;
        let run = draw();
        let link = Link::connect(&device, &pd, to, run)?;
        Ok(Self {
            device,
            pd,
            link,
            to,
            run,
            plan,
            memories: Vec::new(),
            lanes: HashMap::new(),
            tcp: Vec::new(),
            // Rounds of one run never have the data of another's.
            generation: run,
        })
    }

    /// Measures and prints all rows.
    pub(crate) fn measure(mut self, output: &mut Output) -> Result<()> {
        let mut sum = Verdict::default();
        output.begin()?;
        for row in self.plan.rows.clone() {
            let mut report = self.blank(row);
            let outcome = self.fill(&row, &mut report, output);
            report.finish();
            if let Err(failure) = &outcome {
                report.error = Some(failure.cause.clone());
            }
            output.row(&report)?;
            outcome?;
            sum.merge(Verdict { checked: report.bytes_verified, wrong: report.bytes_wrong, first: None });
        }
        match self.link.ask(&Message::Close)? {
            Message::Closed => self.link.close(),
            other => return Err(other.unexpected("Closed").into()),
        }
        match sum.wrong {
            0 => output.end(sum.checked),
            wrong => Err(Failure::failed(format!("{wrong} of {} bytes arrived wrong", sum.checked)).hint(
                "the rows marked WRONG say where; --crc on tells damage on the way from faults at the ends",
            )),
        }
    }

    fn blank(&self, row: Row) -> Report {
        let Settings { markers, fpdu, qps, events, depth, .. } = self.plan.settings;
        Report {
            markers,
            fpdu: fpdu.to_string(),
            depth,
            batch: self.plan.batch,
            qps,
            completion: if events { "events" } else { "poll" },
            ..Report::new(row)
        }
    }

    /// Measures one row.
    fn fill(&mut self, row: &Row, report: &mut Report, output: &Output) -> Result<()> {
        self.open(row)?;
        if self.plan.tcp && row.size > 0 {
            output.progress(row, "plain TCP");
            self.fill_tcp(row, report)?;
        }
        let mut verdict = Verdict::default();
        if self.plan.wants(Kind::Bandwidth) {
            output.progress(row, "bandwidth");
            verdict.merge(self.fill_bandwidth(row, report)?);
        }
        // A Write of nothing leaves no trace to look for.
        let traceable = row.size > 0 || row.verb != Verb::Write || self.plan.settings.events;
        if self.plan.wants(Kind::Latency) && traceable {
            output.progress(row, "latency");
            verdict.merge(self.fill_latency(row, report)?);
        }
        report.bytes_verified = verdict.checked;
        report.bytes_wrong = verdict.wrong;
        report.verified = verdict.wrong == 0 && (verdict.checked > 0 || row.size == 0);
        report.error = verdict.first.map(|first| {
            let super::verify::Mismatch { offset, expected, found } = first;
            format!(
                "{} bytes wrong, first at {offset}: {found:#04x} instead of {expected:#04x}",
                verdict.wrong
            )
        });
        Ok(())
    }

    fn fill_bandwidth(&mut self, row: &Row, report: &mut Report) -> Result<Verdict> {
        let mut moved = self.rounds(row, Kind::Bandwidth)?;
        report.gbit_s = moved.rate();
        report.messages_s = per_second(report.gbit_s, row.size);
        if let Some((initiator, target)) = moved.cpu_per_gb() {
            report.cpu_initiator_s_per_gb = Some(initiator);
            report.cpu_target_s_per_gb = Some(target);
            report.cpu_s_per_gb = Some(initiator + target);
        }
        Ok(moved.verdict)
    }

    fn fill_latency(&mut self, row: &Row, report: &mut Report) -> Result<Verdict> {
        let mut timed = self.rounds(row, Kind::Latency)?;
        if let Some(summary) = Summary::of(&mut timed.samples) {
            report.p50_us = Some(micros(summary.p50) / parts(row.verb));
            report.p99_us = Some(micros(summary.p99) / parts(row.verb));
        }
        Ok(timed.verdict)
    }

    fn fill_tcp(&mut self, row: &Row, report: &mut Report) -> Result<()> {
        if self.plan.wants(Kind::Bandwidth) {
            // Which way to wait moves more depends on size and machine: the better one is the measure.
            for spin in self.waits() {
                let mut moved = self.rounds_tcp(row, TcpKind::Stream, spin)?;
                let rate = moved.rate();
                if rate > report.tcp_gbit_s {
                    report.tcp_gbit_s = rate;
                    report.tcp_messages_s = per_second(rate, row.size);
                    report.tcp_cpu_s_per_gb =
                        moved.cpu_per_gb().map(|(initiator, target)| initiator + target);
                }
            }
        }
        if self.plan.wants(Kind::Latency) {
            let kind = if row.verb.is_round_trip() { TcpKind::Request } else { TcpKind::PingPong };
            let mut timed = self.rounds_tcp(row, kind, !self.plan.settings.events)?;
            if let Some(summary) = Summary::of(&mut timed.samples) {
                report.tcp_p50_us = Some(micros(summary.p50) / parts(row.verb));
                report.tcp_p99_us = Some(micros(summary.p99) / parts(row.verb));
            }
        }
        Ok(())
    }

    fn settings(&self, row: &Row) -> Settings {
        Settings { crc: row.crc, ..self.plan.settings }
    }

    /// Makes and connects the queue pairs for a row, unless they are there.
    fn open(&mut self, row: &Row) -> Result<()> {
        if self.lanes.contains_key(&row.crc) {
            return Ok(());
        }
        let settings = self.settings(row);
        while self.memories.len() < settings.qps as usize {
            self.memories.push(Arc::new(Memory::new(&self.pd, settings.region)?));
        }
        match self.link.ask(&Message::Open(settings))? {
            Message::Opened => {}
            other => return Err(other.unexpected("Opened").into()),
        }
        let lanes = (0..settings.qps)
            .zip(&self.memories)
            .map(|(index, memory)| {
                Unconnected::new(&self.device, &self.pd, Arc::clone(memory), index, settings)?.connect(
                    &self.device,
                    self.to,
                    self.run,
                )
            })
            .collect::<Result<_>>()?;
        self.lanes.insert(row.crc, lanes);
        Ok(())
    }

    fn rounds(&mut self, row: &Row, kind: Kind) -> Result<Measured> {
        let Settings { region, qps, .. } = self.plan.settings;
        let pace = Pace::new(self.plan.goal, row.size, region);
        let bytes = u64::from(row.size) * u64::from(qps);
        Measured::of(pace, bytes, |count| {
            self.generation = self.generation.wrapping_add(1);
            self.round(
                row,
                &Round {
                    kind,
                    verb: row.verb,
                    size: row.size,
                    count,
                    generation: self.generation,
                    batch: self.plan.batch,
                    corrupt: self.plan.corrupt,
                },
            )
        })
    }

    fn round(&mut self, row: &Row, round: &Round) -> Result<Outcome> {
        let settings = self.settings(row);
        let lanes = self.lanes.get_mut(&row.crc).map_or(&mut [][..], |lanes| &mut lanes[..]);
        if (row.verb.is_atomic() || row.verb == Verb::Imm) && !lanes.iter().all(Lane::has_extensions) {
            return Err(rnic_verbs::Error::NotNegotiated.into());
        }
        // Both ends prepare at the same time.
        self.link.send(&Message::Round { settings, round: *round })?;
        for lane in &mut *lanes {
            check::prepare(lane, round, Role::Initiator)?;
        }
        match self.link.answer()? {
            Message::Ready => {}
            other => return Err(other.unexpected("Ready").into()),
        }
        let before = cpu::process_ns();
        let results = crew::together(lanes, |lane| match round.kind {
            Kind::Bandwidth => Ok((bandwidth::initiate(lane, round)?, Verdict::default())),
            Kind::Latency => latency::initiate(lane, round),
        })?;
        let cpu_ns = cpu::process_ns() - before;
        let mut verdict = Verdict::default();
        for (lane, (_, on_the_way)) in lanes.iter().zip(&results) {
            verdict.merge(*on_the_way);
            verdict.merge(check::verify(lane, round, Role::Initiator)?);
        }
        self.outcome(results.into_iter().map(|(timed, _)| timed).collect(), cpu_ns, verdict)
    }

    /// Adds what the responder has to say.
    fn outcome(&self, parts: Vec<Timed>, cpu_ns: u64, mut verdict: Verdict) -> Result<Outcome> {
        let (theirs, their_cpu_ns) = match self.link.answer()? {
            Message::Done { verdict, cpu_ns } => (verdict, cpu_ns),
            other => return Err(other.unexpected("Done").into()),
        };
        verdict.merge(theirs);
        let time = Span::cover(parts.iter().map(|part| part.span));
        let samples = parts.into_iter().flat_map(|part| part.samples).collect();
        Ok(Outcome { time, samples, cpu_ns: (cpu_ns, their_cpu_ns), verdict })
    }

    /// How plain TCP waits in bandwidth measurements: asleep, and spinning where the queue pairs spin.
    fn waits(&self) -> impl Iterator<Item = bool> + use<> {
        [Some(false), (!self.plan.settings.events).then_some(true)].into_iter().flatten()
    }

    fn rounds_tcp(&mut self, row: &Row, kind: TcpKind, spin: bool) -> Result<Measured> {
        let Settings { region, qps, .. } = self.plan.settings;
        self.open_tcp()?;
        let pace = Pace::new(self.plan.goal, row.size, region);
        let bytes = u64::from(row.size) * u64::from(qps);
        Measured::of(pace, bytes, |count| {
            self.generation = self.generation.wrapping_add(1);
            let generation = self.generation;
            self.round_tcp(&TcpRound { kind, size: row.size, count, spin, generation })
        })
    }

    fn round_tcp(&mut self, round: &TcpRound) -> Result<Outcome> {
        self.link.send(&Message::RoundTcp(*round))?;
        for end in &mut self.tcp {
            end.prepare(round, Role::Initiator)?;
        }
        match self.link.answer()? {
            Message::Ready => {}
            other => return Err(other.unexpected("Ready").into()),
        }
        let before = cpu::process_ns();
        let parts = crew::together(&mut self.tcp, |end| end.initiate(round))?;
        let cpu_ns = cpu::process_ns() - before;
        let mut verdict = Verdict::default();
        for end in &self.tcp {
            verdict.merge(end.verify(round, Role::Initiator));
        }
        let outcome = self.outcome(parts, cpu_ns, verdict)?;
        match outcome.verdict.wrong {
            0 => Ok(outcome),
            wrong => Err(Failure::failed(format!("{wrong} bytes arrived wrong over plain TCP"))),
        }
    }

    fn open_tcp(&mut self) -> Result<()> {
        if !self.tcp.is_empty() {
            return Ok(());
        }
        let Settings { region, qps: connections, .. } = self.plan.settings;
        let port = match self.link.ask(&Message::OpenTcp { connections, region })? {
            Message::OpenedTcp { port } => port,
            other => return Err(other.unexpected("OpenedTcp").into()),
        };
        let to = SocketAddr::new(self.to.ip(), port);
        self.tcp = (0..connections)
            .map(|index| TcpEnd::connect(to, self.run, index, region))
            .collect::<Result<_>>()?;
        Ok(())
    }
}

/// How many latencies of `verb` a round trip has.
const fn parts(verb: Verb) -> f64 {
    if verb.is_round_trip() { 1.0 } else { 2.0 }
}

/// Messages a second at a rate in gigabits.
fn per_second(gbit_s: Option<f64>, size: u32) -> Option<f64> {
    (size > 0).then_some(gbit_s? * 1e9 / 8.0 / f64::from(size))
}

/// A number that other runs do not have.
fn draw() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}
