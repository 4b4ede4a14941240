//! Heartbeats.

use tidegate_core::{Extend, Extended, Result, rules};

use super::draft::Draft;
use super::error::{Fault, quietly};
use super::load::moment;
use super::rows;
use super::session::Tx;
use super::{Inner, claim, transact};
use crate::memory::State;

const LOCK_LEASES: &str = include_str!("queries/lock_leases.sql");
const RENEW_LEASES: &str = include_str!("queries/renew_leases.sql");
const CANCEL_REQUESTS: &str = include_str!("queries/cancel_requests.sql");
const PUT_PROGRESS: &str = include_str!("queries/put_progress.sql");
const LOCK_RUNNING: &str = include_str!("queries/lock_running.sql");

pub(super) async fn extend(store: &Inner, extend: Extend) -> Result<Extended> {
    // Refusals come before any write: the rules are asked over empty tables.
    rules::extend(&mut State::default(), &extend)?;
    transact!(beating store, tx => alive(store, &tx, &extend));
    // Renewal commits by itself: it does not wait for the row of every attempt that reports.
    let extended = transact!(beating store, tx => renew(store, &tx, &extend));
    if !extend.progress.is_empty() {
        // The lease is renewed: a report that is lost must not look like a lease that is.
        quietly(report(store, &extend).await)?;
    }
    Ok(extended)
}

async fn report(store: &Inner, extend: &Extend) -> Result<()> {
    transact!(beating store, tx => progress(&tx, extend));
    Ok(())
}

async fn alive(store: &Inner, tx: &Tx<'_>, extend: &Extend) -> Result<(), Fault> {
    let now = moment(store, tx).await?.now;
    claim::see_worker(tx, &extend.worker.0, now + extend.lease_ms).await
}

async fn renew(store: &Inner, tx: &Tx<'_>, extend: &Extend) -> Result<Extended, Fault> {
    let tokens: Vec<i64> = extend.tokens.iter().map(|token| token.0).collect();
    let leases = tx.query(LOCK_LEASES, &[&tokens]).await?;
    let moment = moment(store, tx).await?;
    let mut draft = Draft::new(moment.now, moment.virtual_time, moment.limits_version, 0);
    leases.iter().for_each(|row| draft.add_lease(rows::lease(row)));
    for row in tx.query(CANCEL_REQUESTS, &[&tokens]).await? {
        let (task, token, running) = rows::running(&row);
        draft.run(task, token, running);
    }
    let extend = Extend { progress: Vec::new(), ..extend.clone() };
    let extended = rules::extend(&mut draft, &extend)?;
    let renewed = extend.tokens.iter().filter(|token| !extended.lost.contains(token));
    let renewed: Vec<i64> = renewed.map(|token| token.0).collect();
    tx.execute(RENEW_LEASES, &[&renewed, &(moment.now + extend.lease_ms)]).await?;
    Ok(extended)
}

async fn progress(tx: &Tx<'_>, extend: &Extend) -> Result<(), Fault> {
    // A later report of the same attempt replaces an earlier one.
    let reports: std::collections::BTreeMap<_, _> =
        extend.progress.iter().map(|(task, token, report)| ((task.0, token.0), report)).collect();
    let tasks: Vec<i64> = reports.keys().map(|(task, _)| *task).collect();
    let tokens: Vec<i64> = reports.keys().map(|(_, token)| *token).collect();
    let percents: Vec<i32> = reports.values().map(|report| i32::from(report.percent)).collect();
    let messages: Vec<&[u8]> = reports.values().map(|report| report.message.as_bytes()).collect();
    tx.query(LOCK_RUNNING, &[&tasks]).await?;
    tx.execute(PUT_PROGRESS, &[&tasks, &tokens, &percents, &messages]).await?;
    Ok(())
}
