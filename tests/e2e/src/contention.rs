//! The log that the client `contend` writes of a race for a tenant's memory, and the verdict on the
//! race.
//!
//! An operation takes effect at some moment between its beginning and its end. So for each moment
//! there are two bounds on the memory held:
//!
//! - At least: allocations that had succeeded and whose free had not begun.
//! - At most: every allocation that was begun and not refused, until the client told the driver to
//!   free it.
//!
//! A refusal is *false* if the request would have fitted at every moment of its call, even with the
//! upper bound. This bound leaves out memory on its way back to the driver. A refused request holds
//! no memory at any time, however long its call takes. The memory of a killed process counts until
//! the process is gone.
//!
//! An allocation that shares its memory with others has only a lower and an upper bound on its
//! size. The verdict uses each bound for the statement that the bound proves.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// The layout of the log in `contend.c`.
const HEADER_BYTES: usize = 64;
const RECORD_BYTES: usize = 56;
const SUCCESS: u32 = 0;

/// The file to which all processes of a race write.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    operations: u64,
}

/// One operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Record {
    begin_ns: u64,
    end_ns: Option<u64>,
    /// Lower and upper bound on the size, bytes.
    bytes: u64,
    most_bytes: u64,
    /// Number of the allocation that this operation frees.
    frees: Option<usize>,
    /// When the client told the driver to free the allocation. If the log has no such time, the
    /// beginning of the operation.
    told_ns: u64,
    process: u32,
    code: u32,
}

/// The end of a process by SIGKILL.
#[derive(Debug, Clone, Copy)]
pub struct Kill {
    /// Time before the signal was sent.
    pub sent_ns: u64,
    /// Time when the process was gone.
    pub dead_ns: u64,
}

/// The verdict on a race.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Operations that began.
    pub operations: u64,
    /// Allocations that succeeded.
    pub successes: u64,
    /// Allocations that were refused.
    pub refusals: u64,
    /// Operations that a kill cut short.
    pub cut_short: u64,
    /// Moments at which the processes certainly held more than the limit.
    pub breaches: u64,
    /// Refusals that are false in the sense of the module's documentation.
    pub false_refusals: u64,
    /// The largest amount that the processes certainly held, bytes.
    pub most_bytes: u64,
}

impl Log {
    /// Creates an empty log with room for `operations` operations.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn create(path: &Path, operations: u64) -> io::Result<Self> {
        let file = File::create(path)?;
        file.set_len(HEADER_BYTES as u64 + operations * RECORD_BYTES as u64)?;
        Ok(Self { path: path.to_owned(), operations })
    }

    /// Returns the path of the log.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of operations that have begun so far.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn begun(&self) -> io::Result<u64> {
        let mut word = [0; size_of::<u64>()];
        File::open(&self.path)?.read_exact_at(&mut word, 0)?;
        Ok(u64::from_le_bytes(word).min(self.operations))
    }

    /// Judges a race that has ended, and returns the verdict. The keys of `kills` are the clients'
    /// process numbers in the log.
    ///
    /// # Errors
    /// Errors of the operating system, and a log that contradicts itself.
    pub fn judge(&self, limit_bytes: u64, kills: &BTreeMap<u32, Kill>) -> io::Result<Verdict> {
        let content = fs::read(&self.path)?;
        let begun = self.begun()? as usize;
        let records = content[HEADER_BYTES..].chunks_exact(RECORD_BYTES).take(begun).map(Record::read);
        judge(&records.collect::<Vec<_>>(), limit_bytes, kills)
            .map_err(|reason| io::Error::new(io::ErrorKind::InvalidData, reason))
    }
}

impl Record {
    fn read(bytes: &[u8]) -> Self {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        Self {
            begin_ns: word(0),
            end_ns: Some(word(8)).filter(|end| *end != 0),
            bytes: word(16),
            most_bytes: word(24),
            frees: (word(32) as usize).checked_sub(1),
            told_ns: word(40).max(word(0)),
            process: half(48),
            code: half(52),
        }
    }
}

/// An amount of memory held, as a sum of changes over time.
#[derive(Default)]
struct Held {
    changes: Vec<(u64, i64)>,
}

