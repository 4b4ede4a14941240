//! Payloads: opaque JSON bytes, checked for form, size and depth, never rewritten.

use crate::bounds::PAYLOAD_DEPTH_MAX;
use crate::{Error, Result};

/// Checks that the bytes are one JSON value of bounded size and depth.
pub fn check(bytes: &[u8], bytes_max: usize) -> Result<()> {
    if bytes.len() > bytes_max {
        return Err(Error::invalid(format!(
            "the payload has {} bytes; at most {bytes_max} are allowed",
            bytes.len()
        )));
    }
    check_depth(bytes)?;
    serde_json::from_slice::<&serde_json::value::RawValue>(bytes)
        .map_err(|cause| Error::invalid(format!("the payload is not JSON: {cause}")))?;
    Ok(())
}

/// Counts brackets outside strings. Comes before the parser, which gives up later and with a
/// poorer message.
fn check_depth(bytes: &[u8]) -> Result<()> {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => depth += 1,
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > PAYLOAD_DEPTH_MAX {
            return Err(Error::invalid(format!(
                "the payload is nested deeper than {PAYLOAD_DEPTH_MAX} levels"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::PAYLOAD_BYTES_MAX;

    #[test]
    fn payload_must_be_one_json_value() {
        for good in [&b"null"[..], b"{\"a\":[1,2]}", b"\"[[[\"", b" 1 ", b"\"\\\"[\""] {
            check(good, PAYLOAD_BYTES_MAX).unwrap();
        }
        for bad in [&b""[..], b"{", b"{} {}", b"nul", b"\xff", b"[1,]"] {
            assert!(check(bad, PAYLOAD_BYTES_MAX).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn payload_above_size_or_depth_is_rejected() {
        let deep = |n: usize| [vec![b'['; n], vec![b']'; n]].concat();
        check(&deep(PAYLOAD_DEPTH_MAX), PAYLOAD_BYTES_MAX).unwrap();
        assert!(check(&deep(PAYLOAD_DEPTH_MAX + 1), PAYLOAD_BYTES_MAX).is_err());
        assert!(check(&deep(200_000), PAYLOAD_BYTES_MAX).is_err());
        assert!(check(b"\"aaaa\"", 5).is_err());
    }
}
