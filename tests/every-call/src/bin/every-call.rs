//! Calls every driver function that deepres hooks, found by `dlsym`, with arguments that can be
//! told apart.
//!
//! `every-call exact` runs on the recording driver. Each function must arrive once with unchanged
//! arguments, and its result must come back: success, and a code that no driver has.
//!
//! `every-call rules` prints rules for SIMGPU_FAULTS. With them a simulated driver answers each
//! function with each error that the function's reference names. With the rules set, `every-call
//! errors` calls each function as often and prints the answers.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_void};
use std::io::Read as _;

use anyhow::{Context as _, Result, bail, ensure};
use deepres_abi::driver::result::{CUDA_SUCCESS, CUresult};
use deepres_abi::driver::types::*;
use deepres_abi::driver::{ApiId, pfn};
use deepres_abi::forwarded;
use libloading::os::unix::{Library, RTLD_NOW};

#[path = "../record.rs"]
mod record;
use record::Record;

/// A code that no version of the driver has.
const UNKNOWN_CODE: CUresult = 98_765;
/// Number of words that each pointer points to. No structure of the driver has as many.
const ROOM_WORDS: usize = 1024;
/// Number of places for arguments. No function has as many.
const SLOTS: usize = 16;

/// The memory that pointers point to, one place for each argument.
struct Room(UnsafeCell<[[u64; ROOM_WORDS]; SLOTS]>);
// SAFETY: the program has one thread, and deepres reads arguments on that thread alone.
unsafe impl Sync for Room {}
static ROOM: Room = Room(UnsafeCell::new([[0; ROOM_WORDS]; SLOTS]));

impl Room {
    fn place(&self, slot: usize) -> *mut c_void {
        // SAFETY: the index is below SLOTS, so the pointer is inside the array.
        unsafe { self.0.get().cast::<[u64; ROOM_WORDS]>().add(slot % SLOTS).cast() }
    }

    fn clear(&self) {
        // SAFETY: no call is in progress, so no other code uses the memory.
        unsafe { self.0.get().write([[0; ROOM_WORDS]; SLOTS]) };
    }
}

/// A type with a value for each place among the arguments.
trait Make {
    fn make(slot: usize) -> Self;
}

impl<T> Make for *mut T {
    fn make(slot: usize) -> Self {
        ROOM.place(slot).cast()
    }
}

impl<T> Make for *const T {
    fn make(slot: usize) -> Self {
        ROOM.place(slot).cast_const().cast()
    }
}

macro_rules! make {
    ($($ty:ty: |$slot:ident| $value:expr;)+) => {
        $(impl Make for $ty {
            fn make($slot: usize) -> Self {
                $value
            }
        })+
    };
}

/// Returns a value in which every byte shows the argument's place.
fn filled<T>(slot: usize) -> T {
    let mut value = std::mem::MaybeUninit::<T>::uninit();
    // SAFETY: the types below are plain numbers, which are valid with any bytes.
    unsafe {
        std::ptr::write_bytes(value.as_mut_ptr().cast::<u8>(), slot as u8 + 1, size_of::<T>());
        value.assume_init()
    }
}

make! {
    u8: |slot| slot as u8 + 1;
    u16: |slot| slot as u16 + 1;
    u32: |slot| slot as u32 + 1;
    i32: |slot| slot as i32 + 1;
    u64: |slot| (slot as u64 + 1) << 12;
    usize: |slot| slot + 1;
    f32: |slot| slot as f32 + 0.5;
    CUipcMemHandle: |slot| filled(slot);
    CUipcEventHandle: |slot| filled(slot);
    CUmemLocation: |slot| filled(slot);
    CUeglFrame: |slot| filled(slot);
    // SAFETY: the pointer is not null, and no code calls it.
    CUhostFn: |slot| unsafe { std::mem::transmute::<*mut c_void, Self>(ROOM.place(slot)) };
    // SAFETY: the pointer is not null, and no code calls it.
    CUstreamCallback: |slot| unsafe { std::mem::transmute::<*mut c_void, Self>(ROOM.place(slot)) };
    // SAFETY: the pointer is not null, and no code calls it.
    CUoccupancyB2DSize: |slot| unsafe { std::mem::transmute::<*mut c_void, Self>(ROOM.place(slot)) };
}

macro_rules! expand {
    ($({ id: $id:literal, symbol: $symbol:ident, family: $family:literal, since: $since:literal, stream: $stream:ident, errors: $errors:tt, args: ($($argument:ident: $ty:ty),*) })*) => {
        /// Calls a function, records its arguments, and returns its result.
        ///
        /// # Safety
        /// `address` is the address of that function, in a driver that does not dereference these
        /// arguments.
        unsafe fn call(id: ApiId, address: *mut c_void, record: &mut Record) -> CUresult {
            match id {
                $(ApiId::$symbol => {
                    let mut _slot = 0_usize;
                    $(
                        let $argument = <$ty as Make>::make(_slot);
                        record.add(&$argument);
                        _slot += 1;
                    )*
                    // SAFETY: the caller promises that the address is that of this function. The
                    // type is the table's.
                    unsafe { std::mem::transmute::<*mut c_void, pfn::$symbol>(address)($($argument),*) }
                })*
            }
        }
    };
}
deepres_abi::for_each_driver_function!(expand);

