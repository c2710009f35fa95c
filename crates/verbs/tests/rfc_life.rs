//! The life of a connection by the RFCs' rules, from its Request to its end, against a peer that is a plain socket.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use common::{PATIENCE, Side, side};
use iwarp::mpa::startup::{CrcPolicy, Initiator, MAX_FRAME, Policy, Request};
use rnic_testkit::craft::{self, Control, Craft, Place};
use rnic_verbs::{
    ConnParams, ConnPolicy, DeviceConfig, End, Error, ListenConfig, Listener, QpState, RecvWr, RemoteBuffer,
    Role, SendWr, Status, connect, convert,
};

/// Long enough that bytes sent without leave would have come.
const A_WHILE: Duration = Duration::from_millis(150);

/// A peer that does not know RFC 7306.
fn foreign() -> Policy {
    Policy { extensions: false, ..Policy::default() }
}

fn fresh() -> Side {
    side(DeviceConfig::default(), |i| i)
}

/// The engine as responder; the raw end has its Reply and may send FPDUs.
fn accepted_by(b: &Side) -> TcpStream {
    let listener =
        Listener::bind(&b.device, "127.0.0.1:0".parse().unwrap(), ListenConfig::default()).unwrap();
    let mut raw = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    raw.set_read_timeout(Some(PATIENCE)).unwrap();
    let initiator = Initiator::new(foreign(), &[]).unwrap();
    let mut frame = [0; MAX_FRAME];
    let len = initiator.request(&mut frame);
    raw.write_all(&frame[..len]).unwrap();
    listener.accept(Some(PATIENCE)).unwrap().accept(&b.qp, ConnParams::default()).unwrap();
    let mut reply = Vec::new();
    while initiator.reply(&reply).unwrap().is_none() {
        let mut byte = [0];
        raw.read_exact(&mut byte).unwrap();
        reply.push(byte[0]);
    }
    raw
}

/// Takes the engine's Request off a socket; the bytes of the Reply that accepts it.
fn answer_request(raw: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let request = loop {
        if let Some(request) = Request::parse(&bytes).unwrap() {
            break request;
        }
        let mut byte = [0];
        raw.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
    };
    let mut out = [0; MAX_FRAME];
    let (len, _) = request.accept(&foreign(), 32, 32, &[], &mut out).unwrap();
    out[..len].to_vec()
}

