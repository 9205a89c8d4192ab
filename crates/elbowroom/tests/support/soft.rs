//! A soft space.

use super::{Failure, Machine, Port, ablated};
use elbowroom::{AccessError, Config, Cpu, Manager, Soft, Space};

/// A manager of soft spaces with one space.
pub struct SoftMachine {
    space: Space<Soft>,
    manager: Manager<Soft>,
}

impl Machine for SoftMachine {
    type Platform = Soft;

    fn start(config: Config) -> Option<Self> {
        let manager = Manager::<Soft>::start_on(ablated(config)).unwrap();
        let space = manager.create_space().unwrap();
        Some(Self { space, manager })
    }

    fn manager(&self) -> &Manager<Soft> {
        &self.manager
    }

    fn space(&self) -> &Space<Soft> {
        &self.space
    }

    fn base(&self) -> usize {
        self.space.base()
    }

    fn port(&self) -> impl Port {
        self.space.cpu()
    }
}

/// How an access failed, as the tests tell it.
pub fn failure(error: AccessError, addr: usize) -> Failure {
    match error {
        AccessError::NotMapped(at) if at == addr => Failure::NotMapped,
        AccessError::Denied(at) if at == addr => Failure::Denied,
        AccessError::Bus(at) if at == addr => Failure::Bus,
        other => panic!("{other} where {addr:#x} was accessed"),
    }
}

impl Port for Cpu {
    #[track_caller]
    fn load(&self, addr: usize, out: &mut [u8]) {
        self.read(addr, out).unwrap();
    }

    #[track_caller]
    fn store(&self, addr: usize, data: &[u8]) {
        self.write(addr, data).unwrap();
    }

    #[track_caller]
    fn try_word(&self, addr: usize) -> Option<u64> {
        let mut bytes = [0; 8];
        match self.read(addr, &mut bytes) {
            Ok(()) => Some(u64::from_le_bytes(bytes)),
            Err(error) => {
                assert_eq!(failure(error, addr), Failure::Bus);
                None
            }
        }
    }

    #[track_caller]
    fn try_set_word(&self, addr: usize, word: u64) -> bool {
        let stored = self.write(addr, &word.to_le_bytes());
        stored.map_err(|error| assert_eq!(failure(error, addr), Failure::Bus)).is_ok()
    }

    fn can_load(&self, addr: usize) -> bool {
        self.read(addr, &mut [0]).is_ok()
    }

    #[track_caller]
    fn load_fails(&self, addr: usize, how: Failure) {
        let loaded = self.read(addr, &mut [0]);
        assert_eq!(loaded.map_err(|e| failure(e, addr)), Err(how), "load at {addr:#x}");
    }

    #[track_caller]
    fn store_fails(&self, addr: usize, how: Failure) {
        let stored = self.write(addr, &[1]);
        assert_eq!(stored.map_err(|e| failure(e, addr)), Err(how), "store at {addr:#x}");
    }
}
