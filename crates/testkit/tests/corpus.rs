//! Replays what the fuzzers kept: `fuzz/corpus/TARGET/*`.

use std::fs;
use std::path::Path;

use rnic_testkit::fuzzing::TARGETS;
use rnic_testkit::seed::Seed;

#[test]
fn stored_inputs_keep_every_promise() {
    for (name, target) in TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
        let mut paths: Vec<_> = fs::read_dir(&folder)
            .expect("each target has a corpus")
            .map(|e| e.expect("readable").path())
            .collect();
        paths.sort();
        assert!(paths.len() >= 20, "{name}: only {} inputs", paths.len());
        for path in paths {
            println!("{}", path.display());
            target(&fs::read(&path).expect("readable"));
        }
    }
}

/// Also without a corpus: every run of the tests tries some inputs of its own.
#[test]
fn noise_keeps_every_promise() {
    let mut seed = Seed::new(2026);
    for (_, target) in TARGETS {
        for round in 0..600 {
            let len = seed.below(400);
            let mut bytes = seed.bytes(len);
            if let Some(first) = bytes.first_mut().filter(|_| round % 2 == 0) {
                // Structured streams rather than raw ones.
                *first &= !32;
            }
            target(&bytes);
        }
    }
}
