//! An echo server and its clients as tasks, on an executor of twenty lines: any other will do.
//!
//! `cargo run -p rnic-verbs --example async_server`

use std::error::Error;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use rnic_verbs::{
    Access, Completion, CompletionOp, CompletionQueue, ConnParams, ConnRequest, Device, DeviceConfig,
    ListenConfig, Listener, QpInit, RecvWr, SendWr, Status, connect_async,
};

/// Wakes the thread that runs the task.
struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return value;
        }
        thread::park();
    }
}

async fn next(cq: &CompletionQueue) -> rnic_verbs::Result<Completion> {
    let mut one = [Completion::default()];
    poll_fn(|cx| cq.poll_completions(cx, &mut one)).await?;
    Ok(one[0])
}

/// Echoes until the client disconnects.
async fn serve(device: Device, request: ConnRequest) -> rnic_verbs::Result<u32> {
    let pd = device.alloc_pd()?;
    let cq = device.create_cq(16, None)?;
    let qp = pd.create_qp(&QpInit::new(&cq))?;
    let buffer = pd.register(256, Access::LOCAL_WRITE)?;
    qp.post_recv(&RecvWr::new(0, &[buffer.sge(0, 256)]))?;
    request.accept(&qp, ConnParams::default())?;
    let mut echoed = 0;
    loop {
        let done = next(&cq).await?;
        match (done.status, done.opcode) {
            (Status::Success, CompletionOp::Recv) => {
                qp.post_send(&SendWr::send(1, &[buffer.sge(0, done.len)]))?;
            }
            (Status::Success, _) => {
                echoed += 1;
                qp.post_recv(&RecvWr::new(0, &[buffer.sge(0, 256)]))?;
            }
            _ => return Ok(echoed),
        }
    }
}

async fn client(device: Device, addr: SocketAddr, number: u32) -> rnic_verbs::Result<String> {
    let pd = device.alloc_pd()?;
    let cq = device.create_cq(16, None)?;
    let qp = pd.create_qp(&QpInit::new(&cq))?;
    connect_async(&qp, addr, ConnParams::default()).await?;
    let buffer = pd.register(256, Access::LOCAL_WRITE)?;
    qp.post_recv(&RecvWr::new(0, &[buffer.sge(0, 256)]))?;
    qp.post_send(&SendWr::send_inline(1, format!("task {number}").as_bytes()).unsignaled())?;
    let done = next(&cq).await?;
    let mut text = vec![0; done.len as usize];
    buffer.read_at(0, &mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn main() -> Result<(), Box<dyn Error>> {
    const CLIENTS: u32 = 4;
    let device = Device::open(DeviceConfig::default())?;
    let listener = Listener::bind(&device, "127.0.0.1:0".parse()?, ListenConfig::default())?;
    let addr = listener.local_addr()?;
    let server = thread::spawn(move || {
        let tasks: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let request = block_on(listener.accept_async());
                let device = device.clone();
                thread::spawn(move || block_on(serve(device, request)))
            })
            .collect();
        tasks.into_iter().map(|t| t.join().map_err(|_| "a task panicked")).collect::<Vec<_>>()
    });
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| {
            thread::spawn(move || {
                let device = Device::open(DeviceConfig::default())?;
                block_on(client(device, addr, n))
            })
        })
        .collect();
    for c in clients {
        println!("echo: {}", c.join().map_err(|_| "a client panicked")??);
    }
    for served in server.join().map_err(|_| "the server panicked")? {
        println!("served: {} messages", served??);
    }
    Ok(())
}
