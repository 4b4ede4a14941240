//! What every store must do, as functions over the seam, by topic.
//!
//! A store joins by implementing [`Backend`] and naming it:
//!
//! ```ignore
//! tidegate_testkit::conformance_suite!(InMemory);
//! ```
//!
//! which makes one test of each case, so that a failure has a name. Each case works on data of
//! its own and ends with every invariant checked. Nothing reaps, prunes or admits behind a
//! case's back: the keeper is off, and what a case does not call does not happen.

pub mod admission;
pub mod cancel;
pub mod claim;
pub mod day_window;
pub mod fairness;
pub mod finish;
pub mod fixture;
pub mod hand_off;
pub mod heartbeat;
pub mod input;
pub mod job;
pub mod limit_change;
pub mod lists;
pub mod migrate;
pub mod order;
pub mod pause;
pub mod prune;
pub mod races;
pub mod reader;
pub mod reap;
pub mod register;
pub mod registered_limits;
pub mod release;
pub mod retry;
pub mod return_to_queue;
pub mod set_job;
pub mod set_limit;
pub mod slot_return;
pub mod submit;
mod suite;
pub mod unique;
pub mod unlisted_leases;
pub mod workflow;
pub mod workflow_pause;

pub use fixture::{Backend, Clock, Fixture, Handle, ManualClock};

use std::pin::Pin;
use std::time::Duration;

/// A case that takes longer hangs.
const CASE_TIMEOUT: Duration = Duration::from_secs(120);

/// The cases, compiled here and once instead of in the tests of every store.
pub mod compiled {
    crate::conformance_suite!(@compiled);
}

/// A case on its way.
pub type CaseFuture<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Runs one case on fresh data and checks the invariants at its end.
pub async fn run<B: Backend>(case: fn(&Fixture) -> CaseFuture<'_>) {
    let work = async {
        if races::processes::is_child::<B>().await {
            return;
        }
        let fixture = Fixture::new(Box::new(B::create())).await;
        case(&fixture).await;
        fixture.check_invariants().await;
    };
    tokio::time::timeout(CASE_TIMEOUT, Box::pin(work)).await.expect("the case hangs");
}

/// Makes a module with one test, or one function, per case. Not for use on its own:
/// [`conformance_suite`] lists the cases.
#[macro_export]
macro_rules! conformance_cases {
    (@compiled; $($topic:ident { $($case:ident)* })*) => {$(
        pub mod $topic {
            use $crate::conformance::{CaseFuture, Fixture, $topic as cases};
            $(
                pub fn $case(fixture: &Fixture) -> CaseFuture<'_> {
                    Box::pin(cases::$case(fixture))
                }
            )*
        }
    )*};
    ($backend:ident; $($topic:ident { $($case:ident)* })*) => {$(
        mod $topic {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    use $crate::conformance::{compiled, run};
                    run::<super::$backend>(compiled::$topic::$case).await;
                }
            )*
        }
    )*};
}
