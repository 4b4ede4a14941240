//! Single commands of the binary: what they print, which exit code they return and what they change in the store.

#[path = "../common/mod.rs"]
mod common;
#[path = "../web/mod.rs"]
mod web;

mod bad_input;
mod bulk;
mod config;
mod doctor;
mod hostile;
mod idle;
mod jobs;
mod kind_exec;
mod kind_http;
mod limits;
mod operate;
mod postgres;
