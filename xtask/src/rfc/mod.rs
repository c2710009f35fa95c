//! `cargo xtask rfc`: which code and which test hold each rule of the RFCs.
//!
//! The rules are in `docs/rfc-rules/`, in our own words. Code and tests name them in comments
//! (`// rule 5044-4.3-1`), and `docs/rfc-coverage.md` is generated from both. Plain citations
//! (`RFC 5044 §4.3`) are checked against the RFC's list of sections.

mod report;
mod rules;
mod scan;

use crate::source::{self, Source};
use crate::workspace;
use anyhow::{Context, Result, bail};
use rules::Rfc;
use scan::Citations;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

/// Arguments of `cargo xtask rfc`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Changes nothing: fails when docs/rfc-coverage.md is stale, a citation is wrong or a rule has nothing to hold it.
    #[arg(long)]
    check: bool,
    /// Lists the rules that lack code or a test.
    #[arg(long)]
    open: bool,
}

const DOCUMENT: &str = "docs/rfc-coverage.md";

/// Writes the document, or checks it.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let (rfcs, cited) = load()?;
    if args.open {
        rfcs.iter().flat_map(|r| &r.rules).for_each(|rule| {
            if let Some(lack) = cited.lack(rule) {
                println!("{} ({lack}): {}", rule.id, rule.text);
            }
        });
        return Ok(ExitCode::SUCCESS);
    }
    if args.check {
        check()?;
        println!("{DOCUMENT} is up to date");
        return Ok(ExitCode::SUCCESS);
    }
    cited.errors.iter().for_each(|e| eprintln!("warning: {e}"));
    fs::write(workspace::root().join(DOCUMENT), report::render(&rfcs, &cited))?;
    println!("{DOCUMENT}: {}", report::totals(&rfcs, &cited));
    Ok(ExitCode::SUCCESS)
}

/// What `--check` and the structure stage of `cargo xtask test` ask for.
pub(crate) fn check() -> Result<()> {
    let (rfcs, cited) = load()?;
    let mut errors = cited.errors.clone();
    for rule in rfcs.iter().flat_map(|r| &r.rules) {
        errors.extend(cited.lack(rule).map(|lack| format!("rule {} ({lack}): {}", rule.id, rule.text)));
    }
    let committed = fs::read_to_string(workspace::root().join(DOCUMENT)).unwrap_or_default();
    if committed != report::render(&rfcs, &cited) {
        errors.push(format!("{DOCUMENT} is stale: run `cargo xtask rfc`"));
    }
    if !errors.is_empty() {
        bail!("RFC coverage:\n  {}", errors.join("\n  "));
    }
    Ok(())
}

fn load() -> Result<(Vec<Rfc>, Citations)> {
    let root = workspace::root();
    let rfcs = rules::load(&root.join("docs/rfc-rules"))?;
    let mut cited = Citations::new(&rfcs);
    for folder in ["crates", "interop"] {
        for path in source::files(folder)? {
            cited.add_source(&Source::read(&path)?);
        }
    }
    for path in documents(&root.join("docs"))?.into_iter().chain(documents(root)?) {
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        cited.add_document(&workspace::relative(&path), &text);
    }
    cited.sort();
    Ok((rfcs, cited))
}

/// Markdown files directly in `dir` and, below `docs/`, in its folders.
fn documents(dir: &Path) -> Result<Vec<std::path::PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() && dir.ends_with("docs") {
            found.extend(documents(&path)?);
        } else if path.extension().is_some_and(|e| e == "md") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
