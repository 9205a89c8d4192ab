//! Pages of the swap file that only this process can read: AES-256 in XTS mode, each page a sector by its
//! number in the file, with a key that is made anew and is nowhere but in the process's memory. (dm-crypt's
//! `aes-xts-plain64` with a random key, as it is used for swap.)
//!
//! Whether the bytes that come back are those that went out is told by the slot's checksum, as without a
//! cipher.

use aes::Aes256;
use aes::cipher::KeyInit;
use elbowroom_machine::PAGE_SIZE;
use xts_mode::{Xts128, get_tweak_default};

/// Bytes of a key.
const KEY: usize = 32;

/// A key, and what pages are sealed with.
pub struct Cipher(Xts128<Aes256>);

impl Cipher {
    /// A cipher with a new key.
    ///
    /// # Errors
    /// The kernel has no random bytes.
    pub fn new() -> Result<Self, getrandom::Error> {
        let mut keys = [[0; KEY]; 2];
        keys.iter_mut().try_for_each(|key| getrandom::fill(key))?;
        let [data, tweak] = keys.map(|key| Aes256::new(&key.into()));
        Ok(Self(Xts128::new(data, tweak)))
    }

    /// Encrypts a page, in place, for page `position` of the file.
    pub fn seal(&self, page: &mut [u8], position: u64) {
        self.0.encrypt_area(page, PAGE_SIZE, position.into(), get_tweak_default);
    }

    /// Decrypts, in place, what was read from page `position` of the file.
    pub fn open(&self, page: &mut [u8], position: u64) {
        self.0.decrypt_area(page, PAGE_SIZE, position.into(), get_tweak_default);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_page_can_be_read_at_its_place_by_who_has_the_key() {
        let (own, other) = (Cipher::new().unwrap(), Cipher::new().unwrap());
        let page: Vec<u8> = b"nobody may read this ".iter().copied().cycle().take(PAGE_SIZE).collect();
        let sealed = |position| {
            let mut sealed = page.clone();
            own.seal(&mut sealed, position);
            sealed
        };
        let here = sealed(7);
        assert!(here != page && here != sealed(8), "alike pages are not alike in the file");
        assert!(!here.windows(8).any(|bytes| bytes == &page[..8]));
        let opened = |cipher: &Cipher, position| {
            let mut opened = here.clone();
            cipher.open(&mut opened, position);
            opened
        };
        assert!(opened(&own, 7) == page);
        assert!(opened(&own, 8) != page && opened(&other, 7) != page);
    }
}
