//! Runs every cargo-fuzz target for a while, from its corpus; a crash leaves its input under `fuzz/artifacts`.
//!
//! What the fuzzer finds worth keeping goes to `target/fuzz-corpus`: the committed corpus stays small.

use crate::cmd;
use crate::stage::Stages;
use crate::workspace::{self, Metadata};
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// cargo-fuzz needs a nightly compiler for its instrumentation.
const TOOL: &str = "rustup toolchain install nightly && cargo install --locked cargo-fuzz";

pub(super) fn run(stages: &mut Stages, time: Duration) -> Result<()> {
    let folder = workspace::root().join("fuzz");
    let manifest = folder.join("Cargo.toml");
    if !manifest.exists() {
        stages.skip("fuzz", "there is no fuzz/Cargo.toml in this tree");
        return Ok(());
    }
    if cmd::output(cmd::command("cargo").args(["+nightly", "fuzz", "--version"])).is_err() {
        stages.skip("fuzz", TOOL);
        return Ok(());
    }
    for target in targets(&fs::read_to_string(&manifest)?)? {
        stages.run(&format!("fuzz {target}"), |_| fuzz(&folder, &target, time));
    }
    Ok(())
}

/// One target: several workers share the corpus, so that two cores are used.
fn fuzz(folder: &Path, target: &str, time: Duration) -> Result<()> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let found = Metadata::load()?.target_directory.join("fuzz-corpus").join(target);
    fs::create_dir_all(&found)?;
    let mut c = cmd::command("cargo");
    c.current_dir(folder).args(["+nightly", "fuzz", "run", target]);
    // The first folder is added to, the others are read.
    c.arg(found).arg(folder.join("corpus").join(target)).arg("--");
    c.arg(format!("-max_total_time={}", time.as_secs()));
    c.arg(format!("-fork={workers}"));
    c.args(["-timeout=10", "-rss_limit_mb=4096", "-print_final_stats=1"]);
    cmd::run(&mut c)
}

/// The names of the `[[bin]]` tables.
fn targets(manifest: &str) -> Result<Vec<String>> {
    let manifest: toml::Table = toml::from_str(manifest)?;
    let bins = manifest.get("bin").and_then(|b| b.as_array()).context("fuzz/Cargo.toml has no [[bin]]")?;
    Ok(bins.iter().filter_map(|b| b.get("name")?.as_str().map(Into::into)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_the_binaries() {
        let manifest = "[package]\nname = \"fuzz\"\n[[bin]]\nname = \"deframer\"\npath = \"a.rs\"\n[[bin]]\nname = \"qp_ops\"\n";
        assert_eq!(targets(manifest).unwrap(), ["deframer", "qp_ops"]);
        assert!(targets("[package]\nname = \"fuzz\"\n").is_err());
    }
}
