//! Numbers by name where there may be very many names: the busiest have their own, the others
//! share one.

use std::collections::HashMap;
use std::sync::Arc;

/// The name of all who have no numbers of their own.
pub(super) const OTHER_NAME: &str = "other";

/// Names whose activity is noted. It is a measurement: beyond this it may miss somebody.
const TRACKED_NAMES_MAX: usize = 10_000;

/// Rankings for which the numbers of a name that was displaced are still shown: two minutes of a sampler,
/// in which everybody reads them once more.
const DISPLACED_RANKINGS_MAX: u32 = 24;

/// Counters by name. A name that becomes busy begins at zero; what it did before stays with the
/// others. One that is displaced keeps what it has until that was read, and counts with the others from
/// then on. So no counter ever goes down, and whoever adds up how they grow misses nothing, unless more
/// names leave at once than may have numbers of their own.
#[derive(Debug)]
pub(super) struct NamedValues<V> {
    max_named: usize,
    named: HashMap<Arc<str>, V>,
    /// Names that were displaced, and for how many rankings they stay.
    displaced: HashMap<Arc<str>, (V, u32)>,
    other_value: V,
    /// What names did lately.
    recent_activity: HashMap<Arc<str>, u64>,
}

impl<V: Default> NamedValues<V> {
    /// At most so many names have numbers of their own.
    pub(super) fn new(max_named: usize) -> Self {
        Self {
            max_named,
            named: HashMap::new(),
            displaced: HashMap::new(),
            other_value: V::default(),
            recent_activity: HashMap::new(),
        }
    }

    /// The numbers of a name that does something.
    pub(super) fn record_activity(&mut self, name: &Arc<str>) -> &mut V {
        if let Some(recent) = self.recent_activity.get_mut(name) {
            *recent += 1;
        } else if self.recent_activity.len() < TRACKED_NAMES_MAX {
            self.recent_activity.insert(name.clone(), 1);
        }
        if self.named.len() < self.max_named && may_be_named(name) && !self.named.contains_key(name)
        {
            self.named.insert(name.clone(), V::default());
        }
        self.named.get_mut(name).unwrap_or(&mut self.other_value)
    }

    /// Chooses anew who has numbers of its own. Whoever has them keeps them unless another is
    /// twice as busy: series that come and go are worth nothing.
    pub(super) fn update_ranking(&mut self) {
        self.displaced.retain(|_, (_, rounds)| {
            *rounds -= 1;
            *rounds > 0
        });
        let newcomers = self.recent_activity.keys().any(|name| !self.named.contains_key(name));
        if newcomers && self.named.len() >= self.max_named {
            let shown =
                self.named.keys().map(|name| (2 * self.recent_activity_of(name) + 1, name.clone()));
            let new =
                self.recent_activity.iter().filter(|(name, _)| !self.named.contains_key(*name));
            let new = new.map(|(name, recent)| (*recent, name.clone()));
            let mut names: Vec<(u64, Arc<str>)> =
                shown.chain(new).filter(|(_, name)| may_be_named(name)).collect();
            names.sort_unstable_by(|a, b| b.cmp(a));
            names.truncate(self.max_named);
            self.set_named(names.into_iter().map(|(_, name)| name));
        }
        self.recent_activity.retain(|_, recent| {
            *recent /= 2;
            *recent > 0
        });
    }

    /// These have numbers of their own, and nobody else.
    fn set_named(&mut self, names: impl Iterator<Item = Arc<str>>) {
        let mut before = std::mem::take(&mut self.named);
        for name in names {
            let leaving = self.displaced.remove(&name).map(|(value, _)| value);
            let value = before.remove(&name).or(leaving).unwrap_or_default();
            self.named.insert(name, value);
        }
        let displaced =
            before.into_iter().map(|(name, value)| (name, (value, DISPLACED_RANKINGS_MAX)));
        self.displaced.extend(displaced);
        while self.displaced.len() > self.max_named {
            let first = self.displaced.iter().min_by_key(|(name, (_, rounds))| (*rounds, *name));
            let first = first.map(|(name, _)| name.clone());
            first.map(|name| self.displaced.remove(&name));
        }
    }

