//! A look at the memory of the current task's program.
//!
//! A helper of the kernel's takes 30 to 80 ns for one, whatever its size: most of that is switching off the processor's guard against such looks, and
//! on again. Where the kernel lets programs load from addresses by themselves (6.2), the bytes are loaded from the kernel's own
//! mapping of all memory instead, where that guard stands for nothing: the tables of the program's memory say at which place of it
//! they are. That takes some 10 ns. Whatever is not plain memory that the program has at this moment is left to the helper.
//!
//! Where the mapping begins is nowhere to be read. It is found by trying, with a number that the controller has in its own memory
//! ([`find_mapping`]); until it is, or where it cannot be (memory that is encrypted or not what it seems), the helper does everything.

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
/// The kernel's number of a struct that begins with a number of 64 bits; 0: it cannot give an address a type.
#[unsafe(no_mangle)]
static WORD_TYPE: Global<u32> = Global::new(0);
/// Whether tables have five levels, or four.
#[unsafe(no_mangle)]
static HAS_FIFTH_LEVEL: Global<u32> = Global::new(0);

/// Where the kernel's mapping of all memory begins; 0 until it is found.
static MAPPING: Found = Found(UnsafeCell::new(0));

/// A number that is written as a whole, before anybody needs it.
struct Found(UnsafeCell<u64>);

// SAFETY: it is read and written as one word, for which this machine's compiler has no atomic type.
unsafe impl Sync for Found {}

/// Bits of an address that say which byte of a page, and which entry of a table.
const PAGE_BITS: u32 = 12;
const TABLE_BITS: u32 = 9;
/// Programs' addresses with tables of four levels; with five, what is below is at the same places.
const ADDRESS_BITS: u32 = 47;
/// Of an entry: it is there, and the program may use it.
const USABLE: u64 = 1 | 1 << 2;
/// A page of its own, larger than others, and no further table.
const LARGE: u64 = 1 << 7;
/// A device's memory, or anything else that is none of the kernel's pages.
const SPECIAL: u64 = 1 << 9;
/// Bits of an address that are beyond all memory: an entry with one of them is a page that is encrypted or shared with a hypervisor.
const BEYOND: u64 = 0x000f_c000_0000_0000;
/// The address in an entry.
const FRAME: u64 = 0x0000_3fff_ffff_f000;

/// A place of the program's memory, in the kernel's mapping.
struct Place {
    address: u64,
    /// What says so: an entry of a table.
    entry_at: u64,
    entry: u64,
}

/// Reads what an address of the program's has, some words of 8 bytes or one of 4; `false` if it cannot be read.
///
/// # Safety
/// `to` has room for it, and `T` is a `u32` or some `u64`.
#[inline(always)]
pub unsafe fn read<T>(task: Task, address: u64, to: *mut T) -> bool {
    // SAFETY: by the contract; the helper answers an error for what cannot be read.
    unsafe {
        load(task, address, to)
            || bpf_probe_read_user(to.cast(), size_of::<T>() as u32, address as *const _) == 0
    }
}

/// # Safety
/// As for [`read`].
#[inline(always)]
unsafe fn load<T>(task: Task, address: u64, to: *mut T) -> bool {
    // SAFETY: it lives for ever, and is one word.
    let mapping = unsafe { MAPPING.0.get().read_volatile() };
    if WORD_TYPE.load() == 0 || mapping == 0 || !is_in_one_page(address, size_of::<T>() as u64) {
        return false;
    }
    // SAFETY: by the contract there is room.
    unsafe {
        let Some(place) = place(table_of(task), mapping, address) else { return false };
        if size_of::<T>() == size_of::<u32>() {
            to.cast::<u32>().write(field(cast(place.address as *const u8, WORD_TYPE.load()), 0));
        }
        for index in 0..size_of::<T>() / size_of::<u64>() {
            let from = place.address + (index * size_of::<u64>()) as u64;
            to.cast::<u64>().add(index).write(word(from));
        }
        // If it is still there it was when it was read: the machine keeps the order of loads.
        word(place.entry_at) == place.entry
    }
}

#[inline(always)]
fn is_in_one_page(address: u64, bytes: u64) -> bool {
    const PAGE: u64 = 1 << PAGE_BITS;
    address >> ADDRESS_BITS == 0 && (address & (PAGE - 1)) + bytes <= PAGE
}

/// The first of the tables of a task's memory.
///
/// # Safety
/// The kernel gives types.
#[inline(always)]
unsafe fn table_of(task: Task) -> u64 {
    // SAFETY: a task has this field, and its memory has the other; without memory it is 0.
    unsafe {
        let memory = field::<*const u8>(task.0, TASK_MEMORY.load());
        if memory.is_null() { 0 } else { word(memory as u64 + u64::from(MEMORY_TABLE.load())) }
    }
}

/// Follows the tables to an address's page. One that is freed meanwhile is read as whatever it is by then; that is why its entry is looked at once more
/// after what it leads to was read.
///
/// # Safety
/// The kernel gives types.
#[inline(always)]
unsafe fn place(table: u64, mapping: u64, address: u64) -> Option<Place> {
    // SAFETY: by the contract; what is no table is read as one, and faults or says something that is not believed.
    unsafe {
        let mut table = table;
        if HAS_FIFTH_LEVEL.load() != 0 {
            // Of the first table's entries all that have no bit of `ADDRESS_BITS` are the first.
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

/// Where an entry's table is.
#[inline(always)]
fn next(entry: u64, mapping: u64) -> Option<u64> {
    is_usable(entry).then_some(mapping + (entry & FRAME))
}

#[inline(always)]
fn is_usable(entry: u64) -> bool {
    entry & (USABLE | SPECIAL | BEYOND) == USABLE
}

/// A word of 8 bytes of the kernel's memory; 0 where there is none.
///
/// # Safety
/// The kernel gives types.
#[inline(always)]
unsafe fn word(address: u64) -> u64 {
    // SAFETY: by the contract; such a load that faults is 0.
    unsafe { field(cast(address as *const u8, WORD_TYPE.load()), 0) }
}

/// Run by the controller, and attached to nothing: whether the kernel's mapping begins so many steps below the one in which the caller's first table is,
/// which it does if an address of the caller's has this number there. If so, that is where it begins from now on.
///
/// What it returns reaches the controller, which aya's attribute for such programs would replace by 0.
#[unsafe(no_mangle)]
#[unsafe(link_section = "raw_tp")]
pub extern "C" fn find_mapping(context: *mut c_void) -> i32 {
    let context = RawTracePointContext::new(context);
    let [below, address, number] = [0, 1, 2].map(|index| context.arg::<u64>(index));
    if WORD_TYPE.load() == 0 || !is_in_one_page(address, size_of::<u64>() as u64) {
        return mapping::NOT_THERE;
    }
    // SAFETY: the kernel gives types.
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
