//! The accesses of a processor.

use super::there;
use crate::support::*;
use elbowroom::{AccessError, Config, Sharing};

#[test]
fn counters_add_up_over_threads_and_spaces() {
    let m = SoftMachine::start(Config::with_memory(BUDGET)).unwrap();
    const ROUNDS: u64 = 3000;
    let addr = m.map_anon(3, Sharing::Shared);
    let child = m.space().fork().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (m, child) = (&m, &child);
            scope.spawn(move || {
                let (space, cpu) =
                    if thread % 2 == 0 { (m.space(), m.space().cpu()) } else { (child, child.cpu()) };
                let here = there(addr, m.space(), space);
                for round in 0..ROUNDS {
                    let wide = here + 8 * (round as usize % 3);
                    let mut seen = cpu.read_u64(wide).unwrap();
                    while let Err(now) = cpu.compare_exchange_u64(wide, seen, seen + 1).unwrap() {
                        seen = now;
                    }
                    let narrow = here + PAGE + 4 * (round as usize % 5);
                    let mut seen = 0;
                    while let Err(now) = cpu.compare_exchange_u32(narrow, seen, seen + 1).unwrap() {
                        seen = now;
                    }
                }
            });
        }
    });
    let cpu = m.space().cpu();
    let wide: u64 = (0..3).map(|i| cpu.read_u64(addr + 8 * i).unwrap()).sum();
    let mut bytes = [0; 20];
    cpu.read(there(addr, m.space(), &child) + PAGE, &mut bytes).unwrap();
    let narrow: u64 = bytes.chunks(4).map(|b| u64::from(u32::from_le_bytes(b.try_into().unwrap()))).sum();
    assert_eq!((wide, narrow), (4 * ROUNDS, 4 * ROUNDS));
    assert_eq!(cpu.compare_exchange_u64(addr + 4, 0, 1), Err(AccessError::Invalid(addr + 4)));
    assert_eq!(cpu.compare_exchange_u32(addr + 2, 0, 1), Err(AccessError::Invalid(addr + 2)));
}

#[test]
fn ranges_and_batches() {
    let m = SoftMachine::start(Config::with_memory(BUDGET)).unwrap();
    let other = m.manager().create_space().unwrap();
    let cpu = m.space().cpu();
    let (one, two) = (m.map_anon(8, Sharing::Private), other.map(request(None, 8, Sharing::Shared)).unwrap());
    let data: Vec<u8> = (0..3 * PAGE + 333).map(|i| (i * 31 % 251) as u8).collect();
    // Parts of two spaces, across pages, one of them empty.
    let parts =
        [(one + PAGE - 100, PAGE + 200), (two + 77, 0), (two + 5, 2 * PAGE + 100), (one + 7 * PAGE, 33)];
    cpu.write_vectored(&parts, &data).unwrap();
    let mut out = vec![0; data.len()];
    cpu.read_vectored(&parts, &mut out).unwrap();
    assert!(out == data);
    let mut middle = vec![0; 2 * PAGE + 100];
    cpu.read(two + 5, &mut middle).unwrap();
    assert!(middle == data[PAGE + 200..3 * PAGE + 300]);
    // From one space to the other, and back to another place.
    cpu.copy(two + 5, one + 3 * PAGE + 11, 2 * PAGE + 100).unwrap();
    cpu.read(one + 3 * PAGE + 11, &mut middle).unwrap();
    assert!(middle == data[PAGE + 200..3 * PAGE + 300]);
    assert!(matches!(cpu.copy(one, one + 5, 100), Err(AccessError::Invalid(_))));
    cpu.fill(two + PAGE - 3, PAGE + 6, 0xEE).unwrap();
    let mut around = vec![0; PAGE + 8];
    cpu.read(two + PAGE - 4, &mut around).unwrap();
    assert!(around[1..PAGE + 7].iter().all(|&b| b == 0xEE) && around[0] != 0xEE && around[PAGE + 7] != 0xEE);
    let addrs: Vec<usize> =
        (0..200).map(|i| if i % 2 == 0 { one } else { two } + i * 137 % (8 * PAGE - 8)).collect();
    let mut words = vec![0; addrs.len()];
    cpu.read_batch(&addrs, &mut words).unwrap();
    for (addr, word) in addrs.into_iter().zip(words) {
        assert_eq!(word, cpu.word(addr), "{addr:#x}");
    }
    // A word across two pages.
    cpu.write_u64(one + 5 * PAGE - 3, 0x0102_0304_0506_0708).unwrap();
    assert_eq!(cpu.read_u64(one + 5 * PAGE - 3), Ok(0x0102_0304_0506_0708));
}

