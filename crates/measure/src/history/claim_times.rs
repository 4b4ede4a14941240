//! How long workers waited for the store when they asked for work.

use std::ops::Range;
use std::path::Path;

use super::{Error, Record, read};

/// The calls for work that were answered in a while.
#[derive(Debug, Default)]
pub struct ClaimTimes {
    /// From the quickest to the slowest.
    took_ns: Vec<u64>,
}

impl ClaimTimes {
    /// Reads all `files` as one history.
    pub fn read<P: AsRef<Path>>(files: &[P], within_ns: Range<u64>) -> Result<Self, Error> {
        let mut took_ns = Vec::new();
        for file in files {
            read::read(file.as_ref(), |record| match record {
                Record::Claim(claim) if within_ns.contains(&claim.t_ns) => {
                    took_ns.push(claim.took_ns);
                }
                _ => {}
            })?;
        }
        took_ns.sort_unstable();
        Ok(Self { took_ns })
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.took_ns.len() as u64
    }

    /// How long all but this share of them took at most; none where there was no call.
    pub fn upper_quantile_ms(&self, share: f64) -> Option<f64> {
        let longer = (self.took_ns.len() as f64 * share) as usize;
        let at = self.took_ns.len().checked_sub(longer + 1)?;
        Some(self.took_ns[at] as f64 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_quantiles_are_computed() {
        let claims = ClaimTimes { took_ns: (1..=200).map(|ms| ms * 1_000_000).collect() };
        assert_eq!(claims.upper_quantile_ms(0.01), Some(198.0));
        assert_eq!(claims.upper_quantile_ms(0.5), Some(100.0));
        assert_eq!(claims.upper_quantile_ms(0.0), Some(200.0));
        assert_eq!(ClaimTimes::default().upper_quantile_ms(0.01), None);
    }
}
