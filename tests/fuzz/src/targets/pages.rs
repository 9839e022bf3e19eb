//! Shared pages whose other writer is hostile or of another version.

use arbitrary::Unstructured;
use deepres_abi::beat::BeatPage;
use deepres_abi::grant::{Gate as LeaseGate, GrantPage};
use deepres_abi::ledger::{LedgerGpu, LedgerPage, MAX_SESSIONS};
use deepres_abi::meter::MeterPage;
use deepres_abi::page::{self, Page};
use deepres_abi::plan::{MOST_CUTS, MOST_KERNELS};
use deepres_abi::{MAX_GPUS, PPM};
use deepres_policy::granularity::gate::Gate;
use std::sync::atomic::Ordering;

/// Memory for a page. An input fills it, and is repeated if it is too short.
struct Memory {
    words: Vec<Aligned>,
}

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Aligned([u8; 4096]);

impl Memory {
    /// Returns memory for one `P`, filled with repetitions of `data`.
    fn of<P>(data: &[u8]) -> Self {
        let mut words = vec![Aligned([0; 4096]); size_of::<P>().div_ceil(4096)];
        let mut source = data.iter().copied().cycle();
        for byte in words.iter_mut().flat_map(|page| &mut page.0) {
            *byte = source.next().unwrap_or(0);
        }
        Self { words }
    }

    fn bytes(&self) -> usize {
        self.words.len() * size_of::<Aligned>()
    }

    /// Returns the bytes as a page, if their head is that of such a page.
    fn found<P: Page>(&self) -> Option<&P> {
        // SAFETY: the memory lives as long as the result, and the result contains only atomics.
        unsafe { page::view(self.words.as_ptr().cast(), self.bytes()) }.ok()
    }

    /// Returns the bytes as a page with a correct head.
    fn claimed<P: Page>(&mut self) -> &P {
        let (address, bytes) = (self.words.as_mut_ptr().cast(), self.bytes());
        // SAFETY: the memory lives as long as the result, and the result contains only atomics. The
        // bytes are not zero, which is the case under test.
        unsafe { page::create(address, bytes) }.expect("long enough and aligned")
    }
}

/// A reader of a page with any content ends, and gets numbers.
pub fn run(data: &[u8]) {
    let Some((choice, data)) = data.split_first() else { return };
    match choice % 4 {
        0 => read::<BeatPage>(data, |page, _| assert_eq!(page.last_ns(MAX_GPUS), 0)),
        1 => read::<GrantPage>(data, grants),
        2 => read::<MeterPage>(data, meters),
        _ => read::<LedgerPage>(data, ledgers),
    }
}

fn read<P: Page>(data: &[u8], check: impl Fn(&P, &mut Unstructured<'_>)) {
    let mut memory = Memory::of::<P>(data);
    if let Some(page) = memory.found::<P>() {
        check(page, &mut Unstructured::new(data));
    }
    check(memory.claimed::<P>(), &mut Unstructured::new(data));
}

fn grants(page: &GrantPage, _: &mut Unstructured<'_>) {
    page.fail_mode();
    assert!(page.slot(MAX_GPUS).is_none());
    for slot in (0..MAX_GPUS).filter_map(|gpu| page.slot(gpu)) {
        let gate = slot.gate();
        assert_eq!(LeaseGate::from_word(gate.word()), gate);
        // If a page is never consistent, the reader gives up and does not wait.
        slot.terms();
        slot.memory_limit();
    }
    let (plan, mut keys, mut cuts) = (page.plan(), Vec::new(), Vec::new());
    if let Some(head) = plan.read(plan.number(), |key| keys.push(key), |cut| cuts.push(cut)) {
        assert!(keys.len() <= MOST_KERNELS && cuts.len() <= MOST_CUTS);
        let mut gate = Gate::new(head.tenant, keys.clone(), &cuts, head.wait_limit_ns);
        for key in keys {
            gate.launch(0, 0, key, &plan.places(plan.number()));
        }
    }
}

fn meters(page: &MeterPage, input: &mut Unstructured<'_>) {
    let (Some(first), Some(second)) = (page.slot(0), page.slot(1)) else { return };
    let limit_ns = input.arbitrary().unwrap_or(0);
    let used = second.read().since(&first.read(), limit_ns);
    assert!(used.compute_ns <= limit_ns && used.copy_ns <= limit_ns && used.occupied_ns <= limit_ns);
    let words = [page.sm_ppm(0), page.width_ppm(0)].map(|word| word.map(|word| word.load(Ordering::Relaxed)));
    assert!(page.part_ppm(0) == 0 || words.contains(&Some(page.part_ppm(0))));
}

fn ledgers(page: &LedgerPage, input: &mut Unstructured<'_>) {
    let Some(gpu) = page.gpu(0) else { return };
    let Some(account) = gpu.account(input.int_in_range(0..=MAX_SESSIONS).unwrap_or(0)) else { return };
    let bytes = input.arbitrary().unwrap_or(u64::from(PPM));
    let limit_bytes = input.arbitrary().unwrap_or(u64::MAX);
    let goes_on = || {
        clear(gpu);
        true
    };
    if let Ok(reservation) = account.reserve(bytes, limit_bytes, goes_on) {
        assert!(bytes <= limit_bytes);
        reservation.commit();
        account.release(bytes);
    }
    account.release(u64::MAX);
    let leaving_bytes = account.held_bytes();
    account.release(u64::MAX);
    assert_eq!(account.held_bytes(), leaving_bytes, "a second release gives back no leaving memory");
    clear(gpu);
    assert_eq!(gpu.held_bytes(), 0, "the controller can always begin anew");
}

fn clear(gpu: &LedgerGpu) {
    for slot in 0..MAX_SESSIONS {
        gpu.clear(slot);
    }
}
