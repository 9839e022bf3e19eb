//! The handshake on the tenant socket: frames of fixed size over `SOCK_SEQPACKET`, one packet for
//! each frame.
//!
//! A process connects and sends [`Hello`]. The daemon answers with [`Welcome`], [`View`] or
//! [`Refusal`], or not at all, by the [`Role`] in the hello. With the welcome to a session, the
//! daemon sends file descriptors (`SCM_RIGHTS`, in the order of [`Welcome`]'s documentation). After
//! the welcome, nobody sends anything. When the connection ends, the session ends.
//!
//! A later minor version adds fields in reserved bytes, which are zero before, or at a frame's end.
//! If the sender is newer, [`decode`] ignores the bytes behind the frame that it knows. If the
//! sender is older, [`decode`] takes zeros for the fields that the frame lacks. [`decode`] refuses
//! a frame of another major version.

use crate::MAX_GPUS;
use crate::fallback::Fallback;
use crate::page::{MAJOR, MINOR};
use crate::wish::WISHES_BYTES;
use core::cmp::Ordering;
use core::fmt;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The bytes `drsw`.
const MAGIC: u32 = u32::from_le_bytes(*b"drsw");

/// The most bytes of a tenant's name.
pub const TENANT_NAME_BYTES: usize = 64;
/// The most bytes of a command line in a hello, for people to read.
pub const CLIENT_BYTES: usize = 128;
/// The most bytes of the sentence in a refusal.
pub const REASON_BYTES: usize = 480;
/// The size of the largest frame, bytes.
pub const MAX_FRAME_BYTES: usize = 2048;
/// The most bytes of a directory's path. The path of a socket in it has at most 108 bytes.
pub const DIRECTORY_BYTES: usize = 112;
/// In [`Welcome::gpu_index`]: the daemon does not manage the GPU.
pub const UNMANAGED: u8 = u8::MAX;

/// A GPU's UUID, as `cuDeviceGetUuid` returns it.
pub type Uuid = [u8; 16];

/// The kind of a frame of the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum FrameKind {
    /// The kind of a frame with a [`Hello`].
    Hello = 1,
    /// The kind of a frame with a [`Welcome`].
    Welcome = 2,
    /// The kind of a frame with a [`Refusal`].
    Refusal = 3,
    /// The kind of a frame with a [`View`].
    View = 4,
    /// The kind of a frame with a [`Notice`].
    Notice = 5,
}

/// The first 16 bytes of each frame.
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
    /// Returns the minor version of the program that sent the frame.
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

/// A message of fixed layout between a process and the daemon. Any bytes of a frame's size are a
/// valid value; [`decode`] checks whether they are a frame of deepres.
pub trait Frame: FromBytes + IntoBytes + Immutable + KnownLayout {
    /// The frame's kind.
    const KIND: FrameKind;
    /// The frame's size in the first minor version, bytes. No frame of this major version is
    /// shorter.
    const FIRST_BYTES: usize;
    /// Returns the frame's head.
    fn head(&self) -> &FrameHead;
}

/// The most batches of a profile in a hello.
pub const PROFILE_BATCHES: usize = 17;
/// The number of terms of a fitted profile beside its floor.
pub const PROFILE_TERMS: usize = 4;

/// The fitted profile of a job's program (`deepres run --profile`). The time of a run is max(floor,
/// (a0 + a1 b) / S + c0 + c1 b). Here b is the batch, and S the part of the SMs.
#[derive(Debug, Clone, Copy, Default, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FittedFields {
    /// The floor, ns.
    pub floor_ns: f64,
    /// The terms a0, a1, c0 and c1, ns.
    pub terms_ns: [f64; PROFILE_TERMS],
    /// Time of the host in a run, ns.
    pub host_ns: f64,
    /// The requests a second that the profile states; 0 for none.
    pub rate_hz: f64,
    /// The SLO that the profile states, ns; 0 for none.
    pub slo_ns: u64,
    /// The measured batches in rising order, then zeros.
    pub batches: [u32; PROFILE_BATCHES],
    /// The batch that the program runs; 0 if it is not known.
    pub batch: u32,
    /// The narrowest measured part of the SMs, percent; 0 if the job has no profile.
    pub least_percent: u32,
    /// The part of the SMs that `--sm auto` chose, percent; 0 without `--sm auto`.
    pub auto_percent: u32,
}

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Role {
    /// A process begins a session. The process gets a [`Welcome`] with pages.
    Session = 1,
    /// `deepres run` keeps its tenant in the daemon while the connection lasts. `deepres run` gets
    /// a [`Welcome`] without pages, and then [`Notice`]s. If the daemon refuses the wishes,
    /// `deepres run` learns so before the job starts.
    Keeper = 2,
    /// A process asks for the limits and the use of its tenant, on the GPUs in its hello. The
    /// process gets a [`View`], and the connection ends.
    Viewer = 3,
    /// A process is about to begin a session in another connection. While this connection lasts,
    /// the daemon does not list the process as unmanaged. The process gets no answer.
    Arriving = 4,
    /// A process asks for the memory that it holds by NVML's answer, on the one GPU in its hello.
    /// The process gets a [`View`], and the connection ends.
    Appraised = 5,
    /// A user asks about the user's own tenants: for the status, or, with a tenant's name in the
    /// hello, for the derivation of its share. The user gets a [`Notice`] with the descriptor of a
    /// file, which has the reply as on the admin socket. The connection then ends.
    Owner = 6,
}

