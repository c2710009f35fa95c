//! fork and exec: a child has no part in what its parent opened, and does the parent no harm.
#![expect(unsafe_code, reason = "fork and waitpid have no safe wrapper")]

mod common;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::child::{self, say};
use common::{PATIENCE, Side, pair, side};
use rnic_verbs::{
    Access, Arm, Completion, CompletionChannel, ConnParams, Device, DeviceConfig, Error, ListenConfig,
    Listener, MemoryRegion, QpInit, QpState, RecvWr, SendWr, SrqAttr, Status, WindowKind, connect,
};

/// Runs `child` in a forked process. Its answer is the exit status; a child that hangs is killed.
fn fork(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child uses allocation and this crate only, and leaves by exit.
    match unsafe { libc::fork() } {
        0 => std::process::exit(child()),
        pid => wait_for(pid),
    }
}

fn wait_for(pid: libc::pid_t) -> i32 {
    assert!(pid > 0);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut status = 0;
        // SAFETY: `status` is a valid place; the pid is our child's.
        match unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } {
            0 if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            0 => {
                // SAFETY: our own child.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                panic!("the child hangs");
            }
            done => {
                assert!(done == pid && libc::WIFEXITED(status), "child status {status:x}");
                return libc::WEXITSTATUS(status);
            }
        }
    }
}

/// Everything that one can have of a device.
struct Estate {
    a: Side,
    b: Side,
    mr: MemoryRegion,
    target: MemoryRegion,
    listener: Listener,
    channel: CompletionChannel,
}

impl Estate {
    fn new() -> Self {
        let (a, b) = pair();
        let (mr, target) = (a.mr(64), b.mr(64));
        let any = "127.0.0.1:0".parse().unwrap();
        let listener = Listener::bind(&a.device, any, ListenConfig::default()).unwrap();
        let channel = a.device.create_channel().unwrap();
        Self { a, b, mr, target, listener, channel }
    }

    /// The engine still works: a Send, a Read, an event on the channel, a new connection.
    fn check(&self) {
        let Self { a, b, mr, target, .. } = self;
        b.qp.post_recv(&RecvWr::new(1, &[target.sge(0, 8)])).unwrap();
        a.qp.post_send(&SendWr::send(2, &[mr.sge(0, 8)])).unwrap();
        assert_eq!((a.completion().status, b.completion().status), (Status::Success, Status::Success));
        a.qp.post_send(&SendWr::read(3, &[mr.sge(0, 64)], target.remote())).unwrap();
        assert_eq!(a.completion().status, Status::Success);

        let cq = a.device.create_cq(8, Some(&self.channel)).unwrap();
        let server = a.pd.create_qp(&QpInit::new(&cq)).unwrap();
        let client = side(DeviceConfig::default(), |i| i);
        server.post_recv(&RecvWr::new(4, &[])).unwrap();
        cq.arm(Arm::Next).unwrap();
        std::thread::scope(|s| {
            s.spawn(|| {
                let request = self.listener.accept(Some(PATIENCE)).unwrap();
                request.accept(&server, ConnParams::default()).unwrap();
            });
            connect(&client.qp, self.listener.local_addr().unwrap(), ConnParams::default()).unwrap();
        });
        client.qp.post_send(&SendWr::send(5, &[])).unwrap();
        let event = self.channel.wait(Some(PATIENCE)).unwrap().expect("an event");
        assert_eq!(event.cq().poll(&mut [Completion::default()]).unwrap(), 1);
    }

