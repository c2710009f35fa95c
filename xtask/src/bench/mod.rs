//! `cargo xtask bench rdma`: our figures next to those of what one would use instead.
//!
//! Every contender runs on loopback, both ends on this machine. The rounds are outermost, so that a disturbance
//! hits all contenders alike, and a figure is the median of its rounds.

mod case;
mod contest;
mod guest;
mod own;
mod process;
mod report;
mod rivals;
mod stats;

use crate::apt;
use crate::workspace::{self, Metadata};
use anyhow::{Result, bail};
use case::Case;
use contest::Results;
use std::fs;
use std::process::ExitCode;

/// Arguments of `cargo xtask bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    suite: Suite,
}

#[derive(Debug, clap::Subcommand)]
enum Suite {
    /// The RDMA verbs against plain TCP, libfabric, UCX, iperf3, sockperf and qperf; in a QEMU guest, against siw and rxe.
    Rdma(RdmaArgs),
}

#[derive(Debug, clap::Args)]
struct RdmaArgs {
    /// Install the rivals first (Debian packages).
    #[arg(long)]
    install: bool,
    /// Rounds; a figure is the median of them.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only cases whose name contains this, such as `latency`, `64KiB` or `ucx`.
    filter: Option<String>,
    /// Only the others' figures, without ours.
    #[arg(long)]
    rivals: bool,
    /// Leave the QEMU guest out.
    #[arg(long)]
    no_guest: bool,
    /// Names the cases instead of running them.
    #[arg(long)]
    list: bool,
}

/// Runs a suite.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let Suite::Rdma(args) = &args.suite;
    if args.rounds == 0 {
        bail!("at least one round is needed");
    }
    if args.install {
        apt::install(&apt::missing(&rivals::needs()))?;
    }
    let filter = args.filter.as_deref().unwrap_or("");
    let cases: Vec<Case> = rivals::cases().into_iter().filter(|c| c.name().contains(filter)).collect();
    if args.list {
        cases.iter().for_each(|c| println!("{}", c.name()));
        return Ok(ExitCode::SUCCESS);
    }
    rdma(args, filter, &cases)
}

fn rdma(args: &RdmaArgs, filter: &str, cases: &[Case]) -> Result<ExitCode> {
    let mut results = Results::default();
    let (present, missing): (Vec<_>, Vec<_>) = cases.iter().partition(|c| c.tool.present());
    for case in missing {
        results.missing(case.contender, case.tool);
    }
    let guest = !args.no_guest && !args.rivals && (filter.is_empty() || filter.contains("guest"));
    if guest {
        guest::prepare(args.install)?;
    }
    let folder = Metadata::load()?.target_directory.join("bench");
    fs::create_dir_all(&folder)?;
    let path = folder.join("rdma.json");
    if !args.rivals {
        own::build()?;
    }
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        if !args.rivals {
            let mut own = own::round()?;
            if round == 1 {
                // The same to the byte each time, and seconds of silence to measure.
                own.extend(own::idle()?);
            }
            own.into_iter().filter(|s| s.name().contains(filter)).for_each(|s| results.add(s));
        }
        for case in &present {
            match case.run() {
                Ok(sample) => results.add(sample),
                Err(e) => results.failed(&case.name(), &format!("{e:#}")),
            }
        }
        if guest {
            match guest::round() {
                Ok(samples) => samples.into_iter().for_each(|s| results.add(s)),
                Err(e) => results.failed("guest", &format!("{e:#}")),
            }
        }
        // After each round, so that a run cut short leaves what it has.
        fs::write(&path, report::json(&results, round)?)?;
    }
    println!("{}", report::table(&results));
    println!("saved as {}", workspace::relative(&path));
    Ok(ExitCode::SUCCESS)
}
