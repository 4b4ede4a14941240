//! Bugs in the SQL of this store and in how it keeps its transactions, planted on purpose.
//!
//! The threads of a store are its own, so a bug belongs to a store and not to a thread as those
//! in the rules do; a test opens the store with it. Without the feature `fault_injection` every question
//! is answered at compile time, and no shipped binary carries them.

use std::borrow::Cow;

use super::statements::Query;

macro_rules! injected_bugs {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// A bug that this store can have.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum InjectedBug { $($(#[$doc])* $name),+ }

        impl InjectedBug {
            /// Every bug that can be planted.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];
        }
    };
}

injected_bugs! {
    /// An attempt is ended by its task alone: the token is missing in the condition.
    StopWithoutToken,
    /// Slots are freed by their task alone: those of its other limits go with them.
    FreeWithoutLimit,
    /// The head of a line is who came first, whatever its rank.
    WaitersWithoutRank,
    /// A lease is renewed also after it has run out.
    RenewExpired,
    /// A claim takes the first rows of all lanes away, not of its own alone.
    ClaimFromAllLanes,
    /// What is remembered is kept when another process has committed.
    StaleCache,
    /// A transaction reads before it has the write lock, and does not wait for its turn.
    LockAfterRead,
}

/// The bug of a store, if it has one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FaultInjection {
    #[cfg(feature = "fault_injection")]
    pub(super) bug: Option<InjectedBug>,
}

#[cfg(feature = "fault_injection")]
impl FaultInjection {
    pub(super) fn is_injected(self, bug: InjectedBug) -> bool {
        self.bug == Some(bug)
    }

    /// What the bug makes of a query: one piece of its text is another. The rest stays the real
    /// one, whatever becomes of it.
    pub(super) fn rewrite_query(self, query: Query, sql: &'static str) -> Cow<'static, str> {
        let (piece, other) = match (self.bug, query) {
            (Some(InjectedBug::StopWithoutToken), Query::StopAttempt) => ("token = ?1 and ", ""),
            (Some(InjectedBug::FreeWithoutLimit), Query::FreeSlotsOfTask) => {
                ("limit_id = ?2", "?2 > 0")
            }
            (Some(InjectedBug::WaitersWithoutRank), Query::FirstWaiter) => {
                ("wait_reason, rank, tag, admission_seq limit", "wait_reason, admission_seq limit")
            }
            (Some(InjectedBug::RenewExpired), Query::RenewLease) => ("expires_at > ?4", "?4 > 0"),
            (Some(InjectedBug::ClaimFromAllLanes), Query::DeleteReadyPrefix) => {
                ("lane = ?1", "?1 > 0")
            }
            (Some(InjectedBug::LockAfterRead), Query::BeginWrite) => ("begin immediate", "begin"),
            _ => return sql.into(),
        };
        assert!(sql.contains(piece), "there is no {piece:?} to plant a bug in: {sql}");
        sql.replace(piece, other).into()
    }
}

#[cfg(not(feature = "fault_injection"))]
impl FaultInjection {
    #[inline(always)]
    pub(super) fn is_injected(self, _bug: InjectedBug) -> bool {
        false
    }

    #[inline(always)]
    pub(super) fn rewrite_query(self, _query: Query, sql: &'static str) -> Cow<'static, str> {
        sql.into()
    }
}
