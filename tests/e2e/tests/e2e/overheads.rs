//! Memory that the driver takes for itself counts. A context counts from its creation to its end,
//! by what NVML reports. Code counts from its loading on, by what its image declares. Account and
//! GPU agree after each call.

use std::process::Command;

use deepres_e2e::prelude::*;

/// Size of a context on the simulated GPU.
const CONTEXT_MIB: u64 = 500;
const OUT_OF_MEMORY: u32 = 2;
const TENANT: &str = "t";

fn host_with(context_mib: u64) -> Host {
    Host::new()
        .simgpu(&format!("memory_bytes = 17179869184\ncontext_overhead_bytes = {}\n", context_mib * MIB))
}

fn host() -> Host {
    host_with(CONTEXT_MIB)
}

/// A client that executes one order after another.
struct Client(Orders);

impl Client {
    fn start(host: &Host, limit_mib: Option<u64>) -> Self {
        Self::of(host, host.preloaded(c_client("overheads")), limit_mib)
    }

    fn of(host: &Host, mut command: Command, limit_mib: Option<u64>) -> Self {
        command.env("DEEPRES_TENANT", TENANT);
        if let Some(mib) = limit_mib {
            command.env("DEEPRES_MEMORY", format!("{mib}MiB"));
        }
        Self(Orders::new(host.spawn(command), 0, |number| format!("{number} ")))
    }

    /// Makes the client do `what` with its object number `which`. Returns the driver's result code.
    fn asks(&mut self, what: &str, which: u32, bytes: u64) -> u32 {
        self.0.ask(&format!("{what} {which} {bytes}")).parse().expect("a code")
    }

    #[track_caller]
    fn does(&mut self, what: &str, which: u32, bytes: u64) {
        assert_eq!(self.asks(what, which, bytes), 0, "{what} {which}");
    }

    /// Does the same as [`Self::does`]. Then asserts what [`assert_held`] asserts.
    #[track_caller]
    fn comes_to_hold(&mut self, host: &Host, what: &str, which: u32, bytes: u64, kinds: &[(&str, u64)]) {
        self.does(what, which, bytes);
        assert_held(host, kinds);
    }
}

fn account(host: &Host) -> Value {
    host.account(TENANT)
}

/// Asserts that the account has this many MiB of each kind, and that its total is what the GPU has
/// given out.
#[track_caller]
fn assert_held(host: &Host, kinds: &[(&str, u64)]) {
    let account = account(host);
    for (kind, mib) in kinds {
        assert_eq!(account["memory_by_kind"][*kind].as_u64().unwrap_or(0), mib * MIB, "{kind}: {account}");
    }
    let truth = host.truth().gpus[0];
    assert_eq!(account["memory_bytes"].as_u64(), Some(truth.memory_used_bytes), "{account} {truth:?}");
    assert_eq!(account["kinds_drift_bytes"], 0, "{account}");
}

#[test]
fn a_context_counts_for_what_nvml_says_until_it_ends_however_it_ends() {
    let (host, _daemon) = host().with_daemon();
    let mut client = Client::start(&host, None);
    client.comes_to_hold(&host, "create", 0, 0, &[("context", CONTEXT_MIB)]);
    client.does("allocate", 0, 64 * MIB);
    client.comes_to_hold(&host, "create", 1, 0, &[("context", 2 * CONTEXT_MIB), ("linear", 64)]);
    client.does("retain", 0, 0);
    client.comes_to_hold(&host, "retain", 0, 0, &[("context", 3 * CONTEXT_MIB)]);
    client.comes_to_hold(&host, "release", 0, 0, &[("context", 3 * CONTEXT_MIB)]);
    client.comes_to_hold(&host, "release", 0, 0, &[("context", 2 * CONTEXT_MIB)]);
    client.does("retain", 0, 0);
    client.comes_to_hold(&host, "reset", 0, 0, &[("context", 2 * CONTEXT_MIB)]);
    client.comes_to_hold(&host, "destroy", 0, 0, &[("context", CONTEXT_MIB), ("linear", 0)]);
    client.comes_to_hold(&host, "destroy", 1, 0, &[("context", 0)]);
}

#[test]
fn a_context_that_the_limit_has_no_room_for_is_refused_as_by_a_full_gpu() {
    let (host, _daemon) = host().with_daemon();
    let mut client = Client::start(&host, Some(3 * CONTEXT_MIB / 2));
    client.does("create", 0, 0);
    assert_eq!(client.asks("create", 1, 0), OUT_OF_MEMORY);
    assert_eq!(client.asks("retain", 0, 0), OUT_OF_MEMORY);
    assert_held(&host, &[("context", CONTEXT_MIB)]);
    let peak = host.truth().gpus[0].memory_peak_bytes;
    assert!(
        peak <= 2 * CONTEXT_MIB * MIB,
        "the second was measured, and ended again; the third was not begun: {peak}"
    );
    // The rest of the limit can be allocated, and no more.
    assert_eq!(client.asks("allocate", 0, 252 * MIB), OUT_OF_MEMORY);
    client.does("allocate", 0, 250 * MIB);
    let account = account(&host);
    assert_eq!(account["refusals"], 3, "{account}");
    // Another process of the tenant gets no context either. Its first context shows its size only
    // after its creation, and is then destroyed again.
    let mut other = Client::start(&host, None);
    assert_eq!(other.asks("create", 0, 0), OUT_OF_MEMORY);
    assert_eq!(other.asks("retain", 0, 0), OUT_OF_MEMORY);
    assert_held(&host, &[("context", CONTEXT_MIB), ("linear", 250)]);
    client.0.process.kill();
    other.does("retain", 0, 0);
    assert_held(&host, &[("context", CONTEXT_MIB), ("linear", 0)]);
}

