//! The texts of the statements that claim ready tasks.

use std::sync::LazyLock;

use super::sized_sql::SizedSql;

/// The texts of a claim: of one lane, and of several; for whatever is ready, and for what holds no slots
/// and no limit began to apply to.
pub(super) struct ClaimSql {
    pub(super) general_one_lane: &'static str,
    pub(super) general_many_lanes: SizedSql,
    pub(super) fast_one_lane: &'static str,
    pub(super) fast_many_lanes: SizedSql,
    /// Behind tasks that the same transaction has let in.
    pub(super) after_admission: SizedSql,
}

macro_rules! claim_sql {
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

impl ClaimSql {
    /// As they are, or as something makes them.
    pub(super) fn transformed(transform: fn(&'static str) -> &'static str) -> Self {
        Self {
            general_one_lane: transform(claim_sql!(
                "queries/claim_lanes.sql",
                "queries/claim_pick_single_lane.sql",
                "queries/claim_take_general.sql"
            )),
            general_many_lanes: SizedSql::new(transform(claim_sql!(
                "queries/claim_lanes.sql",
                "queries/claim_pick_lanes.sql",
                "queries/claim_take_general.sql"
            ))),
            fast_one_lane: transform(claim_sql!(
                "queries/claim_lanes.sql",
                "queries/claim_pick_single_lane.sql",
                "queries/claim_take_fast.sql"
            )),
            fast_many_lanes: SizedSql::new(transform(claim_sql!(
                "queries/claim_lanes.sql",
                "queries/claim_pick_lanes.sql",
                "queries/claim_take_fast.sql"
            ))),
            after_admission: SizedSql::new(transform(claim_sql!(
                "queries/claim_lanes_after_admit.sql",
                "queries/claim_pick_lanes.sql",
                "queries/claim_take_general.sql"
            ))),
        }
    }

    pub(super) fn for_lanes(&'static self, lanes: usize, kind: ClaimKind) -> &'static str {
        match (lanes, kind) {
            (1, ClaimKind::General) => self.general_one_lane,
            (1, ClaimKind::Fast) => self.fast_one_lane,
            (lanes, ClaimKind::General) => self.general_many_lanes.for_size(lanes).0,
            (lanes, ClaimKind::Fast) => self.fast_many_lanes.for_size(lanes).0,
            (lanes, ClaimKind::AfterAdmission) => self.after_admission.for_size(lanes).0,
        }
    }
}

pub(super) static CLAIM_SQL: LazyLock<ClaimSql> =
    LazyLock::new(|| ClaimSql::transformed(|text| text));

/// What a claim reckons with.
#[derive(Debug, Clone, Copy)]
pub(super) enum ClaimKind {
    /// Whatever is ready.
    General,
    /// What holds no slots and no limit began to apply to.
    Fast,
    /// Whatever is ready, and what the same transaction has let in.
    AfterAdmission,
}
