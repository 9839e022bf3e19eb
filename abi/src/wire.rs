//! The handshake on the tenant socket: fixed-size frames over `SOCK_SEQPACKET`, one packet each.
//!
//! A tenant sends [`Hello`]. The controller answers [`Welcome`], to a session with its file descriptors beside it
//! (`SCM_RIGHTS`, in the order of [`Welcome`]'s documentation), or [`Refusal`], and closes. The connection then stays open without
//! traffic: its end is the end of the session.
//!
//! Versions: a later minor version adds fields in reserved bytes, which are zero before, or at a frame's end. So [`decode`] ignores
//! what a newer sender has behind the frame that we know, and takes what an older one lacks as zero. Another major version is refused.

use crate::MAX_GPUS;
use crate::page::{MAJOR, MINOR};
use crate::wish::WISHES_BYTES;
use core::cmp::Ordering;
use core::fmt;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The bytes `drsw`.
const MAGIC: u32 = u32::from_le_bytes(*b"drsw");

/// Bytes of a tenant's name, at most.
pub const TENANT_NAME_BYTES: usize = 64;
/// Bytes of a command line that are kept for people to read.
pub const CLIENT_BYTES: usize = 128;
/// Bytes of the sentence in a refusal.
pub const REASON_BYTES: usize = 480;
/// Size of the largest frame.
pub const MAX_FRAME_BYTES: usize = 1024;
/// In [`Welcome::gpu_index`]: the controller does not manage that GPU.
pub const UNMANAGED: u8 = u8::MAX;

/// A GPU's UUID, as `cuDeviceGetUuid` gives it.
pub type Uuid = [u8; 16];

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum FrameKind {
    /// [`Hello`]
    Hello = 1,
    /// [`Welcome`]
    Welcome = 2,
    /// [`Refusal`]
    Refusal = 3,
    /// [`View`]
    View = 4,
}

/// First 16 bytes of each frame.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FrameHead {
    magic: u32,
    size: u32,
    kind: u16,
    major: u16,
    minor: u16,
    reserved: u16,
}

impl FrameHead {
    /// Minor version of the side that sent the frame.
    pub fn minor(&self) -> u16 {
        self.minor
    }

    fn of<F: Frame>() -> Self {
        Self {
            magic: MAGIC,
            size: size_of::<F>() as u32,
            kind: F::KIND as u16,
            major: MAJOR,
            minor: MINOR,
            reserved: 0,
        }
    }
}

/// A frame: any bytes of its size are one, and only [`decode`] says whether to believe them.
pub trait Frame: FromBytes + IntoBytes + Immutable + KnownLayout {
    /// Its kind.
    const KIND: FrameKind;
    /// Its size in the first minor version: no frame of this major version is shorter.
    const FIRST_BYTES: usize;
    /// Its head.
    fn head(&self) -> &FrameHead;
}

/// Who is asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Role {
    /// A process that uses GPUs: gets pages.
    Session = 1,
    /// `deepres run`: keeps the tenant in being while its connection lasts, and learns at once if the request is refused. Gets no pages.
    Keeper = 2,
    /// A process that asks what its tenant has of the GPUs in its hello: gets a [`View`], and the connection ends.
    Viewer = 3,
    /// A process that is about to begin a session, in a connection of its own: it is no stranger while that lasts. Gets no answer; what it has to
    /// say comes with the session's hello.
    Arriving = 4,
    /// A process that asks what it holds of the one GPU in its hello, by NVML's word: gets a [`View`], and the connection ends.
    Appraised = 5,
}

/// Tenant → controller: who I am, and my wishes. The controller's configuration decides about the wishes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Hello {
    head: FrameHead,
    /// The sender's `CLOCK_MONOTONIC`, ns. The controller refuses a sender of another time namespace, in which times cannot be
    /// compared.
    pub monotonic_ns: u64,
    /// A [`Role`].
    pub role: u32,
    /// Process id in the sender's own namespace, for people to read.
    pub pid: u32,
    /// UUIDs that follow.
    pub gpu_count: u32,
    /// Sessions that this process had before this one and whose counters its meter page will go on from
    /// ([`crate::meter::MeterPage::set_carried`]); 0: the page will begin at zero.
    pub sessions_before: u32,
    /// An [`crate::oversubscribe::Oversubscribe`]; 0: not asked.
    pub oversubscribe: u32,
    /// A keeper: 1 if this very process is to be metered from outside, and its children; it is answered once it is. Else 0.
    pub metering: u32,
    /// The GPUs that the process can see, in its order.
    pub gpu_uuids: [Uuid; MAX_GPUS],
    /// The tenant's name, UTF-8, zero-padded; empty: the controller finds one.
    pub tenant: [u8; TENANT_NAME_BYTES],
    /// The command line, shortened, UTF-8, zero-padded.
    pub client: [u8; CLIENT_BYTES],
    /// The wishes, as [`crate::wish::Wish::encode`] writes them.
    pub wishes: [u8; WISHES_BYTES],
    reserved: [u8; 16],
}

