//! The server.

use super::{
    PeerArgs,
    link::{Link, Received, agreed, place},
    patterned,
};
use anyhow::Result;
use rnic_verbs::{ConnParams, Device, ListenConfig, Listener};
use std::{net::SocketAddr, thread, time::Duration};

pub(super) fn run(addr: SocketAddr, args: &PeerArgs) -> Result<bool> {
    let device = Device::open(args.device())?;
    let listener = Listener::bind(&device, addr, ListenConfig::with_policy(args.policy()))?;
    println!("listening");
    let mut good = true;
    for _ in 0..args.connections {
        let request = listener.accept(Some(super::LIMIT))?;
        println!("request: private data {} bytes", request.private_data().len());
        if args.reject {
            request.reject(b"no thanks")?;
            println!("rejected");
            continue;
        }
        let link = Link::on(&device, &device.alloc_pd()?, args)?;
        let mut params = ConnParams::with_policy(args.policy());
        params.private_data = place(link.data.remote());
        let established = request.accept(&link.qp, params)?;
        println!("connected: {}", agreed(&established.negotiated));
        if let Some(ms) = args.late {
            thread::sleep(Duration::from_millis(ms));
            link.post_receives(args)?;
        }
        good &= serve(&link)?;
        println!("{}", link.end());
    }
    Ok(good)
}

/// Obeys messages until the connection ends. Whether every check found what it should.
fn serve(link: &Link) -> Result<bool> {
    let mut good = true;
    while let Some(Received { bytes, invalidated, immediate }) = link.receive()? {
        if let Some(value) = immediate {
            link.send(format!("immediate {value:#x}").as_bytes())?;
            continue;
        }
        println!(
            "received {} bytes{}",
            bytes.len(),
            if invalidated.is_some() { " with invalidate" } else { "" }
        );
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(63)]).into_owned();
        let words: Vec<&str> = text.split_whitespace().collect();
        match words[..] {
            ["Q"] => link.qp.disconnect(),
            ["K"] => link.send(format!("{:#x}", link.lend()?).as_bytes())?,
            [verb @ ("V" | "F"), offset, len, seed] => {
                let (offset, len): (usize, usize) = (offset.parse()?, len.parse()?);
                let expected = patterned(offset + len, seed.parse::<usize>()? as u8).split_off(offset);
                if verb == "F" {
                    link.data.write_at(offset as u64, &expected)?;
                    link.send(b"OK")?;
                } else {
                    let mut found = vec![0; len];
                    link.data.read_at(offset as u64, &mut found)?;
                    let wrong = found.iter().zip(&expected).position(|(a, b)| a != b);
                    println!("verify {len} bytes: {}", if wrong.is_none() { "right" } else { "WRONG" });
                    link.send(
                        wrong.map_or_else(|| "OK".to_owned(), |i| format!("BAD {}", offset + i)).as_bytes(),
                    )?;
                    good &= wrong.is_none();
                }
            }
            _ => link.send(&bytes)?,
        }
    }
    Ok(good)
}
