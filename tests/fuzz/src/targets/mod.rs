//! The targets, a module each.

pub mod admin;
pub mod cgroup;
pub mod code;
pub mod config;
pub mod conversation;
pub mod directory;
pub mod frames;
pub mod images;
pub mod meters;
pub mod pages;
pub mod quantities;
pub mod state;
pub mod symbols;
pub mod trace;
pub mod welcome;
