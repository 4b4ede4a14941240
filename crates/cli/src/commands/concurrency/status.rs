//! Limits, who holds their slots, and who waits for them.

use serde::Serialize;
use tidegate_core::inspect::{Holder, WaiterView, WorkerView};
use tidegate_core::{Limit, Millis};
use tidegate_measure::table::{Table, counted};
use tidegate_store::Opened;

use super::find;
use super::said::Said;
use crate::output::{duration, or_dash, print, print_json, quoted};
use crate::tell::tell;

/// Holders of one limit that a list of all limits names.
const HOLDERS_MAX: usize = 10;

/// Waiting tasks that are named.
const WAITERS_MAX: u32 = 10;

/// A limit with its slots and the head of its line.
#[derive(Debug, Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    limit: &'a Limit,
    holders: Vec<Holder>,
    line: Vec<WaiterView>,
    #[serde(flatten)]
    said: Said,
}

pub(super) async fn all(opened: &Opened, json: bool) -> anyhow::Result<()> {
    let limits = opened.inspect.limits().await?;
    let workers = opened.inspect.workers().await?;
    if json {
        for limit in &limits {
            print_json([whole(opened, limit, &workers).await?])?;
        }
        return Ok(());
    }
    if limits.is_empty() {
        tell!("no limits; `tidegate concurrency set GROUP --limit N` sets one");
        return Ok(());
    }
    let now = opened.inspect.now().await?;
    let mut text = table(&limits).to_string();
    for limit in &limits {
        let said = Said::of(limit, &workers);
        if limit.held == 0 && !said.disagree {
            continue;
        }
        let holders = opened.inspect.holders(limit.id).await?;
        text.push_str(&format!("\n{}\n", limit.name));
        for holder in holders.iter().take(HOLDERS_MAX) {
            text.push_str(&format!("  {}\n", holder_words(holder, now)));
        }
        if let Some(more) = holders.len().checked_sub(HOLDERS_MAX).filter(|more| *more > 0) {
            let name = quoted(&limit.name);
            text.push_str(&format!("  and {more} more; `tidegate concurrency status {name}`\n"));
        }
        if said.disagree {
            text.push_str(&said.words());
        }
    }
    Ok(print(&text)?)
}

pub(super) async fn one(opened: &Opened, name: &str, json: bool) -> anyhow::Result<()> {
    let limits = opened.inspect.limits().await?;
    let limit = find(&limits, name)?;
    let workers = opened.inspect.workers().await?;
    let whole = whole(opened, limit, &workers).await?;
    if json {
        return print_json([whole]);
    }
    let now = opened.inspect.now().await?;
    let mut text = table(std::slice::from_ref(limit)).to_string();
    for holder in &whole.holders {
        text.push_str(&format!("  {}\n", holder_words(holder, now)));
    }
    text.push_str(&line_words(&whole, now));
    text.push_str(&below_words(limit));
    text.push_str(&whole.said.words());
    Ok(print(&text)?)
}

async fn whole<'a>(
    opened: &Opened,
    limit: &'a Limit,
    workers: &[WorkerView],
) -> anyhow::Result<Whole<'a>> {
    let holders = opened.inspect.holders(limit.id).await?;
    let line = match limit.waiting {
        0 => Vec::new(),
        _ => opened.inspect.waiters(limit.id, WAITERS_MAX).await?,
    };
    Ok(Whole { limit, holders, line, said: Said::of(limit, workers) })
}

/// What counts again when the setting in force is taken back.
fn below_words(limit: &Limit) -> String {
    match limit.base.filter(|(_, source)| *source != limit.source) {
        Some((capacity, source)) => format!("  below it: {capacity}, set by {source}\n"),
        None => String::new(),
    }
}

fn line_words(whole: &Whole<'_>, now: Millis) -> String {
    let mut text = String::new();
    for (place, waiter) in whole.line.iter().enumerate() {
        text.push_str(&format!(
            "  place {}: task {} ({}), waits for {}\n",
            place + 1,
            waiter.task,
            waiter.kind,
            duration((now - waiter.since).max(0))
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
            limit.refused.to_string(),
            limit.source.to_string(),
            limit.version.to_string(),
        ]);
    }
    table
}

/// Who holds a slot, in words.
pub(crate) fn holder_words(holder: &Holder, now: i64) -> String {
    let Holder { slot, task, kind, .. } = holder;
    match (&holder.worker, holder.expires_at) {
        (Some(worker), Some(at)) => format!(
            "slot {slot}: task {task} ({kind}) on worker {worker}, lease ends in {} unless renewed",
            duration((at - now).max(0))
        ),
        _ => format!("slot {slot}: task {task} ({kind}), not running"),
    }
}
