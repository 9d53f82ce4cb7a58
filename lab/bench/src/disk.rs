//! The speed of the disk without a store: the baseline for every figure about durable writes.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Instant;

const BLOCKS: usize = 2_000;

/// Blocks of 4 kB and of 64 kB per second that are overwritten and synced to the disk, one after the other.
pub fn fsyncs_per_s(dir: &Path) -> std::io::Result<[f64; 2]> {
    let path = dir.join("disk");
    let rate = |block: usize, blocks: usize| -> std::io::Result<f64> {
        let mut file = File::create(&path)?;
        std::io::copy(&mut std::io::repeat(1).take((block * blocks) as u64), &mut file)?;
        file.sync_all()?;
        file.seek(SeekFrom::Start(0))?;
        let bytes = vec![2; block];
        let start = Instant::now();
        for _ in 0..blocks {
            file.write_all(&bytes)?;
            file.sync_data()?;
        }
        Ok(blocks as f64 / start.elapsed().as_secs_f64())
    };
    let rates = [rate(4 << 10, BLOCKS)?, rate(64 << 10, BLOCKS / 2)?];
    std::fs::remove_file(&path)?;
    Ok(rates)
}
