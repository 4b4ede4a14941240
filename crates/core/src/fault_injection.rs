//! Known bugs of peers, planted on purpose.
//!
//! With the feature `fault_injection` a test can switch one bug on in its own thread and must then see
//! the simulator or the suites fail. Without the feature every question is answered with
//! `false` at compile time, so no shipped binary carries them.

macro_rules! injected_bugs {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// A bug that some engine shipped.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum InjectedBug { $($(#[$doc])* $name),+ }

        impl InjectedBug {
            /// Every bug that can be planted.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];
        }
    };
}

injected_bugs! {
    /// A finish is accepted whatever its token (Solid Queue #735, Docket #223).
    FinishIgnoresToken,
    /// A slot is freed twice when an attempt ends twice (Solid Queue #761, Kestra #16579).
    DoubleRelease,
    /// The room is judged before the last taker is counted (GoodJob #378, Windmill #2216).
    CheckThenAct,
    /// A reaped attempt keeps its slots (Prefect #17415, Kestra #17759).
    ReapKeepsSlots,
    /// The reaper trusts an old reading of the lease (River #1302, DBOS #742).
    ReapRenewedLease,
    /// A freed slot wakes nobody (Solid Queue #689, Prefect #23183).
    LostWakeup,
    /// A retry goes straight to ready and past the gate (river #971).
    RetrySkipsAdmission,
    /// A task waiting for its retry keeps its slot (Argo #9875).
    BackoffKeepsSlot,
    /// Lowering a limit forgets the holders above it (buquet's sketch, Argo #12194).
    LoweredLimitForgetsHolders,
    /// Cancelling a task that waits or runs leaves its slot behind (Dagster #28456).
    CancelKeepsSlot,
    /// A workflow's slot is given back with the attempt instead of the task (river #971).
    WorkflowSlotPerAttempt,
    /// All or none is judged limit by limit: earlier slots stay taken (Silo's chain).
    ParkKeepsPartialSlots,
    /// A worker's crash never counts, so a poison task runs for ever (Sidekiq poison pills).
    UncountedCrash,
    /// A limit set while tasks are ready does not apply to them (Oban #712).
    NewLimitSkipsReadyTasks,
    /// A worker stops its handlers when its own wall clock shows the end of the lease.
    LeaseExpiryByWallClock,
    /// A heartbeat leaves expired leases that its worker does not know to the reaper, which takes
    /// them for crashes (the answer to a claim was lost).
    UnlistedLeasesKept,
}

#[cfg(feature = "fault_injection")]
mod thread_switch {
    use super::InjectedBug;
    use std::cell::Cell;

    thread_local! {
        static INJECTED_BUG: Cell<Option<InjectedBug>> = const { Cell::new(None) };
    }

    /// Plants a bug in this thread until the guard is dropped.
    #[must_use]
    pub fn inject_bug(bug: InjectedBug) -> InjectedBugGuard {
        INJECTED_BUG.set(Some(bug));
        InjectedBugGuard(())
    }

    /// Takes the bug out again when dropped.
    #[derive(Debug)]
    pub struct InjectedBugGuard(());

    impl Drop for InjectedBugGuard {
        fn drop(&mut self) {
            INJECTED_BUG.set(None);
        }
    }

    /// Whether this bug is planted in this thread.
    pub fn is_injected(bug: InjectedBug) -> bool {
        INJECTED_BUG.get() == Some(bug)
    }
}

#[cfg(feature = "fault_injection")]
pub use thread_switch::{InjectedBugGuard, inject_bug, is_injected};

/// Whether this bug is planted: never, without the feature.
#[cfg(not(feature = "fault_injection"))]
#[inline(always)]
pub fn is_injected(_bug: InjectedBug) -> bool {
    false
}
