//! Device code that a job passes to the driver. The interposer reads from it how much memory the
//! code takes. The code is in files or in the job's own memory, and memory has no known end.

use crate::image::{Need, Source};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::LazyLock;

/// Longest image. Longer images only make the fuzzer slow, because the parsers meet no new case in
/// them.
const MAX_BYTES: usize = 1 << 16;
const PAGE_BYTES: usize = 4096;
/// Compute capabilities of the GPUs for which code is chosen.
const CAPABILITIES: [u32; 4] = [0, 70, 90, 121];
const ELF_MAGIC: &[u8] = b"\x7fELF";

/// A folder of this process, which is removed when the process ends, and memory that is followed by
/// an unreadable page.
struct Places {
    folder: PathBuf,
    memory: usize,
}

static PLACES: LazyLock<Places> = LazyLock::new(|| {
    // SAFETY: the mapping is our own. Only its last page becomes unreadable, and nothing uses that
    // page.
    let memory = unsafe {
        let (both, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let memory = libc::mmap(null_mut(), MAX_BYTES + PAGE_BYTES, both, private, -1, 0);
        assert_ne!(memory, libc::MAP_FAILED);
        assert_eq!(libc::mprotect(memory.byte_add(MAX_BYTES), PAGE_BYTES, libc::PROT_NONE), 0);
        memory as usize
    };
    Places { folder: super::folder("code"), memory }
});

fn needs(source: &Source) -> [Option<Need>; CAPABILITIES.len()] {
    CAPABILITIES.map(|capability| source.need(capability))
}

/// No bytes lead astray, and the parser reads no bytes after the end. A cubin states all lengths,
/// so it takes the same memory wherever it lies. The exception is a cubin whose lengths lead out of
/// it: there a file has nothing, and memory may have anything.
pub fn run(data: &[u8]) {
    if data.len() > MAX_BYTES {
        return;
    }
    let path = PLACES.folder.join("image");
    std::fs::write(&path, data).expect("the folder can be written to");
    let in_file = needs(&Source::file(&path).expect("a plain file"));
    let at = PLACES.memory + MAX_BYTES - data.len();
    // SAFETY: `data` is at most MAX_BYTES long, so the range ends at the end of the readable
    // memory. No other code uses this memory.
    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), at as *mut u8, data.len()) };
    let in_memory = needs(&Source::memory(at).expect("a process may read its own memory"));
    let is_cubin = data.starts_with(ELF_MAGIC);
    for (in_file, in_memory) in
        in_file.into_iter().zip(in_memory).filter(|(in_file, _)| is_cubin && in_file.is_some())
    {
        assert_eq!(in_file, in_memory);
    }
}
