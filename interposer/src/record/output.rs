//! The outputs of a recording: the trace in a file, and the excerpt in the meter page.

use std::io;

use deepres_abi::excerpt::{EXCERPT_BYTES, Excerpt};
use deepres_abi::grant::GrantPage;

use super::encode::Encoder;
use super::ring::Event;
use crate::descriptor::OwnDescriptor;
use crate::log::say;
use crate::meter::gpu::Gpu;
use crate::os;

/// The bytes of an excerpt that only the mean times of the kernels use.
const MEANS_BYTES: usize = 1 << 16;
/// The longest time of an excerpt, ns. A daemon that dies does not end its excerpt.
const EXCERPT_LIMIT_NS: u64 = 120_000_000_000;

/// An excerpt for which the daemon asks.
pub struct Asked {
    /// The number of the excerpt.
    pub number: u32,
    /// The page that has the number while the session is to record.
    pub grant: &'static GrantPage,
    /// The place for the excerpt.
    pub excerpt: &'static Excerpt,
    /// The GPUs of the process, which know the times of kernels.
    pub gpus: &'static [Gpu],
}

enum Sink {
    File(OwnDescriptor),
    Page { asked: Asked, written: usize },
}

/// A trace or an excerpt that is under way.
pub struct Output {
    encoder: Encoder,
    sink: Sink,
    began_ns: u64,
    /// The reason for which the recorder can write no more.
    full: Option<io::Error>,
}

impl Output {
    fn new(sink: Sink, began_ns: u64) -> Self {
        Self { encoder: Encoder::new(std::process::id(), began_ns), sink, began_ns, full: None }
    }

    /// Returns a trace that goes into a file.
    pub fn file(file: OwnDescriptor, began_ns: u64) -> Self {
        Self::new(Sink::File(file), began_ns)
    }

    /// Returns an excerpt.
    pub fn excerpt(asked: Asked, began_ns: u64) -> Self {
        Self::new(Sink::Page { asked, written: 0 }, began_ns)
    }

    /// Adds an event of a thread. Leaves out an event that came before the output began.
    pub fn event(&mut self, thread: u32, event: &Event) {
        self.encoder.event(thread, event);
        if self.encoder.is_full() {
            self.write();
        }
    }

    /// Adds a number of lost events.
    pub fn lost(&mut self, count: u64) {
        self.encoder.lost(count);
    }

    /// Writes the events since the last call. Returns whether the output goes on. With `is_ending`,
    /// the process ends.
    pub fn goes_on(&mut self, is_ending: bool) -> bool {
        match &self.sink {
            Sink::File(_) => {
                if is_ending {
                    self.encoder.end();
                }
                self.write();
                if let Some(error) = &self.full {
                    say!(Warn, "cannot write the recording: {error}; the recording ends here");
                }
                !is_ending && self.full.is_none()
            }
            Sink::Page { asked, .. } => {
                let is_over = os::now_ns().saturating_sub(self.began_ns) > EXCERPT_LIMIT_NS;
                let is_done = is_over || asked.grant.excerpt() != asked.number;
                self.write();
                let goes_on = !is_ending && !is_done && self.full.is_none();
                if !goes_on {
                    self.finish();
                }
                goes_on
            }
        }
    }

    /// Writes the encoded records as one chunk, in one write.
    fn write(&mut self) {
        let Some(chunk) = self.encoder.chunk() else { return };
        if self.full.is_some() {
            return;
        }
        let written = match &mut self.sink {
            Sink::File(file) => write(*file, &chunk),
            Sink::Page { asked, written } => {
                let end = *written + chunk.len();
                match end <= EXCERPT_BYTES - MEANS_BYTES && asked.excerpt.write(*written, &chunk) {
                    true => {
                        *written = end;
                        Ok(())
                    }
                    false => Err(io::ErrorKind::WriteZero.into()),
                }
            }
        };
        self.full = written.err();
    }

