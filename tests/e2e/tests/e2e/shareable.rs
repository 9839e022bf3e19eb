//! A process exports physical memory and imports it again. The memory counts while the process has
//! any handle or mapping of it.

use deepres_e2e::calls::Calls;
use deepres_e2e::prelude::*;

const PIECE_BYTES: u64 = 32 * MIB;
/// Limit of the tenant: one and a half pieces.
const LIMIT_BYTES: u64 = PIECE_BYTES + PIECE_BYTES / 2;
const TENANT: &str = "hands-over";
const SUCCESS: &str = "0";
const OUT_OF_MEMORY: &str = "2";
const UNKNOWN: &str = "999";

/// Functions on physical memory that the client has exported.
const SHARING: &str = r#"
from os import close
def import_physical(name, descriptor):
    kept[name] = c_uint64()
    return cuda.cuMemImportFromShareableHandle(byref(kept[name]), c_void_p(descriptor), FILE_DESCRIPTOR)
def map_physical(name, of, size):
    kept[name], nothing = c_uint64(), c_size_t(0)
    must(cuda.cuMemAddressReserve(byref(kept[name]), c_size_t(size), nothing, nothing, nothing))
    return cuda.cuMemMap(kept[name], c_size_t(size), nothing, kept[of], nothing)
def unmap(name, size): return cuda.cuMemUnmap(kept[name], c_size_t(size))
"#;

/// A client, and the host on which its memory counts.
struct Client<'h> {
    host: &'h Host,
    calls: Calls,
}

impl<'h> Client<'h> {
    fn start(host: &'h Host, faults: &str) -> Self {
        let limit = LIMIT_BYTES.to_string();
        let variables = [("DEEPRES_TENANT", TENANT), ("DEEPRES_MEMORY", &limit), ("SIMGPU_FAULTS", faults)];
        let mut calls = Calls::start(host, &variables);
        calls.define(SHARING);
        Self { host, calls }
    }

    /// Creates a piece.
    #[track_caller]
    fn create(&mut self, piece: &str) {
        self.calls.does(&format!("physical('{piece}', {PIECE_BYTES})"));
    }

    /// Creates a piece and exports it. Returns the descriptor.
    #[track_caller]
    fn create_and_export(&mut self, piece: &str) -> String {
        self.create(piece);
        self.export(piece)
    }

    #[track_caller]
    fn export(&mut self, handle: &str) -> String {
        self.calls.asks(&format!("export_physical('{handle}')"))
    }

    /// Imports a descriptor as a handle. Returns the driver's code.
    #[track_caller]
    fn import(&mut self, handle: &str, descriptor: &str) -> String {
        self.calls.asks(&format!("import_physical('{handle}', {descriptor})"))
    }

    /// Releases a handle. Returns the driver's code.
    #[track_caller]
    fn release(&mut self, handle: &str) -> String {
        self.calls.asks(&format!("release('{handle}')"))
    }

    /// Asserts that exactly this many pieces count. The client can allocate the rest of the limit,
    /// and not one byte more.
    #[track_caller]
    fn assert_held(&mut self, pieces: u64, why: &str) {
        let bytes = pieces * PIECE_BYTES;
        assert_eq!(self.host.ps().tenant(TENANT).memory_bytes, bytes, "{why}");
        assert_eq!(self.host.truth().gpus[0].memory_used_bytes, bytes, "{why}: what the GPU has given out");
        let room = LIMIT_BYTES - bytes;
        assert_eq!(self.calls.asks(&format!("linear('rest', {room})")), SUCCESS, "{why}");
        assert_eq!(self.calls.asks("cuda.cuMemFree_v2(kept['rest'])"), SUCCESS, "{why}");
        assert_eq!(self.calls.asks(&format!("linear('more', {})", room + 1)), OUT_OF_MEMORY, "{why}");
    }
}

fn host() -> Host {
    // Contexts take no memory, so the GPU's record contains pieces alone.
    Host::new().simgpu("context_overhead_bytes = 0\n")
}

