//! The control channel's messages, as `siw-guest/guest/agent.c` speaks them.

use std::io::{self, BufRead, Write};

/// Longest command that the agent takes, in bytes.
pub const MAX_COMMAND: usize = 1 << 16;

/// What the agent says.
#[derive(Debug, PartialEq, Eq)]
pub enum Message {
    /// The guest is up and the agent takes commands.
    Ready,
    /// A piece of what a command printed.
    Output {
        /// The command.
        id: u32,
        /// Bytes of its stdout and stderr.
        bytes: Vec<u8>,
    },
    /// A command has ended.
    Exit {
        /// The command.
        id: u32,
        /// As in a shell: 128 + signal if it was killed.
        status: i32,
    },
}

/// Reads one message; `None` at the channel's end.
///
/// # Errors
/// Those of `reader`, and `InvalidData` for what the agent never says.
pub fn read_message(reader: &mut impl BufRead) -> io::Result<Option<Message>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let bad = || io::Error::new(io::ErrorKind::InvalidData, format!("not understood: {line:?}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["ready"] => Ok(Some(Message::Ready)),
        ["out", id, len] => {
            let mut bytes = vec![0; len.parse().map_err(|_| bad())?];
            reader.read_exact(&mut bytes)?;
            Ok(Some(Message::Output { id: id.parse().map_err(|_| bad())?, bytes }))
        }
        ["exit", id, status] => Ok(Some(Message::Exit {
            id: id.parse().map_err(|_| bad())?,
            status: status.parse().map_err(|_| bad())?,
        })),
        _ => Err(bad()),
    }
}

/// Asks for a `ready`.
///
/// # Errors
/// Those of `writer`.
pub fn write_hello(writer: &mut impl Write) -> io::Result<()> {
    writer.write_all(b"hello\n")
}

/// Starts a command.
///
/// # Errors
/// Those of `writer`; `InvalidInput` for a command longer than [`MAX_COMMAND`].
pub fn write_run(writer: &mut impl Write, id: u32, command: &str) -> io::Result<()> {
    if command.len() > MAX_COMMAND {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the command is too long"));
    }
    writer.write_all(format!("run {id} {}\n{command}", command.len()).as_bytes())
}

/// Sends `signal` to a command's process group.
///
/// # Errors
/// Those of `writer`.
pub fn write_kill(writer: &mut impl Write, id: u32, signal: i32) -> io::Result<()> {
    writer.write_all(format!("kill {id} {signal}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_in_a_row_are_told_apart() {
        let mut bytes: &[u8] = b"ready\nout 3 5\nab\ncdexit 3 137\n";
        assert_eq!(read_message(&mut bytes).unwrap(), Some(Message::Ready));
        assert_eq!(
            read_message(&mut bytes).unwrap(),
            Some(Message::Output { id: 3, bytes: b"ab\ncd".to_vec() })
        );
        assert_eq!(read_message(&mut bytes).unwrap(), Some(Message::Exit { id: 3, status: 137 }));
        assert_eq!(read_message(&mut bytes).unwrap(), None);
    }

    #[test]
    fn a_strange_line_and_a_cut_output_are_errors() {
        assert_eq!(read_message(&mut &b"hi\n"[..]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(read_message(&mut &b"out 1 x\n"[..]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(read_message(&mut &b"out 1 5\nab"[..]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_command_is_sent_by_its_length_in_bytes() {
        let mut out = Vec::new();
        write_run(&mut out, 7, "echo ö\ntrue").unwrap();
        assert_eq!(out, "run 7 12\necho ö\ntrue".as_bytes());
        assert!(write_run(&mut out, 8, &"x".repeat(MAX_COMMAND + 1)).is_err());
    }
}