    /// Those with numbers of their own, by name.
    pub(super) fn named_values(&self) -> Vec<(&str, &V)> {
        let shown = self.named.iter().map(|(name, value)| (&**name, value));
        let leaving = self.displaced.iter().map(|(name, (value, _))| (&**name, value));
        let mut shown: Vec<_> = shown.chain(leaving).collect();
        shown.sort_unstable_by_key(|(name, _)| *name);
        shown
    }

    pub(super) fn other_value(&self) -> &V {
        &self.other_value
    }

    fn recent_activity_of(&self, name: &str) -> u64 {
        self.recent_activity.get(name).copied().unwrap_or(0)
    }
}

/// Whoever bears the name of the others is one of them.
fn may_be_named(name: &str) -> bool {
    name != OTHER_NAME
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add_counts(top: &mut NamedValues<u64>, name: &str, times: u64) {
        let name = Arc::from(name);
        (0..times).for_each(|_| *top.record_activity(&name) += 1);
    }

    /// All counts, as they are shown.
    fn sum_of_all_values(top: &NamedValues<u64>) -> u64 {
        top.named_values().iter().map(|(_, value)| **value).sum::<u64>() + top.other_value()
    }

    #[test]
    fn busiest_names_have_own_values_and_no_count_is_lost() {
        let mut top = NamedValues::new(2);
        add_counts(&mut top, "a", 1);
        add_counts(&mut top, "b", 10);
        add_counts(&mut top, "c", 9);
        assert_eq!((top.named_values(), *top.other_value()), (vec![("a", &1), ("b", &10)], 9));
        top.update_ranking();
        let all = vec![("a", &1), ("b", &10), ("c", &0)];
        assert_eq!(
            (top.named_values(), *top.other_value(), sum_of_all_values(&top)),
            (all, 9, 20),
            "a leaves"
        );
        add_counts(&mut top, "c", 5);
        add_counts(&mut top, "a", 2);
        let all = vec![("a", &1), ("b", &10), ("c", &5)];
        assert_eq!(
            (top.named_values(), *top.other_value(), sum_of_all_values(&top)),
            (all, 11, 27),
            "a is one of the others"
        );
        (0..DISPLACED_RANKINGS_MAX).for_each(|_| top.update_ranking());
        assert_eq!(
            (top.named_values(), *top.other_value()),
            (vec![("b", &10), ("c", &5)], 11),
            "a was read"
        );
    }

    #[test]
    fn displaced_name_that_returns_keeps_its_count() {
        let mut top = NamedValues::new(1);
        add_counts(&mut top, "a", 1);
        add_counts(&mut top, "b", 4);
        top.update_ranking();
        assert_eq!((top.named_values(), *top.other_value()), (vec![("a", &1), ("b", &0)], 4));
        add_counts(&mut top, "a", 9);
        top.update_ranking();
        add_counts(&mut top, "a", 1);
        assert_eq!((top.named_values(), *top.other_value()), (vec![("a", &2), ("b", &0)], 13));
    }

    #[test]
    fn number_of_displaced_names_is_bounded() {
        let mut top = NamedValues::new(2);
        for round in 0..10 {
            let busy = 4_u64.pow(round);
            add_counts(&mut top, &format!("a{round}"), busy);
            add_counts(&mut top, &format!("b{round}"), busy);
            top.update_ranking();
            assert!(top.named_values().len() <= 4, "{:?}", top.named_values());
        }
    }

    #[test]
    fn slightly_busier_name_displaces_no_other() {
        let mut top = NamedValues::new(1);
        add_counts(&mut top, "a", 5);
        add_counts(&mut top, "b", 9);
        top.update_ranking();
        assert_eq!(top.named_values(), [("a", &5)]);
    }

    #[test]
    fn name_other_is_counted_as_other() {
        let mut top = NamedValues::new(2);
        add_counts(&mut top, OTHER_NAME, 5);
        assert_eq!((top.named_values(), *top.other_value()), (vec![], 5));
        top.update_ranking();
        assert_eq!(top.named_values(), []);
    }

    #[test]
    fn number_of_tracked_names_is_bounded() {
        let mut top = NamedValues::new(3);
        (0..100_000).for_each(|number| *top.record_activity(&number.to_string().into()) += 1);
        assert_eq!((top.named_values().len(), *top.other_value()), (3, 99_997));
        assert!(top.recent_activity.len() <= TRACKED_NAMES_MAX);
    }
}
