//! Output: rows to stdout as they are done; on a terminal, a line of progress that gives way to them.
use std::io::{self, ErrorKind, IsTerminal, Write};

use super::json::Report;
use super::plan::Row;
use super::table;
use crate::error::{Failure, Result};

/// Where the rows go.
#[derive(Debug)]
pub(crate) struct Output {
    json: bool,
    live: bool,
    rows: usize,
    done: usize,
}

impl Output {
    /// For so many rows.
    pub(crate) fn new(json: bool, rows: usize) -> Self {
        Self { json, live: io::stderr().is_terminal(), rows, done: 0 }
    }

    /// Before the first row.
    pub(crate) fn begin(&self) -> Result<()> {
        if self.json { Ok(()) } else { say(&table::header()) }
    }

    /// What is being done.
    pub(crate) fn progress(&self, row: &Row, what: &str) {
        if self.live {
            let crc = if row.crc { "on" } else { "off" };
            let (number, rows) = (self.done + 1, self.rows);
            let size = table::size(row.size);
            eprint!("\r\x1b[K[{number}/{rows}] {} {size}, CRC {crc}: {what}", row.verb.name());
        }
    }

    /// A row is done.
    pub(crate) fn row(&mut self, report: &Report) -> Result<()> {
        self.done += 1;
        self.clear();
        say(&if self.json { report.to_line() } else { table::line(report) })
    }

    /// After the last row.
    pub(crate) fn end(&self, checked: u64) -> Result<()> {
        self.clear();
        if self.json {
            return Ok(());
        }
        say(&format!("{}\nAll {checked} bytes that were moved arrived right.", table::LEGEND))
    }

    /// Removes the line of progress.
    pub(crate) fn clear(&self) {
        if self.live {
            eprint!("\r\x1b[K");
        }
    }
}

/// A line on stdout. One who closed it wants no more: that ends the program in silence.
pub(crate) fn say(line: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::from(error).during("cannot write to stdout")),
    }
}
