//! Debian packages: which are missing, the command that brings them, and bringing them.

use crate::cmd;
use anyhow::{Result, bail};
use std::sync::atomic::{AtomicBool, Ordering};

/// A Debian package and the program (or absolute file) that shows it is there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need {
    /// A program on the `PATH`, or an absolute path.
    pub(crate) program: &'static str,
    /// The package that has it.
    pub(crate) package: &'static str,
}

impl Need {
    /// Whether it is already here.
    pub(crate) fn present(self) -> bool {
        if self.program.starts_with('/') {
            std::path::Path::new(self.program).exists()
        } else {
            cmd::find(self.program).is_some()
        }
    }
}

/// The packages among `needs` that are not here.
pub(crate) fn missing(needs: &[Need]) -> Vec<&'static str> {
    let mut packages: Vec<_> = needs.iter().filter(|n| !n.present()).map(|n| n.package).collect();
    packages.dedup();
    packages
}

/// The line a user would type for `packages`.
pub(crate) fn install_line(packages: &[&str]) -> String {
    let sudo = if is_root() { "" } else { "sudo " };
    format!("{sudo}apt-get install --no-install-recommends {}", packages.join(" "))
}

/// Installs `packages` without asking, as root or through a sudo that needs no password.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    if cmd::find("apt-get").is_none() {
        bail!("this is no Debian or Ubuntu (no apt-get); needed here: {}", packages.join(" "));
    }
    static UPDATED: AtomicBool = AtomicBool::new(false);
    if !UPDATED.swap(true, Ordering::Relaxed) {
        apt_get(&["update", "-qq"])?;
    }
    let mut args = vec!["install", "-y", "-qq", "--no-install-recommends"];
    args.extend_from_slice(packages);
    apt_get(&args)
}

fn apt_get(args: &[&str]) -> Result<()> {
    let mut c = if is_root() {
        cmd::command("apt-get")
    } else {
        if cmd::find("sudo").is_none() {
            bail!("neither root nor sudo here; run as root: apt-get {}", args.join(" "));
        }
        let mut c = cmd::command("sudo");
        c.args(["-n", "--preserve-env=DEBIAN_FRONTEND", "apt-get"]);
        c
    };
    c.env("DEBIAN_FRONTEND", "noninteractive");
    // A lock that another apt holds is waited for, not an error.
    c.args(["-o", "DPkg::Lock::Timeout=120", "-o", "Dpkg::Use-Pty=0"]).args(args);
    cmd::run(&mut c)
}

fn is_root() -> bool {
    // The effective user id is the second number of the Uid line; asking the kernel's text needs no unsafe code.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|l| l.strip_prefix("Uid:"))
        .and_then(|l| l.split_whitespace().nth(1))
        .is_some_and(|uid| uid == "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_asked_for() {
        let needs = [
            Need { program: "sh", package: "dash" },
            Need { program: "/no/such/file", package: "one" },
            Need { program: "no-such-program-here", package: "two" },
        ];
        assert_eq!(missing(&needs), ["one", "two"]);
        assert!(install_line(&["one", "two"]).ends_with("apt-get install --no-install-recommends one two"));
    }
}
