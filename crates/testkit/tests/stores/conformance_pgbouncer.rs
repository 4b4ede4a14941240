//! The store on PostgreSQL keeps the rules of the reference through PgBouncer in session mode. By default
//! only the topics claim, finish and extend run; see `.config/nextest.toml`.

use tidegate_testkit::stores::PgBouncerBackend;

tidegate_testkit::conformance_suite!(PgBouncerBackend);
