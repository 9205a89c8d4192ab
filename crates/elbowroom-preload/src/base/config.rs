//! What `elbowroom run` asks of the library: the options as the crate `elbowroom-options` describes and
//! reads them, and the option that only the manager can read (ablate).

use elbowroom::Ablation;
use elbowroom_options::GroupSpec;
pub use elbowroom_options::{
    C_VARIABLE, Core, Fallback, Faults, Fork, Heap, Idle, Io, Mmu, Options, Sharing, VARIABLE,
};
use std::ffi::OsStr;

/// Reads the variable's text.
///
/// # Errors
/// One line that says which part is wrong and what it may be.
pub fn parse(text: &OsStr) -> Result<Options, String> {
    let options = Options::parse(text)?;
    read_ablation(&options).map_err(|why| format!("{VARIABLE}: ablate: {why}"))?;
    let groups = options.groups.spec.as_deref().map(GroupSpec::parse).transpose();
    groups.map_err(|why| format!("{VARIABLE}: groups: {why}"))?;
    Ok(options)
}

/// Which improvements are on.
pub fn ablation(options: &Options) -> Ablation {
    // `parse` has refused values that cannot be read.
    read_ablation(options).unwrap_or_default()
}

fn read_ablation(options: &Options) -> Result<Ablation, String> {
    options.tests.ablate.as_deref().map_or(Ok(Ablation::default()), Ablation::without)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_improvements_are_checked() {
        let parse = |text| parse(OsStr::new(text));
        let options = parse("memory=16M;ablate=vma_locks").unwrap();
        assert_eq!(ablation(&options), Ablation::without("vma_locks").unwrap());
        assert_eq!(ablation(&parse("memory=16M").unwrap()), Ablation::default());
        let error = parse("memory=16M;ablate=speed").unwrap_err();
        assert!(error.contains("ELBOWROOM_OPTIONS: ablate: there is no improvement"), "{error}");
        let error = parse("memory=16M;groups=group:a:max:1K").unwrap_err();
        assert_eq!(error, "ELBOWROOM_OPTIONS: groups: group.a.max: it must be at least 1M");
        assert!(parse("memory=16M;colour=red").unwrap_err().contains("colour"));
    }
}
