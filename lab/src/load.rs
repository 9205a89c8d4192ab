//! What else the machine did during a run: other programs, and other machines on the same processors. Figures
//! of runs beside other load are worth little, so the tables say so.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::procfs::{self, Ticks};

/// From which share of all processors' time on a run is beside other load.
const MOST_PERCENT: f64 = 5.0;

/// Of one run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Time that a hypervisor gave to others, of all processors' time (steal).
    pub steal_percent: f64,
    /// User time of programs that the lab has not started, of all processors' time. Without system time, in
    /// which kernel threads work for the run itself.
    pub others_percent: f64,
    /// Threads that could run when the run began, without the lab's.
    pub runnable_before: Option<u64>,
    /// The load average of the minute before the run; earlier runs are in it.
    pub average_before: Option<f64>,
    /// The share of the 10 s before the run in which some thread waited for a processor
    /// (/proc/pressure/cpu); earlier runs are in it.
    pub pressure_before_percent: Option<f64>,
}

/// The state at the beginning of a run.
#[derive(Debug)]
pub struct Begun {
    at: Instant,
    ticks: Ticks,
    own_user: Duration,
    load: Load,
}

impl Load {
    /// Looks at the machine at the beginning of a run; `None` where it does not tell.
    pub fn begin() -> Option<Begun> {
        let load = Self {
            steal_percent: 0.0,
            others_percent: 0.0,
            // The thread that asks can run.
            runnable_before: procfs::runnable().map(|threads| threads.saturating_sub(1)),
            average_before: procfs::load_average(),
            pressure_before_percent: procfs::cpu_pressure_percent(),
        };
        let own_user = own_user()?;
        Some(Begun { at: Instant::now(), ticks: procfs::ticks().ok()?, own_user, load })
    }

    /// Whether figures of the run are disturbed.
    pub fn is_beside_other(&self) -> bool {
        self.steal_percent > MOST_PERCENT || self.others_percent > MOST_PERCENT
    }
}

impl Begun {
    /// What it was until now. All that the lab has started must have been waited for.
    pub fn end(self) -> Option<Load> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let all = self.at.elapsed() * processors as u32;
        let (ticks, own_user) = (procfs::ticks().ok()?, own_user()?);
        Some(self.until(all, ticks, own_user))
    }

    /// The same by what the machine says now; `all` is the time of all processors meanwhile.
    fn until(self, all: Duration, ticks: Ticks, own_user: Duration) -> Load {
        let since = |now: Duration, before: Duration| now.saturating_sub(before);
        let others = since(since(ticks.user, self.ticks.user), since(own_user, self.own_user));
        let steal = since(ticks.steal, self.ticks.steal);
        let percent = |time: Duration| (time.as_secs_f64() / all.as_secs_f64().max(1e-9) * 100.0).min(100.0);
        Load { steal_percent: percent(steal), others_percent: percent(others), ..self.load }
    }
}

/// User time of the lab and of all that it has started and waited for.
fn own_user() -> Option<Duration> {
    procfs::cpu(u64::from(std::process::id())).ok().map(|cpu| cpu.user)
}

/// What is said of all runs of a table; nothing if none was beside other load.
pub fn warning(loads: &[Load]) -> Option<String> {
    let disturbed = loads.iter().filter(|load| load.is_beside_other()).count();
    if disturbed == 0 {
        return None;
    }
    let most = |of: fn(&Load) -> f64| loads.iter().map(of).fold(0.0, f64::max);
    let first = loads.first();
    let before = first.and_then(|load| load.average_before).map(|load| format!("load average {load:.1}"));
    let pressure = first.and_then(|load| load.pressure_before_percent);
    let pressure =
        pressure.map(|percent| format!("threads waited for a processor {percent:.0} % of the time"));
    let before: Vec<String> = before.into_iter().chain(pressure).collect();
    let before =
        if before.is_empty() { String::new() } else { format!(" Before the first: {}.", before.join(", ")) };
    Some(format!(
        "{disturbed} of {} runs were beside other load: other programs took up to {:.0} % of the processors' \
         time, other machines up to {:.0} % (steal). Their figures are worth little.{before}",
        loads.len(),
        most(|load| load.others_percent),
        most(|load| load.steal_percent),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Load = Load {
        steal_percent: 1.0,
        others_percent: 2.0,
        runnable_before: Some(0),
        average_before: Some(1.25),
        pressure_before_percent: Some(3.0),
    };

    #[test]
    fn runs_beside_other_load_are_counted_and_quiet_ones_are_not_spoken_of() {
        assert_eq!(warning(&[]), None);
        assert_eq!(warning(&[QUIET, QUIET]), None);
        let stolen = Load { steal_percent: 30.0, ..QUIET };
        let shared = Load { others_percent: 44.0, ..QUIET };
        let text = warning(&[QUIET, stolen, shared]).unwrap();
        assert!(text.starts_with("2 of 3 runs") && text.contains("up to 44 %"), "{text}");
        assert!(text.contains("up to 30 % (steal)") && text.contains("load average 1.2, "), "{text}");
        let unknown = Load { average_before: None, pressure_before_percent: None, ..stolen };
        assert!(warning(&[unknown]).unwrap().ends_with("worth little."));
    }

    #[test]
    fn what_the_lab_uses_itself_and_what_the_kernel_does_are_no_other_load() {
        let of = Duration::from_millis;
        let ticks = |user, busy, steal| Ticks { user: of(user), busy: of(busy), steal: of(steal) };
        let begun =
            || Begun { at: Instant::now(), ticks: ticks(1000, 2000, 10), own_user: of(300), load: QUIET };
        // Two processors for a second: programs took 1.2 s, of which 0.9 s are the lab's.
        let load = begun().until(of(2000), ticks(2200, 3900, 60), of(1200));
        assert_eq!((load.others_percent, load.steal_percent), (15.0, 2.5));
        assert!(load.is_beside_other() && load.average_before == QUIET.average_before);
        // All of it is the lab's, as far as ticks say.
        let load = begun().until(of(2000), ticks(2200, 3900, 10), of(1505));
        assert_eq!((load.others_percent, load.steal_percent), (0.0, 0.0));
    }

    #[test]
    fn another_program_beside_a_run_is_seen() {
        let begun = Load::begin().unwrap();
        let mut child = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        std::thread::sleep(Duration::from_secs(1));
        // It is waited for only afterwards, so that it is none of the lab's.
        let beside = begun.end().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        // It has at least a tenth of a processor, or others have that.
        let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let others = beside.others_percent * processors + beside.steal_percent * processors;
        assert!(others > 10.0, "{beside:?}");
        assert!(beside.average_before.is_some() && beside.runnable_before.is_some(), "{beside:?}");
    }
}
