//! A key-value store that is read one-sided: the client finds a key by RDMA Reads alone, and the server's
//! program does nothing for it. Each bucket carries a version that is odd while it changes; the client
//! reads again where it met one.
//!
//! `cargo run -p rnic-verbs --example kv_get`

use std::error::Error;
use std::thread;

use rnic_verbs::{
    Access, Completion, CompletionQueue, ConnParams, Device, DeviceConfig, ListenConfig, Listener,
    MemoryRegion, QpInit, QueuePair, RemoteBuffer, SendWr, Status, connect,
};

const BUCKETS: u64 = 64;
/// Version, key, value: eight bytes each.
const BUCKET: u64 = 24;

fn bucket_of(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15) % BUCKETS
}

/// The server's way to change a bucket.
fn put(table: &MemoryRegion, key: u64, value: u64) -> rnic_verbs::Result<()> {
    let mut at = bucket_of(key);
    loop {
        let (version, there) = (table.load_u64(at * BUCKET)?, table.load_u64(at * BUCKET + 8)?);
        if there == 0 || there == key {
            table.store_u64(at * BUCKET, version + 1)?;
            table.store_u64(at * BUCKET + 8, key)?;
            table.store_u64(at * BUCKET + 16, value)?;
            return table.store_u64(at * BUCKET, version + 2);
        }
        at = (at + 1) % BUCKETS;
    }
}

struct Client {
    qp: QueuePair,
    cq: CompletionQueue,
    scratch: MemoryRegion,
    table: RemoteBuffer,
}

impl Client {
    fn read(&self, bucket: u64) -> Result<[u64; 3], Box<dyn Error>> {
        let from = self.table.slice(bucket * BUCKET, BUCKET).ok_or("no such bucket")?;
        self.qp.post_send(&SendWr::read(bucket, &[self.scratch.sge(0, BUCKET as u32)], from))?;
        let mut done = [Completion::default()];
        self.cq.wait(&mut done, None)?;
        if done[0].status != Status::Success {
            return Err(done[0].status.as_str().into());
        }
        let word = |i: u64| self.scratch.load_u64(i * 8);
        Ok([word(0)?, word(1)?, word(2)?])
    }

    fn get(&self, key: u64) -> Result<Option<u64>, Box<dyn Error>> {
        let mut at = bucket_of(key);
        loop {
            let (first, second) = (self.read(at)?, self.read(at)?);
            if first[0] % 2 == 1 || first != second {
                continue; // it changes just now
            }
            match first[1] {
                0 => return Ok(None),
                k if k == key => return Ok(Some(first[2])),
                _ => at = (at + 1) % BUCKETS,
            }
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::open(DeviceConfig::default())?;
    let listener = Listener::bind(&device, "127.0.0.1:0".parse()?, ListenConfig::default())?;
    let addr = listener.local_addr()?;
    let server = thread::spawn(move || -> rnic_verbs::Result<()> {
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(16, None)?;
        let qp = pd.create_qp(&QpInit::new(&cq))?;
        let table = pd.register((BUCKETS * BUCKET) as usize, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
        for key in 1..=20 {
            put(&table, key, key * key)?;
        }
        // The client learns of the table by private data; from then on this program is not needed.
        let remote = table.remote();
        let mut place = remote.addr.to_be_bytes().to_vec();
        place.extend(remote.rkey.to_be_bytes());
        listener.accept(None)?.accept(&qp, ConnParams::with_private_data(place))?;
        qp.wait_disconnected(None);
        Ok(())
    });

    let device = Device::open(DeviceConfig::default())?;
    let pd = device.alloc_pd()?;
    let cq = device.create_cq(16, None)?;
    let qp = pd.create_qp(&QpInit::new(&cq))?;
    let place = connect(&qp, addr, ConnParams::default())?.private_data;
    let (addr, rkey) = place.split_first_chunk::<8>().ok_or("private data too short")?;
    let rkey = rkey.first_chunk::<4>().ok_or("private data too short")?;
    let table = RemoteBuffer {
        addr: u64::from_be_bytes(*addr),
        rkey: u32::from_be_bytes(*rkey),
        len: BUCKETS * BUCKET,
    };
    let client = Client { scratch: pd.register(BUCKET as usize, Access::LOCAL_WRITE)?, qp, cq, table };
    for key in [3, 7, 20, 21] {
        println!("get {key}: {:?}", client.get(key)?);
    }
    client.qp.disconnect();
    server.join().map_err(|_| "the server panicked")??;
    Ok(())
}
