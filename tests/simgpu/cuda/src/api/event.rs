//! Events.
use deepres_abi::driver::types::*;

use crate::capture;
use crate::context;
use crate::event::{self, Event};
use crate::operation::Operation;
use crate::status::{self, Result};
use crate::stream;

pub fn cuEventCreate(phEvent: *mut CUevent, Flags: u32) -> Result<()> {
    if phEvent.is_null() {
        return Err(status::INVALID_VALUE);
    }
    give!(phEvent, Event::create(Flags)?.handle as CUevent);
    Ok(())
}

pub fn cuEventDestroy(hEvent: CUevent) -> Result<()> {
    event::destroy(hEvent as usize)
}

pub fn cuEventDestroy_v2(hEvent: CUevent) -> Result<()> {
    event::destroy(hEvent as usize)
}

pub fn cuEventQuery(hEvent: CUevent) -> Result<()> {
    event::by_handle(hEvent as usize)?.query()
}

pub fn cuEventSynchronize(hEvent: CUevent) -> Result<()> {
    event::by_handle(hEvent as usize)?.synchronize()
}

fn elapsed(pMilliseconds: *mut f32, hStart: CUevent, hEnd: CUevent) -> Result<()> {
    let (start, end) = (event::by_handle(hStart as usize)?, event::by_handle(hEnd as usize)?);
    give!(pMilliseconds, event::elapsed_ms(&start, &end)?);
    Ok(())
}

pub fn cuEventElapsedTime(pMilliseconds: *mut f32, hStart: CUevent, hEnd: CUevent) -> Result<()> {
    elapsed(pMilliseconds, hStart, hEnd)
}

pub fn cuEventElapsedTime_v2(pMilliseconds: *mut f32, hStart: CUevent, hEnd: CUevent) -> Result<()> {
    elapsed(pMilliseconds, hStart, hEnd)
}

for_both_default_streams! {
    cuEventRecord / cuEventRecord_ptsz(hEvent: CUevent, hStream: CUstream) |default| {
        event::by_handle(hEvent as usize)?.record(&stream::resolve(hStream as usize, default)?)
    }

    cuEventRecordWithFlags / cuEventRecordWithFlags_ptsz(hEvent: CUevent, hStream: CUstream, flags: u32) |default| {
        let event = event::by_handle(hEvent as usize)?;
        let stream = stream::resolve(hStream as usize, default)?;
        match flags {
            CU_EVENT_RECORD_DEFAULT => event.record(&stream),
            CU_EVENT_RECORD_EXTERNAL if stream.is_capturing() => capture::add(&stream, Operation::EventRecord(event)),
            CU_EVENT_RECORD_EXTERNAL => Err(status::ILLEGAL_STATE),
            _ => Err(status::INVALID_VALUE),
        }
    }
}

/// Place of the engine's event number in an IPC handle.
const BITS: std::ops::Range<usize> = 0..8;

pub fn cuIpcGetEventHandle(pHandle: *mut CUipcEventHandle, event: CUevent) -> Result<()> {
    let event = event::by_handle(event as usize)?;
    if event.flags & CU_EVENT_INTERPROCESS == 0 {
        return Err(status::INVALID_HANDLE);
    }
    let mut handle = CUipcEventHandle { reserved: [0; 64] };
    handle.reserved[BITS].copy_from_slice(&event.engine.to_bits().to_le_bytes());
    give!(pHandle, handle);
    Ok(())
}

pub fn cuIpcOpenEventHandle(phEvent: *mut CUevent, handle: CUipcEventHandle) -> Result<()> {
    context::current()?;
    let mut bits = [0; 8];
    bits.copy_from_slice(&handle.reserved[BITS]);
    if phEvent.is_null() {
        return Err(status::INVALID_VALUE);
    }
    give!(phEvent, Event::open(u64::from_le_bytes(bits))?.handle as CUevent);
    Ok(())
}
