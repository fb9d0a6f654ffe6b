//! Checkpoints from the outside: the public cases CK-* over whole model folders.

mod support;

use blockstream_tui::checkpoint::{self, Checkpoint};
use std::path::Path;
use support::fixture::Model;

fn open(dir: &Path) -> Checkpoint {
    checkpoint::open(dir).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn the_base_fixture_is_the_one_of_the_cases() {
    let dir = tempfile::tempdir().unwrap();
    let c = open(&Model::tiny().write(dir.path()));
    assert_eq!(
        (c.tensors.len(), c.total_bytes().0, c.blocks.len()),
        (39, 363_648, 4)
    );
}
