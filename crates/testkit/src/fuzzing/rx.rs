//! The receive path after start-up: segments of any kind, most of them nearly right, or plain noise;
//! cut one way and another, which must come to the same.

use iwarp::mpa::startup::{Negotiated, Rtr};
use iwarp::rx::Progress;

use super::Input;
use crate::craft::{self, Atomic, Control, Craft, Place};
use crate::feeder::{
    self, CLOSED, FOREIGN, Feeder, NOBODY, OPEN, OPEN_BASE, Outcome, SINK, TOP, TOP_BASE, UNMAPPED, VICTIM,
};
use crate::host::ArrayHost;
use crate::seed::Seed;

/// Longest stream that is worth its time.
const MOST: usize = 96 << 10;

/// The target.
pub fn rx_stream(data: &[u8]) {
    let mut input = Input::new(data);
    let setup = Setup::read(&mut input);
    let bytes = if setup.raw { input.rest().to_vec() } else { segments(&setup, &mut input) };
    let whole = run(&setup, &bytes, 0, false);
    assert_eq!(run(&setup, &bytes, setup.chunk, setup.direct), whole);
}

struct Setup {
    n: Negotiated,
    raw: bool,
    /// Seed of the cuts; 0 leaves the stream whole.
    chunk: u8,
    direct: bool,
    receives: u8,
    requests: u8,
}

impl Setup {
    fn read(input: &mut Input<'_>) -> Self {
        let (a, b, chunk) = (input.u8(), input.u8(), input.u8());
        let mut n = feeder::agreed(a & 1 == 1, a & 2 == 2);
        n.extensions = a & 4 == 0;
        n.rtr = [None, Some(Rtr::Write), Some(Rtr::Read), Some(Rtr::Send)][usize::from(a >> 3 & 3)];
        Self { n, raw: a & 32 == 32, direct: a & 64 == 64, chunk, receives: b & 7, requests: b >> 3 }
    }

    fn host(&self) -> ArrayHost {
        let mut host = feeder::host(&self.n);
        for i in 0..self.receives {
            host.post_receive([4096, 10, 9000, 0, 65_000, 100, 1, 20_000][usize::from(i)]);
        }
        for i in 0..self.requests & 3 {
            let (cookie, to) = (u64::from(i) + 1, u64::from(i) * 4096);
            match self.requests >> 2 & 3 {
                3 => feeder::expect_atomic(&mut host, cookie, to, u32::from(i)),
                _ => feeder::expect_read(&mut host, cookie, to, [100, 0, 4096, 7][usize::from(i)]),
            }
        }
        host
    }
}

fn run(setup: &Setup, bytes: &[u8], chunk: u8, direct: bool) -> Outcome {
    let host = setup.host();
    let fixed = [CLOSED, FOREIGN, UNMAPPED].map(|stag| host.region(stag).clone());
    let mut f = Feeder::new(&setup.n, host);
    if direct {
        f = f.with_direct();
    }
    let mut cuts = Seed::new(u64::from(chunk));
    let most = [1usize, 3, 30, 600, 5000, 70_000][usize::from(chunk) % 6];
    let mut rest = bytes;
    while !rest.is_empty() {
        let n = if chunk == 0 { rest.len() } else { (1 + cuts.below(most)).min(rest.len()) };
        let _ = f.feed(&rest[..n]);
        rest = &rest[n..];
    }
    let outcome = f.outcome();
    match outcome.result {
        Err(fault) => {
            assert_eq!(f.feed(&[1, 2, 3, 4]), Err(fault), "a fault stays");
            let t = outcome.terminate.expect("a fault has its Terminate");
            assert_eq!((t.terminate, t.swapped), (fault.terminate(), false));
            assert!(t.terminate.name() != "unknown error");
        }
        Ok(Progress::NeedBytes) => assert!(f.pending() < 70_000, "more than any FPDU"),
        Ok(Progress::NeedReceive | Progress::Terminated) => {}
    }
    for (stag, before) in [CLOSED, FOREIGN, UNMAPPED].into_iter().zip(fixed) {
        assert_eq!(*f.host.region(stag), before, "memory that no peer may write");
    }
    outcome
}

fn segments(setup: &Setup, input: &mut Input<'_>) -> Vec<u8> {
    let mut c = Craft::new(setup.n.crc, setup.n.rx_markers);
    let mut msn = [1u32; 4];
    let mut broken = Vec::new();
    while !input.is_empty() && c.bytes().len() < MOST {
        let op = input.u8();
        if op >> 4 == 15 {
            match op & 3 {
                // Damage that the CRC does not know of.
                0 => broken.push(input.u16()),
                1 => drop(c.raw(input.take(usize::from(op >> 2 & 3) + 1))),
                2 => drop(c.declared(input.u16(), input.take(40))),
                _ => drop(c.ulpdu(input.take(60))),
            }
            continue;
        }
        let ulpdu = segment(op, &mut msn, input);
        c.ulpdu(ulpdu);
    }
    let mut bytes = c.bytes().to_vec();
    for at in broken {
        if let Some(byte) = bytes.get_mut(usize::from(at)) {
            *byte ^= 0x10;
        }
    }
    bytes
}

