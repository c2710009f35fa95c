//! One thing that is measured of one contender.

use super::process;
use crate::apt::Need;
use anyhow::Result;
use std::process::Command;

/// Where both ends run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Place {
    /// On this machine, over loopback.
    Host,
    /// In one QEMU guest, over its loopback: beside drivers that only a kernel has.
    Guest,
}

/// What is compared: contenders of the same subject stand in one block of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Subject {
    /// Gbit/s of one-sided writes.
    WriteBandwidth,
    /// Gbit/s of one-sided reads.
    ReadBandwidth,
    /// Gbit/s of messages.
    SendBandwidth,
    /// Half a round trip of a one-sided ping-pong, µs, both ends polling.
    WriteLatency,
    /// Half a round trip of a message ping-pong, µs, both ends polling.
    SendLatency,
    /// The same with both ends asleep between messages.
    SleepingLatency,
    /// Small writes a second, millions.
    WriteRate,
    /// Memory of an idle queue pair beyond its socket, KiB.
    IdleMemory,
    /// CPU time of 1,000 idle queue pairs, percent of one core.
    IdleCpu,
}

impl Subject {
    /// Words for the table.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::WriteBandwidth => "bandwidth of Write, Gbit/s",
            Self::ReadBandwidth => "bandwidth of Read, Gbit/s",
            Self::SendBandwidth => "bandwidth of Send, Gbit/s",
            Self::WriteLatency => "latency of Write, half round trip, both ends polling, us",
            Self::SendLatency => "latency of Send, half round trip, both ends polling, us",
            Self::SleepingLatency => "latency, half round trip, both ends sleeping, us",
            Self::WriteRate => "rate of Writes, million a second",
            Self::IdleMemory => "memory of an idle queue pair beyond its socket, KiB",
            Self::IdleCpu => "CPU time of 1,000 idle queue pairs, percent of a core",
        }
    }

    /// A short name for filters.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::WriteBandwidth => "write-bandwidth",
            Self::ReadBandwidth => "read-bandwidth",
            Self::SendBandwidth => "send-bandwidth",
            Self::WriteLatency => "write-latency",
            Self::SendLatency => "send-latency",
            Self::SleepingLatency => "sleeping-latency",
            Self::WriteRate => "write-rate",
            Self::IdleMemory => "idle-memory",
            Self::IdleCpu => "idle-cpu",
        }
    }

    /// Whether a smaller figure is the better one.
    pub(super) fn smaller_is_better(self) -> bool {
        !matches!(self, Self::WriteBandwidth | Self::ReadBandwidth | Self::SendBandwidth | Self::WriteRate)
    }
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub(super) struct Sample {
    pub(super) place: Place,
    pub(super) subject: Subject,
    /// Bytes of one message; 0 where it is not about messages.
    pub(super) size: u64,
    /// Program and variant, such as `rnic, CRC off`.
    pub(super) contender: String,
    /// In the subject's unit.
    pub(super) value: f64,
    /// CPU seconds of both ends per 10^9 bytes of payload, where it can be told.
    pub(super) cpu_s_per_gb: Option<f64>,
}

impl Sample {
    /// The name by which a filter finds it.
    pub(super) fn name(&self) -> String {
        let name = name(self.subject, self.size, &self.contender);
        if self.place == Place::Guest { format!("guest {name}") } else { name }
    }
}

fn name(subject: Subject, size: u64, contender: &str) -> String {
    format!("{} {} {contender}", subject.name(), size_name(size))
}

/// `64B`, `64KiB`, `1MiB`.
pub(super) fn size_name(size: u64) -> String {
    match size {
        s if s >= 1 << 20 && s % (1 << 20) == 0 => format!("{}MiB", s >> 20),
        s if s >= 1 << 10 && s % (1 << 10) == 0 => format!("{}KiB", s >> 10),
        s => format!("{s}B"),
    }
}

/// What a rival's client says when it is done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Reading {
    /// In the subject's unit.
    pub(super) value: f64,
    /// Payload bytes that were moved, where the program or its arguments tell.
    pub(super) bytes: Option<f64>,
}

/// Makes a command for a TCP port.
pub(super) type Start = Box<dyn Fn(u16) -> Command>;
/// Reads a client's standard output.
pub(super) type Read = Box<dyn Fn(&str) -> Result<Reading>>;

/// A rival's measurement: a server, a client and how to read what the client prints.
pub(super) struct Case {
    pub(super) subject: Subject,
    pub(super) size: u64,
    pub(super) contender: &'static str,
    /// The program and what brings it.
    pub(super) tool: Need,
    /// The server for a TCP port.
    pub(super) server: Start,
    /// The client for the same port.
    pub(super) client: Start,
    /// Reads the client's standard output.
    pub(super) read: Read,
}

impl Case {
    /// The name by which a filter finds it.
    pub(super) fn name(&self) -> String {
        name(self.subject, self.size, self.contender)
    }

    /// Starts both ends, waits for the client, ends the server.
    pub(super) fn run(&self) -> Result<Sample> {
        let port = process::free_port()?;
        let (out, cpu_seconds) = process::pair((self.server)(port), (self.client)(port), port)?;
        let reading = (self.read)(&out)?;
        let cpu_s_per_gb = reading.bytes.map(|bytes| cpu_seconds / (bytes / 1e9));
        Ok(Sample {
            place: Place::Host,
            subject: self.subject,
            size: self.size,
            contender: self.contender.into(),
            value: reading.value,
            cpu_s_per_gb,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_named_in_powers_of_two() {
        assert_eq!([64, 65536, 1 << 20, 1500].map(size_name), ["64B", "64KiB", "1MiB", "1500B"]);
    }
}
