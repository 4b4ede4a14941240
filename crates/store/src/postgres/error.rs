//! What can go wrong inside a transaction, and how a caller is told. The one place that reads
//! PostgreSQL's error codes.

use std::time::Duration;

use tidegate_core::{Claim, Error, ErrorKind, TaskId, Token, rules};
use tokio_postgres::error::SqlState;

use super::connection::PoolError;

/// Why a transaction did not come to its end.
#[derive(Debug)]
pub(super) enum TxError {
    /// The server or the way to it.
    Server(tokio_postgres::Error),
    /// No connection could be had.
    Pool(PoolError),
    /// A rule refuses.
    Rule(Error),
    /// What was seen before the lock had changed under it: look again.
    Retry,
    /// The caller gave the call up before the transaction began.
    Abandoned,
    /// The server did not answer within the deadline, which is set by a setting. Whether it has committed is
    /// unknown.
    DeadlineExceeded(Duration, &'static str),
    /// A statement that always returns one row returned none.
    MissingRow(&'static str),
    /// Workflows without a limit; it is made in a transaction of its own.
    MissingWorkflowLimits(Vec<String>),
    /// A worker that has to be noted first, in a transaction of its own.
    WorkerNotRecorded(Claim),
    /// An attempt that a statement did not find running. It has ended, or was just given a row of its own.
    AttemptNotRunning(TaskId, Token),
}

impl From<tokio_postgres::Error> for TxError {
    fn from(error: tokio_postgres::Error) -> Self {
        if is_new_partition_race(&error) { Self::Retry } else { Self::Server(error) }
    }
}

/// Whether a task that ended was on its way to where it is kept while no day has come, as the partition
/// of its day was made: then that is where it belongs.
fn is_new_partition_race(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|error| {
        *error.code() == SqlState::CHECK_VIOLATION && error.table() == Some("finished_default")
    })
}

impl From<PoolError> for TxError {
    fn from(error: PoolError) -> Self {
        Self::Pool(error)
    }
}

impl From<Error> for TxError {
    fn from(error: Error) -> Self {
        Self::Rule(error)
    }
}

impl TxError {
    /// Whether the server undid the transaction because of another one.
    pub(super) fn is_conflict(&self) -> bool {
        let Self::Server(error) = self else {
            return false;
        };
        let conflicts = [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED];
        error.code().is_some_and(|code| conflicts.contains(code))
    }

    /// Whether the server accepts no writes: a standby, or a primary that was demoted.
    pub(super) fn is_read_only(&self) -> bool {
        let Self::Server(error) = self else {
            return false;
        };
        error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION)
    }

    /// Whether the connection must be closed: it may be dead, or it leads to the wrong server.
    pub(super) fn must_close_connection(&self) -> bool {
        matches!(self, Self::DeadlineExceeded(..)) || self.is_read_only()
    }

    /// How a statement says that it must not be committed.
    pub(super) fn is_division_by_zero(&self) -> bool {
        matches!(self, Self::Server(error) if error.code() == Some(&SqlState::DIVISION_BY_ZERO))
    }
}

impl From<TxError> for Error {
    fn from(error: TxError) -> Self {
        match error {
            TxError::Server(error) => to_store_error(&error),
            TxError::Pool(PoolError::Backend(error)) => error,
            TxError::Pool(PoolError::Timeout(_)) => Self::new(
                ErrorKind::Unavailable,
                "all connections to PostgreSQL were in use for longer than the pool wait timeout \
                 (postgres.pool_wait_timeout_ms)",
            ),
            TxError::Pool(error) => {
                Self::new(ErrorKind::Unavailable, format!("no connection to PostgreSQL: {error}"))
            }
            TxError::Rule(error) => error,
            TxError::Abandoned => Self::new(
                ErrorKind::Unavailable,
                "the caller gave up before the call reached PostgreSQL; nothing was changed",
            ),
            TxError::DeadlineExceeded(deadline, setting) => Self::new(
                ErrorKind::Unavailable,
                format!(
                    "PostgreSQL did not answer within {} s ({setting}); the connection was closed",
                    deadline.as_secs_f64()
                ),
            ),
            TxError::MissingRow(sql) => Self::new(
                ErrorKind::Incompatible,
                format!(
                    "a statement that always returns one row returned none; the row of the table \
                     tidegate.counters is missing: restore the database from a backup ({})",
                    sql.lines().find(|line| !line.starts_with("--")).unwrap_or_default()
                ),
            ),
            TxError::AttemptNotRunning(task, token) => rules::attempt_not_running(task, token),
            TxError::Retry | TxError::MissingWorkflowLimits(_) | TxError::WorkerNotRecorded(_) => {
                Self::new(
                    ErrorKind::Unavailable,
                    "others changed the same limits again and again; try again later",
                )
            }
        }
    }
}

