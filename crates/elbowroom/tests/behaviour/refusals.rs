//! Calls that fail: with Linux's error, and with nothing changed.

use crate::support::*;
use elbowroom::{Advice, Config, Errno, MapRequest, Place, Prot, Remap, Sharing};

on_every_machine! {
    what_is_refused_changes_nothing
}

/// A page of each row is at `Scene::at(row, 0)`.
struct Scene {
    room: usize,
    read_only: MapRequest,
}

/// Pages of each mapping of the scene.
const ROW: usize = 4;

impl Scene {
    fn at(&self, row: usize, page: usize) -> usize {
        self.room + (row * ROW + page) * PAGE
    }
}

/// Rows: private memory, shared memory, a shared file, a private file, a file that is only read, nothing, and
/// locked private memory.
const ROWS: usize = 7;
const HOLE: usize = 5;
const LOCKED: usize = 6;

fn scene<M: Machine>(m: &M, dir: &std::path::Path) -> Scene {
    let path = stamped(dir, "scene", ROW);
    let object = m.manager().open(&path, true).unwrap();
    let room = m.map_anon(ROWS * ROW, Sharing::Private);
    m.space().unmap(room, ROWS * ROW * PAGE).unwrap();
    let read_only =
        MapRequest { prot: Prot::READ, may_write: false, ..request(Some(&object), ROW, Sharing::Shared) };
    let scene = Scene { room, read_only };
    let put = |row, request| {
        m.map(MapRequest { place: Place::Fixed(scene.at(row, 0)), ..request });
    };
    put(0, request(None, ROW, Sharing::Private));
    put(1, request(None, ROW, Sharing::Shared));
    put(2, request(Some(&object), ROW, Sharing::Shared));
    put(3, request(Some(&object), ROW, Sharing::Private));
    put(4, MapRequest { object: Some(object.clone()), ..scene.read_only_again() });
    put(LOCKED, MapRequest { locked: true, ..request(None, ROW, Sharing::Private) });
    for row in [0, 1, 2, 3, LOCKED] {
        m.mark(scene.at(row, 0), 0..ROW, row as u64);
    }
    scene
}

impl Scene {
    /// The request of the mapping that may never be stored to.
    fn read_only_again(&self) -> MapRequest {
        let object = self.read_only.object.as_ref();
        MapRequest { prot: Prot::READ, may_write: false, ..request(object, ROW, Sharing::Shared) }
    }
}

/// Checks that all is as [`scene`] made it.
#[track_caller]
fn check<M: Machine>(m: &M, scene: &Scene) {
    for row in [0, 1, 2, 3, LOCKED] {
        m.check_marks(scene.at(row, 0), 0..ROW, row as u64);
        // The right to store is there, too.
        m.mark(scene.at(row, 0), 0..ROW, row as u64);
    }
    m.check_marks(scene.at(4, 0), 0..ROW, 2);
    m.port().store_fails(scene.at(4, 0), Failure::Denied);
    m.port().load_fails(scene.at(HOLE, 0), Failure::NotMapped);
}

