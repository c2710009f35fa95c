//! What the tests need beyond a Rust toolchain, and bringing it.

use crate::apt::{self, Need};
use crate::cmd;
use anyhow::Result;

/// Programs that the interop suite runs, and the Debian packages that have them.
pub(super) const PEERS: &[Need] = &[
    // decodes our captures
    Need { program: "tshark", package: "tshark" },
    // the guest with the kernel's siw: emulator, a static shell, and what its module and helpers are built with
    Need { program: "qemu-system-x86_64", package: "qemu-system-x86" },
    Need { program: "busybox", package: "busybox-static" },
    Need { program: "gcc", package: "gcc" },
    Need { program: "gcc-12", package: "gcc-12" },
    Need { program: "make", package: "make" },
    Need { program: "objcopy", package: "binutils" },
    Need { program: "xz", package: "xz-utils" },
    Need { program: "dpkg-source", package: "dpkg-dev" },
    Need { program: "/usr/include/infiniband/verbs.h", package: "libibverbs-dev" },
    Need { program: "/usr/include/rdma/rdma_cma.h", package: "librdmacm-dev" },
    Need { program: "/usr/include/stdio.h", package: "libc6-dev" },
    // what runs inside the guest
    Need { program: "/etc/libibverbs.d/siw.driver", package: "ibverbs-providers" },
    Need { program: "rping", package: "rdmacm-utils" },
    Need { program: "ibv_devinfo", package: "ibverbs-utils" },
    Need { program: "ib_write_bw", package: "perftest" },
    Need { program: "qperf", package: "qperf" },
    Need { program: "iperf3", package: "iperf3" },
    Need { program: "tcpdump", package: "tcpdump" },
    Need { program: "ip", package: "iproute2" },
    Need { program: "python3", package: "python3" },
];

/// The command that brings cargo-nextest.
pub(super) const NEXTEST: &str =
    "cargo install --locked cargo-nextest --no-default-features --features default-no-update";

/// Brings everything; what is here already costs nothing.
pub(super) fn everything() -> Result<()> {
    apt::install(&apt::missing(PEERS))?;
    if !nextest_present() {
        let mut c = cmd::cargo();
        c.args(NEXTEST.split(' ').skip(1)).arg("--quiet");
        // It is run a few times only: less optimisation and no LTO halve the time to build it.
        c.env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
        cmd::run(&mut c)?;
    }
    Ok(())
}

/// Whether `cargo nextest` can be called.
pub(super) fn nextest_present() -> bool {
    cmd::output(cmd::cargo().args(["nextest", "--version"])).is_ok()
}