/// Controller → tenant: you are in.
///
/// With it, for [`Role::Session`], come file descriptors: grant page, meter page, ledger page, heartbeat page, and then one
/// eventfd (the bell, rung by the tenant) for each managed GPU of the hello, in its order.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Welcome {
    head: FrameHead,
    /// The session's number.
    pub session_id: u64,
    /// The session's slot in the tenant's ledger.
    pub ledger_slot: u32,
    reserved: u32,
    /// For each GPU of the hello the controller's index of it, or [`UNMANAGED`].
    pub gpu_index: [u8; MAX_GPUS],
    /// The tenant's name, UTF-8, zero-padded.
    pub tenant: [u8; TENANT_NAME_BYTES],
}

/// Number of page descriptors that come before the bells.
pub const PAGE_FDS: usize = 4;
/// Descriptors that a welcome carries at most.
pub const MAX_FDS: usize = PAGE_FDS + MAX_GPUS;

/// Why the controller refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum RefusalKind {
    /// Another major version of the protocol.
    Version = 1,
    /// A frame that is none.
    Malformed = 2,
    /// What was asked for is not allowed or impossible.
    Request = 3,
    /// No room for another session.
    Full = 4,
    /// The peer's process or clock cannot be seen from here.
    Namespace = 5,
    /// The controller is going down.
    Stopping = 6,
    /// What was asked for fits once others are gone.
    NoRoom = 7,
}

/// Controller → tenant: no, and why.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Refusal {
    head: FrameHead,
    /// A [`RefusalKind`].
    pub kind: u32,
    reserved: u32,
    /// A sentence for people, UTF-8, zero-padded.
    pub reason: [u8; REASON_BYTES],
}

/// Processes that a [`View`] has room for.
pub const VIEW_PROCESSES: usize = 128;

/// What a tenant has of one GPU.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ViewGpu {
    /// Memory that it may hold, bytes; [`crate::grant::NO_LIMIT`] for any.
    pub memory_limit_bytes: u64,
    /// Memory that it holds, bytes.
    pub held_bytes: u64,
    /// Its part of the GPU's time lately, parts per million.
    pub recent_ppm: u32,
    /// 1 if the controller manages that GPU, else 0.
    pub is_managed: u32,
}

/// Controller → tenant: what your tenant has.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct View {
    head: FrameHead,
    /// Who asked, as the controller sees it: another number than the process's own in another pid namespace.
    pub asker_pid: u32,
    process_count: u32,
    /// For each GPU of the hello.
    pub gpus: [ViewGpu; MAX_GPUS],
    /// The tenant's processes, as the controller sees them.
    processes: [u32; VIEW_PROCESSES],
    /// What NVML says that the asker holds of the first GPU, bytes, if it was asked for ([`Role::Appraised`]).
    asker_bytes: u64,
    /// 1 if NVML said so.
    is_appraised: u32,
    reserved: u32,
}

impl View {
    /// A view without GPUs and processes.
    pub fn new(asker_pid: u32) -> Self {
        Self { head: FrameHead::of::<Self>(), asker_pid, ..Self::new_zeroed() }
    }

    /// The tenant's processes; more than there is room for are left out.
    pub fn set_processes(&mut self, pids: impl Iterator<Item = u32>) {
        self.process_count = 0;
        for (place, pid) in self.processes.iter_mut().zip(pids) {
            *place = pid;
            self.process_count += 1;
        }
    }

    /// NVML says that the asker holds so much of the first GPU.
    pub fn set_asker_bytes(&mut self, bytes: u64) {
        (self.asker_bytes, self.is_appraised) = (bytes, 1);
    }

    /// What NVML says that the asker holds of the first GPU, bytes; `None` if it was not asked, or does not say.
    pub fn asker_bytes(&self) -> Option<u64> {
        (self.is_appraised == 1).then_some(self.asker_bytes)
    }

    /// The tenant's processes.
    pub fn processes(&self) -> &[u32] {
        &self.processes[..(self.process_count as usize).min(VIEW_PROCESSES)]
    }

    /// Whether the controller manages the GPU at this place of the hello.
    pub fn is_managed(&self, place: usize) -> bool {
        self.gpus.get(place).is_some_and(|gpu| gpu.is_managed != 0)
    }
}

impl Frame for View {
    const KIND: FrameKind = FrameKind::View;
    const FIRST_BYTES: usize = 936;
    fn head(&self) -> &FrameHead {
        &self.head
    }
}

