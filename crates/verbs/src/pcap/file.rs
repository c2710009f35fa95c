//! The capture file: classic pcap, nanosecond times, raw IP.
//!
//! Format: <https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-04.html>.

use std::fs::{File as OsFile, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::FlockOperation;

use crate::net::tcp;

/// Magic number of files with nanosecond times.
const MAGIC: u32 = 0xa1b2_3c4d;
/// Longest packet.
const SNAPLEN: u32 = 0x4_0000;
/// Link type: packets begin with their IP header.
const LINKTYPE_RAW: u32 = 101;

/// A capture being written. Each packet is with the kernel when the call returns, so a killed process
/// leaves all of them.
#[derive(Debug)]
pub(super) struct File {
    process: u32,
    /// `None` after a failure (a full disk, say): half a record would spoil all that follow.
    out: Mutex<Option<OsFile>>,
}

impl File {
    /// Begins a capture at `path`, or, if another process has one there, beside it.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let mut out = match claim(path)? {
            Some(out) => out,
            None => {
                let beside = beside(path);
                tracing::warn!(path = %beside.display(), "another process captures to {}", path.display());
                claim(&beside)?.ok_or(io::ErrorKind::ResourceBusy)?
            }
        };
        if out.metadata()?.is_file() {
            out.set_len(0)?;
        }
        out.write_all(&header())?;
        Ok(Self { process: std::process::id(), out: Mutex::new(Some(out)) })
    }

    /// Adds a packet that `build` writes behind what is in the vector, unless it cannot (`None`).
    pub(super) fn packet(&self, build: impl FnOnce(&mut Vec<u8>) -> Option<()>) {
        // A forked child has the parent's descriptor.
        if self.process != std::process::id() {
            return;
        }
        let mut record = vec![0; RECORD_HEADER];
        if build(&mut record).is_none() {
            return;
        }
        let mut out = super::lock(&self.out);
        let Some(file) = out.as_mut() else { return };
        stamp(&mut record);
        if let Err(error) = file.write_all(&record) {
            tracing::error!(%error, "the capture ends here");
            *out = None;
        }
    }
}

/// Opens the file and locks it for this process; `None`: another process has it.
fn claim(path: &Path) -> io::Result<Option<OsFile>> {
    let file = OpenOptions::new().append(true).create(true).open(path)?;
    let file = OsFile::from(tcp::raise(OwnedFd::from(file)));
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        // File systems without locks: so be it.
        _ => Ok(Some(file)),
    }
}

/// `path` with the process's number behind it.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    name.into()
}

fn header() -> [u8; 24] {
    let mut h = [0; 24];
    h[..4].copy_from_slice(&MAGIC.to_ne_bytes());
    h[4..6].copy_from_slice(&2u16.to_ne_bytes());
    h[6..8].copy_from_slice(&4u16.to_ne_bytes());
    h[16..20].copy_from_slice(&SNAPLEN.to_ne_bytes());
    h[20..].copy_from_slice(&LINKTYPE_RAW.to_ne_bytes());
    h
}

const RECORD_HEADER: usize = 16;

/// Fills the record header in: time, captured length, length.
fn stamp(record: &mut [u8]) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let len = (record.len() - RECORD_HEADER) as u32;
    // 32 bits of seconds, as the format has it.
    for (at, word) in [(0, now.as_secs() as u32), (4, now.subsec_nanos()), (8, len), (12, len)] {
        record[at..at + 4].copy_from_slice(&word.to_ne_bytes());
    }
}
