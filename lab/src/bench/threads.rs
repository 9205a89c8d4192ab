//! Threads that all do the same, and are all joined, whatever one of them says.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::interrupt::Interrupt;

/// Has `work` done by so many threads, each of which is told its number.
///
/// # Errors
/// The first that one of them said.
pub fn all<T: Send>(threads: usize, work: impl Fn(usize) -> Result<T> + Sync) -> Result<Vec<T>> {
    std::thread::scope(|scope| joined(spawned(scope, threads, &work)))
}

/// The same for a while: when it is over they are told to stop. With that, how long it was until the last of
/// them had stopped.
///
/// # Errors
/// The first that one of them said, or that a signal came.
pub fn for_a_while<T: Send>(
    threads: usize,
    time: Duration,
    interrupt: &Interrupt,
    work: impl Fn(usize, &AtomicBool) -> Result<T> + Sync,
) -> Result<(Vec<T>, Duration)> {
    let stop = AtomicBool::new(false);
    let work = |number| {
        let done = work(number, &stop);
        if done.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
        done
    };
    std::thread::scope(|scope| {
        // Also if a thread cannot be started: the others are waited for.
        let _stops = Stops(&stop);
        let begin = Instant::now();
        let threads = spawned(scope, threads, &work);
        let slept = interrupt.sleep_until(begin + time);
        stop.store(true, Ordering::Relaxed);
        let done = joined(threads);
        slept?;
        Ok((done?, begin.elapsed()))
    })
}

/// Tells threads to stop when it is dropped.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn spawned<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    threads: usize,
    work: &'scope (impl Fn(usize) -> Result<T> + Sync),
) -> Vec<ScopedJoinHandle<'scope, Result<T>>> {
    (0..threads).map(|number| scope.spawn(move || work(number))).collect()
}

fn joined<T>(threads: Vec<ScopedJoinHandle<'_, Result<T>>>) -> Result<Vec<T>> {
    let results: Vec<_> = threads
        .into_iter()
        .map(|thread| thread.join().ok().context("a thread has panicked").flatten())
        .collect();
    results.into_iter().collect()
}
