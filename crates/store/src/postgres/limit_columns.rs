//! Limits that are made: of jobs at submit, of workflows at the gate.

use tidegate_core::{CapacitySource, Limit, LimitId};
use tokio_postgres::types::ToSql;

pub(super) const INSERT_LIMITS: &str = include_str!("queries/insert_limits.sql");

/// What jobs share by, as columns; of other limits there is nothing.
#[derive(Debug, Default)]
pub(super) struct JobShareColumns {
    pub(super) weights: Vec<Option<i64>>,
    pub(super) reserves: Vec<i64>,
    pub(super) priorities: Vec<i32>,
    pub(super) delays: Vec<i64>,
}

impl JobShareColumns {
    pub(super) fn from_limits<'a>(limits: impl Iterator<Item = &'a Limit>) -> Self {
        let mut shares = Self::default();
        for share in limits.map(|limit| limit.fair_share) {
            shares.weights.push(share.map(|share| i64::from(share.weight)));
            shares.reserves.push(share.map_or(0, |share| i64::from(share.min_concurrency)));
            shares.priorities.push(share.map_or(0, |share| share.priority));
            shares.delays.push(share.map_or(0, |share| share.delay_ms));
        }
        shares
    }
}

/// New limits as the columns of [`MAKE_LIMITS`].
#[derive(Debug)]
pub(super) struct NewLimitColumns<'a> {
    names: Vec<&'a str>,
    capacities: Vec<Option<i64>>,
    sources: Vec<i32>,
    bases: Vec<Option<i64>>,
    base_sources: Vec<Option<i32>>,
    shares: JobShareColumns,
}

impl<'a> NewLimitColumns<'a> {
    pub(super) fn from_limits(limits: &[&'a Limit]) -> Self {
        let each = || limits.iter().copied();
        Self {
            names: each().map(|limit| &*limit.name).collect(),
            capacities: each().map(|limit| limit.capacity.map(i64::from)).collect(),
            sources: each().map(|limit| limit.source as i32).collect(),
            bases: each()
                .map(|limit| limit.capacity_without_override.map(|base| i64::from(base.0)))
                .collect(),
            base_sources: each()
                .map(|limit| limit.capacity_without_override.map(|base| base.1 as i32))
                .collect(),
            shares: JobShareColumns::from_limits(each()),
        }
    }

    pub(super) fn params(&self) -> [&(dyn ToSql + Sync); 9] {
        let JobShareColumns { weights, reserves, priorities, delays } = &self.shares;
        [
            &self.names,
            &self.capacities,
            &self.sources,
            &self.bases,
            &self.base_sources,
            weights,
            reserves,
            priorities,
            delays,
        ]
    }
}

/// The limits of workflows by their whole names.
pub(super) fn workflow_limits(names: &[String]) -> Vec<Limit> {
    let limit =
        |name: &String| Limit::new(LimitId(0), name, Some(1), CapacitySource::Unset, 0, None);
    names.iter().map(limit).collect()
}
