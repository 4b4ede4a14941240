//! PostgreSQL: the rules of the gate under real concurrency.
//!
//! A verb is one or more transactions, READ COMMITTED. Each locks, loads what it has locked
//! into a [draft](draft), runs the same rules as the reference over it, and writes what they
//! changed. Shorter ways are a statement for each step, sent in one round trip with their BEGIN and
//! COMMIT:
//!
//! - [Plain tasks](put) whose names are known are stored by `submit_fast.sql`.
//! - A [claim](claim) looks, picks and takes: `claim_probe.sql`, `claim_lanes.sql`, `claim_pick_single_lane.sql` or
//!   `claim_pick_lanes.sql`, and `claim_take_fast.sql`, or `claim_take_general.sql` where there are slots; what the
//!   tasks are [comes beside](leased).
//! - What ended well without slots is ended by `finish_fast.sql`.
//! - What holds one slot and [hands it on](relay) is ended by `hand_off_start.sql`, which starts the next in
//!   line, or by `hand_off_admit.sql`, which makes it ready for the claim that goes along.
//! - Tasks that are [due](due) are admitted by `lock_due_fast.sql` and `admit_due_fast.sql`.
//!
//! What runs without slots, or with one that can be handed on, is listed in its lease and has no row.
//! A verb that needs more of an attempt than that it runs [unpacks](unpack) it first: then it is a row of
//! `running`, and of `slots`, as all others. The other attempts of the lease stay listed. A [failure](failed)
//! does not unpack the attempt where its task is scheduled or has ended afterwards.
//!
//! Which slots of a limit are taken is kept in at most fifty [groups](groups); who holds them is a row of
//! `slots`, or stands in the list of a lease. A task that ends for good leaves `tasks` for `finished`, whose
//! partitions are [dropped](reap) by the day.
//!
//! A claim begins where the last one of its process [ended](floors), and a worker that found nothing is
//! answered from memory as long as its process [hears](listen) of nothing.
//!
//! # Who may change what
//!
//! - A task that is scheduled, in the inbox, ready or running: whoever locked its row in that table; one
//!   that its lease lists: whoever locked the lease.
//! - A task in a line, the line, the slots, their groups and the numbers of a limit: whoever has the
//!   limit alone, by its bucket and its row. A row of a line needs no lock of its own then.
//! - Who shares a limit's bucket may take those who wait their turn out of its line, each by the lock of
//!   its row, and give them slots that are listed in leases it has locked; they run or are ready.
//! - Slots that a lease lists: whoever locked the lease, and shares the limit if they change hands. A
//!   claim lists the slots of what it starts, by the lock of the ready row.
//! - A lease: whoever locked its row.
//! - What happened at a limit without its row's lock is a row of `limit_deltas`: that tasks of a job were
//!   claimed and left its window, that slots were given back, that tasks left the line, and when
//!   somebody should look whether both are so, a free slot and one who waits. Whoever locks the limit
//!   next takes it off. Who fills a window and who claims out of it both look after their
//!   commit, so that one of them sees what the other did.
//!
//! # The one lock order
//!
//! 1. the version of the limits (an advisory lock: claims share it, and all who lock a lease after
//!    a limit; whoever begins a limit has it alone, and may unpack leases before it locks limits);
//! 2. scheduled, inbox, ready, running: in this order, each by task;
//! 3. limits: their buckets in ascending order (advisory locks: who hands slots on shares them), then
//!    their rows by id; **all in one statement each**;
//! 4. leases by token;
//! 5. the row of the counters; a claim that finds it locked leaves it alone.
//!
//! Whoever needs a lock out of this order takes only what is free (`SKIP LOCKED`, or the
//! gatekeeper's advisory lock, which is only tried). So nobody waits in a circle: every wait is
//! for a lock later in the order than all that the waiter holds. A unique key is waited for only
//! by a submit or a retry, which holds nothing then but other unique keys. One on behalf of an
//! attempt comes to that attempt last, with its keys in hand and nothing else: it shares the
//! row of `running`, or the lease that lists the attempt, and commits. New names (kinds,
//! lanes, the limits of jobs and workflows) are made in transactions of their own that hold
//! nothing else.
//!
//! # What is decided under which lock
//!
//! - Which limits to lock is guessed by a look without a lock. Under the lock everything is read
//!   again; where the guess was wrong for a task the transaction must move, it starts again.
//! - Full is decided under the limit's lock, by the same transaction that parks.
//! - A slot is handed over only to a task all of whose limits are locked, or to one that needs nothing
//!   else. Otherwise the limit stays marked as dirty, and the same verb follows up with a transaction
//!   that locks them; if it dies in between, the next claim of any worker does.
//! - Ready tasks that hold slots of a limit which was lowered or paused, or of a job that has got a delay, go
//!   back to the line: their rows are locked before the limit, and under its lock somebody looks whether these
//!   are all. Until then the limit is dirty, and the next claim goes on.
//! - Arrivals pass one gatekeeper at a time, in order of id; so do the steps of a workflow.
//! - Whether an attempt still runs, for what it submits, is decided under a share of its row or its
//!   lease (`FOR KEY SHARE`) that is held over the COMMIT. Whoever ends attempts has locked that alone
//!   (`FOR UPDATE`); a heartbeat, which only moves the time of a lease, goes beside
//!   (`FOR NO KEY UPDATE`).
//! - A ready row carries the version of the limits it was made under. Claim shares the lock of
//!   that version and sends back what a limit that began later applies to; what runs when a
//!   limit begins is adopted by it.

