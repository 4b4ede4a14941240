//! Sequences of verbs, generated. Whatever a verb refers to (a task, an attempt) is a number
//! that is taken modulo what is known by then, so that a shrunk sequence still makes sense.

use proptest::prelude::*;
use tidegate_core::CapacitySource;

/// One step.
#[derive(Debug, Clone)]
pub enum Op {
    /// Makes a kind known, and a limit with it; some worker of the fleet may bring it.
    Register(KindSpec),
    /// A heartbeat of a worker of the fleet, or its goodbye.
    FleetHeartbeat { worker: u8, leaves: bool },
    /// Makes a job known.
    Job(JobOp),
    /// Changes a job, if it is there.
    SetJob(JobOp),
    /// Stores tasks.
    Submit(Vec<TaskSpec>),
    /// Stores tasks on behalf of an attempt, also of one that has ended.
    SubmitOnBehalfOf { attempt: usize, tasks: Vec<TaskSpec> },
    /// Sets or unsets a limit.
    SetLimit { limit: u8, capacity: Option<u32>, source: CapacitySource },
    /// A worker claims.
    Claim(ClaimSpec),
    /// Attempts end, also some that ended before; the worker may claim in the same step.
    Finish { exits: Vec<(usize, OutcomeSpec)>, claim: Option<ClaimSpec> },
    /// A worker's heartbeat for some of the leases that were ever given.
    /// Some of the latest attempts report progress.
    Heartbeat { worker: u8, leases: Vec<usize>, reports: Vec<(usize, u8)> },
    /// Cancels some of the tasks that were ever stored.
    Cancel(Vec<usize>),
    /// Brings some of the tasks back that were ever stored.
    Retry(Vec<usize>),
    /// Takes a slot away from whoever holds it.
    Release { limit: u8, slot: u32 },
    /// Pauses a queue, a job or a workflow, or lets it go on.
    Pause { what: u8, paused: bool },
    /// Mends what is broken: nothing is.
    Repair,
    /// Lets the gate look.
    Admit,
    /// Lets the reaper look.
    Reap,
    /// Removes what was kept long enough.
    Prune,
    /// Time passes.
    Advance(i64),
}

/// A kind to register.
#[derive(Debug, Clone)]
pub struct KindSpec {
    /// Which.
    pub kind: u8,
    /// Attempts.
    pub max_attempts: u32,
    /// Whether its tasks go to the second queue.
    pub second_queue: bool,
    /// Whether it has hours.
    pub has_hours: bool,
    /// Days its tasks are kept.
    pub days: Option<u32>,
    /// The limit of its group.
    pub limit: Option<u32>,
    /// The worker that brings it. It claims nothing: stores note what a claim tells of a worker
    /// more or less exactly.
    pub worker: Option<u8>,
}

/// A job to make or to change.
#[derive(Debug, Clone)]
pub struct JobOp {
    /// Which.
    pub job: u8,
    /// Its quota.
    pub concurrency: Option<u32>,
    /// Its reserve.
    pub min_concurrency: u32,
    /// Its share.
    pub weight: u32,
    /// Its priority.
    pub priority: i32,
    /// The time between two starts.
    pub delay_ms: i64,
}

/// A task to store.
#[derive(Debug, Clone)]
pub struct TaskSpec {
    /// Which kind.
    pub kind: u8,
    /// Whether it names the second queue.
    pub second_queue: bool,
    /// Whether it counts against the shared group.
    pub shared_group: bool,
    /// Its job.
    pub job: Option<u8>,
    /// Its workflow.
    pub workflow: Option<u8>,
    /// Its weight.
    pub weight: u32,
    /// Its priority.
    pub priority: i32,
    /// In how many milliseconds it is due.
    pub due_in: Option<i64>,
    /// Its unique key.
    pub key: Option<u8>,
    /// Its attempts.
    pub max_attempts: Option<u32>,
    /// Whether its workflow goes on when it fails.
    pub continues_on_failure: bool,
}

/// What a worker asks for.
#[derive(Debug, Clone)]
pub struct ClaimSpec {
    /// Which worker.
    pub worker: u8,
    /// Bit by bit the kinds it serves.
    pub kinds: u8,
    /// Bit by bit the queues it serves.
    pub queues: u8,
    /// At most so many.
    pub tasks_max: u32,
    /// For how long.
    pub lease_ms: i64,
}

