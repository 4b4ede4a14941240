//! The order in which servers and their addresses are tried.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::{Error, ErrorKind, Result};
use tokio::time::timeout;
use tokio_postgres::config::Host;

use super::settings::Server;

/// The index of a server, with one of its resolved addresses, or with none for the server as a whole.
pub(super) type Candidate = (usize, Option<IpAddr>);

/// The servers and addresses whose last attempt failed, or was given up by its caller. They are tried after all
/// others: a heartbeat that is given up before a silent server has used its time would wait for
/// the same server again and again.
#[derive(Debug, Default)]
pub(super) struct CandidateFailures(Mutex<CandidateState>);

#[derive(Debug, Default)]
struct CandidateState {
    failed: HashSet<Candidate>,
    /// How often each candidate was connected.
    connected: HashMap<Candidate, u64>,
}

/// An attempt to connect. It has failed if it is dropped before it succeeds, and no attempt beside it has succeeded.
pub(super) struct ConnectAttempt<'a> {
    failures: &'a CandidateFailures,
    candidate: Candidate,
    has_succeeded: bool,
    /// How often the candidate had been connected when this attempt began.
    connected_before: u64,
}

impl CandidateFailures {
    /// Returns the order in which `count` servers are tried.
    pub(super) fn server_order(&self, count: usize, is_random: bool) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        if is_random {
            shuffle(&mut order);
        }
        let state = self.lock_state();
        order.sort_by_key(|index| state.failed.contains(&(*index, None)));
        order
    }

    /// Sorts the addresses of a server into the order in which they are tried.
    pub(super) fn sort_addresses(
        &self,
        index: usize,
        addresses: &mut [Option<IpAddr>],
        is_random: bool,
    ) {
        if is_random {
            shuffle(addresses);
        }
        let state = self.lock_state();
        let has_failed = |address: &Option<IpAddr>| state.failed.contains(&(index, *address));
        addresses.sort_by_key(|address| address.is_some() && has_failed(address));
    }

    /// Forgets which candidates failed: the next connection tries them in the order of the URL. Without this, a
    /// store whose primary was away for a moment would stay on a standby that accepts connections.
    pub(super) fn clear(&self) {
        self.lock_state().failed.clear();
    }

    pub(super) fn start_attempt(&self, candidate: Candidate) -> ConnectAttempt<'_> {
        let connected_before = self.lock_state().times_connected(candidate);
        ConnectAttempt { failures: self, candidate, has_succeeded: false, connected_before }
    }

    fn lock_state(&self) -> MutexGuard<'_, CandidateState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CandidateState {
    fn times_connected(&self, candidate: Candidate) -> u64 {
        self.connected.get(&candidate).copied().unwrap_or_default()
    }
}

fn shuffle<T>(items: &mut [T]) {
    items.sort_by_cached_key(|_| RandomState::new().build_hasher().finish());
}

impl ConnectAttempt<'_> {
    pub(super) fn mark_succeeded(mut self) {
        self.has_succeeded = true;
    }
}

impl Drop for ConnectAttempt<'_> {
    fn drop(&mut self) {
        let mut state = self.failures.lock_state();
        if self.has_succeeded {
            state.failed.remove(&self.candidate);
            *state.connected.entry(self.candidate).or_default() += 1;
        } else if state.times_connected(self.candidate) == self.connected_before {
            state.failed.insert(self.candidate);
        }
    }
}

/// Looks up the addresses of a server. A server that needs no lookup (socket, `hostaddr`, or an IP address as
/// host) returns one entry: its `hostaddr`, or none.
pub(super) async fn resolve_addresses(
    server: &Server,
    limit: Duration,
) -> Result<Vec<Option<IpAddr>>> {
    let name = match &server.host {
        Host::Tcp(name) if server.address.is_none() && name.parse::<IpAddr>().is_err() => name,
        _ => return Ok(vec![server.address]),
    };
    let looked_up = timeout(limit, tokio::net::lookup_host((&**name, server.port))).await;
    let failed = |cause: &str| {
        Error::new(ErrorKind::Unavailable, format!("the host name cannot be resolved: {cause}"))
    };
    let looked_up = looked_up.map_err(|_| failed("no answer within the connect timeout"))?;
    let mut addresses = Vec::new();
    for address in looked_up.map_err(|error| failed(&error.to_string()))? {
        if !addresses.contains(&Some(address.ip())) {
            addresses.push(Some(address.ip()));
        }
    }
    if addresses.is_empty() { Err(failed("it has no address")) } else { Ok(addresses) }
}

