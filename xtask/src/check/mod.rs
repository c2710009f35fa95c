//! `cargo xtask check`: the rules that neither rustc nor clippy knows, one file each.

mod arrows;
mod bare_core;
mod dependencies;
mod file_size;
mod functions;
mod unsafe_places;

use crate::source::{self, Source};
use crate::workspace::Metadata;
use anyhow::{Result, bail};
use std::process::ExitCode;

/// Arguments of `cargo xtask check`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only the checks whose name contains this.
    filter: Option<String>,
    /// Names the checks instead of running them.
    #[arg(long)]
    list: bool,
}

/// What the checks look at.
struct Tree {
    meta: Metadata,
    sources: Vec<Source>,
}

/// What a check found.
#[derive(Debug, Default)]
struct Findings {
    /// Rules broken: the check fails.
    errors: Vec<String>,
    /// Figures worth seeing in a review.
    notes: Vec<String>,
}

type Check = (&'static str, fn(&Tree) -> Result<Findings>);

const CHECKS: &[Check] = &[
    ("arrows", arrows::check),
    ("dependencies", dependencies::check),
    ("file-size", file_size::check),
    ("functions", functions::check),
    ("unsafe-places", unsafe_places::check),
    ("bare-core", bare_core::check),
];

/// Runs the checks and prints what they found.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.list {
        CHECKS.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(ExitCode::SUCCESS);
    }
    let failed = run_matching(args.filter.as_deref().unwrap_or(""))?;
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs all checks as one stage of `cargo xtask test`.
pub(crate) fn all() -> Result<()> {
    match run_matching("")? {
        0 => Ok(()),
        n => bail!("{n} of the structural checks failed"),
    }
}

fn run_matching(filter: &str) -> Result<usize> {
    let tree = Tree::load()?;
    let mut failed = 0;
    for (name, check) in CHECKS.iter().filter(|(name, _)| name.contains(filter)) {
        let found = check(&tree)?;
        let verdict = if found.errors.is_empty() { "ok" } else { "FAILED" };
        println!("{name:<16} {verdict}");
        found.notes.iter().for_each(|n| println!("    {n}"));
        found.errors.iter().for_each(|e| println!("  - {e}"));
        failed += usize::from(!found.errors.is_empty());
    }
    Ok(failed)
}

impl Tree {
    fn load() -> Result<Self> {
        let mut sources = Vec::new();
        for folder in ["crates", "interop", "examples", "xtask", "fuzz"] {
            for path in source::files(folder)? {
                sources.push(Source::read(&path)?);
            }
        }
        Ok(Self { meta: Metadata::load()?, sources })
    }
}

#[cfg(test)]
impl Tree {
    /// A tree of one file and no packages.
    fn of(path: &str, text: &str) -> Self {
        Self {
            meta: Metadata { packages: Vec::new(), target_directory: "/none".into() },
            sources: vec![Source::parse(path, text)],
        }
    }
}
