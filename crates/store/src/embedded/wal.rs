//! The log: every group of commits is here before it is acknowledged.
//!
//! A log is a sequence of segments, numbered files in the folder `log`. A segment belongs to one memtable: when it is full, the
//! next one begins, with a new memtable. Once a [checkpoint](super::checkpoint) has written the old memtable to the base, the old
//! file is reused under a new number. Writing to allocated blocks halves the time of an fsync, because it need not write
//! metadata. So new files are extended with zeros, many blocks at a time, and old files keep their blocks.
//!
//! ```text
//! record:  length u32 · crc32 u32 · segment u64 · version u64 · unpacked u32 · body · zeros up to a multiple of 8
//! body:    the rows; or, if `unpacked` is not 0, the rows compressed with LZ4, whose length was `unpacked`
//! row:     key length u32 · value length u32, or NO_VALUE · key · value
//! ```
//!
//! All numbers are little-endian. The length counts only the body; the checksum covers everything after it. The records follow a
//! head of one block: a magic word, the number of the segment, the minimum length of the file, and their checksum. The magic word
//! states the form of the records.
//!
//! The rows of a group are sorted, so neighbours share most of their keys, and values of one kind most of their text. Compressed
//! they take a tenth to a quarter, where many transactions share a group. Each of these bytes is copied to the page cache, written,
//! and later overwritten with zeros.
//!
//! What must hold:
//!
//! 1. One record is written at a time, and the next one only after its fsync. So after a crash, at most the last record of
//!    a segment is incomplete. It was never acknowledged, and is skipped. A record that is damaged elsewhere was
//!    acknowledged, so the store does not open.
//! 2. If the fsync of the last record has failed, a reader may see the record complete although it is not on the disk. So opening
//!    a log writes it again, into the next segment, before anything builds on it. After a failed write or fsync, nothing
//!    more is written to that segment, and the record goes into the next one.
//! 3. The base stores which segments must exist. It requires a segment before the segment receives its first record, and until
//!    the segment's rows are in the base. So a missing segment is detected, even the newest.
//! 4. A record is within the length that the head states, and the file has this length before the head states it. So a truncated
//!    file is detected, wherever it was cut. A file whose head was never written has no records.

use std::fs;
use std::io::{self, ErrorKind};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};

use super::disk::{Disk, DiskFile, DiskFolder, PIECE_BYTES, at, damage};
use crate::{Error, Result};

/// A row to set, or a key to remove if the value is `None`.
pub(super) type Row = (Bytes, Option<Bytes>);

/// The length of a record before its body.
const HEADER_BYTES: usize = 28;
const ROW_HEADER_BYTES: usize = 8;
const NO_VALUE: u32 = u32::MAX;
const ALIGNMENT: usize = 8;
/// The step by which a new file grows: enough for many groups, and still written in about a millisecond.
const GROWTH_BYTES: u64 = 1 << 20;
/// The head of a file has its own block, so that writing it never touches a record's block.
const FILE_HEAD_BYTES: u64 = 4_096;
const MAGIC: u64 = u64::from_le_bytes(*b"turnwlz4");
/// Shorter rows are not compressed: the record would take as many blocks of the disk.
const COMPRESSED_FROM: usize = 256;
/// LZ4 compresses to no less than one byte for this many.
const MOST_COMPRESSION: usize = 256;

/// A buffer up to this size is kept for the next record.
const KEPT_BYTES: usize = 1 << 20;

pub(super) fn encode<'a>(
    batch: impl Iterator<Item = (&'a Bytes, &'a Option<Bytes>)> + Clone,
) -> Result<Bytes> {
    let row = |(key, value): (&Bytes, &Option<Bytes>)| {
        ROW_HEADER_BYTES + key.len() + value.as_ref().map_or(0, Bytes::len)
    };
    let size = batch.clone().map(row).sum::<usize>();
    let limit = u32::MAX as usize - 2 * HEADER_BYTES;
    if size > limit {
        return Err(Error::TooLarge { what: "group", size, limit });
    }
    let mut rows = BytesMut::with_capacity(size);
    for (key, value) in batch {
        // Both lengths fit, because all rows do.
        rows.put_u32_le(key.len() as u32);
        rows.put_u32_le(value.as_ref().map_or(NO_VALUE, |value| value.len() as u32));
        rows.put_slice(key);
        rows.put_slice(value.as_deref().unwrap_or_default());
    }
    Ok(rows.freeze())
}

