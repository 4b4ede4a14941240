//! The store on PostgreSQL where it differs from the other stores: transactions, plans, connections and SQL.

#[cfg(feature = "fault_injection")]
mod audit;
mod bounds;
mod corrupt;
mod deadlines;
mod events;
mod failover;
mod faults;
mod finished;
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
