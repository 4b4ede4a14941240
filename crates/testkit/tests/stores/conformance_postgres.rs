//! The store on PostgreSQL keeps the rules of the reference.

use tidegate_testkit::stores::InPostgres;

tidegate_testkit::conformance_suite!(InPostgres);
