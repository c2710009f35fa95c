//! Other processes: this test program again, in a role of its own. A file that uses it has an ignored test
//! named `child`, which looks up its role and plays it.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test file uses a part")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::PATIENCE;

const ROLE: &str = "RNIC_TEST_ROLE";
const ARGUMENT: &str = "RNIC_TEST_ARGUMENT";

/// The role that this process is to play, and its argument.
pub fn role() -> Option<(String, String)> {
    Some((std::env::var(ROLE).ok()?, std::env::var(ARGUMENT).unwrap_or_default()))
}

/// A command that plays a role; to be started by [`start`].
pub fn command(role: &str, argument: &str) -> Command {
    dress(Command::new(std::env::current_exe().unwrap()), role, argument)
}

/// The same, run by another program that takes a command behind its own arguments.
pub fn command_by(wrapper: &[&str], role: &str, argument: &str) -> Command {
    let mut c = Command::new(wrapper[0]);
    c.args(&wrapper[1..]).arg(std::env::current_exe().unwrap());
    dress(c, role, argument)
}

fn dress(mut c: Command, role: &str, argument: &str) -> Command {
    c.args(["--ignored", "--exact", "child", "--nocapture", "--test-threads=1"]);
    c.env(ROLE, role).env(ARGUMENT, argument).env_remove("RNIC_PCAP");
    c
}

/// A running child; killed when dropped.
pub struct Played {
    pub child: Child,
    pub input: ChildStdin,
    output: BufReader<ChildStdout>,
}

pub fn start(mut command: Command) -> Played {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    Played { child, input, output: BufReader::new(output) }
}

pub fn play(role: &str, argument: &str) -> Played {
    start(command(role, argument))
}

/// What a child says to its parent: libtest prints lines of its own.
pub fn say(line: &str) {
    println!("\n>{line}");
    std::io::stdout().flush().unwrap();
}

impl Played {
    pub fn id(&self) -> i32 {
        self.child.id().try_into().unwrap()
    }

    /// The next line that the child said; `None` at its end.
    pub fn hear(&mut self) -> Option<String> {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if let Some(said) = line.strip_prefix('>') {
                return Some(said.trim_end().to_owned());
            }
            line.clear();
        }
        None
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// Waits for its end.
    pub fn finish(mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the child does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for its end, which must be a success.
    pub fn succeed(self, what: &str) {
        let status = self.finish();
        assert!(status.success(), "{what}: {status}");
    }

    pub fn signal(&self, signal: &str) {
        let done = Command::new("kill").args([signal, &self.id().to_string()]).status().unwrap();
        assert!(done.success());
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A line from the parent; blocks.
pub fn listen() -> String {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// Says why a test cannot run here; in CI nothing may be left out.
pub fn skip(test: &str, why: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{test} cannot run here: {why}");
    println!("skip {test}: {why}");
}
