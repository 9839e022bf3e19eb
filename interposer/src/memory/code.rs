//! A module belongs to the context that was current at its load, until its unload. A library counts
//! in every context of the process while it is loaded. With lazy loading, the default since CUDA
//! 12.2, the driver takes that memory only when the library is first used in a context. No call
//! tells of that moment.
//!
//! The image says how much memory it needs ([`crate::image`]). A compressed image does not say so,
//! and then NVML shows the amount after the load.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use deepres_abi::driver::ApiId;
use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::meter::MemoryKind;

use super::charge::{self, BLOCK_BYTES};
use super::held::Held;
use super::site::{Promise, Site};
use super::{Accounts, Name, Request, Why};
use crate::driver::code;
use crate::image::{Need, Source};
use crate::meter::context::ContextState;
use crate::meter::gpu::Gpu;
use crate::process::Process;
use crate::session::Session;

/// Upper bound of an image's need, bytes. No image takes more.
const MOST_BYTES: u64 = 1 << 48;

/// A loaded library.
struct Library {
    /// Charge of the library in each context, bytes.
    bytes: u64,
    /// The charges by context.
    held: BTreeMap<usize, Held>,
}

/// The libraries that have a charge, by handle.
#[derive(Default)]
pub struct Libraries(Mutex<BTreeMap<usize, Library>>);

/// Charges of the libraries in a context that is about to be made, bytes by library.
pub type Wanted = BTreeMap<usize, u64>;

/// Splits `bytes` off the promise.
fn part(promise: &mut Promise, bytes: u64) -> Promise {
    promise.as_mut().map(|promise| promise.split_off(bytes))
}

fn counts_for(need: Need) -> u64 {
    let text_bytes = if need.text_bytes != 0 && code::is_eager() { need.text_bytes } else { 0 };
    // No GPU has more memory, and sums of this bound do not overflow.
    charge::code(need.data_bytes.saturating_add(text_bytes).min(MOST_BYTES))
}

/// Returns the free memory of the current context's GPU. It also works during a stream capture.
fn free_bytes(process: &Process) -> Option<u64> {
    let _relaxed = process.calls.beside_captures()?;
    code::free_bytes()
}

fn need(source: Option<&Source>, ordinal: usize) -> Option<u64> {
    source?.need(code::capability(ordinal)?).map(counts_for)
}

impl Libraries {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Library>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the charge of all libraries in one context, bytes.
    pub fn bytes(&self) -> u64 {
        self.lock().values().map(|library| library.bytes).sum()
    }

    /// Returns the charges of the libraries in a context that is about to be made.
    pub fn wanted(&self) -> Wanted {
        self.lock().iter().map(|(handle, library)| (*handle, library.bytes)).collect()
    }

    /// Charges the libraries in a context that was made. `promise` reserves the sum of `wanted`.
    /// Libraries that were unloaded meanwhile are left out. Libraries that were loaded meanwhile
    /// are charged too.
    pub fn enter_context(
        &self,
        site: &Site<'_>,
        (ordinal, context): (usize, usize),
        wanted: &Wanted,
        mut promise: Promise,
    ) {
        for (handle, library) in self.lock().iter_mut() {
            let own = wanted.get(handle).and_then(|bytes| part(&mut promise, *bytes));
            library.held.insert(context, Held::new(MemoryKind::Code, ordinal, site, library.bytes, own));
        }
        site.withdraw(promise);
    }

    /// Gives back the charges that ended with a context.
    pub fn forget_context(&self, process: &Process, context: usize) {
        for library in self.lock().values_mut() {
            if let Some(held) = library.held.remove(&context) {
                held.give_back(process, None);
            }
        }
    }

    /// Moves all charges to a new ledger of the session.
    pub fn move_to(&self, session: &Session, gpus: &[Gpu]) {
        for library in self.lock().values_mut() {
            library.held.values_mut().for_each(|held| held.follow_on(session, gpus));
        }
    }
}

impl Accounts {
    /// Loads a module into the current `context` by `load`, if there is room for it. `load` returns
    /// the result and the handle. `unload` unloads a module that is refused afterwards.
    pub fn load_module(
        &self,
        process: &Process,
        (api, context): (ApiId, &ContextState),
        source: Option<&Source>,
        mut load: impl FnMut() -> (u32, Option<usize>),
        unload: impl FnOnce(usize),
    ) -> u32 {
        let (ordinal, handle) = (context.ordinal, context.handle().0);
        let request = Request { api, kind: MemoryKind::Code, ordinal, context: handle, bytes: 0 };
        match need(source, ordinal) {
            Some(0) => load().0,
            Some(bytes) => self.allocate(process, Request { bytes, ..request }, || {
                let (result, module) = load();
                (result, module.map(|module| (Name::Module(module as u64), bytes)))
            }),
            None => self.load_unknown(process, request, load, unload),
        }
    }

