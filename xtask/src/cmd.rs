//! Running other programs: no shell, no standard input, and an error that names the command line.

use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A command with closed standard input that runs in the workspace root.
pub(crate) fn command(program: impl AsRef<Path>) -> Command {
    let mut c = Command::new(program.as_ref());
    c.stdin(Stdio::null()).current_dir(crate::workspace::root());
    c
}

/// The cargo that runs this program, or the one on the `PATH`.
pub(crate) fn cargo() -> Command {
    let mut c = command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Set by the outer `cargo run`: they would make inner builds differ from those a user starts.
    for name in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_PKG_VERSION"] {
        c.env_remove(name);
    }
    c
}

/// Runs `command` to its end; a non-zero status is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start `{}`", line(command)))?;
    if !status.success() {
        bail!("`{}` ended with {status}", line(command));
    }
    Ok(())
}

/// Like [`run`], and shows each line of standard output to `see` as it is passed on.
pub(crate) fn run_watched(command: &mut Command, mut see: impl FnMut(&str)) -> Result<()> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{}`", line(command)))?;
    if let Some(out) = child.stdout.take() {
        for text in BufReader::new(out).lines() {
            let text = text?;
            println!("{text}");
            see(&text);
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("`{}` ended with {status}", line(command));
    }
    Ok(())
}

/// Standard output of `command`; a non-zero status is an error that carries its standard error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let out = command.output().with_context(|| format!("cannot start `{}`", line(command)))?;
    if !out.status.success() {
        let stderr = String::from_utf8_lossy(&out.stderr);
        bail!("`{}` ended with {}: {}", line(command), out.status, stderr.trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// The command as one would type it.
pub(crate) fn line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let mut line = program.to_string_lossy().into_owned();
    for arg in command.get_args() {
        line.push(' ');
        line.push_str(&arg.to_string_lossy());
    }
    line
}

/// Where `program` is, searched on the `PATH` and in the folders of system tools.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(program))
        .find(|p| p.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_command_is_an_error_that_names_it() {
        let e = run(command("sh").args(["-c", "exit 3"])).unwrap_err().to_string();
        assert!(e.contains("sh -c exit 3"), "{e}");
        let e = output(command("sh").args(["-c", "echo why >&2; exit 1"])).unwrap_err().to_string();
        assert!(e.contains("why"), "{e}");
    }

    #[test]
    fn a_watched_command_shows_its_lines_and_still_fails() {
        let mut seen = Vec::new();
        let result =
            run_watched(command("sh").args(["-c", "echo a; echo b; exit 4"]), |l| seen.push(l.to_owned()));
        assert!(result.is_err());
        assert_eq!(seen, ["a", "b"]);
    }

    #[test]
    fn standard_input_is_closed() {
        assert_eq!(output(&mut command("cat")).unwrap(), "");
    }

    #[test]
    fn programs_are_found_on_the_path_only() {
        assert!(find("sh").is_some());
        assert!(find("no-such-program-here").is_none());
    }
}
