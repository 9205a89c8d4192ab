//! Whether polling for completions before going to sleep has been worth it lately. Plain data.

/// The highest balance.
const MOST: u32 = 16;

/// How much a look in vain takes from the balance; a successful look adds 1.
const PRICE: u32 = 2;

/// If the balance is too low, one in so many looks is tried all the same.
const TRY_ONE_IN: u32 = 64;

/// The balance of recent looks.
pub(crate) struct Looks {
    balance: u32,
    skipped: u32,
}

impl Looks {
    pub(crate) fn new() -> Self {
        Self { balance: MOST / 2, skipped: 0 }
    }

    /// Whether to look now.
    pub(crate) fn are_worth_it(&mut self) -> bool {
        self.skipped += 1;
        let try_it = self.balance >= PRICE || self.skipped >= TRY_ONE_IN;
        if try_it {
            self.skipped = 0;
        }
        try_it
    }

    /// Notes whether a look was successful.
    pub(crate) fn note(&mut self, came: bool) {
        self.balance = if came { (self.balance + 1).min(MOST) } else { self.balance.saturating_sub(PRICE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of 1000 waits look, if something comes soon in one of `one_in`.
    fn looked(one_in: u32) -> usize {
        let mut looks = Looks::new();
        let mut looked = 0;
        for wait in 0..1000 {
            if looks.are_worth_it() {
                looked += 1;
                looks.note(wait % one_in == 0);
            }
        }
        looked
    }

    #[test]
    fn it_looks_where_something_comes() {
        assert_eq!(looked(1), 1000, "each time");
        assert!(looked(1000) < 30, "hardly ever: {}", looked(1000));
        assert!(looked(8) < 200, "seldom: {}", looked(8));
        let mut looks = Looks::new();
        (0..20).for_each(|_| looks.note(false));
        let waits = (0..2 * TRY_ONE_IN).filter(|_| looks.are_worth_it()).count();
        assert_eq!(waits, 2, "it is tried again");
        (0..4).for_each(|_| looks.note(true));
        assert!(looks.are_worth_it() && looks.are_worth_it());
    }
}