    /// In the child: the number of the first call that is not refused as it should be, or 0.
    fn is_refused(&self) -> i32 {
        let Self { a, mr, listener, channel, .. } = self;
        let buf = &mut [Completion::default()];
        let addr = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        let soon = Some(Duration::from_millis(1));
        let srq = a.pd.create_srq(SrqAttr { max_wr: 1, limit: 0 }).map(drop);
        let calls = [
            a.device.alloc_pd().map(drop),
            a.device.create_cq(1, None).map(drop),
            a.device.create_channel().map(drop),
            a.device.async_events().wait(None).map(drop),
            a.pd.register(8, Access::LOCAL_WRITE).map(drop),
            a.pd.alloc_window(WindowKind::Type1).map(drop),
            a.pd.alloc_fast_region(8).map(drop),
            srq,
            a.pd.create_qp(&QpInit::new(&a.cq)).map(drop),
            a.cq.poll(buf).map(drop),
            a.cq.wait(buf, None).map(drop),
            a.cq.arm(Arm::Next).map(drop),
            a.cq.resize(2000).map(drop),
            channel.wait(None).map(drop),
            a.qp.post_send(&SendWr::send(1, &[mr.sge(0, 8)])),
            a.qp.post_recv(&RecvWr::new(1, &[mr.sge(0, 8)])),
            a.qp.modify(QpState::Error),
            connect(&a.qp, addr, ConnParams::default()).map(drop),
            listener.accept(soon).map(drop),
            Listener::bind(&a.device, addr, ListenConfig::default()).map(drop),
        ];
        let wrong = calls.iter().position(|c| !matches!(c, Err(Error::Forked)));
        // These have no error to give: they do nothing, and do not block.
        a.qp.disconnect();
        let silent = a.device.async_events().try_next().is_none()
            && channel.try_get().is_none()
            && listener.try_accept().is_none()
            && a.qp.wait_disconnected(None).is_none()
            && a.qp.query().peer.is_none();
        wrong.map_or(if silent { 0 } else { 99 }, |n| n as i32 + 1)
    }
}

#[test]
fn a_child_is_refused_and_its_end_does_not_disturb_the_parent() {
    let estate = Estate::new();
    estate.check();
    for drops in [false, true] {
        let status = fork(|| {
            let refused = estate.is_refused();
            if drops {
                // SAFETY: the child's own copy, which it does not use again: it exits.
                drop(unsafe { std::ptr::read(&raw const estate) });
            }
            refused
        });
        assert_eq!(status, 0, "call number, drops {drops}");
        estate.check();
    }
}

/// Locks may be held and memory be entered at the moment of the fork, by threads that the child lacks.
#[test]
fn children_forked_in_the_middle_of_traffic_get_away() {
    let estate = Estate::new();
    let stop = AtomicBool::new(false);
    let (big, far) = (estate.a.mr(1 << 20), estate.b.mr(1 << 20));
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let sge = [big.sge(0, 1 << 20)];
                estate.a.qp.post_send(&SendWr::write(1, &sge, far.remote()).unsignaled()).unwrap();
                estate.a.qp.post_send(&SendWr::read(2, &sge, far.remote())).unwrap();
                assert_eq!(estate.a.completion().status, Status::Success);
            }
        });
        for _ in 0..40 {
            let status = fork(|| {
                let refused = estate.is_refused();
                // SAFETY: as above.
                drop(unsafe { std::ptr::read(&raw const estate) });
                // SAFETY: as above.
                drop(unsafe { std::ptr::read(&raw const big) });
                refused
            });
            if status != 0 {
                stop.store(true, Ordering::Relaxed);
            }
            assert_eq!(status, 0);
        }
        stop.store(true, Ordering::Relaxed);
    });
    estate.check();
}

/// A device of its own is the child's good right.
#[test]
fn a_child_may_open_a_device_of_its_own() {
    let parents = pair();
    let status = fork(|| {
        let (a, b) = pair();
        let mr = a.mr(8);
        b.qp.post_recv(&RecvWr::new(1, &[])).unwrap();
        a.qp.post_send(&SendWr::send(1, &[mr.sge(0, 0)])).unwrap();
        i32::from(a.completion().status != Status::Success || b.completion().status != Status::Success)
    });
    assert_eq!(status, 0);
    drop(parents);
}