impl Held {
    fn add(&mut self, from_ns: u64, until_ns: Option<u64>, bytes: u64) {
        if until_ns.is_some_and(|until_ns| until_ns < from_ns) {
            return;
        }
        self.changes.push((from_ns, bytes as i64));
        self.changes.extend(until_ns.map(|until_ns| (until_ns, -(bytes as i64))));
    }

    /// Returns the sum after each change, in order of time. With `comes_first`, increases count
    /// before decreases of the same moment.
    fn sums(mut self, comes_first: bool) -> Vec<(u64, u64)> {
        let goes = |change: i64| if comes_first { change < 0 } else { change > 0 };
        self.changes.sort_unstable_by_key(|(at_ns, change)| (*at_ns, goes(*change)));
        let mut sum = 0;
        let add = |(at_ns, change): (u64, i64)| {
            sum += change;
            (at_ns, sum.max(0) as u64)
        };
        self.changes.into_iter().map(add).collect()
    }
}

fn judge(records: &[Record], limit_bytes: u64, kills: &BTreeMap<u32, Kill>) -> Result<Verdict, String> {
    let mut freed = BTreeMap::new();
    for (number, record) in records.iter().enumerate() {
        if let Some(allocation) = record.frees {
            if record.end_ns.is_some() && record.code != SUCCESS {
                return Err(format!("operation {number}: a free failed with {}", record.code));
            }
            let told_ns = record.end_ns.map(|_| record.told_ns);
            if freed.insert(allocation, (record.begin_ns, told_ns)).is_some() {
                return Err(format!("operation {number} frees what was freed before"));
            }
        }
    }
    let mut verdict = Verdict { operations: records.len() as u64, ..Verdict::default() };
    let (mut least, mut most) = (Held::default(), Held::default());
    let mut refusals = Vec::new();
    for (number, record) in records.iter().enumerate() {
        let kill = kills.get(&record.process);
        if record.end_ns.is_none() {
            if kill.is_none() {
                return Err(format!("operation {number} never ended, and nobody was killed in it"));
            }
            verdict.cut_short += 1;
        }
        if record.frees.is_some() {
            continue;
        }
        match record.end_ns {
            Some(_) if record.code != SUCCESS => refusals.push(record),
            end_ns => {
                let (leaves_ns, left_ns) =
                    freed.get(&number).map_or((None, None), |(begin, end)| (Some(*begin), *end));
                // A killed process may have got its memory without time to log the end.
                most.add(record.begin_ns, left_ns.or(kill.map(|kill| kill.dead_ns)), record.most_bytes);
                if let Some(end_ns) = end_ns {
                    verdict.successes += 1;
                    least.add(end_ns, leaves_ns.or(kill.map(|kill| kill.sent_ns)), record.bytes);
                }
            }
        }
    }
    verdict.refusals = refusals.len() as u64;
    let least = least.sums(false);
    verdict.most_bytes = least.iter().map(|(_, sum)| *sum).max().unwrap_or(0);
    verdict.breaches = least.iter().filter(|(_, sum)| *sum > limit_bytes).count() as u64;
    let most = most.sums(true);
    let is_false = |refused: &&&Record| {
        let (begin_ns, end_ns) = (refused.begin_ns, refused.end_ns.unwrap_or(u64::MAX));
        let first = most.partition_point(|(at_ns, _)| *at_ns <= begin_ns);
        let before = first.checked_sub(1).map_or(0, |last| most[last].1);
        let within = most[first..].iter().take_while(|(at_ns, _)| *at_ns <= end_ns).map(|(_, sum)| *sum);
        within.fold(before, u64::max).saturating_add(refused.most_bytes) <= limit_bytes
    };
    verdict.false_refusals = refusals.iter().filter(is_false).count() as u64;
    Ok(verdict)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocation(begin_ns: u64, end_ns: u64, bytes: u64, code: u32) -> Record {
        Record {
            begin_ns,
            end_ns: Some(end_ns),
            bytes,
            most_bytes: bytes,
            frees: None,
            told_ns: begin_ns,
            process: 0,
            code,
        }
    }

    fn free(begin_ns: u64, end_ns: u64, of: usize, bytes: u64) -> Record {
        Record { frees: Some(of), told_ns: end_ns - 1, ..allocation(begin_ns, end_ns, bytes, SUCCESS) }
    }

    #[test]
    fn more_than_the_limit_at_one_moment_is_a_breach() {
        let records = [allocation(1, 2, 60, 0), allocation(3, 4, 50, 0)];
        let verdict = judge(&records, 100, &BTreeMap::new()).unwrap();
        assert_eq!((verdict.breaches, verdict.most_bytes), (1, 110));
        // The first allocation may have been freed before the second came.
        let records = [records[0], free(3, 5, 0, 60), records[1]];
        assert_eq!(judge(&records, 100, &BTreeMap::new()).unwrap().breaches, 0);
    }

    #[test]
    fn a_refusal_is_false_if_nothing_that_was_really_held_stood_in_its_way() {
        let refused = allocation(3, 6, 50, 2);
        let held = [allocation(1, 2, 60, 0), refused];
        assert_eq!(judge(&held, 100, &BTreeMap::new()).unwrap().false_refusals, 0);
        // A request that was refused was never held.
        let contended = [allocation(1, 9, 60, 2), refused];
        assert_eq!(judge(&contended, 100, &BTreeMap::new()).unwrap().false_refusals, 2);
        // The memory was freed before the refused request began.
        let gone = [held[0], refused, free(2, 3, 0, 60)];
        assert_eq!(judge(&gone, 100, &BTreeMap::new()).unwrap().false_refusals, 1);
        // The memory was on its way back: the driver was told before the request, and finished
        // after it.
        let leaving = [held[0], refused, Record { told_ns: 2, ..free(2, 9, 0, 60) }];
        assert_eq!(judge(&leaving, 100, &BTreeMap::new()).unwrap().false_refusals, 1);
        // The driver was told during the request.
        let told = [held[0], refused, free(2, 5, 0, 60)];
        assert_eq!(judge(&told, 100, &BTreeMap::new()).unwrap().false_refusals, 0);
    }

    #[test]
    fn shared_memory_breaks_the_limit_by_the_least_and_justifies_a_refusal_by_the_most() {
        let small = Record { most_bytes: 30, ..allocation(1, 2, 1, 0) };
        let verdict = |records: &[Record]| judge(records, 100, &BTreeMap::new()).unwrap();
        assert_eq!(verdict(&[small, allocation(3, 4, 99, 0)]).breaches, 0);
        assert_eq!(verdict(&[small, allocation(3, 4, 100, 0)]).breaches, 1);
        assert_eq!(verdict(&[small, allocation(3, 4, 71, 2)]).false_refusals, 0);
        assert_eq!(verdict(&[small, allocation(3, 4, 70, 2)]).false_refusals, 1);
        let refused = Record { most_bytes: 30, ..allocation(3, 4, 1, 2) };
        assert_eq!(verdict(&[allocation(1, 2, 71, 0), refused]).false_refusals, 0);
        assert_eq!(verdict(&[allocation(1, 2, 70, 0), refused]).false_refusals, 1);
    }

    #[test]
    fn memory_of_a_killed_process_counts_until_the_process_is_gone() {
        let kills = BTreeMap::from([(7, Kill { sent_ns: 5, dead_ns: 20 })]);
        let lost = Record { process: 7, ..allocation(1, 2, 60, 0) };
        let cut = Record { process: 7, end_ns: None, ..allocation(3, 0, 10, 0) };
        let verdict = judge(&[lost, cut, allocation(10, 12, 50, 2)], 100, &kills).unwrap();
        assert_eq!((verdict.false_refusals, verdict.cut_short, verdict.breaches), (0, 1, 0));
        assert_eq!(judge(&[lost, cut, allocation(21, 22, 50, 2)], 100, &kills).unwrap().false_refusals, 1);
        assert_eq!(judge(&[lost, cut, allocation(6, 7, 100, 0)], 100, &kills).unwrap().breaches, 0);
        assert!(judge(&[cut], 100, &BTreeMap::new()).is_err());
    }
}
