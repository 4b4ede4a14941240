//! Profiles: how much a worker takes on in production, in staging and at a desk.

/// A profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Profile {
    pub(crate) name: &'static str,
    pub(crate) workers: i64,
    /// Tasks at once for each worker.
    pub(crate) concurrency: i64,
}

impl Profile {
    pub(crate) const ALL: [Self; 3] = [
        Self { name: "production", workers: 100, concurrency: 5 },
        Self { name: "staging", workers: 20, concurrency: 3 },
        Self { name: "development", workers: 5, concurrency: 2 },
    ];

    pub(crate) fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.name == name)
    }
}
