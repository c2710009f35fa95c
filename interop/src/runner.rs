//! Runs cases and reports on them.

use crate::{
    case::{Bench, Body, Case, STEP},
    guest::{Guest, GuestOptions, Net, Siw},
    need::{Missing, Need},
    scratch::Scratch,
};
use anyhow::Result;
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// How a case went.
#[derive(Debug)]
pub enum Outcome {
    /// As it should.
    Passed,
    /// Not so; why.
    Failed(String),
    /// This machine lacks something.
    Skipped(Missing),
}

/// How the cases went.
#[derive(Debug, Default, Clone, Copy)]
pub struct Totals {
    /// Cases that passed.
    pub passed: usize,
    /// Cases that failed.
    pub failed: usize,
    /// Cases that could not be run here.
    pub skipped: usize,
}

/// Runs cases one after the other, in guests as they ask for them.
#[derive(Debug, Default)]
pub struct Runner {
    /// One JSON object a case in place of text.
    pub json: bool,
    /// A skip counts as a failure.
    pub strict: bool,
    needs: HashMap<Need, Result<(), Missing>>,
    guest: Option<(Net, Siw, Guest)>,
    totals: Totals,
}

impl Runner {
    /// A runner with nothing booted yet.
    pub fn new(json: bool, strict: bool) -> Self {
        Self { json, strict, ..Self::default() }
    }

    /// Runs them all. Cases of one network and edition of siw share a guest.
    pub fn run(mut self, mut cases: Vec<Case>) -> Totals {
        cases.sort_by_key(|c| (c.net, c.siw));
        let start = Instant::now();
        for case in &cases {
            let start = Instant::now();
            let outcome = self.outcome(case);
            self.report(&case.name, &outcome, start.elapsed());
        }
        let Totals { passed, failed, skipped } = self.totals;
        if self.json {
            println!("{}", serde_json::json!({ "passed": passed, "failed": failed, "skipped": skipped }));
        } else {
            println!(
                "{passed} passed, {failed} failed, {skipped} skipped in {:.1} s",
                start.elapsed().as_secs_f64()
            );
        }
        self.totals
    }

    fn outcome(&mut self, case: &Case) -> Outcome {
        for need in &case.needs {
            if let Err(missing) = self.needs.entry(*need).or_insert_with(|| need.check()) {
                return Outcome::Skipped(missing.clone());
            }
        }
        let result = match &case.body {
            Body::Host(body) => Scratch::new().map_err(Into::into).and_then(|scratch| body(&scratch)),
            // A guest whose kernel an earlier case upset fails the next ones: a failure counts when a fresh one
            // shows it too. The first one is told.
            Body::Guest(body) => self.try_in_guest(case, body).or_else(|first| {
                eprintln!("{}: failed, again in a fresh guest: {first:#}", case.name);
                self.guest = None;
                self.try_in_guest(case, body)
            }),
        };
        match result {
            Ok(()) => Outcome::Passed,
            Err(e) => Outcome::Failed(format!("{e:#}")),
        }
    }

    fn try_in_guest(&mut self, case: &Case, body: &dyn Fn(&Bench<'_>) -> Result<()>) -> Result<()> {
        let guest = self.guest_for(case.net, case.siw)?;
        if case.siw == Siw::Repaired {
            guest.set_siw(&case.params)?;
        }
        let before = guest.complaints().len();
        let result = body(&Bench { guest, scratch: Scratch::new()? });
        let complaints = guest.complaints().split_off(before);
        if !complaints.is_empty() {
            eprintln!("{}: the guest's kernel complained: {}", case.name, complaints.join("; "));
        }
        if !complaints.is_empty() || guest.run("true", STEP).is_err() {
            self.guest = None; // the next case gets a fresh one
        }
        result
    }

    fn guest_for(&mut self, net: Net, siw: Siw) -> Result<&Guest> {
        if self.guest.as_ref().is_none_or(|(n, s, _)| (*n, *s) != (net, siw)) {
            self.guest = None; // ends the one before
            let start = Instant::now();
            let guest = Guest::boot(&GuestOptions { net, siw, ..GuestOptions::default() })?;
            if !self.json {
                println!(
                    "     guest (network {net:?}, siw {siw:?}) booted in {:.1} s",
                    start.elapsed().as_secs_f64()
                );
            }
            self.guest = Some((net, siw, guest));
        }
        match &self.guest {
            Some((_, _, guest)) => Ok(guest),
            None => unreachable!("set above"),
        }
    }

    fn report(&mut self, name: &str, outcome: &Outcome, took: Duration) {
        let (word, why) = match outcome {
            Outcome::Passed => ("pass", String::new()),
            Outcome::Failed(why) => ("FAIL", why.clone()),
            Outcome::Skipped(missing) if self.strict => ("FAIL", missing.to_string()),
            Outcome::Skipped(missing) => ("skip", missing.to_string()),
        };
        match word {
            "pass" => self.totals.passed += 1,
            "skip" => self.totals.skipped += 1,
            _ => self.totals.failed += 1,
        }
        let seconds = took.as_secs_f64();
        if self.json {
            println!(
                "{}",
                serde_json::json!({ "case": name, "result": word.to_lowercase(), "seconds": seconds, "why": why })
            );
            return;
        }
        match word {
            "pass" => println!("pass {name} ({seconds:.2} s)"),
            "skip" => println!("skip {name}: {why}"),
            _ => {
                println!("FAIL {name} ({seconds:.2} s)");
                why.lines().for_each(|l| println!("     | {l}"));
            }
        }
    }
}
