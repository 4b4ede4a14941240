//! Changes jobs.

use tidegate_core::{Result, Scope, SetJob, rules};

use super::draft::Draft;
use super::gate::follow;
use super::set_limit::set;
use super::{Inner, transact};

pub(super) async fn set_job(store: &Inner, wanted: SetJob) -> Result<()> {
    rules::check_set_job(&wanted)?;
    let names = [Scope::Job.name(&wanted.job)];
    let rule = |draft: &mut Draft| rules::set_job(draft, &wanted);
    let ((), left) = transact!(store, tx => set(store, &tx, &names, &[], rule));
    follow(store, left).await
}
