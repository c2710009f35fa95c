//! The connection manager: addresses, backlog, rejection, time-outs, old peers, converted sockets.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rnic_verbs::iwarp::mpa::startup::{CrcPolicy, Policy, Revision, StartupError};
use rnic_verbs::{
    ConnParams, ConnPolicy, DeviceConfig, End, Error, ListenConfig, Listener, QpInit, QpState, QueuePair,
    RecvWr, Role, SendWr, Status, connect, convert,
};

use crate::common::{PATIENCE, Side, join_qps, pattern, side, wait_for};

fn fresh() -> Side {
    side(DeviceConfig::default(), |i| i)
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn listen(side: &Side, addr: SocketAddr) -> (Listener, SocketAddr) {
    let listener = Listener::bind(&side.device, addr, ListenConfig::default()).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// A message from `a` to `b`, and one back.
fn works(a: &Side, b: &Side) {
    for (from, to, n) in [(a, b, 1), (b, a, 2)] {
        let (src, dst) = (from.mr(20_000), to.mr(20_000));
        src.write_at(0, &pattern(20_000, n)).unwrap();
        to.qp.post_recv(&RecvWr::new(n, &[dst.sge(0, 20_000)])).unwrap();
        from.qp.post_send(&SendWr::send(n, &[src.sge(0, 20_000)])).unwrap();
        let c = to.completion();
        assert_eq!((c.wr_id, c.status, c.len), (n, Status::Success, 20_000));
        assert_eq!(from.completion().status, Status::Success);
        assert!(Side::bytes(&dst) == pattern(20_000, n));
    }
}

/// Connects over a listener and returns what `b` and `a` learnt of each other's address.
fn over(listener: &Listener, to: SocketAddr, a: &Side, b: &Side) -> (SocketAddr, SocketAddr) {
    std::thread::scope(|s| {
        let accepted = s.spawn(|| {
            let request = listener.accept(Some(PATIENCE)).unwrap();
            let (peer, local) = (request.peer_addr(), request.local_addr());
            let e = request.accept(&b.qp, ConnParams::default()).unwrap();
            assert_eq!((e.peer, e.local), (peer, local));
            e
        });
        let dialled = connect(&a.qp, to, ConnParams::default()).unwrap();
        let accepted = accepted.join().unwrap();
        assert_eq!(dialled.peer, to);
        assert_eq!(dialled.local.port(), accepted.peer.port());
        (accepted.local, accepted.peer)
    })
}

#[test]
fn ipv4_ipv6_and_wildcards() {
    let v4 = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let v6 = |port| SocketAddr::from((Ipv6Addr::LOCALHOST, port));
    let wild4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let wild6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    for (bind, dial) in [(v4(0), v4(0)), (v6(0), v6(0)), (wild4, v4(0)), (wild6, v6(0)), (wild6, v4(0))] {
        let (a, b) = (fresh(), fresh());
        let (listener, addr) = listen(&b, bind);
        assert_eq!(addr.ip(), bind.ip());
        let dial = SocketAddr::new(dial.ip(), addr.port());
        let (local, peer) = over(&listener, dial, &a, &b);
        assert_eq!((local.ip().to_canonical(), peer.ip().to_canonical()), (dial.ip(), dial.ip()), "{bind}");
        works(&a, &b);
    }
}

#[test]
fn one_address_is_listened_on_once_and_free_afterwards() {
    let b = fresh();
    let (listener, addr) = listen(&b, loopback());
    let again = Listener::bind(&b.device, addr, ListenConfig::default());
    assert!(matches!(again, Err(Error::Listen { addr: a, .. }) if a == addr), "{again:?}");
    drop(listener);
    Listener::bind(&b.device, addr, ListenConfig::default()).unwrap();
}

#[test]
fn a_device_connects_to_itself_and_from_a_chosen_port() {
    let a = fresh();
    let b = Side {
        device: a.device.clone(),
        pd: a.pd.clone(),
        cq: a.device.create_cq(64, None).unwrap(),
        qp: a.qp.clone(),
    };
    let b = Side { qp: b.pd.create_qp(&QpInit::new(&b.cq)).unwrap(), ..b };
    let (listener, addr) = listen(&b, loopback());
    let mut params = ConnParams::default();
    params.local = Some("127.0.0.1:0".parse().unwrap());
    std::thread::scope(|s| {
        s.spawn(|| listener.accept(Some(PATIENCE)).unwrap().accept(&b.qp, ConnParams::default()).unwrap());
        connect(&a.qp, addr, params).unwrap();
    });
    works(&a, &b);
}

#[test]
fn private_data_goes_both_ways_up_to_its_limit() {
    for (revision, max) in [(Revision::V1, 512), (Revision::V2, 508)] {
        let mut policy = ConnPolicy::default();
        policy.mpa = Policy { revision, fallback: false, ..Policy::default() };
        let params = |len, seed| {
            let mut params = ConnParams::with_policy(policy.clone());
            params.private_data = pattern(len, seed);
            params
        };
        for len in [0, 1, max] {
            let (a, b) = (fresh(), fresh());
            let (listener, addr) = listen(&b, loopback());
            std::thread::scope(|s| {
                s.spawn(|| {
                    let request = listener.accept(Some(PATIENCE)).unwrap();
                    assert!(request.private_data() == pattern(len, 1));
                    let e = request.accept(&b.qp, params(len, 2)).unwrap();
                    assert!(e.private_data == pattern(len, 1));
                });
                let e = connect(&a.qp, addr, params(len, 1)).unwrap();
                assert!(e.private_data == pattern(len, 2));
                assert_eq!(e.negotiated.revision, revision);
            });
            works(&a, &b);
        }
        // One byte more goes nowhere: not from the initiator, not from the responder.
        let (a, b) = (fresh(), fresh());
        let (listener, addr) = listen(&b, loopback());
        let refused = connect(&a.qp, addr, params(max + 1, 1));
        let is_long = |e: &Error| matches!(e, Error::Startup(StartupError::PrivateDataTooLong { len, max: m }) if (*len, *m) == (max + 1, max));
        assert!(refused.as_ref().is_err_and(is_long), "{refused:?}");
        assert_eq!(a.qp.state(), QpState::Init);
        for accepts in [true, false] {
            std::thread::scope(|s| {
                s.spawn(|| {
                    let request = listener.accept(Some(PATIENCE)).unwrap();
                    let refused = if accepts {
                        request.accept(&b.qp, params(max + 1, 1)).map(drop)
                    } else {
                        request.reject(&pattern(max + 1, 1))
                    };
                    assert!(refused.as_ref().is_err_and(is_long), "{refused:?}");
                });
                // And the peer is not left waiting.
                let rejected = connect(&a.qp, addr, params(0, 0));
                assert!(matches!(rejected, Err(Error::Rejected { .. })), "{rejected:?}");
            });
            assert_eq!((a.qp.state(), b.qp.state()), (QpState::Init, QpState::Init));
        }
    }
}

#[test]
fn a_reject_says_why_and_the_queue_pair_may_try_again() {
    let (a, b) = (fresh(), fresh());
    let (listener, addr) = listen(&b, loopback());
    for data in [&b""[..], b"come back later"] {
        std::thread::scope(|s| {
            s.spawn(|| listener.accept(Some(PATIENCE)).unwrap().reject(data).unwrap());
            match connect(&a.qp, addr, ConnParams::default()) {
                Err(Error::Rejected { peer, private_data }) => {
                    assert_eq!((peer, &*private_data), (addr, data))
                }
                other => panic!("{other:?}"),
            }
        });
    }
    over(&listener, addr, &a, &b);
    works(&a, &b);
    assert_eq!(a.device.counters().connect_errors, 2);
}

/// Requests beyond the backlog are turned away at once, those within it are kept.
#[test]
fn a_full_backlog_turns_requests_away() {
    let (a, b) = (fresh(), fresh());
    let mut config = ListenConfig::default();
    config.backlog = 2;
    let listener = Listener::bind(&b.device, loopback(), config).unwrap();
    let addr = listener.local_addr().unwrap();
    let dial = || {
        let qp = a.pd.create_qp(&QpInit::new(&a.cq)).unwrap();
        let result = connect(&qp, addr, ConnParams::default());
        (qp, result)
    };
    std::thread::scope(|s| {
        let all: Vec<_> = (0..5).map(|_| s.spawn(dial)).collect();
        // Three are told at once, in whichever order they came; two go on waiting.
        wait_for(|| all.iter().filter(|t| t.is_finished()).count() == 3);
        let served: Vec<_> = (0..2)
            .map(|_| {
                let qp = b.pd.create_qp(&QpInit::new(&b.cq)).unwrap();
                listener.accept(Some(PATIENCE)).unwrap().accept(&qp, ConnParams::default()).unwrap();
                qp
            })
            .collect();
        assert!(listener.try_accept().is_none());
        let results: Vec<_> = all.into_iter().map(|t| t.join().unwrap()).collect();
        let accepted = results.iter().filter(|(_, r)| r.is_ok()).count();
        let rejected = results.iter().filter(|(_, r)| matches!(r, Err(Error::Rejected { .. }))).count();
        assert_eq!((accepted, rejected, served.len()), (2, 3, 2));
    });
    // There is room again.
    over(&listener, addr, &a, &b);
    works(&a, &b);
}

#[test]
fn a_dropped_listener_and_a_dropped_request_reject() {
    let (a, b) = (fresh(), fresh());
    let (listener, addr) = listen(&b, loopback());
    let rejected = |r| matches!(r, Err(Error::Rejected { private_data, .. }) if private_data.is_empty());
    std::thread::scope(|s| {
        s.spawn(|| drop(listener.accept(Some(PATIENCE)).unwrap()));
        assert!(rejected(connect(&a.qp, addr, ConnParams::default())));
    });
    let waiting = std::thread::scope(|s| {
        let waiting = s.spawn(|| connect(&a.qp, addr, ConnParams::default()));
        wait_for(|| is_readable(&listener));
        drop(listener);
        waiting.join().unwrap()
    });
    assert!(rejected(waiting));
    // Nobody listens there any more.
    let refused = connect(&a.qp, addr, ConnParams::default());
    assert!(matches!(refused, Err(Error::Connect { .. })), "{refused:?}");
}

fn is_readable(fd: impl std::os::fd::AsFd) -> bool {
    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap() > 0
}

#[test]
fn a_listener_can_be_polled_and_does_not_wait_for_ever() {
    let (a, b) = (fresh(), fresh());
    let (listener, addr) = listen(&b, loopback());
    assert!(!is_readable(&listener) && listener.try_accept().is_none());
    let nothing = listener.accept(Some(Duration::from_millis(10)));
    assert!(matches!(nothing, Err(Error::Timeout { .. })), "{nothing:?}");
    std::thread::scope(|s| {
        s.spawn(|| connect(&a.qp, addr, ConnParams::default()).unwrap());
        wait_for(|| is_readable(&listener));
        let request = listener.try_accept().unwrap();
        assert!(!is_readable(&listener));
        request.accept(&b.qp, ConnParams::default()).unwrap();
    });
}

/// Who connects and says nothing, or only half of it, or something else, is dropped and holds nobody up.
#[test]
fn clients_without_a_request_are_let_go() {
    let (a, b) = (fresh(), fresh());
    let mut config = ListenConfig::default();
    config.policy.request_timeout = Duration::from_millis(300);
    let listener = Listener::bind(&b.device, loopback(), config).unwrap();
    let addr = listener.local_addr().unwrap();
    let say = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    };
    let silent = [say(b""), say(b"MPA ID Req"), say(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n")];
    over(&listener, addr, &a, &b);
    works(&a, &b);
    for mut stream in silent {
        let mut byte = [0];
        assert!(matches!(stream.read(&mut byte), Ok(0) | Err(_)), "still connected");
    }
    assert!(listener.try_accept().is_none());
    assert_eq!(b.device.counters().connect_errors, 3);
}

#[test]
fn a_peer_that_does_not_answer_is_given_up() {
    let a = fresh();
    let mut params = ConnParams::default();
    params.policy.connect_timeout = Duration::from_millis(200);
    // TCP accepts, nobody replies.
    let silent = TcpListener::bind(loopback()).unwrap();
    let result = connect(&a.qp, silent.local_addr().unwrap(), params.clone());
    assert!(matches!(result, Err(Error::Timeout { what: "MPA Reply", .. })), "{result:?}");
    let mut gone = silent.accept().unwrap().0;
    let mut request = Vec::new();
    gone.read_to_end(&mut request).unwrap();
    assert!(request.starts_with(b"MPA ID Req Frame"));
    // TCP does not accept: the queue of the listener is full.
    let (full, addr) = full_listener();
    let result = connect(&a.qp, addr, params);
    assert!(matches!(result, Err(Error::Timeout { what: "TCP connect", .. })), "{result:?}");
    drop(full);
    assert_eq!(a.qp.state(), QpState::Init);
}

/// A listener that takes no more connections, with those that fill it.
fn full_listener() -> ((OwnedFd, Vec<TcpStream>), SocketAddr) {
    use rustix::net::{AddressFamily, SocketType};
    let fd = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&fd, &loopback()).unwrap();
    rustix::net::listen(&fd, 0).unwrap();
    let addr = SocketAddr::try_from(rustix::net::getsockname(&fd).unwrap()).unwrap();
    let fill = std::iter::from_fn(|| TcpStream::connect_timeout(&addr, Duration::from_millis(100)).ok());
    let fill: Vec<_> = fill.take(64).collect();
    assert!(fill.len() < 64, "the listener never fills");
    ((fd, fill), addr)
}

#[test]
fn what_answers_but_not_in_mpa_is_named() {
    for (reply, expected) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], Some(StartupError::Key)),
        (b"MPA ID Rep Frame\x00\x07\x00\x00", Some(StartupError::Revision(7))),
        (b"", None),
    ] {
        let a = fresh();
        let peer = TcpListener::bind(loopback()).unwrap();
        let addr = peer.local_addr().unwrap();
        let mut params = ConnParams::default();
        params.policy.mpa.fallback = false;
        let result = std::thread::scope(|s| {
            s.spawn(|| {
                let mut stream = peer.accept().unwrap().0;
                let mut request = [0; 24];
                stream.read_exact(&mut request).unwrap();
                stream.write_all(reply).unwrap();
            });
            connect(&a.qp, addr, params)
        });
        match (result, expected) {
            (Err(Error::Startup(e)), Some(expected)) => assert_eq!(e, expected),
            (Err(Error::Closed(_)), None) => {}
            (other, _) => panic!("{other:?} for {reply:?}"),
        }
        assert_eq!(a.qp.state(), QpState::Init);
    }
}

