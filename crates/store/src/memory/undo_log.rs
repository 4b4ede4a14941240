//! Ordered maps and sets that remember how they were when a transaction began.
//!
//! Reads go to the map or set itself. Each write notes the value before it while a transaction is recorded,
//! so that [`Undo::roll_back`] can restore it. Without a recording a write costs one test of a flag: the
//! simulator and the drafts of the PostgreSQL store do not roll back and record nothing.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

/// What a table does at the borders of a transaction.
pub(super) trait Undo {
    /// Begins to record.
    fn begin(&mut self);

    /// Ends the recording and keeps the writes.
    fn commit(&mut self);

    /// Ends the recording and takes the writes back, the latest first.
    fn roll_back(&mut self);
}

/// An ordered map with undo.
#[derive(Clone)]
pub(crate) struct UndoMap<K, V> {
    rows: BTreeMap<K, V>,
    /// The rows before each write, or none outside of a recorded transaction.
    undo_log: Option<Vec<(K, Option<V>)>>,
}

impl<K, V> Default for UndoMap<K, V> {
    fn default() -> Self {
        Self { rows: BTreeMap::new(), undo_log: None }
    }
}

impl<K: std::fmt::Debug, V: std::fmt::Debug> std::fmt::Debug for UndoMap<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.rows.fmt(f)
    }
}

impl<K, V> Deref for UndoMap<K, V> {
    type Target = BTreeMap<K, V>;

    fn deref(&self) -> &Self::Target {
        &self.rows
    }
}

impl<'a, K, V> IntoIterator for &'a UndoMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = std::collections::btree_map::Iter<'a, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.rows.iter()
    }
}

impl<K: Ord + Clone, V: Clone> UndoMap<K, V> {
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match &mut self.undo_log {
            None => self.rows.insert(key, value),
            Some(before) => {
                let old = self.rows.insert(key.clone(), value);
                before.push((key, old.clone()));
                old
            }
        }
    }

    pub(crate) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        match &mut self.undo_log {
            None => self.rows.remove(key),
            Some(before) => {
                let (key, old) = self.rows.remove_entry(key)?;
                before.push((key, Some(old.clone())));
                Some(old)
            }
        }
    }

    /// Returns a row to be changed.
    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let row = self.rows.get_mut(key)?;
        if let Some(before) = &mut self.undo_log {
            before.push((key.clone(), Some(row.clone())));
        }
        Some(row)
    }

    /// Returns a row to be changed, after inserting it where it is missing.
    pub(crate) fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        if let Some(before) = &mut self.undo_log {
            before.push((key.clone(), self.rows.get(&key).cloned()));
        }
        self.rows.entry(key).or_insert_with(make)
    }

    /// Changes or removes each row: those stay for which `keeps` holds.
    pub(crate) fn retain(&mut self, mut keeps: impl FnMut(&K, &mut V) -> bool) {
        match &mut self.undo_log {
            None => self.rows.retain(keeps),
            Some(before) => self.rows.retain(|key, row| {
                before.push((key.clone(), Some(row.clone())));
                keeps(key, row)
            }),
        }
    }
}

impl<K: Ord, V> Undo for UndoMap<K, V> {
    fn begin(&mut self) {
        self.undo_log.get_or_insert_default().clear();
    }

    fn commit(&mut self) {
        self.undo_log = None;
    }

    fn roll_back(&mut self) {
        for (key, old) in self.undo_log.take().into_iter().flatten().rev() {
            match old {
                Some(old) => drop(self.rows.insert(key, old)),
                None => drop(self.rows.remove(&key)),
            }
        }
    }
}

/// An ordered set with undo.
#[derive(Clone)]
pub(crate) struct UndoSet<K> {
    rows: BTreeSet<K>,
    /// Each row that was written, and whether it was there before.
    undo_log: Option<Vec<(K, bool)>>,
}

impl<K> Default for UndoSet<K> {
    fn default() -> Self {
        Self { rows: BTreeSet::new(), undo_log: None }
    }
}

impl<K: std::fmt::Debug> std::fmt::Debug for UndoSet<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.rows.fmt(f)
    }
}

impl<K> Deref for UndoSet<K> {
    type Target = BTreeSet<K>;

    fn deref(&self) -> &Self::Target {
        &self.rows
    }
}

impl<'a, K> IntoIterator for &'a UndoSet<K> {
    type Item = &'a K;
    type IntoIter = std::collections::btree_set::Iter<'a, K>;

    fn into_iter(self) -> Self::IntoIter {
        self.rows.iter()
    }
}

impl<K: Ord + Clone> UndoSet<K> {
    pub(crate) fn insert(&mut self, row: K) -> bool {
        let Some(before) = &mut self.undo_log else {
            return self.rows.insert(row);
        };
        let is_new = self.rows.insert(row.clone());
        before.push((row, !is_new));
        is_new
    }

    pub(crate) fn remove(&mut self, row: &K) -> bool {
        let was_there = self.rows.remove(row);
        if let Some(before) = self.undo_log.as_mut().filter(|_| was_there) {
            before.push((row.clone(), true));
        }
        was_there
    }

    pub(crate) fn retain(&mut self, mut keeps: impl FnMut(&K) -> bool) {
        let before = &mut self.undo_log;
        self.rows.retain(|row| {
            let is_kept = keeps(row);
            if let Some(before) = before.as_mut().filter(|_| !is_kept) {
                before.push((row.clone(), true));
            }
            is_kept
        });
    }
}

impl<K: Ord> Undo for UndoSet<K> {
    fn begin(&mut self) {
        self.undo_log.get_or_insert_default().clear();
    }

    fn commit(&mut self) {
        self.undo_log = None;
    }

    fn roll_back(&mut self) {
        for (row, was_there) in self.undo_log.take().into_iter().flatten().rev() {
            if was_there {
                self.rows.insert(row);
            } else {
                self.rows.remove(&row);
            }
        }
    }
}
