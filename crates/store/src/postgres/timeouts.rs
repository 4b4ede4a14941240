//! How long the store waits for PostgreSQL.

use std::time::Duration;

/// How long the store waits for PostgreSQL before it gives up. Every wait has a bound, because a
/// network can stop to deliver packets without closing a connection, and a proxy can acknowledge
/// packets that it never delivers. The exception is `submit_in`: its statements on the connection of the caller
/// have no deadline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeouts {
    /// Opening a connection: TCP, TLS, authentication and session settings together. The bound is
    /// divided evenly among the servers, and the part of a server among its addresses. The lookup of
    /// a host name may take as long as the part of its server, in addition. The URL parameter
    /// `connect_timeout` replaces the bound and applies to each lookup and each address, undivided.
    /// Default: 10 s.
    pub connect: Duration,
    /// Waiting for a free connection of the pool. Default: 10 s.
    pub pool_wait: Duration,
    /// One transaction, or one statement outside a transaction. Default: 10 s.
    pub request: Duration,
    /// One transaction of a heartbeat. A third of the lease applies if that is shorter. Default: 5 s.
    pub heartbeat: Duration,
    /// One read of whole tables. Default: 5 min.
    pub read: Duration,
    /// One transaction of a migration, a repair or a prune. Default: 1 h.
    pub maintenance: Duration,
    /// Idle time of a TCP connection before the first keepalive probe. The URL parameter
    /// `keepalives_idle` has precedence. Values below 1 s count as 1 s, and values above 32,767 s as
    /// 32,767 s. Default: 10 s.
    pub tcp_keepalive: Duration,
    /// How long sent data may stay unacknowledged before the kernel closes the connection. The URL
    /// parameter `tcp_user_timeout` has precedence. Default: 10 s.
    pub tcp_user: Duration,
}

/// How much longer than the deadline of its connection's requests a statement may run on the server. The client
/// reports its own deadline; the timeout of the server ends statements of a client that is gone.
const SERVER_TIMEOUT_MARGIN: Duration = Duration::from_secs(1);

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            pool_wait: Duration::from_secs(10),
            request: Duration::from_secs(10),
            heartbeat: Duration::from_secs(5),
            read: Duration::from_secs(5 * 60),
            maintenance: Duration::from_secs(60 * 60),
            tcp_keepalive: Duration::from_secs(10),
            tcp_user: Duration::from_secs(10),
        }
    }
}

/// Returns the `statement_timeout`, in milliseconds, that belongs to a deadline of the client.
pub(super) fn statement_timeout_ms(deadline: Duration) -> u64 {
    let timeout = deadline.saturating_add(SERVER_TIMEOUT_MARGIN).as_millis();
    // The server counts in 32 bits, with a sign.
    u64::try_from(timeout).unwrap_or(u64::MAX).min(i32::MAX as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statement_timeout_is_above_deadline_and_within_bounds() {
        assert_eq!(statement_timeout_ms(Duration::from_secs(10)), 11_000);
        assert_eq!(statement_timeout_ms(Duration::MAX), i32::MAX as u64);
    }
}
