//! The reference keeps its own rules.

use tidegate_testkit::stores::InMemory;

tidegate_testkit::conformance_suite!(InMemory);