mod admission;
mod attempt_guard;
mod call;
mod cancel;
mod claim;
mod claim_cursors;
mod claim_probe;
mod claim_result;
mod claim_sql;
mod connection;
mod due;
mod error;
mod fault_injection;
mod finish;
mod finish_failed;
mod follow_up;
mod hand_off;
mod hand_off_cache;
mod heartbeat;
mod inspect;
mod jitter;
mod lease_expansion;
mod limit_columns;
mod migrate;
mod network;
mod notifications;
mod pause;
mod readmit_stale;
mod reap;
mod reconcile_registrations;
mod release;
mod repair;
mod retry;
mod round_trip_stats;
mod rows;
mod runtime;
mod set_job;
mod set_limit;
mod sized_sql;
mod slot_groups;
mod snapshot;
mod step_size;
mod submit;
mod submit_fast;
mod timeouts;
mod transaction;
mod working_set;
mod working_set_load;
mod working_set_write;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::repair::Repair;
use tidegate_core::{
    AdmitReply, Attempt, CancelOutcome, Claim, Error, ErrorKind, Finish, FinishReply, Heartbeat,
    HeartbeatReply, Millis, PruneReply, ReapReply, RegisterReply, Registration, ReleaseOutcome,
    ReleaseSlot, Result, RetryOutcome, SetJob, SetLimit, SetPaused, Store, Submission,
    SubmittedTask, TaskId,
};

use call::{Call, CallerGuard, Verb};
use connection::{Connector, Pool, PooledConnection, build_pool, session_setup_sql};
use error::TxError;
use limit_columns::{INSERT_LIMITS, NewLimitColumns, workflow_limits};
use runtime::{PendingCall, StoreRuntime};
use transaction::{Params, in_transaction, run_once};

use crate::requests::RequestRecorder;

pub(crate) use connection::{display_address, without_password};
pub use fault_injection::InjectedBug;
pub use round_trip_stats::RoundTripStats;
pub use runtime::wait_until_closed;
pub use timeouts::Timeouts;
pub use transaction::StatementHook;

/// The session setting from which `claim_probe.sql` reads [`Options::due_grace`].
const DUE_GRACE_SETTING: &str = "tidegate.due_grace_ms";

