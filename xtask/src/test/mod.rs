//! `cargo xtask test`: one command that formats, lints, builds and tests everything, interop included.

mod install;
mod stages;

use crate::stage::Stages;
use anyhow::Result;
use std::process::ExitCode;

/// Arguments of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Install what the tests need first: Debian packages (as root or by sudo) and cargo-nextest.
    #[arg(long)]
    install: bool,
    /// Only these stages, by name (`--list` shows them).
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    stage: Vec<String>,
    /// Names the stages instead of running them.
    #[arg(long)]
    list: bool,
    /// Only the tests whose names contain this; implies `--stage tests`.
    filter: Option<String>,
}

/// What a stage needs to know.
struct Context {
    filter: Option<String>,
}

/// Runs the stages, prints the summary and the closing line.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.list {
        stages::ALL.iter().for_each(|s| println!("{:<14} {}", s.name, s.what));
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(unknown) = args.stage.iter().find(|n| !stages::ALL.iter().any(|s| s.name == *n)) {
        anyhow::bail!("no stage `{unknown}`; `cargo xtask test --list` names them");
    }
    let mut run = Stages::new(is_ci());
    let context = Context { filter: args.filter.clone() };
    if args.install && !run.run("install", |_| install::everything()) {
        // What could not be installed is missed by the stages below in a less obvious way.
        return Ok(run.finish());
    }
    for stage in stages::ALL.iter().filter(|s| wanted(args, s.name)) {
        (stage.run)(&mut run, stage.name, &context)?;
    }
    Ok(run.finish())
}

fn wanted(args: &Args, stage: &str) -> bool {
    match (&args.filter, args.stage.as_slice()) {
        (Some(_), []) => stage == "tests",
        (_, []) => true,
        (_, named) => named.iter().any(|n| n == stage),
    }
}

/// Whether this runs in CI, where nothing may be skipped.
fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|v| v == "true" || v == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(filter: Option<&str>, stage: &[&str]) -> Args {
        let stage = stage.iter().map(|&s| s.into()).collect();
        Args { install: false, stage, list: false, filter: filter.map(Into::into) }
    }

    #[test]
    fn a_filter_is_about_tests_and_a_stage_is_about_itself() {
        assert!(wanted(&args(None, &[]), "format"));
        assert!(!wanted(&args(Some("mpa"), &[]), "format") && wanted(&args(Some("mpa"), &[]), "tests"));
        assert!(wanted(&args(None, &["lint"]), "lint") && !wanted(&args(None, &["lint"]), "tests"));
    }
}
