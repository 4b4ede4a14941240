//! The store on PostgreSQL where it differs from the other stores: transactions, plans, connections and SQL.

#[cfg(feature = "planted")]
mod audit;
mod corrupt;
mod deadlines;
mod ended;
mod faults;
mod idle;
mod outages;
mod plans;
mod races;
mod server;
mod silence;
mod slots;
mod sql;
