//! Which addresses are public, and what the others are.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A block of addresses, such as 10.0.0.0/8; one address is a block too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Network {
    first: IpAddr,
    prefix: u8,
}

impl Network {
    const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Self {
        Self { first: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix }
    }

    const fn v6(a: u16, b: u16, c: u16, prefix: u8) -> Self {
        Self { first: IpAddr::V6(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0)), prefix }
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        match (self.first, address) {
            (IpAddr::V4(first), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
                (first.to_bits() ^ address.to_bits()) & mask == 0
            }
            (IpAddr::V6(first), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
                (first.to_bits() ^ address.to_bits()) & mask == 0
            }
            _ => false,
        }
    }
}

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Self {
        let first = address.to_canonical();
        Self { first, prefix: if first.is_ipv4() { 32 } else { 128 } }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, prefix) = text.split_once('/').map_or((text, None), |(a, p)| (a, Some(p)));
        let first: IpAddr =
            address.parse().map_err(|_| format!("{address:?} is not an IP address"))?;
        let Some(prefix) = prefix else { return Ok(first.into()) };
        let longest = if first.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.parse().ok().filter(|prefix| *prefix <= longest);
        let prefix = prefix.ok_or_else(|| format!("a prefix is a number from 0 to {longest}"))?;
        Ok(Self { first, prefix })
    }
}

/// IPv4 is public but for these. From the IANA registry of special addresses, and two that
/// clouds use inside their own networks.
const SPECIAL_V4: &[(Network, &str)] = &[
    (Network::v4(0, 0, 0, 0, 8), "an address of this machine"),
    (Network::v4(10, 0, 0, 0, 8), "a private address"),
    (Network::v4(100, 64, 0, 0, 10), "an address inside a provider's network"),
    (Network::v4(127, 0, 0, 0, 8), "a loopback address"),
    (Network::v4(168, 63, 129, 16, 32), "a metadata address of a cloud"),
    (Network::v4(169, 254, 169, 254, 32), "a metadata address of a cloud"),
    (Network::v4(169, 254, 0, 0, 16), "a link-local address"),
    (Network::v4(172, 16, 0, 0, 12), "a private address"),
    (Network::v4(192, 0, 0, 0, 24), "an address with a special meaning"),
    (Network::v4(192, 0, 2, 0, 24), "an address for documentation"),
    (Network::v4(192, 88, 99, 0, 24), "a relay to IPv6"),
    (Network::v4(192, 168, 0, 0, 16), "a private address"),
    (Network::v4(198, 18, 0, 0, 15), "an address for benchmarks"),
    (Network::v4(198, 51, 100, 0, 24), "an address for documentation"),
    (Network::v4(203, 0, 113, 0, 24), "an address for documentation"),
    (Network::v4(224, 0, 0, 0, 4), "a multicast address"),
    (Network::v4(240, 0, 0, 0, 4), "a reserved address"),
];

/// Of IPv6, what is handed out to the public.
const GLOBAL_V6: Network = Network::v6(0x2000, 0, 0, 3);

/// A public IPv4 address as a network of IPv6 alone sees it.
const NAT64: Network = Network::v6(0x64, 0xff9b, 0, 96);

/// Named first, as they need a word; whatever else is outside [`GLOBAL_V6`] has none.
const SPECIAL_V6: &[(Network, &str)] = &[
    (Network::v6(0xfc00, 0, 0, 7), "a private address"),
    (Network::v6(0xfe80, 0, 0, 10), "a link-local address"),
    (Network::v6(0xff00, 0, 0, 8), "a multicast address"),
    (Network::v6(0x2001, 0, 0, 23), "a tunnel or another address with a special meaning"),
    (Network::v6(0x2001, 0xdb8, 0, 32), "an address for documentation"),
    (Network::v6(0x2002, 0, 0, 16), "a tunnel to IPv4"),
    (Network::v6(0x3fff, 0, 0, 20), "an address for documentation"),
];

/// What an address is, if it is not public.
pub(super) fn special_purpose(address: IpAddr) -> Option<&'static str> {
    match address.to_canonical() {
        IpAddr::V4(address) => find_description(SPECIAL_V4, address.into()),
        IpAddr::V6(address) if address.is_loopback() => Some("a loopback address"),
        IpAddr::V6(address) if NAT64.contains(address.into()) => {
            special_purpose(Ipv4Addr::from_bits(address.to_bits() as u32).into())
        }
        IpAddr::V6(address) => find_description(SPECIAL_V6, address.into()).or_else(|| {
            (!GLOBAL_V6.contains(address.into())).then_some("an address with a special meaning")
        }),
    }
}

fn find_description(table: &[(Network, &'static str)], address: IpAddr) -> Option<&'static str> {
    table.iter().find(|(network, _)| network.contains(address)).map(|(_, what)| *what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_addresses_are_not_special() {
        for text in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "223.255.255.255",
            "::ffff:1.1.1.1",
            "64:ff9b::1.1.1.1",
            "2606:4700::1111",
            "2a00:1450::1",
        ] {
            assert_eq!(special_purpose(text.parse().unwrap()), None, "{text}");
        }
    }

    #[test]
    fn special_block_boundaries_are_special() {
        for (network, what) in SPECIAL_V4.iter().chain(SPECIAL_V6) {
            let last = match network.first {
                IpAddr::V4(first) => {
                    let rest = u32::MAX.checked_shr(network.prefix.into()).unwrap_or(0);
                    IpAddr::from(Ipv4Addr::from_bits(first.to_bits() | rest))
                }
                IpAddr::V6(first) => {
                    let rest = u128::MAX.checked_shr(network.prefix.into()).unwrap_or(0);
                    IpAddr::from(Ipv6Addr::from_bits(first.to_bits() | rest))
                }
            };
            for address in [network.first, last] {
                assert!(network.contains(address), "{address} {what}");
                assert!(special_purpose(address).is_some(), "{address} {what}");
            }
        }
    }

    #[test]
    fn ipv4_embedded_in_ipv6_is_classified_as_ipv4() {
        for text in [
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::127.0.0.1",
            "64:ff9b::10.0.0.1",
            "::127.0.0.1",
            "2002:7f00:1::",
            "2001:0:4136:e378:8000:63bf:3fff:fdd2",
            "64:ff9b:1::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "::",
            "::1",
        ] {
            assert!(special_purpose(text.parse().unwrap()).is_some(), "{text}");
        }
    }

    #[test]
    fn network_is_parsed_and_contains_its_addresses() {
        let network: Network = "10.0.0.0/8".parse().unwrap();
        assert!(network.contains("10.255.0.1".parse().unwrap()));
        assert!(!network.contains("11.0.0.0".parse().unwrap()));
        let all: Network = "::/0".parse().unwrap();
        assert!(all.contains("fe80::1".parse().unwrap()));
        assert!(!all.contains("10.0.0.1".parse().unwrap()), "another family");
        for bad in ["10.0.0.0/33", "10.0.0.0/", "10.0.0/8", "::/129", "x", "", "10.0.0.1/-1"] {
            bad.parse::<Network>().unwrap_err();
        }
    }
}
