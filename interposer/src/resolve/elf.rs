//! Looks symbols up in loaded objects without `dlsym`, in the objects' own tables.
//!
//! The interposer replaces `dlsym`, so it needs these look-ups to find the real `dlsym`. The
//! look-ups also find a driver's addresses when another preloaded library changes `dlsym`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::{mem, ptr};

use libc::{Elf64_Phdr, Elf64_Sym, dl_phdr_info, size_t};

const DT_NULL: i64 = 0;
const DT_NEEDED: i64 = 1;
const DT_PLTRELSZ: i64 = 2;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_SONAME: i64 = 14;
const DT_JMPREL: i64 = 23;
const DT_VERSYM: i64 = 0x6fff_fff0;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_RELACOUNT: i64 = 0x6fff_fff9;

const ELF_MAGIC: &[u8; 4] = b"\x7fELF";
const STT_OBJECT: u8 = 1;
const STT_FUNC: u8 = 2;
const SYMBOL_TYPE_MASK: u8 = 0xf;
const SHN_UNDEF: u16 = 0;
/// The type of a relocation that stores a symbol's address in a word of the global offset table.
const R_X86_64_GLOB_DAT: u32 = 6;
/// The type of a relocation that stores a function's address in a word, at the first call with lazy
/// binding.
const R_X86_64_JUMP_SLOT: u32 = 7;
/// Bit of a version number. A look-up finds a symbol with such a version only by the version's
/// name.
const VERSION_HIDDEN: u16 = 0x8000;
/// The number of bits in a word of the Bloom filter.
const BLOOM_WORD_BITS: u32 = u64::BITS;

#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

/// An object of the process: the program or a library. The value is valid while the object stays
/// loaded.
#[derive(Debug, Clone, Copy)]
pub struct Object {
    base: usize,
    headers: *const Elf64_Phdr,
    header_count: usize,
}

impl Object {
    /// Returns the object that contains `address`.
    pub fn containing(address: usize) -> Option<Self> {
        find(|object| object.contains(address).then_some(*object))
            .or_else(|| Self::of_other_namespace(address))
    }

    /// Returns the object that contains `address` in another link-map namespace (`dlmopen`). Only
    /// code in that namespace can list the namespace's objects, so this function reads the object's
    /// header in memory.
    fn of_other_namespace(address: usize) -> Option<Self> {
        // SAFETY: all zeroes are a valid Dl_info, which contains only pointers.
        let mut info = unsafe { mem::zeroed::<libc::Dl_info>() };
        // SAFETY: the result has room, and the call accepts any address.
        if unsafe { libc::dladdr(address as *const c_void, &mut info) } == 0 || info.dli_fbase.is_null() {
            return None;
        }
        // SAFETY: the dynamic linker says that an object's first byte is there.
        unsafe { Self::mapped_at(info.dli_fbase as usize) }.filter(|object| object.contains(address))
    }

    /// Returns the object whose first byte is at `start`.
    ///
    /// # Safety
    /// A loaded object is mapped at `start`.
    unsafe fn mapped_at(start: usize) -> Option<Self> {
        // SAFETY: a library is mapped from its first byte on, and its header is there.
        let header = unsafe { &*(start as *const libc::Elf64_Ehdr) };
        if !header.e_ident.starts_with(ELF_MAGIC) {
            return None;
        }
        let mut object = Self {
            base: start,
            headers: (start + header.e_phoff as usize) as *const Elf64_Phdr,
            header_count: usize::from(header.e_phnum),
        };
        let first =
            object.segments().iter().find(|segment| segment.p_type == libc::PT_LOAD)?.p_vaddr as usize;
        object.base = start.wrapping_sub(first);
        Some(object)
    }

    /// Returns whether `address` is in one of the object's segments.
    pub fn contains(&self, address: usize) -> bool {
        self.segments().iter().any(|header| {
            let start = self.base.wrapping_add(header.p_vaddr as usize);
            header.p_type == libc::PT_LOAD && address.wrapping_sub(start) < header.p_memsz as usize
        })
    }

    /// Returns the address at which the object defines the function or variable `name`. If the
    /// object has several versions, returns the default version.
    pub fn symbol(&self, name: &CStr) -> Option<usize> {
        let tables = Tables::of(self)?;
        tables.candidates(name, |index| {
            let symbol = tables.defined(index, name).filter(|_| !tables.is_hidden(index))?;
            Some(self.base.wrapping_add(symbol.st_value as usize))
        })
    }

