//! Bugs in the SQL of this store, planted on purpose; see `tidegate_core::planted`. A store is
//! connected with one of them. Without the feature `planted` there is none.

#[cfg(feature = "planted")]
use std::sync::LazyLock;

use super::Options;
use super::behalf::STILL_RUNS;
use super::claim_texts::{TEXTS, Texts};
use super::due::DUE_LOCK;
use super::relay::HOLD_LIMITS;

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
    /// Slots are handed on while somebody changes their limit.
    RelayUnshared,
    /// Nobody looks after a commit whether a job's window was filled while tasks left it.
    WindowUnseen,
    /// An attempt that submits is looked at without a lock, so it may end before the commit.
    SubmitUnkept,
    /// Due tasks join wait queues while slots are handed on there.
    DueUnlocked,
}

#[cfg(feature = "planted")]
static UNLOCKED: LazyLock<Texts> =
    LazyLock::new(|| Texts::made_by(|text| without(text, "FOR UPDATE OF r SKIP LOCKED")));

#[cfg(feature = "planted")]
static UNSHARED: LazyLock<&str> =
    LazyLock::new(|| without(HOLD_LIMITS, "pg_advisory_xact_lock_shared(7453127, bucket)"));

#[cfg(feature = "planted")]
static DUE_UNLOCKED: LazyLock<&str> =
    LazyLock::new(|| without(DUE_LOCK, "pg_advisory_xact_lock(7453127, bucket)"));

#[cfg(feature = "planted")]
static UNKEPT: LazyLock<&str> = LazyLock::new(|| without(STILL_RUNS, "FOR KEY SHARE"));

/// A query without one piece of its text. The rest stays the real one, whatever becomes of it.
#[cfg(feature = "planted")]
fn without(sql: &str, piece: &str) -> &'static str {
    assert!(sql.contains(piece), "there is no {piece:?} to leave out: {sql}");
    sql.replace(piece, "").leak()
}

#[cfg(feature = "planted")]
impl Options {
    pub(super) fn is_planted(&self, bug: Bug) -> bool {
        self.planted == Some(bug)
    }

    /// What is held while slots are handed on, or what a bug makes of it.
    pub(super) fn hold_limits_text(&self) -> &'static str {
        if self.is_planted(Bug::RelayUnshared) { &UNSHARED } else { HOLD_LIMITS }
    }

    /// What keeps an attempt running that submits, or what a bug makes of it.
    pub(super) fn still_runs_text(&self) -> &'static str {
        if self.is_planted(Bug::SubmitUnkept) { &UNKEPT } else { STILL_RUNS }
    }

    /// The locks for the admission of due tasks, or what a bug makes of them.
    pub(super) fn due_lock_text(&self) -> &'static str {
        if self.is_planted(Bug::DueUnlocked) { &DUE_UNLOCKED } else { DUE_LOCK }
    }

    /// The claim, or what a bug makes of it.
    pub(super) fn claim_texts(&self) -> &'static Texts {
        if self.is_planted(Bug::ClaimUnlocked) { &UNLOCKED } else { &TEXTS }
    }
}

#[cfg(not(feature = "planted"))]
impl Options {
    #[inline(always)]
    pub(super) fn is_planted(&self, _bug: Bug) -> bool {
        false
    }

    #[inline(always)]
    pub(super) fn hold_limits_text(&self) -> &'static str {
        HOLD_LIMITS
    }

    #[inline(always)]
    pub(super) fn still_runs_text(&self) -> &'static str {
        STILL_RUNS
    }

    #[inline(always)]
    pub(super) fn due_lock_text(&self) -> &'static str {
        DUE_LOCK
    }

    #[inline(always)]
    pub(super) fn claim_texts(&self) -> &'static Texts {
        &TEXTS
    }
}
