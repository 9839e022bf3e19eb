//! Reading the configuration again while the daemon runs: `deepres reload`, and SIGHUP from a
//! service manager. No session ends. The new values of some keys are in force only when the daemon
//! next starts.

use crate::administrators::no_answer;
use crate::gpus::answers;
use crate::state::saver;
use crate::{Shared, make_room, service, status};
use deepres_model::admin::Reply;
use deepres_model::config::{Config, ConfigError, Loaded, Reloaded};
use std::fmt;
use std::rc::Rc;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The function that reads the configuration.
type Read = Box<dyn Fn() -> Result<Loaded, ConfigError> + Send>;

/// The daemon's configuration, and the function that reads it again.
pub struct Configuration {
    /// The configuration with the origins of its values.
    pub loaded: Loaded,
    read: Read,
}

impl Configuration {
    /// Reads the configuration by the function `read`, which `deepres reload` calls again.
    ///
    /// # Errors
    /// The error of the function.
    pub fn read_by(
        read: impl Fn() -> Result<Loaded, ConfigError> + Send + 'static,
    ) -> Result<Self, ConfigError> {
        Ok(Self { loaded: read()?, read: Box::new(read) })
    }
}

impl From<Config> for Configuration {
    /// Returns a configuration that stays the same when it is read again.
    fn from(config: Config) -> Self {
        let loaded = Loaded::from(config);
        let same = loaded.clone();
        Self { loaded, read: Box::new(move || Ok(same.clone())) }
    }
}

impl fmt::Debug for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Configuration").field("loaded", &self.loaded).finish_non_exhaustive()
    }
}

/// Returns the stream of SIGHUPs, if a service manager started the daemon. From then on, SIGHUP
/// does not end the process.
pub fn hangups() -> Option<Signal> {
    service::is_supervised().then(|| signal(SignalKind::hangup()).ok()).flatten()
}

/// Reads the configuration again at each SIGHUP.
pub async fn serve(shared: Rc<Shared>, mut hangups: Signal) {
    while hangups.recv().await.is_some() {
        if let Reply::Error { message } = reload(&shared).await {
            tracing::error!("{message}");
        }
    }
}

/// Reads the configuration again, and tells the service manager. Returns the answer for the
/// administrator once the new values are in force. If the configuration is faulty or its file is
/// gone, the daemon keeps its values.
pub async fn reload(shared: &Rc<Shared>) -> Reply {
    shared.service.reloading();
    let reply = apply(shared).await;
    shared.service.ready();
    reply
}

/// Returns the answer that the daemon keeps its configuration for this reason.
fn rejected(reason: impl fmt::Display) -> Reply {
    Reply::Error { message: format!("the daemon keeps its configuration: {reason}") }
}

async fn apply(shared: &Rc<Shared>) -> Reply {
    let reloaded = {
        let mut configuration = shared.configuration.borrow_mut();
        let next = match (configuration.read)() {
            Ok(next) => next,
            Err(error) => return rejected(error),
        };
        // An editor can be about to write the file. Without it, jobs that run would lose their
        // caps.
        if let Some(file) = configuration.loaded.lost_file(&next) {
            let file = file.display();
            return rejected(format_args!(
                "{file} is no longer its file; restart the daemon to go on without it"
            ));
        }
        let reloaded = configuration.loaded.reloaded(next);
        configuration.loaded = reloaded.loaded.clone();
        reloaded
    };
    let Reloaded { loaded: Loaded { config, file, .. }, now, later } = reloaded;
    let gpus = shared.registry.borrow().tenancy.gpus().count();
    shared.connections.set_room(make_room(config.max_connections, gpus));
    let orders = shared.registry.borrow_mut().tenancy.configure(config);
    shared.note_change();
    let (in_force, at_next_start) = (now.join(", "), later.join(", "));
    tracing::info!(in_force, at_next_start, "the daemon read its configuration again");
    if answers(orders).await.is_none() {
        return no_answer();
    }
    saver::save(shared).await;
    status::publish(shared).await;
    Reply::Reloaded { file, now, later }
}
