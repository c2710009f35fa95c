//! The tests marked `#[ignore]`: correct and bounded like any other, but too long for every run.

use crate::cmd;
use crate::stage::Stages;
use anyhow::Result;
use std::time::Duration;

pub(super) fn run(stages: &mut Stages, _: Duration) -> Result<()> {
    stages.run("long tests", |_| {
        cmd::run(cmd::cargo().args([
            "test",
            "--release",
            "--workspace",
            "--lib",
            "--bins",
            "--tests",
            "--",
            "--ignored",
        ]))
    });
    Ok(())
}
