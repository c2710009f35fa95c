//! The client and its operations.

use super::{
    LIMIT, PeerArgs,
    link::{DEPTH, Link, SIZE, agreed, placed},
    patterned,
};
use anyhow::{Context, Result, bail, ensure};
use rnic_verbs::{Error, RemoteBuffer, SendWr, Sge, Status, connect};
use std::{cell::Cell, collections::VecDeque, thread, time::Duration};

/// A client's connection and what it knows of the other side.
struct Client {
    link: Link,
    /// The server's buffer.
    remote: RemoteBuffer,
    /// The last key that it lent us to be invalidated.
    lent: Cell<u32>,
    seed: u8,
}

pub(super) fn run(args: &PeerArgs) -> Result<bool> {
    let link = Link::new(args)?;
    let addr = args.connect.context("no address")?;
    let established = match connect(&link.qp, addr, args.params()) {
        Ok(established) => established,
        Err(e) => {
            println!("refused: {}", describe(&e));
            return Ok(false);
        }
    };
    println!(
        "connected: {}; private data {} bytes",
        agreed(&established.negotiated),
        established.private_data.len()
    );
    let remote = placed(&established.private_data).unwrap_or(RemoteBuffer { rkey: 0, addr: 0, len: 0 });
    let mut client = Client { link, remote, lent: Cell::new(0), seed: 10 };
    let mut good = true;
    for word in &args.operations {
        client.seed = client.seed.wrapping_add(1);
        match client.operate(word) {
            Ok(()) => println!("{word}: as expected"),
            Err(e) => {
                println!("{word}: {e:#}");
                good = false;
                break;
            }
        }
    }
    if good {
        client.link.qp.disconnect();
    }
    println!("{}", client.link.end());
    Ok(good)
}

fn describe(e: &Error) -> String {
    match e {
        Error::Rejected { private_data, .. } => {
            format!("rejected {:?}", String::from_utf8_lossy(private_data))
        }
        other => other.to_string(),
    }
}

impl Client {
    fn operate(&self, word: &str) -> Result<()> {
        let (op, numbers) = word.split_once(':').unwrap_or((word, ""));
        let mut numbers = numbers.split(':').map(str::parse::<usize>);
        let first = numbers.next().and_then(Result::ok).unwrap_or(64);
        let second = numbers.next().and_then(Result::ok).unwrap_or(64);
        match op {
            "send" => self.send(first, false, None),
            "send-solicited" => self.send(first, true, None),
            "sendinv" => self.send(first, false, Some(self.ask_for_key()?)),
            "zsend" => self.send(0, false, None),
            "write" => self.write(first),
            "read" => self.read(first),
            "zwrite" => self.status_of(SendWr::write(0, &[], self.remote)),
            "zread" => self.status_of(SendWr::read(0, &[], self.remote)),
            "writes" => self.writes(first, second),
            "reads" => self.reads(first, second),
            "badwrite" | "badread" | "pastwrite" | "pastread" => self.forbidden(op, first),
            "stalewrite" => self.stale_write(first),
            "atomics" => self.atomics(),
            "immediate" => self.immediate(),
            "sleep" => {
                thread::sleep(Duration::from_millis(first as u64));
                Ok(())
            }
            "quit" => {
                self.link.send(b"Q")?;
                let end = self.link.qp.wait_disconnected(Some(LIMIT));
                ensure!(end.is_some(), "still connected");
                Ok(())
            }
            _ => bail!("no such operation"),
        }
    }

    fn status_of(&self, wr: SendWr<'_>) -> Result<()> {
        let status = self.link.carry_out(&wr)?;
        ensure!(status == Status::Success, "{status}");
        Ok(())
    }

    /// The local memory of the first `len` bytes of our buffer.
    fn local(&self, len: usize) -> Result<Sge> {
        ensure!(len <= SIZE, "too long");
        Ok(self.link.data.sge(0, len as u32))
    }

    fn expect(&self, message: &[u8]) -> Result<()> {
        let got = self.link.receive()?.context("the connection ended before the answer")?;
        ensure!(got.bytes == message, "an answer of {} bytes that is not the expected one", got.bytes.len());
        Ok(())
    }

    /// Has the server fill (`F`) or verify (`V`) its buffer.
    fn ask(&self, verb: char, len: usize) -> Result<()> {
        self.link.send(format!("{verb} 0 {len} {}", self.seed).as_bytes())?;
        self.expect(b"OK")
    }

    /// A key of the server's that may be invalidated.
    fn ask_for_key(&self) -> Result<u32> {
        self.link.send(b"K")?;
        let got = self.link.receive()?.context("the connection ended before the answer")?;
        let text = String::from_utf8(got.bytes)?;
        let key = u32::from_str_radix(text.trim_start_matches("0x"), 16)?;
        self.lent.set(key);
        Ok(key)
    }

    fn send(&self, len: usize, solicited: bool, invalidate: Option<u32>) -> Result<()> {
        let mut message = patterned(len, self.seed);
        if let Some(first) = message.first_mut() {
            *first = b'*'; // no command
        }
        let sges = [self.link.outgoing(&message)?];
        let sges = if len == 0 { &[][..] } else { &sges };
        let mut wr = SendWr::send(0, sges);
        if let Some(key) = invalidate {
            wr = SendWr::send_invalidate(0, sges, key);
        }
        self.status_of(if solicited { wr.solicited() } else { wr })?;
        self.expect(&message)
    }

