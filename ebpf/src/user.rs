//! Reads the memory of the current task's program.
//!
//! A kernel helper takes 30 to 80 ns for a read of any size. Most of the time goes into switching
//! the processor's guard against access to user memory (SMAP) off and on again.
//!
//! From Linux 6.2 on, programs may load from addresses themselves. There the programs load the
//! bytes from the kernel's own mapping of all memory, to which the guard does not apply. The
//! program's page tables say where in that mapping the bytes are. Such a read takes some 10 ns. The
//! helper reads everything that is not plain memory of the program at that moment.
//!
//! No field of the kernel says where the mapping begins. The controller finds the address by
//! trying, with a number in its own memory ([`find_mapping`]). The helper makes all reads until
//! then, and also where the search fails (encrypted memory, or memory that is not what it seems).

use crate::probe::mapping;
use crate::walk::{Task, cast, field};
use aya_ebpf::Global;
use aya_ebpf::helpers::generated::bpf_probe_read_user;
use aya_ebpf::programs::RawTracePointContext;
use core::cell::UnsafeCell;
use core::ffi::c_void;

#[unsafe(no_mangle)]
static TASK_MEMORY: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static MEMORY_TABLE: Global<u32> = Global::new(0);
/// BTF id of a struct that begins with a 64-bit number. 0 if the kernel cannot give an address a
/// type.
#[unsafe(no_mangle)]
static WORD_TYPE: Global<u32> = Global::new(0);
/// 1 if page tables have five levels, 0 if they have four.
#[unsafe(no_mangle)]
static HAS_FIFTH_LEVEL: Global<u32> = Global::new(0);

/// Address at which the kernel's mapping of all memory begins; 0 until it is found.
static MAPPING: Found = Found(UnsafeCell::new(0));

/// A number that is written in one store, before any program needs it.
struct Found(UnsafeCell<u64>);

// SAFETY: the number is read and written as one word; the compiler has no atomic type for the BPF
// target.
unsafe impl Sync for Found {}

/// Bits of an address that select the byte in a page, and bits that select a table entry.
const PAGE_BITS: u32 = 12;
const TABLE_BITS: u32 = 9;
/// Bits of a program's address with four table levels. With five levels, addresses below this limit
/// lie at the same places.
const ADDRESS_BITS: u32 = 47;
/// Bits of a table entry: the page is present, and the program may access it.
const USABLE: u64 = 1 | 1 << 2;
/// Bit of a table entry: the entry is a large page and leads to no further table.
const LARGE: u64 = 1 << 7;
/// Bit of a table entry: the memory belongs to a device, or is otherwise none of the kernel's
/// pages.
const SPECIAL: u64 = 1 << 9;
/// Address bits beyond all memory. If an entry has one of them, its page is encrypted or shared
/// with a hypervisor.
const BEYOND: u64 = 0x000f_c000_0000_0000;
/// Bits of a table entry that hold the address.
const FRAME: u64 = 0x0000_3fff_ffff_f000;

/// A piece of the program's memory, in the kernel's mapping.
struct Place {
    address: u64,
    /// Address of the table entry that led here.
    entry_at: u64,
    entry: u64,
}

/// Reads the value at an address of the program: one 4-byte word or several 8-byte words. Returns
/// `false` if the memory cannot be read.
///
/// # Safety
/// `to` has room for a `T`, and `T` is a `u32` or an array of `u64`.
#[inline(always)]
pub unsafe fn read<T>(task: Task, address: u64, to: *mut T) -> bool {
    // SAFETY: by the contract there is room; the helper returns an error for memory that cannot be
    // read.
    unsafe {
        load(task, address, to)
            || bpf_probe_read_user(to.cast(), size_of::<T>() as u32, address as *const _) == 0
    }
}

/// # Safety
/// As for [`read`].
#[inline(always)]
unsafe fn load<T>(task: Task, address: u64, to: *mut T) -> bool {
    // SAFETY: the static lives for ever and is one word.
    let mapping = unsafe { MAPPING.0.get().read_volatile() };
    if WORD_TYPE.load() == 0 || mapping == 0 || !is_in_one_page(address, size_of::<T>() as u64) {
        return false;
    }
    // SAFETY: by the contract, `to` has room for each word.
    unsafe {
        let Some(place) = place(table_of(task), mapping, address) else { return false };
        if size_of::<T>() == size_of::<u32>() {
            to.cast::<u32>().write(field(cast(place.address as *const u8, WORD_TYPE.load()), 0));
        }
        for index in 0..size_of::<T>() / size_of::<u64>() {
            let from = place.address + (index * size_of::<u64>()) as u64;
            to.cast::<u64>().add(index).write(word(from));
        }
        // The entry is unchanged after the read, so it was valid during the read: x86-64 keeps the
        // order of loads.
        word(place.entry_at) == place.entry
    }
}

