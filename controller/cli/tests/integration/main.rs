//! The command line from outside, beside a daemon over real sockets.

mod cdi;
mod cli;
mod units;
mod versions;
