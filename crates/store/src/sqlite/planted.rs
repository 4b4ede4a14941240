//! Bugs in the SQL of this store and in how it keeps its transactions, planted on purpose.
//!
//! The threads of a store are its own, so a bug belongs to a store and not to a thread as those
//! in the rules do; a test opens the store with it. Without the feature `planted` every question
//! is answered at compile time, and no shipped binary carries them.

use std::borrow::Cow;

use super::statements::Query;

macro_rules! bugs {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// A bug that this store can have.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Bug { $($(#[$doc])* $name),+ }

        impl Bug {
            /// Every bug that can be planted.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];
        }
    };
}

bugs! {
    /// An attempt is ended by its task alone: the token is missing in the condition.
    StopWithoutToken,
    /// Slots are freed by their task alone: those of its other limits go with them.
    FreeWithoutLimit,
    /// The head of a line is who came first, whatever its rank.
    LineWithoutRank,
    /// A lease is renewed also after it has run out.
    RenewExpired,
    /// A claim takes the first rows of all lanes away, not of its own alone.
    TakeFromAllLanes,
    /// What is remembered is kept when another process has committed.
    StaleCache,
    /// A transaction reads before it has the write lock, and does not wait for its turn.
    LateLock,
}

/// The bug of a store, if it has one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Planted {
    #[cfg(feature = "planted")]
    pub(super) bug: Option<Bug>,
}

#[cfg(feature = "planted")]
impl Planted {
    pub(super) fn is(self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// What the bug makes of a query: one piece of its text is another. The rest stays the real
    /// one, whatever becomes of it.
    pub(super) fn sql(self, query: Query, sql: &'static str) -> Cow<'static, str> {
        let (piece, other) = match (self.bug, query) {
            (Some(Bug::StopWithoutToken), Query::StopAttempt) => ("token = ?1 and ", ""),
            (Some(Bug::FreeWithoutLimit), Query::FreeSlotsOfTask) => ("limit_id = ?2", "?2 > 0"),
            (Some(Bug::LineWithoutRank), Query::FirstWaiter) => {
                ("wait_reason, rank, tag, admission_seq limit", "wait_reason, admission_seq limit")
            }
            (Some(Bug::RenewExpired), Query::RenewLease) => ("expires_at > ?4", "?4 > 0"),
            (Some(Bug::TakeFromAllLanes), Query::DeleteReadyPrefix) => ("lane = ?1", "?1 > 0"),
            (Some(Bug::LateLock), Query::BeginWrite) => ("begin immediate", "begin"),
            _ => return sql.into(),
        };
        assert!(sql.contains(piece), "there is no {piece:?} to plant a bug in: {sql}");
        sql.replace(piece, other).into()
    }
}

#[cfg(not(feature = "planted"))]
impl Planted {
    #[inline(always)]
    pub(super) fn is(self, _bug: Bug) -> bool {
        false
    }

    #[inline(always)]
    pub(super) fn sql(self, _query: Query, sql: &'static str) -> Cow<'static, str> {
        sql.into()
    }
}
