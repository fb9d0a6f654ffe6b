//! What drives and people do to files while they are read.

use super::*;
use crate::error::Kind;
use crate::store::reader::faults::Fault;
use std::time::Instant;

#[test]
fn a_drive_error_names_file_and_offset_and_stays_with_its_ticket() {
    let f = files(&[4 * MIB, 4 * MIB]);
    for backend in backends() {
        let (reader, faults) = faulty(&f, backend, 10_000);
        let m = memory(8 * MIB, 0);
        faults.add(0, 2 * MIB, Fault::Errno(libc::EIO), 1);
        let bad = reader.read_at(0, 0, 4 * MIB, m.at(0)).unwrap();
        let good = reader.read_at(1, 0, 4 * MIB, m.at(4 * MIB)).unwrap();
        for ticket in [&bad, &bad.clone()] {
            let e = ticket.wait().unwrap_err();
            assert_eq!(e.kind(), Kind::Io);
            assert!(e.what().contains("model-0.safetensors' at offset 2097152"), "{backend:?}: {e}");
            assert!(e.what().contains("os error 5"), "{backend:?}: {e}");
        }
        assert!(bad.is_done());
        good.wait().unwrap();
        assert!(bytes_of(&m, 4 * MIB, 4 << 20) == &f.contents[1][..], "{backend:?}");
        assert_eq!(reader.bytes().0, 7 * MIB, "{backend:?}: what failed is not counted");
        reader.read_at(0, 0, 4 * MIB, m.at(0)).unwrap().wait().unwrap();
        assert!(bytes_of(&m, 0, 4 << 20) == &f.contents[0][..], "{backend:?}: it reads on");
    }
}

#[test]
fn short_and_interrupted_answers_are_gone_on_with() {
    let f = files(&[3 * MIB + 4097]);
    for backend in backends() {
        let (reader, faults) = faulty(&f, backend, 10_000);
        let m = memory(4 * MIB, 0);
        for fault in [Fault::Short(4096), Fault::Short(5000), Fault::Short(1), Fault::Short(300_000)] {
            faults.add(0, 0, fault, 1);
            faults.add(0, 3 * MIB, fault, 2);
        }
        for errno in [libc::EINTR, libc::EAGAIN] {
            faults.add(0, MIB, Fault::Errno(errno), 20);
        }
        reader.read_at(0, 0, 4 * MIB, m.at(0)).unwrap().wait().unwrap();
        assert!(bytes_of(&m, 0, f.contents[0].len()) == &f.contents[0][..], "{backend:?}");
        faults.add(0, MIB, Fault::Errno(libc::EAGAIN), usize::MAX);
        let e = reader.read_at(0, 0, 4 * MIB, m.at(0)).unwrap().wait().unwrap_err();
        assert!(e.what().contains("os error 11"), "for ever is an error: {e}");
    }
}

#[test]
fn case_pl_11_a_file_system_that_takes_the_flag_and_refuses_the_read() {
    let f = files(&[2 * MIB + 100]);
    for backend in backends() {
        let (reader, faults) = faulty(&f, backend, 10_000);
        if !reader.describe().contains(", O_DIRECT,") {
            eprintln!("skipped: {}", reader.describe());
            return;
        }
        let m = memory(3 * MIB, 0);
        faults.add(0, MIB, Fault::Errno(libc::EINVAL), 1);
        reader.read_at(0, 0, 3 * MIB, m.at(0)).unwrap().wait().unwrap();
        assert!(bytes_of(&m, 0, f.contents[0].len()) == &f.contents[0][..], "{backend:?}");
        assert!(reader.describe().contains("buffered (this file system has no O_DIRECT)"), "{}", reader.describe());
    }
}

#[test]
fn a_file_cut_while_in_use_is_an_error_and_not_zeros() {
    for backend in backends() {
        let f = files(&[4 * MIB, MIB]);
        let reader = Reader::of_files(&f.files, options(backend)).unwrap();
        let m = memory(5 * MIB, 0);
        let cut = std::fs::OpenOptions::new().write(true).open(&f.files[0].path).unwrap();
        cut.set_len(2 * MIB + 5000).unwrap();
        let bad = reader.read_at(0, 0, 4 * MIB, m.at(0)).unwrap();
        let good = reader.read_at(1, 0, MIB, m.at(4 * MIB)).unwrap();
        let e = bad.wait().unwrap_err();
        assert!(e.what().contains("model-0.safetensors' ended early"), "{backend:?}: {e}");
        good.wait().unwrap();
        let e = reader.check_unchanged([0]).unwrap_err();
        assert!(e.to_string().contains("model-0.safetensors' is 2.1"), "{e}");
    }
}