/// The frame in which a process introduces itself and states its wishes. The daemon's configuration
/// bounds the wishes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Hello {
    head: FrameHead,
    /// The sender's `CLOCK_MONOTONIC`, ns. The daemon refuses a sender of another time namespace,
    /// because their times cannot be compared.
    pub monotonic_ns: u64,
    /// A [`Role`].
    pub role: u32,
    /// A process id in the sender's own pid namespace: of the sender, or of the process that
    /// `metering` names.
    pub pid: u32,
    /// The number of UUIDs in `gpu_uuids`.
    pub gpu_count: u32,
    /// The number of sessions that this process had before. If not 0, the counters of the meter
    /// page continue the counters of those sessions ([`crate::meter::MeterPage::set_carried`]). In
    /// a keeper's hello, not 0 if the keeper was connected before.
    pub sessions_before: u32,
    /// An [`crate::oversubscribe::Oversubscribe`]; 0 if the process did not ask for any.
    pub oversubscribe: u32,
    /// In a keeper's hello: 1 if the daemon is to meter a process and its children from outside;
    /// else 0. The process is the keeper, or `pid` if the keeper was connected before. The daemon
    /// answers after the metering has begun.
    pub metering: u32,
    /// The GPUs that the process can see, in the process's order.
    pub gpu_uuids: [Uuid; MAX_GPUS],
    /// The tenant's name, UTF-8, zero-padded. If the field is empty, the daemon finds a name.
    pub tenant: [u8; TENANT_NAME_BYTES],
    /// The process's command line, shortened, UTF-8, zero-padded.
    pub client: [u8; CLIENT_BYTES],
    /// The wishes, in the encoding of [`crate::wish::Wish::encode`].
    pub wishes: [u8; WISHES_BYTES],
    /// In a keeper's hello: 1 if the keeper asks again and again while guaranteed memory, GPUs or a
    /// part of the caps lack; else 0. The daemon serves such keepers in the order in which they
    /// came.
    pub waits: u32,
    /// In a keeper's hello: the number of GPUs that the job asks for; 0 if the job may use all. The
    /// daemon then chooses among the GPUs of the hello. If the keeper was connected before, the
    /// hello has only the GPUs that the daemon chose.
    pub wants_gpus: u32,
    reserved: [u8; 8],
    /// In a keeper's hello: the profile of the job's program.
    pub profile: FittedFields,
}

/// The frame by which the daemon accepts a session or a keeper.
///
/// With the welcome, a session ([`Role::Session`]) gets file descriptors: grant page, meter page,
/// ledger page and heartbeat page. After them comes one bell (an eventfd that the tenant rings) for
/// each managed GPU of the hello, in the hello's order.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Welcome {
    head: FrameHead,
    /// The session's number.
    pub session_id: u64,
    /// The session's slot in the tenant's ledger.
    pub ledger_slot: u32,
    /// For a keeper: the granted part of the SMs, parts per million; 0 for no part.
    pub sm_ppm: u32,
    /// For each GPU of the hello: the daemon's index of the GPU, or [`UNMANAGED`]. For a keeper,
    /// [`UNMANAGED`] unless the daemon chose the GPU for the job.
    pub gpu_index: [u8; MAX_GPUS],
    /// The tenant's name, UTF-8, zero-padded.
    pub tenant: [u8; TENANT_NAME_BYTES],
    /// The granted memory on each GPU, bytes; 0 for no limit.
    memory_bytes: u64,
    /// The granted share, parts per million; 0 for no share.
    share_ppm: u32,
    /// A [`crate::grant::FailMode`].
    fail_mode: u32,
    /// 1 if a `deepres run` started the daemon, else 0. If the daemon dies, any `deepres run` can
    /// then start the next daemon.
    pub is_of_run: u32,
    reserved_too: u32,
    /// For a keeper: the directory of the MPS control daemon that the job is to use, UTF-8,
    /// zero-padded. If the field is empty, the driver's own rule holds.
    pub mps_pipes: [u8; DIRECTORY_BYTES],
    /// For a keeper: the directory of the logs of MPS, UTF-8, zero-padded. If the field is empty,
    /// the driver's own rule holds.
    pub mps_logs: [u8; DIRECTORY_BYTES],
}

