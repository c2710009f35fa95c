//! `cargo xtask soak`: what takes too long for every run of the tests. One file a soak.

mod fuzz;
mod long_tests;
mod storm;

use crate::stage::Stages;
use anyhow::{Result, bail};
use std::process::ExitCode;
use std::time::Duration;

/// Arguments of `cargo xtask soak`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which one: `all`, or a name that `--list` shows.
    #[arg(default_value = "all")]
    soak: String,
    /// How long each part runs.
    #[arg(long, default_value_t = 5)]
    minutes: u64,
    /// Names the soaks instead of running them.
    #[arg(long)]
    list: bool,
}

/// One soak.
struct Soak {
    name: &'static str,
    what: &'static str,
    /// Runs for about the given time a part; records each part as a stage.
    run: fn(&mut Stages, Duration) -> Result<()>,
}

const SOAKS: &[Soak] = &[
    Soak { name: "fuzz", what: "each target of fuzz/ for the time given", run: fuzz::run },
    Soak { name: "storm", what: "rnic perf in many forms, each for the time given", run: storm::run },
    Soak { name: "long", what: "the tests marked #[ignore]", run: long_tests::run },
];

/// Runs the soaks asked for.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.list {
        SOAKS.iter().for_each(|s| println!("{:<8} {}", s.name, s.what));
        return Ok(ExitCode::SUCCESS);
    }
    let wanted: Vec<_> = SOAKS.iter().filter(|s| args.soak == "all" || args.soak == s.name).collect();
    if wanted.is_empty() {
        bail!("no soak `{}`; `cargo xtask soak --list` names them", args.soak);
    }
    let mut stages = Stages::new(false);
    for soak in wanted {
        (soak.run)(&mut stages, Duration::from_secs(60 * args.minutes))?;
    }
    Ok(stages.finish())
}
