//! Where tidegate keeps its tasks. The rooms have the same furniture: each implements
//! [`Store`](tidegate_core::Store) to write and [`StoreReader`](tidegate_core::Inspect) to read.

pub mod clock;
pub mod memory;
mod open;
pub mod postgres;
mod requests;
pub mod sqlite;

pub use open::{OpenOptions, StoreHandle, StoreLocation, open};
