//! SIGINT and SIGTERM: the first asks the command to end in order, the second ends it at once.
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::error::{Failure, Result};

/// Longest that a wait goes on without a look at [`interrupted`].
pub(crate) const LOOK: Duration = Duration::from_millis(200);
/// What shells report of a program that SIGINT ended.
const KILLED_BY_SIGINT: i32 = 130;

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Starts to listen for the two signals.
pub(crate) fn install() -> io::Result<()> {
    let flag = FLAG.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal sets the flag after the look at it.
        signal_hook::flag::register_conditional_shutdown(signal, KILLED_BY_SIGINT, Arc::clone(flag))?;
        signal_hook::flag::register(signal, Arc::clone(flag))?;
    }
    Ok(())
}

/// True once one of them came.
pub(crate) fn interrupted() -> bool {
    FLAG.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// [`Failure::interrupted`] once one of them came.
pub(crate) fn check() -> Result<()> {
    if interrupted() { Err(Failure::interrupted()) } else { Ok(()) }
}