/// A child that lives on holds the sockets, too: the peer sees the parent's disconnect all the same.
#[test]
fn a_living_child_does_not_keep_the_parents_connection_open() {
    let (a, b) = pair();
    let (reader, writer) = std::io::pipe().unwrap();
    // SAFETY: the child only sleeps until the parent lets go of the pipe, and leaves without cleaning up.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(writer);
        let _ = std::io::Read::read(&mut &reader, &mut [0]);
        // SAFETY: nothing runs behind it.
        unsafe { libc::_exit(0) };
    }
    drop(reader);
    drop(a);
    assert!(b.qp.wait_disconnected(Some(PATIENCE)).is_some(), "the peer sees no end");
    drop(writer);
    assert_eq!(wait_for(pid), 0);
}

fn descriptors() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let mut fds: Vec<i32> =
        entries.map(|e| e.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    fds.sort_unstable();
    fds
}

#[test]
#[ignore = "a child process of other tests"]
fn child() {
    match child::role() {
        Some((role, _)) if role == "descriptors" => descriptors_of_a_busy_process(),
        Some((role, _)) if role == "signals" => signals_of_shard_threads(),
        _ => {}
    }
}

/// All that a program can open; every descriptor of it is out of the program's way and closed on exec.
fn descriptors_of_a_busy_process() {
    let before = descriptors();
    let estate = Estate::new();
    estate.check();
    let _ = estate.channel.as_fd();
    let new: Vec<_> = descriptors().into_iter().filter(|fd| !before.contains(fd)).collect();
    say(&format!("{} low", new.iter().filter(|fd| **fd < 1024).count()));
    let listed = std::process::Command::new("ls").arg("/proc/self/fd").output().unwrap().stdout;
    let inherited: Vec<i32> =
        String::from_utf8(listed).unwrap().lines().map(|l| l.parse().unwrap()).collect();
    say(&format!("{} inherited", inherited.iter().filter(|fd| new.contains(fd)).count()));
    say(&format!("{} opened", new.len()));
}

#[test]
fn descriptors_are_high_and_closed_on_exec() {
    let mut child = child::play("descriptors", "");
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let low = child.hear().unwrap();
    if limit.is_none_or(|n| n > 2048) {
        assert_eq!(low, "0 low");
    }
    assert_eq!(child.hear().unwrap(), "0 inherited");
    let opened = child.hear().unwrap();
    assert!(opened.split(' ').next().unwrap().parse::<usize>().unwrap() >= 10, "{opened}");
    child.succeed("descriptors");
}

/// `SigBlk` of a thread.
fn mask(thread: &std::path::Path) -> u64 {
    let status = std::fs::read_to_string(thread.join("status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("SigBlk:")).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

/// Those of the shards' threads.
fn shard_masks() -> Vec<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|t| t.unwrap().path());
    let shard = |t: &std::path::PathBuf| std::fs::read_to_string(t.join("comm")).unwrap() == "rnic-shard\n";
    tasks.filter(shard).map(|t| mask(&t)).collect()
}

fn signals_of_shard_threads() {
    let own = std::path::Path::new("/proc/thread-self");
    let before = mask(own);
    let mut config = DeviceConfig::default();
    config.shards = 3;
    let device = Device::open(config).unwrap();
    let any = "127.0.0.1:0".parse().unwrap();
    let _listeners: Vec<_> =
        (0..3).map(|_| Listener::bind(&device, any, ListenConfig::default()).unwrap()).collect();
    let deadline = Instant::now() + PATIENCE;
    let mut shards = shard_masks();
    // A thread has its name a moment after it was started.
    while shards.len() < 3 && Instant::now() < deadline {
        shards = shard_masks();
    }
    // All but KILL, STOP and the two that the C library keeps for itself.
    let all = !(1u64 << 8 | 1 << 18 | 1 << 31 | 1 << 32);
    say(&format!("{} {}", shards.len(), shards.iter().all(|m| m & all == all)));
    say(&format!("{}", mask(own) == before));
}

#[test]
fn shard_threads_block_all_signals_and_nobody_elses_mask_changes() {
    let mut child = child::play("signals", "");
    assert_eq!(child.hear().unwrap(), "3 true");
    assert_eq!(child.hear().unwrap(), "true");
    child.succeed("signals");
}
