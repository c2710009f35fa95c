//! A network namespace of our own, for cases on a tap.
//!
//! The whole run moves into one (`unshare -rn`: no root), so that guests' taps, listeners and connections are apart from
//! the machine's network. Where namespaces are not to be had the run stays where it is and the cases on a tap are skipped.

use crate::need::Missing;
use std::{
    env, io,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
};

/// Set in the environment of a run that has moved.
const MARK: &str = "RNIC_INTEROP_NAMESPACE";

/// Starts this program anew in a namespace of its own. Returns if it is in one, or if there is none to be had.
///
/// # Errors
/// If a program cannot be started.
pub fn enter() -> io::Result<()> {
    if env::var_os(MARK).is_some() {
        Command::new("ip").args(["link", "set", "lo", "up"]).status()?;
        return Ok(());
    }
    if !possible() {
        return Ok(());
    }
    let this = env::current_exe()?;
    Err(Command::new("unshare").arg("-rn").arg(this).args(env::args_os().skip(1)).env(MARK, "1").exec())
}

fn possible() -> bool {
    let mut script = Command::new("unshare");
    script.args(["-rn", "ip", "link", "set", "lo", "up"]);
    script
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

/// Whether taps can be had.
pub(crate) fn check_tap() -> Result<(), Missing> {
    if env::var_os(MARK).is_none() {
        return Err(Missing {
            what: "no network namespace of our own ('unshare -rn' fails)".into(),
            brought_by: "sysctl -w kernel.unprivileged_userns_clone=1".into(),
        });
    }
    // QEMU opens it; as a container's device it may be there and yet be refused.
    if let Err(e) = std::fs::OpenOptions::new().read(true).write(true).open(Path::new("/dev/net/tun")) {
        return Err(Missing { what: format!("no /dev/net/tun ({e})"), brought_by: "modprobe tun".into() });
    }
    Ok(())
}
