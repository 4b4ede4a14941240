//! The store on PostgreSQL keeps the rules of the reference.

use tidegate_testkit::stores::PostgresBackend;

tidegate_testkit::conformance_suite!(PostgresBackend);
