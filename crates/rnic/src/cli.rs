//! The command line.
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::address::HostPort;
use crate::error::Failure;
use crate::perf::plan::{Fpdu, Kind, Verb};

const EXAMPLES: &str = "\
Examples:
  rnic perf                        measure every verb between two processes of this machine
  rnic ping --listen               answer pings, also those of librdmacm's `rping -c`
  rnic ping 10.0.0.2 -C 5          five pings, also to `rping -s`
  rnic devinfo                     what the software RNIC can do

Exit codes:
  0  all went well
  1  data was wrong, or the job could not be done
  2  the command line makes no sense

Environment:
  RNIC_PCAP=FILE  write what each queue pair sends and receives as a capture for Wireshark
  RNIC_LOG=LEVEL  log to stderr: error, warn, info, debug, trace, or as in rnic_verbs=debug";

const PERF_EXAMPLES: &str = "\
Examples:
  rnic perf                                      everything, about half a minute, over loopback
  rnic perf --quick --json                       a short run for scripts
  rnic perf --verb write,send --size 64,4K,1M    three sizes of two verbs
  rnic perf --listen 10.0.0.2:7175               on one machine, and on another:
  rnic perf --connect 10.0.0.2:7175 --crc on --duration 2

Bandwidth is the median of rounds; each round moves as many messages as fit in a region and is
followed by a check of every byte, outside the timed part. Latency is half a ping-pong; for read and
the atomics, the full round trip.

Exit codes:
  0  every byte was right
  1  a byte was wrong, or a request failed
  2  the command line makes no sense";

const PING_EXAMPLES: &str = "\
Examples:
  rnic ping --listen                 serve on port 7174 of every address until Ctrl-C
  rnic ping --listen 10.0.0.2:9000   serve on one address and port
  rnic ping 10.0.0.2                 one ping a second until Ctrl-C
  rnic ping 10.0.0.2 -C 1000 -S 4096 -v

The peer may be `rping` of librdmacm (rping -s -a ADDR -v, or rping -c -a ADDR -v -C 5).

Exit codes:
  0  every ping came back right
  1  a ping was lost or wrong, or there was no connection
  2  the command line makes no sense";

/// A software RDMA NIC in user space: iWARP over ordinary TCP.
#[derive(Debug, Parser)]
#[command(name = "rnic", version, after_help = EXAMPLES, max_term_width = 120)]
#[command(subcommand_required = true, arg_required_else_help = false)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure latency and bandwidth of every verb next to plain TCP, checking every byte
    Perf(PerfArgs),
    /// Ping over RDMA with the protocol of rping: either end may be librdmacm's rping
    Ping(PingArgs),
    /// Show the device's attributes and limits
    Devinfo(DevinfoArgs),
    /// Print a manual page (roff) of rnic or of one subcommand
    #[command(hide = true)]
    Man {
        /// Subcommand; without it, rnic itself.
        command: Option<String>,
    },
    /// Print a completion script
    #[command(hide = true)]
    Completions {
        /// For which shell.
        shell: Shell,
    },
}

/// Options of the end that measures; the other end is told.
const MEASURING: [&str; 18] = [
    "connect", "verb", "measure", "size", "iters", "duration", "quick", "depth", "batch", "qps", "crc",
    "markers", "fpdu", "poll", "events", "region", "no_tcp", "json",
];

/// `rnic perf`
#[derive(Debug, Args)]
#[command(after_help = PERF_EXAMPLES)]
pub(crate) struct PerfArgs {
    /// Be the target: serve measurements of a remote --connect, until interrupted
    #[arg(long, value_name = "[ADDR]:PORT", conflicts_with_all = MEASURING)]
    pub(crate) listen: Option<HostPort>,

