//! `rnic ping`: the protocol of librdmacm's `rping` (docs/rping-protocol.md).
mod client;
mod end;
mod message;
mod server;

use crate::cli::PingArgs;
use crate::error::Result;

/// Does what the command line says.
pub(crate) fn run(args: &PingArgs) -> Result<()> {
    match &args.listen {
        Some(listen) => server::run(args, listen),
        None => client::run(args),
    }
}
