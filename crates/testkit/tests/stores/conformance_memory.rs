//! The reference keeps its own rules.

use tidegate_testkit::stores::MemoryBackend;

tidegate_testkit::conformance_suite!(MemoryBackend);
