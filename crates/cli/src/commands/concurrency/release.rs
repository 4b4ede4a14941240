//! Takes a slot away from its holder.

use anyhow::bail;
use tidegate_core::{Release, ReleaseOutcome};
use tidegate_store::Opened;

use super::{find, holder_words};
use crate::cli::Global;
use crate::tell::tell;

pub(super) async fn release(
    global: &Global,
    opened: &Opened,
    name: String,
    slot: u32,
    force: bool,
) -> anyhow::Result<()> {
    let limits = opened.inspect.limits().await?;
    let limit = find(&limits, &name)?;
    if !force {
        let holders = opened.inspect.holders(limit.id).await?;
        let Some(holder) = holders.iter().find(|holder| holder.slot == slot) else {
            bail!("nobody holds slot {slot} of {name}");
        };
        let held = holder_words(holder, opened.inspect.now().await?);
        bail!("{held}; its handler may still be running. --force takes the slot all the same");
    }
    let release = Release { limit: name.clone(), slot };
    match opened.store.release(release).await? {
        ReleaseOutcome::Released(task) => {
            let word = task.to_string();
            let explain = global.command(&["task", "explain", &word]);
            tell!("slot {slot} of {name} is taken from task {task}; `{explain}` says where it is");
            Ok(())
        }
        ReleaseOutcome::Free => bail!("nobody holds slot {slot} of {name}"),
        ReleaseOutcome::NoLimit => bail!("there is no limit {name:?} any more"),
        ReleaseOutcome::NotRunning(task) => {
            let word = task.to_string();
            let cancel = global.command(&["task", "cancel", &word]);
            bail!("task {task} holds slot {slot} and has not started; `{cancel}` ends it")
        }
        ReleaseOutcome::ForLife(task) => {
            let word = task.to_string();
            let cancel = global.command(&["task", "cancel", &word]);
            bail!(
                "task {task} holds slot {slot} of {name} until it ends: steps run in their \
                 order; `{cancel}` ends it"
            )
        }
    }
}
