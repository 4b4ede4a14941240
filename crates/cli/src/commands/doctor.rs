use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use tidegate_core::invariants::{Violation, check, check_idle_store_except};
use tidegate_core::reader::{ConnectionEncryption, Snapshot};
use tidegate_core::repair::Repair;
use tidegate_measure::table::counted;
use tidegate_store::StoreHandle;

use crate::cli::Global;
use crate::output::{print, print_json};
use crate::run::is_checkpoint_kind;
use crate::stderr::print_message;

/// Checks every rule that one state of a live store can show
///
/// It reads one committed state, changes nothing without --repair, and may run beside any number
/// of workers. The exit code is 0 only when every rule holds, or holds again. On PostgreSQL it also
/// reports whether the connection is encrypted.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tidegate doctor --store sqlite:tasks.db\n  \
    tidegate doctor --repair")]
pub(crate) struct Arguments {
    /// Expect a store at rest: no unfinished task, no held slot. The marks of interrupted runs
    /// may be there
    #[arg(long)]
    at_rest: bool,
    /// Mend what is broken, and say each step. Everything else waits meanwhile; what runs under
    /// a lease is not touched
    #[arg(long, conflicts_with = "at_rest")]
    repair: bool,
    /// One JSON object instead of words
    #[arg(long)]
    json: bool,
}

/// Repairs after which what is left is told.
const REPAIR_PASSES_MAX: usize = 5;

/// What was looked at and what was found.
#[derive(Debug, Serialize)]
struct Diagnosis {
    clean: bool,
    tasks_unfinished: usize,
    tasks_finished: u64,
    limits: usize,
    slots_held: usize,
    leases: usize,
    /// How the connection to the server is encrypted; none where there is no server.
    connection: Option<Connection>,
    violations: Vec<Violation>,
    repairs: Vec<Repair>,
}

/// The connection to the server of the store.
#[derive(Debug, Serialize)]
struct Connection {
    encrypted: bool,
    unix_socket: bool,
    protocol: Option<String>,
    cipher: Option<String>,
    /// What was verified of the certificate of the server.
    verified: Option<&'static str>,
}

impl From<ConnectionEncryption> for Connection {
    fn from(encryption: ConnectionEncryption) -> Self {
        let ConnectionEncryption {
            is_encrypted,
            is_unix_socket: is_socket,
            tls_version: protocol,
            cipher_suite: cipher,
            certificate_verification: verified,
        } = encryption;
        Self { encrypted: is_encrypted, unix_socket: is_socket, protocol, cipher, verified }
    }
}

