//! `rnic perf`: every byte arrives right, and it notices when one does not.
use crate::common::{Running, run};

const VERBS: [&str; 7] = ["write", "read", "send", "imm", "fetch-add", "cmp-swap", "swap"];

#[test]
fn a_quick_run_is_verified_in_every_row() {
    let rows = run(&["perf", "--quick", "--json"]).expect(0).json();
    // Three verbs of five sizes and four of one, each with CRC and without.
    assert_eq!(rows.len(), (3 * 5 + 4) * 2);
    for row in &rows {
        assert_eq!(row["verified"], true, "{row}");
        assert!(row["bytes_verified"].as_u64().unwrap() > 0, "{row}");
        for measured in ["gbit_s", "tcp_gbit_s", "ratio", "p50_us", "p99_us", "tcp_p50_us", "latency_ratio"] {
            assert!(row[measured].as_f64().unwrap() > 0.0, "{measured}: {row}");
        }
    }
    for verb in VERBS {
        assert!(rows.iter().any(|row| row["verb"] == verb), "{verb}");
    }
}

/// Sizes that are no multiple of anything, each verb, CRC on and off.
fn odd_sizes(options: &[&str]) {
    let args = ["perf", "--size", "1,7,100,4097,70001", "--iters", "100", "--json", "--no-tcp"];
    let rows = run(&[&args, options].concat()).expect(0).json();
    assert_eq!(rows.len(), (3 * 5 + 4) * 2);
    assert!(rows.iter().all(|row| row["verified"] == true), "{rows:?}");
}

#[test]
fn odd_sizes_with_markers() {
    odd_sizes(&["--markers", "on", "--fpdu", "mss"]);
}

#[test]
fn odd_sizes_asleep() {
    odd_sizes(&["--events"]);
}

#[test]
fn odd_sizes_on_three_queue_pairs_in_small_segments() {
    odd_sizes(&["--qps", "3", "--fpdu", "1000", "--events"]);
}

#[test]
fn odd_sizes_one_by_one() {
    odd_sizes(&["--depth", "1"]);
}

#[test]
fn odd_sizes_in_a_deep_queue() {
    odd_sizes(&["--depth", "1000", "--batch", "64", "--region", "1M"]);
}

#[test]
fn messages_without_bytes() {
    let rows = run(&["perf", "--size", "0", "--verb", "write,read,send", "--iters", "100", "--json"])
        .expect(0)
        .json();
    assert_eq!(rows.len(), 6);
}

#[test]
fn one_wrong_byte_is_noticed_for_every_verb() {
    for verb in VERBS {
        for crc in ["on", "off"] {
            let args = ["perf", "--corrupt", "--verb", verb, "--size", "100", "--iters", "70", "--crc", crc];
            let ended = run(&[&args[..], &["--json", "--no-tcp"]].concat()).expect(1);
            let rows = ended.json();
            assert_eq!(rows[0]["verified"], false, "{verb}");
            assert!(rows[0]["bytes_wrong"].as_u64().unwrap() > 0, "{verb}");
            ended.expect_hint("arrived wrong", "WRONG");
        }
    }
}

#[test]
fn a_table_for_people() {
    let ended = run(&["perf", "--verb", "write", "--size", "64", "--iters", "200"]).expect(0);
    let table = &ended.stdout;
    assert!(
        table.contains("Gbit/s") && table.contains("write       64  off") && table.contains("| ok"),
        "{table}"
    );
    assert!(table.contains("arrived right"), "{table}");
    // No line of progress where stderr is no terminal.
    assert_eq!(ended.stderr, "");
}

#[test]
fn two_ends_that_find_each_other() {
    for host in ["127.0.0.1:0", "[::1]:0"] {
        if host.starts_with('[') && std::net::TcpListener::bind("[::1]:0").is_err() {
            eprintln!("no IPv6 here");
            continue;
        }
        let server = Running::listen(&["perf", "--listen", host, "--once"]);
        let args = ["perf", "--verb", "write,send", "--size", "4K", "--iters", "100", "--json"];
        let rows = run(&[&args[..], &["--connect", &server.address()]].concat()).expect(0).json();
        assert!(rows.len() == 4 && rows.iter().all(|row| row["verified"] == true));
        server.finish().expect(0);
    }
}

#[test]
fn a_server_serves_one_run_after_another_until_interrupted() {
    let server = Running::listen(&["perf", "--listen", "127.0.0.1:0"]);
    for _ in 0..2 {
        let args =
            ["perf", "--verb", "read", "--size", "64", "--iters", "10", "--connect", &server.address()];
        run(&args).expect(0);
    }
    // A stranger does not end it.
    run(&["ping", &server.address(), "-C", "1"]).expect(1);
    run(&["perf", "--verb", "send", "--size", "64", "--iters", "10", "--connect", &server.address()])
        .expect(0);
    server.interrupt();
    server.finish().expect(0);
}

#[test]
fn an_interrupted_run_is_no_success() {
    let run = Running::start(&["perf", "--duration", "60", "--verb", "write", "--size", "64"]);
    std::thread::sleep(std::time::Duration::from_millis(500));
    run.interrupt();
    let ended = run.finish().expect(1);
    assert!(ended.stderr.contains("interrupted"), "{ended:?}");
}
