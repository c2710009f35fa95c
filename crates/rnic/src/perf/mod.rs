//! `rnic perf`: every verb next to plain TCP, between two processes, and every byte checked.
//!
//! ```text
//!   driver (initiator) --- link: control messages --- peer (responder)
//!     rows -> measurements -> rounds                    one round at a time
//!     lane: one queue pair and its memory               lane
//!     bandwidth, latency, tcp: the timed parts          bandwidth, latency, tcp
//!     check: data before, verdict after                 check
//! ```
use std::time::{Duration, Instant};

use crate::cli::{CrcChoice, OnOff, PerfArgs};
use crate::error::Result;

mod bandwidth;
mod check;
mod child;
mod control;
mod crew;
mod driver;
mod json;
mod lane;
mod latency;
mod link;
mod peer;
pub(crate) mod plan;
pub(crate) mod progress;
mod script;
mod table;
mod tcp;
mod verify;

use control::Settings;
use driver::{Driver, Plan};
use plan::{Goal, Verb, stride};

/// Sizes unless others are named.
const SIZES: [u32; 5] = [8, 64, 4096, 65_536, 1 << 20];
/// Time of each measurement, and with `--quick`.
const DURATION: Duration = Duration::from_millis(100);
const QUICK: Duration = Duration::from_millis(25);

/// The timed part of a round at one end.
#[derive(Debug, Clone, Copy)]
struct Span {
    /// Before the first message.
    start: Instant,
    /// When the last had arrived.
    end: Instant,
}

impl Span {
    /// From the first start to the last end.
    fn cover(spans: impl Iterator<Item = Self>) -> Duration {
        let cover = spans.reduce(|a, b| Self { start: a.start.min(b.start), end: a.end.max(b.end) });
        cover.map_or(Duration::ZERO, |span| span.end - span.start)
    }
}

/// What one end of one connection measured in a round.
#[derive(Debug)]
struct Timed {
    /// When.
    span: Span,
    /// Each round trip in nanoseconds (latency rounds, at the initiator).
    samples: Vec<u64>,
}

/// Does what the command line says.
pub(crate) fn run(args: &PerfArgs) -> Result<()> {
    if let Some(listen) = &args.listen {
        return peer::run(args, listen.resolve_local(peer::PORT)?);
    }
    let plan = plan_of(args);
    let mut output = progress::Output::new(args.json, plan.rows.len());
    let outcome = match &args.connect {
        Some(host) => Driver::connect(host.resolve_remote(peer::PORT)?, plan)?.measure(&mut output),
        None => {
            let responder = child::Responder::start()?;
            let outcome = Driver::connect(responder.address(), plan)?.measure(&mut output);
            outcome.and_then(|()| responder.finish())
        }
    };
    output.clear();
    outcome
}

fn plan_of(args: &PerfArgs) -> Plan {
    let verbs = if args.verb.is_empty() { &Verb::ALL[..] } else { &args.verb };
    let sizes = if args.size.is_empty() { &SIZES[..] } else { &args.size };
    let crc: &[bool] = match args.crc.unwrap_or(CrcChoice::Both) {
        CrcChoice::On => &[true],
        CrcChoice::Off => &[false],
        CrcChoice::Both => &[false, true],
    };
    let rows = plan::rows(verbs, sizes, crc);
    let largest = rows.iter().map(|row| stride(row.size)).max().unwrap_or(8);
    let goal = match (args.iters, args.duration) {
        (Some(messages), _) => Goal::Messages(messages),
        (None, Some(duration)) => Goal::Time(duration),
        (None, None) if args.quick => Goal::Time(QUICK),
        (None, None) => Goal::Time(DURATION),
    };
    Plan {
        rows,
        settings: Settings {
            crc: false,
            markers: args.markers == OnOff::On,
            fpdu: args.fpdu,
            qps: args.qps,
            events: args.events,
            // A message must fit, and so must the word that atomics work on.
            region: args.region.max(largest),
            depth: args.depth,
        },
        only: args.measure,
        batch: args.batch.unwrap_or(32).min(args.depth.div_ceil(2)),
        goal,
        tcp: !args.no_tcp,
        corrupt: args.corrupt,
    }
}
