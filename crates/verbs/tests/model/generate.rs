//! Bytes into work requests: mostly such as work, some that cannot.

use rnic_verbs::{Access, BindWindow, FastRegister, SendOp, Sge};

use super::reference::{Key, Kind, Spec};
use super::world::World;

/// Bytes taken one after another; behind the end there are zeros.
#[derive(Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn u8(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes([self.u8(), self.u8()])
    }

    /// True once in `n` times, for most inputs.
    fn one_in(&mut self, n: u8) -> bool {
        self.u8() % n == n - 1
    }
}

const LENGTHS: [u32; 16] = [0, 1, 8, 8, 17, 64, 64, 200, 512, 513, 1000, 1500, 3000, 4096, 9000, 20_000];

fn choose<'a>(
    w: &'a World,
    i: &mut Input<'_>,
    dev: usize,
    pd: usize,
    need: Access,
    remote: bool,
) -> Option<&'a Key> {
    let n = usize::from(i.u8());
    let local = |k: &&Key| remote || matches!(k.kind, Kind::Region | Kind::Fast);
    let mine = |k: &&Key| !w.srq_region.mr.rkey().eq(&k.key);
    let keys = w.mem[dev].keys.iter().filter(mine);
    let good: Vec<_> =
        keys.clone().filter(|k| k.valid && k.pd == pd && k.access.contains(need)).filter(local).collect();
    let any: Vec<_> = keys.collect();
    // One in sixteen is any key that there was ever.
    let from = if n < 240 && !good.is_empty() { good } else { any };
    from.get(n % from.len().max(1)).copied()
}

/// A place of `len` bytes under a key: inside it if possible, now and then not.
fn place(i: &mut Input<'_>, k: &Key, len: u32, step: u64) -> (u32, u64) {
    let (at, odd) = (u64::from(i.u16()), i.u8());
    let room = k.len.saturating_sub(u64::from(len));
    let inside = k.iova.wrapping_add(if room == 0 { 0 } else { at % (room + 1) } / step * step);
    match odd {
        255 => (k.key ^ 1, inside),
        254 => (k.key, k.iova.wrapping_add(room).wrapping_add(1)),
        253 => (k.key, k.iova.wrapping_sub(1)),
        252 => (k.key, u64::MAX - 3),
        251 => (k.key.wrapping_add(256), inside),
        _ => (k.key, inside),
    }
}

fn sges_of(w: &World, i: &mut Input<'_>, p: usize, x: usize, write: bool, len: u32) -> Vec<Sge> {
    let pd = w.pairs[p].halves[x].pd;
    let shape = i.u8();
    let n = match shape {
        0..=199 => 1,
        200..=247 => u32::from(shape % 7) + 2,
        248..=250 => 9,
        _ => 0,
    };
    let need = if write { Access::LOCAL_WRITE } else { Access::empty() };
    let mut out = vec![];
    for j in 0..n {
        let part = if j + 1 == n { len - len / n * (n - 1) } else { len / n };
        let Some(k) = choose(w, i, x, pd, need, false) else { continue };
        let part = if u64::from(part) > k.len && !i.one_in(8) { k.len as u32 } else { part };
        let (lkey, addr) = place(i, k, part, 1);
        out.push(Sge { addr, len: part, lkey });
    }
    out
}

/// Local memory for a receive.
pub fn sges(w: &World, i: &mut Input<'_>, p: usize, x: usize, write: bool) -> Vec<Sge> {
    let len = LENGTHS[usize::from(i.u8() % 16)];
    sges_of(w, i, p, x, write, len)
}

