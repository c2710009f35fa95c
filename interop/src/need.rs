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
    /// Looks whether it is there. A guest whose packages are there is built.
    ///
    /// # Errors
    /// What is missing.
    pub fn check(self) -> Result<(), Missing> {
        match self {
            Self::Guest => check_guest(),
            Self::Rnic => rnic().map(|_| ()),
            Self::Tshark => check_tshark(),
            Self::Tap => namespace::check_tap(),
        }
    }
}

/// The folder with the guest's scripts.
pub fn siw_guest() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("siw-guest")
}

/// The `rnic` binary: `RNIC_BIN`, else the newer one of `target/release` and `target/debug`.
///
/// # Errors
/// If there is none.
pub fn rnic() -> Result<PathBuf, Missing> {
    if let Some(path) = env::var_os("RNIC_BIN") {
        return Ok(path.into());
    }
    let target = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"));
    ["release", "debug"]
        .into_iter()
        .map(|profile| target.join(profile).join("rnic"))
        .filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)))
        .max()
        .map(|(_, path)| path)
        .ok_or_else(|| Missing {
            what: "no rnic binary".into(),
            brought_by: "cargo build --release -p rnic".into(),
        })
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
