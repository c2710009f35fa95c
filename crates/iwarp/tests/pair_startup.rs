//! From the Request to the last byte: whatever two policies agree on works for every kind of message.

use iwarp::mpa::startup::{
    CrcPolicy, Initiator, MAX_FRAME, Negotiated, Policy, Request, Revision, RtrOffer, StartupError,
};
use proptest::prelude::*;
use rnic_testkit::craft::{self, Craft};
use rnic_testkit::feeder::{self, Feeder};
use rnic_testkit::model::Model;
use rnic_testkit::pair::{Config, End, Pair};
use rnic_testkit::seed::Seed;

/// What each side makes of the other's frame, and where in the bytes the frames end.
type Agreed = (Negotiated, Negotiated, usize);

fn start(ours: &Policy, theirs: &Policy, behind: &[u8]) -> Result<Agreed, StartupError> {
    let initiator = Initiator::new(ours.clone(), b"from the initiator")?;
    let mut frame = [0; MAX_FRAME];
    let n = initiator.request(&mut frame);
    let request = Request::parse(&frame[..n])?.expect("a whole frame");
    let mut reply = [0; MAX_FRAME];
    let (n, responder) = request.accept(theirs, theirs.ord, theirs.ird, b"from the responder", &mut reply)?;
    // TCP may hand over the Reply with what follows it.
    let bytes = [&reply[..n], behind].concat();
    let answer = initiator.reply(&bytes)?.expect("a whole frame");
    assert_eq!(answer.consumed, n, "not a byte behind the Reply is taken");
    Ok((answer.negotiated, responder, n))
}

fn policy() -> impl Strategy<Value = Policy> {
    let crc = prop_oneof![
        Just(CrcPolicy::Off),
        Just(CrcPolicy::On),
        Just(CrcPolicy::Required),
        Just(CrcPolicy::Never)
    ];
    let rtr = prop::option::of((any::<bool>(), any::<bool>(), any::<bool>()));
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (crc, rtr, flags, 1u16..7, 1u16..7).prop_map(|(crc, rtr, (v1, want_markers, extensions), ord, ird)| {
        Policy {
            revision: if v1 { Revision::V1 } else { Revision::V2 },
            crc,
            want_markers,
            extensions,
            ord,
            ird,
            p2p: rtr.map(|(write, read, send)| RtrOffer { write, read, send }),
            ..Policy::default()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_two_sides_agree_on_works(ours in policy(), theirs in policy(), seed in any::<u64>(), mulpdu in 80usize..5000) {
        // rule 5044-4-1, 6581-9.1-5, 7306-1.1-1
        let Ok((initiator, responder, _)) = start(&ours, &theirs, b"") else { return Ok(()) };
        prop_assert_eq!(initiator.extensions, responder.extensions);
        prop_assert_eq!(initiator.extensions, ours.extensions && theirs.extensions);
        if initiator.revision == Revision::V1 && initiator.ord > responder.ird {
            // Revision 1 leaves the depths to the programs.
            return Ok(());
        }
        let config = Config { seed, mulpdu, ..Config::default() };
        let mut pair = Pair::agreed(&config, &initiator, &responder);
        let mut seed = Seed::new(seed);
        let mut models = Vec::new();
        for side in [true, false] {
            let may_read = if side { initiator.ord } else { responder.ord };
            let served = if side { responder.ird } else { initiator.ird };
            if may_read == 0 || may_read > served {
                continue;
            }
            let mut model = Model::new(&mut seed, 6000, initiator.extensions);
            model.register_requester(pair.host(side));
            model.register_target(pair.host(!side));
            for _ in 0..30 {
                let work = model.draw(&mut seed);
                pair.end(side).post(work);
            }
            for _ in 0..model.receives() {
                pair.host(!side).post_receive(6000);
            }
            models.push((side, model));
        }
        if !models.iter().any(|(side, _)| *side) {
            pair.initiator.post(rnic_testkit::pair::Work::write(0, 0, Vec::new()));
        }
        prop_assert_eq!(pair.run(), End::Idle, "faults {:?}", pair.faults());
        for (side, model) in &models {
            model.check_target(&pair.end(!*side).host);
            model.check_requester(&pair.end(*side).host);
        }
    }
}

#[test]
fn the_first_fpdu_may_come_with_the_reply() {
    // rule 5041-6.1-1: both ends are ready when the frames are exchanged, and numbers start at 1.
    for crc in [CrcPolicy::Off, CrcPolicy::On] {
        for markers in [false, true] {
            let ours = Policy { crc, want_markers: markers, ..Policy::default() };
            let mut first = Craft::new(crc == CrcPolicy::On, markers);
            first.ulpdu(craft::send(1, b"glued to the Reply"));
            let (n, _, _) = start(&ours, &Policy::default(), first.bytes()).expect("agreed");
            let mut host = feeder::host(&n);
            host.post_receive(100);
            let mut f = Feeder::new(&n, host);
            assert_eq!(f.feed(first.bytes()), Ok(iwarp::rx::Progress::NeedBytes));
            assert_eq!(f.host.delivered()[0].data, b"glued to the Reply");
            // A message numbered as if another had come before it.
            let mut f = Feeder::new(&n, feeder::host(&n));
            let mut second = Craft::new(n.crc, n.rx_markers);
            assert_eq!(f.feed(second.ulpdu(craft::send(2, b"")).bytes()), Err(iwarp::Fault::MsnRange));
        }
    }
}
