//! Events.
use deepres_abi::driver::types::*;

use crate::capture;
use crate::context;
use crate::event::{self, Event};
use crate::operation::Operation;
use crate::status::{self, Result};
use crate::stream;

calls! {
    cuEventCreate(phEvent: *mut CUevent, Flags: u32) {
        status::refuse(phEvent.is_null())?;
        give!(phEvent, Event::create(Flags)?.handle as CUevent);
    }
    cuEventDestroy(hEvent: CUevent) { event::destroy(hEvent as usize)? }
    cuEventDestroy_v2(hEvent: CUevent) { event::destroy(hEvent as usize)? }
    cuEventQuery(hEvent: CUevent) { event::by_handle(hEvent as usize)?.query()? }
    cuEventSynchronize(hEvent: CUevent) { event::by_handle(hEvent as usize)?.synchronize()? }
}

fn elapsed(pMilliseconds: *mut f32, hStart: CUevent, hEnd: CUevent) -> Result<()> {
    let (start, end) = (event::by_handle(hStart as usize)?, event::by_handle(hEnd as usize)?);
    give!(pMilliseconds, event::elapsed_ms(&start, &end)?);
    Ok(())
}

calls! {
    cuEventElapsedTime(pMilliseconds: *mut f32, hStart: CUevent, hEnd: CUevent) {
        elapsed(pMilliseconds, hStart, hEnd)?;
    }
    cuEventElapsedTime_v2(pMilliseconds: *mut f32, hStart: CUevent, hEnd: CUevent) {
        elapsed(pMilliseconds, hStart, hEnd)?;
    }
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

calls! {
    cuIpcGetEventHandle(pHandle: *mut CUipcEventHandle, event: CUevent) {
        let event = event::by_handle(event as usize)?;
        status::refuse_as(event.flags & CU_EVENT_INTERPROCESS == 0, status::INVALID_HANDLE)?;
        let mut handle = CUipcEventHandle { reserved: [0; 64] };
        handle.reserved[BITS].copy_from_slice(&event.engine.to_bits().to_le_bytes());
        give!(pHandle, handle);
    }
    cuIpcOpenEventHandle(phEvent: *mut CUevent, handle: CUipcEventHandle) {
        context::current()?;
        let mut bits = [0; 8];
        bits.copy_from_slice(&handle.reserved[BITS]);
        status::refuse(phEvent.is_null())?;
        give!(phEvent, Event::open(u64::from_le_bytes(bits))?.handle as CUevent);
    }
}