    /// Measure against a remote --listen. Without either, both ends run here, over loopback
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) connect: Option<HostPort>,

    /// What to measure
    #[arg(long, value_name = "VERB,...", value_delimiter = ',', value_enum)]
    pub(crate) verb: Vec<Verb>,

    /// Bytes a message; K and M are binary [default: 8,64,4K,64K,1M; immediate and atomics always 8]
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', value_parser = parse_size)]
    pub(crate) size: Vec<u32>,

    /// Measure only this [default: both]
    #[arg(long, value_enum)]
    pub(crate) measure: Option<Kind>,

    /// Messages a queue pair in each measurement, instead of a duration
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "duration")]
    pub(crate) iters: Option<u64>,

    /// Seconds of each measurement (a row has two: bandwidth and latency) [default: 0.1]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) duration: Option<Duration>,

    /// A short run: a few seconds in all
    #[arg(long, conflicts_with_all = ["duration", "iters"])]
    pub(crate) quick: bool,

    /// Work requests under way in bandwidth measurements
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=16384))]
    pub(crate) depth: u32,

    /// Work requests posted by one call, one of them signalled [default: half the depth, at most 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_BATCH as i64))]
    pub(crate) batch: Option<u32>,

    /// Queue pairs in parallel, each with a thread of its own at both ends
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) qps: u32,

    /// CRC32c over each FPDU, both ways [default: both]
    #[arg(long, value_enum)]
    pub(crate) crc: Option<CrcChoice>,

    /// MPA markers in the stream, both ways
    #[arg(long, value_enum, default_value_t = OnOff::Off)]
    pub(crate) markers: OnOff,

    /// Size of a segment: one per TCP segment, as large as possible, or at most BYTES
    #[arg(long, value_name = "mss|large|BYTES", default_value = "large", value_parser = parse_fpdu)]
    pub(crate) fpdu: Fpdu,

    /// Spin for completions, and for data in latency measurements (the default)
    #[arg(long, conflicts_with = "events")]
    pub(crate) poll: bool,

    /// Sleep for completions; TCP is then measured with blocking calls
    #[arg(long)]
    pub(crate) events: bool,

    /// Bytes of each end's memory for incoming and for outgoing data, a queue pair
    #[arg(long, value_name = "BYTES", default_value = "16M", value_parser = parse_size)]
    pub(crate) region: u32,

    /// Do not measure plain TCP
    #[arg(long)]
    pub(crate) no_tcp: bool,

    /// Port for the plain TCP connections, with --listen [default: any]
    #[arg(long, value_name = "PORT", requires = "listen")]
    pub(crate) tcp_port: Option<u16>,

    /// With --listen: end after one run, with an exit code that says how it went
    #[arg(long, requires = "listen")]
    pub(crate) once: bool,

    /// Print one JSON object a row instead of the table
    #[arg(long)]
    pub(crate) json: bool,

    /// Print the port on stdout and end with stdin: the other process of a self-contained run
    #[arg(long, hide = true, requires = "listen")]
    pub(crate) child: bool,

    /// Self-test: falsify one byte of each round before it is sent
    #[arg(long, hide = true)]
    pub(crate) corrupt: bool,
}

/// Most work requests of one posting call.
pub(crate) const MAX_BATCH: usize = 64;

/// `rnic ping`
#[derive(Debug, Args)]
#[command(after_help = PING_EXAMPLES)]
pub(crate) struct PingArgs {
    /// Whom to ping
    #[arg(value_name = "HOST[:PORT]", required_unless_present = "listen", conflicts_with = "listen")]
    pub(crate) host: Option<HostPort>,

    /// Answer pings
    #[arg(long, short = 's', value_name = "[ADDR][:PORT]", num_args = 0..=1, default_missing_value = ":7174")]
    pub(crate) listen: Option<HostPort>,

    /// Number of pings [default: until interrupted]
    #[arg(long, short = 'C', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,

    /// Bytes of a ping
    #[arg(long, short = 'S', value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(23..=65535))]
    pub(crate) size: u32,

    /// Seconds from one ping to the next [default: 1, and 0 with --count]
    #[arg(long, short = 'i', value_name = "SECONDS", value_parser = parse_seconds_or_zero)]
    pub(crate) interval: Option<Duration>,

    /// Show the data of each ping
    #[arg(long, short = 'v')]
    pub(crate) verbose: bool,

    /// Check the data of each ping (the default; for those used to rping)
    #[arg(long, short = 'V')]
    pub(crate) verify: bool,

    /// Only the summary
    #[arg(long, short = 'q', conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// Seconds to wait for an answer
    #[arg(long, short = 'W', value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    pub(crate) timeout: Duration,

    /// With --listen: end after one client
    #[arg(long, requires = "listen")]
    pub(crate) once: bool,

    /// CRC32c over each FPDU: ask for it, or take what the peer asks for
    #[arg(long, value_enum, default_value_t = OnOff::Off)]
    pub(crate) crc: OnOff,

    /// Revision of MPA to connect with
    #[arg(long, value_name = "REVISION", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) mpa: u8,

    /// Message that makes the connection ready for the other side to send first (RFC 6581)
    #[arg(long, value_enum, default_value_t = Rtr::None)]
    pub(crate) rtr: Rtr,

    /// Milliseconds to wait after connecting before the first message, for peers that lose it if it comes at once
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub(crate) settle: u64,

    /// Print JSON objects: one a ping, then one summary
    #[arg(long)]
    pub(crate) json: bool,
}

/// `rnic devinfo`
#[derive(Debug, Args)]
pub(crate) struct DevinfoArgs {
    /// All attributes
    #[arg(long, short = 'v')]
    pub(crate) verbose: bool,

    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// A switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnOff {
    /// Yes.
    On,
    /// No.
    Off,
}

