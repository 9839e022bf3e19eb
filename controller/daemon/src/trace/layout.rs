//! Names of the commands of NVIDIA's devices, and the layouts of their arguments.
//!
//! Names, numbers and layouts are facts from NVIDIA's published open-gpu-kernel-modules, release
//! 595.45.04. The files are `nv-ioctl-numbers.h`, `nv-ioctl.h`, `nv_escape.h`, `nvos.h`,
//! `nv-unix-nvos-params-wrappers.h`, `uvm_ioctl.h`, `uvm_linux_ioctl.h`, `nvkms-ioctl.h` and
//! `nvkms-api.h`.
//!
//! A driver of another release can use another layout. If the argument's size differs, `deepres
//! trace` shows no fields.

use deepres_abi::probe::Family;

/// Type of a field. The type also says how `deepres trace` shows the field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// 32 bits, decimal.
    U32,
    /// 32 bits, signed: a descriptor or a NUMA node.
    I32,
    /// 64 bits, decimal: lengths, counts.
    U64,
    /// 32 bits, hexadecimal: handles, flags.
    Hex32,
    /// 64 bits, hexadecimal: addresses.
    Hex64,
    /// The number of an object's class.
    Class,
    /// The number of a control command.
    Control,
    /// The number of the escape (an ioctl of the resource manager) that `NV_ESC_IOCTL_XFER_CMD`
    /// carries.
    Escape,
    /// The number of a command for displays (`/dev/nvidia-modeset`).
    Display,
    /// A GPU's UUID.
    Uuid,
}

impl Kind {
    /// Returns the field's size, bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::U32
            | Self::I32
            | Self::Hex32
            | Self::Class
            | Self::Control
            | Self::Escape
            | Self::Display => 4,
            Self::U64 | Self::Hex64 => 8,
            Self::Uuid => 16,
        }
    }
}

/// A field of a command's argument: its name, place and type.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// The field's name.
    pub name: &'static str,
    /// Offset in the argument, bytes.
    pub at: usize,
    /// The field's type.
    pub kind: Kind,
}

/// A command of NVIDIA's devices (an ioctl), and the layout of its argument.
#[derive(Debug, Clone, Copy)]
pub struct Command {
    /// Number within the family. In the usual encoding of ioctl numbers, this is the low byte. In
    /// any other encoding, this is the whole number.
    pub number: u32,
    /// The command's name.
    pub name: &'static str,
    /// Size of the argument, bytes; 0 if it varies.
    pub bytes: usize,
    /// The main fields.
    pub fields: &'static [Field],
    /// Offset in the argument at which the driver writes its own status, bytes; `None` if the
    /// command has no such status.
    pub status: Option<usize>,
    /// The amount of memory that the call concerns.
    pub amount: Option<Amount>,
}

/// The place of an amount of memory in an argument, and the effect of the call on the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// The call maps or moves memory. The value is the offset of the number of bytes.
    Mapped(usize),
    /// The call requests memory. The value is the offset of the field that holds the last byte's
    /// offset.
    AllocatedUpTo(usize),
    /// A function number in the argument of the ioctl decides whether the call maps, requests or
    /// frees memory.
    ByFunction,
    /// The class in the argument decides what the call does. The amount is in further arguments
    /// behind an address.
    ByClass,
}

/// Makes a list of fields. A field reads `name: kind @ offset`.
macro_rules! fields {
    ({ $($name:ident: $kind:ident @ $at:literal),* }) => {
        &[$(Field { name: stringify!($name), at: $at, kind: Kind::$kind }),*]
    };
    ($shared:ident) => { $shared };
}

/// Makes a list of commands. A command reads `number name bytes fields`. If the driver returns a
/// status, or if the call concerns memory, `status` or `amount` follows.
macro_rules! commands {
    ($(
        $number:literal $name:ident $bytes:literal $fields:tt
        $(status $status:literal)? $(amount $amount:ident $(($amount_at:literal))?)?;
    )*) => {
        &[$(Command {
            number: $number,
            name: stringify!($name),
            bytes: $bytes,
            fields: fields!($fields),
            status: first!($(Some($status),)? None),
            amount: first!($(Some(Amount::$amount $(($amount_at))?),)? None),
        }),*]
    };
}

