//! What the cases need of a machine, and what brings it.

use crate::{namespace, program::Program};
use std::{
    env, fmt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// A prerequisite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Need {
    /// QEMU and the built siw guest.
    Guest,
    /// The `rnic` binary.
    Rnic,
    /// tshark, which reads captures.
    Tshark,
    /// A network namespace of our own with taps in it.
    Tap,
}

/// A prerequisite that this machine lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// What it is.
    pub what: String,
    /// The command that brings it.
    pub brought_by: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; `{}` brings it", self.what, self.brought_by)
    }
}

impl Need {
    /// Looks whether it is there. What only wants building is built.
    ///
    /// # Errors
    /// What is missing.
    pub fn check(self) -> Result<(), Missing> {
        match self {
            Self::Guest => check_guest(),
            Self::Rnic => check_rnic(),
            Self::Tshark => check_tshark(),
            Self::Tap => namespace::check_tap(),
        }
    }
}

/// The folder with the guest's scripts.
pub fn siw_guest() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("siw-guest")
}

/// The `rnic` binary: `RNIC_BIN`, else the release build.
pub fn rnic() -> PathBuf {
    env::var_os("RNIC_BIN").map_or_else(|| target().join("release/rnic"), PathBuf::from)
}

fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from)
}

/// Builds it unless `RNIC_BIN` names one: an old one would prove nothing.
fn check_rnic() -> Result<(), Missing> {
    let missing = |what| Missing { what, brought_by: "cargo build --release -p rnic".into() };
    if env::var_os("RNIC_BIN").is_none() {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args([
            "build",
            "--quiet",
            "--release",
            "--package",
            "rnic",
            "--bin",
            "rnic",
            "--manifest-path",
        ]);
        cargo.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml"));
        match Program::run(&mut cargo, Duration::from_secs(900)) {
            Ok(out) if out.status == 0 => {}
            Ok(out) => return Err(missing(format!("rnic does not build: {out}"))),
            Err(e) => return Err(missing(format!("rnic does not build: {e}"))),
        }
    }
    match Program::run(Command::new(rnic()).args(["ping", "--help"]), Duration::from_secs(60)) {
        Ok(out) if out.status == 0 && out.text.contains("--listen") => Ok(()),
        _ => Err(missing(format!("{} does not know `ping --listen`", rnic().display()))),
    }
}

fn check_guest() -> Result<(), Missing> {
    let missing = |what: String| Missing { what, brought_by: "interop/siw-guest/build --install".into() };
    // The whole build is a minute of one core; ten are for a busy machine.
    match Program::run(&mut Command::new(siw_guest().join("build")), Duration::from_secs(600)) {
        Ok(out) if out.status == 0 => Ok(()),
        Ok(out) => {
            Err(missing(out.text.trim().lines().last().unwrap_or("the siw guest does not build").to_owned()))
        }
        Err(e) => Err(missing(format!("the siw guest does not build: {e}"))),
    }
}

fn check_tshark() -> Result<(), Missing> {
    match Program::run(Command::new("tshark").arg("--version"), Duration::from_secs(60)) {
        Ok(out) if out.status == 0 => Ok(()),
        _ => Err(Missing {
            what: "no tshark".into(),
            brought_by: "apt-get install --no-install-recommends tshark".into(),
        }),
    }
}