/// Nothing comes for a while.
fn silent(raw: &mut TcpStream) -> bool {
    raw.set_read_timeout(Some(A_WHILE)).unwrap();
    let got = raw.read(&mut [0; 64]);
    raw.set_read_timeout(Some(PATIENCE)).unwrap();
    matches!(got, Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

fn read_to_end(raw: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    raw.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn the_initiator_says_nothing_behind_its_request_until_it_is_answered() {
    // rule 5044-7.1.2-1, 5044-4-1, 5041-6.1-1
    let a = fresh();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::scope(|s| {
        let dial = s.spawn(|| connect(&a.qp, address, ConnParams::default()));
        let (mut raw, _) = listener.accept().unwrap();
        raw.set_read_timeout(Some(PATIENCE)).unwrap();
        let reply = answer_request(&mut raw);
        let early = a.qp.post_send(&SendWr::send(1, &[]));
        assert!(matches!(early, Err(Error::State { .. })), "{early:?}");
        assert!(silent(&mut raw));
        // The Reply in two pieces: half a Reply is no leave either.
        raw.write_all(&reply[..19]).unwrap();
        assert!(silent(&mut raw));
        raw.write_all(&reply[19..]).unwrap();
        dial.join().unwrap().unwrap();
        a.qp.post_send(&SendWr::send(1, &[])).unwrap();
        let mut fpdu = [0; 24];
        raw.read_exact(&mut fpdu).unwrap();
        assert_eq!(
            fpdu[..],
            *Craft::new(false, false).ulpdu(craft::send(1, &[])).bytes(),
            "numbers start at 1"
        );
    });
}

#[test]
fn start_up_ends_in_time_when_the_other_end_is_silent() {
    // rule 5044-7.1.2-7
    let mut policy = ConnPolicy::default();
    (policy.connect_timeout, policy.request_timeout) = (A_WHILE, A_WHILE);
    let a = fresh();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let dialled = connect(&a.qp, listener.local_addr().unwrap(), ConnParams::with_policy(policy.clone()));
    assert!(matches!(dialled, Err(Error::Timeout { what: "MPA Reply", .. })), "{dialled:?}");
    assert_eq!(a.qp.state(), QpState::Init, "and can be tried again");

    let address = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(&a.device, address, ListenConfig::with_policy(policy)).unwrap();
    let mut raw = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    raw.set_read_timeout(Some(PATIENCE)).unwrap();
    // Part of a Request does not buy time.
    raw.write_all(b"MPA ID Req").unwrap();
    assert!(matches!(raw.read(&mut [0; 8]), Ok(0) | Err(_)), "closed by the responder");
    assert!(listener.try_accept().is_none());
}

#[test]
fn a_socket_in_use_is_switched_over_and_loses_no_byte() {
    // rule 5044-7.1.5-1, 5040-6.1-1
    let (a, b) = (fresh(), fresh());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    near.write_all(b"shall we?").unwrap();
    let mut line = [0; 9];
    far.read_exact(&mut line).unwrap();
    far.write_all(b"yes").unwrap();
    near.read_exact(&mut line[..3]).unwrap();
    let (src, dst) = (a.mr(5000), b.mr(5000));
    src.fill(0, 5000, 7).unwrap();
    b.qp.post_recv(&RecvWr::new(1, &[dst.sge(0, 5000)])).unwrap();
    thread::scope(|s| {
        s.spawn(|| convert(&b.qp, far, Role::Responder, ConnParams::default()).unwrap());
        convert(&a.qp, near, Role::Initiator, ConnParams::default()).unwrap();
    });
    a.qp.post_send(&SendWr::send(2, &[src.sge(0, 5000)])).unwrap();
    assert_eq!((b.completion().status, a.completion().status), (Status::Success, Status::Success));
    let mut got = [0; 5000];
    dst.read_at(0, &mut got).unwrap();
    assert_eq!(got, [7; 5000]);
}

#[test]
fn what_was_sent_before_a_disconnect_arrives() {
    // rule 5044-7.2-1, 5040-6.2-1, 5041-6.2.1-1, 5040-5.5-6
    const COUNT: u64 = 100;
    let (a, b) = common::pair();
    let (src, dst) = (a.mr(4000), b.mr(4000));
    for i in 0..COUNT {
        b.qp.post_recv(&RecvWr::new(i, &[dst.sge(0, 4000)])).unwrap();
    }
    for i in 0..COUNT {
        a.qp.post_send(&SendWr::send(i, &[src.sge(0, 4000)])).unwrap();
    }
    // Complete here means that TCP has them, whatever the peer does.
    assert!(a.completions(COUNT as usize).iter().all(|c| c.status == Status::Success));
    a.qp.disconnect();
    let received = b.completions(COUNT as usize);
    assert!(received.iter().enumerate().all(|(i, c)| c.status == Status::Success && c.wr_id == i as u64));
    assert_eq!(b.qp.wait_disconnected(Some(PATIENCE)), Some(End::Peer));
}

#[test]
fn whole_fpdus_before_a_fin_count_and_a_part_of_one_is_an_error() {
    // rule 5044-7.2-2, 5044-7.2-3, 5040-6.2.1-1, 5040-6.2.1-2, 5041-6.2.2-1
    let mut stream = Craft::new(false, false);
    stream.ulpdu(craft::send(1, b"whole"));
    let first = stream.bytes().len();
    stream.ulpdu(craft::send(2, b"cut off"));
    let bytes = stream.bytes();
    for cut in [first, first + 1, first + 10, bytes.len() - 1] {
        let b = fresh();
        let mr = b.mr(100);
        for i in 0..3 {
            b.qp.post_recv(&RecvWr::new(i, &[mr.sge(0, 100)])).unwrap();
        }
        let mut raw = accepted_by(&b);
        raw.write_all(&bytes[..cut]).unwrap();
        drop(raw);
        let end = b.qp.wait_disconnected(Some(PATIENCE));
        assert_eq!(end, Some(if cut == first { End::Peer } else { End::Broken(None) }), "cut at {cut}");
        let got: Vec<_> = b.completions(3).iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(got, [(0, Status::Success), (1, Status::WrFlush), (2, Status::WrFlush)], "cut at {cut}");
    }
}

#[test]
fn a_reset_fails_what_is_under_way_with_its_cause() {
    // rule 5040-6.2.1-2, 5040-7.1-2, 5041-6.2.2-1
    let b = fresh();
    let mr = b.mr(100);
    let mut raw = accepted_by(&b);
    raw.write_all(Craft::new(false, false).ulpdu(craft::write(1, 0, &[])).bytes()).unwrap();
    let sink = [mr.sge(0, 8)];
    for wr_id in [1, 2] {
        let read = SendWr::read(wr_id, &sink, RemoteBuffer { rkey: 1, addr: 0, len: 8 });
        b.qp.post_send(&read).unwrap();
    }
    // A close with unread bytes is a reset.
    assert!(raw.peek(&mut [0; 1]).is_ok());
    drop(raw);
    let Some(End::Broken(errno)) = b.qp.wait_disconnected(Some(PATIENCE)) else { panic!("{:?}", b.qp.end()) };
    assert!(errno.is_some());
    let got: Vec<_> = b.completions(2).iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(got, [(1, Status::RetryExceeded), (2, Status::WrFlush)]);
}

#[test]
fn a_faulty_peer_gets_its_terminate_before_the_connection_closes() {
    // rule 5044-8-3, 5040-7.1-1
    let b = fresh();
    let mut raw = accepted_by(&b);
    let mut damaged = Craft::new(false, false).ulpdu(craft::send(9, b"out of turn")).bytes().to_vec();
    // More behind it must not cost the Terminate.
    damaged.extend_from_slice(&[0; 3000]);
    raw.write_all(&damaged).unwrap();
    let told = read_to_end(&mut raw);
    assert_eq!((told[3] & 15, &told[20..22]), (7, &[0x12, 3][..]), "DDP, untagged, MSN out of range");
    assert!(matches!(b.qp.wait_disconnected(Some(PATIENCE)), Some(End::Fault(iwarp::Fault::MsnRange))));
}

#[test]
fn requests_that_cannot_be_sent_are_refused_and_leave_no_trace() {
    // rule 7306-8.1-1, 7306-1.1-1, 5040-7.1-1
    let b = fresh();
    let mr = b.mr(64);
    let mut raw = accepted_by(&b);
    raw.write_all(Craft::new(false, false).ulpdu(craft::write(1, 0, &[])).bytes()).unwrap();
    let far = RemoteBuffer { rkey: 1, addr: 64, len: 8 };
    let atomic = b.qp.post_send(&SendWr::fetch_add(1, &mr.sge(0, 8), far, 1));
    assert!(matches!(atomic, Err(Error::NotNegotiated)), "{atomic:?}");
    let immediate = b.qp.post_send(&SendWr::immediate(2, 1));
    assert!(matches!(immediate, Err(Error::NotNegotiated)), "{immediate:?}");
    let mut beyond = mr.sge(0, 64);
    beyond.len = 65;
    let send = b.qp.post_send(&SendWr::send(3, &[beyond]));
    assert!(matches!(send, Err(Error::LocalMemory { .. })), "{send:?}");
    assert!(silent(&mut raw));
    // Towards a peer that knows the extensions, the shape of a request is still checked.
    let (a, c) = common::pair();
    let word = a.mr(16);
    let odd = RemoteBuffer { rkey: 1, addr: 4, len: 8 };
    let atomic = a.qp.post_send(&SendWr::swap(1, &word.sge(0, 8), odd, 1));
    assert!(matches!(atomic, Err(Error::Invalid(_))), "{atomic:?}");
    assert_eq!((a.qp.state(), c.qp.state()), (QpState::Rts, QpState::Rts), "the connection stands");
}

#[test]
fn a_read_returns_the_bytes_asked_for_and_no_other_memory() {
    // rule 5040-8.1.1-7
    let b = fresh();
    let mr = b.mr(4096);
    mr.fill(0, 4096, 0xee).unwrap();
    let mut raw = accepted_by(&b);
    for (i, len) in [1u32, 2, 3, 5, 1000].into_iter().enumerate() {
        mr.fill(8, len as usize, i as u8 + 1).unwrap();
        let request = craft::read_request(i as u32 + 1, (7, 0), len, (mr.rkey(), mr.addr() + 8));
        raw.write_all(Craft::new(false, false).ulpdu(request).bytes()).unwrap();
        let expected = craft::read_response(7, 0, &vec![i as u8 + 1; len as usize]);
        let expected = Craft::new(false, false).ulpdu(expected).bytes().to_vec();
        let mut got = vec![0; expected.len()];
        raw.read_exact(&mut got).unwrap();
        assert_eq!(got, expected, "padding and CRC field included, {len} bytes");
        mr.fill(0, 4096, 0xee).unwrap();
    }
    assert!(silent(&mut raw));
}

#[test]
fn a_flood_without_receives_stops_at_its_share_and_harms_nobody_else() {
    // rule 5040-8.1.1-5
    let config = DeviceConfig::default();
    let held = config.held_per_qp;
    let b = side(config, |i| i);
    let mut raw = accepted_by(&b);
    raw.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let control = Control::last(3);
    let payload = vec![9; 60_000];
    // Far more than is held aside: in the end TCP's windows are full and the socket takes no more.
    let mut msn = 1;
    let taken = loop {
        let ulpdu = craft::untagged(control, 0, Place { qn: 0, msn, mo: 0 }, &payload);
        if raw.write_all(Craft::new(false, false).ulpdu(ulpdu).bytes()).is_err() {
            break u64::from(msn - 1) * 60_000;
        }
        msn += 1;
        assert!(msn < 5_000, "{} bytes were taken without a receive", u64::from(msn) * 60_000);
    };
    assert!(taken > held as u64);
    let counted = b.qp.counters();
    assert!(counted.rx_bytes < held as u64 + (2 << 20), "{counted:?}");
    // Another connection of the same device works meanwhile.
    let other = side(DeviceConfig::default(), |i| i);
    let third = Side { device: b.device.clone(), pd: b.pd.clone(), cq: b.cq.clone(), qp: other_qp(&b) };
    common::join(&other, &third, &ConnPolicy::default());
    third.qp.post_recv(&RecvWr::new(77, &[])).unwrap();
    other.qp.post_send(&SendWr::send(1, &[])).unwrap();
    assert_eq!(third.completion().wr_id, 77);
}

fn other_qp(b: &Side) -> rnic_verbs::QueuePair {
    b.pd.create_qp(&rnic_verbs::QpInit::new(&b.cq)).unwrap()
}

#[test]
fn without_a_wish_for_crcs_the_peer_decides_and_with_one_nobody_can_refuse() {
    // rule 5044-4.4-6, 5044-4.4-4
    for (ours, theirs, used) in [
        (CrcPolicy::Off, CrcPolicy::Off, false),
        (CrcPolicy::Off, CrcPolicy::On, true),
        (CrcPolicy::On, CrcPolicy::Off, true),
        (CrcPolicy::Required, CrcPolicy::On, true),
    ] {
        let with = |crc| {
            let mut policy = ConnPolicy::default();
            policy.mpa.crc = crc;
            policy
        };
        let (a, b) = (fresh(), fresh());
        let listener = ListenConfig::with_policy(with(theirs));
        let listener = Listener::bind(&b.device, "127.0.0.1:0".parse().unwrap(), listener).unwrap();
        let address = listener.local_addr().unwrap();
        thread::scope(|s| {
            s.spawn(|| {
                let request = listener.accept(Some(PATIENCE)).unwrap();
                request.accept(&b.qp, ConnParams::with_policy(with(theirs))).unwrap();
            });
            let made = connect(&a.qp, address, ConnParams::with_policy(with(ours))).unwrap();
            assert_eq!(made.negotiated.crc, used, "{ours:?} with {theirs:?}");
        });
    }
}
