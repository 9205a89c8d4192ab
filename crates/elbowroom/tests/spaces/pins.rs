//! Pins.

use crate::support::*;
use elbowroom::{AccessError, Config, Errno, Intent, Pin, Prot, Remap, Sharing};
use elbowroom_sync::atomic::{AtomicBool, Ordering};
use elbowroom_sync::thread;
use elbowroom_sync::time::{Duration, Instant};

fn word(pin: &Pin<'_>) -> u64 {
    let bytes: Vec<u8> = pin.iter().take(8).map(|byte| byte.load(Ordering::Relaxed)).collect();
    u64::from_le_bytes(bytes.try_into().unwrap())
}

fn set_word(pin: &Pin<'_>, word: u64) {
    pin.iter().zip(word.to_le_bytes()).for_each(|(place, byte)| place.store(byte, Ordering::Relaxed));
}

/// Each of these takes the page away, and so waits for its pin.
#[test]
fn what_takes_a_page_away_waits_for_its_pin() {
    type Verb = fn(&SoftMachine, usize) -> Result<(), Errno>;
    let verbs: [(&str, Verb); 4] = [
        ("unmap", |m, addr| m.space().unmap(addr, 4 * PAGE)),
        ("protect", |m, addr| m.space().protect(addr, 4 * PAGE, Prot::READ)),
        ("remap", |m, addr| {
            m.space().remap(addr, 4 * PAGE, 4 * PAGE, Remap::DontUnmap(m.base())).map(|_| ())
        }),
        ("dont need", |m, addr| m.space().advise(addr, 4 * PAGE, elbowroom::Advice::DontNeed)),
    ];
    let m = SoftMachine::start(Config::with_memory(BUDGET)).unwrap();
    for (name, verb) in verbs {
        let addr = m.map_anon(4, Sharing::Private);
        m.mark(addr, 0..4, 1);
        let cpu = m.space().cpu();
        let pin = cpu.pin(addr + 2 * PAGE, 64, Intent::Write).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                verb(&m, addr).unwrap();
                done.store(true, Ordering::Release);
            });
            let until = Instant::now() + Duration::from_millis(200);
            while Instant::now() < until {
                assert!(!done.load(Ordering::Acquire), "{name} did not wait");
                assert_eq!(word(&pin), stamp(2) ^ 1, "{name}");
                thread::sleep(Duration::from_millis(5));
            }
            set_word(&pin, 99);
            assert_eq!(word(&pin), 99);
            drop(pin);
        });
        assert!(done.load(Ordering::Acquire), "{name}");
    }
}

#[test]
fn pinned_pages_stay_under_pressure() {
    let m = SoftMachine::start(Config::with_memory(BUDGET)).unwrap();
    let dir = scratch();
    let pages = 3 * BUDGET as usize / PAGE;
    let path = stamped(dir.path(), "pinned", pages);
    let object = m.manager().open(&path, true).unwrap();
    let addr = m.map_file(&object, pages, Sharing::Shared);
    let cpu = m.space().cpu();
    let places = [0, 77, 1000, pages - 1];
    let pins = places.map(|page| cpu.pin(addr + page * PAGE, PAGE, Intent::Write).unwrap());
    for round in 0..2 {
        let reader = m.space().cpu();
        for page in (0..pages).filter(|page| !places.contains(page)) {
            assert_eq!(reader.word(addr + page * PAGE + 8), stamp(page));
        }
        for (pin, page) in pins.iter().zip(places) {
            assert_eq!(word(pin), stamp(page) ^ round);
            set_word(pin, stamp(page) ^ (round + 1));
            assert_eq!(reader.word(addr + page * PAGE), stamp(page) ^ (round + 1), "stores show at once");
        }
    }
    drop(pins);
    assert!(m.manager().stats().evicted_pages > 0);
    m.space().sync(addr, pages * PAGE, true, false).unwrap();
    for page in places {
        assert_eq!(file_word(&path, page * PAGE), stamp(page) ^ 2, "stores through pins reach the file");
    }
}

#[test]
fn pins_have_bounds() {
    let m = SoftMachine::start(Config::with_memory(BUDGET)).unwrap();
    let addr = m.map_anon(4, Sharing::Private);
    let cpu = m.space().cpu();
    let refused = |at: usize, len, intent| cpu.pin(at, len, intent).err();
    assert_eq!(refused(addr + 8, PAGE, Intent::Read), Some(AccessError::Invalid(addr + 8)));
    assert_eq!(refused(addr + 4 * PAGE, 8, Intent::Read), Some(AccessError::NotMapped(addr + 4 * PAGE)));
    m.space().protect(addr, PAGE, Prot::READ).unwrap();
    assert_eq!(refused(addr, 8, Intent::Write), Some(AccessError::Denied(addr)));
    drop(cpu.pin(addr, 8, Intent::Read).unwrap());
    let mut pins = Vec::new();
    let refusal = loop {
        match cpu.pin(addr + PAGE, 8, Intent::Write) {
            Ok(pin) => pins.push(pin),
            Err(error) => break error,
        }
        assert!(pins.len() < 1 << 20, "they are bounded");
    };
    assert_eq!(refusal, AccessError::TooManyPins(addr + PAGE));
    // The page still takes stores, and another bound was not met.
    cpu.write_u64(addr + PAGE, 5).unwrap();
    assert!(pins.iter().all(|pin| word(pin) == 5));
    assert!(pins.pop().is_some());
    pins.push(cpu.pin(addr + PAGE, 8, Intent::Read).unwrap());
    drop(pins);
    m.space().unmap(addr, 4 * PAGE).unwrap();
}
