//! The boundaries at which a verb is held.

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use tidegate_testkit::tier::Cases;

/// Distance between two boundaries at which a verb is held.
const STRIDE: Cases<usize> = Cases { small: 3, full: 1 };

/// Overrides the offset that the sources of the store choose.
const OFFSET_VARIABLE: &str = "TIDEGATE_RACE_OFFSET";

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../store/src/postgres");

/// Every n-th boundary from an offset on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stride {
    step: usize,
    /// Number of boundaries before the first one at which a verb is held; less than the step.
    offset: usize,
}

impl Stride {
    /// Every boundary.
    pub(crate) const ONE: Self = Self { step: 1, offset: 0 };

    /// Returns the stride for the tier of this run. The sources of the store choose the offset: runs of one commit are
    /// alike, and different changes of the store run different boundaries.
    ///
    /// # Panics
    ///
    /// If `TIDEGATE_RACE_OFFSET` holds no number.
    pub(crate) fn of_this_run() -> Self {
        let offset = match env::var(OFFSET_VARIABLE) {
            Ok(number) => number.parse().expect(OFFSET_VARIABLE),
            Err(_) => hash(Path::new(SOURCES)),
        };
        Self::new(STRIDE.of_this_run(), offset)
    }

    fn new(step: usize, offset: u64) -> Self {
        Self { step, offset: (offset % step as u64) as usize }
    }

    /// Returns the boundaries up to `max` at which a verb is held; the first boundary is 1.
    pub(crate) fn boundaries(self, max: usize) -> impl Iterator<Item = usize> {
        (1 + self.offset..=max).step_by(self.step)
    }
}

impl fmt::Display for Stride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stride {}, {OFFSET_VARIABLE}={}", self.step, self.offset)
    }
}

/// Returns a hash (FNV-1a) of the names and texts of all files below a folder.
fn hash(folder: &Path) -> u64 {
    let mut files = Vec::new();
    collect_files(folder, &mut files);
    files.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for file in files {
        let name = file.strip_prefix(folder).expect("a file below the folder");
        let text = fs::read(&file).expect("a source file");
        for byte in name.as_os_str().as_encoded_bytes().iter().chain(&text) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash
}

fn collect_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the sources of the store") {
        let path = entry.expect("a source file").path();
        match path.is_dir() {
            true => collect_files(&path, files),
            false => files.push(path),
        }
    }
}

#[test]
fn strides_with_all_offsets_hold_every_boundary_once() {
    let strides = (0..3).map(|offset| Stride::new(3, offset));
    let mut held: Vec<usize> = strides.flat_map(|stride| stride.boundaries(20)).collect();
    held.sort_unstable();
    assert_eq!(held, (1..=20).collect::<Vec<_>>());
    assert_eq!(Stride::new(3, 7), Stride::new(3, 1));
    assert_eq!(Stride::new(1, 7), Stride::ONE);
}

#[test]
fn offset_changes_with_the_text_of_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("queries")).expect("a folder");
    let file = folder.path().join("queries/one.sql");
    let hashes = ["SELECT 1", "SELECT 2", "SELECT 1"].map(|text| {
        fs::write(&file, text).expect("write");
        hash(folder.path())
    });
    assert_eq!(hashes[0], hashes[2]);
    assert_ne!(hashes[0], hashes[1]);
}