/// Every statement of a verb walks indexes and nothing else. Said once, its plan does not depend on
/// what the statistics happen to be, and is made once per connection. The statistics of a queue are
/// those of its last quiet moment, when it was empty: a plan that trusts them reads whole tables.
///
/// Two things are left to the text of a statement. Limits of rows are written into it: a plan for
/// any number would sort whole lines. And a table is never joined by a column that has an index:
/// its rows are looked up one by one (`LATERAL`, with an `OFFSET 0` that keeps it apart) or all at
/// once (`= ANY (ARRAY (...))`), and are changed by their `ctid` where every row gets a value of its
/// own. The test `postgres_plans` reads the plans that are made of empty tables.
#[doc(hidden)]
pub const PLANNER_SETTINGS: &str = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off \
    -c enable_bitmapscan=off -c enable_hashjoin=off -c enable_mergejoin=off \
    -c enable_material=off -c enable_memoize=off -c jit=off -c seq_page_cost=1 \
    -c random_page_cost=4 -c cpu_tuple_cost=0.01 -c cpu_index_tuple_cost=0.005 \
    -c cpu_operator_cost=0.0025";

/// Reads of whole tables are planned as ever, but not compiled: that takes longer than they do.
const READER_SETTINGS: &str = "-c jit=off";

/// Connections for them.
const READER_CONNECTIONS: usize = 2;

/// Nobody else takes this connection, so a lease is renewed however busy the others are.
const HEARTBEAT_CONNECTIONS: usize = 1;

/// It waits for notices and does nothing else.
const LISTENER_CONNECTIONS: usize = 1;

/// The store's time, where it is not the server's.
pub type Clock = Arc<dyn Fn() -> Millis + Send + Sync>;

/// How to connect.
#[derive(Clone)]
pub struct Options {
    /// Connections for the verbs at most. Default: 8. A few are beside them, see
    /// [`connections_max`](Self::connections_max).
    pub pool_size: usize,
    /// How long to wait for the server.
    pub timeouts: Timeouts,
    /// How long a task may be due before claims that find enough other tasks admit it: tasks that become due
    /// within this time are admitted together. A claim that finds fewer admits every due task. Default: 100 ms.
    pub due_grace: Duration,
    /// The time. Default: the server's.
    pub clock: Option<Clock>,
    /// Called before every statement. Default: nothing.
    pub statement_hook: Option<StatementHook>,
    /// The bug to plant. Default: none.
    #[cfg(feature = "fault_injection")]
    pub injected_bug: Option<InjectedBug>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pool_size: 8,
            timeouts: Timeouts::default(),
            due_grace: Duration::from_millis(100),
            clock: None,
            statement_hook: None,
            #[cfg(feature = "fault_injection")]
            injected_bug: None,
        }
    }
}

impl Options {
    /// Connections that one store opens at most: the pool, those for reads of whole tables, the one
    /// for heartbeats, and the one that listens.
    pub fn connections_max(&self) -> usize {
        self.pool_size.max(1) + READER_CONNECTIONS + HEARTBEAT_CONNECTIONS + LISTENER_CONNECTIONS
    }

    /// The time, where it is not the server's.
    fn now_override(&self) -> Option<Millis> {
        self.clock.as_ref().map(|clock| clock())
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("pool_size", &self.pool_size).finish_non_exhaustive()
    }
}

/// A store in the schema `tidegate` of a PostgreSQL database. Cheap to clone.
#[derive(Clone)]
pub struct Postgres {
    inner: Arc<PostgresInner>,
}

