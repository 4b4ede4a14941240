//! Known bugs of peers, planted on purpose.
//!
//! With the feature `planted` a test can switch one bug on in its own thread and must then see
//! the simulator or the suites fail. Without the feature every question is answered with
//! `false` at compile time, so no shipped binary carries them.

macro_rules! bugs {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// A bug that some engine shipped.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Bug { $($(#[$doc])* $name),+ }

        impl Bug {
            /// Every bug that can be planted.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];
        }
    };
}

bugs! {
    /// A finish is accepted whatever its token (Solid Queue #735, Docket #223).
    FinishWithoutToken,
    /// A slot is freed twice when an attempt ends twice (Solid Queue #761, Kestra #16579).
    CountedRelease,
    /// The room is judged before the last taker is counted (GoodJob #378, Windmill #2216).
    CheckThenAct,
    /// A reaped attempt keeps its slots (Prefect #17415, Kestra #17759).
    ReapKeepsSlots,
    /// The reaper trusts an old reading of the lease (River #1302, DBOS #742).
    ReapRenewed,
    /// A freed slot wakes nobody (Solid Queue #689, Prefect #23183).
    LostWake,
    /// A retry goes straight to ready and past the gate (river #971).
    RetryPastGate,
    /// A task waiting for its retry keeps its slot (Argo #9875).
    BackoffKeepsSlot,
    /// Lowering a limit forgets the holders above it (buquet's sketch, Argo #12194).
    LoweringForgets,
    /// Cancelling a task that waits or runs leaves its slot behind (Dagster #28456).
    CancelKeepsSlot,
    /// A workflow's slot is given back with the attempt instead of the task (river #971).
    WorkflowPerAttempt,
    /// All or none is judged limit by limit: earlier slots stay taken (Silo's chain).
    TakeThenPark,
    /// A worker's crash never counts, so a poison task runs for ever (Sidekiq poison pills).
    UncountedDeath,
    /// A limit set while tasks are ready does not apply to them (Oban #712).
    StaleReady,
    /// A worker stops its handlers when its own wall clock shows the end of the lease.
    FenceByWallClock,
    /// A heartbeat leaves expired leases that its worker does not know to the reaper, which takes
    /// them for crashes (the answer to a claim was lost).
    UnlistedStay,
}

#[cfg(feature = "planted")]
mod switch {
    use super::Bug;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Plants a bug in this thread until the guard is dropped.
    #[must_use]
    pub fn plant(bug: Bug) -> Planted {
        PLANTED.set(Some(bug));
        Planted(())
    }

    /// Takes the bug out again when dropped.
    #[derive(Debug)]
    pub struct Planted(());

    impl Drop for Planted {
        fn drop(&mut self) {
            PLANTED.set(None);
        }
    }

    /// Whether this bug is planted in this thread.
    pub fn is_planted(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}

#[cfg(feature = "planted")]
pub use switch::{Planted, is_planted, plant};

/// Whether this bug is planted: never, without the feature.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub fn is_planted(_bug: Bug) -> bool {
    false
}
