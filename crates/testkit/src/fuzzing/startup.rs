//! Request and Reply Frames: any bytes, and two honest sides of any policies with a wire that errs.

use iwarp::mpa::startup::{
    CrcPolicy, Initiator, MAX_FRAME, Negotiated, Policy, Request, Revision, RtrOffer, StartupError,
};

use super::Input;

/// The target.
pub fn mpa_startup(data: &[u8]) {
    let mut input = Input::new(data);
    let (ours, theirs) = (policy(&mut input), policy(&mut input));
    if input.u8() & 1 == 1 {
        let mode = input.u8();
        raw(&ours, &theirs, mode, input.rest());
    } else {
        handshake(&ours, &theirs, &mut input);
    }
}

fn policy(input: &mut Input<'_>) -> Policy {
    let (a, b) = (input.u8(), input.u8());
    let bit = |byte: u8, n: u8| byte >> n & 1 == 1;
    Policy {
        revision: if bit(a, 0) { Revision::V1 } else { Revision::V2 },
        fallback: bit(a, 1),
        crc: [CrcPolicy::Off, CrcPolicy::On, CrcPolicy::Required, CrcPolicy::Never][usize::from(a >> 2 & 3)],
        send_markers: bit(a, 4),
        want_markers: bit(a, 5),
        extensions: bit(a, 6),
        ord: input.u16(),
        ird: input.u16(),
        p2p: bit(b, 0).then_some(RtrOffer { write: bit(b, 1), read: bit(b, 2), send: bit(b, 3) }),
    }
}

/// Any bytes as a frame: the verdict on a prefix is final, and what is named lies within the bytes.
fn raw(ours: &Policy, theirs: &Policy, mode: u8, bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(2 * MAX_FRAME)];
    if mode & 1 == 1 {
        let Ok(initiator) = Initiator::new(ours.clone(), &[]) else { return };
        final_verdict(bytes, |b| initiator.reply(b));
        if let Ok(Some(reply)) = initiator.reply(bytes) {
            assert!(reply.private_data.end <= reply.consumed && reply.consumed <= bytes.len());
            bounded(ours, &reply.negotiated);
        }
        return;
    }
    final_verdict(bytes, Request::parse);
    let Ok(Some(request)) = Request::parse(bytes) else { return };
    assert!(request.private_data.end <= request.consumed && request.consumed <= bytes.len());
    let mut out = [0; MAX_FRAME];
    if let Ok((len, agreed)) = request.accept(theirs, theirs.ord, theirs.ird, &[], &mut out) {
        assert!(len <= MAX_FRAME);
        // What a peer states is bounded by what this side allows. RFC 6581 §12.
        bounded(theirs, &agreed);
    }
    request.reject(theirs, &[], &mut out).expect("no private data is never too long");
}

fn bounded(own: &Policy, agreed: &Negotiated) {
    // A Read as RTR frame needs a depth of one.
    assert!(agreed.ord <= own.ord.max(1) && agreed.ird <= own.ird.max(1), "{agreed:?} of {own:?}");
}

fn final_verdict<T: PartialEq + std::fmt::Debug>(
    bytes: &[u8],
    judge: impl Fn(&[u8]) -> Result<Option<T>, StartupError>,
) {
    let mut verdict = None;
    for len in 0..=bytes.len() {
        let now = judge(&bytes[..len]);
        match &verdict {
            Some(before) => assert_eq!(&now, before, "changed its mind at {len} bytes"),
            None if now == Ok(None) => {}
            None => verdict = Some(now),
        }
    }
}

/// Two sides talk; without damage they come to the same.
fn handshake(ours: &Policy, theirs: &Policy, input: &mut Input<'_>) {
    let (to_responder, to_initiator) = (flips(input), flips(input));
    let (sent_len, answer_len) = (usize::from(input.u16() % 520), usize::from(input.u16() % 520));
    let sent: Vec<u8> = (0..sent_len).map(|i| i as u8).collect();
    let answer: Vec<u8> = (0..answer_len).map(|i| !(i as u8)).collect();
    let Ok(initiator) = Initiator::new(ours.clone(), &sent) else {
        assert!(sent.len() > 508, "only private data too long stops a Request");
        return;
    };
    let mut frame = [0; MAX_FRAME];
    let len = initiator.request(&mut frame);
    let damaged = flip(&mut frame[..len], &to_responder);
    let Ok(Some(request)) = Request::parse(&frame[..len]) else {
        assert!(damaged, "an honest Request parses");
        return;
    };
    if !damaged {
        assert_eq!((request.consumed, &frame[request.private_data.clone()]), (len, &sent[..]));
    }
    let mut reply = [0; MAX_FRAME];
    let accepted = request.accept(theirs, theirs.ord, theirs.ird, &answer, &mut reply);
    let (len, theirs_agreed) = match accepted {
        Ok((len, agreed)) => (len, Some(agreed)),
        Err(_) => (request.reject(theirs, &[], &mut reply).expect("an empty reject fits"), None),
    };
    let damaged = flip(&mut reply[..len], &to_initiator) || damaged;
    let verdict = initiator.reply(&reply[..len]);
    if damaged {
        return;
    }
    match (theirs_agreed, verdict) {
        (None, Ok(Some(reply))) => assert!(reply.rejected),
        (Some(theirs), Ok(Some(ours))) => {
            assert!(!ours.rejected);
            assert_eq!(&reply[ours.private_data.clone()], &answer[..]);
            same(&ours.negotiated, &theirs);
        }
        // The initiator may dislike what the responder is content with.
        (_, Err(_)) => {}
        (_, Ok(None)) => panic!("a whole Reply needs no more bytes"),
    }
}

fn same(ours: &Negotiated, theirs: &Negotiated) {
    let what = format!("{ours:?} against {theirs:?}");
    assert_eq!((ours.revision, ours.crc, ours.rtr), (theirs.revision, theirs.crc, theirs.rtr), "{what}");
    assert_eq!(ours.extensions, theirs.extensions, "{what}");
    assert_eq!((ours.tx_markers, ours.rx_markers), (theirs.rx_markers, theirs.tx_markers), "{what}");
    if ours.revision == Revision::V2 {
        assert!(ours.ord <= theirs.ird && theirs.ord <= ours.ird, "more Reads than are served: {what}");
    }
}

/// Up to three bits to turn over.
fn flips(input: &mut Input<'_>) -> Vec<usize> {
    let n = input.u8() & 3;
    (0..n).map(|_| usize::from(input.u16())).collect()
}

fn flip(frame: &mut [u8], bits: &[usize]) -> bool {
    for bit in bits {
        let at = bit / 8 % frame.len();
        frame[at] ^= 1 << (bit % 8);
    }
    !bits.is_empty()
}
