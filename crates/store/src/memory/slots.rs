//! Who holds which slot.

use std::collections::BTreeSet;

use tidegate_core::tables::{Position, ReadyRow};
use tidegate_core::{GUARANTEED_SLOT_RANK, LimitId, TaskId};

use super::WorkingState;
use super::rows::StoredTask;

impl WorkingState {
    pub(super) fn assign_lowest_slots(&mut self, task: TaskId, limit: LimitId, weight: u32) {
        let slots = self.slot_holders.get_or_insert_with(limit, Vec::new);
        let mut wanted = weight;
        for (number, slot) in slots.iter_mut().enumerate() {
            if wanted > 0 && slot.is_none() {
                *slot = Some(task);
                self.held_slots.insert((task, limit, number as u32));
                wanted -= 1;
            }
        }
        for _ in 0..wanted {
            self.held_slots.insert((task, limit, slots.len() as u32));
            slots.push(Some(task));
        }
    }

    pub(super) fn find_lowest_free_slot(&self, limit: LimitId) -> u32 {
        let Some(slots) = self.slot_holders.get(&limit) else { return 0 };
        slots.iter().position(Option::is_none).unwrap_or(slots.len()) as u32
    }

    pub(super) fn clear_slots_of_task(&mut self, task: TaskId, limit: LimitId) -> u32 {
        let range = (task, limit, 0)..=(task, limit, u32::MAX);
        let numbers: Vec<u32> =
            self.held_slots.range(range).map(|(_, _, number)| *number).collect();
        numbers.iter().for_each(|number| self.clear_slot(limit, *number));
        numbers.len() as u32
    }

    pub(super) fn find_slot_holder(&self, limit: LimitId, number: u32) -> Option<TaskId> {
        self.slot_holders.get(&limit)?.get(number as usize).copied().flatten()
    }

    /// Ready tasks that hold slots of a limit, those with the highest numbers first, and whether these
    /// are all.
    pub(super) fn find_ready_slot_holders(
        &self,
        limit: LimitId,
        rows_max: usize,
    ) -> (Vec<ReadyRow>, bool) {
        let holders = self.slot_holders.get(&limit).into_iter().flatten().rev().flatten();
        let mut seen = BTreeSet::new();
        let ready = holders.filter(|task| seen.insert(**task)).filter_map(|task| {
            match self.tasks.get(task)?.position? {
                Position::Ready(row) => Some(row),
                _ => None,
            }
        });
        let rows: Vec<ReadyRow> = ready.take(rows_max).collect();
        let is_all = rows.len() < rows_max;
        (rows, is_all)
    }

    pub(super) fn clear_slot(&mut self, limit: LimitId, number: u32) {
        let slot =
            self.slot_holders.get_mut(&limit).and_then(|slots| slots.get_mut(number as usize));
        if let Some(task) = slot.and_then(Option::take) {
            self.held_slots.remove(&(task, limit, number));
        }
    }

    /// The first task of a job that is past its line and does not have the rank of the reserve.
    pub(super) fn find_first_in_window(&self, job_limit: LimitId) -> Option<Position> {
        let job = self.limits.get(&job_limit)?.name.strip_prefix("job:")?;
        let of_job = self.tasks.values().filter(|task| task.info.job.as_deref() == Some(job));
        let key = |task: &StoredTask| match task.position {
            Some(Position::Ready(row)) if row.holds_slots => Some((row.rank, row.tag, row.task)),
            Some(Position::Waiting(row)) if row.in_job_window => {
                Some((row.rank, row.tag, row.task))
            }
            _ => None,
        };
        let ahead = of_job.filter_map(|task| Some((key(task)?, task.position?)));
        let ahead = ahead.filter(|((rank, ..), _)| *rank != GUARANTEED_SLOT_RANK);
        ahead.min_by_key(|(key, _)| *key).map(|(_, position)| position)
    }

    /// How many slots a task holds, by limit.
    pub(super) fn count_slots_by_limit(&self, task: TaskId) -> Vec<(LimitId, u32)> {
        let mut slots: Vec<(LimitId, u32)> = Vec::new();
        let range = (task, LimitId(0), 0)..(TaskId(task.0 + 1), LimitId(0), 0);
        for (_, limit, _) in self.held_slots.range(range) {
            match slots.last_mut() {
                Some((last, units)) if last == limit => *units += 1,
                _ => slots.push((*limit, 1)),
            }
        }
        slots
    }
}
