//! The store in a file keeps the rules of the reference.

use tidegate_testkit::stores::SqliteBackend;

tidegate_testkit::conformance_suite!(SqliteBackend);
