//! Identities. Each is a type of its own so that one is never taken for another.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Milliseconds since 1970 by the store's clock.
pub type Millis = i64;

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub i64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number_id!(
    /// A task. Given by the store, ascending.
    TaskId
);
number_id!(
    /// The fencing token of a lease: one per claim, ascending over the whole store, never
    /// given twice. A write that carries an old token changes nothing.
    Token
);
number_id!(
    /// A limit.
    LimitId
);
number_id!(
    /// A lane of the ready index: one queue and one kind.
    LaneId
);

/// A worker. New for every process start, so a restarted worker never passes for the old one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkerId(pub Arc<str>);

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