/// Returns the first of its arguments.
macro_rules! first {
    ($first:expr $(, $rest:expr)*) => {
        $first
    };
}

/// Escapes of `/dev/nvidiactl` and `/dev/nvidiaN`, by number.
const RM: &[Command] = commands! {
    0x27 NV_ESC_RM_ALLOC_MEMORY 56 {
        root: Hex32 @ 0, parent: Hex32 @ 4, object: Hex32 @ 8, class: Class @ 12, flags: Hex32 @ 16,
        memory: Hex64 @ 24, limit: U64 @ 32, fd: I32 @ 48
    } status 40 amount AllocatedUpTo(32);
    0x28 NV_ESC_RM_ALLOC_OBJECT 20 {
        root: Hex32 @ 0, parent: Hex32 @ 4, object: Hex32 @ 8, class: Class @ 12
    } status 16;
    0x29 NV_ESC_RM_FREE 16 { root: Hex32 @ 0, parent: Hex32 @ 4, object: Hex32 @ 8 } status 12;
    0x2a NV_ESC_RM_CONTROL 32 {
        client: Hex32 @ 0, object: Hex32 @ 4, cmd: Control @ 8, flags: Hex32 @ 12, size: U32 @ 24
    } status 28;
    0x2b NV_ESC_RM_ALLOC 48 {
        root: Hex32 @ 0, parent: Hex32 @ 4, object: Hex32 @ 8, class: Class @ 12, size: U32 @ 32,
        flags: Hex32 @ 36
    } status 40 amount ByClass;
    0x34 NV_ESC_RM_DUP_OBJECT 28 {
        client: Hex32 @ 0, parent: Hex32 @ 4, object: Hex32 @ 8, from_client: Hex32 @ 12, from: Hex32 @ 16,
        flags: Hex32 @ 20
    } status 24;
    0x35 NV_ESC_RM_SHARE 24 { client: Hex32 @ 0, object: Hex32 @ 4 } status 20;
    0x39 NV_ESC_RM_I2C_ACCESS 32 { client: Hex32 @ 0, device: Hex32 @ 4, size: U32 @ 8 } status 24;
    0x41 NV_ESC_RM_IDLE_CHANNELS 56 {
        client: Hex32 @ 0, device: Hex32 @ 4, channel: Hex32 @ 8, channels: U32 @ 12, flags: Hex32 @ 40,
        timeout: U32 @ 44
    } status 48;
    0x4a NV_ESC_RM_VID_HEAP_CONTROL 184 {
        root: Hex32 @ 0, parent: Hex32 @ 4, function: U32 @ 8, va_space: Hex32 @ 12, total: U64 @ 24,
        free: U64 @ 32
    } status 20 amount ByFunction;
    0x4d NV_ESC_RM_ACCESS_REGISTRY 72 {
        client: Hex32 @ 0, object: Hex32 @ 4, access: U32 @ 8, entry: U32 @ 60
    } status 64;
    0x4e NV_ESC_RM_MAP_MEMORY 56 {
        client: Hex32 @ 0, device: Hex32 @ 4, memory: Hex32 @ 8, offset: Hex64 @ 16, length: U64 @ 24,
        address: Hex64 @ 32, flags: Hex32 @ 44, fd: I32 @ 48
    } status 40 amount Mapped(24);
    0x4f NV_ESC_RM_UNMAP_MEMORY 32 {
        client: Hex32 @ 0, device: Hex32 @ 4, memory: Hex32 @ 8, address: Hex64 @ 16, flags: Hex32 @ 28
    } status 24;
    0x52 NV_ESC_RM_GET_EVENT_DATA 16 { event: Hex64 @ 0, more: U32 @ 8 } status 12;
    0x54 NV_ESC_RM_ALLOC_CONTEXT_DMA2 56 {
        parent: Hex32 @ 0, subdevice: Hex32 @ 4, object: Hex32 @ 8, class: Class @ 12, flags: Hex32 @ 16,
        memory: Hex32 @ 24, offset: Hex64 @ 32, limit: U64 @ 40
    } status 48;
    0x56 NV_ESC_RM_ADD_VBLANK_CALLBACK 56 {
        client: Hex32 @ 0, device: Hex32 @ 4, vblank: Hex32 @ 8
    } status 52;
    0x57 NV_ESC_RM_MAP_MEMORY_DMA 64 {
        client: Hex32 @ 0, device: Hex32 @ 4, dma: Hex32 @ 8, memory: Hex32 @ 12, offset: Hex64 @ 16,
        length: U64 @ 24, flags: Hex32 @ 32, dma_offset: Hex64 @ 48
    } status 56 amount Mapped(24);
    0x58 NV_ESC_RM_UNMAP_MEMORY_DMA 48 {
        client: Hex32 @ 0, device: Hex32 @ 4, dma: Hex32 @ 8, memory: Hex32 @ 12, flags: Hex32 @ 16,
        dma_offset: Hex64 @ 24, size: U64 @ 32
    } status 40;
    0x59 NV_ESC_RM_BIND_CONTEXT_DMA 16 { client: Hex32 @ 0, channel: Hex32 @ 4, dma: Hex32 @ 8 } status 12;
    0x5c NV_ESC_RM_EXPORT_OBJECT_TO_FD 0 {};
    0x5d NV_ESC_RM_IMPORT_OBJECT_FROM_FD 0 {};
    0x5e NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO 40 {
        client: Hex32 @ 0, device: Hex32 @ 4, memory: Hex32 @ 8, old: Hex64 @ 16, new: Hex64 @ 24
    } status 32;
    0x5f NV_ESC_RM_LOCKLESS_DIAGNOSTIC 0 {};
    200 NV_ESC_CARD_INFO 0 {};
    201 NV_ESC_REGISTER_FD 4 { ctl_fd: I32 @ 0 };
    206 NV_ESC_ALLOC_OS_EVENT 16 { client: Hex32 @ 0, device: Hex32 @ 4, fd: I32 @ 8 } status 12;
    207 NV_ESC_FREE_OS_EVENT 16 { client: Hex32 @ 0, device: Hex32 @ 4, fd: I32 @ 8 } status 12;
    209 NV_ESC_STATUS_CODE 12 { domain: U32 @ 0 } status 8;
    210 NV_ESC_CHECK_VERSION_STR 72 { cmd: Hex32 @ 0, reply: U32 @ 4 };
    211 NV_ESC_IOCTL_XFER_CMD 16 { cmd: Escape @ 0, size: U32 @ 4, argument: Hex64 @ 8 };
    212 NV_ESC_ATTACH_GPUS_TO_FD 0 { gpu_id: U32 @ 0 };
    213 NV_ESC_QUERY_DEVICE_INTR 8 { interrupts: Hex32 @ 0 } status 4;
    214 NV_ESC_SYS_PARAMS 8 { memblock: U64 @ 0 };
    217 NV_ESC_EXPORT_TO_DMABUF_FD 2608 {
        fd: I32 @ 0, client: Hex32 @ 4, objects: U32 @ 8, size: U64 @ 24
    } status 2600;
    218 NV_ESC_WAIT_OPEN_COMPLETE 8 { rc: I32 @ 0, adapter_status: Hex32 @ 4 };
};