/// How an attempt ends.
#[derive(Debug, Clone, Copy)]
pub enum OutcomeSpec {
    /// Well.
    Completed,
    /// Badly, for good.
    Fatal,
    /// Badly, to be tried again after the back-off.
    Failed,
    /// Badly, to be tried again so much later.
    RetryIn(i64),
    /// To be called so much later.
    Snoozed(i64),
    /// Unspent.
    Released,
    /// Because somebody cancelled it.
    Cancelled,
}

/// A sequence of steps.
pub fn sequence(steps: usize) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(), 1..=steps)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        14 => prop::collection::vec(task(), 1..5).prop_map(Op::Submit),
        // Tasks that the fast paths are for.
        8 => prop::collection::vec(simple_task(), 2..8).prop_map(Op::Submit),
        4 => (any::<usize>(), prop::collection::vec(task(), 1..3))
            .prop_map(|(attempt, tasks)| Op::SubmitOnBehalfOf { attempt, tasks }),
        18 => claim().prop_map(Op::Claim),
        16 => finish(),
        10 => finish_many(),
        9 => set_limit(),
        7 => heartbeat(),
        6 => prop::collection::vec(any::<usize>(), 1..4).prop_map(Op::Cancel),
        4 => prop::collection::vec(any::<usize>(), 1..4).prop_map(Op::Retry),
        2 => (0..6_u8, 0..3_u32).prop_map(|(limit, slot)| Op::Release { limit, slot }),
        // What is paused most of the time shows little else.
        6 => (0..6_u8, rare_bool()).prop_map(|(what, paused)| Op::Pause { what, paused }),
        1 => Just(Op::Repair),
        3 => Just(Op::Admit),
        5 => Just(Op::Reap),
        2 => Just(Op::Prune),
        5 => kind().prop_map(Op::Register),
        3 => (0..3_u8, rare_bool()).prop_map(|(worker, leaves)| Op::FleetHeartbeat { worker, leaves }),
        2 => job().prop_map(Op::Job),
        3 => job().prop_map(Op::SetJob),
        8 => advance().prop_map(Op::Advance),
    ]
}

fn advance() -> impl Strategy<Value = i64> {
    prop_oneof![
        3 => Just(1),
        3 => Just(500),
        3 => Just(20_000),
        3 => Just(31_000),
        2 => Just(61_000),
        1 => Just(2 * 3_600_000),
        1 => Just(25 * 3_600_000),
    ]
}

fn kind() -> impl Strategy<Value = KindSpec> {
    let days = prop_oneof![2 => Just(None), 1 => Just(Some(0)), 1 => Just(Some(1))];
    let limit = prop::option::of(0..4_u32);
    let worker = prop::option::weighted(0.7, 0..3_u8);
    (0..3_u8, 1..4_u32, rare_bool(), rare_bool(), days, limit, worker).prop_map(
        |(kind, max_attempts, second_queue, has_hours, days, limit, worker)| KindSpec {
            kind,
            max_attempts,
            second_queue,
            has_hours,
            days,
            limit,
            worker,
        },
    )
}

fn job() -> impl Strategy<Value = JobOp> {
    let numbers = (prop::option::of(0..4_u32), 0..3_u32, 1..4_u32, -1..2_i32);
    let delay_ms = prop_oneof![4 => Just(0_i64), 1 => Just(400), 1 => Just(25_000)];
    (0..2_u8, numbers, delay_ms).prop_map(|(job, numbers, delay_ms)| {
        let (concurrency, min_concurrency, weight, priority) = numbers;
        JobOp { job, concurrency, min_concurrency, weight, priority, delay_ms }
    })
}

fn rare_bool() -> impl Strategy<Value = bool> {
    prop::bool::weighted(0.15)
}

fn task() -> impl Strategy<Value = TaskSpec> {
    let names = (
        0..3_u8,
        rare_bool(),
        prop::bool::weighted(0.3),
        prop::option::weighted(0.35, 0..2_u8),
        prop::option::weighted(0.25, 0..2_u8),
        prop::option::weighted(0.1, 0..2_u8),
    );
    let numbers = (
        prop_oneof![4 => Just(1_u32), 1 => Just(2), 1 => Just(3)],
        prop_oneof![4 => Just(0), 1 => Just(1), 1 => Just(-1)],
        prop::option::weighted(0.1, prop_oneof![Just(0_i64), Just(400), Just(30_000)]),
        prop::option::weighted(0.2, 1..4_u32),
        prop::bool::weighted(0.5),
    );
    (names, numbers).prop_map(|(names, numbers)| {
        let (kind, second_queue, shared_group, job, workflow, key) = names;
        let (weight, priority, due_in, max_attempts, goes_on) = numbers;
        // A store may make the names of a submission known before it looks at the keys, so a
        // task that may turn out to be another one brings no names of its own.
        let has_own_names = key.is_none();
        TaskSpec {
            kind: if has_own_names { kind } else { 0 },
            second_queue: second_queue && has_own_names,
            shared_group,
            job: job.filter(|_| has_own_names),
            workflow,
            weight,
            priority,
            due_in,
            key,
            max_attempts,
            continues_on_failure: goes_on,
        }
    })
}

