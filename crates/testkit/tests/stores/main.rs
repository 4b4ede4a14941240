//! The conformance suite and the model tests, once for each store.

mod conformance_memory;
mod conformance_pgbouncer;
mod conformance_postgres;
mod conformance_sqlite;
#[cfg(feature = "fault_injection")]
mod injected_bugs_sqlite;
mod model_memory;
mod model_postgres;
mod model_sqlite;
mod reference;
