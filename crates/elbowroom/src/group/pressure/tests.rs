//! The arithmetic against slow reference models, and what threads see of stalls.

use super::meter::{AVERAGED_NS, Meter, PERIOD_NS, RUNNING_NS};
use super::sources::Sources;
use super::window::Window;
use super::*;
use elbowroom_store::FileId;
use elbowroom_sync::thread;
use std::collections::BTreeMap;

/// A step of the reference model, in nanoseconds: stalls begin and end at multiples of it.
const TICK_NS: u64 = 250_000_000;

const KINDS: [StallKind; 4] = [StallKind::FileRead, StallKind::SwapIn, StallKind::Frames, StallKind::Dirty];

/// The reference model: computes the meter's figures by looking at each tick.
#[derive(Default, Clone)]
struct Reference {
    tick: u64,
    /// The stall of each thread.
    stalls: BTreeMap<u32, StallKind>,
    /// The tick at which the last stall of each thread ended.
    ended: BTreeMap<u32, u64>,
    /// Ticks in which some thread stalled, and ticks in which, besides, no thread ran.
    totals: [u64; 2],
    in_period: [u64; 2],
    averages: [[f64; 3]; 2],
    kinds: [u64; 4],
}

impl Reference {
    fn step(&mut self) {
        let ran = |(thread, ended): (&u32, &u64)| {
            !self.stalls.contains_key(thread) && (self.tick - ended) * TICK_NS < RUNNING_NS
        };
        let some = !self.stalls.is_empty();
        let full = some && !self.ended.iter().any(ran);
        for (nth, counts) in [some, full].into_iter().enumerate() {
            self.totals[nth] += u64::from(counts);
            self.in_period[nth] += u64::from(counts);
        }
        self.stalls.values().for_each(|kind| self.kinds[*kind as usize] += 1);
        self.tick += 1;
        let ticks = PERIOD_NS / TICK_NS;
        if self.tick.is_multiple_of(ticks) {
            self.averages = self.averages_now();
            self.in_period = [0; 2];
        }
    }

    /// The averages up to now, as if the stall time of this period were spread evenly over it.
    fn averages_now(&self) -> [[f64; 3]; 2] {
        let ticks = PERIOD_NS / TICK_NS;
        let passed = (self.tick - 1) % ticks + 1;
        let after = |nth: usize| {
            let part = self.in_period[nth] as f64 / passed as f64;
            std::array::from_fn(|over| {
                let kept = (-((passed * TICK_NS) as f64) / AVERAGED_NS[over] as f64).exp();
                self.averages[nth][over] * kept + part * (1.0 - kept)
            })
        };
        [after(0), after(1)]
    }

    fn check(&self, meter: &Meter, how: &dyn Fn() -> String) {
        let extents = [StallExtent::Some, StallExtent::Full];
        let totals = extents.map(|extent| meter.total_ns(extent) / TICK_NS);
        assert_eq!(totals, self.totals, "{}", how());
        assert_eq!(KINDS.map(|kind| meter.kind_ns(kind) / TICK_NS), self.kinds, "{}", how());
        let at_end = self.tick.is_multiple_of(PERIOD_NS / TICK_NS);
        let expected = if at_end { self.averages } else { self.averages_now() };
        for (extent, expected) in extents.into_iter().zip(expected) {
            for (found, expected) in meter.averages(extent).into_iter().zip(expected) {
                assert!((found - expected).abs() < 1e-9, "{found}, not {expected}: {}", how());
            }
        }
    }

    /// Ends the thread's stall if it has one; else begins one.
    fn toggle(&mut self, meter: &mut Meter, thread: u32, kind: StallKind) {
        let now_ns = self.tick * TICK_NS;
        match self.stalls.remove(&thread) {
            Some(kind) => {
                meter.end(now_ns, thread, kind);
                self.ended.insert(thread, self.tick);
            }
            None => {
                meter.begin(now_ns, thread, kind);
                self.stalls.insert(thread, kind);
            }
        }
    }
}

