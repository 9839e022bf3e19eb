//! A cache outside the checkout for files that a test run downloads or builds once: build tools,
//! Python environments, a root file system.
//!
//! The name of an entry's folder contains a hash of the entry's recipe, for example the pinned
//! requirements. Another recipe makes another entry, so several checkouts share the cache.

use std::{
    env,
    fs::{self, File},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result};
use rustix::fs::{FlockOperation, flock};

/// Variable that names another folder for the cache.
const VARIABLE: &str = "DEEPRES_CACHE";
/// File that [`entry`] writes last into an entry's folder. If the file exists, the entry is
/// complete.
const READY: &str = ".ready";
/// Age after which [`entry`] removes an unused entry. The cache removes an old entry when it makes
/// an entry of the same name by another recipe.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// Returns the folder of the cache: `$DEEPRES_CACHE`, else `deepres` in `$XDG_CACHE_HOME` or
/// `~/.cache`.
pub fn folder() -> PathBuf {
    let named = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    named(VARIABLE)
        .or_else(|| named("XDG_CACHE_HOME").map(|cache| cache.join("deepres")))
        .or_else(|| named("HOME").map(|home| home.join(".cache/deepres")))
        .unwrap_or_else(|| env::temp_dir().join("deepres-cache"))
}

/// Returns the folder of the entry `name` made by `recipe`. If the folder is not complete yet,
/// `make` fills it first.
///
/// Processes that want the same entry at the same time wait for each other.
pub fn entry(name: &str, recipe: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    entry_in(&folder(), name, recipe, make)
}

fn entry_in(
    cache: &Path,
    name: &str,
    recipe: &str,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    fs::create_dir_all(cache).with_context(|| format!("cannot create {}", cache.display()))?;
    let entry = cache.join(format!("{name}-{:016x}", hash(recipe)));
    let lock = cache.join(format!("{name}.lock"));
    let turn = File::create(&lock).with_context(|| format!("cannot create {}", lock.display()))?;
    flock(&turn, FlockOperation::LockExclusive).with_context(|| format!("cannot lock {}", lock.display()))?;
    let ready = entry.join(READY);
    if !fs::read_to_string(&ready).is_ok_and(|made_of| made_of == recipe) {
        if entry.exists() {
            fs::remove_dir_all(&entry).with_context(|| format!("cannot remove {}", entry.display()))?;
        }
        fs::create_dir(&entry).with_context(|| format!("cannot create {}", entry.display()))?;
        make(&entry)?;
        remove_unused(cache, name);
    }
    // Each use writes the file, so its modification time is the time of the last use.
    fs::write(&ready, recipe).with_context(|| format!("cannot write {}", ready.display()))?;
    Ok(entry)
}

fn hash(recipe: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    recipe.hash(&mut hasher);
    hasher.finish()
}

/// Removes the entries of a name that nobody has used for longer than [`KEPT`]. Ignores errors.
fn remove_unused(cache: &Path, name: &str) {
    let Ok(entries) = fs::read_dir(cache) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let is_of_name = file.rsplit_once('-').is_some_and(|(stem, _)| stem == name);
        let used = fs::metadata(path.join(READY)).and_then(|ready| ready.modified());
        let is_old =
            used.is_ok_and(|used| SystemTime::now().duration_since(used).is_ok_and(|unused| unused > KEPT));
        if is_of_name && is_old {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_made_once_for_each_recipe_and_anew_after_a_failure() {
        let cache = tempfile::tempdir().unwrap();
        let make = |recipe: &str, text: &str| {
            entry_in(cache.path(), "tool", recipe, |folder| Ok(fs::write(folder.join("file"), text)?))
                .unwrap()
        };
        let first = make("version 1", "made");
        assert_eq!(make("version 1", "made twice"), first);
        assert_eq!(fs::read_to_string(first.join("file")).unwrap(), "made");
        assert_ne!(make("version 2", "made"), first);

        let failed = entry_in(cache.path(), "tool", "version 3", |folder| {
            fs::write(folder.join("half"), "")?;
            anyhow::bail!("no network")
        });
        assert_eq!(failed.unwrap_err().to_string(), "no network");
        let third = make("version 3", "made");
        assert!(!third.join("half").exists(), "the rest of a failed attempt is gone");
    }

    #[test]
    fn an_entry_that_nobody_used_for_long_goes_when_another_is_made() {
        let cache = tempfile::tempdir().unwrap();
        let make = |name: &str, recipe: &str| entry_in(cache.path(), name, recipe, |_| Ok(())).unwrap();
        let (old, recent, other) = (make("tool", "1"), make("tool", "2"), make("other", "1"));
        for entry in [&old, &other] {
            let ready = File::options().write(true).open(entry.join(READY)).unwrap();
            ready.set_modified(SystemTime::now() - KEPT - Duration::from_secs(60)).unwrap();
        }
        make("tool", "3");
        assert!(!old.exists() && recent.exists() && other.exists());
    }
}