pub(crate) struct PostgresInner {
    pool: Pool,
    reader_pool: Pool,
    heartbeat_pool: Pool,
    connector: Arc<Connector>,
    options: Options,
    /// Transactions the server undid because of another one.
    conflicts: AtomicU64,
    meter: Arc<round_trip_stats::RoundTripMeter>,
    requests: RequestRecorder,
    network: Arc<network::Network>,
    /// Verbs that were called and have not ended, also those whose caller is gone.
    pending_calls: Arc<AtomicUsize>,
    notifier: notifications::Notifier,
    claim_cursors: Arc<claim_cursors::ClaimCursors>,
    readmit_throttle: readmit_stale::ReadmitThrottle,
    hand_off_cache: hand_off_cache::HandOffCache,
    ongoing_releases: heartbeat::OngoingReleases,
    step_size: step_size::StepSize,
    next_due: due::NextDueHint,
    name_cache: submit_fast::NameCache,
    runtime: StoreRuntime,
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

impl Postgres {
    /// Prepares connections to the database at `url`; the first two are opened to see whether it answers,
    /// and whether each connection has a server session of its own. The URL, the variables and the
    /// files that are read are those of `docs/guides/connect-to-postgres.md`.
    pub async fn connect(url: &str, options: Options) -> Result<Self> {
        let (home, timeouts) = (StoreRuntime::new()?, &options.timeouts);
        let connector = Connector::new(url, timeouts, &home)?;
        let make = |settings: &str, deadline, size| {
            build_pool(
                &connector,
                session_setup_sql(&connector, settings, deadline),
                size,
                timeouts,
            )
        };
        let readers = make(READER_SETTINGS, timeouts.read, READER_CONNECTIONS)?;
        let heartbeats = make(PLANNER_SETTINGS, timeouts.heartbeat, HEARTBEAT_CONNECTIONS)?;
        let for_verbs =
            format!("{PLANNER_SETTINGS} -c {DUE_GRACE_SETTING}={}", options.due_grace.as_millis());
        let pool = make(&for_verbs, timeouts.request, options.pool_size.max(1))?;
        let floors = Arc::<claim_cursors::ClaimCursors>::default();
        let network = Arc::<network::Network>::default();
        let link = notifications::NotifierContext {
            connector: connector.clone(),
            pool: pool.clone(),
            timeouts: timeouts.clone(),
            network: network.clone(),
            runtime: home.handle()?,
        };
        let changed = notifications::Notifier::new(link, floors.clone());
        let inner = PostgresInner {
            pool,
            reader_pool: readers,
            heartbeat_pool: heartbeats,
            connector,
            options,
            conflicts: AtomicU64::new(0),
            meter: Arc::default(),
            requests: RequestRecorder::default(),
            network,
            pending_calls: Arc::default(),
            notifier: changed,
            claim_cursors: floors,
            readmit_throttle: readmit_stale::ReadmitThrottle::default(),
            hand_off_cache: hand_off_cache::HandOffCache::default(),
            ongoing_releases: heartbeat::OngoingReleases::default(),
            step_size: step_size::StepSize::default(),
            next_due: due::NextDueHint::default(),
            name_cache: submit_fast::NameCache::default(),
            runtime: home,
        };
        let store = Self { inner: Arc::new(inner) };
        let first = |store: Arc<PostgresInner>| async move {
            let (first, second) = store.connector.open_checked().await?;
            store.pool.manager().add_preopened(first);
            store.heartbeat_pool.manager().add_preopened(second);
            store.request_connection().await.map(drop)
        };
        store.run_detached(Verb::Connect, first).await?;
        Ok(store)
    }

    /// How often the server undid a transaction because of another one, and it was tried
    /// again. The lock order leaves no deadlocks, so this stays 0.
    pub fn transaction_conflicts(&self) -> u64 {
        self.inner.conflicts.load(Ordering::Relaxed)
    }

    /// Returns the number of verbs that were called and have not ended, also those whose caller has
    /// given up.
    pub fn pending_calls(&self) -> usize {
        self.inner.pending_calls.load(Ordering::Relaxed)
    }

    /// Returns the number of running attempts that this process remembers for hand-offs.
    #[doc(hidden)]
    pub fn remembered_attempts(&self) -> usize {
        self.inner.hand_off_cache.len()
    }

    /// What was sent to the server so far.
    pub fn round_trip_stats(&self) -> RoundTripStats {
        self.inner.meter.stats()
    }

    /// Stores tasks as part of a transaction of the caller's: they exist when it commits. It
    /// locks nothing that claim or finish needs, so the transaction may be long; only a submit
    /// of the same unique key waits for it. After an error the caller's transaction is as it
    /// was before, if the server can be reached. Kinds and jobs that are named for the first
    /// time, and limits that the tasks bring, are made at once and stay if the caller rolls back.
    /// Statements on the caller's connection have no deadline, and the session keeps its settings: a
    /// caller that must not wait for long sets a `statement_timeout`.
    /// A submission on behalf of an attempt is refused as `Invalid`: the attempt's lease would be locked
    /// for as long.
    pub async fn submit_in(
        &self,
        transaction: &tokio_postgres::Transaction<'_>,
        submission: &Submission,
    ) -> Result<Vec<SubmittedTask>> {
        let call = Call::new(Verb::Submit, &self.inner.options.timeouts);
        let verb = Box::pin(submit::submit_in(&self.inner, transaction, submission));
        call.run(&self.inner.requests, verb).await
    }

