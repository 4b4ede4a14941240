use crate::bounds::PROGRESS_BYTES_MAX;
use crate::tables::Tables;
use crate::{Error, Extend, Extended, Progress, Result};

/// Renews leases, writes progress, and tells which attempts were lost or should stop.
pub fn extend(tables: &mut dyn Tables, extend: &Extend) -> Result<Extended> {
    extend.check()?;
    extend.progress.iter().try_for_each(|(_, _, progress)| check(progress))?;
    let expires_at = tables.now() + extend.lease_ms;
    let mut extended = Extended::default();
    if extend.leaves() {
        tables.forget_worker(&extend.worker)?;
    } else {
        tables.see_worker(&extend.worker, expires_at, None)?;
        extended.peers = tables.report(&extend.worker, extend.report.as_ref())?;
    }
    for token in &extend.tokens {
        if !tables.renew_lease(*token, &extend.worker, expires_at)? {
            extended.lost.push(*token);
        }
    }
    for (task, token, progress) in &extend.progress {
        tables.put_progress(*task, *token, progress)?;
    }
    for ran in &extend.ran {
        let pace = tables.pace(&ran.group)?.unwrap_or_default().add(ran.tasks, ran.total_ms);
        tables.put_pace(&ran.group, pace)?;
    }
    extended.cancelled = tables.cancel_requests(&extend.tokens)?;
    Ok(extended)
}

fn check(progress: &Progress) -> Result<()> {
    let is_text = !progress.message.contains('\0');
    if progress.percent > 100 || progress.message.len() > PROGRESS_BYTES_MAX || !is_text {
        return Err(Error::invalid(format!(
            "progress is between 0 and 100 percent with a message of at most \
             {PROGRESS_BYTES_MAX} bytes, none of them zero"
        )));
    }
    Ok(())
}
