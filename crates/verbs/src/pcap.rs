//! `RNIC_PCAP`: what the queue pairs send and receive, as a capture.

use std::os::fd::AsFd;
use std::path::Path;

use crate::error::Result;
use crate::qp::link::Link;

/// The capture.
#[derive(Debug)]
pub(crate) struct Pcap;

impl Pcap {
    pub(crate) fn create(_path: &Path) -> Result<Self> {
        Ok(Self)
    }

    /// A start-up frame, before the connection belongs to a queue pair.
    pub(crate) fn startup(&self, _fd: impl AsFd, _sent: bool, _frame: &[u8]) {}

    /// One FPDU of ours.
    pub(crate) fn sent(&self, _link: &Link, _fpdu: &[u8]) {}

    /// Bytes taken from the stream.
    pub(crate) fn received(&self, _link: &Link, _bytes: &[u8]) {}
}