/// For a step behind a commit: the caller gets the outcome of the commit. A server that is out of reach is
/// only logged, because the next claim continues the step; any other error is returned.
pub(super) fn ignore_unavailable(
    step: &'static str,
    outcome: Result<(), Error>,
) -> Result<(), Error> {
    outcome.or_else(|error| match error.kind() {
        ErrorKind::Unavailable => {
            log_after_commit(step, &error);
            Ok(())
        }
        _ => Err(error),
    })
}

/// Logs an error that the caller of a verb does not get, because the verb has committed before it. The
/// text of an error has no payloads and no parameters in it. An error about rows names `tidegate doctor` itself.
pub(super) fn log_after_commit(step: &'static str, error: &Error) {
    match error.kind() {
        ErrorKind::Unavailable => {
            tracing::info!(step, %error, "a step behind a commit failed; a later call repeats it");
        }
        ErrorKind::Incompatible => tracing::error!(
            step,
            %error,
            "a step behind a commit failed, and it will fail again until the cause is removed"
        ),
        _ => tracing::warn!(step, %error, "a step behind a commit failed; a later call repeats it"),
    }
}

/// Logs an error of a step that a verb can do without. The verb goes on.
pub(super) fn log_optional_step(step: &'static str, error: &Error) {
    match error.kind() {
        ErrorKind::Incompatible => tracing::error!(
            step,
            %error,
            "an optional step failed, and it will fail again until the cause is removed; the request \
             goes on without it"
        ),
        _ => {
            tracing::info!(step, %error, "an optional step failed; the request goes on without it")
        }
    }
}

pub(super) fn to_store_error(error: &tokio_postgres::Error) -> Error {
    let Some(answer) = error.as_db_error() else {
        let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
        let text = format!("PostgreSQL cannot be reached: {error}{}", cause.unwrap_or_default());
        return Error::new(ErrorKind::Unavailable, text);
    };
    let code = answer.code();
    let text = format!("PostgreSQL says: {} ({})", answer.message(), code.code());
    let kind = match code {
        c if *c == SqlState::READ_ONLY_SQL_TRANSACTION => {
            return Error::new(
                ErrorKind::Refused,
                format!(
                    "{text}; the server is a standby or set to read-only: name the primary in the URL, \
                     or all servers (postgres://HOST,HOST/DATABASE), of which \
                     target_session_attrs=read-write finds the primary"
                ),
            );
        }
        c if *c == SqlState::PROTOCOL_VIOLATION
            && answer.message().starts_with("unsupported startup parameter")
            && answer.message().contains("options") =>
        {
            return Error::new(
                ErrorKind::Unavailable,
                format!(
                    "{text}; the connection pooler refuses settings: leave options out of the URL"
                ),
            );
        }
        c if *c == SqlState::INSUFFICIENT_PRIVILEGE => ErrorKind::Refused,
        // Class 28: authentication. The password file may get the new password any moment.
        c if c.code().starts_with("28") => ErrorKind::Refused,
        c if [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::DUPLICATE_PSTATEMENT].contains(c) => {
            return Error::new(
                ErrorKind::Incompatible,
                format!(
                    "{text}; a connection pooler seems to give server sessions to other clients \
                     between two transactions: set pool_mode = session, or connect to PostgreSQL \
                     directly"
                ),
            );
        }
        c if [
            SqlState::UNDEFINED_TABLE,
            SqlState::UNDEFINED_COLUMN,
            SqlState::INVALID_SCHEMA_NAME,
        ]
        .contains(c) =>
        {
            return Error::new(
                ErrorKind::Incompatible,
                format!(
                    "{text}; the database has no tidegate schema of this version: run `tidegate \
                     migrate`, or use a newer tidegate if one has migrated it"
                ),
            );
        }
        // Class 53: disk full, out of memory, too many connections. Nothing was written.
        c if c.code().starts_with("53") => ErrorKind::Refused,
        // Connection lost, shutdown, statement cancelled, conflict with others.
        c if ["08", "57", "40", "55", "25"].iter().any(|class| c.code().starts_with(class)) => {
            ErrorKind::Unavailable
        }
        _ => ErrorKind::Incompatible,
    };
    Error::new(kind, text)
}

#[cfg(test)]
mod tests {
    use tidegate_testkit::events::Events;
    use tracing::Level;

    use super::*;

    #[test]
    fn error_that_is_not_about_rows_is_logged_without_the_doctor() {
        let events = Events::capture();
        let pooler =
            Error::new(ErrorKind::Incompatible, "prepared statement \"s1\" does not exist");
        log_after_commit("claim of more tasks", &pooler);
        log_optional_step("admission of due tasks", &pooler);
        let logged = events.of_level(Level::ERROR);
        assert_eq!(logged.len(), 2, "{logged:?}");
        for event in logged {
            assert!(event.text.contains("does not exist"), "{event:?}");
            assert!(!event.text.contains("doctor") && !event.text.contains("rows"), "{event:?}");
        }
    }
}
