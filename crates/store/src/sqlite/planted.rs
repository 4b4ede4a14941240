//! Bugs in the SQL of this store and in how it keeps its transactions, planted on purpose.
//!
//! The threads of a store are its own, so a bug belongs to a store and not to a thread as those
//! in the rules do; a test opens the store with it. Without the feature `planted` every question
//! is answered at compile time, and no shipped binary carries them.

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

    /// What the bug makes of a query.
    pub(super) fn sql(self, query: Query) -> Option<&'static str> {
        match (self.bug?, query) {
            (Bug::StopWithoutToken, Query::Stop) => Some(include_str!("queries/planted/stop.sql")),
            (Bug::FreeWithoutLimit, Query::FreeSlots) => {
                Some(include_str!("queries/planted/free_slots.sql"))
            }
            (Bug::LineWithoutRank, Query::LineFirst) => {
                Some(include_str!("queries/planted/line_first.sql"))
            }
            (Bug::RenewExpired, Query::RenewLease) => {
                Some(include_str!("queries/planted/renew_lease.sql"))
            }
            (Bug::TakeFromAllLanes, Query::TakeFirstReady) => {
                Some(include_str!("queries/planted/take_first_ready.sql"))
            }
            (Bug::LateLock, Query::Begin) => Some(include_str!("queries/begin_read.sql")),
            _ => None,
        }
    }
}

#[cfg(not(feature = "planted"))]
impl Planted {
    #[inline(always)]
    pub(super) fn is(self, _bug: Bug) -> bool {
        false
    }

    #[inline(always)]
    pub(super) fn sql(self, _query: Query) -> Option<&'static str> {
        None
    }
}
