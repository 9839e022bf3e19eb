//! Device code as a job hands it to the driver, of which the interposer reads what memory it will take: from files, and from the job's own memory, of which
//! nobody says where it ends.

use crate::image::{Need, Source};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::LazyLock;

/// Longer images only make the fuzzer slow: the parsers meet no new case in them.
const MAX_BYTES: usize = 1 << 16;
const PAGE_BYTES: usize = 4096;
/// GPUs to choose code for.
const CAPABILITIES: [u32; 4] = [0, 70, 90, 121];
const ELF_MAGIC: &[u8] = b"\x7fELF";

/// A folder of this process's own, which goes when the process ends, and memory behind which there is none.
struct Places {
    folder: PathBuf,
    memory: usize,
}

static PLACES: LazyLock<Places> = LazyLock::new(|| {
    // SAFETY: a mapping of its own, of which the last page is made unreadable.
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

/// No bytes lead astray, none behind the end are read, and a cubin, of which every length is said, takes the same wherever it is: unless its lengths lead out
/// of it, where a file has nothing and memory anything.
pub fn run(data: &[u8]) {
    if data.len() > MAX_BYTES {
        return;
    }
    let path = PLACES.folder.join("image");
    std::fs::write(&path, data).expect("the folder can be written to");
    let in_file = needs(&Source::file(&path).expect("a plain file"));
    let at = PLACES.memory + MAX_BYTES - data.len();
    // SAFETY: so much room is there, and nobody else uses it.
    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), at as *mut u8, data.len()) };
    let in_memory = needs(&Source::memory(at).expect("a process may read its own memory"));
    let is_cubin = data.starts_with(ELF_MAGIC);
    for (in_file, in_memory) in
        in_file.into_iter().zip(in_memory).filter(|(in_file, _)| is_cubin && in_file.is_some())
    {
        assert_eq!(in_file, in_memory);
    }
}
