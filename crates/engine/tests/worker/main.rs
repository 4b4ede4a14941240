//! The worker as its users see it, on the memory store.

mod attribute;
mod cancels;
mod faults;
mod handlers;
mod harness;
mod leases;
mod limits;
mod metrics;
mod outages;
mod outcomes;
mod panics;
mod pressure;
mod registrations;
mod shutdowns;
