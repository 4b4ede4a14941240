//! Bugs in the SQL of this store, planted on purpose; see `tidegate_core::planted`. A store is
//! connected with one of them. Without the feature `fault_injection` there is none.

#[cfg(feature = "fault_injection")]
use std::sync::LazyLock;

use super::Options;
use super::attempt_guard::LOCK_ATTEMPT;
use super::claim_sql::{CLAIM_SQL, ClaimSql};
use super::due::LOCK_DUE_FAST;
use super::hand_off::LOCK_LIMITS_SHARED_THEN_LEASES;

/// A bug that this store can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectedBug {
    /// Limits are read without their lock, so full is decided on an old reading.
    LimitsUnlocked,
    /// Ready rows are picked without their lock, so two claims pick the same.
    ClaimUnlocked,
    /// A claim does not hold the version of the limits, so one may begin behind its back.
    LimitsVersionUnlocked,
    /// The reaper reads leases without their lock, so it trusts a reading from before a renewal.
    ReapUnlocked,
    /// Slots are handed on while somebody changes their limit.
    HandOffUnlocked,
    /// Nobody looks after a commit whether a job's window was filled while tasks left it.
    WindowNotRechecked,
    /// An attempt that submits is looked at without a lock, so it may end before the commit.
    SubmitUnlocked,
    /// Due tasks join wait queues while slots are handed on there.
    DueUnlocked,
}

#[cfg(feature = "fault_injection")]
static CLAIM_SQL_UNLOCKED: LazyLock<ClaimSql> = LazyLock::new(|| {
    ClaimSql::transformed(|text| without_fragment(text, "FOR UPDATE OF r SKIP LOCKED"))
});

#[cfg(feature = "fault_injection")]
static HOLD_LIMITS_UNLOCKED: LazyLock<&str> = LazyLock::new(|| {
    without_fragment(
        LOCK_LIMITS_SHARED_THEN_LEASES,
        "pg_advisory_xact_lock_shared(7453127, bucket)",
    )
});

#[cfg(feature = "fault_injection")]
static LOCK_DUE_UNLOCKED: LazyLock<&str> =
    LazyLock::new(|| without_fragment(LOCK_DUE_FAST, "pg_advisory_xact_lock(7453127, bucket)"));

#[cfg(feature = "fault_injection")]
static LOCK_ATTEMPT_UNLOCKED: LazyLock<&str> =
    LazyLock::new(|| without_fragment(LOCK_ATTEMPT, "FOR KEY SHARE"));

/// A query without one piece of its text. The rest stays the real one, whatever becomes of it.
#[cfg(feature = "fault_injection")]
fn without_fragment(sql: &str, piece: &str) -> &'static str {
    assert!(sql.contains(piece), "there is no {piece:?} to leave out: {sql}");
    sql.replace(piece, "").leak()
}

#[cfg(feature = "fault_injection")]
impl Options {
    pub(super) fn is_injected(&self, bug: InjectedBug) -> bool {
        self.injected_bug == Some(bug)
    }

    /// What is held while slots are handed on, or what a bug makes of it.
    pub(super) fn hold_limits_sql(&self) -> &'static str {
        if self.is_injected(InjectedBug::HandOffUnlocked) {
            &HOLD_LIMITS_UNLOCKED
        } else {
            LOCK_LIMITS_SHARED_THEN_LEASES
        }
    }

    /// What keeps an attempt running that submits, or what a bug makes of it.
    pub(super) fn lock_attempt_sql(&self) -> &'static str {
        if self.is_injected(InjectedBug::SubmitUnlocked) {
            &LOCK_ATTEMPT_UNLOCKED
        } else {
            LOCK_ATTEMPT
        }
    }

    /// The locks for the admission of due tasks, or what a bug makes of them.
    pub(super) fn lock_due_sql(&self) -> &'static str {
        if self.is_injected(InjectedBug::DueUnlocked) { &LOCK_DUE_UNLOCKED } else { LOCK_DUE_FAST }
    }

    /// The claim, or what a bug makes of it.
    pub(super) fn claim_sql(&self) -> &'static ClaimSql {
        if self.is_injected(InjectedBug::ClaimUnlocked) { &CLAIM_SQL_UNLOCKED } else { &CLAIM_SQL }
    }
}

#[cfg(not(feature = "fault_injection"))]
impl Options {
    #[inline(always)]
    pub(super) fn is_injected(&self, _bug: InjectedBug) -> bool {
        false
    }

    #[inline(always)]
    pub(super) fn hold_limits_sql(&self) -> &'static str {
        LOCK_LIMITS_SHARED_THEN_LEASES
    }

    #[inline(always)]
    pub(super) fn lock_attempt_sql(&self) -> &'static str {
        LOCK_ATTEMPT
    }

    #[inline(always)]
    pub(super) fn lock_due_sql(&self) -> &'static str {
        LOCK_DUE_FAST
    }

    #[inline(always)]
    pub(super) fn claim_sql(&self) -> &'static ClaimSql {
        &CLAIM_SQL
    }
}