    /// Brings the schema up to date and applies more, as a newer program would: a name and a text
    /// each. For tests.
    #[doc(hidden)]
    pub async fn migrate_with_extra(
        &self,
        more: &'static [(&'static str, &'static str)],
    ) -> Result<()> {
        let verb =
            move |store: Arc<PostgresInner>| async move { migrate::migrate(&store, more).await };
        self.run_detached(Verb::Migrate, verb).await
    }

    /// Runs a verb as a tokio task on the runtime of the store: a caller that is dropped does not leave
    /// a transaction half done on a connection that others will use, and a handler that blocks
    /// its thread does not keep a heartbeat from its connection. A verb whose caller is gone begins
    /// no further transaction, except for steps that follow a commit.
    async fn run_detached<T, F>(
        &self,
        verb: Verb,
        body: impl FnOnce(Arc<PostgresInner>) -> F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.run_call(Call::new(verb, &self.inner.options.timeouts), body).await
    }

    async fn run_call<T, F>(
        &self,
        call: Arc<Call>,
        body: impl FnOnce(Arc<PostgresInner>) -> F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let _caller = CallerGuard(call.clone());
        let (inner, pending) = (self.inner.clone(), PendingCall::new(&self.inner.pending_calls));
        let verb = body(inner.clone());
        let verb = async move {
            let _pending = pending;
            let answer = call.clone().run(&inner.requests, verb).await;
            if let Err(error) = &answer {
                call.log_if_abandoned(error);
            }
            answer
        };
        self.inner.runtime.spawn(verb).await.unwrap_or_else(|cause| {
            Err(Error::new(ErrorKind::Unavailable, format!("the verb was cut off: {cause}")))
        })
    }
}

impl PostgresInner {
    async fn request_connection(&self) -> Result<PooledConnection> {
        self.check_out_connection(&self.pool).await
    }

    async fn heartbeat_connection(&self) -> Result<PooledConnection> {
        self.check_out_connection(&self.heartbeat_pool).await
    }

    /// A connection for reads of whole tables.
    async fn reader_connection(&self) -> Result<PooledConnection> {
        self.check_out_connection(&self.reader_pool).await
    }

    async fn check_out_connection(&self, pool: &Pool) -> Result<PooledConnection> {
        // In a box, as the state of a connection attempt is large and part of every verb.
        let check_out = async {
            connection::check_out_connection(pool, &self.network).await.map_err(TxError::from)
        };
        Ok(call::unless_abandoned(Box::pin(check_out)).await?)
    }

    /// Returns a connection to its pool, or closes it if the outcome of the transaction says that it
    /// must not be used again. If no other connection has got an answer since the transaction
    /// began (`began_ns`), the network is probably down: the idle connections are closed as well, so
    /// that the next transactions run on new connections instead of waiting for their own deadlines.
    fn return_connection(
        &self,
        connection: PooledConnection,
        began_ns: u64,
        error: Option<&TxError>,
    ) {
        if !error.is_some_and(TxError::must_close_connection) {
            if error.is_none() {
                self.network.record_answer();
            }
            if !self.connector.is_current(&connection) {
                // It was in use when all others were closed.
                drop(PooledConnection::take(connection));
            }
            return;
        }
        let connection = PooledConnection::take(connection);
        match error {
            Some(TxError::DeadlineExceeded(..)) => connection.abort(),
            _ => drop(connection),
        }
        let is_lost = !self.meter.has_answered_since(began_ns);
        if is_lost {
            self.network.record_outage();
        }
        let is_read_only = error.is_some_and(TxError::is_read_only);
        if is_read_only {
            self.connector.clear_failures();
        }
        if is_lost || is_read_only {
            self.connector.invalidate_connections();
            for pool in [&self.pool, &self.reader_pool, &self.heartbeat_pool] {
                pool.retain(|_, _| false);
                pool.manager().discard_preopened();
            }
        }
    }
}

/// Makes the limits of workflows, in a transaction of its own: nobody who holds a lock waits
/// for another one's names.
async fn make_workflow_limits(store: &PostgresInner, names: Vec<String>) -> Result<()> {
    let limits = workflow_limits(&names);
    let made = limits.iter().collect::<Vec<_>>();
    let made = NewLimitColumns::from_limits(&made);
    let columns: Params<'_> = &made.params();
    let made =
        run_once!(store, request_connection, autocommit, tx => tx.execute(INSERT_LIMITS, columns));
    made?;
    Ok(())
}

#[async_trait]
impl Store for Postgres {
    async fn migrate(&self) -> Result<()> {
        self.run_detached(Verb::Migrate, |store| async move { migrate::migrate(&store, &[]).await })
            .await
    }

