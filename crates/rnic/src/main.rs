//! The `rnic` command: a software RDMA NIC measured, pinged and described.
mod address;
mod cli;
mod cpu;
mod devinfo;
mod docs;
mod error;
mod fabric;
mod perf;
mod ping;
mod signal;
mod stats;

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use cli::{Cli, Command};
use error::{Failure, Result};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let failure = if signal::interrupted() { Failure::interrupted() } else { failure };
            eprintln!("{failure}");
            ExitCode::from(failure.exit as u8)
        }
    }
}

fn run() -> Result<()> {
    let words: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let cli = match Cli::try_parse_from(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => {
            error.print()?;
            return Ok(());
        }
        Err(error) => return Err(cli::usage_failure(&error, &words)),
    };
    log_to_stderr()?;
    signal::install()?;
    match cli.command {
        Command::Perf(args) => perf::run(&args),
        Command::Ping(args) => ping::run(&args),
        Command::Devinfo(args) => devinfo::run(&args),
        Command::Man { command } => docs::man(command.as_deref()),
        Command::Completions { shell } => docs::completions(shell),
    }
}

/// Logs as `RNIC_LOG` says, by default warnings.
fn log_to_stderr() -> Result<()> {
    let filter = match std::env::var("RNIC_LOG") {
        Err(_) => EnvFilter::new("warn"),
        Ok(text) => EnvFilter::try_new(&text).map_err(|error| {
            Failure::usage(format!("RNIC_LOG={text} is no filter: {error}"))
                .hint("use error, warn, info, debug or trace, or TARGET=LEVEL such as rnic_verbs=debug")
        })?,
    };
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    Ok(())
}