    fn write(&self, len: usize) -> Result<()> {
        let local = self.local(len)?;
        self.link.data.write_at(0, &patterned(len, self.seed))?;
        self.status_of(SendWr::write(0, &[local], self.remote))?;
        self.ask('V', len)
    }

    fn read(&self, len: usize) -> Result<()> {
        let local = self.local(len)?;
        self.ask('F', len)?;
        self.link.data.fill(0, len, 0xee)?;
        self.status_of(SendWr::read(0, &[local], self.remote))?;
        self.check(len)
    }

    fn check(&self, len: usize) -> Result<()> {
        let mut found = vec![0; len];
        self.link.data.read_at(0, &mut found)?;
        let wrong = found.iter().zip(&patterned(len, self.seed)).position(|(a, b)| a != b);
        ensure!(wrong.is_none(), "byte {} is wrong", wrong.unwrap_or_default());
        Ok(())
    }

    /// `count` Writes of `len` bytes each, one behind the other in memory, as many at once as the queue takes.
    fn writes(&self, count: usize, len: usize) -> Result<()> {
        self.local(count * len)?;
        self.link.data.write_at(0, &patterned(count * len, self.seed))?;
        self.pieces(count, len, |id, sge, to| SendWr::write(id, std::slice::from_ref(sge), to))?;
        self.ask('V', count * len)
    }

    /// Likewise Reads: far more than the peer serves at once.
    fn reads(&self, count: usize, len: usize) -> Result<()> {
        self.local(count * len)?;
        self.ask('F', count * len)?;
        self.link.data.fill(0, count * len, 0xee)?;
        self.pieces(count, len, |id, sge, from| SendWr::read(id, std::slice::from_ref(sge), from))?;
        self.check(count * len)
    }

    fn pieces(
        &self,
        count: usize,
        len: usize,
        wr: impl for<'a> Fn(u64, &'a Sge, RemoteBuffer) -> SendWr<'a>,
    ) -> Result<()> {
        let mut posted = VecDeque::new();
        for i in 0..count {
            if posted.len() == DEPTH as usize {
                self.finish(&mut posted)?;
            }
            let offset = (i * len) as u64;
            let remote = self.remote.slice(offset, len as u64).context("past the server's buffer")?;
            let id = i as u64;
            self.link.qp.post_send(&wr(id, &self.link.data.sge(offset, len as u32), remote))?;
            posted.push_back(id);
        }
        while !posted.is_empty() {
            self.finish(&mut posted)?;
        }
        Ok(())
    }

    /// Takes one completion, which must be that of the oldest request.
    fn finish(&self, posted: &mut VecDeque<u64>) -> Result<()> {
        let c = self.link.reap()?;
        ensure!(Some(c.wr_id) == posted.pop_front(), "request {} completed out of order", c.wr_id);
        ensure!(c.status == Status::Success, "request {}: {}", c.wr_id, c.status);
        Ok(())
    }

    /// A Write with the key that the last Send has invalidated.
    fn stale_write(&self, len: usize) -> Result<()> {
        self.refused("stalewrite", len, RemoteBuffer { rkey: self.lent.get(), ..self.remote })
    }

    /// What the server must refuse with a Terminate: an rkey of nobody, or bytes past its buffer's end.
    fn forbidden(&self, op: &str, len: usize) -> Result<()> {
        let mut remote = self.remote;
        if op.starts_with("bad") {
            remote.rkey ^= 0x5a5a_5a00;
        } else {
            remote.addr += remote.len - (len / 2) as u64;
        }
        self.refused(op, len, remote)
    }

    fn refused(&self, op: &str, len: usize, remote: RemoteBuffer) -> Result<()> {
        let sges = [self.local(len)?];
        let read = op.ends_with("read");
        let wr = if read { SendWr::read(0, &sges, remote) } else { SendWr::write(0, &sges, remote) };
        let status = self.link.carry_out(&wr)?;
        // A Write completes when TCP has it; a Read must not.
        ensure!(!read || status != Status::Success, "it succeeded");
        println!("{op}: completed with {status}");
        self.link.qp.wait_disconnected(Some(LIMIT)).context("still connected")?;
        Ok(())
    }

    /// RFC 7306: each operation once, on the first eight bytes of the server's buffer.
    fn atomics(&self) -> Result<()> {
        let (data, at) = (&self.link.data, self.remote);
        data.store_u64(0, 1000)?;
        self.status_of(SendWr::write(0, &[data.sge(0, 8)], at))?;
        let former = data.sge(8, 8);
        let steps = [
            (SendWr::fetch_add(0, &former, at, 5), 1000),
            (SendWr::cmp_swap(0, &former, at, 1005, 7), 1005),
            (SendWr::cmp_swap(0, &former, at, 1005, 8), 7),
            (SendWr::swap(0, &former, at, 9), 7),
        ];
        for (wr, expected) in steps {
            data.store_u64(8, 0)?;
            self.status_of(wr)?;
            let found = data.load_u64(8)?;
            ensure!(found == expected, "{:?}: the former value was {found}", wr.op);
        }
        self.status_of(SendWr::read(0, &[former], at))?;
        ensure!(data.load_u64(8)? == 9, "the last value is {}", data.load_u64(8)?);
        Ok(())
    }

    fn immediate(&self) -> Result<()> {
        self.status_of(SendWr::immediate(0, 0x0123_4567_89ab_cdef))?;
        self.expect(b"immediate 0x123456789abcdef")
    }
}