/// The driver library of this process.
struct Driver(Library);

impl Driver {
    fn open() -> Result<Self> {
        // SAFETY: loading the driver runs its initialisers, as every client does.
        let library = unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW) };
        Ok(Self(library.context("no libcuda.so.1")?))
    }

    fn find(&self, symbol: &str) -> Result<*mut c_void> {
        // SAFETY: only the symbol's address is used.
        let found = unsafe { self.0.get::<*mut c_void>(symbol.as_bytes()) };
        let address = *found.with_context(|| format!("the driver has no {symbol}"))?;
        ensure!(!address.is_null(), "the driver has no {symbol}");
        Ok(address)
    }

    fn begin(&self) -> Result<()> {
        let mut record = Record::EMPTY;
        // SAFETY: the address is that of cuInit.
        let code = unsafe { call(ApiId::cuInit, self.find("cuInit")?, &mut record) };
        // The flags in the first call are not 0. A driver that checks flags refuses them, so the
        // second call passes 0.
        //
        // SAFETY: the address is that of cuInit, and the type is the table's.
        let init = unsafe { std::mem::transmute::<*mut c_void, pfn::cuInit>(self.find("cuInit")?) };
        // SAFETY: the function takes no pointers.
        ensure!(code == CUDA_SUCCESS || unsafe { init(0) } == CUDA_SUCCESS, "the driver does not begin");
        Ok(())
    }
}

/// Returns the library that contains an address.
fn library_of(address: *mut c_void) -> String {
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is valid for a write, and `dladdr` accepts any address.
    if unsafe { libc::dladdr(address, &mut info) } == 0 || info.dli_fname.is_null() {
        return String::new();
    }
    // SAFETY: the dynamic linker's name of a loaded library ends with a NUL.
    unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy().into_owned()
}

/// Returns the functions that deepres hooks or counts.
fn hooked() -> impl Iterator<Item = ApiId> {
    ApiId::ALL.into_iter().filter(|id| forwarded::reason(*id).is_none())
}

/// Returns the hooked functions to which the simulated driver gives errors. A rule counts all calls
/// of its function, and deepres itself looks functions up when a session begins.
fn failing() -> impl Iterator<Item = ApiId> {
    hooked().filter(|id| !matches!(id, ApiId::cuGetProcAddress | ApiId::cuGetProcAddress_v2))
}

fn exact(driver: &Driver) -> Result<()> {
    // SAFETY: the recording driver exports these symbols with these types.
    let (arm, read) = unsafe {
        (
            std::mem::transmute::<*mut c_void, extern "C" fn(u32, CUresult)>(driver.find("recording_arm")?),
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut Record)>(
                driver.find("recording_read")?,
            ),
        )
    };
    driver.begin()?;
    let (mut wrong, mut in_ours) = (Vec::new(), 0);
    for id in hooked() {
        let address = driver.find(id.symbol())?;
        in_ours += usize::from(library_of(address).contains("libdeepres"));
        for code in [UNKNOWN_CODE, CUDA_SUCCESS] {
            ROOM.clear();
            let (mut sent, mut came) = (Record::EMPTY, Record::EMPTY);
            arm(id as u32, code);
            // SAFETY: the address is that of the function. The recording driver dereferences no
            // argument of the armed function.
            let answer = unsafe { call(id, address, &mut sent) };
            // SAFETY: `came` is valid for a write.
            unsafe { read(&mut came) };
            if came.calls != 1 || came.arguments() != sent.arguments() || answer != code {
                wrong.push(format!(
                    "{}: arrived {} times, answered {answer} for {code}\n  sent {:?}\n  came {:?}",
                    id.symbol(),
                    came.calls,
                    sent.arguments(),
                    came.arguments()
                ));
            }
        }
    }
    arm(u32::MAX, CUDA_SUCCESS);
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("{} functions, {in_ours} of them hooks", hooked().count());
    Ok(())
}

fn rules() {
    let rules: Vec<String> = failing()
        .flat_map(|id| {
            // The first initialisation must succeed.
            let first = 1 + 2 * usize::from(id == ApiId::cuInit);
            id.documented_errors()
                .iter()
                .enumerate()
                .map(move |(nth, code)| format!("{}:{}:{code}", id.symbol(), nth + first))
        })
        .collect();
    println!("{}", rules.join(","));
}

fn errors(driver: &Driver) -> Result<()> {
    driver.begin()?;
    for id in failing() {
        let address = driver.find(id.symbol())?;
        for code in id.documented_errors() {
            ROOM.clear();
            let mut sent = Record::EMPTY;
            // SAFETY: the address is that of the function. The simulated driver answers with the
            // injected error before it reads arguments.
            let answer = unsafe { call(id, address, &mut sent) };
            println!("{} {code} {answer}", id.symbol());
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let what = std::env::args().nth(1).unwrap_or_default();
    match &*what {
        "rules" => {
            rules();
            return Ok(());
        }
        "exact" => exact(&Driver::open()?)?,
        "errors" => errors(&Driver::open()?)?,
        _ => bail!("usage: every-call exact|errors|rules"),
    }
    println!("end");
    std::io::stdin().read_to_end(&mut Vec::new()).context("standard input")?;
    Ok(())
}
