//! The store in a file keeps the rules of the reference.

use tidegate_testkit::stores::InFile;

tidegate_testkit::conformance_suite!(InFile);
