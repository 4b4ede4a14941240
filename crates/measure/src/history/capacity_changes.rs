//! What the records say of a limit whose capacity was changed while they were written.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::LimitRecord;

/// More capacities than this nobody reads one by one.
const SHOWN_MAX: usize = 20;

/// A limit that was changed, as far as processes saw it.
///
/// A process looks now and then, so it sees a change later than the store obeys it. An enter that
/// the new capacity allows may be written before it. So such a limit is judged by the largest
/// capacity of all, and not at all where one of them is unknown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapacityChanges {
    /// The capacities that were seen, in the order of their versions; none is unlimited.
    pub capacities: Vec<Option<u32>>,
    /// Whether there was a change that nobody saw.
    pub unseen: bool,
}

impl CapacityChanges {
    /// Reads what was seen of one limit; none if it was never changed. Records without versions
    /// come from somebody who knows when a capacity is in force, and are not read here.
    pub(super) fn from_records(seen: &[&LimitRecord]) -> Option<Self> {
        let mut versions: BTreeMap<i64, Option<u32>> = BTreeMap::new();
        let mut unseen = false;
        for seen in seen {
            let before = versions.insert(seen.version?, seen.capacity);
            // A limit that was taken away and made again begins again with its first version.
            unseen |= before.is_some_and(|capacity| capacity != seen.capacity);
        }
        let (first, last) = (versions.first_key_value()?.0, versions.last_key_value()?.0);
        unseen |= (last - first) as usize != versions.len() - 1;
        let mut capacities: Vec<Option<u32>> = versions.into_values().collect();
        capacities.dedup();
        (unseen || capacities.len() > 1).then_some(Self { capacities, unseen })
    }

    /// The largest capacity, if all are known and none is unlimited.
    pub fn judged_by(&self) -> Option<u32> {
        let all: Option<Vec<u32>> = self.capacities.iter().copied().collect();
        all.filter(|_| !self.unseen)?.into_iter().max()
    }
}

impl fmt::Display for CapacityChanges {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |capacity: &Option<u32>| {
            capacity.map_or_else(|| "unlimited".to_owned(), |capacity| capacity.to_string())
        };
        let capacities: Vec<String> = self.capacities.iter().map(word).collect();
        if let (Some(most), true) = (self.judged_by(), capacities.len() > SHOWN_MAX) {
            let times = capacities.len() - 1;
            return write!(out, "changed {times} times, judged by {most}");
        }
        match (self.judged_by(), self.unseen) {
            (_, true) => {
                write!(out, "changed unseen, not judged; seen were: {}", capacities.join(", "))
            }
            (Some(most), _) => {
                write!(out, "changed: {}, judged by {most}", capacities.join(" to "))
            }
            (None, _) => write!(out, "changed: {}, not judged", capacities.join(" to ")),
        }
    }
}
