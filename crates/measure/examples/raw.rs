//! Shows what the raw loops reach on this machine.
//!
//! `cargo run --release -p tidegate-measure --example raw -- FOLDER [POSTGRES_URL]`: the folder is
//! on the disk to be measured, and the PostgreSQL database gets a schema `tidegate_raw`.

use std::error::Error;
use std::path::Path;

use tidegate_measure::clock::Stopwatch;
use tidegate_measure::raw::{RawPostgres, RawSqlite, Synchronous};
use tidegate_measure::report::{ResultLine, ResultTable};

const BATCHES: [u32; 4] = [1, 10, 100, 500];
const CONNECTIONS: [usize; 2] = [1, 4];
const ROUNDS: usize = 3;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("say in which folder to measure")?;
    let mut lines = Vec::new();
    for synchronous in [Synchronous::Full, Synchronous::Normal] {
        for batch in BATCHES {
            lines.push(median(|| sqlite(Path::new(&folder), synchronous, batch))?);
        }
    }
    if let Some(url) = arguments.next() {
        for connections in CONNECTIONS {
            for batch in BATCHES {
                lines.push(postgres_median(&url, connections, batch).await?);
            }
        }
    }
    print!("{}", ResultTable(&lines));
    Ok(())
}

/// Enough tasks for a second or so: one commit per task is a hundred times slower than one per 500.
fn tasks(batch: u32) -> u64 {
    match batch {
        1 => 8_000,
        10 => 50_000,
        _ => 200_000,
    }
}

fn sqlite(
    folder: &Path,
    synchronous: Synchronous,
    batch: u32,
) -> Result<ResultLine, Box<dyn Error>> {
    let folder = tempfile::tempdir_in(folder)?;
    let raw = RawSqlite::open(folder.path().join("raw.db"), synchronous)?;
    raw.insert(tasks(batch))?;
    let watch = Stopwatch::start();
    let completed = raw.drain(batch)?;
    let store = format!("sqlite {}", synchronous.name());
    Ok(ResultLine::new("raw drain", store, completed, watch.seconds()).with_batch(batch))
}

async fn postgres(url: &str, connections: usize, batch: u32) -> Result<ResultLine, Box<dyn Error>> {
    let raw = RawPostgres::open(url, connections).await?;
    raw.insert(tasks(batch)).await?;
    let watch = Stopwatch::start();
    let completed = raw.drain(batch).await?;
    let store = format!("postgres x {connections}");
    Ok(ResultLine::new("raw drain", store, completed, watch.seconds()).with_batch(batch))
}

fn median(
    mut measure: impl FnMut() -> Result<ResultLine, Box<dyn Error>>,
) -> Result<ResultLine, Box<dyn Error>> {
    let lines = (0..ROUNDS).map(|_| measure()).collect::<Result<Vec<_>, _>>()?;
    Ok(middle(lines))
}

async fn postgres_median(
    url: &str,
    connections: usize,
    batch: u32,
) -> Result<ResultLine, Box<dyn Error>> {
    let mut lines = Vec::new();
    for _ in 0..ROUNDS {
        lines.push(postgres(url, connections, batch).await?);
    }
    Ok(middle(lines))
}

/// The line in the middle, with the least and the most beside it.
fn middle(mut lines: Vec<ResultLine>) -> ResultLine {
    lines.sort_by(|one, other| one.tasks_per_s.total_cmp(&other.tasks_per_s));
    let (least, most) = (lines[0].tasks_per_s.round(), lines[lines.len() - 1].tasks_per_s.round());
    lines
        .swap_remove(lines.len() / 2)
        .with_extra("min", least as u64)
        .with_extra("max", most as u64)
}
