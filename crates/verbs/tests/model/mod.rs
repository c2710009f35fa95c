//! Strings of bytes as sequences of verbs calls: carried out by the engine on two devices of one process
//! and by a reference model, and compared.
//!
//! The model knows no time. While nothing is under way it says exactly what comes: which calls are
//! refused and why, each completion, every byte of registered memory. Requests that run side by side
//! touch different bytes (otherwise the sequence waits first), so their order does not matter. When
//! something ends a connection, what was under way may have happened or not: then the model allows for
//! both, except where the protocol does not (what came before a refused request, what TCP took before
//! a disconnect, the order of completions, one completion for each request).

#![allow(dead_code, missing_docs, unreachable_pub, reason = "used by a test and by a fuzz target")]

mod actions;
mod generate;
mod reference;
mod withdraw;
mod world;

use rnic_verbs::{Access, QpState, WindowKind};

use generate::Input;
use reference::{Kind, Slot};
use world::{Config, PAIRS, World, all_rights};

/// Longest sequence.
const CALLS: usize = 150;

/// Interprets the bytes.
///
/// # Panics
/// Where engine and model differ, and where the engine hangs.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut w = World::new(Config(input.u16()));
    for _ in 0..CALLS {
        if input.is_empty() {
            break;
        }
        step(&mut w, &mut input);
    }
    end(w, &mut input);
}

fn step(w: &mut World, i: &mut Input<'_>) {
    let what = i.u8();
    // Mostly the pair that is connected from the start.
    let p = [0, 0, 0, 1, 2][usize::from(i.u8() % 5)];
    let x = usize::from(what >> 7);
    match what & 0x7f {
        0..=47 => {
            let s = generate::spec(w, i, p, x);
            w.post(p, x, vec![s]);
        }
        48..=59 => {
            let n = i.u8() % 8 + 1;
            let specs = (0..n).map(|_| generate::spec(w, i, p, x)).collect();
            w.post(p, x, specs);
        }
        60..=75 if x == 1 && p > 0 && what & 1 == 0 => w.post_shared(u32::from(i.u8() % 8) + 1),
        60..=75 => {
            let n = if what & 3 == 0 { i.u8() % 6 + 1 } else { 1 };
            for _ in 0..n {
                let sges = generate::sges(w, i, p, x, true);
                w.post_recv(p, x, sges);
            }
        }
        76..=79 => w.settle(),
        80..=83 => drop(w.drain()),
        84..=86 => register(w, i, x),
        87 | 88 => {
            let (n, how) = (i.u8(), i.u8());
            w.deregister(x, usize::from(n) % 5, how & 1 == 1, how & 2 == 2);
        }
        89..=94 => slots(w, i, x),
        95..=100 => {
            use QpState::{Error, Init, Reset, Rtr, Rts, Sqd};
            let to = [Sqd, Rts, Sqd, Rts, Error, Reset, Init, Rtr][usize::from(i.u8() % 8)];
            w.modify(p, x, to);
        }
        101 | 102 => w.disconnect(p, x),
        103..=110 => w.connect(p),
        111..=114 => write(w, i, x),
        115 => w.destroy(p, x),
        116 | 117 => resize(w, i, x),
        118 => srq(w, i),
        _ => {
            // Both sides at once: nothing in between gives either time to notice.
            for x in [x, 1 - x] {
                let s = generate::spec(w, i, p, x);
                w.post(p, x, vec![s]);
            }
        }
    }
}

fn register(w: &mut World, i: &mut Input<'_>, dev: usize) {
    let (len, rights, pd) = (i.u8(), i.u8(), usize::from(i.u8() & 1));
    if w.sides[dev].regions.len() >= 6 {
        return;
    }
    let len = [0, 1, 64, 4096, 20_000, 4097, 64, 8192][usize::from(len % 8)];
    let access =
        if rights & 0x40 == 0 { all_rights() } else { Access::from_bits_truncate(u32::from(rights & 0x3f)) };
    w.trace.push(format!("  device {dev}: register {len} in {pd}, {access:?}"));
    w.register(dev, pd, len, access);
}

