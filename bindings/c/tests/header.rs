//! `include/elbowroom.h` is what cbindgen makes of this crate.

use std::fs;
use std::path::Path;

/// Set: the header is written, instead of compared.
const WRITE: &str = "ELBOWROOM_WRITE_HEADER";

#[test]
fn the_header_is_that_of_the_source() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let made = cbindgen::Builder::new().with_crate(root).with_config(config).generate().unwrap();
    let mut text = Vec::new();
    made.write(&mut text);
    // Rust's heading for what a caller must keep to.
    let text = String::from_utf8(text).unwrap().replace(" # Safety\n ", " Pointers: ");
    let path = root.join("include/elbowroom.h");
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, &text).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == text,
        "include/elbowroom.h is not that of the source: say `{WRITE}=1 cargo test -p elbowroom-c`"
    );
}
