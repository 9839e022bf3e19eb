//! Turns an event of the kernel into readable form. The code trusts no record. The decoder reads a
//! field only if the field is present, makes each text harmless, and accepts any bytes.
//!
//! One thread decodes hundreds of thousands of events a second. Therefore an event stays in place,
//! and the code reads a field when it shows the field. Only texts with odd characters take memory.

use super::layout::{self, Command, Field, Kind};
use super::names::{CLASSES, CONTROLS, DISPLAYS, STATUSES};
use deepres_abi::probe::{Event, Family, NO_DESCRIPTOR, PAYLOAD_BYTES, encoded_bytes, major, minor};
use deepres_model::text::{harmless, is_harmful};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use zerocopy::FromBytes;

/// Results by which the kernel marks a call that a signal interrupted (ERESTARTSYS to
/// ERESTART_RESTARTBLOCK). The program sees EINTR, or the kernel repeats the call.
const INTERRUPTED: std::ops::RangeInclusive<i64> = -516..=-512;
/// All error numbers are below this number.
const MAX_ERROR: i64 = 4096;

/// One ioctl, as `deepres trace` shows it.
#[derive(Debug, Clone, Serialize)]
pub struct Decoded<'e> {
    /// When the call began, ns of `CLOCK_MONOTONIC`.
    pub began_ns: u64,
    /// Duration of the call, ns.
    pub latency_ns: u64,
    /// The id of the process that made the call.
    pub pid: u32,
    /// The id of the thread that made the call.
    pub tid: u32,
    /// The thread's name.
    pub thread: Cow<'e, str>,
    /// The descriptor; `None` if it is unknown.
    pub fd: Option<u32>,
    /// The numbers of the device on which the process made the call.
    pub device: Numbers,
    /// The device's family: `rm`, `uvm`, `modeset` or `other`.
    pub family: &'static str,
    /// The ioctl's number.
    pub command: u32,
    /// The command's name; `None` if it is unknown.
    pub name: Option<&'static str>,
    /// The main fields of the argument, in the argument's order.
    pub fields: Fields<'e>,
    /// The driver's own status, if the argument has one and the call succeeded.
    pub status: Option<Value>,
    /// The call's return value.
    pub result: i64,
    /// Whether the call has not returned yet. The latency is then the time up to now, and the
    /// result means nothing.
    pub unfinished: bool,
    /// The error's name, if the call failed.
    pub error: Option<Cow<'static, str>>,
}

/// A device's numbers, shown as `MAJOR:MINOR`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers(pub u32);

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", major(self.0), minor(self.0))
    }
}

impl Serialize for Numbers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The fields of an ioctl's argument, by name.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'e> {
    known: &'static [Field],
    payload: &'e [u8],
}

impl<'e> Fields<'e> {
    /// Returns the name and the value of each field that the payload contains.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, Value)> + use<'e> {
        let payload = self.payload;
        self.known.iter().filter_map(move |field| Some((field.name, value(field.kind, payload, field.at)?)))
    }
}

impl Serialize for Fields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

/// The value of a field of an ioctl's argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// A number.
    Number(u64),
    /// A number that can be negative.
    Signed(i64),
    /// A number in hexadecimal form.
    Hex(u64),
    /// A number that has a name.
    Name(&'static str),
    /// A GPU's UUID.
    Uuid([u8; 16]),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Signed(number) => write!(f, "{number}"),
            Self::Hex(number) => write!(f, "{number:#x}"),
            Self::Name(name) => f.write_str(name),
            Self::Uuid(bytes) => {
                f.write_str("GPU")?;
                for (at, byte) in bytes.iter().enumerate() {
                    let dash = if UUID_DASHES.contains(&at) { "-" } else { "" };
                    write!(f, "{dash}{byte:02x}")?;
                }
                Ok(())
            }
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_u64(*number),
            Self::Signed(number) => serializer.serialize_i64(*number),
            Self::Name(name) => serializer.serialize_str(name),
            Self::Hex(_) | Self::Uuid(_) => serializer.collect_str(self),
        }
    }
}

/// Indices of the bytes of a UUID that have a dash before them.
const UUID_DASHES: [usize; 5] = [0, 4, 6, 8, 10];

/// Returns the event in a record of the ring; `None` if the record is too short.
pub fn event_of(bytes: &[u8]) -> Option<Event> {
    Event::read_from_prefix(bytes).ok().map(|(event, _)| event)
}

