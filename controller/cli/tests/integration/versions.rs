//! Tests with frames that other versions of deepres would send.

use deepres_abi::page::{MAJOR, MINOR};
use deepres_abi::wire::{Hello, RefusalKind, Role, set_text, text};
use deepres_daemon_harness::{Daemon, shake_hands};
use deepres_model::config::Config;
use zerocopy::IntoBytes;

/// Returns a hello of another version: longer or shorter, with other version numbers.
fn of_version(hello: &Hello, major: u16, minor: u16, bytes: usize) -> Vec<u8> {
    let mut packet = hello.as_bytes().to_vec();
    packet.resize(bytes, 0xEE);
    packet[4..8].copy_from_slice(&(bytes as u32).to_le_bytes());
    packet[10..12].copy_from_slice(&major.to_le_bytes());
    packet[12..14].copy_from_slice(&minor.to_le_bytes());
    packet
}

#[test]
fn a_tenant_of_another_minor_version_is_let_in() {
    let daemon = Daemon::start(1, Config::default());
    let socket = daemon.directory.tenant_socket();
    let mut hello = daemon.hello(Role::Session, "t");
    set_text(&mut hello.tenant, "newer");
    let newer = of_version(&hello, MAJOR, MINOR + 3, size_of::<Hello>() + 100);
    let (_connection, welcome, descriptors) = shake_hands(&socket, &newer).unwrap();
    assert_eq!((text(&welcome.tenant), descriptors.len()), (Some("newer"), 5));
    set_text(&mut hello.tenant, "older");
    let older = of_version(&hello, MAJOR, 0, size_of::<Hello>());
    let (_connection, welcome, _) = shake_hands(&socket, &older).unwrap();
    assert_eq!(text(&welcome.tenant), Some("older"));
}

#[test]
fn a_tenant_of_another_major_version_is_refused_with_what_to_do() {
    let daemon = Daemon::start(1, Config::default());
    let hello = daemon.hello(Role::Session, "t");
    let other = of_version(&hello, MAJOR + 1, 0, size_of::<Hello>() + 64);
    let (kind, reason) = shake_hands(&daemon.directory.tenant_socket(), &other).unwrap_err();
    assert_eq!(kind, RefusalKind::Version as u32);
    assert!(reason.contains(&format!("version {}", MAJOR + 1)), "{reason}");
    assert!(reason.contains("same deepres release"), "{reason}");
}
