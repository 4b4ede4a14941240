//! Takes a slot away from its holder.

use anyhow::bail;
use tidegate_core::{ReleaseOutcome, ReleaseSlot};
use tidegate_store::StoreHandle;

use super::{find_limit, format_holder};
use crate::cli::Global;
use crate::stderr::print_message;

pub(super) async fn release(
    global: &Global,
    opened: &StoreHandle,
    name: String,
    slot: u32,
    force: bool,
) -> anyhow::Result<()> {
    let limits = opened.reader.limits().await?;
    let limit = find_limit(&limits, &name)?;
    if !force {
        let holders = opened.reader.slot_holders(limit.id).await?;
        let Some(holder) = holders.iter().find(|holder| holder.slot == slot) else {
            bail!("nobody holds slot {slot} of {name}");
        };
        let held = format_holder(holder, opened.reader.now().await?);
        bail!("{held}; its handler may still be running. --force takes the slot all the same");
    }
    let release = ReleaseSlot { limit: name.clone(), slot };
    match opened.store.release_slot(release).await? {
        ReleaseOutcome::Released(task) => {
            let word = task.to_string();
            let explain = global.command_line(&["task", "explain", &word]);
            print_message!(
                "slot {slot} of {name} is taken from task {task}; `{explain}` says where it is"
            );
            Ok(())
        }
        ReleaseOutcome::SlotFree => bail!("nobody holds slot {slot} of {name}"),
        ReleaseOutcome::LimitNotFound => bail!("there is no limit {name:?} any more"),
        ReleaseOutcome::NotRunning(task) => {
            let word = task.to_string();
            let cancel = global.command_line(&["task", "cancel", &word]);
            bail!("task {task} holds slot {slot} and has not started; `{cancel}` ends it")
        }
        ReleaseOutcome::HeldByTask(task) => {
            let word = task.to_string();
            let cancel = global.command_line(&["task", "cancel", &word]);
            bail!(
                "task {task} holds slot {slot} of {name} until it ends: steps run in their \
                 order; `{cancel}` ends it"
            )
        }
    }
}