#[test]
fn an_access_ends_where_the_mapping_does() {
    let m = SoftMachine::start(Config::with_memory(BUDGET)).unwrap();
    let addr = m.map_anon(4, Sharing::Private);
    m.space().unmap(addr + 2 * PAGE, 2 * PAGE).unwrap();
    let cpu = m.space().cpu();
    let end = addr + 2 * PAGE;
    assert_eq!(cpu.write(end - 100, &[7; 200]), Err(AccessError::NotMapped(end)));
    let mut out = [1; 200];
    assert_eq!(cpu.read(end - 100, &mut out), Err(AccessError::NotMapped(end)));
    assert!(
        out[..100].iter().all(|&b| b == 7) && out[100..].iter().all(|&b| b == 1),
        "what was before is done"
    );
    assert_eq!(cpu.fill(end - 1, 2, 3), Err(AccessError::NotMapped(end)));
    assert_eq!(cpu.copy(end - 10, addr, 20), Err(AccessError::NotMapped(end)));
    assert_eq!(cpu.copy(addr, end - 10, 20), Err(AccessError::NotMapped(end)));
    assert!(matches!(cpu.read_u64(end - 4), Err(AccessError::NotMapped(at)) if at == end || at == end - 4));
    assert_eq!(cpu.read_batch(&[addr, end + 8], &mut [0; 2]), Err(AccessError::NotMapped(end + 8)));
}

#[test]
fn wild_addresses_are_not_mapped() {
    let m = SoftMachine::start(Config::with_memory(BUDGET)).unwrap();
    let addr = m.map_anon(1, Sharing::Private);
    m.set_word(addr, 1);
    let cpu = m.space().cpu();
    let base = m.base();
    let wild = [
        0,
        8,
        base,
        base + (64 << 10) - 8,
        base + (1 << 47) - 8,
        base + (1 << 47) - 4096,
        base + (1 << 47),
        base + (1 << 48) - 8,
        base + (1 << 48),
        addr & ((1 << 48) - 1),
        addr + (1 << 48),
        addr + (5 << 48),
        addr | (0xFFFF << 48),
        1 << 63,
        usize::MAX - 7,
        usize::MAX & !(PAGE - 1),
    ];
    for at in wild {
        assert_eq!(cpu.read_u64(at), Err(AccessError::NotMapped(at)), "{at:#x}");
        assert_eq!(cpu.write_u64(at, 1), Err(AccessError::NotMapped(at)), "{at:#x}");
        assert_eq!(cpu.read(at, &mut [0; 3]), Err(AccessError::NotMapped(at)), "{at:#x}");
        assert_eq!(cpu.fill(at, 1, 1), Err(AccessError::NotMapped(at)), "{at:#x}");
        assert_eq!(cpu.compare_exchange_u64(at, 0, 1), Err(AccessError::NotMapped(at)), "{at:#x}");
        assert_eq!(
            cpu.pin(at, 1, elbowroom::Intent::Read).err(),
            Some(AccessError::NotMapped(at)),
            "{at:#x}"
        );
        assert_eq!(cpu.copy(at, addr, 8), Err(AccessError::NotMapped(at)), "{at:#x}");
        assert_eq!(cpu.read(at, &mut []), Ok(()), "nothing is asked for");
    }
    assert!(cpu.read_u64(usize::MAX - 3).is_err());
    assert!(cpu.read(usize::MAX - 3, &mut [0; 100]).is_err());
    assert!(cpu.fill(usize::MAX, usize::MAX, 0).is_err());
    assert_eq!(m.word(addr), 1);
}
