//! What the manager's own statistics say of its locks: the key `locks` of `--stats`.

use serde_json::Value;

/// Waits are counted by how long they were: below 1, 10, 100 us and so on, and from 1 s on.
pub const DECADES: usize = 8;

/// What the decades are called.
pub const DECADE_NAMES: [&str; DECADES] =
    ["< 1 us", "< 10 us", "< 100 us", "< 1 ms", "< 10 ms", "< 100 ms", "< 1 s", "longer"];

/// How one kind of lock was used in one run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LockUse {
    /// How often it was taken.
    pub acquisitions: f64,
    /// How often somebody waited for it.
    pub contended: f64,
    /// All waits together.
    pub wait_ns: f64,
    /// The waits by how long they were.
    decades: [f64; DECADES],
    /// Of how many acquisitions it was measured how long they had it.
    pub holds: f64,
    /// All these together.
    pub hold_ns: f64,
}

impl LockUse {
    /// A class of locks, in the modes that are named. `None` if the statistics have no locks; nothing but
    /// zeros if nobody took one of the class.
    pub fn of(stats: &Value, lock: &str, modes: &[&str]) -> Option<Self> {
        let rows = stats.get("locks")?.get("by_lock")?.as_array()?;
        let is_meant = |row: &&Value| row["lock"] == lock && modes.iter().any(|mode| row["mode"] == *mode);
        let mut all = Self::default();
        for row in rows.iter().filter(is_meant) {
            let figure = |key: &str| row[key].as_f64().unwrap_or(0.0);
            all.acquisitions += figure("acquisitions");
            all.contended += figure("contended");
            all.wait_ns += figure("wait_ns");
            all.holds += figure("holds_measured");
            all.hold_ns += figure("holds_measured") * figure("hold_average_ns");
            let waits = row["waits_by_decade"].as_array().into_iter().flatten();
            for (sum, waits) in all.decades.iter_mut().zip(waits) {
                *sum += waits.as_f64().unwrap_or(0.0);
            }
        }
        Some(all)
    }

    /// What an acquisition waited, on average. `None` if there was none.
    pub fn average_wait_ns(&self) -> Option<f64> {
        (self.acquisitions > 0.0).then(|| self.wait_ns / self.acquisitions)
    }

    /// All acquisitions by how long they waited: one that met no other is among the shortest waits, as in
    /// what others have published.
    pub fn waits(&self) -> [f64; DECADES] {
        let mut waits = self.decades;
        waits[0] += (self.acquisitions - self.contended).max(0.0);
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn acquisitions_that_met_no_other_are_the_shortest_waits() {
        let row = |lock: &str, mode: &str, holds: u64| {
            json!({ "lock": lock, "mode": mode, "caller": null, "acquisitions": 10, "contended": 3,
                    "wait_ns": 5000, "waits_by_decade": [1, 2, 0, 0, 0, 0, 0, 0],
                    "holds_measured": holds, "hold_average_ns": 7 })
        };
        let stats = json!({ "locks": {
            "by_lock": [row("layout", "read", 0), row("layout", "write", 4), row("lru", "write", 0)],
            "by_caller": [row("layout", "read", 0)],
        } });
        let read = LockUse::of(&stats, "layout", &["read"]).unwrap();
        assert_eq!((read.acquisitions, read.average_wait_ns(), read.hold_ns), (10.0, Some(500.0), 0.0));
        assert_eq!(read.waits(), [8.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        let both = LockUse::of(&stats, "layout", &["read", "write"]).unwrap();
        assert_eq!((both.waits().iter().sum::<f64>(), both.hold_ns), (20.0, 28.0));
        // Nobody took it, which is not the same as nobody having counted.
        assert_eq!(LockUse::of(&stats, "io", &["write"]), Some(LockUse::default()));
        assert_eq!(LockUse::of(&json!({}), "io", &["write"]), None);
    }
}
