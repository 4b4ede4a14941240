//! The texts of the statements that claim ready tasks.

use std::sync::LazyLock;

use super::paged::Paged;

/// The texts of a claim: of one lane, and of several; for whatever is ready, and for what holds no slots
/// and no limit began to apply to.
pub(super) struct Texts {
    pub(super) one: &'static str,
    pub(super) many: Paged,
    pub(super) plain_one: &'static str,
    pub(super) plain_many: Paged,
    /// Behind tasks that the same transaction has let in.
    pub(super) admitted: Paged,
}

macro_rules! text {
    ($lanes:literal, $pick:literal, $take:literal) => {
        concat!(
            include_str!("queries/claim_probe.sql"),
            include_str!("queries/claim_task_count.sql"),
            include_str!($lanes),
            include_str!($pick),
            include_str!($take)
        )
    };
}

impl Texts {
    /// As they are, or as something makes them.
    pub(super) fn made_by(made: fn(&'static str) -> &'static str) -> Self {
        Self {
            one: made(text!(
                "queries/claim_lanes.sql",
                "queries/claim_pick_single_lane.sql",
                "queries/claim_take_general.sql"
            )),
            many: Paged::new(made(text!(
                "queries/claim_lanes.sql",
                "queries/claim_pick_lanes.sql",
                "queries/claim_take_general.sql"
            ))),
            plain_one: made(text!(
                "queries/claim_lanes.sql",
                "queries/claim_pick_single_lane.sql",
                "queries/claim_take_fast.sql"
            )),
            plain_many: Paged::new(made(text!(
                "queries/claim_lanes.sql",
                "queries/claim_pick_lanes.sql",
                "queries/claim_take_fast.sql"
            ))),
            admitted: Paged::new(made(text!(
                "queries/claim_lanes_after_admit.sql",
                "queries/claim_pick_lanes.sql",
                "queries/claim_take_general.sql"
            ))),
        }
    }

    pub(super) fn of(&'static self, lanes: usize, sort: Sort) -> &'static str {
        match (lanes, sort) {
            (1, Sort::Any) => self.one,
            (1, Sort::Plain) => self.plain_one,
            (lanes, Sort::Any) => self.many.of(lanes).0,
            (lanes, Sort::Plain) => self.plain_many.of(lanes).0,
            (lanes, Sort::Admitted) => self.admitted.of(lanes).0,
        }
    }
}

pub(super) static TEXTS: LazyLock<Texts> = LazyLock::new(|| Texts::made_by(|text| text));

/// What a claim reckons with.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sort {
    /// Whatever is ready.
    Any,
    /// What holds no slots and no limit began to apply to.
    Plain,
    /// Whatever is ready, and what the same transaction has let in.
    Admitted,
}