const RANGE: &[Field] = fields!({ base: Hex64 @ 0, length: U64 @ 8 });
const RANGE_OF_GPU: &[Field] = fields!({ base: Hex64 @ 0, length: U64 @ 8, gpu: Uuid @ 16 });
const GPU: &[Field] = fields!({ gpu: Uuid @ 0 });
const GPUS: &[Field] = fields!({ gpu: Uuid @ 0, other: Uuid @ 16 });
const GROUP: &[Field] = fields!({ group: U64 @ 0 });
const TYPES: &[Field] = fields!({ types: Hex64 @ 0 });
const TABLE: &[Field] = fields!({ table: Hex64 @ 0 });
const REMOTE: &[Field] = fields!({ buffer: Hex64 @ 0, size: U64 @ 8, address: Hex64 @ 16, done: U64 @ 24 });
const TRACKER: &[Field] = fields!({ queue: Hex64 @ 0, size: U64 @ 8, control: Hex64 @ 16, gpu: Uuid @ 24 });

/// Commands of `/dev/nvidia-uvm`, by number. Their ioctl numbers are plain, without the usual
/// encoding.
const UVM: &[Command] = commands! {
    1 UVM_RESERVE_VA 24 RANGE status 16 amount Mapped(8);
    2 UVM_RELEASE_VA 24 RANGE status 16;
    3 UVM_REGION_COMMIT 48 RANGE status 40;
    4 UVM_REGION_DECOMMIT 24 RANGE status 16;
    5 UVM_REGION_SET_STREAM 48 RANGE status 40;
    6 UVM_SET_STREAM_RUNNING 16 { stream: Hex64 @ 0 } status 8;
    7 UVM_SET_STREAM_STOPPED 272 {} status 264;
    10 UVM_ADD_SESSION 8 { pid: U32 @ 0 } status 4;
    12 UVM_ENABLE_COUNTERS 0 {};
    13 UVM_MAP_COUNTER 40 { scope: U32 @ 0, counter: U32 @ 4, gpu: Uuid @ 8 } status 32;
    14 UVM_CREATE_EVENT_QUEUE 40 { queue: U32 @ 0, size: U64 @ 8 } status 36;
    15 UVM_REMOVE_EVENT_QUEUE 8 { queue: U32 @ 0 } status 4;
    16 UVM_MAP_EVENT_QUEUE 56 { queue: U32 @ 0 } status 48;
    17 UVM_EVENT_CTRL 16 { queue: U32 @ 0, type: I32 @ 4, enable: U32 @ 8 } status 12;
    20 UVM_GET_GPU_UUID_TABLE 0 {};
    23 UVM_CREATE_RANGE_GROUP 16 GROUP status 8;
    24 UVM_DESTROY_RANGE_GROUP 16 GROUP status 8;
    25 UVM_REGISTER_GPU_VASPACE 32 {
        gpu: Uuid @ 0, ctl_fd: I32 @ 16, client: Hex32 @ 20, va_space: Hex32 @ 24
    } status 28;
    26 UVM_UNREGISTER_GPU_VASPACE 20 GPU status 16;
    27 UVM_REGISTER_CHANNEL 56 {
        gpu: Uuid @ 0, ctl_fd: I32 @ 16, client: Hex32 @ 20, channel: Hex32 @ 24, base: Hex64 @ 32,
        length: U64 @ 40
    } status 48 amount Mapped(40);
    28 UVM_UNREGISTER_CHANNEL 12 { client: Hex32 @ 0, channel: Hex32 @ 4 } status 8;
    29 UVM_ENABLE_PEER_ACCESS 36 GPUS status 32;
    30 UVM_DISABLE_PEER_ACCESS 36 GPUS status 32;
    31 UVM_SET_RANGE_GROUP 32 { group: U64 @ 0, base: Hex64 @ 8, length: U64 @ 16 } status 24;
    33 UVM_MAP_EXTERNAL_ALLOCATION 0 {
        base: Hex64 @ 0, length: U64 @ 8, offset: Hex64 @ 16, gpu: Uuid @ 24
    } amount Mapped(8);
    34 UVM_FREE 16 { base: Hex64 @ 0 } status 8;
    35 UVM_MEM_MAP 24 RANGE status 16 amount Mapped(8);
    37 UVM_REGISTER_GPU 40 {
        gpu: Uuid @ 0, numa_node: I32 @ 20, ctl_fd: I32 @ 24, client: Hex32 @ 28
    } status 36;
    38 UVM_UNREGISTER_GPU 20 GPU status 16;
    39 UVM_PAGEABLE_MEM_ACCESS 8 {} status 4;
    40 UVM_PREVENT_MIGRATION_RANGE_GROUPS 272 {} status 264;
    41 UVM_ALLOW_MIGRATION_RANGE_GROUPS 272 {} status 264;
    42 UVM_SET_PREFERRED_LOCATION 40 {
        base: Hex64 @ 0, length: U64 @ 8, gpu: Uuid @ 16, numa_node: I32 @ 32
    } status 36;
    43 UVM_UNSET_PREFERRED_LOCATION 24 RANGE status 16;
    44 UVM_ENABLE_READ_DUPLICATION 24 RANGE status 16;
    45 UVM_DISABLE_READ_DUPLICATION 24 RANGE status 16;
    46 UVM_SET_ACCESSED_BY 40 RANGE_OF_GPU status 32;
    47 UVM_UNSET_ACCESSED_BY 40 RANGE_OF_GPU status 32;
    51 UVM_MIGRATE 80 {
        base: Hex64 @ 0, length: U64 @ 8, to: Uuid @ 16, flags: Hex32 @ 32
    } status 72 amount Mapped(8);
    53 UVM_MIGRATE_RANGE_GROUP 32 { group: U64 @ 0, to: Uuid @ 8 } status 24;
    56 UVM_TOOLS_INIT_EVENT_TRACKER 56 TRACKER status 48;
    57 UVM_TOOLS_SET_NOTIFICATION_THRESHOLD 8 { threshold: U32 @ 0 } status 4;
    58 UVM_TOOLS_EVENT_QUEUE_ENABLE_EVENTS 16 TYPES status 8;
    59 UVM_TOOLS_EVENT_QUEUE_DISABLE_EVENTS 16 TYPES status 8;
    60 UVM_TOOLS_ENABLE_COUNTERS 16 TYPES status 8;
    61 UVM_TOOLS_DISABLE_COUNTERS 16 TYPES status 8;
    62 UVM_TOOLS_READ_PROCESS_MEMORY 40 REMOTE status 32;
    63 UVM_TOOLS_WRITE_PROCESS_MEMORY 40 REMOTE status 32;
    64 UVM_TOOLS_GET_PROCESSOR_UUID_TABLE 16 TABLE status 8;
    65 UVM_MAP_DYNAMIC_PARALLELISM_REGION 40 RANGE_OF_GPU status 32 amount Mapped(8);
    66 UVM_UNMAP_EXTERNAL 40 RANGE_OF_GPU status 32;
    67 UVM_TOOLS_FLUSH_EVENTS 4 {} status 0;
    68 UVM_ALLOC_SEMAPHORE_POOL 0 RANGE_OF_GPU amount Mapped(8);
    69 UVM_CLEAN_UP_ZOMBIE_RESOURCES 4 {} status 0;
    70 UVM_PAGEABLE_MEM_ACCESS_ON_GPU 24 GPU status 20;
    71 UVM_POPULATE_PAGEABLE 24 {
        base: Hex64 @ 0, length: U64 @ 8, flags: Hex32 @ 16
    } status 20 amount Mapped(8);
    72 UVM_VALIDATE_VA_RANGE 24 RANGE status 16;
    73 UVM_CREATE_EXTERNAL_RANGE 24 RANGE status 16 amount Mapped(8);
    74 UVM_MAP_EXTERNAL_SPARSE 40 RANGE_OF_GPU status 32 amount Mapped(8);
    75 UVM_MM_INITIALIZE 8 { uvm_fd: I32 @ 0 } status 4;
    76 UVM_TOOLS_INIT_EVENT_TRACKER_V2 56 TRACKER status 48;
    77 UVM_TOOLS_GET_PROCESSOR_UUID_TABLE_V2 16 TABLE status 8;
    78 UVM_ALLOC_DEVICE_P2P 56 {
        base: Hex64 @ 0, length: U64 @ 8, offset: Hex64 @ 16, gpu: Uuid @ 24, ctl_fd: I32 @ 40,
        client: Hex32 @ 44, memory: Hex32 @ 48
    } status 52 amount Mapped(8);
    79 UVM_CLEAR_ALL_ACCESS_COUNTERS 4 {} status 0;
    80 UVM_DISCARD 32 { base: Hex64 @ 0, length: U64 @ 8, flags: Hex64 @ 16 } status 24;
    2047 UVM_IS_8_SUPPORTED 8 { supported: U32 @ 0 } status 4;
    0x3000_0001 UVM_INITIALIZE 16 { flags: Hex64 @ 0 } status 8;
    0x3000_0002 UVM_DEINITIALIZE 0 {};
};

