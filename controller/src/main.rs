//! The `deepres` command.
fn main() {}
