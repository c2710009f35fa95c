//! The command line: what is wrong is said, with a remedy; what is asked is answered.
use crate::common::run;

#[test]
fn mistakes_end_with_2_and_a_hint() {
    run(&["perf", "--sise", "8"]).expect(2).expect_hint("'--sise'", "--size");
    run(&["perf", "--verb", "teleport"]).expect(2).expect_hint("teleport", "rnic perf --help");
    run(&["perf", "--size", "5G"]).expect(2).expect_hint("5G", "rnic perf --help");
    run(&["perf", "--fpdu", "12"]).expect(2).expect_hint("128 to 65535", "rnic perf --help");
    run(&["perf", "--listen", ":0", "--verb", "write"]).expect(2).expect_hint("--verb", "rnic perf --help");
    run(&["perf", "--connect", ":7175"]).expect(2).expect_hint("names no host", "HOST:PORT");
    run(&["ping"]).expect(2).expect_hint("HOST[:PORT]", "rnic ping --help");
    run(&["ping", "-S", "22", "host"]).expect(2).expect_hint("22", "rnic ping --help");
    run(&["nonsense"]).expect(2).expect_hint("nonsense", "rnic --help");
    run(&[]).expect(2).expect_hint("subcommand", "rnic --help");
    run(&["man", "nonsense"]).expect(2).expect_hint("nonsense", "rnic --help");
}

#[test]
fn nobody_listening_ends_with_1_and_a_hint() {
    // A port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    run(&["ping", &free, "-C", "1"]).expect(1).expect_hint(&free, "start");
    run(&["perf", "--connect", &free]).expect(1).expect_hint(&free, "start the other end first");
    run(&["ping", "no-such-host.invalid", "-C", "1"]).expect(1).expect_hint("no-such-host", "spelling");
    run(&["perf", "--listen", "192.0.2.1:0"]).expect(1).expect_hint("192.0.2.1", "ip address");
}

#[test]
fn help_has_examples_and_exit_codes() {
    for args in [&["--help"][..], &["perf", "--help"], &["ping", "--help"]] {
        let help = run(args).expect(0).stdout;
        assert!(help.contains("Examples:") && help.contains("Exit codes:"), "{help}");
    }
    run(&["--version"]).expect(0);
}

#[test]
fn manuals_and_completions() {
    for args in [&["man"][..], &["man", "perf"], &["man", "ping"], &["man", "devinfo"]] {
        let page = run(args).expect(0).stdout;
        assert!(page.contains(".TH") && page.contains(".SH DESCRIPTION"), "{page}");
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(run(&["completions", shell]).expect(0).stdout.contains("--connect"), "{shell}");
    }
}

#[test]
fn devinfo_tells_limits() {
    let info = run(&["devinfo", "--json"]).expect(0).json();
    assert!(info[0]["max_sge"].as_u64().unwrap() >= 16, "{info:?}");
    let short = run(&["devinfo"]).expect(0).stdout;
    let long = run(&["devinfo", "-v"]).expect(0).stdout;
    assert!(short.contains("max_qp ") && long.lines().count() > short.lines().count());
}
