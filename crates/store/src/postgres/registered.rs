//! Brings what is registered up to what live workers say, and forgets kinds that are gone.

use tidegate_core::{Millis, Result, Scope, rules};

use super::draft::{Draft, Left};
use super::error::Fault;
use super::flush::flush;
use super::gate::{BUDGET, follow};
use super::load::{Wanted, gather, moment};
use super::session::Tx;
use super::set_limit::{named, set};
use super::{Inner, transact};

const REGISTERED_WRONG: &str = include_str!("queries/groups_with_outdated_registration.sql");
const KINDS_UNSEEN: &str = include_str!("queries/kinds_not_registered_since.sql");
const SEE_KINDS: &str = include_str!("queries/set_kinds_registered_at.sql");
const FORGET_KINDS: &str = include_str!("queries/delete_kinds.sql");

/// Returns how many kinds were forgotten.
pub(super) async fn prune_registered(store: &Inner) -> Result<u32> {
    let wrong = transact!(store, tx => registered_wrong(store, &tx));
    if !wrong.is_empty() {
        let said: Vec<&str> = wrong.iter().map(String::as_str).collect();
        let rule = |draft: &mut Draft| {
            for group in &said {
                rules::reconsider(draft, group)?;
            }
            let mut budget = BUDGET;
            rules::gate::settle(draft, &mut budget)
        };
        let (_, left) = transact!(store, tx => set(store, &tx, &[], &said, rule));
        follow(store, left).await?;
    }
    let (unseen, before) = transact!(reading store, tx => kinds_unseen(store, &tx));
    if unseen.is_empty() {
        return Ok(0);
    }
    let (forgotten, left) = transact!(store, tx => forget_kinds(store, &tx, &unseen, before));
    follow(store, left).await?;
    Ok(forgotten)
}

async fn registered_wrong(store: &Inner, tx: &Tx<'_>) -> Result<Vec<String>, Fault> {
    let now = moment(store, tx).await?.now;
    let groups = tx.query(REGISTERED_WRONG, &[&now]).await?;
    Ok(groups.iter().map(|row| row.get("group_name")).collect())
}

/// A kind that was not registered for long.
struct Unseen {
    name: String,
    is_used: bool,
}

async fn kinds_unseen(store: &Inner, tx: &Tx<'_>) -> Result<(Vec<Unseen>, Millis), Fault> {
    let now = moment(store, tx).await?.now;
    let before = now - rules::KIND_KEPT_MS;
    let rows = tx.query(KINDS_UNSEEN, &[&before, &now]).await?;
    let kinds =
        rows.iter().map(|row| Unseen { name: row.get("name"), is_used: row.get("is_used") });
    Ok((kinds.collect(), before))
}

/// Limits are locked before kinds, as a registration does it.
async fn forget_kinds(
    store: &Inner,
    tx: &Tx<'_>,
    kinds: &[Unseen],
    before: Millis,
) -> Result<(u32, Left), Fault> {
    let (used, unused): (Vec<&Unseen>, Vec<&Unseen>) = kinds.iter().partition(|kind| kind.is_used);
    let names = |kinds: Vec<&Unseen>| kinds.iter().map(|kind| kind.name.clone()).collect();
    let (used, unused): (Vec<String>, Vec<String>) = (names(used), names(unused));
    let limits: Vec<String> = unused.iter().map(|kind| Scope::Group.name(kind)).collect();
    let limits = named(tx, &limits).await?;
    let limits = limits.iter().filter(|limit| limit.registered().is_some());
    let limits = limits.map(|limit| limit.id).collect();
    let moment = moment(store, tx).await?;
    let wanted = Wanted { limits, budget: BUDGET, ..Wanted::default() };
    let mut draft = gather(store, tx, moment, wanted).await?;
    draft.seal();
    tx.execute(SEE_KINDS, &[&used, &before, &moment.now]).await?;
    let forgotten = tx.query(FORGET_KINDS, &[&unused, &before]).await?;
    for row in &forgotten {
        rules::forget_registered(&mut draft, row.get("name"))?;
    }
    flush(tx, &draft).await?;
    Ok((forgotten.len() as u32, draft.left()))
}