/// A task of no job and no workflow that needs one slot at most.
fn simple_task() -> impl Strategy<Value = TaskSpec> {
    let priority = prop_oneof![6 => Just(0), 1 => Just(1)];
    let max_attempts = prop::option::weighted(0.2, 1..4_u32);
    (0..2_u8, priority, max_attempts).prop_map(|(kind, priority, max_attempts)| TaskSpec {
        kind,
        second_queue: false,
        shared_group: false,
        job: None,
        workflow: None,
        weight: 1,
        priority,
        due_in: None,
        key: None,
        max_attempts,
        continues_on_failure: false,
    })
}

fn claim() -> impl Strategy<Value = ClaimSpec> {
    let kinds = prop_oneof![3 => Just(7_u8), 1 => 0..8_u8];
    let queues = prop_oneof![3 => Just(3_u8), 1 => 0..4_u8];
    let lease_ms = prop_oneof![2 => Just(30_000_i64), 1 => Just(1000)];
    (0..3_u8, kinds, queues, 0..6_u32, lease_ms).prop_map(
        |(worker, kinds, queues, tasks_max, lease_ms)| ClaimSpec {
            worker,
            kinds,
            queues,
            tasks_max,
            lease_ms,
        },
    )
}

fn finish() -> impl Strategy<Value = Op> {
    let exits = prop::collection::vec((any::<usize>(), completion_outcome()), 1..4);
    (exits, prop::option::weighted(0.4, claim()))
        .prop_map(|(exits, claim)| Op::Finish { exits, claim })
}

/// Ends several attempts and claims more or fewer in the same step.
fn finish_many() -> impl Strategy<Value = Op> {
    let exit = prop_oneof![
        8 => Just(OutcomeSpec::Completed),
        1 => Just(OutcomeSpec::Fatal),
        2 => Just(OutcomeSpec::Failed),
        1 => Just(OutcomeSpec::RetryIn(300)),
        1 => Just(OutcomeSpec::Snoozed(300)),
    ];
    let exits = prop::collection::vec((any::<usize>(), exit), 2..7);
    (exits, claim()).prop_map(|(exits, claim)| Op::Finish { exits, claim: Some(claim) })
}

fn completion_outcome() -> impl Strategy<Value = OutcomeSpec> {
    prop_oneof![
        10 => Just(OutcomeSpec::Completed),
        1 => Just(OutcomeSpec::Fatal),
        2 => Just(OutcomeSpec::Failed),
        2 => prop_oneof![Just(0_i64), Just(300)].prop_map(OutcomeSpec::RetryIn),
        2 => prop_oneof![Just(0_i64), Just(300)].prop_map(OutcomeSpec::Snoozed),
        2 => Just(OutcomeSpec::Released),
        1 => Just(OutcomeSpec::Cancelled),
    ]
}

fn heartbeat() -> impl Strategy<Value = Op> {
    let leases = prop::collection::vec(any::<usize>(), 0..3);
    let percent = prop_oneof![8 => 0..=100_u8, 1 => Just(101_u8)];
    let reports = prop::collection::vec((any::<usize>(), percent), 0..3);
    (0..3_u8, leases, reports).prop_map(|(worker, leases, reports)| Op::Heartbeat {
        worker,
        leases,
        reports,
    })
}

fn set_limit() -> impl Strategy<Value = Op> {
    let source = prop_oneof![
        4 => Just(CapacitySource::Operator),
        1 => Just(CapacitySource::Configuration),
        1 => Just(CapacitySource::Registration),
        1 => Just(CapacitySource::Submit),
    ];
    (0..6_u8, prop::option::weighted(0.75, 0..5_u32), source)
        .prop_map(|(limit, capacity, source)| Op::SetLimit { limit, capacity, source })
}
