//! Frames on the tenant socket: one packet each, with the descriptors that travel beside it.

use deepres_abi::wire::{MAX_FDS, MAX_FRAME_BYTES};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, bind, connect, listen, recv, sendmsg, socket_with,
};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Connections that the kernel keeps for us between two turns of the accept loop.
const BACKLOG: i32 = 512;

fn seqpacket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags | SocketFlags::CLOEXEC, None)?)
}

/// Listens at `path`, without blocking.
///
/// # Errors
/// The system's: the path is too long (over 107 bytes), or in use, or not ours to write.
pub fn listener(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = seqpacket(SocketFlags::NONBLOCK)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects to the tenant socket at `path`. The socket blocks.
///
/// # Errors
/// The system's; `ECONNREFUSED` when nobody listens.
pub fn connection(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = seqpacket(SocketFlags::empty())?;
    connect(&socket, &address)?;
    Ok(socket)
}

/// Sends one frame and up to [`MAX_FDS`] descriptors, without ever waiting for the peer.
///
/// # Errors
/// The system's; `EAGAIN` when the peer does not read.
pub fn send(socket: impl AsFd, frame: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one frame"));
    }
    sendmsg(socket, &[IoSlice::new(frame)], &mut beside, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

/// A packet received: its bytes, and how long it was if it did not fit.
#[derive(Debug)]
pub struct Packet {
    bytes: [u8; MAX_FRAME_BYTES],
    length: usize,
}

impl Packet {
    /// Takes the next packet from `socket`; descriptors sent with it are closed by the kernel. `None`: the peer is gone.
    ///
    /// # Errors
    /// The system's; `EAGAIN` from a socket that does not block.
    pub fn receive(socket: impl AsFd) -> io::Result<Option<Self>> {
        let mut bytes = [0; MAX_FRAME_BYTES];
        loop {
            match recv(&socket, &mut bytes, RecvFlags::TRUNC) {
                Ok((_, 0)) => return Ok(None),
                Ok((_, length)) => return Ok(Some(Self { bytes, length })),
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The bytes. A packet longer than any frame comes as none at all, which no frame is.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}