    /// Returns the object's soname.
    pub fn soname(&self) -> Option<&CStr> {
        let strings = self.table(DT_STRTAB)?;
        let offset = self.dynamic(DT_SONAME)?;
        // SAFETY: the dynamic section gives the offset of a terminated string in the object's
        // string table. The table stays mapped while the object is loaded.
        Some(unsafe { CStr::from_ptr((strings as *const c_char).add(offset as usize)) })
    }

    /// Returns whether the object is linked to a library whose name begins with `start`.
    pub fn needs(&self, start: &[u8]) -> bool {
        let Some(strings) = self.table(DT_STRTAB) else { return false };
        self.entries().any(|(tag, offset)| {
            // SAFETY: the dynamic section gives the offset of a terminated string in the object's
            // string table.
            let name = || unsafe { CStr::from_ptr((strings as *const c_char).add(offset as usize)) };
            tag == DT_NEEDED && name().to_bytes().starts_with(start)
        })
    }

    /// Calls `visit` with each imported symbol and the address to which the symbol is bound, until
    /// `visit` returns a value. Returns this value. Until its first call, a symbol with lazy
    /// binding has an address in the object itself.
    pub fn imports<T>(&self, mut visit: impl FnMut(&CStr, usize) -> Option<T>) -> Option<T> {
        let tables = Tables::of(self)?;
        self.bindings(|symbol, bound| {
            // SAFETY: a relocation's symbol is in the object's symbol table, and the symbol's name
            // is in the string table.
            let name = unsafe {
                let symbol = &*tables.symbols.add(symbol);
                CStr::from_ptr(tables.strings.add(symbol.st_name as usize))
            };
            visit(name, bound)
        })
    }

    /// Returns whether any import of the object is bound to one of these addresses.
    pub fn is_bound_to(&self, addresses: &[usize]) -> bool {
        self.bindings(|_, bound| addresses.contains(&bound).then_some(())).is_some()
    }

    /// Calls `visit` as [`Self::imports`] does, but with the indices of the symbols.
    fn bindings<T>(&self, mut visit: impl FnMut(usize, usize) -> Option<T>) -> Option<T> {
        // Relocations without a symbol come first. The function skips them, because large libraries
        // have millions of them.
        let without = self.dynamic(DT_RELACOUNT).unwrap_or(0) as usize;
        let tables = [(DT_RELA, DT_RELASZ, without), (DT_JMPREL, DT_PLTRELSZ, 0)];
        tables.into_iter().find_map(|(table, bytes, first)| {
            let (relocations, bytes) = (self.table(table)?, self.dynamic(bytes)? as usize);
            // SAFETY: the dynamic section gives the address and the size of the relocations.
            let relocations = unsafe {
                std::slice::from_raw_parts(
                    relocations as *const Relocation,
                    bytes / mem::size_of::<Relocation>(),
                )
            };
            relocations.iter().skip(first).find_map(|relocation| {
                if !matches!(relocation.info as u32, R_X86_64_GLOB_DAT | R_X86_64_JUMP_SLOT) {
                    return None;
                }
                let word = self.base.wrapping_add(relocation.offset as usize) as *const usize;
                // SAFETY: the dynamic linker has filled this word.
                visit((relocation.info >> u32::BITS) as usize, unsafe { word.read() })
            })
        })
    }

    /// Returns whether the object's read-only data, which includes its constants, contains `text`.
    pub fn mentions(&self, text: &[u8]) -> bool {
        self.segments().iter().any(|header| {
            let is_constant = header.p_flags & (libc::PF_R | libc::PF_W) == libc::PF_R;
            let start = self.base.wrapping_add(header.p_vaddr as usize);
            header.p_type == libc::PT_LOAD
                && is_constant
                // SAFETY: the segment belongs to a loaded object and is readable, and `text` is a
                // slice.
                && unsafe {
                    let bytes = header.p_filesz as usize;
                    !libc::memmem(start as *const c_void, bytes, text.as_ptr().cast(), text.len()).is_null()
                }
        })
    }

    fn segments(&self) -> &[Elf64_Phdr] {
        if self.headers.is_null() {
            return &[];
        }
        // SAFETY: the dynamic linker reported this array, which is part of the loaded object.
        unsafe { std::slice::from_raw_parts(self.headers, self.header_count) }
    }

