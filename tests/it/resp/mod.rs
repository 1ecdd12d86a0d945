//! The listener for Redis clients: commands over a real socket, on a real engine.

mod access;
mod commands;
mod images;
mod keys;
mod limits;
mod pipelines;
mod scripts;
mod service;
