//! Frames on the tenant socket. Each frame is one packet, and can carry descriptors.

use deepres_abi::wire::{MAX_FDS, MAX_FRAME_BYTES};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, recv,
    recvmsg, sendmsg, socket_with,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Length of the kernel's queue of connections that wait to be accepted.
const BACKLOG: i32 = 512;

fn seqpacket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags | SocketFlags::CLOEXEC, None)?)
}

/// Returns a socket that listens at `path` and does not block.
///
/// # Errors
/// The system's error: the path is longer than 107 bytes, is in use, or cannot be written.
pub fn listener(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = seqpacket(SocketFlags::NONBLOCK)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects to the tenant socket at `path`. The returned socket blocks.
///
/// # Errors
/// The system's error; `ECONNREFUSED` if nothing listens.
pub fn connection(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = seqpacket(SocketFlags::empty())?;
    connect(&socket, &address)?;
    Ok(socket)
}

/// Sends a frame with up to [`MAX_FDS`] descriptors. Never waits for the peer.
///
/// # Errors
/// The system's error; `EAGAIN` if the peer does not read.
pub fn send(socket: impl AsFd, frame: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one frame"));
    }
    sendmsg(socket, &[IoSlice::new(frame)], &mut beside, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

/// A received packet. If the packet was longer than a frame, only its length is known.
#[derive(Debug)]
pub struct Packet {
    bytes: [u8; MAX_FRAME_BYTES],
    length: usize,
}

impl Packet {
    /// Receives the next packet from `socket`. Returns `None` if the peer closed the connection.
    /// The kernel closes all descriptors that came with the packet.
    ///
    /// # Errors
    /// The system's error; `EAGAIN` from a socket that does not block.
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

    /// Receives the next packet from `socket`, and the file that came with it.
    ///
    /// # Errors
    /// The system's error; `UnexpectedEof` if the peer closed the connection.
    pub fn receive_with_file(socket: impl AsFd) -> io::Result<(Self, Option<OwnedFd>)> {
        let mut bytes = [0; MAX_FRAME_BYTES];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::io::retry_on_intr(|| {
            let flags = RecvFlags::TRUNC | RecvFlags::CMSG_CLOEXEC;
            recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut beside, flags)
        })?;
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut messages = beside.drain();
        let file = messages.find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        Ok((Self { bytes, length: received.bytes }, file))
    }

    /// Returns the packet's bytes. If the packet was longer than a frame, the result is empty. No
    /// valid frame is empty.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}
