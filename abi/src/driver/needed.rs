//! The driver functions without which the interposer cannot meter a process.

use super::ApiId;

/// Calls the given macro once with all needed functions, in the form `field: variant variant …;`.
/// Drivers of some releases have only one variant, and any one is enough. All variants of a
/// function have the same type.
#[macro_export]
macro_rules! for_each_needed_function {
    ($($callback:tt)+) => {
        $($callback)+! {
            get_current: cuCtxGetCurrent;
            set_current: cuCtxSetCurrent;
            push_current: cuCtxPushCurrent_v2 cuCtxPushCurrent;
            pop_current: cuCtxPopCurrent_v2 cuCtxPopCurrent;
            get_device: cuCtxGetDevice;
            device_count: cuDeviceGetCount;
            uuid: cuDeviceGetUuid cuDeviceGetUuid_v2;
            stream_context: cuStreamGetCtx;
            stream_is_capturing: cuStreamIsCapturing;
            stream_query: cuStreamQuery;
            exchange_capture_mode: cuThreadExchangeStreamCaptureMode;
            event_create: cuEventCreate;
            event_destroy: cuEventDestroy_v2 cuEventDestroy;
            event_record: cuEventRecord;
            event_query: cuEventQuery;
            event_elapsed: cuEventElapsedTime cuEventElapsedTime_v2;
            primary_state: cuDevicePrimaryCtxGetState;
            primary_retain: cuDevicePrimaryCtxRetain;
            primary_release: cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxRelease;
        }
    };
}

macro_rules! list {
    ($($field:ident: $($variant:ident)+;)+) => {
        /// The needed functions, each with its variants.
        pub const NEEDED: &[&[ApiId]] = &[$(&[$(ApiId::$variant),+]),+];
    };
}
crate::for_each_needed_function!(list);
