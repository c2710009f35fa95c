//! The ready-to-receive frame of peer-to-peer mode, as the responder's first FPDU. RFC 6581 §9.2.

use iwarp::mpa::startup::Rtr;
use iwarp::rx::{Progress, Receiver};
use iwarp::types::{InboundRead, Stag};
use iwarp::{Event, Fault};
use rnic_testkit::craft::{self, Control, Craft, Place};
use rnic_testkit::feeder::{self, Feeder};

fn feeder(rtr: Rtr) -> Feeder {
    let n = feeder::agreed_rtr(rtr);
    Feeder::new(&n, feeder::host(&n))
}

fn feed(f: &mut Feeder, ulpdu: &[u8]) -> Result<Progress, Fault> {
    f.feed(Craft::new(false, false).ulpdu(ulpdu).bytes())
}

#[test]
fn an_empty_send_takes_no_receive_but_its_number() {
    // rule 6581-9.2-5, 6581-9.2-7
    let mut f = feeder(Rtr::Send);
    assert_eq!(f.rx.fpdus(), 0);
    assert_eq!(feed(&mut f, &craft::send(1, &[])), Ok(Progress::NeedBytes));
    assert_eq!((f.rx.fpdus(), f.host.events().len()), (1, 0), "now the responder may send");
    assert_eq!(feed(&mut f, &craft::send(2, &[])), Ok(Progress::NeedReceive), "the next one is a message");
    f.host.post_receive(1);
    assert_eq!(f.feed(&[]), Ok(Progress::NeedBytes));
    assert_eq!(f.host.delivered().len(), 1);
}

#[test]
fn an_empty_write_or_read_passes_without_a_look_at_its_stag() {
    // rule 6581-9.2-6
    let mut f = feeder(Rtr::Write);
    assert_eq!(feed(&mut f, &craft::write(1, 0, &[])), Ok(Progress::NeedBytes));
    assert_eq!(f.host.events(), [Event::WriteDone { len: 0 }]);
    let mut f = feeder(Rtr::Read);
    assert_eq!(feed(&mut f, &craft::read_request(1, (0, 0), 0, (1, 0))), Ok(Progress::NeedBytes));
    let answer = InboundRead::Read { sink_stag: Stag(0), sink_to: 0, len: 0, src_stag: Stag(1), src_to: 0 };
    assert_eq!(f.host.next_inbound(), Some(answer));
    let next = craft::read_request(2, (0, 0), 0, (1, 0));
    assert_eq!(feed(&mut f, &next), Ok(Progress::NeedBytes), "its number counts");
}

#[test]
fn only_the_plain_empty_first_send_is_the_frame() {
    // A message of the peer's program instead: it needs a receive like any other.
    let at = Place { qn: 0, msn: 1, mo: 0 };
    let messages = [
        craft::send(1, b"x"),
        craft::untagged(Control::last(5), 0, at, &[]),
        craft::untagged(Control::more(3), 0, at, &[]),
    ];
    for ulpdu in &messages {
        assert_eq!(feed(&mut feeder(Rtr::Send), ulpdu), Ok(Progress::NeedReceive), "{ulpdu:02x?}");
    }
    for (ulpdu, fault) in [
        (craft::untagged(Control::last(3), 0, Place { mo: 4, ..at }, &[]), Fault::MessageOffset),
        (craft::send(2, &[]), Fault::MsnRange),
    ] {
        assert_eq!(feed(&mut feeder(Rtr::Send), &ulpdu), Err(fault));
    }
    let mut f = feeder(Rtr::Send);
    assert_eq!(feed(&mut f, &craft::write(1, 0, &[])), Ok(Progress::NeedBytes));
    assert_eq!(feed(&mut f, &craft::send(1, &[])), Ok(Progress::NeedReceive), "too late for one");
}

#[test]
fn the_initiator_awaits_none() {
    let n = feeder::agreed_rtr(Rtr::Send);
    let mut host = feeder::host(&n);
    let mut rx = Receiver::new(&n, false);
    let mut bytes = Craft::new(false, false).ulpdu(craft::send(1, &[])).bytes().to_vec();
    assert_eq!(rx.handle(&mut host, &mut bytes), Ok((0, Progress::NeedReceive)));
}

/// siw swaps the halves of the first byte, and the same two bytes mean one thing of a Reply and another of
/// a message. Who sent it, and when, tells which.
#[test]
fn a_terminate_of_the_first_fpdu_complains_of_the_reply_if_it_is_the_initiators() {
    let n = feeder::agreed(false, false);
    let reply = |code| (2, 0, code);
    let operation = |code| (0, 2, code);
    for code in [6, 7] {
        for (first, responder, spoken, want) in [
            (0x20, true, false, reply(code)),
            (0x02, true, false, reply(code)),
            (0x20, true, true, operation(code)),
            (0x02, true, true, operation(code)),
            (0x20, false, false, operation(code)),
            (0x02, false, false, operation(code)),
        ] {
            let mut host = feeder::host(&n);
            let mut rx = Receiver::new(&n, responder);
            let mut c = Craft::new(false, false);
            if spoken {
                c.ulpdu(craft::write(0, 0, &[]));
            }
            let mut bytes = c.ulpdu(craft::terminate(&[first, code, 0, 0])).bytes().to_vec();
            assert_eq!(rx.handle(&mut host, &mut bytes), Ok((bytes.len(), Progress::Terminated)));
            let Some(Event::Terminated(Some(m))) = host.events().last() else { panic!("told") };
            let t = m.terminate;
            assert_eq!((t.layer, t.etype, t.code), want, "{first:02x} {code:02x}, {responder}, {spoken}");
        }
    }
}