    async fn register(&self, registration: Registration) -> Result<RegisterReply> {
        self.run_detached(Verb::Register, |store| async move {
            set_limit::register(&store, registration).await
        })
        .await
    }

    async fn submit(&self, submission: Submission) -> Result<Vec<SubmittedTask>> {
        self.run_detached(
            Verb::Submit,
            |store| async move { submit::submit(&store, submission).await },
        )
        .await
    }

    async fn admit(&self) -> Result<AdmitReply> {
        self.run_detached(Verb::Admit, |store| async move { admission::admit(&store).await }).await
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Attempt>> {
        let verb = |store: Arc<PostgresInner>| async move {
            let claimed = claim::claim(&store, claim).await?;
            store.hand_off_cache.add_claimed(&claimed);
            Ok(claimed)
        };
        self.run_detached(Verb::Claim, verb).await
    }

    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatReply> {
        let call = Call::for_heartbeat(&heartbeat, &self.inner.options.timeouts);
        self.run_call(call, |store| async move { heartbeat::heartbeat(&store, heartbeat).await })
            .await
    }

    async fn finish(&self, finish: Finish) -> Result<FinishReply> {
        let verb = |store: Arc<PostgresInner>| async move {
            let finished = finish::finish(&store, finish).await?;
            store.hand_off_cache.add_claimed(&finished.claimed);
            Ok(finished)
        };
        self.run_detached(Verb::Finish, verb).await
    }

    async fn cancel(&self, tasks: Vec<TaskId>) -> Result<Vec<CancelOutcome>> {
        self.run_detached(Verb::Cancel, |store| async move { cancel::cancel(&store, tasks).await })
            .await
    }

    async fn retry(&self, tasks: Vec<TaskId>) -> Result<Vec<RetryOutcome>> {
        self.run_detached(Verb::Retry, |store| async move { retry::retry(&store, tasks).await })
            .await
    }

    async fn release_slot(&self, release: ReleaseSlot) -> Result<ReleaseOutcome> {
        self.run_detached(
            Verb::Release,
            |store| async move { release::release(&store, release).await },
        )
        .await
    }

    async fn set_paused(&self, pause: SetPaused) -> Result<bool> {
        self.run_detached(Verb::Pause, |store| async move { pause::pause(&store, pause).await })
            .await
    }

    async fn repair(&self) -> Result<Vec<Repair>> {
        self.run_detached(Verb::Repair, |store| async move { repair::repair(&store).await }).await
    }

    async fn reap(&self) -> Result<ReapReply> {
        self.run_detached(Verb::Reap, |store| async move { reap::reap(&store).await }).await
    }

    async fn prune(&self) -> Result<PruneReply> {
        self.run_detached(Verb::Prune, |store| async move { reap::prune(&store).await }).await
    }

    async fn set_limit(&self, set: SetLimit) -> Result<Option<i64>> {
        self.run_detached(
            Verb::SetLimit,
            |store| async move { set_limit::set_limit(&store, set).await },
        )
        .await
    }

    async fn set_job(&self, set: SetJob) -> Result<()> {
        self.run_detached(Verb::SetJob, |store| async move { set_job::set_job(&store, set).await })
            .await
    }

    async fn wait_for_notification(&self) {
        self.inner.notifier.wait_for_notification().await;
    }
}
