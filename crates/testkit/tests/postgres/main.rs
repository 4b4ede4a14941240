//! The store on PostgreSQL where it differs from the other stores: transactions, plans, connections and SQL.

#[cfg(feature = "planted")]
mod audit;
mod corrupt;
mod deadlines;
mod ended;
mod faults;
mod idle;
mod plans;
mod races;
mod round_trips;
mod server;
mod slots;
mod sql;