/// Commands of `/dev/nvidia-modeset`: one command that carries all others.
const MODESET: &[Command] = commands! {
    0 NVKMS_IOCTL 16 { cmd: Display @ 0, size: U32 @ 4, argument: Hex64 @ 8 };
};

/// Second byte of the resource manager's ioctl numbers.
const RM_MAGIC: u32 = b'F' as u32;
/// Second byte of the modesetting ioctl numbers.
const MODESET_MAGIC: u32 = b'm' as u32;

/// Returns all commands of a family.
pub const fn of_family(family: Family) -> &'static [Command] {
    match family {
        Family::Rm => RM,
        Family::Uvm => UVM,
        Family::Modeset => MODESET,
        Family::Other => &[],
    }
}

/// Returns the command that an ioctl number means; `None` if the number is unknown.
pub fn find(family: Family, ioctl: u32) -> Option<&'static Command> {
    let magic = ioctl >> 8 & 0xff;
    let number = match family {
        Family::Rm if magic == RM_MAGIC => ioctl & 0xff,
        Family::Modeset if magic == MODESET_MAGIC => ioctl & 0xff,
        Family::Uvm => ioctl,
        _ => return None,
    };
    by_number(family, number)
}

/// Returns the command with this number within the family; `None` if the number is unknown.
pub fn by_number(family: Family, number: u32) -> Option<&'static Command> {
    let commands = of_family(family);
    let index = commands.binary_search_by_key(&number, |command| command.number).ok()?;
    commands.get(index)
}

