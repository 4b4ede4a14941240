//! Whom `http` may call: what `--http-allow` lists.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, bail};
use url::Host;

use super::address::{Network, special_purpose};

/// The hosts that may be called. Nobody, unless somebody is listed.
#[derive(Debug, Clone, Default)]
pub(crate) struct AllowedHosts {
    entries: Vec<AllowedHost>,
}

/// One host, name pattern or block of addresses, on one port or on all.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AllowedHost {
    host: HostPattern,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum HostPattern {
    /// `*`: every public host.
    Public,
    Name(String),
    /// `*.example.com`: every name that ends with `.example.com`.
    Subdomains(String),
    Network(Network),
}

impl AllowedHosts {
    pub(crate) fn new(list: &[String]) -> anyhow::Result<Self> {
        let entry = |text: &String| {
            AllowedHost::parse(text.trim()).with_context(|| format!("read --http-allow {text:?}"))
        };
        Ok(Self { entries: list.iter().map(entry).collect::<anyhow::Result<_>>()? })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The same, and one address more.
    pub(crate) fn with_address(mut self, address: SocketAddr) -> Self {
        let what = HostPattern::Network(address.ip().into());
        self.entries.push(AllowedHost { host: what, port: Some(address.port()) });
        self
    }

    /// Checks a name, before it is resolved.
    pub(super) fn check_name(&self, name: &str, port: u16) -> Result<(), String> {
        let is_named = |entry: &AllowedHost| match &entry.host {
            HostPattern::Public => true,
            HostPattern::Name(known) => known == name,
            HostPattern::Subdomains(suffix) => {
                let rest = name.strip_suffix(&**suffix).and_then(|rest| rest.strip_suffix('.'));
                rest.is_some_and(|rest| !rest.is_empty())
            }
            HostPattern::Network(_) => false,
        };
        if self.entries_for_port(port).any(is_named) {
            return Ok(());
        }
        Err(format!(
            "{name}:{port} is not allowed; a worker with `--http-allow {name}` may call it"
        ))
    }

    /// Checks an address that a URL names by itself.
    pub(super) fn check_address(&self, address: SocketAddr) -> Result<(), String> {
        if self.contains_address(address) {
            return Ok(());
        }
        if let Some(what) = special_purpose(address.ip()) {
            return Err(refused_message(&address.ip().to_string(), address, what));
        }
        if self.entries_for_port(address.port()).any(|entry| entry.host == HostPattern::Public) {
            return Ok(());
        }
        let ip = address.ip();
        Err(format!("{address} is not allowed; a worker with `--http-allow {ip}` may call it"))
    }

    /// Checks an address that an allowed name has led to.
    pub(super) fn check_resolved(&self, name: &str, address: SocketAddr) -> Result<(), String> {
        let is_local = name == "localhost" && address.ip().is_loopback() && {
            let local = HostPattern::Name("localhost".to_owned());
            self.entries_for_port(address.port()).any(|entry| entry.host == local)
        };
        match special_purpose(address.ip()) {
            Some(what) if !is_local && !self.contains_address(address) => {
                Err(refused_message(name, address, what))
            }
            _ => Ok(()),
        }
    }

    fn contains_address(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        let contains = |entry: &AllowedHost| matches!(entry.host, HostPattern::Network(network) if network.contains(ip));
        self.entries_for_port(address.port()).any(contains)
    }

    fn entries_for_port(&self, port: u16) -> impl Iterator<Item = &AllowedHost> {
        self.entries.iter().filter(move |entry| entry.port.is_none_or(|listed| listed == port))
    }
}

fn refused_message(host: &str, address: SocketAddr, what: &str) -> String {
    let ip = address.ip().to_canonical();
    let led = if host == address.ip().to_string() { String::new() } else { format!(" as {host}") };
    format!(
        "{address}{led} is refused: {ip} is {what}; only a worker with `--http-allow {ip}` may \
         call it"
    )
}

impl AllowedHost {
    fn parse(text: &str) -> anyhow::Result<Self> {
        if text.contains("://") {
            bail!("it names a host, not a URL; write for example api.example.com");
        }
        let (host, port) = split_port(text)?;
        let what = match host {
            "*" => HostPattern::Public,
            _ => match host.strip_prefix("*.") {
                Some(rest) => HostPattern::Subdomains(parse_name(rest)?),
                None => parse_host(host)?,
            },
        };
        Ok(Self { host: what, port })
    }
}

/// Takes the port off: `HOST`, `HOST:PORT`, `[IPV6]:PORT` or a bare IPv6 address.
fn split_port(text: &str) -> anyhow::Result<(&str, Option<u16>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').context("the closing `]` is missing")?;
        return match rest.strip_prefix(':') {
            Some(port) => Ok((host, Some(parse_port(port)?))),
            None if rest.is_empty() => Ok((host, None)),
            None => bail!("behind `]` stands `:PORT` or nothing"),
        };
    }
    match text.split_once(':') {
        Some((_, port)) if port.contains(':') => Ok((text, None)),
        Some((host, port)) => Ok((host, Some(parse_port(port)?))),
        None => Ok((text, None)),
    }
}

