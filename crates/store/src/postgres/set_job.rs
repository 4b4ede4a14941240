//! Changes jobs.

use tidegate_core::tables::Tables as _;
use tidegate_core::{Result, Scope, SetJob, rules};

use super::draft::Draft;
use super::gate::follow;
use super::set_limit::set;
use super::{Inner, transact};

pub(super) async fn set_job(store: &Inner, wanted: SetJob) -> Result<()> {
    rules::check_set_job(&wanted)?;
    let names = [Scope::Job.name(&wanted.job)];
    let rule = |draft: &mut Draft| {
        rules::set_job(draft, &wanted)?;
        look_again(draft, &names[0])
    };
    let ((), left) = transact!(store, tx => set(store, &tx, &names, &[], rule));
    follow(store, left).await
}

/// Who is ready and is to get a slot of a reserve is loaded where there is a reserve: by whoever follows.
fn look_again(draft: &mut Draft, name: &str) -> Result<()> {
    let id = draft.limit_named(name)?;
    if let Some(mut limit) = id.map(|id| draft.limit(id)).transpose()?.flatten() {
        limit.disturb();
        draft.put_limit(&limit)?;
    }
    Ok(())
}