/// The rows that [`encode`] has encoded. They share its memory. Ends early if the lengths are inconsistent: the checksum has been
/// checked before.
pub(super) fn rows(encoded: &Bytes) -> impl Iterator<Item = Row> + use<> {
    let mut rest = encoded.clone();
    std::iter::from_fn(move || {
        if rest.len() < ROW_HEADER_BYTES {
            return None;
        }
        let key_bytes = rest.get_u32_le() as usize;
        let value_bytes = rest.get_u32_le();
        let has_value = value_bytes != NO_VALUE;
        let value_bytes = if has_value { value_bytes as usize } else { 0 };
        if rest.len() < key_bytes.saturating_add(value_bytes) {
            return None;
        }
        let key = rest.split_to(key_bytes);
        let value = rest.split_to(value_bytes);
        Some((key, has_value.then_some(value)))
    })
}

/// Makes records, in the same memory.
#[derive(Default)]
struct Packer {
    /// The latest one.
    record: Vec<u8>,
    table: CompressTable,
}

impl Packer {
    /// The record of these rows, compressed if that makes it shorter.
    fn pack(&mut self, segment: u64, version: u64, rows: &[u8]) {
        let Packer { record, table } = self;
        record.clear();
        record.put_u64_le(0);
        record.put_u64_le(segment);
        record.put_u64_le(version);
        record.put_u32_le(0);
        let compressed = (rows.len() >= COMPRESSED_FROM).then(|| {
            record.resize(HEADER_BYTES + get_maximum_output_size(rows.len()), 0);
            compress_into_with_table(rows, &mut record[HEADER_BYTES..], table)
        });
        // Both lengths fit, because `encode` has checked that of the rows.
        match compressed {
            Some(Ok(compressed)) if compressed < rows.len() => {
                record.truncate(HEADER_BYTES + compressed);
                record[24..28].copy_from_slice(&(rows.len() as u32).to_le_bytes());
            }
            _ => {
                record.truncate(HEADER_BYTES);
                record.extend_from_slice(rows);
            }
        }
        let length = (record.len() - HEADER_BYTES) as u32;
        record.resize(record.len().next_multiple_of(ALIGNMENT), 0);
        record[0..4].copy_from_slice(&length.to_le_bytes());
        let crc = crc32fast::hash(&record[8..]);
        record[4..8].copy_from_slice(&crc.to_le_bytes());
    }
}

/// A record as it is in a file.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    version: u64,
    bytes: usize,
    unpacked: usize,
    body: Bytes,
}

impl Found {
    /// Its rows; `None` if they cannot be decompressed.
    fn rows(self) -> Option<Bytes> {
        if self.unpacked == 0 {
            return Some(self.body);
        }
        if self.unpacked > self.body.len().saturating_mul(MOST_COMPRESSION) {
            return None;
        }
        let mut rows = vec![0; self.unpacked];
        let length = decompress_into(&self.body, &mut rows).ok()?;
        (length == self.unpacked).then(|| rows.into())
    }
}

/// The record at the beginning of `bytes`, if it is complete and belongs to `segment`.
fn whole_record(bytes: &Bytes, segment: u64) -> Option<Found> {
    let mut header = bytes.get(..HEADER_BYTES)?;
    let length = header.get_u32_le() as usize;
    let crc = header.get_u32_le();
    if header.get_u64_le() != segment {
        return None;
    }
    let version = header.get_u64_le();
    let unpacked = header.get_u32_le() as usize;
    let end = HEADER_BYTES.checked_add(length)?;
    let aligned = end.checked_next_multiple_of(ALIGNMENT)?;
    let record = bytes.get(..aligned)?;
    let is_whole = crc32fast::hash(&record[8..]) == crc;
    is_whole.then(|| Found { version, bytes: aligned, unpacked, body: bytes.slice(HEADER_BYTES..end) })
}

/// A file of the log that receives records.
pub(super) struct Segment {
    pub(super) number: u64,
    file: DiskFile,
    /// The offset of the next record.
    position: u64,
    /// The length that the head states.
    allocated: u64,
    /// The length that its records would have without compression: about that of the memtable.
    filled: u64,
    packer: Packer,
}

