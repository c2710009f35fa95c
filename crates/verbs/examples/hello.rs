//! Two queue pairs of one process, connected over loopback: one sends, the other receives.
//!
//! `cargo run -p rnic-verbs --example hello`

use std::error::Error;
use std::thread;

use rnic_verbs::{
    Access, Completion, ConnParams, Device, DeviceConfig, ListenConfig, Listener, QpInit, RecvWr, SendWr,
    connect,
};

fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::open(DeviceConfig::default())?;
    let listener = Listener::bind(&device, "127.0.0.1:0".parse()?, ListenConfig::default())?;
    let addr = listener.local_addr()?;

    // The receiver: memory, a posted receive, then the connection.
    let receiver = thread::spawn(move || -> rnic_verbs::Result<String> {
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(16, None)?;
        let qp = pd.create_qp(&QpInit::new(&cq))?;
        let inbox = pd.register(64, Access::LOCAL_WRITE)?;
        qp.post_recv(&RecvWr::new(1, &[inbox.sge(0, 64)]))?;
        listener.accept(None)?.accept(&qp, ConnParams::default())?;
        let mut done = [Completion::default()];
        cq.wait(&mut done, None)?;
        let mut text = vec![0; done[0].len as usize];
        inbox.read_at(0, &mut text)?;
        Ok(format!("{}: {}", done[0].status, String::from_utf8_lossy(&text)))
    });

    let device = Device::open(DeviceConfig::default())?;
    let pd = device.alloc_pd()?;
    let cq = device.create_cq(16, None)?;
    let qp = pd.create_qp(&QpInit::new(&cq))?;
    connect(&qp, addr, ConnParams::default())?;
    let outbox = pd.register(64, Access::LOCAL_WRITE)?;
    let text = b"hello over RDMA";
    outbox.write_at(0, text)?;
    qp.post_send(&SendWr::send(7, &[outbox.sge(0, text.len() as u32)]))?;
    let mut done = [Completion::default()];
    cq.wait(&mut done, None)?;
    println!("sent: {}", done[0].status);
    println!("received: {}", receiver.join().map_err(|_| "the receiver panicked")??);
    Ok(())
}