fn bind(w: &World, i: &mut Input<'_>, x: usize, pd: usize) -> Option<SendOp> {
    let (n, rights) = (usize::from(i.u8()), i.u8());
    let side = &w.sides[x];
    let fast = n & 1 == 1;
    let region = choose(w, i, x, pd, Access::MW_BIND, false)?;
    let len = LENGTHS[usize::from(i.u8() % 14)];
    let (key, addr) = place(i, region, len, if rights & 8 == 0 { 8 } else { 1 });
    let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let mut access =
        if rights & 0x80 == 0 { remote } else { Access::from_bits_truncate(u32::from(rights & 0x2f)) };
    let len = u64::from(len);
    // Handles give the next key; the model does not need to know which.
    if fast {
        if rights & 0x80 == 0 {
            access |= Access::LOCAL_WRITE;
        }
        let f = &side.fasts.get(n / 2 % side.fasts.len().max(1))?.1;
        let rkey = f.rkey() & !0xff | u32::from((f.rkey() as u8).wrapping_add(1 + (n as u8 & 3)));
        let iova = if rights & 0x40 == 0 { addr } else { 0x1_0000 };
        return Some(SendOp::FastRegister(FastRegister { rkey, region: key, addr, len, iova, access }));
    }
    let m = &side.windows.get(n / 2 % side.windows.len().max(1))?.1;
    let rkey = m.rkey() & !0xff | u32::from((m.rkey() as u8).wrapping_add(1 + (n as u8 & 3)));
    Some(SendOp::BindWindow(BindWindow { rkey, region: key, addr, len, access }))
}

/// A request for a send queue.
pub fn spec(w: &mut World, i: &mut Input<'_>, p: usize, x: usize) -> Spec {
    let (what, flags, y) = (i.u8(), i.u8(), 1 - x);
    let (pd, peer_pd) = (w.pairs[p].halves[x].pd, w.pairs[p].halves[y].pd);
    let mut len = LENGTHS[usize::from(i.u8() % 16)];
    let mut inline = None;
    let remote = |w: &World, i: &mut Input<'_>, need, len, step| {
        choose(w, i, y, peer_pd, need, true).map_or((7, 0), |k| place(i, k, len, step))
    };
    let kind = what % 24;
    let mut write = false;
    let op = match kind {
        0..=4 => SendOp::Send,
        5..=9 => {
            let (rkey, raddr) = remote(w, i, Access::REMOTE_WRITE, len, 1);
            SendOp::Write { raddr, rkey }
        }
        10..=13 => {
            write = true;
            let (rkey, raddr) = remote(w, i, Access::REMOTE_READ, len, 1);
            if kind == 13 { SendOp::ReadInvalidate { raddr, rkey } } else { SendOp::Read { raddr, rkey } }
        }
        14..=16 => {
            (write, len) = (true, if i.one_in(32) { len } else { 8 });
            let step = if i.one_in(32) { 1 } else { 8 };
            let (rkey, raddr) = remote(w, i, Access::REMOTE_ATOMIC, 8, step);
            let (a, b) = (u64::from(i.u8()) << 56 | u64::from(i.u8()), u64::from(i.u16()) * 0x0001_0100_0101);
            match kind {
                14 => SendOp::FetchAdd { raddr, rkey, add: a, mask: b },
                15 => SendOp::Swap { raddr, rkey, swap: a, mask: if b == 0 { !0 } else { b } },
                // Often of few bits, so that it sometimes holds.
                _ => SendOp::CmpSwap {
                    raddr,
                    rkey,
                    compare: a,
                    compare_mask: 1 << (a & 63),
                    swap: b,
                    swap_mask: !0,
                },
            }
        }
        17 => {
            len = if i.one_in(32) { len } else { 0 };
            SendOp::Immediate(u64::from(i.u16()))
        }
        18 => {
            let key = choose(w, i, y, peer_pd, Access::empty(), true).map_or(9, |k| k.key);
            SendOp::SendInvalidate(key)
        }
        19 => {
            len = 0;
            let key = choose(w, i, x, pd, Access::empty(), true).map_or(9, |k| k.key);
            SendOp::LocalInvalidate(key)
        }
        20..=22 => {
            len = if i.one_in(64) { len } else { 0 };
            bind(w, i, x, pd).unwrap_or(SendOp::Send)
        }
        _ => {
            inline = Some((0..i.u8() % 140).collect());
            let (rkey, raddr) = remote(w, i, Access::REMOTE_WRITE, 140, 1);
            if flags & 0x10 == 0 { SendOp::Write { raddr, rkey } } else { SendOp::Send }
        }
    };
    let mut sges =
        if inline.is_none() && !(len == 0 && kind >= 17) { sges_of(w, i, p, x, write, len) } else { vec![] };
    if (14..=16).contains(&kind)
        && let [s] = &mut sges[..]
    {
        s.len = 8;
    }
    let id = w.id(false);
    let (signaled, fenced, solicited) = (flags & 3 != 3, flags & 0xc == 0xc, flags & 0x20 != 0);
    Spec { id, op, sges, inline, signaled, fenced, solicited }
}