    /// Returns the entries of the object's dynamic section.
    fn entries(&self) -> impl Iterator<Item = (i64, u64)> {
        let header = self.segments().iter().find(|header| header.p_type == libc::PT_DYNAMIC);
        let first = header.map(|header| self.base.wrapping_add(header.p_vaddr as usize) as *const Dynamic);
        let mut next = first;
        std::iter::from_fn(move || {
            let entry = next?;
            // SAFETY: the dynamic section is an array that ends with DT_NULL, and the iteration
            // ends there.
            let (tag, value) = unsafe { ((*entry).tag, (*entry).value) };
            // SAFETY: this entry is not the last entry, so the next entry exists.
            next = (tag != DT_NULL).then(|| unsafe { entry.add(1) });
            next.map(|_| (tag, value))
        })
    }

    fn dynamic(&self, tag: i64) -> Option<u64> {
        self.entries().find_map(|(found, value)| (found == tag).then_some(value))
    }

    /// Returns the address in a dynamic entry. glibc relocates these addresses in place, except in
    /// objects that it cannot write, such as the vDSO.
    fn table(&self, tag: i64) -> Option<usize> {
        let value = self.dynamic(tag)? as usize;
        Some(if value < self.base { self.base + value } else { value })
    }
}

/// The tables that look-ups in an object use.
struct Tables {
    symbols: *const Elf64_Sym,
    strings: *const c_char,
    versions: Option<*const u16>,
    gnu_hash: Option<*const u32>,
    hash: Option<*const u32>,
}

impl Tables {
    fn of(object: &Object) -> Option<Self> {
        Some(Self {
            symbols: object.table(DT_SYMTAB)? as *const Elf64_Sym,
            strings: object.table(DT_STRTAB)? as *const c_char,
            versions: object.table(DT_VERSYM).map(|at| at as *const u16),
            gnu_hash: object.table(DT_GNU_HASH).map(|at| at as *const u32),
            hash: object.table(DT_HASH).map(|at| at as *const u32),
        })
    }

    /// Returns the symbol at `index` if its name is `name` and the object defines the symbol.
    fn defined(&self, index: usize, name: &CStr) -> Option<&Elf64_Sym> {
        // SAFETY: `index` comes from the object's own hash table.
        let symbol = unsafe { &*self.symbols.add(index) };
        let kind = symbol.st_info & SYMBOL_TYPE_MASK;
        if symbol.st_shndx == SHN_UNDEF || symbol.st_value == 0 || (kind != STT_FUNC && kind != STT_OBJECT) {
            return None;
        }
        // SAFETY: a symbol's name is a terminated string in the object's string table.
        let found = unsafe { CStr::from_ptr(self.strings.add(symbol.st_name as usize)) };
        (found == name).then_some(symbol)
    }

    fn is_hidden(&self, index: usize) -> bool {
        // SAFETY: the version table has an entry for each symbol.
        self.versions.is_some_and(|versions| unsafe { *versions.add(index) } & VERSION_HIDDEN != 0)
    }

    /// Calls `accept` with the indices that the hash table gives for `name`, until `accept` returns
    /// a value. Returns this value.
    fn candidates<T>(&self, name: &CStr, accept: impl FnMut(usize) -> Option<T>) -> Option<T> {
        match (self.gnu_hash, self.hash) {
            // SAFETY: the dynamic section says that this is a GNU hash table.
            (Some(table), _) => unsafe { gnu_candidates(table, name, accept) },
            // SAFETY: the dynamic section says that this is a System V hash table.
            (None, Some(table)) => unsafe { sysv_candidates(table, name, accept) },
            (None, None) => None,
        }
    }
}

/// Calls `accept` with the candidates for `name`, as [`Tables::candidates`] does, from a GNU hash
/// table.
///
/// # Safety
/// `table` is an object's `DT_GNU_HASH`.
unsafe fn gnu_candidates<T>(
    table: *const u32,
    name: &CStr,
    mut accept: impl FnMut(usize) -> Option<T>,
) -> Option<T> {
    let hash = name
        .to_bytes()
        .iter()
        .fold(5381_u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)));
    // SAFETY: the table consists of four words, the Bloom filter, the buckets and the chains. Each
    // index below is bounded by the counts in those words, or by the end mark of a chain.
    unsafe {
        let (buckets, first, bloom_words, shift) = (*table, *table.add(1), *table.add(2), *table.add(3));
        if buckets == 0 || bloom_words == 0 {
            return None;
        }
        let bloom = table.add(4).cast::<u64>();
        let word = bloom.add(((hash / BLOOM_WORD_BITS) % bloom_words) as usize).read_unaligned();
        let mask = 1_u64 << (hash % BLOOM_WORD_BITS)
            | 1_u64 << (hash.checked_shr(shift).unwrap_or(0) % BLOOM_WORD_BITS);
        if word & mask != mask {
            return None;
        }
        let bucket = bloom.add(bloom_words as usize).cast::<u32>();
        let chain = bucket.add(buckets as usize);
        let mut index = *bucket.add((hash % buckets) as usize);
        if index < first {
            return None;
        }
        loop {
            let link = *chain.add((index - first) as usize);
            if link | 1 == hash | 1
                && let Some(found) = accept(index as usize)
            {
                return Some(found);
            }
            if link & 1 != 0 {
                return None;
            }
            index += 1;
        }
    }
}