/// A generator of numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// All sequences of five beginnings and ends of stalls of two threads, at distances that include or exclude
/// the end of the second in which a thread counts as running, and the end of a period.
#[test]
fn all_short_sequences_are_as_in_the_reference_model() {
    const WAITS: [u64; 6] = [0, 1, 3, 4, 8, 21];
    const CHOICES: u64 = 2 * WAITS.len() as u64;
    for sequence in 0..CHOICES.pow(5) {
        let (mut meter, mut reference) = (Meter::new(), Reference::default());
        let mut left = sequence;
        for _ in 0..5 {
            let (thread, wait) = (left % 2 + 1, WAITS[(left / 2) as usize % WAITS.len()]);
            left /= CHOICES;
            reference.toggle(&mut meter, thread as u32, KINDS[thread as usize]);
            (0..wait).for_each(|_| reference.step());
        }
        (0..3).for_each(|_| reference.step());
        meter.advance(reference.tick * TICK_NS);
        reference.check(&meter, &|| format!("sequence {sequence}"));
    }
}

#[test]
fn random_stalls_are_as_in_the_reference_model() {
    for seed in 0..200 {
        let (mut meter, mut reference) = (Meter::new(), Reference::default());
        let mut random = Random(seed);
        let threads = random.below(8) + 1;
        for turn in 0..300 {
            let (thread, kind) = (random.below(threads) as u32 + 1, KINDS[random.below(4) as usize]);
            reference.toggle(&mut meter, thread, kind);
            // Many changes at once, and now and then a long time without any.
            let wait = if random.below(20) == 0 { random.below(200) } else { random.below(4) };
            (0..wait).for_each(|_| reference.step());
            if reference.tick > 0 {
                meter.advance(reference.tick * TICK_NS);
                reference.check(&meter, &|| format!("seed {seed}, turn {turn}"));
            }
        }
        assert_eq!(meter.stalled() as usize, reference.stalls.len());
    }
}

/// The figures of the example in docs/groups.md.
#[test]
fn the_example_in_the_documentation_is_right() {
    const A: (u32, StallKind) = (1, StallKind::FileRead);
    const B: (u32, StallKind) = (2, StallKind::SwapIn);
    let ms = |ms: u64| ms * 1_000_000;
    let mut meter = Meter::new();
    for (begins, at_ms, (thread, kind)) in
        [(true, 100, A), (true, 200, B), (false, 300, A), (false, 325, B), (true, 400, A), (false, 1500, A)]
    {
        if begins {
            meter.begin(ms(at_ms), thread, kind);
        } else {
            meter.end(ms(at_ms), thread, kind);
        }
    }
    let [some, full] = [StallExtent::Some, StallExtent::Full].map(|extent| meter.total_ns(extent));
    assert_eq!((some, full), (ms(1325), ms(375)));
    assert_eq!([A, B].map(|(_, kind)| meter.kind_ns(kind)), [ms(1300), ms(125)]);
    let avg10 = |meter: &Meter| (meter.averages(StallExtent::Some)[0] * 1000.0).round() / 10.0;
    meter.advance(ms(2_000));
    assert_eq!(avg10(&meter), 12.0);
    meter.advance(ms(12_000));
    assert_eq!(avg10(&meter), 4.4);
    let (stall, window) = (Duration::from_millis(150), Duration::from_millis(500));
    let trigger = Trigger { extent: StallExtent::Some, stall, window };
    assert_eq!(events(trigger, &[[100, 325], [400, 1500]], 1_000), [250, 750]);
}

/// A time that a thread has read before another thread passed a later one takes no stall time back.
#[test]
fn a_time_before_the_last_one_counts_as_that() {
    let mut meter = Meter::new();
    meter.begin(5_000, 1, StallKind::Frames);
    meter.begin(4_000, 2, StallKind::Frames);
    meter.end(9_000, 1, StallKind::Frames);
    meter.end(8_000, 2, StallKind::Frames);
    let [some, full] = [StallExtent::Some, StallExtent::Full].map(|extent| meter.total_ns(extent));
    assert_eq!((some, full, meter.kind_ns(StallKind::Frames)), (4_000, 4_000, 8_000));
}

