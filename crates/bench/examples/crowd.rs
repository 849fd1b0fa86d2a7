//! scratch
#![allow(missing_docs, clippy::unwrap_used)]
use duralite_bench::concurrent::*;
use std::time::Duration;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    if a.get(1).map(String::as_str) == Some(WORKER) {
        worker(&a[2], Duration::from_millis(a[3].parse().unwrap())).unwrap();
        return;
    }
    let dir = std::path::Path::new("/root/dtry/b");
    std::fs::create_dir_all(dir).unwrap();
    let n: usize = a[1].parse().unwrap();
    let t = Duration::from_secs(2);
    let params = if a[3] == "stock" { None } else { Some(a[3].as_str()) };
    let uri = fresh(dir, params);
    let c = if a[2] == "p" { processes(&uri, n, t) } else { threads(&uri, n, t) }.unwrap();
    println!(
        "{n} {} {}: {:.0}/s slowest/mean {:.2} worst {:.1} ms busy {}",
        a[2],
        a[3],
        c.per_second(),
        c.slowest_to_mean(),
        c.worst_ms(),
        c.busy()
    );
}
