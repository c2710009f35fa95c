//! `rnic ping`, both ends.
use crate::common::{Ended, Running, run};

fn session(server: &[&str], client: &[&str]) -> (Ended, Ended) {
    let server = Running::listen(&[&["ping", "--listen", "127.0.0.1:0", "--once"], server].concat());
    let client = run(&[&["ping", &server.address()], client].concat());
    (server.finish(), client)
}

#[test]
fn every_ping_comes_back_right() {
    for options in [
        &["-S", "64"][..],
        &["-S", "23"],
        &["-S", "65535"],
        &["--crc", "on"],
        &["--mpa", "1"],
        &["--rtr", "write"],
        &["--rtr", "read"],
    ] {
        let (server, client) = session(&[], &[&["-C", "25", "--json"], options].concat());
        server.expect(0);
        let lines = client.expect(0).json();
        let (summary, pings) = lines.split_last().unwrap();
        assert_eq!(pings.len(), 25, "{options:?}");
        assert!(pings.iter().all(|ping| ping["verified"] == true), "{options:?}");
        assert_eq!((&summary["verified"], &summary["wrong"]), (&25.into(), &0.into()));
    }
}

#[test]
fn both_ends_show_the_data() {
    let (server, client) = session(&["-v"], &["-C", "2", "-v", "-S", "30"]);
    let server = server.expect(0).stdout;
    let client = client.expect(0).stdout;
    for text in ["ping data: rdma-ping-0: ABCDEFGHIJKLMNOP\n", "ping data: rdma-ping-1: BCDEFGHIJKLMNOPQ\n"] {
        assert!(client.contains(text), "{client}");
        assert!(server.contains(&format!("server {text}")), "{server}");
    }
    assert!(client.contains("2 pings came back, 2 verified, 0 wrong"), "{client}");
    assert!(client.contains("min/median/p99/max"), "{client}");
}

#[test]
fn a_server_serves_clients_at_the_same_time_until_interrupted() {
    let server = Running::listen(&["ping", "--listen", "127.0.0.1:0"]);
    let address = server.address();
    let forever = Running::start(&["ping", &address, "-i", "0.01"]);
    run(&["ping", &address, "-C", "5", "-q"]).expect(0);
    run(&["ping", &address, "-C", "5", "-q"]).expect(0);
    forever.interrupt();
    let summary = forever.finish().expect(0).stdout;
    assert!(summary.contains(" 0 wrong"), "{summary}");
    server.interrupt();
    server.finish().expect(0);
}

#[test]
fn a_peer_that_is_no_rping_is_named() {
    let server = Running::listen(&["ping", "--listen", "127.0.0.1:0"]);
    run(&["perf", "--connect", &server.address()])
        .expect(1)
        .expect_hint("no `rnic perf`", "rnic perf --listen");
}