/// Threads without a number never count as running, and more threads than the meter remembers do no harm.
#[test]
fn threads_without_a_number_and_many_threads() {
    let mut meter = Meter::new();
    let (some, full) = (StallExtent::Some, StallExtent::Full);
    for nth in 0..1_000 {
        meter.begin(nth * 10, 0, StallKind::FileRead);
        meter.end(nth * 10 + 10, 0, StallKind::FileRead);
    }
    assert_eq!((meter.total_ns(some), meter.total_ns(full)), (10_000, 10_000));
    for thread in 1..=1_000 {
        meter.begin(10_000 + u64::from(thread), thread, StallKind::FileRead);
    }
    for thread in 1..=1_000 {
        meter.end(20_000 + u64::from(thread), thread, StallKind::FileRead);
    }
    assert_eq!((meter.total_ns(some), meter.stalled()), (10_000 + 10_999, 0));
}

#[test]
fn the_sources_with_the_most_stall_time_are_known() {
    let mut sources = Sources::default();
    let file = |inode| Source::File(FileId { device: 1, inode });
    for nth in 0..1_000 {
        sources.add(file(nth), 1_000_000);
        sources.add(Source::Mapping(0x1000), 100_000_000);
        sources.add(file(0), 50_000_000);
    }
    let most = sources.most();
    assert_eq!(most.len(), 16);
    let [first, second] = [most[0], most[1]];
    assert_eq!((first.address, first.inode, first.stall_us, first.over_us), (0x1000, 0, 100_000_000, 0));
    assert_eq!((second.inode, second.device, second.stall_us, second.stalls), (0, 1, 50_001_000, 1_001));
    // The last source has taken over another source's entry, and its `over_us` says so.
    assert!(most.iter().any(|source| source.inode == 999 && source.over_us + 1_000 == source.stall_us));
}

/// The times in ms of the events of a window, which is looked at whenever it asks for that. `stalls`: the
/// beginning and the end of each stall, in ms.
fn events(trigger: Trigger, stalls: &[[u64; 2]], until_ms: u64) -> Vec<u64> {
    let ms = |ns: u64| ns / 1_000_000;
    let total = |now_ns: u64| {
        let of = |[begin, end]: &[u64; 2]| now_ns.min(end * 1_000_000).saturating_sub(begin * 1_000_000);
        stalls.iter().map(of).sum::<u64>()
    };
    let mut window = Window::new(&trigger, 0, 0);
    let (mut now_ns, mut events) = (0, Vec::new());
    while ms(now_ns) < until_ms {
        if window.fires(now_ns, total(now_ns)) {
            events.push(ms(now_ns));
        }
        let stalls_now = stalls.iter().any(|[begin, end]| (*begin..*end).contains(&ms(now_ns)));
        let begins = stalls.iter().map(|stall| stall[0] * 1_000_000).find(|begin_ns| *begin_ns > now_ns);
        let look_ns = window.look_at_ns(now_ns, total(now_ns), stalls_now.then_some(now_ns));
        let next_ns = look_ns.unwrap_or(u64::MAX).min(begins.unwrap_or(u64::MAX));
        assert!(next_ns > now_ns);
        now_ns = next_ns;
    }
    events
}

