//! Green contexts and the SMs for them.
use std::ffi::c_void;

use deepres_abi::driver::types::*;

use crate::context;
use crate::event;
use crate::green::{self, GRANULARITY, Part};
use crate::status::{self, Result};
use crate::stream::{self, Stream};

/// `CUdevResource` in the form for SMs. The reserved words hold the device.
#[repr(C)]
#[derive(Clone, Copy)]
struct Resource {
    kind: CUdevResourceType,
    /// The device's ordinal, plus one.
    device: u32,
    reserved: [u32; 22],
    sms: u32,
    least: u32,
    alignment: u32,
    flags: u32,
    rest: [u32; 6],
    next: *mut c_void,
}

const _: () = assert!(size_of::<Resource>() == 144);

impl Resource {
    fn of(part: Part) -> Self {
        // SAFETY: all zeroes is a valid value of numbers and a pointer.
        let none = unsafe { std::mem::zeroed::<Self>() };
        if part.sms == 0 {
            return none;
        }
        let (kind, device) = (CU_DEV_RESOURCE_TYPE_SM, part.device as u32 + 1);
        Self { kind, device, sms: part.sms, least: GRANULARITY, alignment: GRANULARITY, ..none }
    }

    fn part(&self) -> Result<Part> {
        status::refuse_as(self.kind != CU_DEV_RESOURCE_TYPE_SM, status::INVALID_RESOURCE_TYPE)?;
        let device = self.device.checked_sub(1).ok_or(status::INVALID_VALUE)? as i32;
        let whole = Part::whole(device)?;
        status::refuse(self.sms == 0 || self.sms > whole.sms)?;
        Ok(Part { sms: self.sms, ..whole })
    }
}

fn tell(resource: *mut c_void, kind: CUdevResourceType, part: Part) -> Result<()> {
    status::refuse_as(kind != CU_DEV_RESOURCE_TYPE_SM, status::INVALID_RESOURCE_TYPE)?;
    give!(resource.cast::<Resource>(), Resource::of(part));
    Ok(())
}

calls! {
    cuDeviceGetDevResource(device, resource, r#type) { tell(resource, r#type, Part::whole(device)?)? }
    cuCtxGetDevResource(hCtx, resource, r#type) {
        let part = match green::of_view(hCtx as usize) {
            Some(green) => green?.part,
            None => Part::whole(context::by_handle(hCtx as usize)?.device)?,
        };
        tell(resource, r#type, part)?;
    }
    cuGreenCtxGetDevResource(hCtx, resource, r#type) {
        tell(resource, r#type, green::by_handle(hCtx as usize)?.part)?;
    }
    cuDevSmResourceSplitByCount(result, nbGroups, input, remainder, _flags, minCount) {
        let input = read!(input.cast::<Resource>()).part()?;
        let wanted = if result.is_null() { u32::MAX } else { read!(nbGroups) };
        let (parts, rest) = input.split(wanted, minCount)?;
        give!(nbGroups, parts.len() as u32);
        give_if_wanted!(remainder.cast::<Resource>(), Resource::of(rest));
        if !result.is_null() {
            for (place, part) in parts.into_iter().enumerate() {
                // SAFETY: by the API's contract the array has as many elements as the caller says.
                unsafe { result.cast::<Resource>().add(place).write(Resource::of(part)) };
            }
        }
    }
    cuDevResourceGenerateDesc(phDesc, resources, nbResources) {
        let list: &[Resource] = slice!(resources.cast::<Resource>(), nbResources);
        let parts = list.iter().map(Resource::part).collect::<Result<Vec<_>>>()?;
        give!(phDesc, green::describe(&parts)? as CUdevResourceDesc);
    }
}

calls! {
    cuGreenCtxCreate(phCtx, desc, dev, flags) {
        status::refuse(phCtx.is_null() || flags != CU_GREEN_CTX_DEFAULT_STREAM)?;
        give!(phCtx, green::create(desc as usize, dev)? as CUgreenCtx);
    }
    cuGreenCtxDestroy(hCtx) { green::destroy(hCtx as usize)? }
    cuCtxFromGreenCtx(pContext, hCtx) { give!(pContext, green::by_handle(hCtx as usize)?.view() as CUcontext) }
    cuGreenCtxGetId(greenCtx, greenCtxId) { give!(greenCtxId, green::by_handle(greenCtx as usize)?.id) }
    cuGreenCtxStreamCreate(phStream, greenCtx, flags, priority) {
        status::refuse(phStream.is_null() || flags & CU_STREAM_NON_BLOCKING == 0)?;
        let green = green::by_handle(greenCtx as usize)?;
        let stream = Stream::create(&green.home, Some(&green), flags, priority)?;
        give!(phStream, stream.handle as CUstream);
    }
    cuGreenCtxRecordEvent(hCtx, hEvent) {
        green::by_handle(hCtx as usize)?.record(&event::by_handle(hEvent as usize)?)?;
    }
    cuGreenCtxWaitEvent(hCtx, hEvent) {
        green::by_handle(hCtx as usize)?.wait(&*event::by_handle(hEvent as usize)?)?;
    }
    cuStreamGetGreenCtx(hStream, phCtx) {
        let stream = stream::resolve(hStream as usize, stream::DefaultStream::Legacy)?;
        give!(phCtx, stream.green.as_ref().map_or(0, |green| green.handle) as CUgreenCtx);
    }
}