/// Why a record was not written.
pub(super) struct Unwritten {
    pub(super) error: Error,
    /// Whether the file may have it nevertheless, now or after a crash.
    pub(super) in_doubt: bool,
}

impl Segment {
    /// Creates the segment `number`, from the file `old` if there is one. After an error, `old` has the file again. On success
    /// the segment's name and head are durable.
    pub(super) fn create(log: &DiskFolder, number: u64, old: &mut Option<DiskFile>) -> io::Result<Self> {
        let path = path_of(log.path(), number);
        let mut file = match old.take() {
            Some(file) => file,
            None => log.disk().create(path.clone())?,
        };
        match Self::begin(log, number, path, &mut file) {
            Ok(allocated) => Ok(Segment {
                number,
                file,
                position: FILE_HEAD_BYTES,
                allocated,
                filled: 0,
                packer: Packer::default(),
            }),
            Err(error) => {
                *old = Some(file);
                Err(error)
            }
        }
    }

    fn begin(log: &DiskFolder, number: u64, path: PathBuf, file: &mut DiskFile) -> io::Result<u64> {
        if file.path() != path {
            file.rename(path)?;
        }
        // Its records may contain passwords of jobs that no longer exist, so they are overwritten now.
        let allocated = file.len()?.max(FILE_HEAD_BYTES);
        write_zeros(file, FILE_HEAD_BYTES, allocated)?;
        file.write_at(&file_head(number, allocated), 0)?;
        file.sync()?;
        log.sync()?;
        Ok(allocated)
    }

    /// Whether a record of these rows belongs here, in a log with segments of `segment_bytes` before compression. A record larger
    /// than a segment gets its own.
    pub(super) fn has_room(&self, rows: &[u8], segment_bytes: u64) -> bool {
        self.filled == 0 || self.filled + plain_bytes(rows) <= segment_bytes
    }

    /// Writes the record of a group and waits for the disk. Returns its length. After an error that leaves doubt the caller must not
    /// use the segment again.
    pub(super) fn append(&mut self, version: u64, rows: &[u8]) -> Result<u64, Unwritten> {
        self.packer.pack(self.number, version, rows);
        let record = std::mem::take(&mut self.packer.record);
        let written = self.write(&record);
        if record.capacity() <= KEPT_BYTES {
            self.packer.record = record;
        }
        let written = written?;
        self.filled += plain_bytes(rows);
        Ok(written)
    }

    fn write(&mut self, record: &[u8]) -> Result<u64, Unwritten> {
        let length = record.len() as u64;
        let end = self.position + length;
        if self.file.is_durable() && end > self.allocated {
            self.grow(end).map_err(|error| self.unwritten(&error, false))?;
        }
        let written = self.file.write_at(record, self.position).and_then(|()| self.file.sync());
        written.map_err(|error| self.unwritten(&error, true))?;
        self.position = end;
        Ok(length)
    }

    fn unwritten(&self, error: &io::Error, in_doubt: bool) -> Unwritten {
        Unwritten { error: at(self.file.path(), error), in_doubt }
    }

    /// Writes zeros ahead of the records, so that the next records find allocated blocks. The head states the new length after
    /// that, and the next record's sync makes the head durable.
    fn grow(&mut self, end: u64) -> io::Result<()> {
        let allocated = end.next_multiple_of(GROWTH_BYTES);
        write_zeros(&self.file, self.allocated, allocated)?;
        self.file.write_at(&file_head(self.number, allocated), 0)?;
        self.allocated = allocated;
        Ok(())
    }

    pub(super) fn into_file(self) -> DiskFile {
        self.file
    }
}

/// The length of the record of these rows without compression.
fn plain_bytes(rows: &[u8]) -> u64 {
    (HEADER_BYTES + rows.len()).next_multiple_of(ALIGNMENT) as u64
}

/// Writes zeros durably, in [pieces](super::disk::PIECE_BYTES).
fn write_zeros(file: &DiskFile, begin: u64, end: u64) -> io::Result<()> {
    let zeros = vec![0; PIECE_BYTES];
    let mut from = begin;
    while from < end {
        let bytes = (end - from).min(PIECE_BYTES as u64);
        file.write_at(&zeros[..bytes as usize], from)?;
        file.write_out(from..from + bytes)?;
        from += bytes;
    }
    file.sync()
}

