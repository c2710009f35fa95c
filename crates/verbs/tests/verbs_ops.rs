//! Sequences of verbs calls against a reference model: stored ones, and new ones from seeds.

mod model;

use std::path::Path;
use std::time::{Duration, Instant};

use rnic_testkit::seed::Seed;

/// Time for the seeded sequences: at least [`LEAST`] of them, however slow the machine.
const BUDGET: Duration = Duration::from_secs(15);
const LEAST: u64 = 40;
const MOST: u64 = 600;

/// What the fuzzer found worth keeping, and every input that ever failed.
#[test]
fn stored_sequences_do_what_the_model_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/verbs_ops");
    let mut files: Vec<_> =
        std::fs::read_dir(&folder).expect("corpus").map(|f| f.expect("file").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    for file in files {
        eprintln!("{}", file.display());
        model::run(&std::fs::read(&file).expect("read"));
    }
}

/// Repeat one with `VERBS_OPS_SEED=number`; `VERBS_OPS_SECONDS` makes the test longer.
#[test]
fn random_sequences_do_what_the_model_says() {
    let number = |name: &str| std::env::var(name).ok().map(|v| v.parse::<u64>().expect(name));
    let one = number("VERBS_OPS_SEED");
    let time = number("VERBS_OPS_SECONDS");
    let budget = time.map_or(BUDGET, Duration::from_secs);
    let most = if time.is_some() { u64::MAX } else { MOST };
    let start = Instant::now();
    // Another stretch of seeds for each longer run.
    let fresh = if time.is_some() { u64::from(std::process::id()) << 20 } else { 0 };
    let first = one.unwrap_or(fresh);
    let mut n = first;
    while n == first || one.is_none() && n - first < most && (n - first < LEAST || start.elapsed() < budget) {
        let seed = Seed::new(n);
        eprintln!("VERBS_OPS_SEED={n}");
        model::run(&bytes(seed));
        n += 1;
    }
    eprintln!("{} sequences in {:?}", n - first, start.elapsed());
}

fn bytes(mut seed: Seed) -> Vec<u8> {
    let len = 50 + seed.below(1500);
    seed.bytes(len)
}