/// The number of file descriptors of pages that come with a welcome. The descriptors of the bells
/// come after them.
pub const PAGE_FDS: usize = 4;
/// The most descriptors that come with a welcome.
pub const MAX_FDS: usize = PAGE_FDS + MAX_GPUS;

/// The kind of a refusal, by which a process knows whether another attempt can succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum RefusalKind {
    /// The sender uses another major version of the protocol.
    Version = 1,
    /// The packet is no frame, or no frame that a process may send here.
    Malformed = 2,
    /// The wishes, or other fields of the hello, are not allowed or impossible.
    Request = 3,
    /// The daemon has no room for another connection or session.
    Full = 4,
    /// The daemon cannot see the sender's process, or the sender has another clock.
    Namespace = 5,
    /// The daemon is going down, or cannot answer at this moment.
    Stopping = 6,
    /// The wishes will fit once other tenants are gone.
    NoRoom = 7,
}

/// The frame by which the daemon refuses, with the reason.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Refusal {
    head: FrameHead,
    /// A [`RefusalKind`].
    pub kind: u32,
    /// A [`crate::grant::FailMode`].
    fail_mode: u32,
    /// A sentence for people, UTF-8, zero-padded.
    pub reason: [u8; REASON_BYTES],
    /// The memory that the process may hold on each GPU, bytes; 0 for no limit.
    memory_bytes: u64,
    /// The share of the process, parts per million; 0 for no share.
    share_ppm: u32,
    reserved: u32,
}

/// The frame by which the daemon tells a keeper about the keeper's job. In the answer to
/// [`Role::Owner`], the text is empty.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Notice {
    head: FrameHead,
    /// A sentence for people, UTF-8, zero-padded.
    pub text: [u8; REASON_BYTES],
}

/// The most processes in a [`View`].
pub const VIEW_PROCESSES: usize = 128;

/// The limits and the use of a tenant on one GPU.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ViewGpu {
    /// Memory that the tenant may hold, bytes, or [`crate::grant::NO_LIMIT`].
    pub memory_limit_bytes: u64,
    /// Memory that the tenant holds, bytes.
    pub held_bytes: u64,
    /// The tenant's part of the GPU's time in the last second, parts per million.
    pub recent_ppm: u32,
    /// 1 if the daemon manages the GPU, else 0.
    pub is_managed: u32,
}

/// The frame by which the daemon answers a question about a tenant.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct View {
    head: FrameHead,
    /// The id of the process that asked, as the daemon sees it. In another pid namespace, the
    /// process itself has another id.
    pub asker_pid: u32,
    process_count: u32,
    /// The tenant's limits and use, for each GPU of the hello.
    pub gpus: [ViewGpu; MAX_GPUS],
    /// The ids of the tenant's processes, as the daemon sees them.
    processes: [u32; VIEW_PROCESSES],
    /// Memory of the asking process on the first GPU of the hello, bytes, by NVML's answer
    /// ([`Role::Appraised`]).
    asker_bytes: u64,
    /// 1 if NVML answered.
    is_appraised: u32,
    reserved: u32,
}

impl View {
    /// Returns a view without GPUs and processes.
    pub fn new(asker_pid: u32) -> Self {
        Self { head: FrameHead::of::<Self>(), asker_pid, ..Self::new_zeroed() }
    }

    /// Sets the tenant's processes. Leaves out the processes behind the first [`VIEW_PROCESSES`].
    pub fn set_processes(&mut self, pids: impl Iterator<Item = u32>) {
        self.process_count = 0;
        for (place, pid) in self.processes.iter_mut().zip(pids) {
            *place = pid;
            self.process_count += 1;
        }
    }