/// Returns an event in readable form.
pub fn decode(event: &Event) -> Decoded<'_> {
    let family = Family::from_u32(event.family);
    let command = layout::find(family, event.command);
    let length = (event.payload_bytes as usize).min(PAYLOAD_BYTES);
    let payload = &event.payload[..length];
    // If the argument has another size, another release of the driver defined it.
    let known = command.filter(|command| {
        family == Family::Uvm || command.bytes == 0 || command.bytes == encoded_bytes(event.command) as usize
    });
    Decoded {
        began_ns: event.began_ns,
        latency_ns: event.latency_ns,
        pid: event.pid,
        tid: event.tid,
        thread: thread_name(&event.name),
        fd: (event.descriptor != NO_DESCRIPTOR).then_some(event.descriptor),
        device: Numbers(event.device),
        family: family_name(family),
        command: event.command,
        name: command.map(|command| command.name),
        fields: Fields { known: known.map_or(&[], |command| command.fields), payload },
        // If a call failed, the driver has not written a status.
        status: known.filter(|_| event.result >= 0).and_then(|command| status(command, payload)),
        result: event.result,
        unfinished: false,
        error: error_name(event.result),
    }
}

/// Returns a call that has not returned ([`crate::probes::inside`]) in readable form.
pub fn decode_unfinished(event: &Event) -> Decoded<'_> {
    Decoded { unfinished: true, fields: Fields { known: &[], payload: &[] }, status: None, ..decode(event) }
}

/// Returns a family's name.
pub fn family_name(family: Family) -> &'static str {
    match family {
        Family::Rm => "rm",
        Family::Uvm => "uvm",
        Family::Modeset => "modeset",
        Family::Other => "other",
    }
}

/// Returns a command's name; its number if the name is unknown.
pub fn command_name(family: Family, command: u32) -> String {
    layout::find(family, command).map_or_else(|| format!("{command:#x}"), |command| command.name.to_owned())
}

/// Returns the name of the error of a call with this result; `None` for a call that succeeded.
pub fn error_name(result: i64) -> Option<Cow<'static, str>> {
    if result >= 0 {
        return None;
    }
    if INTERRUPTED.contains(&result) {
        return Some("EINTR".into());
    }
    let number = i32::try_from(-result.max(-MAX_ERROR)).unwrap_or(0);
    let known = ERRORS.iter().find(|(error, _)| *error == number);
    Some(known.map_or_else(|| format!("error {number}").into(), |(_, name)| (*name).into()))
}

/// The errors that drivers return, with the names that the trace prints.
const ERRORS: [(i32, &str); 22] = [
    (libc::EPERM, "EPERM"),
    (libc::ENOENT, "ENOENT"),
    (libc::EINTR, "EINTR"),
    (libc::EIO, "EIO"),
    (libc::ENXIO, "ENXIO"),
    (libc::E2BIG, "E2BIG"),
    (libc::EBADF, "EBADF"),
    (libc::EAGAIN, "EAGAIN"),
    (libc::ENOMEM, "ENOMEM"),
    (libc::EACCES, "EACCES"),
    (libc::EFAULT, "EFAULT"),
    (libc::EBUSY, "EBUSY"),
    (libc::EEXIST, "EEXIST"),
    (libc::ENODEV, "ENODEV"),
    (libc::EINVAL, "EINVAL"),
    (libc::ENFILE, "ENFILE"),
    (libc::EMFILE, "EMFILE"),
    (libc::ENOTTY, "ENOTTY"),
    (libc::ENOSPC, "ENOSPC"),
    (libc::ENOSYS, "ENOSYS"),
    (libc::EOPNOTSUPP, "EOPNOTSUPP"),
    (libc::ETIMEDOUT, "ETIMEDOUT"),
];

fn thread_name(bytes: &[u8]) -> Cow<'_, str> {
    let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    match String::from_utf8_lossy(name) {
        plain if !plain.chars().any(is_harmful) => plain,
        odd => harmless(&odd).into(),
    }
}

fn status(command: &Command, payload: &[u8]) -> Option<Value> {
    let number = u32_at(payload, command.status?)?;
    Some(named(STATUSES.get(number), number))
}

fn value(kind: Kind, payload: &[u8], at: usize) -> Option<Value> {
    let number = || u32_at(payload, at);
    Some(match kind {
        Kind::U32 => Value::Number(number()?.into()),
        Kind::I32 => Value::Signed((number()? as i32).into()),
        Kind::U64 => Value::Number(u64_at(payload, at)?),
        Kind::Hex32 => Value::Hex(number()?.into()),
        Kind::Hex64 => Value::Hex(u64_at(payload, at)?),
        Kind::Class => number().map(|number| named(CLASSES.get(number), number))?,
        Kind::Control => number().map(|number| named(CONTROLS.get(number), number))?,
        Kind::Display => number().map(|number| named(DISPLAYS.get(number), number))?,
        Kind::Escape => {
            let number = number()?;
            named(layout::by_number(Family::Rm, number).map(|command| command.name), number)
        }
        Kind::Uuid => Value::Uuid(*payload.get(at..)?.first_chunk()?),
    })
}

