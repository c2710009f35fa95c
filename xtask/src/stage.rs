//! A run of named stages: each is timed, a failed one does not hide the next, and the end sums up.

use anyhow::Result;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How one stage ended.
#[derive(Debug)]
enum Outcome {
    Passed,
    Failed(String),
    Skipped,
}

/// Something that was left out, and the command that would bring it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Skip {
    /// What was not run.
    pub(crate) what: String,
    /// How to have it run.
    pub(crate) remedy: String,
}

/// The stages so far.
#[derive(Debug)]
pub(crate) struct Stages {
    done: Vec<(String, Outcome, Duration)>,
    skips: Vec<Skip>,
    /// Where nothing may be skipped (`CI=true`).
    strict: bool,
}

impl Stages {
    /// `strict`: anything skipped is a failure.
    pub(crate) fn new(strict: bool) -> Self {
        Self { done: Vec::new(), skips: Vec::new(), strict }
    }

    /// Runs one stage and prints its name before and its time after. Returns whether it passed.
    pub(crate) fn run(&mut self, name: &str, work: impl FnOnce(&mut Self) -> Result<()>) -> bool {
        eprintln!("==> {name}");
        let start = Instant::now();
        let outcome = match work(self) {
            Ok(()) => Outcome::Passed,
            Err(e) => Outcome::Failed(format!("{e:#}")),
        };
        let took = start.elapsed();
        match &outcome {
            Outcome::Failed(why) => eprintln!("<== {name}: FAILED after {:.1} s: {why}", took.as_secs_f64()),
            _ => eprintln!("<== {name}: {:.1} s", took.as_secs_f64()),
        }
        let passed = matches!(outcome, Outcome::Passed);
        self.done.push((name.into(), outcome, took));
        passed
    }

    /// Records a stage that cannot run, with what would bring it.
    pub(crate) fn skip(&mut self, name: &str, remedy: &str) {
        eprintln!("==> {name}: skipped");
        self.done.push((name.into(), Outcome::Skipped, Duration::ZERO));
        self.note_skip(name, remedy);
    }

    /// Records a part of a stage that cannot run.
    pub(crate) fn note_skip(&mut self, what: &str, remedy: &str) {
        self.skips.push(Skip { what: what.into(), remedy: remedy.into() });
    }

    /// Prints the summary and the closing line; what the process should end with.
    pub(crate) fn finish(self) -> ExitCode {
        let (text, ok) = self.summary();
        println!("{text}");
        if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn summary(&self) -> (String, bool) {
        let mut text = String::from("\nstages:\n");
        let (mut passed, mut failed, mut skipped) = (0, 0, 0);
        for (name, outcome, took) in &self.done {
            let (word, why) = match outcome {
                Outcome::Passed => ("ok", ""),
                Outcome::Failed(why) => ("FAILED", why.as_str()),
                Outcome::Skipped if self.strict => ("FAILED", "skipped, and CI=true allows no skip"),
                Outcome::Skipped => ("skipped", ""),
            };
            match word {
                "ok" => passed += 1,
                "FAILED" => failed += 1,
                _ => skipped += 1,
            }
            let why = if why.is_empty() { String::new() } else { format!("  {}", first_line(why)) };
            text += &format!("  {name:<28} {word:<8} {:>7.1} s{why}\n", took.as_secs_f64());
        }
        let total: Duration = self.done.iter().map(|d| d.2).sum();
        text += &format!("  {:<28} {:<8} {:>7.1} s\n", "total", "", total.as_secs_f64());
        if !self.skips.is_empty() {
            text += "\nnot run:\n";
            for s in &self.skips {
                text += &format!("  {}: {}\n", s.what, s.remedy);
            }
        }
        // Parts that were left out inside a stage that passed count once more where nothing may be left out.
        let parts = self.skips.len().saturating_sub(self.skipped_stages());
        if self.strict && parts > 0 {
            failed += 1;
            text += "\nCI=true: nothing may be skipped\n";
        }
        text += &format!("\n{passed} passed, {failed} failed");
        if skipped > 0 {
            text += &format!(", {skipped} skipped");
        }
        (text, failed == 0)
    }

    fn skipped_stages(&self) -> usize {
        self.done.iter().filter(|d| matches!(d.1, Outcome::Skipped)).count()
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    fn last_line(s: &Stages) -> (String, bool) {
        let (text, ok) = s.summary();
        (text.lines().last().unwrap().into(), ok)
    }

    #[test]
    fn a_failed_stage_does_not_stop_the_next_and_fails_the_run() {
        let mut s = Stages::new(false);
        assert!(!s.run("first", |_| bail!("broken")));
        assert!(s.run("second", |_| Ok(())));
        assert_eq!(last_line(&s), ("1 passed, 1 failed".into(), false));
    }

    #[test]
    fn a_skip_is_named_with_its_remedy_and_tolerated_outside_ci() {
        let mut s = Stages::new(false);
        s.run("build", |_| Ok(()));
        s.skip("interop", "apt-get install qemu-system-x86");
        let (text, ok) = s.summary();
        assert!(ok && text.contains("interop: apt-get install qemu-system-x86"), "{text}");
        assert_eq!(last_line(&s).0, "1 passed, 0 failed, 1 skipped");
    }

    #[test]
    fn ci_turns_every_skip_into_a_failure() {
        let mut s = Stages::new(true);
        s.run("build", |_| Ok(()));
        s.skip("interop", "apt-get install qemu-system-x86");
        assert_eq!(last_line(&s), ("1 passed, 1 failed".into(), false));

        let mut s = Stages::new(true);
        s.run("tests", |s| {
            s.note_skip("cargo-nextest", "cargo install cargo-nextest");
            Ok(())
        });
        assert_eq!(last_line(&s), ("1 passed, 1 failed".into(), false));
    }
}
