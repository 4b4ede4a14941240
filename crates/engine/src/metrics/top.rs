//! Numbers by name where there may be very many names: the busiest have their own, the others
//! share one.

use std::collections::HashMap;
use std::sync::Arc;

/// The name of all who have no numbers of their own.
pub(super) const OTHER: &str = "other";

/// Names whose activity is noted. It is a measurement: beyond this it may miss somebody.
const NAMES_MAX: usize = 10_000;

/// Rankings for which the numbers of a name that was displaced are still shown: two minutes of a sampler,
/// in which everybody reads them once more.
const LEAVING_ROUNDS: u32 = 24;

/// Counters by name. A name that becomes busy begins at zero; what it did before stays with the
/// others. One that is displaced keeps what it has until that was read, and counts with the others from
/// then on. So no counter ever goes down, and whoever adds up how they grow misses nothing, unless more
/// names leave at once than may have numbers of their own.
#[derive(Debug)]
pub(super) struct Top<V> {
    most: usize,
    shown: HashMap<Arc<str>, V>,
    /// Names that were displaced, and for how many rankings they stay.
    leaving: HashMap<Arc<str>, (V, u32)>,
    other: V,
    /// What names did lately.
    recent: HashMap<Arc<str>, u64>,
}

impl<V: Default> Top<V> {
    /// At most so many names have numbers of their own.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            shown: HashMap::new(),
            leaving: HashMap::new(),
            other: V::default(),
            recent: HashMap::new(),
        }
    }

    /// The numbers of a name that does something.
    pub(super) fn of(&mut self, name: &Arc<str>) -> &mut V {
        if let Some(recent) = self.recent.get_mut(name) {
            *recent += 1;
        } else if self.recent.len() < NAMES_MAX {
            self.recent.insert(name.clone(), 1);
        }
        if self.shown.len() < self.most && may_show(name) && !self.shown.contains_key(name) {
            self.shown.insert(name.clone(), V::default());
        }
        self.shown.get_mut(name).unwrap_or(&mut self.other)
    }

    /// Chooses anew who has numbers of its own. Whoever has them keeps them unless another is
    /// twice as busy: series that come and go are worth nothing.
    pub(super) fn rank(&mut self) {
        self.leaving.retain(|_, (_, rounds)| {
            *rounds -= 1;
            *rounds > 0
        });
        let newcomers = self.recent.keys().any(|name| !self.shown.contains_key(name));
        if newcomers && self.shown.len() >= self.most {
            let shown = self.shown.keys().map(|name| (2 * self.activity(name) + 1, name.clone()));
            let new = self.recent.iter().filter(|(name, _)| !self.shown.contains_key(*name));
            let new = new.map(|(name, recent)| (*recent, name.clone()));
            let mut names: Vec<(u64, Arc<str>)> =
                shown.chain(new).filter(|(_, name)| may_show(name)).collect();
            names.sort_unstable_by(|a, b| b.cmp(a));
            names.truncate(self.most);
            self.show(names.into_iter().map(|(_, name)| name));
        }
        self.recent.retain(|_, recent| {
            *recent /= 2;
            *recent > 0
        });
    }

    /// These have numbers of their own, and nobody else.
    fn show(&mut self, names: impl Iterator<Item = Arc<str>>) {
        let mut before = std::mem::take(&mut self.shown);
        for name in names {
            let leaving = self.leaving.remove(&name).map(|(value, _)| value);
            let value = before.remove(&name).or(leaving).unwrap_or_default();
            self.shown.insert(name, value);
        }
        let displaced = before.into_iter().map(|(name, value)| (name, (value, LEAVING_ROUNDS)));
        self.leaving.extend(displaced);
        while self.leaving.len() > self.most {
            let first = self.leaving.iter().min_by_key(|(name, (_, rounds))| (*rounds, *name));
            let first = first.map(|(name, _)| name.clone());
            first.map(|name| self.leaving.remove(&name));
        }
    }

    /// Those with numbers of their own, by name.
    pub(super) fn shown(&self) -> Vec<(&str, &V)> {
        let shown = self.shown.iter().map(|(name, value)| (&**name, value));
        let leaving = self.leaving.iter().map(|(name, (value, _))| (&**name, value));
        let mut shown: Vec<_> = shown.chain(leaving).collect();
        shown.sort_unstable_by_key(|(name, _)| *name);
        shown
    }

    pub(super) fn other(&self) -> &V {
        &self.other
    }

    fn activity(&self, name: &str) -> u64 {
        self.recent.get(name).copied().unwrap_or(0)
    }
}

