//! Random pauses, so that processes which lost the server at the same moment do not all return to it
//! at the same moment.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// Returns a duration between half of `longest` and `longest`.
pub(super) fn jittered(longest: Duration) -> Duration {
    let spread = (RandomState::new().build_hasher().finish() % 1024) as u32;
    longest / 2 + longest / 2 * spread / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_stays_within_upper_half() {
        let longest = Duration::from_secs(4);
        let pauses: Vec<Duration> = (0..1000).map(|_| jittered(longest)).collect();
        assert!(pauses.iter().all(|pause| (longest / 2..=longest).contains(pause)));
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
    }
}
