//! A process exports physical memory and imports it again. The memory counts while the process has
//! any handle or mapping of it.

use deepres_e2e::prelude::*;

const PIECE_BYTES: u64 = 32 * MIB;
/// Limit of the tenant: one and a half pieces.
const LIMIT_BYTES: u64 = PIECE_BYTES + PIECE_BYTES / 2;
const TENANT: &str = "hands-over";
const CUDA_SUCCESS: u64 = 0;
const CUDA_ERROR_OUT_OF_MEMORY: u64 = 2;

/// A client that executes orders, one line after another.
struct Client<'h> {
    host: &'h Host,
    orders: Orders,
}

impl<'h> Client<'h> {
    fn start(host: &'h Host, faults: &str) -> Self {
        let mut command = host.preloaded(c_client_by("shareable", Way::ProcAddress));
        command.arg(PIECE_BYTES.to_string()).env("SIMGPU_FAULTS", faults);
        command.env("DEEPRES_TENANT", TENANT).env("DEEPRES_MEMORY", LIMIT_BYTES.to_string());
        let orders = Orders::new(host.spawn(command), 1, |line| format!("{{\"line\":{line},"));
        Self { host, orders }
    }

    #[track_caller]
    fn answer(&mut self, line: &str) -> (u64, u64) {
        let said = self.orders.ask_json(line);
        (said["code"].as_u64().expect("a code"), said["given"].as_u64().expect("a number"))
    }

    #[track_caller]
    fn given(&mut self, line: &str) -> u64 {
        let (code, given) = self.answer(line);
        assert_eq!(code, CUDA_SUCCESS, "{line}");
        given
    }

    /// Creates a piece and exports it. Returns the piece and the descriptor.
    #[track_caller]
    fn create_and_export(&mut self) -> (u64, u64) {
        let piece = self.given("create");
        (piece, self.given(&format!("export {piece}")))
    }

    /// Asserts that exactly this many pieces count. The client can allocate the rest of the limit,
    /// and not one byte more.
    #[track_caller]
    fn assert_held(&mut self, pieces: u64, why: &str) {
        let bytes = pieces * PIECE_BYTES;
        assert_eq!(self.host.ps().tenant(TENANT).memory_bytes, bytes, "{why}");
        assert_eq!(self.host.truth().gpus[0].memory_used_bytes, bytes, "{why}: what the GPU has given out");
        let room = LIMIT_BYTES - bytes;
        assert_eq!(self.answer(&format!("take {room}")).0, CUDA_SUCCESS, "{why}");
        assert_eq!(self.answer(&format!("take {}", room + 1)).0, CUDA_ERROR_OUT_OF_MEMORY, "{why}");
    }

    #[track_caller]
    fn end(self) {
        self.orders.process.finish().success();
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
    let (piece, descriptor) = client.create_and_export();
    let imported = client.given(&format!("import {descriptor}"));
    client.assert_held(1, "two handles of one piece");
    client.given(&format!("release {piece}"));
    client.assert_held(1, "what was imported keeps it");
    let again = client.given(&format!("import {descriptor}"));
    client.given(&format!("close {descriptor}"));
    client.given(&format!("release {imported}"));
    client.assert_held(1, "so does what was imported later");
    let address = client.given(&format!("map {again}"));
    client.given(&format!("release {again}"));
    client.assert_held(1, "and its mapping");
    client.given(&format!("unmap {address}"));
    client.assert_held(0, "nobody has it any more");
    client.end();
}

#[test]
fn the_order_in_which_handles_are_released_does_not_matter() {
    let (host, _daemon) = host().with_daemon();
    let mut client = Client::start(&host, "");
    let (piece, descriptor) = client.create_and_export();
    let imported = client.given(&format!("import {descriptor}"));
    client.given(&format!("release {imported}"));
    client.assert_held(1, "its first handle is there");
    // The client exports the imported handle again, and imports that descriptor.
    let imported = client.given(&format!("import {descriptor}"));
    let onward = client.given(&format!("export {imported}"));
    let third = client.given(&format!("import {onward}"));
    for handle in [piece, imported] {
        client.given(&format!("release {handle}"));
        client.assert_held(1, "another handle is there");
    }
    let fourth = client.given(&format!("import {onward}"));
    client.given(&format!("release {third}"));
    client.assert_held(1, "another handle is there");
    client.given(&format!("release {fourth}"));
    client.assert_held(0, "nobody has it any more");
    client.end();
}

#[test]
fn memory_that_only_a_descriptor_keeps_counts_once_it_is_imported() {
    let (host, _daemon) = host().with_daemon();
    let mut client = Client::start(&host, "");
    let (piece, descriptor) = client.create_and_export();
    client.given(&format!("release {piece}"));
    client.assert_held(0, "who has a descriptor is not known");
    let imported = client.given(&format!("import {descriptor}"));
    client.assert_held(1, "it is back");
    client.given(&format!("release {imported}"));
    client.assert_held(0, "and gone");
    client.given("create");
    assert_eq!(
        client.answer(&format!("import {descriptor}")).0,
        CUDA_ERROR_OUT_OF_MEMORY,
        "no room for both"
    );
    client.assert_held(1, "the new one");
    client.end();
}

#[test]
fn a_release_that_fails_changes_nothing() {
    let (host, _daemon) = host().with_daemon();
    // Every second release fails.
    let mut client = Client::start(&host, "cuMemRelease:every:2:999");
    let spare = client.given("create");
    client.given(&format!("release {spare}"));
    let (piece, descriptor) = client.create_and_export();
    let imported = client.given(&format!("import {descriptor}"));
    assert_eq!(client.answer(&format!("release {piece}")).0, 999);
    client.assert_held(1, "both handles are there");
    client.given(&format!("release {piece}"));
    client.assert_held(1, "what was imported is there");
    assert_eq!(client.answer(&format!("release {imported}")).0, 999);
    client.assert_held(1, "and stays");
    client.given(&format!("release {imported}"));
    client.assert_held(0, "nobody has it any more");
    client.end();
}

#[test]
fn an_import_without_room_is_released_even_if_the_first_attempt_fails() {
    let (host, _daemon) = host().with_daemon();
    // The client makes the first call, and the interposer the second.
    let mut client = Client::start(&host, "cuMemRelease:2:999");
    let (piece, descriptor) = client.create_and_export();
    client.given(&format!("release {piece}"));
    client.given("create");
    assert_eq!(client.answer(&format!("import {descriptor}")).0, CUDA_ERROR_OUT_OF_MEMORY);
    client.assert_held(1, "the new piece");
    client.end();
}

#[test]
fn imported_memory_of_its_own_goes_with_the_process() {
    let (host, _daemon) = host().with_daemon();
    let mut client = Client::start(&host, "");
    let (piece, descriptor) = client.create_and_export();
    client.given(&format!("import {descriptor}"));
    client.given(&format!("release {piece}"));
    client.orders.process.kill();
    host.await_ps(|ps| ps.find(TENANT).is_none_or(|tenant| tenant.memory_bytes == 0));
    let mut next = Client::start(&host, "");
    next.assert_held(0, "another process of the tenant has all of it");
    next.end();
}