/// Calls `accept` with the candidates for `name`, as [`Tables::candidates`] does, from a System V
/// hash table.
///
/// # Safety
/// `table` is an object's `DT_HASH`.
unsafe fn sysv_candidates<T>(
    table: *const u32,
    name: &CStr,
    mut accept: impl FnMut(usize) -> Option<T>,
) -> Option<T> {
    let hash = name.to_bytes().iter().fold(0_u32, |hash, byte| {
        let sum = (hash << 4).wrapping_add(u32::from(*byte));
        let high = sum & 0xf000_0000;
        (sum ^ (high >> 24)) & !high
    });
    // SAFETY: the table consists of two counts, the buckets and the chains. 0 ends a chain.
    unsafe {
        let buckets = *table;
        if buckets == 0 {
            return None;
        }
        let bucket = table.add(2);
        let chain = bucket.add(buckets as usize);
        let mut index = *bucket.add((hash % buckets) as usize);
        while index != 0 {
            if let Some(found) = accept(index as usize) {
                return Some(found);
            }
            index = *chain.add(index as usize);
        }
        None
    }
}

/// Calls `visit` with every object until `visit` returns a value, and returns this value. The order
/// is that of the link map: the program, preloaded libraries, the rest. Takes the dynamic linker's
/// lock, as `dlsym` itself does.
pub fn find<T>(visit: impl FnMut(&Object) -> Option<T>) -> Option<T> {
    struct Visit<F, T> {
        visit: F,
        found: Option<T>,
    }

    unsafe extern "C" fn each<F: FnMut(&Object) -> Option<T>, T>(
        info: *mut dl_phdr_info,
        size: size_t,
        data: *mut c_void,
    ) -> c_int {
        if size < mem::offset_of!(dl_phdr_info, dlpi_adds) {
            return 1;
        }
        // SAFETY: the dynamic linker passes a valid `info` with at least the fields before
        // `dlpi_adds`. `data` is the `Visit` that `find` below passes.
        let (info, state) = unsafe { (&*info, &mut *data.cast::<Visit<F, T>>()) };
        let object = Object {
            base: info.dlpi_addr as usize,
            headers: info.dlpi_phdr,
            header_count: usize::from(info.dlpi_phnum),
        };
        state.found = (state.visit)(&object);
        c_int::from(state.found.is_some())
    }

    fn callback<F: FnMut(&Object) -> Option<T>, T>(
        _: &Visit<F, T>,
    ) -> unsafe extern "C" fn(*mut dl_phdr_info, size_t, *mut c_void) -> c_int {
        each::<F, T>
    }

    let mut state = Visit { visit, found: None };
    let each = callback(&state);
    // SAFETY: the callback gets the state that it expects, and the state outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut state).cast()) };
    state.found
}

/// The data of a namespace for debuggers (`struct r_debug_extended` of glibc's link.h).
#[repr(C)]
struct Namespace {
    version: c_int,
    map: *const LinkMap,
    breakpoint: usize,
    state: c_int,
    linker: usize,
    /// The next namespace. The field exists only if `version` is at least 2 (glibc 2.35 and
    /// later).
    next: *const Namespace,
}

/// An object of a namespace (`struct link_map` of glibc's link.h).
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
    dynamic: *const c_void,
    next: *const LinkMap,
    previous: *const LinkMap,
}

const PAGE_BYTES: usize = 4096;

/// From this version on, [`Namespace`] has the field `next`.
const NAMESPACES_VERSION: c_int = 2;

/// Returns whether memory is mapped at `address`. A library need not be mapped from its lowest
/// address on.
fn is_mapped(address: usize) -> bool {
    let mut is_resident = 0;
    // SAFETY: the call asks about one page, and the answer has room.
    address.is_multiple_of(PAGE_BYTES)
        && unsafe { libc::mincore(address as *mut c_void, PAGE_BYTES, &mut is_resident) } == 0
}

