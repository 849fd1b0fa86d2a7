use super::*;
use crate::engine::Engine;
use crate::opening;
use crate::options::Options;

fn open() -> Engine {
    opening::in_memory(&Options { page_bytes: Some(4096), ..Options::default() })
}

/// Marks pages of the first map as in use.
fn take(engine: &Engine, bits: impl Iterator<Item = u32>) {
    let bits: Vec<u32> = bits.collect();
    for bits in bits.chunks(500) {
        let mut map = engine.pager.pool.write(engine.space.first_map).unwrap();
        let changes: Vec<_> = bits.iter().map(|bit| (0, Change::MapSet { bit: *bit })).collect();
        engine.pager.step(Author::SYSTEM, &[], &mut [&mut map], &changes).unwrap();
    }
    engine.space.count(&engine.pager).unwrap();
}

#[test]
fn a_page_that_is_free_alone_is_used() {
    let engine = open();
    let (space, pager) = (&engine.space, &engine.pager);
    let alone = 777;
    take(&engine, (2..space.bits as u32).filter(|bit| *bit != alone));
    let page = space.first_map + u64::from(alone);
    // The search finds the free pages, though the result is dropped here without using them.
    let two: Vec<_> = space.find(pager, 2, Purpose::Do).unwrap().pages.iter().map(|page| page.id).collect();
    assert_eq!(two, [page, space.first_map + space.bits + 1]);
    let one = space.find(pager, 1, Purpose::Do).unwrap();
    assert_eq!(one.pages[0].id, page);
}

#[test]
fn what_is_not_used_after_all_is_not_counted() {
    let engine = open();
    let used = || engine.space.used.load(Ordering::SeqCst);
    let before = used();
    drop(engine.space.find(&engine.pager, 2, Purpose::Do).unwrap());
    assert_eq!(used(), before);
    engine.space.find(&engine.pager, 2, Purpose::Undo).unwrap().taken();
    assert_eq!(used(), before + 2);
    engine.space.keep(&engine.pager, 5).unwrap();
    engine.space.give_up(5);
    assert_eq!(engine.space.kept.load(Ordering::SeqCst), 0);
}
