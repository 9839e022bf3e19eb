//! The daemon's configuration file.

use deepres_abi::PPM;
use deepres_model::config::{ConfigError, Loaded};
use std::path::PathBuf;

/// Returns the path of a file of this thread, in memory if the machine has such a folder.
fn file() -> PathBuf {
    let folder = [PathBuf::from("/dev/shm"), std::env::temp_dir()].into_iter().find(|folder| folder.is_dir());
    let name = format!("deepres-fuzz-{}-{:?}.toml", std::process::id(), std::thread::current().id());
    folder.expect("a folder for temporary files").join(name)
}

/// A file is accepted as a whole with values in their bounds, or refused with a line that the file
/// has.
pub fn run(data: &[u8]) {
    let file = file();
    std::fs::write(&file, data).expect("the folder can be written to");
    let loaded = Loaded::load(Some(&file)).map(|loaded| loaded.config);
    std::fs::remove_file(&file).expect("the file is there");
    match loaded {
        Ok(config) => {
            assert!(config.heartbeat_limit_ms > 0 && config.max_connections > 0);
            let quantum = config.quantum_bounds();
            assert!(0 < quantum.min_ns && quantum.min_ns <= quantum.max_ns);
            assert!(config.users.values().chain([&config.caps]).all(|caps| caps.share_ppm <= PPM));
        }
        Err(ConfigError::Invalid { line, column, message, .. }) => {
            let lines = data.iter().filter(|byte| **byte == b'\n').count() + 1;
            assert!((1..=lines).contains(&line), "line {line} of {lines}: {message}");
            assert!((1..=data.len() + 1).contains(&column), "column {column} of {}: {message}", data.len());
            assert!(!message.is_empty() && !message.contains('\n'), "{message:?}");
        }
        Err(ConfigError::Unreadable { .. }) => assert!(std::str::from_utf8(data).is_err()),
    }
}