#[inline(always)]
fn is_in_one_page(address: u64, bytes: u64) -> bool {
    const PAGE: u64 = 1 << PAGE_BITS;
    address >> ADDRESS_BITS == 0 && (address & (PAGE - 1)) + bytes <= PAGE
}

/// Returns the address of the first page table of a task's memory; 0 if the task has none.
///
/// # Safety
/// The kernel can give addresses types.
#[inline(always)]
unsafe fn table_of(task: Task) -> u64 {
    // SAFETY: `task_struct` has this field, and `mm_struct` has the other one.
    unsafe {
        let memory = field::<*const u8>(task.0, TASK_MEMORY.load());
        if memory.is_null() { 0 } else { word(memory as u64 + u64::from(MEMORY_TABLE.load())) }
    }
}

/// Follows the page tables to an address's page.
///
/// If the kernel frees a table meanwhile, the walk reads whatever the memory then holds. Therefore
/// the caller reads the last entry again after it has read the page.
///
/// # Safety
/// The kernel can give addresses types.
#[inline(always)]
unsafe fn place(table: u64, mapping: u64, address: u64) -> Option<Place> {
    // SAFETY: by the contract. If the memory is no table any more, a load faults and gives 0, or
    // gives an entry that the caller's second look refutes.
    unsafe {
        let mut table = table;
        if HAS_FIFTH_LEVEL.load() != 0 {
            // An address of at most `ADDRESS_BITS` bits uses the first entry of the first table.
            table = next(word(table), mapping)?;
        }
        let mut shift = PAGE_BITS + 3 * TABLE_BITS;
        loop {
            let index = address >> shift & ((1 << TABLE_BITS) - 1);
            let entry_at = table + index * size_of::<u64>() as u64;
            let entry = word(entry_at);
            if shift == PAGE_BITS || entry & LARGE != 0 && shift < PAGE_BITS + 3 * TABLE_BITS {
                if !is_usable(entry) {
                    return None;
                }
                let within = (1 << shift) - 1;
                let address = mapping + (entry & FRAME & !within | address & within);
                return Some(Place { address, entry_at, entry });
            }
            table = next(entry, mapping)?;
            shift -= TABLE_BITS;
        }
    }
}

/// Returns the address of the table that an entry leads to.
#[inline(always)]
fn next(entry: u64, mapping: u64) -> Option<u64> {
    is_usable(entry).then_some(mapping + (entry & FRAME))
}

#[inline(always)]
fn is_usable(entry: u64) -> bool {
    entry & (USABLE | SPECIAL | BEYOND) == USABLE
}

/// Reads a word of 8 bytes of the kernel's memory; 0 if no memory is there.
///
/// # Safety
/// The kernel can give addresses types.
#[inline(always)]
unsafe fn word(address: u64) -> u64 {
    // SAFETY: by the contract the address gets a type; a faulting load of that kind gives 0.
    unsafe { field(cast(address as *const u8, WORD_TYPE.load()), 0) }
}

/// Tests one candidate for the beginning of the kernel's mapping. The controller runs this program
/// directly; it is attached to nothing.
///
/// The candidate lies `below` steps under the step that holds the caller's first page table. The
/// candidate is right if the caller's `address` holds `number` when read through it. If so, the
/// program stores the candidate in `MAPPING`.
///
/// The function is declared without aya's attribute, because the attribute replaces the return
/// value by 0, and the controller needs the value.
#[unsafe(no_mangle)]
#[unsafe(link_section = "raw_tp")]
pub extern "C" fn find_mapping(context: *mut c_void) -> i32 {
    let context = RawTracePointContext::new(context);
    let [below, address, number] = [0, 1, 2].map(|index| context.arg::<u64>(index));
    if WORD_TYPE.load() == 0 || !is_in_one_page(address, size_of::<u64>() as u64) {
        return mapping::NOT_THERE;
    }
    // SAFETY: the check above shows that the kernel can give addresses types.
    unsafe {
        let table = table_of(Task::current());
        let begin = (table & !(mapping::STEP - 1)).wrapping_sub(below.wrapping_mul(mapping::STEP));
        match place(table, begin, address) {
            Some(place) if word(place.address) == number => {
                MAPPING.0.get().write_volatile(begin);
                mapping::FOUND
            }
            _ => mapping::NOT_THERE,
        }
    }
}
