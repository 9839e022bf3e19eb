//! The driver functions for events.
use super::prelude::*;
use crate::capture;
use crate::context;
use crate::event::{self, Event};
use crate::operation::Operation;
use crate::stream;

calls! {
    cuEventCreate(phEvent, Flags) {
        status::refuse(phEvent.is_null())?;
        give!(phEvent, Event::create(Flags)?.handle as CUevent);
    }
    cuEventDestroy | cuEventDestroy_v2(hEvent) { event::destroy(hEvent as usize)? }
    cuEventQuery(hEvent) { event::by_handle(hEvent as usize)?.query()? }
    cuEventSynchronize(hEvent) { event::by_handle(hEvent as usize)?.synchronize()? }
}

calls! {
    cuEventElapsedTime | cuEventElapsedTime_v2(pMilliseconds, hStart, hEnd) {
        let (start, end) = (event::by_handle(hStart as usize)?, event::by_handle(hEnd as usize)?);
        give!(pMilliseconds, event::elapsed_ms(&start, &end)?);
    }
    cuEventRecord | cuEventRecord_ptsz(hEvent, hStream) |default| {
        event::by_handle(hEvent as usize)?.record(&stream::resolve(hStream as usize, default)?)?;
    }
    cuEventRecordWithFlags | cuEventRecordWithFlags_ptsz(hEvent, hStream, flags) |default| {
        let event = event::by_handle(hEvent as usize)?;
        let stream = stream::resolve(hStream as usize, default)?;
        match flags {
            CU_EVENT_RECORD_DEFAULT => event.record(&stream)?,
            CU_EVENT_RECORD_EXTERNAL => {
                status::refuse_as(!stream.is_capturing(), status::ILLEGAL_STATE)?;
                capture::add(&stream, Operation::EventRecord(event))?;
            }
            _ => return Err(status::INVALID_VALUE),
        }
    }
}

/// Place of the engine's event number in an IPC handle.
const BITS: std::ops::Range<usize> = 0..8;

calls! {
    cuIpcGetEventHandle(pHandle, event) {
        let event = event::by_handle(event as usize)?;
        status::refuse_as(event.flags & CU_EVENT_INTERPROCESS == 0, status::INVALID_HANDLE)?;
        let mut handle = CUipcEventHandle { reserved: [0; 64] };
        handle.reserved[BITS].copy_from_slice(&event.engine.to_bits().to_le_bytes());
        give!(pHandle, handle);
    }
    cuIpcOpenEventHandle(phEvent, handle) {
        context::current()?;
        let mut bits = [0; 8];
        bits.copy_from_slice(&handle.reserved[BITS]);
        status::refuse(phEvent.is_null())?;
        give!(phEvent, Event::open(u64::from_le_bytes(bits))?.handle as CUevent);
    }
}
