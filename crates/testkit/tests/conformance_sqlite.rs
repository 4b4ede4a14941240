//! The store in a file keeps the rules of the reference.

use std::path::PathBuf;

use async_trait::async_trait;
use tempfile::TempDir;
use tidegate_store::sqlite::{Options, Sqlite, Synchronous};
use tidegate_testkit::conformance::{Backend, Clock, Handle};

struct InFile {
    path: PathBuf,
    /// Removed with the value; a file that another process made is not ours to remove.
    _folder: Option<TempDir>,
}

#[async_trait]
impl Backend for InFile {
    fn create() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { path: folder.path().join("tidegate.db"), _folder: Some(folder) }
    }

    async fn open(&self, clock: Clock) -> Handle {
        // A test never outlives its machine.
        let synchronous = Synchronous::Normal;
        let options = Options { synchronous, clock, ..Options::default() };
        Handle::new(Sqlite::open(&self.path, options).expect("open the file"))
    }

    fn address(&self) -> Option<String> {
        Some(self.path.to_str().expect("a path in UTF-8").to_owned())
    }

    fn at(address: &str) -> Option<Self> {
        Some(Self { path: address.into(), _folder: None })
    }
}

tidegate_testkit::conformance_suite!(InFile);