/// The first block of a file.
fn file_head(segment: u64, length: u64) -> Vec<u8> {
    let mut head = Vec::with_capacity(FILE_HEAD_BYTES as usize);
    for number in [MAGIC, segment, length] {
        head.put_u64_le(number);
    }
    head.put_u32_le(crc32fast::hash(&head));
    head.resize(FILE_HEAD_BYTES as usize, 0);
    head
}

/// The segment and the length that the head of a file states, if it has a valid head.
fn stated_by_head(mut bytes: &[u8]) -> Option<(u64, u64)> {
    let crc = crc32fast::hash(bytes.get(..24)?);
    let (magic, segment, length) = (bytes.get_u64_le(), bytes.get_u64_le(), bytes.get_u64_le());
    (magic == MAGIC && bytes.len() >= 4 && bytes.get_u32_le() == crc).then_some((segment, length))
}

fn path_of(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:020}"))
}

#[derive(Default)]
pub(super) struct LogContents {
    /// The rows of each record after the checkpoint, with consecutive versions.
    pub(super) records: Vec<(u64, Bytes)>,
    /// The files with these records and with older ones.
    pub(super) files: Vec<DiskFile>,
    /// Files that were created but never used.
    pub(super) unused: Vec<PathBuf>,
    /// The highest number of a segment that was used.
    pub(super) last_number: u64,
}

/// Reads the part of the log in `folder` that is newer than `version`. The segments `demanded` must exist. `None` means that the
/// log is new.
///
/// # Errors
/// Damage if an acknowledged record is missing or damaged.
pub(super) fn read(
    folder: &Path,
    version: u64,
    demanded: Option<&RangeInclusive<u64>>,
    disk: &Disk,
    write: bool,
) -> Result<LogContents> {
    let numbers = numbers(folder, demanded.is_some())?;
    if let Some(missing) = demanded.and_then(|demanded| demanded.clone().find(|n| !numbers.contains(n))) {
        let path = path_of(folder, missing);
        return Err(damage(&path, "this part of the log is missing: what was acknowledged last is in it"));
    }
    let mut contents =
        LogContents { last_number: demanded.map_or(0, |demanded| *demanded.end()), ..LogContents::default() };
    let mut last = version;
    for number in numbers {
        let path = path_of(folder, number);
        if demanded.is_some_and(|demanded| number > *demanded.end()) {
            contents.unused.push(path);
            continue;
        }
        let is_demanded = demanded.is_some_and(|demanded| demanded.contains(&number));
        let file = disk.open(path.clone(), write).map_err(|error| at(&path, &error))?;
        let bytes = Bytes::from(file.read().map_err(|error| at(&path, &error))?);
        let records = match stated_by_head(&bytes) {
            Some((segment, length)) if segment == number => {
                if is_demanded && (bytes.len() as u64) < length {
                    let line = format!("the log is cut: it has {} bytes here, and had {length}", bytes.len());
                    return Err(damage(&path, line));
                }
                read_segment(&path, number, &bytes)?
            }
            _ if is_demanded => {
                return Err(damage(&path, "the head of this part of the log is damaged"));
            }
            // It was not finished, or has the head of its previous number.
            _ => Vec::new(),
        };
        for record in records {
            let next = record.version;
            if next <= last {
                // Already in the B-tree, or written again.
                continue;
            }
            if next != last + 1 {
                return Err(damage(&path, format!("the log goes on with version {next} after {last}")));
            }
            last = next;
            let unreadable = || damage(&path, format!("the rows of version {next} cannot be read"));
            contents.records.push((next, record.rows().ok_or_else(unreadable)?));
        }
        contents.files.push(file);
        contents.last_number = contents.last_number.max(number);
    }
    Ok(contents)
}

/// The numbers of the segments in a folder, in order.
fn numbers(folder: &Path, demanded: bool) -> Result<Vec<u64>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound && !demanded => return Ok(Vec::new()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(damage(folder, "the log is missing: what was acknowledged last is in it"));
        }
        Err(error) => return Err(at(folder, &error)),
    };
    let mut numbers = Vec::new();
    for entry in entries {
        let name = entry.map_err(|error| at(folder, &error))?.file_name();
        let number = name.to_str().and_then(|name| name.parse::<u64>().ok());
        numbers.push(number.ok_or_else(|| damage(&folder.join(&name), "this is no part of the log"))?);
    }
    numbers.sort_unstable();
    Ok(numbers)
}

