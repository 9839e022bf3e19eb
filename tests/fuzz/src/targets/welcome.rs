//! A daemon that sends a process an arbitrary answer and arbitrary descriptors, with arbitrary
//! pages behind them.

use crate::config::{Config, Socket};
use crate::handshake::{Connection, Pending};
use crate::pages::Mapped;
use arbitrary::{Result, Unstructured};
use deepres_abi::beat::BeatPage;
use deepres_abi::grant::{Gate, GrantPage};
use deepres_abi::ledger::LedgerPage;
use deepres_abi::meter::MeterPage;
use deepres_abi::page::{self, Page};
use deepres_abi::wire::{self, Hello, MAX_FDS, MAX_FRAME_BYTES, UNMANAGED, Uuid, Welcome};
use deepres_abi::{MAX_GPUS, PPM};
use deepres_model::packet::{self, Packet};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, socket_with,
};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::LazyLock;
use zerocopy::IntoBytes;

/// Backlog of the socket. Fewer connections wait at once, because each input accepts its own.
const BACKLOG: i32 = 16;
const GPUS: usize = 3;
/// Most parts of a page that an input overwrites.
const MAX_SCRIBBLES: usize = 8;

const READ: i32 = libc::PROT_READ;
const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// The socket where the processes of all inputs look for a daemon.
struct Impostor {
    listener: OwnedFd,
    config: Config,
    _scratch: tempfile::TempDir,
}

static IMPOSTOR: LazyLock<Impostor> = LazyLock::new(|| {
    let scratch = tempfile::tempdir().expect("a folder for temporary files");
    let path = scratch.path().join("socket");
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let listener = listener.expect("a socket");
    bind(&listener, &SocketAddrUnix::new(&path).expect("a short path")).expect("a folder of our own");
    listen(&listener, BACKLOG).expect("a bound socket");
    let mut config = Config::read();
    config.sockets = vec![Socket { path, within: None }];
    Impostor { listener, config, _scratch: scratch }
});

/// After any answer of a daemon, the process goes on, without a session or with one whose numbers
/// are possible.
pub fn run(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let gpus: [Uuid; GPUS] = std::array::from_fn(|number| [number as u8 + 1; size_of::<Uuid>()]);
    let Ok(pending) = Pending::begin(&IMPOSTOR.config, &gpus, 0, 0) else { panic!("the impostor listens") };
    let process = accept(&IMPOSTOR.listener).expect("a connection");
    let hello = Packet::receive(&process).expect("a packet").expect("a hello");
    assert_eq!(wire::decode::<Hello>(hello.bytes()).expect("a hello").gpus(), gpus);
    // If the input is too short, it stands for a daemon that dies in the middle.
    let _ = answer(&process, &mut input);
    drop(process);
    let Ok(finished) = pending.finish() else { panic!("the connection's end is an answer") };
    match finished {
        Ok(connection) => use_session(connection, &mut input),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn answer(process: &OwnedFd, input: &mut Unstructured<'_>) -> Result<()> {
    let mut welcome = Welcome::new(1, 0);
    for (index, place) in welcome.gpu_index.iter_mut().enumerate() {
        *place = index as u8;
    }
    let mut frame = welcome.as_bytes().to_vec();
    match input.int_in_range(0..=3_u8)? {
        0 => {
            let length = input.int_in_range(0..=MAX_FRAME_BYTES)?;
            frame = input.bytes(length.min(input.len()))?.to_vec();
        }
        1 => {
            for _ in 0..input.int_in_range(1..=MAX_SCRIBBLES)? {
                let at = input.choose_index(frame.len())?;
                frame[at] = input.arbitrary()?;
            }
        }
        _ => {}
    }
    let mut descriptors = Vec::new();
    for number in 0..input.int_in_range(0..=MAX_FDS)? {
        descriptors.push(descriptor(number, input)?);
    }
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    // The result is ignored, because the process may have closed the connection.
    let _ = packet::send(process, &frame, &borrowed);
    Ok(())
}

/// Returns a descriptor for this place. The descriptor is usually of the right page, and sometimes
/// of another page or of no page at all.
fn descriptor(number: usize, input: &mut Unstructured<'_>) -> Result<OwnedFd> {
    let place = if input.ratio(1, 8)? { input.arbitrary::<u8>()?.into() } else { number };
    match place {
        0 => page::<GrantPage>(input),
        1 => page::<MeterPage>(input),
        2 => page::<LedgerPage>(input),
        3 => page::<BeatPage>(input),
        _ => Ok(std::fs::File::open("/dev/null").expect("there is always one").into()),
    }
}

/// Returns memory with a page that is correct except for some bytes and its length.
fn page<P: Page>(input: &mut Unstructured<'_>) -> Result<OwnedFd> {
    let memory = memfd_create("page", MemfdFlags::CLOEXEC).expect("memory");
    let bytes = size_of::<P>();
    ftruncate(&memory, bytes as u64).expect("memory of our own");
    // SAFETY: the mapping is new, and it is unmapped before any other code uses the memory.
    unsafe {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let address = mmap(std::ptr::null_mut(), bytes, both, MapFlags::SHARED, &memory, 0).expect("room");
        page::create::<P>(address.cast(), bytes).expect("long enough and aligned");
        munmap(address, bytes).expect("mapped just now");
    }
    for _ in 0..input.int_in_range(0..=MAX_SCRIBBLES)? {
        let offset = input.int_in_range(0..=bytes - 1)? as u64;
        let length = usize::from(input.arbitrary::<u8>()?).min(input.len());
        rustix::io::pwrite(&memory, input.bytes(length)?, offset).expect("memory of our own");
    }
    if input.ratio(1, 16)? {
        ftruncate(&memory, input.int_in_range(0..=bytes as u64)?).expect("memory of our own");
    }
    Ok(memory)
}

/// Uses the pages as a session does.
fn use_session(connection: Connection, input: &mut Unstructured<'_>) {
    let Connection { welcome, pages: [grant, meter, ledger, beat], bells, socket: _ } = connection;
    let managed = welcome.gpu_index[..GPUS].iter().filter(|index| **index != UNMANAGED).count();
    assert!(bells.len() >= managed, "each GPU that is managed has its bell");
    let (Ok(grant), Ok(meter), Ok(ledger), Ok(beat)) = (
        Mapped::<GrantPage>::new(&grant, READ),
        Mapped::<MeterPage>::new(&meter, BOTH),
        Mapped::<LedgerPage>::new(&ledger, BOTH),
        Mapped::<BeatPage>::new(&beat, READ),
    ) else {
        return;
    };
    grant.page().fail_mode();
    for index in welcome.gpu_index.iter().take(GPUS).map(|index| usize::from(*index)) {
        let Some(slot) = grant.page().slot(index) else {
            assert!(index >= MAX_GPUS);
            continue;
        };
        let gate = slot.gate();
        assert_eq!(Gate::from_word(gate.word()), gate);
        slot.terms();
        let limit_bytes = slot.memory_limit();
        beat.page().last_ns(index);
        if let Some(meter) = meter.page().slot(index) {
            let before = meter.read();
            assert!(meter.read().since(&before, u64::from(PPM)).compute_ns <= u64::from(PPM));
        }
        let Some(account) =
            ledger.page().gpu(index).and_then(|gpu| gpu.account(welcome.ledger_slot as usize))
        else {
            continue;
        };
        let bytes = input.arbitrary().unwrap_or(1);
        if let Ok(reservation) = account.reserve(bytes, limit_bytes, || false) {
            assert!(bytes <= limit_bytes);
            reservation.commit();
        }
    }
}
