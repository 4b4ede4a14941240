//! Limits, who holds their slots, and who waits for them.

use serde::Serialize;
use tidegate_core::reader::{SlotHolder, WaiterView, WorkerView};
use tidegate_core::{Limit, Millis};
use tidegate_measure::table::{Table, counted};
use tidegate_store::StoreHandle;

use super::find_limit;
use super::registered_limits::RegisteredLimits;
use crate::output::{format_duration, or_dash, print, print_json, shell_quoted};
use crate::stderr::print_message;

/// Holders of one limit that a list of all limits names.
const HOLDERS_LISTED_MAX: usize = 10;

/// Waiting tasks that are named.
const WAITERS_LISTED_MAX: u32 = 10;

/// A limit with its slots and the head of its line.
#[derive(Debug, Serialize)]
struct LimitDetails<'a> {
    #[serde(flatten)]
    limit: &'a Limit,
    holders: Vec<SlotHolder>,
    line: Vec<WaiterView>,
    #[serde(flatten)]
    registered: RegisteredLimits,
}

pub(super) async fn show_all(opened: &StoreHandle, json: bool) -> anyhow::Result<()> {
    let limits = opened.reader.limits().await?;
    let workers = opened.reader.workers().await?;
    if json {
        for limit in &limits {
            print_json([limit_details(opened, limit, &workers).await?])?;
        }
        return Ok(());
    }
    if limits.is_empty() {
        print_message!("no limits; `tidegate concurrency set GROUP --limit N` sets one");
        return Ok(());
    }
    let now = opened.reader.now().await?;
    let mut text = table(&limits).to_string();
    for limit in &limits {
        let said = RegisteredLimits::for_limit(limit, &workers);
        if limit.held == 0 && !said.disagree {
            continue;
        }
        let holders = opened.reader.slot_holders(limit.id).await?;
        text.push_str(&format!("\n{}\n", limit.name));
        for holder in holders.iter().take(HOLDERS_LISTED_MAX) {
            text.push_str(&format!("  {}\n", format_holder(holder, now)));
        }
        if let Some(more) = holders.len().checked_sub(HOLDERS_LISTED_MAX).filter(|more| *more > 0) {
            let name = shell_quoted(&limit.name);
            text.push_str(&format!("  and {more} more; `tidegate concurrency status {name}`\n"));
        }
        if said.disagree {
            text.push_str(&said.describe());
        }
    }
    Ok(print(&text)?)
}

pub(super) async fn show_one(opened: &StoreHandle, name: &str, json: bool) -> anyhow::Result<()> {
    let limits = opened.reader.limits().await?;
    let limit = find_limit(&limits, name)?;
    let workers = opened.reader.workers().await?;
    let whole = limit_details(opened, limit, &workers).await?;
    if json {
        return print_json([whole]);
    }
    let now = opened.reader.now().await?;
    let mut text = table(std::slice::from_ref(limit)).to_string();
    for holder in &whole.holders {
        text.push_str(&format!("  {}\n", format_holder(holder, now)));
    }
    text.push_str(&format_waiters(&whole, now));
    text.push_str(&format_base_capacity(limit));
    text.push_str(&whole.registered.describe());
    Ok(print(&text)?)
}

async fn limit_details<'a>(
    opened: &StoreHandle,
    limit: &'a Limit,
    workers: &[WorkerView],
) -> anyhow::Result<LimitDetails<'a>> {
    let holders = opened.reader.slot_holders(limit.id).await?;
    let line = match limit.waiting {
        0 => Vec::new(),
        _ => opened.reader.waiters(limit.id, WAITERS_LISTED_MAX).await?,
    };
    Ok(LimitDetails {
        limit,
        holders,
        line,
        registered: RegisteredLimits::for_limit(limit, workers),
    })
}

/// What counts again when the setting in force is taken back.
fn format_base_capacity(limit: &Limit) -> String {
    match limit.capacity_without_override.filter(|(_, source)| *source != limit.source) {
        Some((capacity, source)) => format!("  below it: {capacity}, set by {source}\n"),
        None => String::new(),
    }
}

fn format_waiters(whole: &LimitDetails<'_>, now: Millis) -> String {
    let mut text = String::new();
    for (place, waiter) in whole.line.iter().enumerate() {
        text.push_str(&format!(
            "  place {}: task {} ({}), waits for {}\n",
            place + 1,
            waiter.task,
            waiter.kind,
            format_duration((now - waiter.due_at).max(0))
        ));
    }
    let more = u64::from(whole.limit.waiting).saturating_sub(whole.line.len() as u64);
    if more > 0 {
        text.push_str(&format!("  and {} behind them\n", counted(more, "task")));
    }
    text
}

fn table(limits: &[Limit]) -> Table {
    let heads = ["limit", "capacity", "held", "waiting", "refused", "set by", "version"];
    let mut table = Table::new(&heads);
    for limit in limits {
        table.row(vec![
            limit.name.to_string(),
            or_dash(limit.capacity),
            limit.held.to_string(),
            limit.waiting.to_string(),
            limit.parked_total.to_string(),
            limit.source.to_string(),
            limit.version.to_string(),
        ]);
    }
    table
}

/// Who holds a slot, in words.
pub(crate) fn format_holder(holder: &SlotHolder, now: i64) -> String {
    let SlotHolder { slot, task, kind, .. } = holder;
    match (&holder.worker, holder.expires_at) {
        (Some(worker), Some(at)) => format!(
            "slot {slot}: task {task} ({kind}) on worker {worker}, lease ends in {} unless renewed",
            format_duration((at - now).max(0))
        ),
        _ => format!("slot {slot}: task {task} ({kind}), not running"),
    }
}