#[test]
fn a_trigger_has_one_event_in_a_window_at_most_and_at_the_right_moment() {
    let ms = Duration::from_millis;
    let trigger = |stall, window| Trigger { extent: StallExtent::Some, stall: ms(stall), window: ms(window) };
    // One long stall: an event after 30 ms, and then one in each window.
    assert_eq!(events(trigger(30, 100), &[[50, 400]], 1_000), [80, 180, 280, 380]);
    // Not enough stall time in any window.
    assert_eq!(events(trigger(30, 100), &[[0, 20], [200, 220], [500, 529]], 1_000), []);
    // Enough stall time, although a window ends between the two stalls.
    let apart = events(trigger(30, 100), &[[80, 98], [104, 125]], 1_000);
    assert!(matches!(apart[..], [at] if (115..=120).contains(&at)), "{apart:?}");
    // The shortest window.
    assert_eq!(events(trigger(5, 10), &[[1_000, 1_026]], 2_000), [1_005, 1_015, 1_025]);
    for wrong in [trigger(1, 9), trigger(11, 10), trigger(0, 100), trigger(1, 10_001)] {
        assert!(!wrong.is_valid(), "{wrong:?}");
    }
    assert!(trigger(10, 10).is_valid() && trigger(1, 10_000).is_valid());
}

fn stall(pressure: &Arc<Pressure>, thread: u32) -> Stall {
    Stall::begin(pressure, thread, StallKind::SwapIn, Source::Mapping(0x2000))
}

#[test]
fn a_stall_ends_with_its_guard_and_is_its_ancestors_too() {
    let locks = LockStats::new();
    let root = Pressure::new(None, &locks);
    let [one, two] = [(); 2].map(|()| Pressure::new(Some(&root), &locks));
    let stalled = || [&root, &one, &two].map(|of| of.state.lock().meter.stalled());
    let first = stall(&one, 1);
    let second = stall(&two, 2);
    assert_eq!(stalled(), [2, 1, 1]);
    thread::sleep(Duration::from_millis(20));
    drop(first);
    let left = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _second = second;
        panic!("with a stall that has begun");
    }));
    assert!(left.is_err());
    assert_eq!(stalled(), [0; 3]);
    let [of_root, of_one, of_two] = [&root, &one, &two].map(|of| of.figures());
    assert!(of_one.some.total_us >= 20_000 && of_two.some.total_us >= 20_000);
    let both_us = of_one.kinds.swap_in_us + of_two.kinds.swap_in_us;
    assert!(of_root.kinds.swap_in_us.abs_diff(both_us) <= 4, "{of_root:?}");
    assert!(of_root.some.total_us < of_root.kinds.swap_in_us && of_root.some.avg10 > 0.0);
    let [source] = of_root.sources[..] else { panic!("{of_root:?}") };
    assert_eq!((source.address, source.stalls, source.over_us), (0x2000, 2, 0));
    assert!(of_root.elapsed_us >= of_root.some.total_us);
}

#[test]
fn a_watch_tells_once_in_a_window_that_a_thread_stalls() {
    let ms = Duration::from_millis;
    let pressure = Pressure::new(None, &LockStats::new());
    let trigger = |extent| Trigger { extent, stall: ms(20), window: ms(200) };
    assert!(pressure.watch(Trigger { window: ms(1), ..trigger(StallExtent::Some) }).is_none());
    let mut watch = pressure.watch(trigger(StallExtent::Some)).unwrap();
    assert!(!watch.wait(ms(10)), "nothing stalls");
    let (staller, spawned) = (pressure.clone(), Instant::now());
    let stalling = thread::spawn("staller", move || {
        thread::sleep(ms(30));
        let _stall = stall(&staller, 1);
        thread::sleep(ms(300));
    });
    assert!(watch.wait(ms(10_000)));
    let first = Instant::now();
    assert!(!watch.wait(ms(100)), "the window has its event");
    assert!(watch.wait(ms(10_000)), "the stall goes on in the next window");
    assert!(first.elapsed() >= ms(200));
    stalling.unwrap().join().unwrap();
    let after = first.saturating_duration_since(spawned);
    assert!(after >= ms(50) && after < ms(250), "the event came after {after:?}");
    assert_eq!(pressure.state.lock().watching, 0);
    // A thread whose stall has just ended counts as running, so another thread's stall is not full yet.
    let mut full = pressure.watch(trigger(StallExtent::Full)).unwrap();
    let _other = stall(&pressure, 2);
    assert!(!full.wait(ms(100)));
    assert!(full.wait(ms(10_000)), "it has not been seen for a second");
}
