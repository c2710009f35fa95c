//! Addresses as people write them: `host`, `host:port`, `:port`, `[v6]:port`, `v6`.
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use crate::error::{Failure, Result};

/// A host and a port, either of which may be left out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct HostPort {
    /// Name or address; `None` is every address of this machine.
    pub(crate) host: Option<String>,
    /// TCP port; `None` is the command's default.
    pub(crate) port: Option<u16>,
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        // An IPv6 address without brackets: its colons are its own.
        if text.parse::<Ipv6Addr>().is_ok() {
            return Ok(Self { host: Some(text.to_owned()), port: None });
        }
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest.split_once(']').ok_or("no `]` after the IPv6 address")?;
                let port = match after {
                    "" => None,
                    _ => Some(after.strip_prefix(':').ok_or("only `:PORT` may follow `]`")?),
                };
                (host, port)
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let port = match port {
            Some(digits) => Some(digits.parse().map_err(|_| format!("`{digits}` is no port (0 to 65535)"))?),
            None => None,
        };
        let host = match host {
            "" | "*" => None,
            name => Some(name.to_owned()),
        };
        if host.is_none() && port.is_none() {
            return Err("neither a host nor a port".to_owned());
        }
        Ok(Self { host, port })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Some(host) if host.contains(':') => write!(f, "[{host}]")?,
            Some(host) => f.write_str(host)?,
            None => {}
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

impl HostPort {
    /// Where to listen: the named address, else the wildcard (IPv6's, which takes IPv4 too).
    pub(crate) fn resolve_local(&self, default_port: u16) -> Result<SocketAddr> {
        match &self.host {
            None => {
                let port = self.port.unwrap_or(default_port);
                Ok(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port))
            }
            Some(_) => self.resolve_remote(default_port),
        }
    }

    /// Where to connect: the first address that the name has.
    pub(crate) fn resolve_remote(&self, default_port: u16) -> Result<SocketAddr> {
        let Some(host) = &self.host else {
            return Err(Failure::usage(format!("`{self}` names no host to connect to"))
                .hint("write HOST or HOST:PORT, for example 10.0.0.2:7174"));
        };
        let port = self.port.unwrap_or(default_port);
        let unknown = |why: String| {
            Failure::failed(format!("host `{host}` is not known: {why}"))
                .hint("check the spelling, or give the IP address itself")
        };
        (host.as_str(), port)
            .to_socket_addrs()
            .map_err(|error| unknown(error.to_string()))?
            .next()
            .ok_or_else(|| unknown("it has no address".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (Option<String>, Option<u16>) {
        let address: HostPort = text.parse().unwrap();
        (address.host, address.port)
    }

    #[test]
    fn every_way_to_write_an_address() {
        let host = |name: &str| Some(name.to_owned());
        assert_eq!(parse("server"), (host("server"), None));
        assert_eq!(parse("10.0.0.2:7"), (host("10.0.0.2"), Some(7)));
        assert_eq!(parse(":7"), (None, Some(7)));
        assert_eq!(parse("*:7"), (None, Some(7)));
        assert_eq!(parse("::1"), (host("::1"), None));
        assert_eq!(parse("[::1]"), (host("::1"), None));
        assert_eq!(parse("[fe80::1%lo]:65535"), (host("fe80::1%lo"), Some(65535)));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", ":", "host:", "host:x", "host:65536", "[::1", "[::1]7", "*"] {
            assert!(text.parse::<HostPort>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_printed_parses_to_the_same() {
        for text in ["server:1", "[::1]:2", ":3", "10.0.0.1"] {
            assert_eq!(text.parse::<HostPort>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn the_wildcard_takes_both_families_and_a_peer_must_be_named() {
        let any: HostPort = ":9".parse().unwrap();
        assert_eq!(any.resolve_local(1).unwrap().to_string(), "[::]:9");
        assert_eq!(any.resolve_remote(1).unwrap_err().exit, crate::error::Exit::Usage);
        let local: HostPort = "127.0.0.1".parse().unwrap();
        assert_eq!(local.resolve_remote(5).unwrap().to_string(), "127.0.0.1:5");
    }
}