/// Whoever bears the name of the others is one of them.
fn may_show(name: &str) -> bool {
    name != OTHER
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(top: &mut Top<u64>, name: &str, times: u64) {
        let name = Arc::from(name);
        (0..times).for_each(|_| *top.of(&name) += 1);
    }

    /// All counts, as they are shown.
    fn sum(top: &Top<u64>) -> u64 {
        top.shown().iter().map(|(_, value)| **value).sum::<u64>() + top.other()
    }

    #[test]
    fn the_busiest_have_numbers_of_their_own_and_nothing_is_lost() {
        let mut top = Top::new(2);
        count(&mut top, "a", 1);
        count(&mut top, "b", 10);
        count(&mut top, "c", 9);
        assert_eq!((top.shown(), *top.other()), (vec![("a", &1), ("b", &10)], 9));
        top.rank();
        let all = vec![("a", &1), ("b", &10), ("c", &0)];
        assert_eq!((top.shown(), *top.other(), sum(&top)), (all, 9, 20), "a leaves");
        count(&mut top, "c", 5);
        count(&mut top, "a", 2);
        let all = vec![("a", &1), ("b", &10), ("c", &5)];
        assert_eq!((top.shown(), *top.other(), sum(&top)), (all, 11, 27), "a is one of the others");
        (0..LEAVING_ROUNDS).for_each(|_| top.rank());
        assert_eq!((top.shown(), *top.other()), (vec![("b", &10), ("c", &5)], 11), "a was read");
    }

    #[test]
    fn who_comes_back_before_it_has_left_goes_on_counting() {
        let mut top = Top::new(1);
        count(&mut top, "a", 1);
        count(&mut top, "b", 4);
        top.rank();
        assert_eq!((top.shown(), *top.other()), (vec![("a", &1), ("b", &0)], 4));
        count(&mut top, "a", 9);
        top.rank();
        count(&mut top, "a", 1);
        assert_eq!((top.shown(), *top.other()), (vec![("a", &2), ("b", &0)], 13));
    }

    #[test]
    fn few_leave_at_once() {
        let mut top = Top::new(2);
        for round in 0..10 {
            let busy = 4_u64.pow(round);
            count(&mut top, &format!("a{round}"), busy);
            count(&mut top, &format!("b{round}"), busy);
            top.rank();
            assert!(top.shown().len() <= 4, "{:?}", top.shown());
        }
    }

    #[test]
    fn whoever_is_a_little_busier_does_not_displace_anybody() {
        let mut top = Top::new(1);
        count(&mut top, "a", 5);
        count(&mut top, "b", 9);
        top.rank();
        assert_eq!(top.shown(), [("a", &5)]);
    }

    #[test]
    fn the_name_of_the_others_is_not_taken_by_one() {
        let mut top = Top::new(2);
        count(&mut top, OTHER, 5);
        assert_eq!((top.shown(), *top.other()), (vec![], 5));
        top.rank();
        assert_eq!(top.shown(), []);
    }

    #[test]
    fn a_million_names_are_not_remembered() {
        let mut top = Top::new(3);
        (0..100_000).for_each(|number| *top.of(&number.to_string().into()) += 1);
        assert_eq!((top.shown().len(), *top.other()), (3, 99_997));
        assert!(top.recent.len() <= NAMES_MAX);
    }
}