fn what_is_refused_changes_nothing<M: Machine>() {
    type Call<M> = fn(&M, &Scene) -> Result<(), Errno>;
    const LEN: usize = ROW * PAGE;
    let calls: [(&str, Errno, Call<M>); 24] = [
        ("unmap: not aligned", Errno::INVAL, |m, s| m.space().unmap(s.at(0, 0) + 8, LEN)),
        ("unmap: no length", Errno::INVAL, |m, s| m.space().unmap(s.at(0, 0), 0)),
        ("unmap: the end wraps", Errno::INVAL, |m, s| m.space().unmap(s.at(0, 0), usize::MAX - PAGE)),
        ("protect: not aligned", Errno::INVAL, |m, s| m.space().protect(s.at(0, 0) + 8, LEN, Prot::READ)),
        ("protect: a hole first", Errno::NOMEM, |m, s| m.space().protect(s.at(HOLE, 0), 2 * LEN, Prot::READ)),
        ("protect: no right to write", Errno::ACCESS, |m, s| m.space().protect(s.at(4, 0), LEN, RW)),
        ("map: there is something", Errno::EXIST, |m, s| {
            let place = Place::FixedNoReplace(s.at(4, 2));
            m.space().map(MapRequest { place, ..request(None, 2, Sharing::Private) }).map(|_| ())
        }),
        ("map: offset not aligned", Errno::INVAL, |m, s| {
            let place = Place::Fixed(s.at(0, 0));
            m.space().map(MapRequest { place, offset: 7, ..s.read_only_again() }).map(|_| ())
        }),
        ("map: no length", Errno::INVAL, |m, s| {
            let place = Place::Fixed(s.at(0, 0));
            m.space().map(MapRequest { place, len: 0, ..s.read_only_again() }).map(|_| ())
        }),
        ("map: too far into the file", Errno::OVERFLOW, |m, s| {
            let (place, offset) = (Place::Fixed(s.at(0, 0)), (1 << 63) - PAGE as u64);
            m.space().map(MapRequest { place, offset, ..s.read_only_again() }).map(|_| ())
        }),
        ("map: no right to write", Errno::ACCESS, |m, s| {
            let place = Place::Fixed(s.at(0, 0));
            m.space().map(MapRequest { place, prot: RW, ..s.read_only_again() }).map(|_| ())
        }),
        ("remap: no room in place", Errno::NOMEM, |m, s| {
            m.space().remap(s.at(0, 0), LEN, 2 * LEN, Remap::InPlace).map(|_| ())
        }),
        ("remap: of a hole", Errno::FAULT, |m, s| {
            m.space().remap(s.at(HOLE, 0), LEN, 2 * LEN, Remap::MayMove).map(|_| ())
        }),
        ("remap: of two mappings", Errno::FAULT, |m, s| {
            m.space().remap(s.at(0, 0), 2 * LEN, 3 * LEN, Remap::MayMove).map(|_| ())
        }),
        ("remap: onto itself", Errno::INVAL, |m, s| {
            m.space().remap(s.at(0, 0), LEN, LEN, Remap::Fixed(s.at(0, 1))).map(|_| ())
        }),
        ("remap: no length", Errno::INVAL, |m, s| {
            m.space().remap(s.at(0, 0), LEN, 0, Remap::MayMove).map(|_| ())
        }),
        ("remap: private memory twice", Errno::INVAL, |m, s| {
            m.space().remap(s.at(0, 0), 0, LEN, Remap::MayMove).map(|_| ())
        }),
        ("advise: locked", Errno::INVAL, |m, s| m.space().advise(s.at(LOCKED, 0), LEN, Advice::DontNeed)),
        ("advise: not aligned", Errno::INVAL, |m, s| m.space().advise(s.at(0, 0) + 8, LEN, Advice::DontNeed)),
        ("advise: no right to write", Errno::ACCESS, |m, s| {
            m.space().advise(s.at(4, 0), LEN, Advice::Remove)
        }),
        ("sync: not aligned", Errno::INVAL, |m, s| m.space().sync(s.at(2, 0) + 8, LEN, true, false)),
        ("sync: locked", Errno::BUSY, |m, s| m.space().sync(s.at(LOCKED, 0), LEN, false, true)),
        ("sync: a hole", Errno::NOMEM, |m, s| m.space().sync(s.at(HOLE, 0), LEN, false, false)),
        ("lock: a hole", Errno::NOMEM, |m, s| m.space().lock(s.at(HOLE, 0), LEN, false)),
    ];
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let dir = scratch();
    let scene = scene(&m, dir.path());
    check(&m, &scene);
    let all = || m.space().areas(scene.at(0, 0)..scene.at(ROWS, 0));
    let areas = all();
    assert_eq!(areas.len(), ROWS - 1);
    for (name, errno, call) in calls {
        assert_eq!(call(&m, &scene), Err(errno), "{name}");
        assert_eq!(all(), areas, "{name}");
        check(&m, &scene);
    }
}