impl Frame for Hello {
    const KIND: FrameKind = FrameKind::Hello;
    const FIRST_BYTES: usize = 832;
    fn head(&self) -> &FrameHead {
        &self.head
    }
}
impl Frame for Welcome {
    const KIND: FrameKind = FrameKind::Welcome;
    const FIRST_BYTES: usize = 112;
    fn head(&self) -> &FrameHead {
        &self.head
    }
}
impl Frame for Refusal {
    const KIND: FrameKind = FrameKind::Refusal;
    const FIRST_BYTES: usize = 504;
    fn head(&self) -> &FrameHead {
        &self.head
    }
}

impl Hello {
    /// An empty hello: nothing asked for, no GPUs.
    pub fn new(role: Role) -> Self {
        Self { head: FrameHead::of::<Self>(), role: role as u32, ..Self::new_zeroed() }
    }

    /// The role, if it is one.
    pub fn role(&self) -> Option<Role> {
        [Role::Session, Role::Keeper, Role::Viewer, Role::Arriving, Role::Appraised]
            .into_iter()
            .find(|role| *role as u32 == self.role)
    }

    /// The GPUs, at most as many as there is room for.
    pub fn gpus(&self) -> &[Uuid] {
        &self.gpu_uuids[..(self.gpu_count as usize).min(MAX_GPUS)]
    }
}

impl Welcome {
    /// A welcome without GPUs.
    pub fn new(session_id: u64, ledger_slot: u32) -> Self {
        Self {
            head: FrameHead::of::<Self>(),
            session_id,
            ledger_slot,
            gpu_index: [UNMANAGED; MAX_GPUS],
            ..Self::new_zeroed()
        }
    }
}

impl Refusal {
    /// A refusal with its sentence, cut to what fits.
    pub fn new(kind: RefusalKind, reason: &str) -> Self {
        let mut refusal = Self { head: FrameHead::of::<Self>(), kind: kind as u32, ..Self::new_zeroed() };
        set_text(&mut refusal.reason, reason);
        refusal
    }
}

/// Why bytes from a socket are not the frame that was expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// Not a frame of deepres.
    Malformed,
    /// A frame of an incompatible version (major found).
    Major(u16),
    /// Another frame than the one expected (kind found).
    Kind(u16),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => write!(f, "not a frame of deepres"),
            Self::Major(major) => {
                write!(
                    f,
                    "protocol version {major}, this build of deepres speaks {MAJOR}: use the same deepres release for the daemon and the job, and start the job again"
                )
            }
            Self::Kind(kind) => write!(f, "frame of kind {kind}, another was expected"),
        }
    }
}

impl core::error::Error for FrameError {}

/// The kind of a packet, if it is a frame at all. A frame of another major version is an error here already.
///
/// # Errors
/// [`FrameError::Malformed`] or [`FrameError::Major`].
pub fn kind(packet: &[u8]) -> Result<u16, FrameError> {
    head(packet).map(|head| head.kind)
}

fn head(packet: &[u8]) -> Result<FrameHead, FrameError> {
    let (head, _) = FrameHead::read_from_prefix(packet).map_err(|_| FrameError::Malformed)?;
    if head.magic != MAGIC || head.size as usize != packet.len() {
        return Err(FrameError::Malformed);
    }
    if head.major != MAJOR {
        return Err(FrameError::Major(head.major));
    }
    Ok(head)
}

/// Reads one whole packet as the frame `F`, from a sender of any minor version.
///
/// # Errors
/// [`FrameError`] when it is anything else.
pub fn decode<F: Frame>(packet: &[u8]) -> Result<F, FrameError> {
    let head = head(packet)?;
    if head.kind != F::KIND as u16 {
        return Err(FrameError::Kind(head.kind));
    }
    let known_bytes = size_of::<F>();
    let fits = match head.minor.cmp(&MINOR) {
        Ordering::Less => (F::FIRST_BYTES..=known_bytes).contains(&packet.len()),
        Ordering::Equal => packet.len() == known_bytes,
        Ordering::Greater => packet.len() >= known_bytes,
    };
    if !fits {
        return Err(FrameError::Malformed);
    }
    let mut frame = F::new_zeroed();
    for (to, from) in frame.as_mut_bytes().iter_mut().zip(packet) {
        *to = *from;
    }
    Ok(frame)
}

/// Writes `text` into a zero-padded field, cut at a character boundary; one zero byte always remains.
pub fn set_text(field: &mut [u8], text: &str) {
    let mut end = text.len().min(field.len().saturating_sub(1));
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    field.fill(0);
    field[..end].copy_from_slice(&text.as_bytes()[..end]);
}

/// The text in a zero-padded field, or `None` if it is not UTF-8.
pub fn text(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    core::str::from_utf8(&field[..end]).ok()
}