fn read_segment(path: &Path, number: u64, bytes: &Bytes) -> Result<Vec<Found>> {
    let mut records: Vec<Found> = Vec::new();
    let mut position = bytes.len().min(FILE_HEAD_BYTES as usize);
    while let Some(record) = whole_record(&bytes.slice(position..), number) {
        position += record.bytes;
        records.push(record);
    }
    // The rest is an incomplete record, zeros, or the file's content under its previous number.
    let mut ahead = position;
    let own_number = number.to_le_bytes();
    while ahead + HEADER_BYTES <= bytes.len() {
        let may_be_one = bytes[ahead + 8..ahead + 16] == own_number;
        if may_be_one && whole_record(&bytes.slice(ahead..), number).is_some() {
            let line = format!("the record at byte {position} is damaged, and one at {ahead} is whole");
            return Err(damage(path, line));
        }
        ahead += ALIGNMENT;
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::disk::Faults;
    use super::*;

    fn batch(n: u8) -> BTreeMap<Bytes, Option<Bytes>> {
        let key = |name: &'static str| Bytes::from_static(name.as_bytes());
        BTreeMap::from([
            (Bytes::new(), Some(Bytes::new())),
            (key("cleared"), None),
            (key("set"), Some(Bytes::from(vec![n; 100 + n as usize]))),
        ])
    }

    fn rows_of(version: u64) -> Bytes {
        encode(batch(version as u8).iter()).unwrap()
    }

    fn disk() -> Disk {
        Disk { durable: true, faults: Faults::default() }
    }

    fn segment(folder: &Path, number: u64) -> Segment {
        Segment::create(&disk().folder(folder.to_owned()).unwrap(), number, &mut None).unwrap()
    }

    fn append(segment: &mut Segment, version: u64) {
        assert!(segment.append(version, &rows_of(version)).is_ok());
    }

    /// A log with the versions 1 to 4 in one segment, and 5 in the next.
    fn log() -> (tempfile::TempDir, Vec<u64>) {
        let folder = tempfile::tempdir().unwrap();
        let mut first = segment(folder.path(), 1);
        let mut ends = Vec::new();
        for version in 1..=4 {
            append(&mut first, version);
            ends.push(first.position);
        }
        append(&mut segment(folder.path(), 2), 5);
        (folder, ends)
    }

    fn demanding(folder: &Path, version: u64, demanded: RangeInclusive<u64>) -> Result<LogContents> {
        read(folder, version, Some(&demanded), &disk(), true)
    }

    fn versions_of(contents: LogContents) -> Vec<u64> {
        contents.records.into_iter().map(|(version, _)| version).collect()
    }

    fn versions(folder: &Path, version: u64) -> Result<Vec<u64>> {
        let last = numbers(folder, true)?.last().copied().unwrap_or(1);
        demanding(folder, version, last..=last).map(versions_of)
    }

    fn change(folder: &Path, number: u64, change: impl FnOnce(&mut Vec<u8>)) {
        let path = path_of(folder, number);
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(&path, bytes).unwrap();
    }

    #[test]
    fn a_record_has_its_rows() {
        let mut packer = Packer::default();
        let noise = |n: u32| Bytes::copy_from_slice(&crc32fast::hash(&n.to_le_bytes()).to_le_bytes());
        let alike = (0..1_000_u32).map(|n| (n.to_be_bytes().to_vec().into(), Some(Bytes::from("text"))));
        let unlike = (0..1_000).map(|n| (noise(n), None));
        let batches: [BTreeMap<Bytes, Option<Bytes>>; 4] =
            [batch(7), alike.collect(), BTreeMap::new(), unlike.collect()];
        for batch in batches {
            let encoded = encode(batch.iter()).unwrap();
            assert_eq!(rows(&encoded).collect::<BTreeMap<_, _>>(), batch);
            packer.pack(3, 9, &encoded);
            let record = Bytes::copy_from_slice(&packer.record);
            assert!(record.len() as u64 <= plain_bytes(&encoded));
            let found = whole_record(&record, 3).unwrap();
            assert_eq!((found.version, found.bytes), (9, record.len()));
            assert_eq!(found.rows(), Some(encoded));
            assert_eq!(whole_record(&record, 4), None);
        }
    }

    #[test]
    fn rows_that_are_alike_are_compressed() {
        let text = r#"{"state":"completed","tenant":"default","history":[[1795655074175928,"completed"]]}"#;
        let key = |n: u32| Bytes::from(format!("turnwise/jobs/noop/job-{n:012}"));
        let batch: BTreeMap<_, _> = (0..100).map(|n| (key(n), Some(Bytes::from(text)))).collect();
        let rows = encode(batch.iter()).unwrap();
        let mut packer = Packer::default();
        packer.pack(1, 1, &rows);
        assert!(packer.record.len() < rows.len() / 4, "{} of {} bytes", packer.record.len(), rows.len());
    }

    #[test]
    fn compressed_rows_that_make_no_sense_are_damage() {
        let sealed = |unpacked: u32, body: &[u8]| Found {
            version: 1,
            bytes: 0,
            unpacked: unpacked as usize,
            body: Bytes::copy_from_slice(body),
        };
        assert_eq!(sealed(u32::MAX, b"1234").rows(), None);
        assert_eq!(sealed(100, b"1234").rows(), None);
        assert_eq!(sealed(0, b"1234").rows(), Some(Bytes::from("1234")));
    }

    #[test]
    fn a_log_is_read_after_a_version() {
        let (folder, _) = log();
        assert_eq!(versions(folder.path(), 0).unwrap(), [1, 2, 3, 4, 5]);
        assert_eq!(versions(folder.path(), 3).unwrap(), [4, 5]);
        assert_eq!(versions(folder.path(), 5).unwrap(), [0; 0]);
        let contents = demanding(folder.path(), 0, 1..=2).unwrap();
        assert_eq!((contents.last_number, contents.files.len()), (2, 2));
    }

    #[test]
    fn an_incomplete_last_record_is_left_out() {
        for cut in [8, 9, 30, 100] {
            let (folder, ends) = log();
            fs::remove_file(path_of(folder.path(), 2)).unwrap();
            let torn = usize::try_from(ends[3]).unwrap() - cut;
            change(folder.path(), 1, |bytes| bytes[torn..].fill(0));
            assert_eq!(versions(folder.path(), 0).unwrap(), [1, 2, 3], "without the last {cut} bytes");
        }
    }

    #[test]
    fn a_file_that_was_cut_at_any_position_is_noticed() {
        for cut in [1, 8, 100, GROWTH_BYTES as usize / 2, GROWTH_BYTES as usize - 100, GROWTH_BYTES as usize]
        {
            let (folder, _) = log();
            change(folder.path(), 2, |bytes| bytes.truncate(bytes.len() - cut));
            let error = versions(folder.path(), 0).unwrap_err().to_string();
            assert!(
                error.contains("00000002") && (error.contains("is cut") || cut as u64 == GROWTH_BYTES),
                "{error}"
            );
        }
    }

    #[test]
    fn a_file_that_grew_may_be_longer_than_its_head_states() {
        let (folder, _) = log();
        change(folder.path(), 2, |bytes| bytes.resize(bytes.len() + 77, 0));
        assert_eq!(versions(folder.path(), 0).unwrap(), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_segment_that_is_not_required_yet_has_no_records() {
        let (folder, _) = log();
        for unfinished in [vec![], vec![7; 100], file_head(1, 5_000)] {
            fs::write(path_of(folder.path(), 3), unfinished).unwrap();
            let contents = demanding(folder.path(), 0, 1..=2).unwrap();
            assert_eq!((contents.last_number, contents.unused.len()), (2, 1));
            assert_eq!(versions_of(contents), [1, 2, 3, 4, 5]);
            assert!(matches!(demanding(folder.path(), 0, 1..=3), Err(Error::Corrupt(_))));
        }
    }

    #[test]
    fn damage_before_the_last_record_is_noticed() {
        let (folder, ends) = log();
        fs::remove_file(path_of(folder.path(), 2)).unwrap();
        for n in FILE_HEAD_BYTES..ends[2] {
            let n = usize::try_from(n).unwrap();
            change(folder.path(), 1, |bytes| bytes[n] ^= 0x10);
            assert!(matches!(versions(folder.path(), 0), Err(Error::Corrupt(_))), "byte {n}");
            change(folder.path(), 1, |bytes| bytes[n] ^= 0x10);
        }
        let (folder, ends) = log();
        let last = usize::try_from(ends[3]).unwrap() - 9;
        change(folder.path(), 1, |bytes| bytes[last] ^= 0x10);
        assert!(matches!(versions(folder.path(), 0), Err(Error::Corrupt(_))), "a later segment goes on");
    }

    #[test]
    fn the_last_record_may_be_there_twice() {
        let (folder, _) = log();
        let last = demanding(folder.path(), 0, 1..=2).unwrap().records.pop().unwrap().1;
        let mut third = segment(folder.path(), 3);
        assert!(third.append(5, &last).is_ok());
        append(&mut third, 6);
        assert_eq!(versions(folder.path(), 3).unwrap(), [4, 5, 6]);
        fs::remove_file(path_of(folder.path(), 2)).unwrap();
        let contents = demanding(folder.path(), 3, 3..=3).unwrap();
        assert_eq!(contents.records[1], (5, last));
    }

    #[test]
    fn a_missing_segment_is_noticed() {
        let (folder, _) = log();
        fs::remove_file(path_of(folder.path(), 1)).unwrap();
        assert!(matches!(versions(folder.path(), 0), Err(Error::Corrupt(_))));
        assert_eq!(versions(folder.path(), 4).unwrap(), [5]);
        // The newest segment is reported as missing because it is required, and so is the whole log.
        fs::remove_file(path_of(folder.path(), 2)).unwrap();
        let error = demanding(folder.path(), 4, 2..=2).err().unwrap().to_string();
        assert!(error.contains("00000002: this part of the log is missing"), "{error}");
        fs::remove_dir(folder.path()).unwrap();
        let error = demanding(folder.path(), 4, 2..=2).err().unwrap().to_string();
        assert!(error.contains("the log is missing"), "{error}");
        fs::create_dir(folder.path()).unwrap();
        append(&mut segment(folder.path(), 2), 5);
        fs::write(folder.path().join("stranger"), "").unwrap();
        assert!(matches!(versions(folder.path(), 4), Err(Error::Corrupt(_))));
    }

    #[test]
    fn a_reused_file_has_none_of_its_old_records() {
        let (folder, _) = log();
        let old = disk().open(path_of(folder.path(), 1), true).unwrap();
        let log = disk().folder(folder.path().to_owned()).unwrap();
        let mut third = Segment::create(&log, 3, &mut Some(old)).unwrap();
        assert_eq!(third.allocated, GROWTH_BYTES);
        assert_eq!(versions(folder.path(), 4).unwrap(), [5]);
        append(&mut third, 6);
        assert_eq!(versions(folder.path(), 4).unwrap(), [5, 6]);
    }

    #[test]
    fn a_segment_that_cannot_be_made_leaves_its_file_for_the_next_attempt() {
        let (folder, _) = log();
        let failing = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
        let calls = failing.clone();
        let faults = Faults::new(move |_, _| match calls.fetch_sub(1, std::sync::atomic::Ordering::SeqCst) {
            1 => Err(io::Error::from_raw_os_error(28)),
            _ => Ok(()),
        });
        let log = Disk { durable: true, faults }.folder(folder.path().to_owned()).unwrap();
        let mut old = Some(log.disk().open(path_of(folder.path(), 1), true).unwrap());
        // Calls: rename; rename and write; write and sync; then the sync of its name.
        for call in [1, 2, 2, 3] {
            failing.store(call, std::sync::atomic::Ordering::SeqCst);
            assert!(Segment::create(&log, 3, &mut old).is_err());
            assert!(old.is_some());
        }
        assert!(Segment::create(&log, 3, &mut old).is_ok());
        assert!(old.is_none() && path_of(folder.path(), 3).exists() && !path_of(folder.path(), 1).exists());
    }

    #[test]
    fn a_new_file_grows_ahead_of_its_records() {
        let (folder, ends) = log();
        let bytes = fs::metadata(path_of(folder.path(), 1)).unwrap().len();
        assert_eq!(bytes, GROWTH_BYTES);
        assert!(ends[3] < bytes);
    }
}