/// Returns the connection to the first address that answers. Each address has the time `limit`. Any error
/// except `Unavailable`, such as a wrong password, ends the search within this server.
pub(super) async fn connect_first_address<A: Copy, T, F: Future<Output = Result<T>>>(
    addresses: &[A],
    limit: Duration,
    open: impl Fn(A) -> F,
) -> Result<T> {
    let mut failure = None;
    for &address in addresses {
        let error = match timeout(limit, open(address)).await {
            Ok(Ok(opened)) => return Ok(opened),
            Ok(Err(error)) => error,
            Err(_) => {
                let text = format!(
                    "no connection within {} s (postgres.connect_timeout_ms, or connect_timeout of the URL)",
                    limit.as_secs_f64()
                );
                Error::new(ErrorKind::Unavailable, text)
            }
        };
        if error.kind() != ErrorKind::Unavailable {
            return Err(error);
        }
        if let Some(earlier) = failure.replace(error) {
            tracing::debug!(error = %earlier, "one address of a server failed; the next one is tried");
        }
    }
    Err(failure.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "no address")))
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn silent_address_leaves_time_for_next_address() {
        let opened = connect_first_address(&[1, 2], LIMIT, |address| async move {
            match address {
                1 => std::future::pending().await,
                address => Ok(address),
            }
        });
        assert_eq!(opened.await.unwrap(), 2);
        let silent =
            connect_first_address(&[1, 2], LIMIT, |_| std::future::pending::<Result<()>>());
        let error = silent.await.unwrap_err();
        assert!(error.to_string().contains("0.05 s"), "{error}");
        assert_snapshot!(error, @"no connection within 0.05 s (postgres.connect_timeout_ms, or connect_timeout of the URL)");
    }

    #[tokio::test]
    async fn error_other_than_unavailable_stops_the_search() {
        let refused = connect_first_address(&[1, 2], LIMIT, |address| async move {
            match address {
                1 => Err(Error::new(ErrorKind::Refused, "password")),
                _ => Ok(()),
            }
        });
        assert_eq!(refused.await.unwrap_err().kind(), ErrorKind::Refused);
    }

    #[test]
    fn candidate_that_failed_is_tried_last() {
        let failures = CandidateFailures::default();
        assert_eq!(failures.server_order(3, false), [0, 1, 2]);
        drop(failures.start_attempt((0, None)));
        assert_eq!(failures.server_order(3, false), [1, 2, 0]);
        assert_eq!(failures.server_order(3, true)[2], 0);
        failures.start_attempt((0, None)).mark_succeeded();
        drop(failures.start_attempt((1, None)));
        assert_eq!(failures.server_order(3, false), [0, 2, 1]);

        let [first, second] =
            [Some(IpAddr::from([127, 0, 0, 1])), Some(IpAddr::from([127, 0, 0, 2]))];
        drop(failures.start_attempt((0, first)));
        let mut addresses = [first, second];
        failures.sort_addresses(0, &mut addresses, false);
        assert_eq!(addresses, [second, first]);
        failures.sort_addresses(1, &mut addresses, false);
        assert_eq!(addresses, [second, first], "of another server");
        failures.clear();
        assert_eq!(failures.server_order(3, false), [0, 1, 2]);
    }

    #[test]
    fn abandoned_attempt_next_to_successful_one_is_not_a_failure() {
        let failures = CandidateFailures::default();
        let slow = failures.start_attempt((0, None));
        failures.start_attempt((0, None)).mark_succeeded();
        drop(slow);
        assert_eq!(failures.server_order(2, false), [0, 1]);
    }
}