    /// Finishes an excerpt: adds the mean times of its kernels, and tells the daemon.
    fn finish(&mut self) {
        let Sink::Page { asked, written } = &mut self.sink else { return };
        let mean_ns = |key| asked.gpus.iter().find_map(|gpu| gpu.estimates.measured_ns(key));
        self.encoder.means(mean_ns, MEANS_BYTES);
        if let Some(means) = self.encoder.chunk()
            && asked.excerpt.write(*written, &means)
        {
            *written += means.len();
        }
        asked.excerpt.finish(asked.number, *written);
    }
}

/// Appends a chunk to the trace.
fn write(file: OwnDescriptor, chunk: &[u8]) -> io::Result<()> {
    let number = file.number().ok_or_else(|| io::Error::other("the job has closed the file"))?;
    let written = os::write(number, chunk)?;
    // A reader of the trace stops at an incomplete chunk.
    if written < chunk.len() { Err(io::ErrorKind::WriteZero.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::calls::Stream;
    use crate::record::encode;
    use deepres_abi::driver::ApiId;
    use deepres_abi::meter::MeterPage;
    use deepres_abi::page::{self, Page};
    use deepres_abi::recording::{Record, take, take_chunk};
    use std::alloc::{Layout, alloc_zeroed};

    const NUMBER: u32 = 3;
    const BEGAN_NS: u64 = 5_000;

    fn asked() -> Asked {
        fn made<P: Page>() -> &'static P {
            // SAFETY: the layout is not empty. Nobody frees the memory, which is zeroed and long
            // enough.
            unsafe { page::create(alloc_zeroed(Layout::new::<P>()), size_of::<P>()) }.expect("a page")
        }
        let grant: &'static GrantPage = made();
        grant.ask_for_excerpt(NUMBER);
        Asked { number: NUMBER, grant, excerpt: made::<MeterPage>().excerpt(), gpus: &[] }
    }

    fn launch(at_ns: u64, function: u64) -> Event {
        encode::launch(at_ns, ApiId::cuLaunchKernel, Stream(7), function, [1; 3], [32, 1, 1], 0, 0)
    }

    /// Returns the number of launches in a finished excerpt.
    fn launches(excerpt: &Excerpt) -> usize {
        let mut bytes = Vec::new();
        excerpt.read(|byte| bytes.push(byte));
        let mut rest = bytes.as_slice();
        let mut launches = 0;
        while let Some((_, mut records)) = take_chunk(&mut rest) {
            while !records.is_empty() {
                let record = take(&mut records).expect("whole records");
                launches += usize::from(matches!(record, Some(Record::Launch { .. })));
            }
        }
        assert!(rest.is_empty(), "all chunks are whole");
        launches
    }

    #[test]
    fn an_excerpt_has_the_calls_from_the_question_until_the_daemon_asks_for_another() {
        let asked = asked();
        let (grant, excerpt) = (asked.grant, asked.excerpt);
        let mut output = Output::excerpt(asked, BEGAN_NS);
        output.began_ns = os::now_ns();
        output.event(1, &launch(BEGAN_NS - 1, 1));
        output.event(1, &launch(BEGAN_NS + 1, 1));
        assert!(output.goes_on(false) && excerpt.finished() == 0);
        output.event(1, &launch(BEGAN_NS + 2, 2));
        grant.ask_for_excerpt(0);
        assert!(!output.goes_on(false));
        assert_eq!((excerpt.finished(), launches(excerpt)), (NUMBER, 2), "one call came before");
    }

    #[test]
    fn a_full_excerpt_is_finished_with_whole_chunks() {
        let asked = asked();
        let excerpt = asked.excerpt;
        let mut output = Output::excerpt(asked, BEGAN_NS);
        output.began_ns = os::now_ns();
        let mut looks = 0;
        loop {
            // Each launch has another function, so each has its shape.
            (0..200).for_each(|at| output.event(1, &launch(BEGAN_NS + looks, 200 * looks + at)));
            looks += 1;
            if !output.goes_on(false) {
                break;
            }
            assert!(looks < 1_000, "an excerpt has an end");
        }
        assert_eq!(excerpt.finished(), NUMBER);
        let launches = launches(excerpt);
        assert!(launches >= 2_000 && launches < 200 * looks as usize, "{launches}");
    }
}
