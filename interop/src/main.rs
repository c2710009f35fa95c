//! `interop`: runs the interop cases, or a command in a siw guest.

mod peer;

use anyhow::Result;
use clap::{Parser, Subcommand};
use rnic_interop::{Guest, GuestOptions, Siw, cases, namespace, runner::Runner};
use std::{process::ExitCode, time::Duration};

/// Interop tests against Linux's kernel soft-iWARP in a QEMU guest.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:\n  interop run ping/\n  interop guest -- 'rdma link; ibv_devinfo'")]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Print the cases' names.
    List {
        /// Only names that contain this.
        filter: Option<String>,
    },
    /// Run the cases; exit status 1 if one failed. With CI=true in the environment a skipped one has failed.
    Run {
        /// Only cases whose names contain this.
        filter: Option<String>,
        /// One JSON object a line: case, result, seconds, why.
        #[arg(long)]
        json: bool,
    },
    /// Be a client or server over rnic-verbs, as siwprobe is in the guest; the cases use it.
    Peer(peer::PeerArgs),
    /// Boot a guest, run a command in it, and exit with its status.
    Guest {
        /// With siw as Linux has it.
        #[arg(long)]
        stock: bool,
        /// A parameter of siw (siw-guest/README.md).
        #[arg(long = "param", value_name = "NAME=VALUE")]
        params: Vec<String>,
        /// Longest that the command may take, in seconds.
        #[arg(long, default_value_t = 120)]
        time: u64,
        /// The command; its words are joined and given to sh.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

fn main() -> Result<ExitCode> {
    match Cli::parse().command {
        Task::List { filter } => {
            for case in cases::matching(filter.as_deref()) {
                println!("{}", case.name);
            }
            Ok(ExitCode::SUCCESS)
        }
        Task::Run { filter, json } => {
            namespace::enter()?;
            let strict = std::env::var("CI").is_ok_and(|v| v == "true");
            let cases = cases::matching(filter.as_deref());
            anyhow::ensure!(!cases.is_empty(), "no case has {:?} in its name", filter.unwrap_or_default());
            let totals = Runner::new(json, strict).run(cases);
            Ok(if totals.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Task::Peer(args) => Ok(if peer::run(&args)? { ExitCode::SUCCESS } else { ExitCode::FAILURE }),
        Task::Guest { stock, params, time, command } => {
            let siw = if stock { Siw::Stock } else { Siw::Repaired };
            let guest = Guest::boot(&GuestOptions { siw, params, ..GuestOptions::default() })?;
            let output = guest.run(&command.join(" "), Duration::from_secs(time))?;
            print!("{}", output.text);
            Ok(ExitCode::from(u8::try_from(output.status).unwrap_or(255)))
        }
    }
}
