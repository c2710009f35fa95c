//! What the tests need beyond a Rust toolchain, and bringing it.

use crate::apt::{self, Need};
use crate::{cmd, workspace};
use anyhow::Result;

/// What decodes our captures. (What the guest needs is known to its own build script.)
const TSHARK: Need = Need { program: "tshark", package: "tshark" };

/// Builds the guest with the kernel's siw, and with `--install` fetches what that takes.
const GUEST: &str = "interop/siw-guest/build";

/// The command that brings cargo-nextest.
pub(super) const NEXTEST: &str =
    "cargo install --locked cargo-nextest --no-default-features --features default-no-update";

/// Brings everything; what is here already costs nothing.
pub(super) fn everything() -> Result<()> {
    apt::install(&apt::missing(&[TSHARK]))?;
    cmd::run(cmd::command(workspace::root().join(GUEST)).arg("--install"))?;
    if !nextest_present() {
        let mut c = cmd::cargo();
        c.args(NEXTEST.split(' ').skip(1)).arg("--quiet");
        // It is run a few times only: unoptimised and without LTO it builds in three minutes of two cores.
        c.env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0");
        cmd::run(&mut c)?;
    }
    Ok(())
}

/// Whether `cargo nextest` can be called.
pub(super) fn nextest_present() -> bool {
    cmd::output(cmd::cargo().args(["nextest", "--version"])).is_ok()
}
