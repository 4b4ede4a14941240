//! The channel binding `tls-server-end-point` (RFC 5929): a hash of the certificate of the server, by the
//! hash function of its signature.

use ring::digest::{self, Algorithm, SHA256, SHA384, SHA512};

/// Signature algorithms by their object identifiers, in DER without tag and length. RFC 5929 replaces
/// MD5 and SHA-1 by SHA-256. An algorithm that is not listed, such as Ed25519, has no channel binding.
const SIGNATURE_HASHES: [(&[u8], &Algorithm); 9] = [
    // md5WithRSAEncryption, sha1WithRSAEncryption
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x04], &SHA256),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x05], &SHA256),
    // sha256WithRSAEncryption, sha384WithRSAEncryption, sha512WithRSAEncryption
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b], &SHA256),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0c], &SHA384),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0d], &SHA512),
    // ecdsa-with-SHA1, ecdsa-with-SHA256, ecdsa-with-SHA384, ecdsa-with-SHA512
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x01], &SHA256),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02], &SHA256),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x03], &SHA384),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x04], &SHA512),
];

const SEQUENCE: u8 = 0x30;
const OBJECT_IDENTIFIER: u8 = 0x06;

/// Returns the hash of a certificate in DER, or none if the signature has no hash function that is known.
pub(super) fn server_end_point_hash(certificate: &[u8]) -> Option<Vec<u8>> {
    let signature = signature_algorithm(certificate)?;
    let (_, hash) = SIGNATURE_HASHES.iter().find(|(identifier, _)| *identifier == signature)?;
    Some(digest::digest(hash, certificate).as_ref().to_vec())
}

/// A certificate is a sequence of its content, the algorithm of its signature, and the signature.
fn signature_algorithm(certificate: &[u8]) -> Option<&[u8]> {
    let (parts, _) = split_der_element(certificate, SEQUENCE)?;
    let (_content, behind) = split_der_element(parts, SEQUENCE)?;
    let (algorithm, _) = split_der_element(behind, SEQUENCE)?;
    Some(split_der_element(algorithm, OBJECT_IDENTIFIER)?.0)
}

/// Splits off the first element, which must have the given tag: its value, and what follows it.
fn split_der_element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&found, rest) = der.split_first()?;
    let (&length, rest) = rest.split_first()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        // The length itself has so many bytes.
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
            (bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    (found == tag).then_some(rest.split_at_checked(length)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate with nothing but an algorithm.
    fn certificate(identifier: &[u8]) -> Vec<u8> {
        let wrap = |tag: u8, value: &[u8]| [&[tag, 0x81, value.len() as u8], value].concat();
        let algorithm = wrap(SEQUENCE, &wrap(OBJECT_IDENTIFIER, identifier));
        wrap(SEQUENCE, &[wrap(SEQUENCE, &[1, 2, 3]), algorithm].concat())
    }

    #[test]
    fn channel_binding_hash_follows_signature_algorithm() {
        for (identifier, hash) in SIGNATURE_HASHES {
            let certificate = certificate(identifier);
            let expected = digest::digest(hash, &certificate).as_ref().to_vec();
            assert_eq!(server_end_point_hash(&certificate), Some(expected));
        }
    }

    #[test]
    fn channel_binding_is_none_for_broken_certificate() {
        assert_eq!(server_end_point_hash(&certificate(&[0x2b, 0x65, 0x70])), None);
        let whole = certificate(SIGNATURE_HASHES[2].0);
        for length in 0..whole.len() {
            assert_eq!(server_end_point_hash(&whole[..length]), None);
        }
    }
}