/// Windows and fast regions come and go.
fn slots(w: &mut World, i: &mut Input<'_>, dev: usize) {
    let how = i.u8();
    let pd = usize::from(how >> 2 & 1);
    let fast = how & 1 == 1;
    let many = if fast { w.sides[dev].fasts.len() } else { w.sides[dev].windows.len() };
    if how & 0x30 == 0 || many >= 4 {
        return w.free_slot(dev, usize::from(how >> 6), fast);
    }
    let domain = &w.sides[dev].pds[pd];
    let slot = if fast {
        let max_len = 4096;
        let f = domain.alloc_fast_region(max_len as usize).expect("alloc_fast_region");
        let index = f.rkey() >> 8;
        w.sides[dev].fasts.push((index, f));
        Slot { index, kind: Kind::Fast, pd, max_len }
    } else {
        let (kind, of) = if how & 2 == 0 {
            (Kind::Window1, WindowKind::Type1)
        } else {
            (Kind::Window2, WindowKind::Type2)
        };
        let window = domain.alloc_window(of).expect("alloc_window");
        let index = window.rkey() >> 8;
        w.sides[dev].windows.push((index, window));
        Slot { index, kind, pd, max_len: 0 }
    };
    w.trace.push(format!("  device {dev}: {slot:?}"));
    w.mem[dev].slots.push(slot);
}

/// The owner writes to its memory.
fn write(w: &mut World, i: &mut Input<'_>, dev: usize) {
    let n = w.sides[dev].regions.len();
    let (which, at, len, seed) = (usize::from(i.u8()), u64::from(i.u16()), u64::from(i.u8()), i.u8());
    if n == 0 {
        return;
    }
    let (buf, size) = (w.sides[dev].regions[which % n].buf, w.sides[dev].regions[which % n].mr.len());
    let foot = world::Foot {
        by: (usize::MAX, 0),
        buf: (dev, buf),
        range: (at, at + len),
        write: true,
        remote: false,
    };
    if w.conflicts(&[foot]) {
        w.settle();
        if w.conflicts(&[foot]) {
            return;
        }
    }
    let bytes: Vec<u8> = (0..len as u8).map(|b| b ^ seed).collect();
    let got = w.sides[dev].regions[which % n].mr.write_at(at, &bytes);
    assert_eq!(got.is_ok(), at + len <= size, "{got:?}");
    if got.is_ok() {
        w.mem[dev].bufs[buf].now[at as usize..(at + len) as usize].copy_from_slice(&bytes);
    }
}

fn resize(w: &World, i: &mut Input<'_>, dev: usize) {
    let depth = [0, 1, 3000, 5000][usize::from(i.u8() % 4)];
    let cq = &w.sides[dev].cqs[usize::from(i.u8() & 1)];
    // More may be queued by the time of the call, so a small depth could be refused or not.
    let got = cq.resize(depth);
    if depth == 0 {
        got.expect_err("no queue has no entries");
    } else if depth >= 3000 {
        got.expect("there is room");
    } else {
        let _ = got;
        cq.resize(4096).expect("there is room");
    }
}

fn srq(w: &World, i: &mut Input<'_>) {
    let limit = u32::from(i.u8() % 40);
    let got = w.srq.modify(None, Some(limit));
    assert_eq!(got.is_ok(), limit <= world::SHARED_SLOTS as u32, "{got:?}");
}

/// Everything goes, quietly or in the middle of it, in an order that the bytes choose.
fn end(mut w: World, i: &mut Input<'_>) {
    let how = i.u8();
    if how & 1 == 0 {
        w.settle();
    }
    for n in 0..2 * PAIRS {
        let n = if how & 2 == 0 { n } else { 2 * PAIRS - 1 - n };
        w.destroy(n / 2, n % 2);
    }
    w.settle();
    for dev in 0..2 {
        let side = &mut w.sides[dev];
        if how & 4 == 0 {
            side.regions.clear();
        }
        side.windows.clear();
        side.fasts.clear();
    }
}
