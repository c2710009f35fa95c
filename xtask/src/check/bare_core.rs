//! The protocol core stays fit for a kernel: no std, no allocator, no unsafe code, no dependency.
//!
//! A bare target such as `thumbv7em-none-eabi` would show it, but needs a download that an offline
//! machine cannot do. rustc itself gives the same proof for the host's target: a `no_std` static
//! library with its own panic handler is linked against the core. If anything in the core's crate
//! graph were `std`, its panic handler would collide with ours; if it were `alloc`, rustc would ask
//! for a global allocator. The two refusals are provoked as well, so that the proof is known to bite.

use super::{Findings, Tree};
use crate::cmd;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

const CORE: &str = "crates/iwarp/src/";

/// A program without std that links the core.
const PROBE: &str = r#"#![no_std]
extern crate iwarp;
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! { loop {} }
#[unsafe(no_mangle)]
pub extern "C" fn probe() -> u8 { iwarp::Fault::Crc.terminate().layer }
"#;

pub(super) fn check(tree: &Tree) -> Result<Findings> {
    let mut found = Findings { errors: source_errors(tree), notes: Vec::new() };
    if let Err(e) = link_probe(&tree.meta.target_directory) {
        found.errors.push(format!("{e:#}"));
    }
    Ok(found)
}

fn source_errors(tree: &Tree) -> Vec<String> {
    let mut errors = Vec::new();
    for source in tree.sources.iter().filter(|s| s.path.starts_with(CORE)) {
        if source.path == format!("{CORE}lib.rs") {
            for attribute in ["#![no_std]", "#![forbid(unsafe_code)]"] {
                if !source.code.lines().any(|l| l.trim() == attribute) {
                    errors.push(format!("{}: `{attribute}` is missing", source.path));
                }
            }
        }
        for line in source.lines_with_word("extern").filter(|&n| !source.is_test(n)) {
            let text = source.code.lines().nth(line - 1).unwrap_or("");
            if text.contains("extern crate") {
                errors.push(format!("{}:{line}: `extern crate` outside tests", source.path));
            }
        }
    }
    errors
}

/// Builds the core, links the probe against it, and sees to it that std and alloc would have been refused.
fn link_probe(target: &Path) -> Result<()> {
    let dir = target.join("xtask/bare-core");
    fs::create_dir_all(&dir)?;
    let core = build_core()?;
    compile(&dir, "probe", PROBE, &core)
        .context("rnic-iwarp does not link into a program without std and without an allocator")?;
    for (name, krate) in [("with-std", "std"), ("with-alloc", "alloc")] {
        let spoilt = format!("{PROBE}extern crate {krate};\n");
        if compile(&dir, name, &spoilt, &core).is_ok() {
            bail!("the probe links with {krate} as well, so it proves nothing with this compiler");
        }
    }
    Ok(())
}

fn build_core() -> Result<PathBuf> {
    let json =
        cmd::output(cmd::cargo().args(["build", "--quiet", "-p", "rnic-iwarp", "--message-format", "json"]))?;
    json.lines()
        .filter_map(|l| serde_json::from_str::<serde_json::Value>(l).ok())
        .filter(|m| m["reason"] == "compiler-artifact" && m["target"]["name"] == "iwarp")
        .flat_map(|m| m["filenames"].as_array().cloned().unwrap_or_default())
        .filter_map(|f| f.as_str().map(PathBuf::from))
        .find(|f| f.extension().is_some_and(|e| e == "rlib"))
        .context("cargo names no rlib for rnic-iwarp")
}

fn compile(dir: &Path, name: &str, text: &str, core: &Path) -> Result<()> {
    let file = dir.join(format!("{name}.rs"));
    fs::write(&file, text)?;
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut c = cmd::command(rustc);
    c.args(["--edition", "2024", "--crate-type", "staticlib", "-C", "panic=abort", "--extern"])
        .arg(format!("iwarp={}", core.display()))
        .arg("-o")
        .arg(dir.join(format!("lib{name}.a")))
        .arg(&file);
    cmd::output(&mut c).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_core_declares_itself_bare() {
        let good = "#![no_std]\n#![forbid(unsafe_code)]\n#[cfg(test)]\nextern crate std;\n";
        assert!(source_errors(&Tree::of("crates/iwarp/src/lib.rs", good)).is_empty());
        let bad = "#![cfg_attr(not(test), no_std)]\nextern crate alloc;\n";
        assert_eq!(source_errors(&Tree::of("crates/iwarp/src/lib.rs", bad)).len(), 3);
    }
}