    /// Loads a module whose image does not say how much memory it needs. The charge is the growth
    /// of the memory that NVML reports beyond the process's account.
    ///
    /// Meanwhile no other thread makes a context on that GPU or loads such a module there, because
    /// its memory would be taken for this module's.
    fn load_unknown(
        &self,
        process: &Process,
        mut request: Request,
        mut load: impl FnMut() -> (u32, Option<usize>),
        unload: impl FnOnce(usize),
    ) -> u32 {
        let _measuring = self.contexts.turn(request.ordinal);
        let Some(site) = Site::of(process, request.ordinal) else { return load().0 };
        let before = self.beyond_account(process, &site, request.ordinal, 0);
        let before_bytes = free_bytes(process);
        let (result, module) = load();
        let Some(module) = module.filter(|_| result == CUDA_SUCCESS) else {
            return self.answered(&site, &request, result);
        };
        let is_less = before_bytes
            .zip(free_bytes(process))
            .is_some_and(|(before, after)| before.saturating_sub(after) >= BLOCK_BYTES);
        let Some((before_bytes, _)) = before.filter(|_| is_less) else { return result };
        let Some((after_bytes, _)) = self.beyond_account(process, &site, request.ordinal, 0) else {
            return result;
        };
        request.bytes = after_bytes.saturating_sub(before_bytes).max(0).unsigned_abs();
        if request.bytes == 0 {
            return result;
        }
        match self.promise(process, &site, &request) {
            Ok(promise) => {
                self.enter(process, &site, &request, (Name::Module(module as u64), request.bytes), promise);
                result
            }
            Err(refused) => {
                unload(module);
                self.refuse(&site, &request, Why::Limit(refused))
            }
        }
    }

    /// Loads a library by `load`, if there is room for it in all contexts of the process. `load`
    /// returns the result and the handle.
    pub fn load_library(
        &self,
        process: &Process,
        api: ApiId,
        source: Option<&Source>,
        load: impl FnOnce() -> (u32, Option<usize>),
    ) -> u32 {
        let contexts = self.contexts.there();
        let ordinal = contexts.first().map_or(0, |(_, ordinal)| *ordinal);
        let Some(bytes) = need(source, ordinal).filter(|bytes| *bytes != 0) else { return load().0 };
        // One request for each GPU: with a request for each context, the second would wait for the
        // first.
        let mut wanted: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (context, ordinal) in contexts {
            wanted.entry(ordinal).or_default().push(context);
        }
        let mut promised = Vec::new();
        for (ordinal, contexts) in wanted {
            let Some(site) = Site::of(process, ordinal) else { continue };
            let sum_bytes = bytes.saturating_mul(contexts.len() as u64);
            let request =
                Request { api, kind: MemoryKind::Code, ordinal, context: contexts[0], bytes: sum_bytes };
            match self.promise(process, &site, &request) {
                Ok(promise) => promised.push((ordinal, contexts, site, promise)),
                Err(refused) => {
                    promised.into_iter().for_each(|(_, _, site, promise)| site.withdraw(promise));
                    return self.refuse(&site, &request, Why::Limit(refused));
                }
            }
        }
        let (result, library) = load();
        let Some(handle) = library.filter(|_| result == CUDA_SUCCESS) else {
            // The driver does not say which GPU was full.
            let first = promised.first().map(|(ordinal, _, site, _)| (*ordinal, *site));
            promised.into_iter().for_each(|(_, _, site, promise)| site.withdraw(promise));
            return first.map_or(result, |(ordinal, site)| {
                let request = Request { api, kind: MemoryKind::Code, ordinal, context: 0, bytes };
                self.answered(&site, &request, result)
            });
        };
        // The promises are settled before any lock is taken, because a thread that makes a context
        // waits for promised memory.
        let mut held: BTreeMap<usize, Held> = BTreeMap::new();
        for (ordinal, contexts, site, mut promise) in promised {
            let held_in = |context| {
                let own = part(&mut promise, bytes);
                (context, Held::new(MemoryKind::Code, ordinal, &site, bytes, own))
            };
            held.extend(contexts.into_iter().map(held_in));
            site.withdraw(promise);
        }
        // Threads that make or end a context wait for these locks. So a context in the list has all
        // libraries, and an ended context has none.
        let there = self.contexts.lock();
        let mut libraries = self.libraries.lock();
        let is_there = |context: usize| there.iter().any(|(known, _)| *known == context);
        for (_, held) in held.extract_if(.., |context, _| !is_there(*context)) {
            held.give_back(process, None);
        }
        if let Some(session) = process.session() {
            held.values_mut().for_each(|held| held.follow_on(session, &process.gpus));
        }
        for (context, ordinal) in there.iter().copied() {
            if let (false, Some(site)) = (held.contains_key(&context), Site::of(process, ordinal)) {
                held.insert(context, Held::new(MemoryKind::Code, ordinal, &site, bytes, None));
            }
        }
        // The driver gives a handle out again only once it is free. A replaced entry means that its
        // unload bypassed the interposer.
        let replaced = libraries.insert(handle, Library { bytes, held });
        for held in replaced.into_iter().flat_map(|library| library.held.into_values()) {
            held.give_back(process, None);
        }
        result
    }

    /// Unloads a library by `unload`. The entry is removed before `unload` runs, because the driver
    /// may afterwards give the same handle to another thread.
    pub fn unload_library(&self, process: &Process, handle: usize, unload: impl FnOnce() -> u32) -> u32 {
        let library = self.libraries.lock().remove(&handle);
        let result = unload();
        let Some(mut library) = library else { return result };
        if result == CUDA_SUCCESS {
            library.held.into_values().for_each(|held| held.give_back(process, None));
            return result;
        }
        let there = self.contexts.lock();
        let mut libraries = self.libraries.lock();
        let is_there = |context: usize| there.iter().any(|(known, _)| *known == context);
        for (_, held) in library.held.extract_if(.., |context, _| !is_there(*context)) {
            held.give_back(process, None);
        }
        if let Some(session) = process.session() {
            library.held.values_mut().for_each(|held| held.follow_on(session, &process.gpus));
        }
        libraries.insert(handle, library);
        result
    }
}
