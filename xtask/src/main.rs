//! Development tasks: run as `cargo xtask COMMAND`.
//!
//! Each subcommand is a module; each check, soak and rival is a file in its module's folder.
#![forbid(unsafe_code)]

mod apt;
mod bench;
mod check;
mod cmd;
mod rfc;
mod soak;
mod source;
mod stage;
mod test;
mod workspace;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Development tasks of the rnic workspace", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Formats, lints, builds and tests everything, interop included.
    Test(test::Args),
    /// Structural rules that neither rustc nor clippy knows.
    Check(check::Args),
    /// Which code and which test hold each rule of the RFCs: writes docs/rfc-coverage.md.
    Rfc(rfc::Args),
    /// Long checks: fuzzing, storms, endurance.
    Soak(soak::Args),
    /// Figures next to those of other programs.
    Bench(bench::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().task {
        Task::Test(args) => test::run(&args),
        Task::Check(args) => check::run(&args),
        Task::Rfc(args) => rfc::run(&args),
        Task::Soak(args) => soak::run(&args),
        Task::Bench(args) => bench::run(&args),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
