//! The same bytes from every rung, and nothing where nothing was asked for.

use super::*;
use crate::store::layout::SECTOR;

/// Starts reads of `f` with every rung into one arena, and hands reader and arena over.
fn on_every_rung(f: &Files, arena: u64, test: impl Fn(&Reader, &HostMemory, &str)) {
    for (backend, register) in rungs() {
        let reader = Reader::of_files(&f.files, options(backend)).unwrap();
        let m = memory(arena, 0xee);
        if register {
            reader.register(&m).unwrap();
        }
        let name = reader.describe();
        test(&reader, &m, &name);
    }
}

#[test]
fn every_rung_reads_the_same_bytes() {
    let f = files(&[5 * MIB + 123, 4096, 1, 3 * MIB, 4095, 2 * MIB + 4096 + 7]);
    on_every_rung(&f, 16 * MIB, |reader, m, name| {
        for (i, content) in f.contents.iter().enumerate() {
            for chunk in [SECTOR, 3 * SECTOR, MIB, MIB + SECTOR, 64 * MIB] {
                if content.len() as u64 / chunk > 64 {
                    continue;
                }
                let n = content.len() as u64;
                let starts = (0..n.div_ceil(chunk)).map(|k| k * chunk);
                let tickets: Vec<_> = starts
                    .map(|at| {
                        let len = chunk.min(16 * MIB - at);
                        reader.read_at(i, at, len, m.at(at)).unwrap()
                    })
                    .collect();
                tickets.iter().for_each(|t| t.wait().unwrap());
                assert!(tickets.iter().all(super::super::ReadTicket::is_done));
                assert!(bytes_of(m, 0, content.len()) == content, "{name}: file {i} in chunks of {chunk}");
            }
        }
    });
}

#[test]
fn a_thousand_chunks_at_once() {
    let f = files(&[9 * MIB + 777, 7 * MIB, 3 * MIB + 1]);
    on_every_rung(&f, 64 * MIB, |reader, m, name| {
        let mut rng = Rng(11);
        let mut at = 0;
        let chunks: Vec<_> = (0..1000)
            .map(|_| {
                let file = rng.below(3) as usize;
                let sectors = f.files[file].bytes.div_ceil(SECTOR);
                let offset = rng.below(sectors) * SECTOR;
                let len = (1 + rng.below(15)) * SECTOR;
                at += len;
                (file, offset, len, at - len, reader.read_at(file, offset, len, m.at(at - len)).unwrap())
            })
            .collect();
        for (file, offset, len, place, ticket) in chunks {
            ticket.wait().unwrap();
            let content = &f.contents[file][offset as usize..];
            let n = content.len().min(len as usize);
            assert!(bytes_of(m, place, n) == &content[..n], "{name}: {len} at {offset} of file {file}");
        }
        assert!(reader.busy_seconds() > 0.0);
    });
}

#[test]
fn nothing_is_read_past_the_end_of_a_file() {
    let f = files(&[2 * MIB + 100]);
    on_every_rung(&f, 8 * MIB, |reader, m, name| {
        reader.read_at(0, MIB, 6 * MIB, m.at(0)).unwrap().wait().unwrap();
        assert!(bytes_of(m, 0, MIB as usize + 100) == &f.contents[0][MIB as usize..], "{name}");
        let rest = MIB + SECTOR;
        assert!(bytes_of(m, rest, (8 * MIB - rest) as usize).iter().all(|&b| b == 0xee), "{name}: left alone");
        assert_eq!(reader.bytes().0, MIB + SECTOR, "{name}: whole sectors that are there");
        let beyond = reader.read_at(0, 4 * MIB, MIB, m.at(0)).unwrap();
        assert!(beyond.is_done(), "{name}: nothing to read");
        beyond.wait().unwrap();
        let nothing = reader.read_at(0, 0, 0, m.at(0)).unwrap();
        assert!(nothing.is_done());
    });
}

#[test]
fn what_is_not_whole_sectors_is_refused() {
    let f = files(&[MIB]);
    let reader = Reader::of_files(&f.files, Options::default()).unwrap();
    let m = memory(MIB, 0);
    for (file, offset, len, dst) in [(0, 512, SECTOR, 0), (0, 0, 100, 0), (0, 0, SECTOR, 8), (1, 0, SECTOR, 0)] {
        assert!(reader.read_at(file, offset, len, m.at(dst)).is_err(), "{file} {offset} {len} {dst}");
    }
}