#[test]
fn memory_that_a_process_imports_of_its_own_counts_once_until_its_last_handle_and_mapping_are_gone() {
    let (host, _daemon) = host().with_daemon();
    let mut client = Client::start(&host, "");
    let descriptor = client.create_and_export("piece");
    assert_eq!(client.import("imported", &descriptor), SUCCESS);
    client.assert_held(1, "two handles of one piece");
    assert_eq!(client.release("piece"), SUCCESS);
    client.assert_held(1, "the imported handle keeps it");
    assert_eq!(client.import("again", &descriptor), SUCCESS);
    client.calls.asks(&format!("close({descriptor})"));
    assert_eq!(client.release("imported"), SUCCESS);
    client.assert_held(1, "so does the handle that was imported later");
    client.calls.does(&format!("map_physical('mapped', 'again', {PIECE_BYTES})"));
    assert_eq!(client.release("again"), SUCCESS);
    client.assert_held(1, "and its mapping");
    client.calls.does(&format!("unmap('mapped', {PIECE_BYTES})"));
    client.assert_held(0, "nobody has it any more");
}

#[test]
fn the_order_in_which_handles_are_released_does_not_matter() {
    let (host, _daemon) = host().with_daemon();
    let mut client = Client::start(&host, "");
    let descriptor = client.create_and_export("piece");
    assert_eq!(client.import("imported", &descriptor), SUCCESS);
    assert_eq!(client.release("imported"), SUCCESS);
    client.assert_held(1, "its first handle is there");
    // The client exports the imported handle again, and imports that descriptor.
    assert_eq!(client.import("imported", &descriptor), SUCCESS);
    let onward = client.export("imported");
    assert_eq!(client.import("third", &onward), SUCCESS);
    for handle in ["piece", "imported"] {
        assert_eq!(client.release(handle), SUCCESS);
        client.assert_held(1, "another handle is there");
    }
    assert_eq!(client.import("fourth", &onward), SUCCESS);
    assert_eq!(client.release("third"), SUCCESS);
    client.assert_held(1, "another handle is there");
    assert_eq!(client.release("fourth"), SUCCESS);
    client.assert_held(0, "nobody has it any more");
}

#[test]
fn memory_that_only_a_descriptor_keeps_counts_once_it_is_imported() {
    let (host, _daemon) = host().with_daemon();
    let mut client = Client::start(&host, "");
    let descriptor = client.create_and_export("piece");
    assert_eq!(client.release("piece"), SUCCESS);
    client.assert_held(0, "the holders of a descriptor are not known");
    assert_eq!(client.import("imported", &descriptor), SUCCESS);
    client.assert_held(1, "it is back");
    assert_eq!(client.release("imported"), SUCCESS);
    client.assert_held(0, "and gone");
    client.create("new");
    assert_eq!(client.import("imported", &descriptor), OUT_OF_MEMORY, "no room for both");
    client.assert_held(1, "the new one");
}

#[test]
fn a_release_that_fails_changes_nothing() {
    let (host, _daemon) = host().with_daemon();
    // Every second release fails.
    let mut client = Client::start(&host, "cuMemRelease:every:2:999");
    client.create("spare");
    assert_eq!(client.release("spare"), SUCCESS);
    let descriptor = client.create_and_export("piece");
    assert_eq!(client.import("imported", &descriptor), SUCCESS);
    for (handle, why) in [("piece", "both handles are there"), ("imported", "the imported handle is there")] {
        assert_eq!(client.release(handle), UNKNOWN);
        client.assert_held(1, why);
        assert_eq!(client.release(handle), SUCCESS);
        client.assert_held(u64::from(handle == "piece"), why);
    }
}

#[test]
fn an_import_without_room_is_released_even_if_the_first_attempt_fails() {
    let (host, _daemon) = host().with_daemon();
    // The client makes the first call, and the interposer the second.
    let mut client = Client::start(&host, "cuMemRelease:2:999");
    let descriptor = client.create_and_export("piece");
    assert_eq!(client.release("piece"), SUCCESS);
    client.create("new");
    assert_eq!(client.import("imported", &descriptor), OUT_OF_MEMORY);
    client.assert_held(1, "the new piece");
}

#[test]
fn imported_memory_of_its_own_goes_with_the_process() {
    let (host, _daemon) = host().with_daemon();
    let mut client = Client::start(&host, "");
    let descriptor = client.create_and_export("piece");
    assert_eq!(client.import("imported", &descriptor), SUCCESS);
    assert_eq!(client.release("piece"), SUCCESS);
    client.calls.0.process.kill();
    host.await_ps(|ps| ps.find(TENANT).is_none_or(|tenant| tenant.memory_bytes == 0));
    Client::start(&host, "").assert_held(0, "another process of the tenant has all of it");
}
