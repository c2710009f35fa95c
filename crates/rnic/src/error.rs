//! What a command says when it cannot go on: one line of cause, one line of remedy, an exit code.
use std::fmt;
use std::io;

/// Exit codes, as `--help` states them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Data was wrong, or the job could not be done.
    Failed = 1,
    /// The command line makes no sense.
    Usage = 2,
}

/// The reason a command ends early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// What the process exits with.
    pub(crate) exit: Exit,
    /// What happened.
    pub(crate) cause: String,
    /// What to do about it.
    pub(crate) hint: Option<String>,
}

/// What the functions of this program return.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Something did not work.
    pub(crate) fn failed(cause: impl Into<String>) -> Self {
        Self { exit: Exit::Failed, cause: cause.into(), hint: None }
    }

    /// The command line asks for something impossible.
    pub(crate) fn usage(cause: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, cause: cause.into(), hint: None }
    }

    /// Ended by SIGINT or SIGTERM before the job was done.
    pub(crate) fn interrupted() -> Self {
        Self::failed("interrupted before the end")
    }

    /// Adds the remedy. A remedy that is there already is nearer to the cause, and stays.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        if self.hint.is_none() {
            self.hint = Some(hint.into());
        }
        self
    }

    /// Says during what it happened.
    pub(crate) fn during(mut self, what: impl fmt::Display) -> Self {
        self.cause = format!("{what}: {}", self.cause);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", one_line(&self.cause))?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {}", one_line(hint)),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let failure = Self::failed(error.to_string());
        match io_remedy(error.kind()) {
            Some(remedy) => failure.hint(remedy),
            None => failure,
        }
    }
}

/// What usually helps against an error of the socket layer.
pub(crate) fn io_remedy(kind: io::ErrorKind) -> Option<&'static str> {
    use io::ErrorKind as K;
    Some(match kind {
        K::ConnectionRefused => "nothing listens there: start the other end first, and check the port",
        K::AddrInUse => "another program has this port: choose another, or 0 for a free one",
        K::AddrNotAvailable => {
            "no interface of this machine has this address: `ip address` lists those that do"
        }
        K::PermissionDenied => "ports below 1024 need a privilege: choose a higher one",
        K::HostUnreachable | K::NetworkUnreachable => {
            "no route leads there: check the address and `ip route`"
        }
        K::TimedOut => "no answer came: check that a firewall lets this TCP port through",
        K::ConnectionReset | K::BrokenPipe | K::UnexpectedEof => {
            "the other end went away: look at what it printed"
        }
        _ => return None,
    })
}

/// Messages of other layers may span lines; one failure is one line.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line_of_cause_and_one_of_remedy() {
        let failure = Failure::failed("first\n  second").hint("do\nthis").hint("not this");
        assert_eq!(failure.to_string(), "error: first second\nhint: do this");
        assert_eq!(failure.during("opening").cause, "opening: first\n  second");
    }

    #[test]
    fn socket_errors_come_with_a_remedy() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::ConnectionRefused));
        assert_eq!(failure.exit, Exit::Failed);
        assert!(failure.hint.is_some_and(|hint| hint.contains("start the other end first")));
        assert_eq!(Failure::from(io::Error::from(io::ErrorKind::OutOfMemory)).hint, None);
    }
}