#[test]
fn a_context_of_a_process_that_another_daemon_takes_up_counts_there() {
    let (host, mut daemon) = host().with_daemon();
    let mut client = Client::start(&host, None);
    client.does("create", 0, 0);
    daemon.kill();
    let _daemon = host.daemon();
    host.await_ps(|ps| ps.find(TENANT).is_some_and(|tenant| tenant.memory_bytes == CONTEXT_MIB * MIB));
    assert_held(&host, &[("context", CONTEXT_MIB)]);
    client.comes_to_hold(&host, "destroy", 0, 0, &[("context", 0)]);
}

#[test]
fn where_nvml_does_not_answer_contexts_are_made_and_count_for_nothing() {
    let host = host();
    let _daemon = host.daemon_with(&[("LD_PRELOAD", &deepres_e2e::clients::c_library("stuck_nvml"))]);
    let mut client = Client::start(&host, Some(CONTEXT_MIB / 2));
    client.does("create", 0, 0);
    client.does("create", 1, 0);
    client.does("allocate", 0, 64 * MIB);
    assert_eq!(account(&host)["memory_by_kind"]["context"].as_u64(), None);
}

#[test]
fn modules_count_for_their_variables_and_stop_at_the_limit_before_the_driver_is_asked() {
    const GIB: u64 = 1 << 30;
    let (host, _daemon) = host_with(0).with_daemon();
    let mut client = Client::start(&host, Some(4096));
    client.does("create", 0, 0);
    for which in 0..20 {
        let code = client.asks("load", which, GIB);
        assert_eq!(code, if which < 4 { 0 } else { OUT_OF_MEMORY }, "{which} GiB are loaded");
    }
    assert_held(&host, &[("code", 4096)]);
    assert_eq!(host.truth().gpus[0].memory_peak_bytes, 4 * GIB);
    assert_eq!(client.asks("allocate", 0, 1), OUT_OF_MEMORY);
    client.does("unload", 2, 0);
    client.comes_to_hold(&host, "allocate", 0, GIB, &[("code", 3072), ("linear", 1024)]);
    client.does("free", 0, 0);
    // The modules of a context end with the context.
    client.comes_to_hold(&host, "destroy", 0, 0, &[("code", 0)]);
    client.does("create", 0, 0);
    client.comes_to_hold(&host, "load", 0, GIB + 1, &[("code", 1026)]);
    let code = client.asks("load", 1, u64::MAX / 2);
    assert_eq!(code, OUT_OF_MEMORY);
}

#[test]
fn code_with_errors_gets_the_drivers_code_also_where_there_is_no_room_for_it() {
    const UNSUPPORTED_PTX_VERSION: u32 = 222;
    let (host, _daemon) = host_with(0).with_daemon();
    let mut client = Client::start(&host, Some(64));
    client.does("create", 0, 0);
    for (way, wrong) in [("load", "load-wrong"), ("open", "open-wrong")] {
        for bytes in [MIB, 128 * MIB] {
            assert_eq!(client.asks(wrong, 0, bytes), UNSUPPORTED_PTX_VERSION, "{wrong} {bytes}");
        }
        assert_eq!(client.asks(way, 0, 128 * MIB), OUT_OF_MEMORY, "{way}");
    }
    assert_held(&host, &[("code", 0)]);
    assert_eq!(host.truth().gpus[0].memory_peak_bytes, 0, "the GPU was asked for none of it");
}

/// A module's file declares how much memory the module takes. A compressed file does not, so the
/// interposer measures it.
#[test]
fn a_compressed_module_counts_for_what_it_has_taken_and_is_unloaded_if_that_is_too_much() {
    let host = host_with(0);
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("large.fatbin");
    std::fs::write(&image, compressed(64 * MIB)).expect("a file of ours");
    let _daemon = host.daemon();
    let mut command = host.preloaded(c_client("overheads"));
    command.env("IMAGE", &image);
    let mut client = Client::of(&host, command, Some(150));
    client.does("create", 0, 0);
    client.does("allocate", 0, 4 * MIB);
    client.comes_to_hold(&host, "file", 0, 0, &[("code", 64), ("linear", 4)]);
    client.does("file", 1, 0);
    assert_eq!(client.asks("file", 2, 0), OUT_OF_MEMORY);
    assert_held(&host, &[("code", 128)]);
    client.does("unload", 0, 0);
    client.does("file", 2, 0);
    client.does("unload", 1, 0);
    client.comes_to_hold(&host, "unload", 2, 0, &[("code", 0), ("linear", 4)]);
}