/// Reads an MPA start-up frame; its revision.
fn read_request(stream: &mut TcpStream) -> u8 {
    let mut head = [0; 20];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(&head[..16], b"MPA ID Req Frame");
    let mut rest = vec![0; usize::from(u16::from_be_bytes([head[18], head[19]]))];
    stream.read_exact(&mut rest).unwrap();
    head[17]
}

/// A peer that knows revision 1 only: it answers so, or just closes; then comes another connection.
#[test]
fn peers_of_revision_1_are_reached_by_another_connection() {
    for answers in [true, false] {
        for fallback in [true, false] {
            let a = fresh();
            let peer = TcpListener::bind(loopback()).unwrap();
            let addr = peer.local_addr().unwrap();
            let mut params = ConnParams::with_private_data(*b"who");
            params.policy.mpa.fallback = fallback;
            std::thread::scope(|s| {
                s.spawn(|| {
                    let mut first = peer.accept().unwrap().0;
                    assert_eq!(read_request(&mut first), 2);
                    if answers {
                        first.write_all(b"MPA ID Rep Frame\x20\x01\x00\x00").unwrap();
                    }
                    drop(first);
                    if !fallback {
                        return;
                    }
                    let mut second = peer.accept().unwrap().0;
                    assert_eq!(read_request(&mut second), 1);
                    second.write_all(b"MPA ID Rep Frame\x00\x01\x00\x02ok").unwrap();
                    // The initiator's first FPDU: a Send of five bytes.
                    let mut fpdu = [0; 32];
                    second.read_exact(&mut fpdu).unwrap();
                    assert_eq!((&fpdu[..2], fpdu[3], &fpdu[20..25]), (&[0, 23][..], 0x43, &b"hello"[..]));
                });
                let result = connect(&a.qp, addr, params);
                if !fallback {
                    assert!(matches!(result, Err(Error::Startup(_) | Error::Closed(_))), "{result:?}");
                    return;
                }
                let e = result.unwrap();
                assert_eq!((e.negotiated.revision, &*e.private_data), (Revision::V1, &b"ok"[..]));
                assert!(!e.negotiated.extensions);
                a.qp.post_send(&SendWr::send_inline(1, b"hello")).unwrap();
                assert_eq!(a.completion().status, Status::Success);
                a.qp.wait_disconnected(Some(PATIENCE));
            });
        }
    }
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(loopback()).unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

#[test]
fn a_connected_socket_is_converted_in_both_roles() {
    for crc in [CrcPolicy::Off, CrcPolicy::On] {
        let (a, b) = (fresh(), fresh());
        let (mut x, mut y) = tcp_pair();
        // It was in use before.
        x.write_all(b"ready?").unwrap();
        let mut said = [0; 6];
        y.read_exact(&mut said).unwrap();
        let params = |data: &[u8]| {
            let mut params = ConnParams::with_private_data(data);
            params.policy.mpa.crc = crc;
            params
        };
        std::thread::scope(|s| {
            s.spawn(|| {
                let e = convert(&b.qp, y, Role::Responder, params(b"yes")).unwrap();
                assert_eq!(e.private_data, b"ready?");
            });
            let e = convert(&a.qp, x, Role::Initiator, params(&said)).unwrap();
            assert_eq!((&*e.private_data, e.negotiated.crc), (&b"yes"[..], crc == CrcPolicy::On));
        });
        works(&a, &b);
        a.qp.disconnect();
        assert_eq!(b.qp.wait_disconnected(Some(PATIENCE)), Some(End::Peer));
    }
}

#[test]
fn a_conversion_that_fails_gives_the_queue_pair_back() {
    let mut params = ConnParams::default();
    params.policy.connect_timeout = Duration::from_millis(200);
    params.policy.request_timeout = Duration::from_millis(200);
    for role in [Role::Initiator, Role::Responder] {
        let a = fresh();
        // A peer that says nothing, one that is gone, and one that plays the same role.
        let (x, _silent) = tcp_pair();
        assert!(matches!(convert(&a.qp, x, role, params.clone()), Err(Error::Timeout { .. })), "{role:?}");
        let (x, gone) = tcp_pair();
        drop(gone);
        assert!(convert(&a.qp, x, role, params.clone()).is_err());
        let (x, y) = tcp_pair();
        let b = fresh();
        std::thread::scope(|s| {
            s.spawn(|| assert!(convert(&b.qp, y, role, params.clone()).is_err()));
            assert!(convert(&a.qp, x, role, params.clone()).is_err());
        });
        assert_eq!((a.qp.state(), b.qp.state()), (QpState::Init, QpState::Init), "{role:?}");
        join_qps(&a.qp, &b.device, &b.qp, &ConnPolicy::default());
        works(&a, &b);
    }
}

/// A side that refuses what the other insists on says so, and the other hears of it.
#[test]
fn wishes_that_exclude_each_other_end_in_an_error_at_both_ends() {
    let mut never = ConnPolicy::default();
    never.mpa.crc = CrcPolicy::Never;
    let mut required = ConnPolicy::default();
    required.mpa.crc = CrcPolicy::Required;
    let (a, b) = (fresh(), fresh());
    let (listener, addr) = listen(&b, loopback());
    std::thread::scope(|s| {
        s.spawn(|| {
            let request = listener.accept(Some(PATIENCE)).unwrap();
            let refused = request.accept(&b.qp, ConnParams::with_policy(never.clone()));
            assert!(matches!(refused, Err(Error::Startup(StartupError::CrcRefused))), "{refused:?}");
        });
        let refused = connect(&a.qp, addr, ConnParams::with_policy(required));
        assert!(matches!(refused, Err(Error::Rejected { .. })), "{refused:?}");
    });
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Init, QpState::Init));
}