/// Calls `visit` with every object of all other namespaces (`dlmopen`), as [`find`] does for this
/// namespace. Versions of glibc before 2.35 do not list these objects, so with them the function
/// finds nothing.
pub fn find_elsewhere<T>(mut visit: impl FnMut(&Object) -> Option<T>) -> Option<T> {
    let first = find(|object| object.symbol(c"_r_debug"))? as *const Namespace;
    // `find` holds the dynamic linker's lock, so no object comes or goes inside it.
    find(|_| {
        // SAFETY: these are the dynamic linker's own lists, which end with null.
        unsafe {
            let mut namespace =
                if (*first).version >= NAMESPACES_VERSION { (*first).next } else { ptr::null() };
            while let Some(one) = namespace.as_ref() {
                let mut map = one.map;
                while let Some(object) = map.as_ref() {
                    let found = is_mapped(object.base)
                        .then(|| Object::mapped_at(object.base))
                        .flatten()
                        .and_then(|object| visit(&object));
                    if found.is_some() {
                        return Some(found);
                    }
                    map = object.next;
                }
                namespace = one.next;
            }
        }
        Some(None)
    })
    .flatten()
}

/// Returns the first definition of `name` in an object after the object that contains `address`.
pub fn next_after(address: usize, name: &CStr) -> Option<usize> {
    let mut passed = false;
    find(|object| {
        if passed {
            return object.symbol(name);
        }
        passed = object.contains(address);
        None
    })
}

/// Returns whether the object that contains `one` comes before the different object that contains
/// `other`.
pub fn is_before(one: usize, other: usize) -> bool {
    find(|object| match (object.contains(one), object.contains(other)) {
        (true, false) => Some(true),
        (_, true) => Some(false),
        (false, false) => None,
    })
    .unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symbol_found_by_tables_is_the_one_that_the_dynamic_linker_finds() {
        for name in [c"getenv", c"memcpy_s_that_is_nowhere", c"pthread_create", c"environ", c"dlvsym"] {
            // SAFETY: the name is terminated, and the handle is a pseudo handle.
            let expected = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
            let found = find(|object| {
                object.soname().is_some_and(|soname| soname == c"libc.so.6").then(|| object.symbol(name))
            });
            assert_eq!(found.flatten().unwrap_or(0), expected, "{name:?}");
        }
    }

    #[test]
    fn objects_know_their_addresses() {
        let here = objects_know_their_addresses as *const () as usize;
        let object = Object::containing(here).unwrap();
        assert!(object.contains(here));
        assert!(Object::containing(0).is_none());
    }

    #[test]
    fn an_object_is_read_by_its_header_as_the_dynamic_linker_lists_it() {
        let address = libc::getenv as *const () as usize;
        let (listed, read) =
            (Object::containing(address).unwrap(), Object::of_other_namespace(address).unwrap());
        assert_eq!((listed.base, listed.header_count), (read.base, read.header_count));
        assert_eq!(listed.symbol(c"getenv"), read.symbol(c"getenv"));
        assert!(Object::of_other_namespace(0x10).is_none());
    }

    #[test]
    fn an_object_says_what_it_is_bound_to_and_what_it_mentions() {
        let object = Object::containing(own_test as *const () as usize).unwrap();
        // SAFETY: the name is terminated, and the handle is a pseudo handle.
        let getenv = unsafe { libc::dlsym(libc::RTLD_NEXT, c"getenv".as_ptr()) } as usize;
        assert!(object.is_bound_to(&[1, getenv]) && !object.is_bound_to(&[1, getenv + 1]));
        assert!(object.mentions(b"an_object_says_what_it"));
        let mut absent = *b"an_object_says_whaT_it";
        absent.reverse();
        assert!(!object.mentions(&absent));
    }

    fn own_test() {}

    #[test]
    fn the_next_definition_is_not_the_first_one() {
        let here = the_next_definition_is_not_the_first_one as *const () as usize;
        let libc_getenv = libc::getenv as *const () as usize;
        let next = next_after(here, c"getenv").unwrap();
        assert!(Object::containing(next).unwrap().soname().unwrap().to_bytes().starts_with(b"libc.so"));
        assert!(Object::containing(libc_getenv).is_some());
        assert_eq!(next_after(next, c"getenv"), None);
    }
}
