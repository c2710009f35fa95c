//! What a peer is told.

use clap::{Args, ValueEnum};
use rnic_verbs::{
    ConnParams, ConnPolicy, DeviceConfig, FpduPolicy,
    iwarp::mpa::startup::{CrcPolicy, Policy, Revision, RtrOffer},
};
use std::{net::SocketAddr, time::Duration};

/// The command line of a peer.
#[derive(Debug, Args)]
pub(crate) struct PeerArgs {
    /// Serve here.
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "connect", required_unless_present = "connect")]
    pub(crate) listen: Option<SocketAddr>,
    /// Connect there.
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) connect: Option<SocketAddr>,
    /// CRC policy.
    #[arg(long, value_enum, default_value = "off")]
    crc: Crc,
    /// MPA revision.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    mpa: u8,
    /// Ask for peer-to-peer mode, offering these.
    #[arg(long, value_enum, value_delimiter = ',')]
    rtr: Vec<RtrKind>,
    /// Ask the peer for markers.
    #[arg(long)]
    markers: bool,
    /// Longest FPDU: mss, large, or bytes.
    #[arg(long, default_value = "mss", value_parser = parse_fpdu)]
    fpdu: FpduPolicy,
    /// Outstanding Reads.
    #[arg(long, default_value_t = 4)]
    ord: u16,
    /// Reads served at once.
    #[arg(long, default_value_t = 4)]
    ird: u16,
    /// Milliseconds between the peer's Reply and our first FPDU.
    #[arg(long)]
    settle: Option<u64>,
    /// Private data of the Request: so many bytes `x`.
    #[arg(long, default_value_t = 0)]
    private_data: usize,
    /// As server, connections to serve.
    #[arg(long, default_value_t = 1)]
    pub(crate) connections: usize,
    /// As server, reject with "no thanks".
    #[arg(long)]
    pub(crate) reject: bool,
    /// Receives posted.
    #[arg(long, default_value_t = 16)]
    pub(crate) receives: u64,
    /// As server, wait so many milliseconds and then post as many.
    #[arg(long)]
    pub(crate) late: Option<u64>,
    /// Milliseconds that a message may be without a receive once no more can be held aside.
    #[arg(long, default_value_t = 10_000)]
    rnr_timeout: u64,
    /// Bytes of each receive.
    #[arg(long, default_value_t = 4096)]
    pub(crate) receive_size: u32,
    /// Operations of a client.
    pub(crate) operations: Vec<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Crc {
    Off,
    On,
    Required,
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RtrKind {
    Write,
    Read,
    Send,
}

fn parse_fpdu(text: &str) -> Result<FpduPolicy, String> {
    match text {
        "mss" => Ok(FpduPolicy::Mss),
        "large" => Ok(FpduPolicy::Large),
        bytes => bytes.parse().map(FpduPolicy::Bytes).map_err(|e| format!("{e}")),
    }
}

impl PeerArgs {
    pub(crate) fn device(&self) -> DeviceConfig {
        let mut config = DeviceConfig::default();
        config.rnr_timeout = Duration::from_millis(self.rnr_timeout);
        config
    }

    pub(crate) fn policy(&self) -> ConnPolicy {
        let offers = |kind| self.rtr.contains(&kind);
        let mut policy = ConnPolicy::default();
        policy.mpa = Policy {
            revision: if self.mpa == 1 { Revision::V1 } else { Revision::V2 },
            crc: match self.crc {
                Crc::Off => CrcPolicy::Off,
                Crc::On => CrcPolicy::On,
                Crc::Required => CrcPolicy::Required,
                Crc::Never => CrcPolicy::Never,
            },
            want_markers: self.markers,
            ord: self.ord,
            ird: self.ird,
            p2p: (!self.rtr.is_empty()).then(|| RtrOffer {
                write: offers(RtrKind::Write),
                read: offers(RtrKind::Read),
                send: offers(RtrKind::Send),
            }),
            ..policy.mpa
        };
        policy.fpdu = self.fpdu;
        if let Some(ms) = self.settle {
            policy.settle = Duration::from_millis(ms);
        }
        policy
    }

    /// For a client's Request.
    pub(crate) fn params(&self) -> ConnParams {
        let mut params = ConnParams::with_policy(self.policy());
        params.private_data = vec![b'x'; self.private_data];
        params
    }
}