/// An accept with a queue pair that cannot be used tells the peer.
#[test]
fn an_accept_with_a_queue_pair_in_use_rejects() {
    let (a, b) = (fresh(), fresh());
    let other: QueuePair = a.pd.create_qp(&QpInit::new(&a.cq)).unwrap();
    let (listener, addr) = listen(&b, loopback());
    over(&listener, addr, &a, &b);
    std::thread::scope(|s| {
        s.spawn(|| {
            let refused = listener.accept(Some(PATIENCE)).unwrap().accept(&b.qp, ConnParams::default());
            assert!(matches!(refused, Err(Error::State { state: QpState::Rts, .. })), "{refused:?}");
        });
        let rejected = connect(&other, addr, ConnParams::default());
        assert!(matches!(rejected, Err(Error::Rejected { .. })), "{rejected:?}");
    });
    // One of another device is refused likewise.
    std::thread::scope(|s| {
        s.spawn(|| {
            let c = fresh();
            let refused = listener.accept(Some(PATIENCE)).unwrap().accept(&c.qp, ConnParams::default());
            assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
        });
        let rejected = connect(&other, addr, ConnParams::default());
        assert!(matches!(rejected, Err(Error::Rejected { .. })), "{rejected:?}");
    });
    works(&a, &b);
}