#[test]
fn case_pl_11_unaligned_tensors_come_by_the_aligned_span() {
    let f = files(&[3 * MIB + 11, MIB + 4097]);
    on_every_rung(&f, 3 * MIB, |reader, m, name| {
        let parts = [(0, 8192, 2 * MIB, 0), (1, MIB, 2 * SECTOR, 2 * MIB)];
        let tickets = parts.map(|(file, offset, len, at)| reader.read_at(file, offset, len, m.at(at)).unwrap());
        tickets.iter().for_each(|t| t.wait().unwrap());
        assert!(bytes_of(m, 10, 100) == &f.contents[0][8202..8302], "{name}");
        assert!(bytes_of(m, 2 * MIB, 4097) == &f.contents[1][MIB as usize..], "{name}: up to the file's end");
    });
}

#[test]
fn case_pl_11_a_range_at_odd_places_comes_in_order() {
    let f = files(&[70 * MIB + 5]);
    for backend in backends() {
        let reader = Reader::of_files(&f.files, options(backend)).unwrap();
        for (offset, len) in [(3, 70 * MIB + 2), (MIB + 1, 1), (0, 0), (4095, 2), (32 * MIB - 1, 32 * MIB + 2)] {
            let mut got = Vec::new();
            let mut take = |b: &[u8]| {
                got.extend_from_slice(b);
                Ok(())
            };
            reader.read_range(0, offset, len, &mut take).unwrap();
            assert!(got == f.contents[0][offset as usize..(offset + len) as usize], "{len} at {offset}");
        }
        let mut calls = 0;
        let stop = reader.read_range(0, 0, 70 * MIB, &mut |_| {
            calls += 1;
            Err(crate::error::Error::run("enough"))
        });
        assert_eq!((stop.unwrap_err().what(), calls), ("enough", 1));
    }
}

#[test]
fn case_pl_11_without_o_direct_the_same_bytes_come_buffered() {
    let shm = Path::new("/dev/shm");
    if !shm.is_dir() {
        eprintln!("skipped: there is no /dev/shm");
        return;
    }
    let f = files_in(shm, &[2 * MIB + 100, 4096]);
    on_every_rung(&f, 3 * MIB, |reader, m, name| {
        assert!(name.contains("buffered (this file system has no O_DIRECT)"), "{name}");
        reader.read_at(0, 0, 3 * MIB, m.at(0)).unwrap().wait().unwrap();
        assert!(bytes_of(m, 0, f.contents[0].len()) == &f.contents[0][..], "{name}");
    });
}

#[test]
fn chunks_are_read_in_the_order_they_came() {
    let f = files(&[8 * MIB]);
    for backend in backends() {
        let o = Options { queue_depth: 1, threads: 1, ..options(backend) };
        let reader = Reader::of_files(&f.files, o).unwrap();
        let m = memory(8 * MIB, 0);
        let tickets: Vec<_> =
            (0..4).map(|i| reader.read_at(0, i * 2 * MIB, 2 * MIB, m.at(i * 2 * MIB)).unwrap()).collect();
        for (i, t) in tickets.iter().enumerate() {
            t.wait().unwrap();
            assert!(tickets[..i].iter().all(super::super::ReadTicket::is_done), "{backend:?}: chunk {i} overtook one");
        }
        assert!(bytes_of(&m, 0, 8 << 20) == &f.contents[0][..]);
    }
}

#[test]
fn memory_mapped_where_a_registered_arena_was_gets_its_own_bytes() {
    let f = files(&[4 * MIB]);
    let reader = Reader::of_files(&f.files, Options::default()).unwrap();
    for round in 0..4 {
        // The kernel mostly gives the same address again; the pages registered for it are others.
        let m = memory(4 * MIB, 0);
        reader.read_at(0, 0, 4 * MIB, m.at(0)).unwrap().wait().unwrap();
        assert!(bytes_of(&m, 0, 4 << 20) == &f.contents[0][..], "round {round}");
        reader.register(&m).unwrap();
        reader.read_at(0, 0, 4 * MIB, m.at(0)).unwrap().wait().unwrap();
        assert!(bytes_of(&m, 0, 4 << 20) == &f.contents[0][..], "round {round}, registered");
    }
}