fn named(name: Option<&'static str>, number: u32) -> Value {
    name.map_or(Value::Hex(number.into()), Value::Name)
}

fn u32_at(payload: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*payload.get(at..)?.first_chunk()?))
}

fn u64_at(payload: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*payload.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::{FromZeros, IntoBytes};

    fn event(family: Family, command: u32, words: &[u32]) -> Event {
        let mut event = Event::new_zeroed();
        event.family = family as u32;
        event.command = command;
        event.device = deepres_abi::probe::device(195, 255);
        event.name[..4].copy_from_slice(b"py\x1b[");
        for (place, word) in event.payload.chunks_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        event.payload_bytes = 4 * words.len() as u32;
        event
    }

    #[test]
    fn a_control_call_is_told_by_name_and_main_fields() {
        let words = [0xc1d0_0001, 0x5c00_0003, 0x2080_0102, 0, 0x1000, 0, 64, 0x51];
        let event = event(Family::Rm, 0xc020_462a, &words);
        let decoded = decode(&event);
        assert_eq!(decoded.name, Some("NV_ESC_RM_CONTROL"));
        assert_eq!(decoded.device.to_string(), "195:255");
        assert_eq!(decoded.thread, "py?[");
        let shown: Vec<_> = decoded.fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let expected = [
            "client=0xc1d00001",
            "object=0x5c000003",
            "cmd=NV2080_CTRL_CMD_GPU_GET_INFO_V2",
            "flags=0x0",
            "size=64",
        ];
        assert_eq!(shown, expected);
        assert_eq!(decoded.status, Some(Value::Name("NV_ERR_NO_MEMORY")));
        let told = serde_json::to_string(&decoded).unwrap();
        let fields = r#"[["client","0xc1d00001"],["object","0x5c000003"],["cmd","NV2080_CTRL_CMD_GPU_GET_INFO_V2"],["flags","0x0"],["size",64]]"#;
        assert!(told.contains(fields) && told.contains(r#""device":"195:255""#), "{told}");
    }

    #[test]
    fn a_unified_memory_call_shows_its_range_and_gpu() {
        let words =
            [0x0000_1000, 0x7f00, 1 << 20, 0, 0x0302_0100, 0x0706_0504, 0x0b0a_0908, 0x0f0e_0d0c, 0, 0];
        let event = event(Family::Uvm, 66, &words);
        let decoded = decode(&event);
        let shown: Vec<_> = decoded.fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(
            shown,
            ["base=0x7f0000001000", "length=1048576", "gpu=GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"]
        );
        assert_eq!(decoded.status, Some(Value::Name("NV_OK")));
    }

    #[test]
    fn an_argument_of_another_size_is_named_but_not_read() {
        let event = event(Family::Rm, 0xc024_462a, &[1; 9]);
        let decoded = decode(&event);
        assert_eq!(decoded.name, Some("NV_ESC_RM_CONTROL"));
        assert!(decoded.fields.iter().next().is_none() && decoded.status.is_none());
    }

    #[test]
    fn an_unknown_call_is_a_number_and_a_failed_call_has_an_error() {
        let mut unknown = event(Family::Other, 0xc004_4e07, &[7]);
        unknown.result = -i64::from(libc::ENOTTY);
        let decoded = decode(&unknown);
        assert_eq!(
            (decoded.name, decoded.command, decoded.error.as_deref()),
            (None, 0xc004_4e07, Some("ENOTTY"))
        );
        for (result, name) in
            [(-512, "EINTR"), (-4, "EINTR"), (-4095, "error 4095"), (i64::MIN, "error 4096")]
        {
            assert_eq!(error_name(result).as_deref(), Some(name));
        }
        assert_eq!(error_name(7), None);
    }

    proptest! {
        #[test]
        fn known_commands_with_any_argument_give_a_result(
            family in 0u32..3, index in 0usize..64, payload in proptest::array::uniform32(any::<u8>()), length in any::<u32>(),
        ) {
            let commands = layout::of_family(Family::from_u32(family));
            let command = &commands[index % commands.len()];
            let mut event = Event::new_zeroed();
            event.family = family;
            event.command = layout::ioctl(Family::from_u32(family), command).unwrap_or(command.number);
            event.payload[..32].copy_from_slice(&payload);
            event.payload_bytes = length;
            prop_assert_eq!(decode(&event_of(event.as_bytes()).unwrap()).name.is_some(), layout::find(Family::from_u32(family), event.command).is_some());
        }
    }
}
