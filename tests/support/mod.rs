//! Modules that several test programs share.

#![allow(dead_code)] // Each program uses a part of them.

pub mod cluster;
pub mod engines;
pub mod manual_time;
pub mod nats;
pub mod ports;
pub mod proxy;
pub mod redis_client;
pub mod routes;
pub mod service;
pub mod timeouts;
