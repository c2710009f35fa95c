//! Interop tests: the project's programs against Linux's kernel soft-iWARP (`siw`) in a QEMU guest.
//!
//! One [`Guest`] is booted and serves many cases: an agent in it runs commands over a control channel ([`Guest::run`],
//! [`Guest::spawn`]). A [`case::Case`] is a function that drives both ends; [`runner`] runs the cases, boots guests as
//! they ask for them, and reports. What a machine lacks is a named skip ([`need`]), or a failure where `CI=true`.
//!
//! Everything is bounded in time and ends only processes that it started.

pub mod case;
pub mod cases;
pub mod control;
pub mod guest;
pub mod namespace;
pub mod need;
pub mod program;
pub mod runner;
pub mod scratch;
pub mod tshark;

pub use guest::{Guest, GuestOptions, JobId, Net, Siw};
pub use program::{Output, Program};