#[test]
fn a_changed_replaced_or_lost_file_is_told_by_name() {
    let told = |change: &dyn Fn(&Path)| {
        let f = files(&[MIB, MIB]);
        let reader = Reader::of_files(&f.files, Options::default()).unwrap();
        reader.check_unchanged([0, 1]).unwrap();
        change(&f.files[1].path);
        reader.check_unchanged([0]).unwrap();
        let e = reader.check_unchanged([0, 1]).unwrap_err();
        assert!(e.what().contains("model-1.safetensors"), "{e}");
        assert!(e.advice().is_some_and(|a| a.contains("resume")));
        e.to_string()
    };
    let touch = |p: &Path| {
        let f = std::fs::OpenOptions::new().write(true).open(p).unwrap();
        f.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    };
    let replace = |p: &Path| {
        let other = p.with_extension("new");
        std::fs::copy(p, &other).unwrap();
        std::fs::rename(other, p).unwrap();
    };
    assert!(told(&touch).contains("was written to"));
    assert!(told(&replace).contains("was replaced by another file"));
    assert!(told(&|p| std::fs::remove_file(p).unwrap()).contains("was moved or deleted"));
    assert!(told(&|p| std::fs::write(p, "x").unwrap()).contains("is 1 B now"));
}

#[test]
fn a_file_of_another_length_than_its_header_told_is_refused() {
    let f = files(&[MIB]);
    std::fs::write(&f.files[0].path, "short").unwrap();
    let e = Reader::of_files(&f.files, Options::default()).unwrap_err();
    assert!(e.what().contains("has changed since its header was read"), "{e}");
}

#[test]
fn case_tr_13_a_stall_is_no_error_before_its_limit() {
    let f = files(&[2 * MIB]);
    for backend in backends() {
        let (reader, faults) = faulty(&f, backend, 20_000);
        let m = memory(2 * MIB, 0);
        faults.add(0, MIB, Fault::Stall(Duration::from_millis(1000)), 1);
        let began = Instant::now();
        let ticket = reader.read_at(0, 0, 2 * MIB, m.at(0)).unwrap();
        std::thread::sleep(Duration::from_millis(250));
        assert!(!ticket.is_done(), "{backend:?}");
        assert!(reader.rates().waiting_s > 0.1, "{backend:?}: the stall can be seen");
        ticket.wait().unwrap();
        assert!(began.elapsed() >= Duration::from_millis(1000), "{backend:?}");
        assert!(bytes_of(&m, 0, 2 << 20) == &f.contents[0][..], "{backend:?}");
        assert_eq!(reader.rates().waiting_s, 0.0);
    }
}

