//! Slot groups: which slots of a limit are taken, in at most fifty rows.
//!
//! Slot `n` is of group `n mod 50`: it keeps its group whatever becomes of the capacity, so lowering a
//! limit moves nothing. The parts of the groups add up to the capacity exactly.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use tidegate_core::{LimitId, TaskId};
use tokio_postgres::Row;

use super::error::TxError;
use super::rows;
use super::transaction::Tx;
use super::working_set::WorkingSet;

const PUT_SLOT_GROUPS: &str = include_str!("queries/put_slot_groups.sql");

/// Rows of a limit at most.
pub(super) const SLOT_GROUPS_MAX: u32 = 50;

/// Groups of a limit by their numbers.
pub(super) type SlotGroups = BTreeMap<u32, SlotGroup>;

/// One of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SlotGroup {
    /// Its part of the capacity; none where there is no limit.
    capacity: Option<u32>,
    /// The numbers of the slots that are taken, ascending.
    pub(super) taken: Vec<u32>,
}

impl SlotGroup {
    pub(super) fn from_row(row: &Row) -> Result<(LimitId, u32, Self), TxError> {
        let mut taken = rows::read_unsigned_list(row, "slot_groups", "taken")?;
        taken.sort_unstable();
        let number: i32 = row.get("number");
        let number = rows::to_unsigned("slot_groups", "number", number.into())?;
        let capacity = rows::read_optional_unsigned(row, "slot_groups", "capacity")?;
        Ok((LimitId(row.get("limit_id")), number, Self { capacity, taken }))
    }
}

/// A group's part of a capacity.
fn group_capacity(capacity: u32, number: u32) -> u32 {
    capacity / SLOT_GROUPS_MAX + u32::from(number < capacity % SLOT_GROUPS_MAX)
}

/// The groups that a limit must have, where these of its slots are taken.
fn expected_groups(capacity: Option<u32>, slots: &[Option<TaskId>]) -> SlotGroups {
    let new = |number| SlotGroup {
        capacity: capacity.map(|all| group_capacity(all, number)),
        taken: Vec::new(),
    };
    let all = capacity.unwrap_or_default().min(SLOT_GROUPS_MAX);
    let mut groups: SlotGroups = (0..all).map(|number| (number, new(number))).collect();
    for (slot, _) in slots.iter().enumerate().filter(|(_, holder)| holder.is_some()) {
        let slot = u32::try_from(slot).unwrap_or(u32::MAX);
        let number = slot % SLOT_GROUPS_MAX;
        groups.entry(number).or_insert_with(|| new(number)).taken.push(slot);
    }
    groups
}

/// Groups that changed, as columns of a statement.
#[derive(Debug, Default)]
struct SlotGroupColumns {
    limits: Vec<i64>,
    numbers: Vec<i32>,
    capacities: Vec<Option<i64>>,
    taken: Vec<String>,
    removed_limits: Vec<i64>,
    removed_numbers: Vec<i32>,
}

impl SlotGroupColumns {
    fn add_changes(&mut self, limit: i64, old: &SlotGroups, new: &SlotGroups) {
        for (number, group) in new.iter().filter(|(number, group)| old.get(number) != Some(*group))
        {
            self.limits.push(limit);
            self.numbers.push(*number as i32);
            self.capacities.push(group.capacity.map(i64::from));
            self.taken.push(array_literal(&group.taken));
        }
        for number in old.keys().filter(|number| !new.contains_key(number)) {
            self.removed_limits.push(limit);
            self.removed_numbers.push(*number as i32);
        }
    }

    fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.removed_limits.is_empty()
    }
}

/// Numbers as the server reads a list.
fn array_literal(numbers: &[u32]) -> String {
    let mut text = String::from("{");
    for (place, number) in numbers.iter().enumerate() {
        let comma = if place == 0 { "" } else { "," };
        let _ = write!(text, "{comma}{number}");
    }
    text + "}"
}

/// Writes what changed of the groups of limits whose locks this transaction has. `id` gives the ids of
/// limits that it began.
pub(super) async fn put_slot_groups(
    tx: &Tx<'_>,
    working_set: &WorkingSet,
    id: impl Fn(LimitId) -> i64,
) -> Result<(), TxError> {
    let mut columns = SlotGroupColumns::default();
    let none = SlotGroups::new();
    for limit in working_set.state.limits.values() {
        let slots = working_set.state.slot_holders.get(&limit.id).map_or(&[][..], Vec::as_slice);
        let old = working_set.slot_groups.get(&limit.id).unwrap_or(&none);
        columns.add_changes(id(limit.id), old, &expected_groups(limit.capacity, slots));
    }
    if columns.is_empty() {
        return Ok(());
    }
    let SlotGroupColumns {
        limits,
        numbers,
        capacities,
        taken,
        removed_limits: gone_limits,
        removed_numbers: gone_numbers,
    } = &columns;
    tx.execute(PUT_SLOT_GROUPS, &[limits, numbers, capacities, taken, gone_limits, gone_numbers])
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group_capacities(capacity: u32) -> Vec<u32> {
        expected_groups(Some(capacity), &[]).values().filter_map(|group| group.capacity).collect()
    }

    #[test]
    fn slot_group_capacities_sum_to_limit_capacity() {
        assert_eq!(group_capacities(4), [1; 4]);
        assert_eq!(group_capacities(100), [2; 50]);
        assert_eq!(group_capacities(500), [10; 50]);
        assert_eq!(group_capacities(1000), [20; 50]);
        for capacity in [0, 1, 49, 50, 51, 101, 501, 1001, i32::MAX as u32] {
            let parts = group_capacities(capacity);
            assert!(parts.len() <= 50 && parts.iter().all(|part| *part > 0), "{capacity}");
            assert_eq!(parts.iter().sum::<u32>(), capacity);
        }
    }

    #[test]
    fn slot_keeps_its_group_when_capacity_changes() {
        let mut slots = vec![None; 501];
        slots[0] = Some(TaskId(1));
        slots[500] = Some(TaskId(2));
        slots[37] = Some(TaskId(3));
        let high = expected_groups(Some(501), &slots);
        assert_eq!((high[&0].capacity, &*high[&0].taken), (Some(11), &[0, 500][..]));
        let low = expected_groups(Some(10), &slots);
        assert_eq!((low[&0].capacity, &*low[&0].taken), (Some(1), &[0, 500][..]));
        assert_eq!((low[&37].capacity, &*low[&37].taken), (Some(0), &[37][..]));
        assert_eq!(low.len(), 11);
        let none = expected_groups(None, &slots);
        assert_eq!((none.len(), none[&37].capacity), (2, None));
    }

    #[test]
    fn unchanged_slot_groups_are_not_written() {
        let (old, new) =
            (expected_groups(Some(51), &[]), expected_groups(Some(2), &[None, Some(TaskId(1))]));
        let mut columns = SlotGroupColumns::default();
        columns.add_changes(7, &old, &old);
        assert!(columns.is_empty());
        columns.add_changes(7, &old, &new);
        assert_eq!((columns.numbers, columns.taken), (vec![0, 1], vec!["{}".into(), "{1}".into()]));
        assert_eq!(columns.removed_numbers.len(), 48);
    }
}
