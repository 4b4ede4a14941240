//! The store under test.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use tempfile::TempDir;
use tidegate_store::{OpenOptions, StoreHandle, StoreLocation, open};

use super::has_unfinished_tasks;

/// A store under test: the one that was named, or a file that is gone afterwards.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) url: String,
    pub(super) place: StoreLocation,
    _folder: Option<TempDir>,
}

impl Target {
    pub(super) fn new(url: Option<&str>) -> anyhow::Result<Self> {
        let (url, folder) = match url {
            Some(url) => (url.to_owned(), None),
            None => {
                let folder = tempfile::tempdir().context("make a folder for the store")?;
                (format!("sqlite:{}", folder.path().join("bench.db").display()), Some(folder))
            }
        };
        let place = StoreLocation::parse(&url)?;
        Ok(Self { url, place, _folder: folder })
    }

    /// Opens it, up to date. What it holds must be finished: it would be measured too.
    pub(super) async fn open(&self) -> anyhow::Result<StoreHandle> {
        let opened = open(&self.url, OpenOptions::default()).await?;
        opened.store.migrate().await?;
        ensure!(
            !has_unfinished_tasks(&*opened.reader).await?,
            "{} has unfinished tasks; measure on an empty store",
            self.place
        );
        Ok(opened)
    }

    /// What to call it in a report.
    pub(super) fn name(&self) -> &'static str {
        match self.place {
            StoreLocation::Memory => "memory",
            StoreLocation::Sqlite { .. } => "sqlite",
            StoreLocation::Postgres(_) => "postgres",
        }
    }

    /// Where the raw loop works: on the same disk.
    pub(super) fn raw_path(&self) -> Option<PathBuf> {
        match &self.place {
            StoreLocation::Sqlite { path, .. } => {
                let mut name = path.clone().into_os_string();
                name.push("-raw");
                Some(name.into())
            }
            _ => None,
        }
    }
}
