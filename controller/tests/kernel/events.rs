//! Single events: each ioctl of who is followed, by name, and an exact count of what was lost.

use super::counts::alone;
use super::support::*;
use deepres_controller::probes::kernel::{Asked, Kernel};
use deepres_controller::trace::decode::{Decoded, decode};
use std::process::Command;

const RING_BYTES: u32 = 1 << 20;
/// UVM_FREE and UVM_CREATE_EXTERNAL_RANGE: plain numbers.
const UVM_FREE: u64 = 34;
const UVM_CREATE_EXTERNAL_RANGE: u64 = 73;

fn events(kernel: &mut Kernel) -> impl FnMut() -> Vec<Decoded> + use<> {
    let mut ring = kernel.take_events().unwrap();
    move || std::iter::from_fn(|| ring.pop()).map(|event| decode(&event)).collect()
}

#[test]
fn nvidias_calls_are_told_by_name_with_fields_status_and_amount() {
    let _alone = alone();
    // This device takes any number for done, so that the driver's answer stands in the argument.
    let Some(mut kernel) = probes(&[BTRFS_UVM_KEY], Asked::Some(RING_BYTES), None) else { return };
    let mut events = events(&mut kernel);
    kernel.follow(std::process::id()).unwrap();
    let file = open(BTRFS);
    let mut argument = [0; 512];
    argument[..2].copy_from_slice(&[0x7f00_0000_0000, 1 << 21]);
    assert_eq!(ioctl_with(fd(&file), UVM_CREATE_EXTERNAL_RANGE, &mut argument), 0);
    argument[1] = 0x51;
    assert_eq!(ioctl_with(fd(&file), UVM_FREE, &mut argument), 0);
    let told = events();
    let shown: Vec<_> = told
        .iter()
        .map(|event| {
            let fields: Vec<_> = event.fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
            (event.name.unwrap(), fields.join(" "), event.status.as_ref().unwrap().to_string())
        })
        .collect();
    assert_eq!(
        shown,
        [
            (
                "UVM_CREATE_EXTERNAL_RANGE",
                "base=0x7f0000000000 length=2097152".to_owned(),
                "NV_OK".to_owned()
            ),
            ("UVM_FREE", "base=0x7f0000000000".to_owned(), "NV_ERR_NO_MEMORY".to_owned()),
        ]
    );
    assert!(told.iter().all(|event| event.pid == std::process::id()
        && event.fd == Some(fd(&file) as u32)
        && event.latency_ns > 0));
    let made = of_command(&kernel, std::process::id(), UVM_CREATE_EXTERNAL_RANGE).unwrap();
    assert_eq!(made.bytes, 1 << 21, "the argument tells how much");
    assert_eq!(of_command(&kernel, std::process::id(), UVM_FREE).unwrap().bytes, 0);
}

#[test]
fn children_are_followed_from_birth_and_others_are_not_told() {
    let _alone = alone();
    let Some(mut kernel) = probes(&[TUN_KEY], Asked::Some(RING_BYTES), None) else { return };
    let mut events = events(&mut kernel);
    let code = format!("import fcntl; f = open({TUN:?}, 'r+b', 0); fcntl.ioctl(f, {SUCCESS}, bytearray(8))");
    let mut stranger = Command::new("python3").args(["-c", &code]).spawn().unwrap();
    assert!(stranger.wait().unwrap().success());
    assert_eq!(events(), [], "not followed");
    kernel.follow(std::process::id()).unwrap();
    // A grandchild, by a shell that forks.
    let mut shell = Command::new("sh").args(["-c", "python3 -c \"$0\"; true", &code]).spawn().unwrap();
    assert!(shell.wait().unwrap().success());
    let mut child = Command::new("python3").args(["-c", &code]).spawn().unwrap();
    assert!(child.wait().unwrap().success());
    let told = events();
    assert!(told.iter().any(|event| event.pid == child.id()), "{told:?}");
    assert!(
        told.iter().any(|event| event.pid != child.id() && event.pid != std::process::id()),
        "the grandchild: {told:?}"
    );
    assert!(told.iter().all(|event| event.pid != stranger.id()));
}

#[test]
fn what_the_ring_has_no_room_for_is_counted_exactly() {
    let _alone = alone();
    const CALLS: u64 = 20_000;
    let Some(mut kernel) = probes(&[TUN_KEY], Asked::Some(RING_BYTES), None) else { return };
    let mut events = events(&mut kernel);
    kernel.follow(std::process::id()).unwrap();
    let file = open(TUN);
    for _ in 0..CALLS {
        assert_eq!(ioctl(fd(&file), SUCCESS), 0);
    }
    let told = events().len() as u64;
    let totals = kernel.totals();
    assert!(told > 0 && told < CALLS);
    assert_eq!((totals.events, totals.events_lost), (told, CALLS - told));
    assert_eq!(of_command(&kernel, std::process::id(), SUCCESS).unwrap().calls, CALLS, "counters miss none");
    assert_eq!(ioctl(fd(&file), SUCCESS), 0);
    assert_eq!(events().len(), 1, "there is room again");
}
