//! The stages of `cargo xtask test`, in their order: cheap and telling ones first.

use super::{Context, install};
use crate::stage::Stages;
use crate::{check, cmd, rfc, workspace};
use anyhow::{Result, bail};
use std::collections::BTreeMap;

/// One stage.
pub(super) struct Stage {
    /// Name for `--stage` and the summary.
    pub(super) name: &'static str,
    /// One line for `--list`.
    pub(super) what: &'static str,
    /// Runs it, or records why not.
    pub(super) run: fn(&mut Stages, &str, &Context) -> Result<()>,
}

/// All of them.
pub(super) const ALL: &[Stage] = &[
    Stage { name: "format", what: "cargo fmt --check", run: format },
    Stage { name: "lint", what: "cargo clippy, warnings are errors", run: lint },
    Stage { name: "structure", what: "cargo xtask check", run: structure },
    Stage {
        name: "rfc",
        what: "cargo xtask rfc --check: each rule has code and test, citations exist",
        run: rfc_rules,
    },
    Stage { name: "docs", what: "cargo doc, warnings are errors", run: docs },
    Stage { name: "tests", what: "cargo nextest run", run: tests },
    Stage { name: "doc-tests", what: "cargo test --doc", run: doc_tests },
    Stage { name: "release", what: "the rnic binary", run: release },
    Stage { name: "perf", what: "rnic perf, a quick run with every byte checked", run: perf },
    Stage { name: "interop", what: "real peers: kernel siw in a guest, tshark", run: interop },
];

/// A stage that is one cargo command.
fn cargo_stage(run: &mut Stages, name: &str, args: &[&str]) -> Result<()> {
    run.run(name, |_| cmd::run(cmd::cargo().args(args)));
    Ok(())
}

fn format(run: &mut Stages, name: &str, _: &Context) -> Result<()> {
    cargo_stage(run, name, &["fmt", "--all", "--check"])
}

fn lint(run: &mut Stages, name: &str, _: &Context) -> Result<()> {
    cargo_stage(run, name, &["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"])
}

fn structure(run: &mut Stages, name: &str, _: &Context) -> Result<()> {
    run.run(name, |_| check::all());
    Ok(())
}

fn rfc_rules(run: &mut Stages, name: &str, _: &Context) -> Result<()> {
    run.run(name, |_| rfc::check());
    Ok(())
}

fn docs(run: &mut Stages, name: &str, _: &Context) -> Result<()> {
    run.run(name, |_| {
        let mut c = cmd::cargo();
        cmd::run(c.args(["doc", "--quiet", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"))
    });
    Ok(())
}

fn tests(run: &mut Stages, name: &str, context: &Context) -> Result<()> {
    let filter = context.filter.as_deref();
    run.run(name, |run| {
        let mut c = cmd::cargo();
        if install::nextest_present() {
            c.args(["nextest", "run", "--workspace", "--no-fail-fast"]).args(filter);
            c.args(filter.map(|_| "--no-tests=fail"));
        } else {
            run.note_skip("cargo-nextest (plain `cargo test` ran instead)", install::NEXTEST);
            c.args(["test", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast"]).args(filter);
        }
        cmd::run(&mut c)
    });
    Ok(())
}

fn doc_tests(run: &mut Stages, name: &str, _: &Context) -> Result<()> {
    cargo_stage(run, name, &["test", "--quiet", "--workspace", "--doc"])
}

fn release(run: &mut Stages, name: &str, _: &Context) -> Result<()> {
    cargo_stage(run, name, &["build", "--quiet", "--release", "-p", "rnic"])
}

fn perf(run: &mut Stages, name: &str, _: &Context) -> Result<()> {
    run.run(name, |_| {
        let out = cmd::output(cmd::command(workspace::rnic_binary()?).args(["perf", "--quick", "--json"]))?;
        let rows = perf_rows(&out)?;
        println!("rnic perf: {rows} rows, every byte verified");
        Ok(())
    });
    Ok(())
}

/// Counts the rows of `rnic perf --json`; each must say that its bytes were verified.
fn perf_rows(json_lines: &str) -> Result<usize> {
    let mut rows = 0;
    for line in json_lines.lines().filter(|l| !l.trim().is_empty()) {
        let row: serde_json::Value = serde_json::from_str(line)?;
        if row["verified"] != true {
            bail!("a row without verified bytes: {line}");
        }
        rows += 1;
    }
    if rows == 0 {
        bail!("rnic perf printed no row");
    }
    Ok(rows)
}

/// The suite names what it skips, and in CI counts it as failed; here it is passed on to the summary.
fn interop(run: &mut Stages, name: &str, _: &Context) -> Result<()> {
    run.run(name, |run| {
        let mut c = cmd::cargo();
        c.args(["run", "--quiet", "--release", "-p", "rnic-interop", "--", "run"]);
        let mut skipped = BTreeMap::<String, usize>::new();
        let done = cmd::run_watched(c.env("RNIC_BIN", workspace::rnic_binary()?), |line| {
            if let Some((_, why)) = line.strip_prefix("skip ").and_then(|l| l.split_once(": ")) {
                *skipped.entry(why.to_owned()).or_default() += 1;
            }
        });
        for (why, cases) in skipped {
            run.note_skip(&format!("{cases} interop cases"), &why);
        }
        done
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perf_rows_must_be_there_and_verified() {
        assert_eq!(perf_rows("{\"verified\":true}\n{\"verified\":true}\n").unwrap(), 2);
        assert!(perf_rows("{\"verified\":true}\n{\"verified\":false}\n").is_err());
        assert!(perf_rows("{\"verb\":\"write\"}\n").is_err());
        assert!(perf_rows("\n").is_err());
        assert!(perf_rows("panicked").is_err());
    }

    #[test]
    fn stage_names_are_unique() {
        let mut names: Vec<_> = ALL.iter().map(|s| s.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
