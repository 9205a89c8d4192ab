//! Options and tables of the unmodified programs.

use super::*;
use crate::engine::Kind;
use crate::size::Size;
use clap::Parser;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: ProgramsArgs,
}

fn parse(words: &str) -> Result<ProgramsArgs> {
    let line = Line::try_parse_from(["programs"].into_iter().chain(words.split_ascii_whitespace()))?;
    line.args.check().map(|()| line.args)
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_made() {
    let args = parse("--kind files --only lmdb,git --runs 5 --memory 64M --percent 2").unwrap();
    assert!(args.wants("lmdb") && args.wants("git") && !args.wants("lmdb-map") && !args.wants("numpy"));
    let all = parse("").unwrap();
    assert!(catalog::FILES.iter().all(|program| all.wants(program.name)));
    assert_eq!((all.memory().to_string(), all.kernel_readahead.to_string()), ("256M".into(), "128K".into()));
    assert_eq!((all.engines().len(), all.swap()), (2, None));
    let memory = parse("--kind memory --only redis --memory 64M").unwrap();
    assert!(catalog::MEMORY.iter().filter(|program| memory.wants(program.name)).count() == 1);
    assert_eq!((memory.engines().len(), memory.swap()), (3, Some(Size::from_bytes(512 << 20))));
    let in_memory = parse("--kind in-memory --percent 25").unwrap();
    assert!(in_memory.is_in_memory() && in_memory.engines().iter().all(|engine| engine.kind != Kind::Kernel));
    assert_eq!((in_memory.memory().to_string(), in_memory.swap()), ("1G".into(), Some(in_memory.memory())));
    let sort = catalog::MEMORY.iter().find(|program| program.name == "sort").unwrap();
    assert_eq!(in_memory.part_for(sort, in_memory.memory()), in_memory.memory());
    assert_eq!(memory.part_for(sort, memory.memory()).bytes(), 32 << 20);
    let models = parse("--kind models --percent 25").unwrap();
    assert_eq!((models.memory().to_string(), models.swap()), ("204M".into(), None));
    let warm: Vec<_> = models.engines().into_iter().filter(|engine| models.begins_warm(*engine)).collect();
    assert_eq!(warm, [Engine::whole(Kind::Plain)]);
    for (wrong, said) in [
        ("--only mongodb", "there is no program mongodb; there are numpy"),
        ("--runs 0", "--runs must be"),
        ("--percent 0", "--percent must be"),
        ("--memory 8M", "at least 32M"),
        ("--engines soft", "no engine soft"),
        ("--kind mail", "files"),
        ("--kind memory --only annoy", "there are arrays"),
        ("--swap 1G", "--kind memory"),
        ("--kind models --swap 1G", "--kind memory"),
    ] {
        let error = format!("{:#}", parse(wrong).unwrap_err());
        assert!(error.contains(said), "{wrong}: {error}");
    }
}

#[test]
fn every_program_that_is_here_runs_with_little_data() {
    let dir = tempfile::tempdir_in(crate::files::default_parent().unwrap()).unwrap();
    let interrupt = Interrupt::install().unwrap();
    let store = Store::open(Some(dir.path()), 1).unwrap();
    let mut progress = Progress::new();
    let bound = Duration::from_secs(120);
    for program in catalog::FILES.iter().chain(&catalog::MODELS).chain(&catalog::MEMORY) {
        let missing = store.missing(program, &interrupt);
        if !missing.is_empty() {
            eprintln!("{} is skipped: {}", program.name, missing.join("; "));
            continue;
        }
        store.make(program, &interrupt, &mut progress).unwrap();
        let result = || {
            store.prepare(program, Cache::Cold, &interrupt).unwrap();
            let ended = child::run(&store.run_line(program), bound, &interrupt, |_| {});
            let printed = ended.unwrap_or_else(|error| panic!("{}: {error:#}", program.name)).output;
            assert!(printed.bytes > 1, "{} prints nothing", program.name);
            result(&printed, store.check(program, &interrupt).unwrap().as_ref())
        };
        assert_eq!(result(), result(), "{}", program.name);
        store.clear(program).unwrap();
    }
}

#[test]
fn a_program_with_another_result_ends_the_session() {
    let dir = tempfile::tempdir_in(crate::files::default_parent().unwrap()).unwrap();
    let mut args = parse("--runs 2 --percent 1").unwrap();
    args.engines = vec![Engine::whole(Kind::Elbowroom)];
    let session = Session {
        args: &args,
        store: Store::open(Some(dir.path()), 1).unwrap(),
        // Not the real one: it only runs what stands behind its options.
        programs: Programs::standing_in(&dir.path().join("elbowroom")),
        device: None,
        interrupt: Interrupt::install().unwrap(),
        stats: tempfile::tempdir().unwrap(),
    };
    let stand_in = "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\nshift\nexec \"$@\"\n";
    std::fs::write(dir.path().join("elbowroom"), stand_in).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path().join("elbowroom"), executable).unwrap();
    let same = Program { name: "same", data: "x-1", warm: &["true"], run: &["echo", "1"], ..catalog::NONE };
    let other = Program { run: &["date", "+%N"], ..same };
    std::fs::create_dir(dir.path().join("x-1-1")).unwrap();
    let (mut runs, mut failed, mut progress) = (Vec::new(), Vec::new(), Progress::new());
    let mut run = |program: &Program| {
        session.run_program(program, &args.engines, &mut runs, &mut failed, &mut progress)
    };
    run(&same).unwrap();
    // One that fails is left out, and those after it still run.
    run(&Program { name: "fails", run: &["false"], ..same }).unwrap();
    run(&same).unwrap();
    let error = run(&other).unwrap_err();
    assert!(error.to_string().contains("another result"), "{error:#}");
    assert_eq!(runs.iter().filter(|run| run.program == "same").count(), 4 + 1, "the last has its name");
    let [(engine, left_out)] = &failed[..] else { panic!("{} failed", failed.len()) };
    assert!(!engine.is_kernel() && left_out.what.starts_with("fails under"), "{}", left_out.what);
}