fn parse_port(text: &str) -> anyhow::Result<u16> {
    match text.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => bail!("{text:?} is not a port from 1 to 65535"),
    }
}

fn parse_host(host: &str) -> anyhow::Result<HostPattern> {
    if host.contains('/') || host.parse::<IpAddr>().is_ok() {
        return Ok(HostPattern::Network(host.parse().map_err(anyhow::Error::msg)?));
    }
    Ok(HostPattern::Name(parse_name(host)?))
}

/// A name as a URL would have it: in small letters, without a dot at the end.
fn parse_name(text: &str) -> anyhow::Result<String> {
    match Host::parse(text) {
        Ok(Host::Domain(name)) if !name.contains('*') => Ok(name.trim_end_matches('.').to_owned()),
        Ok(Host::Ipv4(address)) => bail!("write the address as {address}"),
        _ => bail!("{text:?} is no host; a name, an IP address, a block such as 10.0.0.0/8 or `*`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(list: &[&str]) -> AllowedHosts {
        let list: Vec<String> = list.iter().map(|text| (*text).to_owned()).collect();
        AllowedHosts::new(&list).unwrap()
    }

    #[test]
    fn allowed_host_name_matches_exactly_or_by_subdomain() {
        let allowed = allowed(&["API.example.com", "*.example.org:443", "*.Müller.example"]);
        for good in ["api.example.com", "a.xn--mller-kva.example"] {
            allowed.check_name(good, 80).unwrap();
        }
        allowed.check_name("a.b.example.org", 443).unwrap();
        for bad in [
            "example.com",
            "xapi.example.com",
            "api.example.com.evil.net",
            "example.org",
            "evilexample.org",
            ".example.org",
        ] {
            allowed.check_name(bad, 443).unwrap_err();
        }
        allowed.check_name("a.example.org", 80).unwrap_err();
    }

    #[test]
    fn address_is_allowed_if_public_or_listed() {
        let public = allowed(&["*"]);
        let listed = allowed(&["10.0.0.0/8:8080", "[fd00::1]:80", "127.0.0.1", "::2"]);
        let check =
            |allowed: &AllowedHosts, text: &str| allowed.check_address(text.parse().unwrap());
        check(&public, "1.1.1.1:80").unwrap();
        check(&public, "10.0.0.1:8080").unwrap_err();
        check(&listed, "1.1.1.1:80").unwrap_err();
        for good in ["10.9.9.9:8080", "[fd00::1]:80", "127.0.0.1:5", "[::ffff:127.0.0.1]:5"] {
            check(&listed, good).unwrap();
        }
        for bad in ["10.9.9.9:80", "[fd00::2]:80", "127.0.0.2:5", "[::1]:5"] {
            check(&listed, bad).unwrap_err();
        }
    }

    #[test]
    fn name_with_private_address_needs_listed_address() {
        let check = |list: &[&str], name: &str, address: &str| {
            allowed(list).check_resolved(name, address.parse().unwrap())
        };
        check(&["db.example"], "db.example", "10.0.0.1:80").unwrap_err();
        check(&["db.example", "10.0.0.1:80"], "db.example", "10.0.0.1:80").unwrap();
        check(&["db.example", "10.0.0.1:81"], "db.example", "10.0.0.1:80").unwrap_err();
        check(&["localhost"], "localhost", "127.0.0.1:80").unwrap();
        check(&["localhost"], "localhost", "10.0.0.1:80").unwrap_err();
        check(&["localhost:81"], "localhost", "127.0.0.1:80").unwrap_err();
        check(&["*"], "localhost", "127.0.0.1:80").unwrap_err();
    }

    #[test]
    fn invalid_allow_entry_is_rejected() {
        for bad in [
            "",
            "http://example.com",
            "example.com:0",
            "example.com:x",
            "example.com:65536",
            "10.0.0.0/33",
            "127.1",
            "2130706433",
            "a b",
            "*.*.com",
            "[::1",
            "[::1]x",
            "user@example.com",
        ] {
            AllowedHosts::new(&[bad.to_owned()]).unwrap_err();
        }
    }
}
