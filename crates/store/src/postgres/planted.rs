//! Bugs in the SQL of this store, planted on purpose; see `tidegate_core::planted`. A store is
//! connected with one of them. Without the feature `planted` there is none.

use super::Options;
use super::paged::Paged;

/// A bug that this store can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// Limits are read without their lock, so full is decided on an old reading.
    LimitsUnlocked,
    /// Ready rows are picked without their lock, so two claims pick the same.
    ClaimUnlocked,
    /// A claim does not hold the version of the limits, so one may begin behind its back.
    VersionUnshared,
    /// The reaper reads leases without their lock, so it trusts a reading from before a renewal.
    ReapUnlocked,
}

#[cfg(feature = "planted")]
static CLAIM: Paged = Paged::new(include_str!("queries/planted/claim.sql"));

#[cfg(feature = "planted")]
impl Options {
    pub(super) fn is_planted(&self, bug: Bug) -> bool {
        self.planted == Some(bug)
    }

    /// What a bug makes of the claim.
    pub(super) fn planted_claim(&self) -> Option<&'static Paged> {
        self.is_planted(Bug::ClaimUnlocked).then_some(&CLAIM)
    }

    /// What a bug makes of the reaper's reading.
    pub(super) fn planted_expired(&self) -> Option<&'static str> {
        let unlocked = include_str!("queries/planted/expired.sql");
        self.is_planted(Bug::ReapUnlocked).then_some(unlocked)
    }
}

#[cfg(not(feature = "planted"))]
impl Options {
    #[inline(always)]
    pub(super) fn is_planted(&self, _bug: Bug) -> bool {
        false
    }

    #[inline(always)]
    pub(super) fn planted_claim(&self) -> Option<&'static Paged> {
        None
    }

    #[inline(always)]
    pub(super) fn planted_expired(&self) -> Option<&'static str> {
        None
    }
}
