//! The examples do what they say.

use std::process::Command;

fn run(name: &str) -> String {
    // A full test run has built it beside this test; one of this file alone has not.
    let dir = std::env::current_exe().unwrap();
    let path = dir.parent().and_then(|p| p.parent()).unwrap().join("examples").join(name);
    if !path.exists() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "-q", "-p", "rnic-verbs", "--example", name]);
        assert!(cargo.status().unwrap().success(), "cargo cannot build {name}");
    }
    let out = Command::new(&path).output().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn hello_is_sent_and_received() {
    assert_eq!(run("hello"), "sent: success\nreceived: success: hello over RDMA\n");
}

#[test]
fn keys_are_found_by_reads_alone() {
    let want = "get 3: Some(9)\nget 7: Some(49)\nget 20: Some(400)\nget 21: None\n";
    assert_eq!(run("kv_get"), want);
}

#[test]
fn tasks_echo() {
    let out = run("async_server");
    for n in 0..4 {
        assert!(out.contains(&format!("echo: task {n}\n")), "{out}");
    }
    assert_eq!(out.matches("served: 1 messages").count(), 4, "{out}");
}