#[test]
fn case_tr_13_a_drive_that_does_not_answer_is_named() {
    let f = files(&[2 * MIB, MIB]);
    for backend in backends() {
        let (reader, faults) = faulty(&f, backend, 1000);
        let m = memory(3 * MIB, 0);
        faults.add(0, MIB, Fault::Stall(Duration::from_millis(2500)), 1);
        let began = Instant::now();
        let ticket = reader.read_at(0, 0, 2 * MIB, m.at(0)).unwrap();
        let other = reader.read_at(1, 0, MIB, m.at(2 * MIB)).unwrap();
        let e = ticket.wait().unwrap_err();
        let want = "model-0.safetensors' at offset 1048576: the drive has not answered for";
        assert!(e.what().contains(want), "{backend:?}: {e}");
        assert!(!ticket.is_done(), "{backend:?}: the kernel has the memory still");
        other.wait().unwrap();
        drop(reader);
        assert!(!ticket.is_done(), "{backend:?}: a dead drive does not hold up the end of a run");
        while !ticket.is_done() {
            assert!(began.elapsed() < Duration::from_secs(30), "{backend:?}: the thread answers for its request");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn case_tr_13_what_waits_behind_a_dead_drive_learns_of_it_too() {
    let f = files(&[2 * MIB]);
    for backend in backends() {
        let faults = Arc::new(Faults::default());
        faults.add(0, 0, Fault::Stall(Duration::from_millis(2000)), 1);
        let stall_limit = Duration::from_millis(700);
        let o = Options { faults: Some(faults), stall_limit, queue_depth: 1, threads: 1, ..options(backend) };
        let reader = Reader::of_files(&f.files, o).unwrap();
        let m = memory(2 * MIB, 0);
        let _first = reader.read_at(0, 0, MIB, m.at(0)).unwrap();
        let second = reader.read_at(0, MIB, MIB, m.at(MIB)).unwrap();
        let e = second.wait().unwrap_err();
        assert!(e.what().contains("at offset 0: the drive has not answered"), "{backend:?}: {e}");
        std::thread::sleep(Duration::from_millis(2000));
        second.wait().unwrap();
    }
}

#[test]
fn case_tr_13_a_drive_that_slows_down_shows_in_the_rate() {
    let f = files(&[8 * MIB]);
    for backend in backends() {
        let faults = Arc::new(Faults::default());
        let o = Options { faults: Some(faults.clone()), queue_depth: 1, threads: 1, ..options(backend) };
        let reader = Reader::of_files(&f.files, o).unwrap();
        let m = memory(8 * MIB, 0);
        let rate = |stall_ms: u64| {
            (0..8).for_each(|i| faults.add(0, i * MIB, Fault::Stall(Duration::from_millis(stall_ms)), 1));
            reader.read_at(0, 0, 8 * MIB, m.at(0)).unwrap().wait().unwrap();
            let r = reader.rates();
            assert_eq!(r.bytes.0, 8 * MIB, "{backend:?}: bytes since the last call");
            assert!(r.busy_s <= r.span_s + 1e-3);
            r.per_second()
        };
        let (cool, hot) = (rate(2), rate(100));
        // 8 MiB in at least 8 × 100 ms.
        assert!(hot <= 8.0 * MIB as f64 / 0.8, "{backend:?}: {hot}");
        assert!(cool > hot, "{backend:?}: {cool} then {hot}");
    }
}

#[test]
fn dropping_the_reader_waits_for_what_the_kernel_writes() {
    let f = files(&[4 * MIB]);
    for backend in backends() {
        let faults = Arc::new(Faults::default());
        (0..4).for_each(|i| faults.add(0, i * MIB, Fault::Stall(Duration::from_millis(1000)), 1));
        let o = Options { faults: Some(faults), queue_depth: 2, threads: 2, ..options(backend) };
        let reader = Reader::of_files(&f.files, o).unwrap();
        let m = memory(4 * MIB, 0);
        let flying = reader.read_at(0, 0, 2 * MIB, m.at(0)).unwrap();
        let waiting = reader.read_at(0, 2 * MIB, 2 * MIB, m.at(2 * MIB)).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        drop(reader);
        assert!(flying.is_done() && waiting.is_done(), "{backend:?}");
        flying.wait().unwrap();
        assert!(bytes_of(&m, 0, 2 << 20) == &f.contents[0][..2 << 20], "{backend:?}");
        let e = waiting.wait().unwrap_err();
        assert!(e.what().contains("closed before this read began"), "{backend:?}: {e}");
        assert!(bytes_of(&m, 2 * MIB, 2 << 20).iter().all(|&b| b == 0), "{backend:?}: not begun");
    }
}

#[test]
fn a_delay_is_added_before_a_request_is_sent() {
    let f = files(&[MIB]);
    for backend in backends() {
        let o = Options { delay: Duration::from_millis(600), ..options(backend) };
        let reader = Reader::of_files(&f.files, o).unwrap();
        let m = memory(MIB, 0);
        let began = Instant::now();
        let ticket = reader.read_at(0, 0, MIB, m.at(0)).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert!(!ticket.is_done());
        assert!(bytes_of(&m, 0, 1 << 20).iter().all(|&b| b == 0), "{backend:?}: too early a use would be seen");
        ticket.wait().unwrap();
        assert!(began.elapsed() >= Duration::from_millis(600));
    }
}

#[test]
fn case_fo_18d_whoever_waits_for_a_reader_that_died_is_told() {
    let f = files(&[4 * MIB]);
    for backend in backends() {
        let (reader, faults) = faulty(&f, backend, 60_000);
        let m = memory(4 * MIB, 0);
        faults.add(0, MIB, Fault::Die, 1);
        let since = Instant::now();
        let e = reader.read_at(0, 0, 4 * MIB, m.at(0)).unwrap().wait().unwrap_err();
        assert!(e.what().contains("the disk reader has stopped"), "{backend:?}: {e}");
        assert!(since.elapsed().as_secs() < 3, "{backend:?}: after {:?}", since.elapsed());
        let later = reader.read_at(0, 0, MIB, m.at(0)).map(|t| t.wait());
        assert!(later.is_err(), "{backend:?}: nothing more is taken");
        let since = Instant::now();
        drop(reader);
        assert!(since.elapsed().as_secs() < 8, "{backend:?}: closed after {:?}", since.elapsed());
    }
}