    /// Sets the memory of the asking process on the first GPU of the hello, by NVML's answer.
    pub fn set_asker_bytes(&mut self, bytes: u64) {
        (self.asker_bytes, self.is_appraised) = (bytes, 1);
    }

    /// Returns the memory of the asking process on the first GPU of the hello, by NVML's answer,
    /// bytes. Returns `None` if the process did not ask for its memory, or if NVML did not answer.
    pub fn asker_bytes(&self) -> Option<u64> {
        (self.is_appraised == 1).then_some(self.asker_bytes)
    }

    /// Returns the ids of the tenant's processes, as the daemon sees them.
    pub fn processes(&self) -> &[u32] {
        &self.processes[..(self.process_count as usize).min(VIEW_PROCESSES)]
    }

    /// Returns whether the daemon manages the GPU at this place of the hello.
    pub fn is_managed(&self, place: usize) -> bool {
        self.gpus.get(place).is_some_and(|gpu| gpu.is_managed != 0)
    }
}

/// Makes these types frames, each with its size in the first minor version, bytes.
macro_rules! frames {
    ($($frame:ident: $first_bytes:literal),+) => {
        $(
            impl Frame for $frame {
                const KIND: FrameKind = FrameKind::$frame;
                const FIRST_BYTES: usize = $first_bytes;
                fn head(&self) -> &FrameHead {
                    &self.head
                }
            }
        )+
    };
}

frames!(Hello: 832, Welcome: 112, Refusal: 504, View: 936, Notice: 496);

impl Hello {
    /// Returns a hello without wishes and GPUs.
    pub fn new(role: Role) -> Self {
        Self { head: FrameHead::of::<Self>(), role: role as u32, ..Self::new_zeroed() }
    }

    /// Returns the role, or `None` if the number stands for no role.
    pub fn role(&self) -> Option<Role> {
        [Role::Session, Role::Keeper, Role::Viewer, Role::Arriving, Role::Appraised, Role::Owner]
            .into_iter()
            .find(|role| *role as u32 == self.role)
    }

    /// Returns the UUIDs of the GPUs, at most [`MAX_GPUS`].
    pub fn gpus(&self) -> &[Uuid] {
        &self.gpu_uuids[..(self.gpu_count as usize).min(MAX_GPUS)]
    }
}

impl Welcome {
    /// Returns a welcome without GPUs.
    pub fn new(session_id: u64, ledger_slot: u32) -> Self {
        Self {
            head: FrameHead::of::<Self>(),
            session_id,
            ledger_slot,
            gpu_index: [UNMANAGED; MAX_GPUS],
            ..Self::new_zeroed()
        }
    }

    /// Returns the limits that the job keeps by itself while it has no session.
    pub fn fallback(&self) -> Fallback {
        Fallback::of_fields((self.share_ppm, self.memory_bytes, self.fail_mode))
    }

    /// Sets the limits that the job keeps by itself while it has no session.
    pub fn set_fallback(&mut self, fallback: &Fallback) {
        (self.share_ppm, self.memory_bytes, self.fail_mode) = fallback.fields();
    }
}

impl Refusal {
    /// Returns a refusal with `reason` as its sentence, without limits and with an open fail mode.
    /// Cuts the sentence to [`REASON_BYTES`].
    pub fn new(kind: RefusalKind, reason: &str) -> Self {
        let mut refusal = Self { head: FrameHead::of::<Self>(), kind: kind as u32, ..Self::new_zeroed() };
        set_text(&mut refusal.reason, reason);
        refusal
    }

    /// Returns the limits that the process keeps by itself while it has no session. An older daemon
    /// tells only its fail mode.
    pub fn fallback(&self) -> Fallback {
        Fallback::of_fields((self.share_ppm, self.memory_bytes, self.fail_mode))
    }

    /// Sets the limits that the process keeps by itself while it has no session.
    pub fn set_fallback(&mut self, fallback: &Fallback) {
        (self.share_ppm, self.memory_bytes, self.fail_mode) = fallback.fields();
    }
}

impl Notice {
    /// Returns a notice with this sentence. Cuts the sentence to [`REASON_BYTES`].
    pub fn new(text: &str) -> Self {
        let mut notice = Self { head: FrameHead::of::<Self>(), ..Self::new_zeroed() };
        set_text(&mut notice.text, text);
        notice
    }
}