/// Returns the ioctl number of a command; `None` if the argument's size varies.
pub fn ioctl(family: Family, command: &Command) -> Option<u32> {
    /// Direction bits of an ioctl number: read and written, as for all these commands.
    const BOTH_WAYS: u32 = 3 << 30;
    let encode = |magic| {
        (command.bytes != 0).then_some(BOTH_WAYS | (command.bytes as u32) << 16 | magic << 8 | command.number)
    };
    match family {
        Family::Rm => encode(RM_MAGIC),
        Family::Modeset => encode(MODESET_MAGIC),
        Family::Uvm => Some(command.number),
        Family::Other => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAMILIES: [Family; 4] = [Family::Rm, Family::Uvm, Family::Modeset, Family::Other];

    #[test]
    fn commands_are_in_order_and_their_fields_inside_their_arguments() {
        for family in FAMILIES {
            let commands = of_family(family);
            assert!(commands.is_sorted_by(|a, b| a.number < b.number), "{family:?}");
            for command in commands.iter().filter(|command| command.bytes != 0) {
                let ends = command.fields.iter().map(|field| field.at + field.kind.bytes());
                let ends = ends.chain(command.status.map(|at| at + 4)).chain(match command.amount {
                    Some(Amount::Mapped(at) | Amount::AllocatedUpTo(at)) => Some(at + 8),
                    _ => None,
                });
                assert!(ends.max().unwrap_or(0) <= command.bytes, "{}", command.name);
                let read = command.status.into_iter().chain(match command.amount {
                    Some(Amount::Mapped(at) | Amount::AllocatedUpTo(at)) => Some(at),
                    _ => None,
                });
                assert!(
                    read.into_iter().all(|at| at % 4 == 0),
                    "{}: the eBPF programs read words",
                    command.name
                );
                for field in command.fields.iter().filter(|field| field.kind != Kind::Uuid) {
                    assert_eq!(field.at % field.kind.bytes(), 0, "{}.{}", command.name, field.name);
                }
            }
        }
    }

    /// Number, name and size of each argument, then the places of the shown data: the fields, the
    /// driver's status and an amount, in this order.
    const PUBLISHED: &str = include_str!("layout/published.txt");

    #[test]
    fn arguments_are_laid_out_as_nvidia_publishes_them() {
        let mut published: Vec<&str> = PUBLISHED.lines().filter(|line| !line.starts_with('#')).collect();
        let mut unpublished = Vec::new();
        for command in FAMILIES.into_iter().flat_map(of_family) {
            let is_its = |line: &&str| line.split(' ').nth(1) == Some(command.name);
            let Some(at) = published.iter().position(is_its) else {
                unpublished.push(command.name);
                assert_eq!(
                    (command.bytes, command.status, command.amount),
                    (0, None, None),
                    "{}",
                    command.name
                );
                continue;
            };
            let line = published.swap_remove(at);
            let mut words = line.split(' ');
            let mut number = || words.next().unwrap();
            assert_eq!(u32::from_str_radix(number(), 16), Ok(command.number), "{line}");
            assert_eq!(number(), command.name);
            let bytes: usize = number().parse().unwrap();
            // If an argument's size depends on the driver's maximum of GPUs, only its beginning is
            // known.
            assert!(command.bytes == bytes || command.bytes == 0 && command.status.is_none(), "{line}");
            let places = words.map(|word| {
                let (_, place) = word.split_once('@').unwrap();
                let (at, bytes) = place.split_once(':').unwrap();
                (at.parse::<usize>().unwrap(), bytes.parse::<usize>().unwrap())
            });
            let shown = command.fields.iter().map(|field| (field.at, field.kind.bytes()));
            let shown = shown.chain(command.status.map(|at| (at, 4))).chain(match command.amount {
                Some(Amount::Mapped(at) | Amount::AllocatedUpTo(at)) => Some((at, 8)),
                _ => None,
            });
            assert_eq!(shown.collect::<Vec<_>>(), places.collect::<Vec<_>>(), "{line}");
        }
        assert_eq!(published, [""; 0], "commands that are not known");
        assert_eq!(
            unpublished,
            [
                "NV_ESC_RM_EXPORT_OBJECT_TO_FD",
                "NV_ESC_RM_IMPORT_OBJECT_FROM_FD",
                "NV_ESC_RM_LOCKLESS_DIAGNOSTIC",
                "NV_ESC_CARD_INFO",
                "NV_ESC_ATTACH_GPUS_TO_FD",
                "UVM_DEINITIALIZE"
            ],
            "those without an argument of a size of their own"
        );
    }

    #[test]
    fn the_kernel_programs_read_allocations_where_nvidia_publishes_their_fields() {
        use deepres_abi::probe::{heap, object};
        const WORD: usize = 8;
        // NVOS64_PARAMETERS: hClass, pAllocParms, status; NV_MEMORY_ALLOCATION_PARAMS: size.
        let at = (object::CLASS_WORD * WORD + 4, object::PARAMETERS_WORD * WORD, object::STATUS_WORD * WORD);
        assert_eq!((at, object::SIZE_AT, object::WORDS * WORD), ((12, 16, 40), 64, 48));
        // NVOS32_PARAMETERS: function, status, data.AllocSize.size, data.AllocSizeRange.size.
        let at = (heap::FUNCTION_WORD * WORD, heap::STATUS_WORD * WORD + 4);
        assert_eq!((at, heap::SIZE_WORD * WORD, heap::RANGE_SIZE_WORD * WORD), ((8, 20), 88, 80));
        assert_eq!((heap::ALLOC_SIZE, heap::ALLOC_SIZE_RANGE), (2, 14));
    }

    #[test]
    fn numbers_come_back_as_the_commands_they_are_of() {
        for family in FAMILIES {
            for command in of_family(family) {
                let Some(ioctl) = ioctl(family, command) else { continue };
                assert_eq!(find(family, ioctl).map(|found| found.name), Some(command.name));
            }
        }
        // Numbers that strace shows for a CUDA program.
        assert_eq!(find(Family::Rm, 0xc020_462a).unwrap().name, "NV_ESC_RM_CONTROL");
        assert_eq!(find(Family::Rm, 0xc030_462b).unwrap().name, "NV_ESC_RM_ALLOC");
        assert!(find(Family::Rm, 0x5401).is_none(), "a terminal's");
        assert!(find(Family::Other, 0xc020_462a).is_none());
    }
}