impl Connection {
    fn describe(&self) -> String {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        match (self.encrypted, self.unix_socket, self.verified) {
            (false, true, _) => "connection: Unix socket, not encrypted".to_owned(),
            (false, false, _) => "connection: NOT encrypted".to_owned(),
            (true, _, verified) => format!(
                "connection: encrypted ({}, {}), server certificate {}",
                text(&self.protocol),
                text(&self.cipher),
                verified.map_or_else(
                    || "not verified".to_owned(),
                    |verified| format!("verified ({verified})")
                )
            ),
        }
    }
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let opened: StoreHandle = super::open_to_read(global).await?;
    let snapshot = opened.reader.snapshot().await.map_err(explain_unreadable_row)?;
    let mut diagnosis = Diagnosis::from_snapshot(&snapshot, arguments.at_rest);
    diagnosis.connection = opened.reader.connection_encryption().map(Connection::from);
    if !arguments.json {
        print(&diagnosis.format_findings())?;
    }
    if arguments.repair && !diagnosis.clean {
        diagnosis.repair(&opened, arguments.json).await?;
    }
    if arguments.json {
        print_json([&diagnosis])?;
    } else {
        print(&diagnosis.format_conclusion(arguments.at_rest))?;
    }
    Ok(if diagnosis.clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A row that cannot be read cannot be checked, and the advice to run `doctor` is of no use here.
fn explain_unreadable_row(error: tidegate_core::Error) -> anyhow::Error {
    let text = error.to_string();
    match text.strip_suffix("; run `tidegate doctor`") {
        Some(what) => anyhow::anyhow!(
            "{what}. Nothing else can be checked while this cannot be read: put the row right or \
             remove it, then run `tidegate doctor --repair`"
        ),
        None => error.into(),
    }
}

impl Diagnosis {
    fn from_snapshot(snapshot: &Snapshot, at_rest: bool) -> Self {
        // The mark of a run that was interrupted stays until the run goes on.
        let violations = match at_rest {
            true => check_idle_store_except(snapshot, is_checkpoint_kind),
            false => check(snapshot),
        };
        Self {
            clean: violations.is_empty(),
            tasks_unfinished: snapshot.tasks.iter().filter(|task| !task.is_orphan()).count(),
            tasks_finished: snapshot.finished.values().sum(),
            limits: snapshot.limits.len(),
            slots_held: snapshot.slots.len(),
            leases: snapshot.leases.len(),
            connection: None,
            violations,
            repairs: Vec::new(),
        }
    }

    /// Mends, lets the gate look at what was brought back, and looks again: one step may bring
    /// to light what another one has to mend.
    ///
    /// Each step is told as soon as it is taken: what follows may fail.
    async fn repair(&mut self, opened: &StoreHandle, json: bool) -> anyhow::Result<()> {
        for _ in 0..REPAIR_PASSES_MAX {
            for repair in opened.store.repair().await? {
                match json {
                    true => print_message!("repaired: {repair}"),
                    false => print(&format!("repaired: {repair}\n"))?,
                }
                self.repairs.push(repair);
            }
            while opened.store.admit().await?.has_more {}
            let left = check(&opened.reader.snapshot().await?);
            self.clean = left.is_empty();
            if self.clean {
                return Ok(());
            }
        }
        Ok(())
    }

    /// What was looked at, and what is broken.
    fn format_findings(&self) -> String {
        let mut text = format!(
            "looked at {} unfinished and {}, {}, {}, {}\n",
            self.tasks_unfinished,
            counted(self.tasks_finished, "finished task"),
            counted(self.limits as u64, "limit"),
            counted(self.slots_held as u64, "held slot"),
            counted(self.leases as u64, "lease")
        );
        if let Some(connection) = &self.connection {
            text.push_str(&format!("{}\n", connection.describe()));
        }
        for violation in &self.violations {
            text.push_str(&format!("broken: {}: {}\n", violation.rule, violation.details));
        }
        text
    }

    /// What it comes to.
    fn format_conclusion(&self, at_rest: bool) -> String {
        let found = counted(self.violations.len() as u64, "violation");
        match (self.clean, self.violations.len()) {
            (true, 0) => "clean: every rule holds\n".to_owned(),
            (true, _) => format!(
                "{found}, mended in {}: every rule holds again\n",
                counted(self.repairs.len() as u64, "step")
            ),
            (false, _) if !self.repairs.is_empty() => {
                format!("{found}, and not all could be mended; `tidegate doctor` shows the rest\n")
            }
            (false, _) if at_rest => format!("{found} of a store at rest\n"),
            (false, _) => format!("{found}; `tidegate doctor --repair` mends what can be mended\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    #[test]
    fn connection_encryption_is_described() {
        let words = |encryption: ConnectionEncryption| Connection::from(encryption).describe();
        let clear = ConnectionEncryption::default();
        assert_snapshot!(words(clear.clone()), @"connection: NOT encrypted");
        let socket = ConnectionEncryption { is_unix_socket: true, ..clear.clone() };
        assert_snapshot!(words(socket), @"connection: Unix socket, not encrypted");
        let (protocol, cipher) = (Some("TLSv1.3".to_owned()), Some("CIPHER".to_owned()));
        let encrypted = ConnectionEncryption {
            is_encrypted: true,
            tls_version: protocol,
            cipher_suite: cipher,
            ..clear
        };
        assert_snapshot!(
            words(encrypted.clone()),
            @"connection: encrypted (TLSv1.3, CIPHER), server certificate not verified"
        );
        assert_snapshot!(
            words(ConnectionEncryption { certificate_verification: Some("verify-full"), ..encrypted }),
            @"connection: encrypted (TLSv1.3, CIPHER), server certificate verified (verify-full)"
        );
    }
}