const _: () = {
    assert!(size_of::<FrameHead>() == 16);
    assert!(size_of::<Hello>() == 832);
    assert!(size_of::<Welcome>() == 112);
    assert!(size_of::<View>() == 936 && size_of::<View>() <= MAX_FRAME_BYTES);
    assert!(size_of::<Refusal>() == 504);
    assert!(core::mem::offset_of!(Hello, wishes) == 496);
    assert!(size_of::<Hello>() <= MAX_FRAME_BYTES && size_of::<Refusal>() <= MAX_FRAME_BYTES);
};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::wish::Wish;

    #[test]
    fn a_frame_survives_its_bytes() {
        let mut hello = Hello::new(Role::Keeper);
        set_text(&mut hello.tenant, "train");
        hello.wishes = Wish { share_ppm: Some(300_000), ..Wish::default() }.encode();
        let back = decode::<Hello>(hello.as_bytes()).unwrap();
        assert_eq!((back.role(), text(&back.tenant)), (Some(Role::Keeper), Some("train")));
        assert_eq!(Wish::decode(&back.wishes).unwrap().share_ppm, Some(300_000));
    }

    #[test]
    fn other_bytes_versions_and_kinds_are_refused_with_what_was_found() {
        assert_eq!(decode::<Hello>(b"").err(), Some(FrameError::Malformed));
        assert_eq!(decode::<Hello>(&[0xA5; size_of::<Hello>()]).err(), Some(FrameError::Malformed));
        assert_eq!(
            decode::<Hello>(&Hello::new(Role::Session).as_bytes()[..size_of::<Hello>() - 1]).err(),
            Some(FrameError::Malformed)
        );
        let refusal = Refusal::new(RefusalKind::Full, "no");
        assert_eq!(
            decode::<Hello>(refusal.as_bytes()).err(),
            Some(FrameError::Kind(FrameKind::Refusal as u16))
        );
        let mut newer = Hello::new(Role::Session);
        newer.head.major = MAJOR + 1;
        assert_eq!(decode::<Hello>(newer.as_bytes()).err(), Some(FrameError::Major(MAJOR + 1)));
    }

    /// A frame's bytes as a sender of another minor version would have sent them.
    fn resized(frame: &impl Frame, minor: u16, bytes: usize) -> std::vec::Vec<u8> {
        let mut packet = frame.as_bytes().to_vec();
        packet.resize(bytes, 0xEE);
        packet[4..8].copy_from_slice(&(bytes as u32).to_le_bytes());
        packet[12..14].copy_from_slice(&minor.to_le_bytes());
        packet
    }

    #[test]
    fn a_longer_frame_of_a_newer_minor_version_is_read_without_its_tail() {
        let mut hello = Hello::new(Role::Session);
        set_text(&mut hello.tenant, "train");
        let known = size_of::<Hello>();
        let back = decode::<Hello>(&resized(&hello, MINOR + 7, known + 64)).unwrap();
        assert_eq!((text(&back.tenant), back.head().minor()), (Some("train"), MINOR + 7));
        assert_eq!(
            decode::<Hello>(&resized(&hello, MINOR + 7, known - 1)).err(),
            Some(FrameError::Malformed),
            "no version takes a field away"
        );
        assert_eq!(
            decode::<Hello>(&resized(&hello, MINOR, known + 64)).err(),
            Some(FrameError::Malformed),
            "of our own version there is one size"
        );
    }

    /// A frame that has grown since its first version.
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(C)]
    struct Grown {
        head: FrameHead,
        first: u64,
        added: u64,
    }

    impl Frame for Grown {
        const KIND: FrameKind = FrameKind::Welcome;
        const FIRST_BYTES: usize = 24;
        fn head(&self) -> &FrameHead {
            &self.head
        }
    }

    #[test]
    fn a_shorter_frame_of_an_older_minor_version_is_read_with_zeros_for_what_it_lacks() {
        let grown = Grown { head: FrameHead::of::<Grown>(), first: 7, added: 9 };
        for (bytes, added) in [(32, 9), (24, 0)] {
            let back = decode::<Grown>(&resized(&grown, MINOR - 1, bytes)).unwrap();
            assert_eq!((back.first, back.added), (7, added));
        }
        for bytes in [23, 33] {
            let packet = resized(&grown, MINOR - 1, bytes);
            assert_eq!(decode::<Grown>(&packet).err(), Some(FrameError::Malformed), "{bytes} bytes");
        }
    }

    #[test]
    fn a_count_of_gpus_beyond_the_array_is_cut() {
        let mut hello = Hello::new(Role::Session);
        hello.gpu_count = u32::MAX;
        assert_eq!(hello.gpus().len(), MAX_GPUS);
    }

    #[test]
    fn text_is_cut_at_a_character_and_always_ends() {
        let mut field = [0xFF; 4];
        set_text(&mut field, "aéé");
        assert_eq!(text(&field), Some("aé"));
        assert_eq!(field[3], 0);
        assert_eq!(text(&[0xFF, 0]), None);
    }
}
