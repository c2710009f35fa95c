use super::*;
use crate::types::Stag;
use crate::wire::ddp::{Header, parse};

fn segments(mulpdu: usize, message: Message) -> std::vec::Vec<Segment> {
    let mut tx = Transmitter::new(mulpdu);
    assert!(tx.begin(&message));
    assert!(!tx.begin(&message), "a message under way is kept");
    let out: std::vec::Vec<_> = std::iter::from_fn(|| tx.next_segment()).collect();
    assert!(tx.is_idle());
    out
}

#[test]
fn a_write_is_cut_at_the_mulpdu_with_ascending_offsets() {
    // rule 5041-5.2-1, 5041-5.2-3, 5041-4.2-2, 5041-5.1.1-1, 5044-4.5-4, 5041-4.1-2
    let segs = segments(114, Message::Write { stag: Stag(5), to: 1000, len: 250 });
    let shape: std::vec::Vec<_> = segs.iter().map(|s| (s.payload_offset, s.payload_len, s.last)).collect();
    assert_eq!(shape, [(0, 100, false), (100, 100, false), (200, 50, true)]);
    for s in &segs {
        assert_eq!(usize::from(u16::from_be_bytes([s.header()[0], s.header()[1]])), s.ulpdu_len());
        let Ok(Header::Tagged(t)) = parse(&s.header()[2..]) else { panic!("tagged") };
        assert_eq!((t.to, t.last, t.stag), (1000 + u64::from(s.payload_offset), s.last, Stag(5)));
    }
}

#[test]
fn only_the_last_segment_needs_padding() {
    // rule 5041-5.2-1
    for mulpdu in 100..120 {
        let segs = segments(mulpdu, Message::Send { len: 333, invalidate: None, solicited: false });
        for s in segs {
            assert!(s.last || s.pad_len() == 0, "mulpdu {mulpdu}");
            assert!(s.ulpdu_len() <= mulpdu);
            assert_eq!(s.fpdu_len(), frame::fpdu_len(s.ulpdu_len()));
        }
    }
}

#[test]
fn zero_length_messages_are_one_segment() {
    // rule 5041-5.2-2
    let segs = segments(1000, Message::Write { stag: Stag(1), to: 0, len: 0 });
    assert_eq!(segs.len(), 1);
    assert!(segs[0].last && segs[0].payload_len == 0);
}

#[test]
fn each_untagged_queue_counts_its_messages_from_one() {
    // rule 5041-5.1.2-1, 5041-4.3-2, 5041-5.1.2-2, 7306-6.3-2, 5040-5.4-1, 5041-5.2-4
    let mut tx = Transmitter::new(100);
    let mut msns = std::vec::Vec::new();
    let send = Message::Send { len: 100, invalidate: Some(Stag(9)), solicited: true };
    let term = Message::Terminate { body: [0; crate::wire::terminate::MAX_LEN], len: 4 };
    for m in [send, Message::Immediate { value: 3, solicited: false }, term, send] {
        assert!(tx.begin(&m));
        while let Some(s) = tx.next_segment() {
            let Ok(Header::Untagged(u)) = parse(&s.header()[2..]) else { panic!("untagged") };
            msns.push((u.qn, u.msn, u.mo, u.opcode));
        }
    }
    assert_eq!(msns, [(0, 1, 0, 6), (0, 1, 80, 6), (0, 2, 0, 8), (2, 1, 0, 7), (0, 3, 0, 6), (0, 3, 80, 6)]);
}

#[test]
fn sequence_numbers_wrap_to_zero() {
    // rule 5041-5.1.2-1
    let mut tx = Transmitter::new(100);
    tx.msn = [u32::MAX; 4];
    let send = Message::Send { len: 0, invalidate: None, solicited: false };
    let msns: std::vec::Vec<u32> = (0..3)
        .map(|_| {
            assert!(tx.begin(&send));
            let segment = tx.next_segment().expect("a segment");
            let Ok(Header::Untagged(u)) = parse(&segment.header()[2..]) else { panic!("untagged") };
            u.msn
        })
        .collect();
    assert_eq!(msns, [u32::MAX, 0, 1]);
}
