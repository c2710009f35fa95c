//! An echo server whose clients are tasks of one thread, and clients that are tasks of another, on tokio's
//! executor: any other will do, since the library knows of none.
//!
//! `cargo run -p rnic-verbs --example async_server`

use std::error::Error;
use std::net::SocketAddr;
use std::thread;

use rnic_verbs::{
    Access, CompletionOp, ConnParams, ConnRequest, Device, DeviceConfig, ListenConfig, Listener, QpInit,
    RecvWr, SendWr, Status, connect_async,
};

const CLIENTS: u32 = 4;
const ROOM: u32 = 256;

/// Echoes until the client disconnects; how many messages it echoed.
async fn serve(device: Device, request: ConnRequest) -> rnic_verbs::Result<u32> {
    let pd = device.alloc_pd()?;
    let cq = device.create_cq(16, None)?;
    let qp = pd.create_qp(&QpInit::new(&cq))?;
    let buffer = pd.register(ROOM as usize, Access::LOCAL_WRITE)?;
    qp.post_recv(&RecvWr::new(0, &[buffer.sge(0, ROOM)]))?;
    request.accept(&qp, ConnParams::default())?;
    let mut echoed = 0;
    loop {
        let done = cq.next().await?;
        match (done.status, done.opcode) {
            (Status::Success, CompletionOp::Recv) => {
                qp.post_send(&SendWr::send(1, &[buffer.sge(0, done.len)]))?;
            }
            // The echo is on its way: the buffer is free for the next message.
            (Status::Success, _) => {
                echoed += 1;
                qp.post_recv(&RecvWr::new(0, &[buffer.sge(0, ROOM)]))?;
            }
            // Flushed: the client is gone.
            _ => return Ok(echoed),
        }
    }
}

async fn client(device: Device, addr: SocketAddr, number: u32) -> rnic_verbs::Result<String> {
    let pd = device.alloc_pd()?;
    let cq = device.create_cq(16, None)?;
    let qp = pd.create_qp(&QpInit::new(&cq))?;
    connect_async(&qp, addr, ConnParams::default()).await?;
    let buffer = pd.register(ROOM as usize, Access::LOCAL_WRITE)?;
    qp.post_recv(&RecvWr::new(0, &[buffer.sge(0, ROOM)]))?;
    qp.post_send(&SendWr::send_inline(1, format!("task {number}").as_bytes()).unsignaled())?;
    let done = cq.next().await?;
    let mut text = vec![0; done.len as usize];
    buffer.read_at(0, &mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Takes connections and serves each in a task of its own.
async fn server(device: Device, listener: Listener) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut tasks = Vec::new();
    for _ in 0..CLIENTS {
        let request = listener.accept_async().await;
        tasks.push(tokio::spawn(serve(device.clone(), request)));
    }
    for task in tasks {
        println!("served: {} messages", task.await??);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let executor = || tokio::runtime::Builder::new_current_thread().build();
    let device = Device::open(DeviceConfig::default())?;
    let listener = Listener::bind(&device, "127.0.0.1:0".parse()?, ListenConfig::default())?;
    let addr = listener.local_addr()?;
    let serving = thread::spawn(move || executor()?.block_on(server(device, listener)));

    let device = Device::open(DeviceConfig::default())?;
    executor()?.block_on(async {
        let clients: Vec<_> = (0..CLIENTS).map(|n| tokio::spawn(client(device.clone(), addr, n))).collect();
        for task in clients {
            println!("echo: {}", task.await??);
        }
        Ok::<_, Box<dyn Error + Send + Sync>>(())
    })?;
    serving.join().map_err(|_| "the server panicked")?
}
