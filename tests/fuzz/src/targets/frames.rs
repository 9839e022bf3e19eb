//! Frames of the tenant socket, read as either side reads them.

use deepres_abi::MAX_GPUS;
use deepres_abi::fallback::Fallback;
use deepres_abi::wire::{self, Frame, FrameError, Hello, Refusal, Role, Welcome};

/// Bytes are at most one kind of frame. A frame reads back as it was written. Texts stay inside
/// their fields.
pub fn run(data: &[u8]) {
    let kind = wire::kind(data);
    let read = [both_ways::<Hello>(data), both_ways::<Welcome>(data), both_ways::<Refusal>(data)];
    assert!(read.iter().filter(|read| **read).count() <= usize::from(kind.is_ok()));
    if let Ok(hello) = wire::decode::<Hello>(data) {
        assert!(hello.gpus().len() <= MAX_GPUS);
        assert_eq!(hello.role().map(|role: Role| role as u32), hello.role().map(|_| hello.role));
        for field in [&hello.tenant[..], &hello.client] {
            assert!(wire::text(field).is_none_or(|text| text.len() <= field.len() && !text.contains('\0')));
        }
    }
    let fallbacks = [
        wire::decode::<Welcome>(data).map(|welcome| welcome.fallback()),
        wire::decode::<Refusal>(data).map(|refusal| refusal.fallback()),
    ];
    for fallback in fallbacks.into_iter().flatten() {
        assert_eq!(Fallback::parse(&fallback.to_string()), Some(fallback), "a job can hand it on");
    }
    if let Ok(text) = std::str::from_utf8(data) {
        let mut field = [0xFF; 64];
        wire::set_text(&mut field, text);
        let kept = wire::text(&field).expect("cut at a character");
        assert!(text.starts_with(kept) && kept.len() < field.len());
    }
}

fn both_ways<F: Frame>(data: &[u8]) -> bool {
    match wire::decode::<F>(data) {
        Ok(frame) => {
            // A frame of another minor version can be longer or shorter.
            let known = frame.as_bytes();
            let common = known.len().min(data.len());
            assert!(common >= F::FIRST_BYTES);
            assert_eq!(known[..common], data[..common]);
            assert!(known[common..].iter().all(|byte| *byte == 0), "bytes that were not sent are zero");
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(error != FrameError::Kind(F::KIND as u16));
            false
        }
    }
}