/// The reason for which bytes from a socket are not the expected frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// The bytes are no frame of deepres.
    Malformed,
    /// The frame has an incompatible version (major version found).
    Major(u16),
    /// The frame has another kind (kind found).
    Kind(u16),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => write!(f, "not a frame of deepres"),
            Self::Major(major) => {
                write!(
                    f,
                    "protocol version {major}, this build of deepres speaks {MAJOR}; use the same deepres release for the daemon and the job, and start the job again"
                )
            }
            Self::Kind(kind) => write!(f, "frame of kind {kind}, another was expected"),
        }
    }
}

impl core::error::Error for FrameError {}

/// Returns the kind of a packet's frame.
///
/// # Errors
/// [`FrameError::Malformed`] if the packet is no frame. [`FrameError::Major`] if the frame has
/// another major version.
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

/// Returns the frame `F` that one whole packet contains. The sender can have any minor version.
///
/// # Errors
/// [`FrameError`] if the packet is no such frame.
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

/// Writes `text` into a field, and fills the rest with zeros. If the text is too long, cuts it
/// between two characters. At least one zero byte remains.
pub fn set_text(field: &mut [u8], text: &str) {
    let mut end = text.len().min(field.len().saturating_sub(1));
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    field.fill(0);
    field[..end].copy_from_slice(&text.as_bytes()[..end]);
}

/// Returns the text in a zero-padded field, or `None` if the text is not UTF-8.
pub fn text(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    core::str::from_utf8(&field[..end]).ok()
}

const _: () = {
    assert!(size_of::<FrameHead>() == 16);
    assert!(size_of::<Hello>() == 976);
    assert!(size_of::<Welcome>() == 360);
    assert!(core::mem::offset_of!(Hello, profile) == 832 && core::mem::offset_of!(Welcome, mps_pipes) == 136);
    assert!(size_of::<View>() == 936 && size_of::<View>() <= MAX_FRAME_BYTES);
    assert!(size_of::<Notice>() == 496);
    assert!(size_of::<Refusal>() == 520 && core::mem::offset_of!(Refusal, memory_bytes) == 504);
    assert!(core::mem::offset_of!(Hello, wishes) == 496);
    assert!(size_of::<Hello>() <= MAX_FRAME_BYTES && size_of::<Refusal>() <= MAX_FRAME_BYTES);
};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::PPM;
    use crate::grant::FailMode;
    use crate::quantity::MAX_BYTES;
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
    fn other_bytes_versions_and_kinds_are_refused_with_the_values_found() {
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

    /// Returns a frame's bytes as a sender of another minor version would send them.
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

    /// For tests: a frame to which a later version added a field.
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
    fn a_shorter_frame_of_an_older_minor_version_is_read_with_zeros_for_missing_fields() {
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
    fn a_welcome_names_the_limits_and_an_older_daemons_welcome_names_none() {
        let fallback =
            Fallback { share_ppm: Some(300_000), memory_bytes: Some(1 << 30), fail_mode: FailMode::Closed };
        let mut welcome = Welcome::new(7, 0);
        welcome.set_fallback(&fallback);
        assert_eq!(decode::<Welcome>(welcome.as_bytes()).unwrap().fallback(), fallback);
        let older = resized(&welcome, MINOR - 1, Welcome::FIRST_BYTES);
        assert_eq!(decode::<Welcome>(&older).unwrap().fallback(), Fallback::default());
    }

    #[test]
    fn a_refusal_names_the_limits_and_an_older_daemons_refusal_names_only_the_fail_mode() {
        let fallback =
            Fallback { share_ppm: Some(300_000), memory_bytes: Some(1 << 30), fail_mode: FailMode::Closed };
        let mut refusal = Refusal::new(RefusalKind::Full, "no");
        assert_eq!(refusal.fallback(), Fallback::default());
        refusal.set_fallback(&fallback);
        assert_eq!(decode::<Refusal>(refusal.as_bytes()).unwrap().fallback(), fallback);
        let older = resized(&refusal, MINOR - 1, Refusal::FIRST_BYTES);
        let told = decode::<Refusal>(&older).unwrap().fallback();
        assert_eq!(told, Fallback { fail_mode: FailMode::Closed, ..Fallback::default() });
        refusal.set_fallback(&Fallback { memory_bytes: Some(0), ..Fallback::default() });
        assert_eq!(refusal.fallback().memory_bytes, Some(1), "it is a limit");
        (refusal.share_ppm, refusal.memory_bytes) = (PPM + 1, u64::MAX);
        let most = Fallback { share_ppm: Some(PPM), memory_bytes: Some(MAX_BYTES), ..Fallback::default() };
        assert_eq!(refusal.fallback(), most);
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
