//! Tests of the command line from outside, with a daemon over real sockets.

mod cdi;
mod cli;
mod config;
mod units;
mod versions;
