//! The store on PostgreSQL where it differs from the other stores: transactions, plans, connections and SQL.

#[cfg(feature = "planted")]
mod audit;
mod bounds;
mod corrupt;
mod deadlines;
mod ended;
mod events;
mod failover;
mod faults;
mod idle;
mod outages;
mod paths;
mod pgbouncer;
mod plans;
mod races;
mod round_trips;
mod server;
mod sessions;
mod silence;
mod slots;
mod spans;
mod sql;
mod tls;
