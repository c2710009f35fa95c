//! Memory is withdrawn, also under requests that use it.

use super::actions::Refusal;
use super::reference::Expect;
use super::world::{Fate, Foot, Region, World};

impl World {
    /// Withdraws a region, by either way; `rude`: whatever is under way.
    pub fn deregister(&mut self, dev: usize, n: usize, by_drop: bool, rude: bool) {
        let Some(r) = self.sides[dev].regions.get(n) else { return };
        let (key, buf) = (r.mr.rkey(), r.buf);
        let foot =
            Foot { by: (usize::MAX, 0), buf: (dev, buf), range: (0, u64::MAX), write: true, remote: false };
        let well = self.pairs.iter().all(|p| matches!(p.fate, Fate::Well | Fate::Doubt));
        if self.conflicts(&[foot]) && !(rude && well) {
            self.settle();
        }
        let queued =
            |w: &Self, f: &Foot| w.pairs[f.by.0].halves[f.by.1].sq.iter().any(|s| s.queued.is_some());
        let children = self.mem[dev].children(key);
        self.trace.push(format!("  device {dev}: withdraw {key:x}, drop: {by_drop}, children: {children}"));
        let touched: Vec<_> =
            self.flight.iter().filter(|f| f.buf == (dev, buf) && !queued(self, f)).map(|f| f.by.0).collect();
        let r = self.sides[dev].regions.remove(n);
        if by_drop {
            drop(r);
        } else if let Err(e) = r.mr.deregister() {
            assert!(children > 0 || !touched.is_empty(), "{e}");
            assert_eq!(Refusal::from(&e.error), Refusal::RegionBusy, "deregister");
            self.sides[dev].regions.push(Region { mr: e.region, ..r });
            return;
        } else {
            assert!(children == 0 || !touched.is_empty(), "deregistered under {children} windows");
        }
        self.mem[dev].remove(key);
        for p in touched {
            self.doubt(p);
        }
    }

    /// What is under way on this pair may fail now.
    fn doubt(&mut self, p: usize) {
        let pair = &mut self.pairs[p];
        if pair.live && pair.fate == Fate::Well {
            pair.fate = Fate::Doubt;
            for h in &mut pair.halves {
                let sent = h.sq.iter_mut().filter(|s| s.queued.is_none() && s.expect == Expect::Success);
                sent.for_each(|s| s.expect = Expect::Any);
                let recvs = h.rq.iter_mut().filter(|r| r.message.is_some() && r.expect == Expect::Success);
                recvs.for_each(|r| r.expect = Expect::Any);
            }
            for c in self.mem.iter_mut().flat_map(|m| &mut m.bufs).flat_map(|b| &mut b.changes) {
                c.doubt |= c.by.0 == p;
            }
        }
    }

    /// Gives a window or fast region back.
    pub fn free_slot(&mut self, dev: usize, n: usize, fast: bool) {
        self.settle();
        let index = if fast {
            if n >= self.sides[dev].fasts.len() {
                return;
            }
            self.sides[dev].fasts.remove(n).0
        } else {
            if n >= self.sides[dev].windows.len() {
                return;
            }
            self.sides[dev].windows.remove(n).0
        };
        self.trace.push(format!("  device {dev}: free slot {index:x}"));
        self.mem[dev].remove_slot(index);
    }
}