/// Returns a fat binary whose one object is LZ4-compressed PTX with a variable of this many bytes.
/// A block of literals alone is valid LZ4.
fn compressed(bytes: u64) -> Vec<u8> {
    let text = format!(
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 8 .b8 large[{bytes}];\n.visible .entry nothing() {{ ret; }}\n"
    );
    const HEADER_BYTES: usize = 16;
    const ENTRY_BYTES: usize = 64;
    // The token counts fifteen literals. The rest is counted in bytes that end with one below 255.
    let mut block = vec![0xf0];
    let mut left = text.len() - 15;
    while left >= 255 {
        block.push(255);
        left -= 255;
    }
    block.push(left as u8);
    block.extend_from_slice(text.as_bytes());
    let mut file = vec![0; HEADER_BYTES + ENTRY_BYTES];
    file[..4].copy_from_slice(&0xBA55_ED50_u32.to_le_bytes());
    file[6..8].copy_from_slice(&(HEADER_BYTES as u16).to_le_bytes());
    file[8..16].copy_from_slice(&((ENTRY_BYTES + block.len()) as u64).to_le_bytes());
    let entry = &mut file[HEADER_BYTES..];
    entry[..2].copy_from_slice(&1_u16.to_le_bytes());
    entry[4..8].copy_from_slice(&(ENTRY_BYTES as u32).to_le_bytes());
    entry[8..16].copy_from_slice(&(block.len() as u64).to_le_bytes());
    entry[16..20].copy_from_slice(&(block.len() as u32).to_le_bytes());
    entry[28..32].copy_from_slice(&70_u32.to_le_bytes());
    entry[40..48].copy_from_slice(&0x2000_u64.to_le_bytes());
    entry[56..64].copy_from_slice(&(text.len() as u64).to_le_bytes());
    file.extend_from_slice(&block);
    file
}

#[test]
fn a_library_counts_in_every_context_while_it_is_loaded() {
    for (mode, is_eager) in [("LAZY", false), ("EAGER", true)] {
        let (host, _daemon) = host().with_daemon();
        let mut command = host.preloaded(c_client("overheads"));
        command.env("CUDA_MODULE_LOADING", mode);
        let mut client = Client::of(&host, command, Some(4 * CONTEXT_MIB));
        let holds = |contexts: u64, libraries: u64| {
            let kinds = [("context", contexts * CONTEXT_MIB), ("code", libraries * 100)];
            // Lazily loaded code has not taken its memory yet.
            if is_eager {
                assert_held(&host, &kinds);
            } else {
                assert_eq!(account(&host)["memory_bytes"], (kinds[0].1 + kinds[1].1) * MIB);
            }
        };
        client.does("open", 0, 100 * MIB);
        client.does("create", 0, 0);
        holds(1, 1);
        client.does("open", 1, 100 * MIB);
        holds(1, 2);
        client.does("create", 1, 0);
        holds(2, 4);
        // A third context would find 600 MiB: enough for itself and one library.
        assert_eq!(client.asks("create", 2, 0), OUT_OF_MEMORY);
        assert_eq!(client.asks("open", 2, 400 * MIB), OUT_OF_MEMORY);
        holds(2, 4);
        client.does("close", 0, 0);
        holds(2, 2);
        client.does("create", 2, 0);
        holds(3, 3);
        client.does("destroy", 0, 0);
        client.does("destroy", 1, 0);
        holds(1, 1);
        client.does("close", 1, 0);
        holds(1, 0);
    }
}

#[test]
fn what_libraries_and_a_context_take_is_promised_at_once() {
    let (host, _daemon) = host().with_daemon();
    let mut client = Client::start(&host, Some(2 * CONTEXT_MIB + 350));
    client.does("open", 0, 100 * MIB);
    client.does("create", 0, 0);
    client.does("create", 1, 0);
    let before = account(&host);
    let driver_before = host.truth().gpus[0].memory_peak_bytes;
    // 150 MiB are left. A library needs 100 MiB in each of the two contexts.
    assert_eq!(client.asks("open", 1, 100 * MIB), OUT_OF_MEMORY);
    // The size of a context is known from the first two, so the interposer does not ask the driver
    // for a third.
    assert_eq!(client.asks("create", 2, 0), OUT_OF_MEMORY);
    let after = account(&host);
    assert_eq!(
        after["memory_peak_bytes"], before["memory_peak_bytes"],
        "no part of it was promised: {after}"
    );
    assert_eq!(after["memory_bytes"], before["memory_bytes"]);
    assert_eq!(after["last_refusal"]["bytes"], (CONTEXT_MIB + 100) * MIB);
    assert_eq!(host.truth().gpus[0].memory_peak_bytes, driver_before);
}