/// One segment. The high bits of `op` bend its header away from what is right.
fn segment(op: u8, msn: &mut [u32; 4], input: &mut Input<'_>) -> Vec<u8> {
    let bend = op >> 4;
    let control = |opcode, last: bool| {
        let c = if last { Control::last(opcode) } else { Control::more(opcode) };
        match bend {
            1 => Control { ddp_version: 2, ..c },
            2 => Control { rdmap_version: 0, ..c },
            3 => Control { opcode: opcode ^ 5, ..c },
            _ => c,
        }
    };
    let mut place = |qn: usize, mo: u32, last: bool| {
        let now = msn[qn];
        msn[qn] = now.wrapping_add(u32::from(last));
        Place {
            qn: qn as u32 ^ u32::from(bend == 4),
            msn: now ^ u32::from(bend == 5) ^ if bend == 6 { 1 << 31 } else { 0 },
            mo: mo + u32::from(bend == 7),
        }
    };
    match op & 15 {
        0 | 1 => {
            let (stag, to) = target(input);
            craft::tagged(control(0, op & 1 == 0), stag, to, &payload(input))
        }
        2 | 3 => {
            let (kind, mo, data) = (3 + (input.u8() & 3), input.u16(), payload(input));
            let mo = if bend == 8 { u32::from(mo) } else { u32::from(mo & 1) * u32::from(mo >> 1 & 0xfff) };
            craft::untagged(control(kind, op & 1 == 0), VICTIM, place(0, mo, op & 1 == 0), &data)
        }
        4 | 5 => {
            let ((stag, to), len) = (target(input), u32::from(input.u16()));
            let mut all = craft::read_request(1, (7, 8), len, (stag, to));
            if bend == 9 {
                all.push(input.u8());
            }
            craft::untagged(control(1, bend != 10), 0, place(1, 0, true), &all[18..])
        }
        6..=8 => {
            let which = input.u8();
            let to = u64::from(which & 3) * 4096 + u64::from(which >> 2) * u64::from(bend == 11);
            craft::tagged(control(2, op & 15 != 7), SINK, to, &payload(input))
        }
        9 => {
            let (stag, to) = target(input);
            let a = Atomic {
                op: u32::from(input.u8() & 3),
                id: input.u32(),
                stag,
                to: to & !7,
                operands: [input.u64(), input.u64(), 0, !0],
            };
            craft::untagged(control(10, true), 0, place(1, 0, true), &craft::atomic_request(1, a)[18..])
        }
        10 => {
            let body = craft::atomic_response(1, u32::from(input.u8() & 7), input.u64());
            craft::untagged(control(11, true), 0, place(3, 0, true), &body[18..])
        }
        11 | 12 => {
            let len = if bend == 12 { usize::from(input.u8()) } else { 8 };
            craft::untagged(control(8 + (op & 1), bend != 13), 0, place(0, 0, true), &vec![op; len])
        }
        13 => craft::untagged(control(7, true), 0, place(2, 0, true), input.take(60)),
        _ => craft::tagged(control(input.u8() & 15, true), input.u32(), input.u64(), &payload(input)),
    }
}

/// An STag and an offset, both mostly good.
fn target(input: &mut Input<'_>) -> (u32, u64) {
    let (which, offset) = (input.u8(), u64::from(input.u16()));
    match which % 10 {
        0..=3 => (OPEN, OPEN_BASE + offset % 8200),
        4 => (TOP, TOP_BASE.wrapping_add(offset % 4100)),
        5 => (CLOSED, offset),
        6 => (FOREIGN, offset),
        7 => (UNMAPPED, offset),
        8 => (VICTIM, offset % 16_400),
        _ => (NOBODY, offset),
    }
}

/// A payload; its length is often that of what is known to be special.
fn payload(input: &mut Input<'_>) -> Vec<u8> {
    let (len, fill) = (input.u16(), input.u8());
    let len = match len % 8 {
        0 => 0,
        1..=3 => usize::from(len >> 3) % 64,
        4 => [10, 100, 4096, 7][usize::from(len >> 3) % 4],
        5 => 4060 + usize::from(len >> 3) % 100,
        _ => usize::from(len >> 3),
    };
    (0..len).map(|i| fill ^ i as u8).collect()
}