/// Which CRC settings `perf` measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CrcChoice {
    /// With.
    On,
    /// Without.
    Off,
    /// One after the other.
    Both,
}

/// RTR message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rtr {
    /// Zero-length RDMA Write.
    Write,
    /// Zero-length RDMA Read.
    Read,
    /// Zero-length Send.
    Send,
    /// Not used: the client sends first.
    None,
}

/// Bytes, with K, M (binary) allowed.
fn parse_size(text: &str) -> Result<u32, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    let number: u32 =
        digits.parse().map_err(|_| "expected a number of bytes such as 64, 4K or 1M".to_owned())?;
    number.checked_mul(unit).filter(|&bytes| bytes <= 1 << 30).ok_or_else(|| "at most 1024M".to_owned())
}

fn parse_fpdu(text: &str) -> Result<Fpdu, String> {
    match text {
        "mss" => Ok(Fpdu::Mss),
        "large" => Ok(Fpdu::Large),
        _ => match parse_size(text) {
            Ok(bytes @ 128..=65535) => Ok(Fpdu::Bytes(bytes)),
            _ => Err("expected `mss`, `large` or 128 to 65535 bytes".to_owned()),
        },
    }
}

fn parse_seconds_or_zero(text: &str) -> Result<Duration, String> {
    let digits = text.strip_suffix('s').unwrap_or(text);
    let seconds: f64 = digits.parse().map_err(|_| "expected seconds such as 2 or 0.5".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if duration <= Duration::from_secs(86_400) => Ok(duration),
        _ => Err("expected 0 to 86400 seconds".to_owned()),
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    match parse_seconds_or_zero(text)? {
        Duration::ZERO => Err("expected more than 0 seconds".to_owned()),
        duration => Ok(duration),
    }
}

/// Turns the parser's error into one line of cause and one of remedy.
pub(crate) fn usage_failure(error: &clap::Error, words: &[String]) -> Failure {
    let text = error.render().to_string();
    let mut cause = Vec::new();
    let mut tip = None;
    for line in text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:")) {
        match line.strip_prefix("tip: ") {
            Some(found) => tip = tip.or_else(|| Some(found.to_owned())),
            None if line.is_empty() || line.starts_with("For more information") => {}
            None => cause.push(line.strip_prefix("error: ").unwrap_or(line)),
        }
    }
    let command = words.iter().find(|word| ["perf", "ping", "devinfo"].contains(&word.as_str()));
    let help = match command {
        Some(command) => format!("`rnic {command} --help` shows options and examples"),
        None => "`rnic --help` shows commands and examples".to_owned(),
    };
    let hint = match tip {
        Some(tip) => format!("{tip}; {help}"),
        None => help,
    };
    Failure::usage(cause.join(" ")).hint(hint)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_and_segments() {
        assert_eq!(parse_size("4K"), Ok(4096));
        assert_eq!(parse_size("1m"), Ok(1 << 20));
        assert_eq!(parse_size("0"), Ok(0));
        for bad in ["", "K", "-1", "4G", "1025M", "99999999999"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_fpdu("9000"), Ok(Fpdu::Bytes(9000)));
        assert!(parse_fpdu("64").is_err() && parse_fpdu("64K").is_err() && parse_fpdu("big").is_err());
    }

    #[test]
    fn seconds() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_seconds_or_zero("0s"), Ok(Duration::ZERO));
        for bad in ["0", "-1", "nan", "inf", "x", "1e9"] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
    }

    fn failure(line: &str) -> Failure {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        usage_failure(&Cli::try_parse_from(&words).unwrap_err(), &words)
    }

    #[test]
    fn mistakes_come_with_a_remedy() {
        let misspelt = failure("rnic perf --sise 8");
        assert_eq!(misspelt.exit, crate::error::Exit::Usage);
        assert!(misspelt.cause.contains("'--sise'"), "{misspelt}");
        assert!(
            misspelt.hint.is_some_and(|hint| hint.contains("--size") && hint.contains("rnic perf --help"))
        );
        assert!(failure("rnic ping").cause.contains("HOST[:PORT]"));
        assert!(failure("rnic ping --listen :1 host").cause.contains("--listen"));
        assert!(failure("rnic perf --crc maybe").cause.contains("possible values"));
        assert!(failure("rnic").hint.is_some_and(|hint| hint.contains("rnic --help")));
    }

    #[test]
    fn listen_may_stand_alone() {
        let Command::Ping(args) = Cli::parse_from(["rnic", "ping", "--listen"]).command else { panic!() };
        assert_eq!(args.listen.unwrap().port, Some(7174));
    }
}
