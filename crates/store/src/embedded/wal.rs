//! The log: every group of commits is here before it is acknowledged.
//!
//! A log is a row of segments, numbered files in the folder `log`. A segment belongs to one memtable: when
//! it is full, the next one begins, with a new memtable, and once a [checkpoint](super::checkpoint) has
//! brought the old memtable to the base, the old file is used again under a new number. Writing over blocks
//! that are allocated already halves the time of an fsync, for it need not write metadata; so new files
//! grow by zeros, many blocks at a time, and old ones keep their blocks.
//!
//! ```text
//! record:  length u32 · crc32 u32 · segment u64 · version u64 · rows · zeros up to a multiple of 8
//! row:     key length u32 · value length u32, or NO_VALUE · key · value
//! ```
//!
//! All numbers are little-endian. The length counts rows only; the checksum covers everything behind it.
//!
//! What must hold: one record is written at a time, and the next one only after its fsync, so that after a
//! crash at most the last record of the log is incomplete. It was never acknowledged, and is left out. A
//! record that is damaged in any other place was acknowledged, so the store does not open. The last record
//! may be whole to the reader and yet not be on the disk, if its fsync has failed. So whoever opens a log
//! [writes it again](again), into the next segment, before anything is built on it.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::folder::{at, sync_folder};
use crate::{Error, Result};

/// Rows to set, and to remove where there is no value.
pub(super) type Row = (Bytes, Option<Bytes>);

const HEADER_BYTES: usize = 24;
const ROW_HEADER_BYTES: usize = 8;
const NO_VALUE: u32 = u32::MAX;
const ALIGNMENT: usize = 8;
/// By how much a new file grows at a time: many groups, and still written in about a millisecond.
const GROWTH_BYTES: u64 = 1 << 20;

/// The length of the record of these rows.
pub(super) fn record_bytes<'a>(rows: impl Iterator<Item = (&'a Bytes, &'a Option<Bytes>)>) -> usize {
    let row = |(key, value): (&Bytes, &Option<Bytes>)| {
        ROW_HEADER_BYTES + key.len() + value.as_ref().map_or(0, Bytes::len)
    };
    (HEADER_BYTES + rows.map(row).sum::<usize>()).next_multiple_of(ALIGNMENT)
}

/// The record of a group. `bytes` is its length.
pub(super) fn encode<'a>(
    segment: u64,
    version: u64,
    rows: impl Iterator<Item = (&'a Bytes, &'a Option<Bytes>)>,
    bytes: usize,
) -> Result<Bytes> {
    let too_large = |_| Error::TooLarge { what: "group", size: bytes, limit: u32::MAX as usize };
    u32::try_from(bytes).map_err(too_large)?;
    let mut record = BytesMut::with_capacity(bytes);
    record.put_u64_le(0);
    record.put_u64_le(segment);
    record.put_u64_le(version);
    for (key, value) in rows {
        // Both fit: the whole record does.
        record.put_u32_le(key.len() as u32);
        record.put_u32_le(value.as_ref().map_or(NO_VALUE, |value| value.len() as u32));
        record.put_slice(key);
        record.put_slice(value.as_deref().unwrap_or_default());
    }
    let length = (record.len() - HEADER_BYTES) as u32;
    record.resize(bytes, 0);
    record[0..4].copy_from_slice(&length.to_le_bytes());
    seal(&mut record);
    Ok(record.freeze())
}

/// The same record for another segment.
pub(super) fn again(record: &Bytes, segment: u64) -> Bytes {
    let mut record = BytesMut::from(record.as_ref());
    record[8..16].copy_from_slice(&segment.to_le_bytes());
    seal(&mut record);
    record.freeze()
}

fn seal(record: &mut BytesMut) {
    let crc = crc32fast::hash(&record[8..]);
    record[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// The rows of a record that was encoded or checked before. They share its memory.
pub(super) fn rows(record: &Bytes) -> Rows {
    let length = (&record[0..4]).get_u32_le() as usize;
    Rows { rest: record.slice(HEADER_BYTES..HEADER_BYTES + length) }
}

/// See [`rows`].
pub(super) struct Rows {
    rest: Bytes,
}

impl Iterator for Rows {
    type Item = Row;

    /// Ends early where the lengths make no sense; the checksum has been checked before.
    fn next(&mut self) -> Option<Row> {
        if self.rest.len() < ROW_HEADER_BYTES {
            return None;
        }
        let key_bytes = self.rest.get_u32_le() as usize;
        let value_bytes = self.rest.get_u32_le();
        let has_value = value_bytes != NO_VALUE;
        let value_bytes = if has_value { value_bytes as usize } else { 0 };
        if self.rest.len() < key_bytes.saturating_add(value_bytes) {
            return None;
        }
        let key = self.rest.split_to(key_bytes);
        let value = self.rest.split_to(value_bytes);
        Some((key, has_value.then_some(value)))
    }
}

/// The record at the beginning of `bytes`, if it is whole and belongs to `segment`.
fn whole_record(bytes: &Bytes, segment: u64) -> Option<(u64, Bytes)> {
    let mut header = bytes.get(..HEADER_BYTES)?;
    let length = header.get_u32_le() as usize;
    let crc = header.get_u32_le();
    if header.get_u64_le() != segment {
        return None;
    }
    let version = header.get_u64_le();
    let end = HEADER_BYTES.checked_add(length)?.checked_next_multiple_of(ALIGNMENT)?;
    let record = bytes.get(..end)?;
    (crc32fast::hash(&record[8..]) == crc).then(|| (version, bytes.slice(..end)))
}

/// A file of the log that takes records.
pub(super) struct Segment {
    pub(super) number: u64,
    path: PathBuf,
    file: File,
    /// Where the next record goes.
    position: u64,
    /// Where the file's own blocks end.
    allocated: u64,
}

impl Segment {
    /// Creates the segment `number`, from the file `old` if there is one. Its name is durable.
    pub(super) fn create(folder: &Path, number: u64, old: Option<&Path>) -> io::Result<Self> {
        let path = path_of(folder, number);
        if let Some(old) = old {
            fs::rename(old, &path)?;
        }
        let file = File::options().create(true).truncate(false).write(true).open(&path)?;
        sync_folder(folder)?;
        let allocated = file.metadata()?.len();
        Ok(Segment { number, path, file, position: 0, allocated })
    }

    /// Whether a record of `bytes` belongs here, in a log of segments of `segment_bytes`. A record that is
    /// larger than a segment gets its own.
    pub(super) fn has_room(&self, bytes: usize, segment_bytes: u64) -> bool {
        self.position == 0 || self.position + bytes as u64 <= segment_bytes
    }

    /// Writes a record, and waits for the disk if it is to be `durable`. After an error nobody knows what
    /// the disk holds.
    pub(super) fn append(&mut self, record: &[u8], durable: bool) -> io::Result<()> {
        self.file.write_all(record)?;
        self.position += record.len() as u64;
        if durable {
            if self.position > self.allocated {
                self.grow()?;
            }
            self.file.sync_data()?;
        }
        Ok(())
    }

    /// Writes zeros ahead of the records, so that the next ones find their blocks allocated. A disk that has
    /// no room for that may still have room for records.
    fn grow(&mut self) -> io::Result<()> {
        let allocated = self.position.next_multiple_of(GROWTH_BYTES);
        let zeros = &mut io::Read::take(io::repeat(0), allocated - self.position);
        self.allocated = match io::copy(zeros, &mut self.file) {
            Ok(_) => allocated,
            Err(error) => {
                tracing::warn!(%error, "no room to grow the log of the store");
                self.position
            }
        };
        self.file.seek(SeekFrom::Start(self.position)).map(drop)
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

fn path_of(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:020}"))
}

/// What was found of a log.
#[derive(Default)]
pub(super) struct Found {
    /// The records after the checkpoint, with their versions, which follow each other.
    pub(super) records: Vec<(u64, Bytes)>,
    /// All files.
    pub(super) files: Vec<PathBuf>,
    /// The highest number of a segment.
    pub(super) last_number: u64,
}

/// Reads the log in `folder`, as far as it is newer than `version`; creates the folder if it is missing.
///
/// # Errors
/// `Corrupt` if a record is missing or damaged that was acknowledged.
pub(super) fn read(folder: &Path, version: u64) -> Result<Found> {
    if let Err(error) = fs::create_dir(folder)
        && error.kind() != ErrorKind::AlreadyExists
    {
        return Err(at(folder, &error));
    }
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder).map_err(|error| at(folder, &error))? {
        let name = entry.map_err(|error| at(folder, &error))?.file_name();
        let number = name.to_str().and_then(|name| name.parse::<u64>().ok());
        numbers.push(number.ok_or_else(|| Error::Corrupt(format!("{} is no log segment", name.display())))?);
    }
    numbers.sort_unstable();
    let mut found = Found { last_number: numbers.last().copied().unwrap_or(0), ..Found::default() };
    let mut last = version;
    for number in numbers {
        let path = path_of(folder, number);
        let bytes = Bytes::from(fs::read(&path).map_err(|error| at(&path, &error))?);
        for (next, record) in read_segment(&path, number, &bytes)? {
            if next <= last {
                // In the B-tree already, or written again.
                continue;
            }
            if next != last + 1 {
                return Err(Error::Corrupt(format!(
                    "{}: the log goes on with version {next} after {last}",
                    path.display()
                )));
            }
            last = next;
            found.records.push((next, record));
        }
        found.files.push(path);
    }
    Ok(found)
}

fn read_segment(path: &Path, number: u64, bytes: &Bytes) -> Result<Vec<(u64, Bytes)>> {
    let mut records: Vec<(u64, Bytes)> = Vec::new();
    let mut position = 0;
    while let Some((version, record)) = whole_record(&bytes.slice(position..), number) {
        position += record.len();
        records.push((version, record));
    }
    // What follows is an incomplete record, or zeros, or what the file held under another number.
    let mut ahead = position;
    let own_number = number.to_le_bytes();
    while ahead + HEADER_BYTES <= bytes.len() {
        let may_be_one = bytes[ahead + 8..ahead + 16] == own_number;
        if may_be_one && whole_record(&bytes.slice(ahead..), number).is_some() {
            return Err(Error::Corrupt(format!(
                "{}: the record at byte {position} is damaged, and one at {ahead} is whole",
                path.display()
            )));
        }
        ahead += ALIGNMENT;
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn batch(n: u8) -> BTreeMap<Bytes, Option<Bytes>> {
        let key = |name: &'static str| Bytes::from_static(name.as_bytes());
        BTreeMap::from([
            (Bytes::new(), Some(Bytes::new())),
            (key("cleared"), None),
            (key("set"), Some(Bytes::from(vec![n; 100 + n as usize]))),
        ])
    }

    fn record(segment: u64, version: u64) -> Bytes {
        let batch = batch(version as u8);
        encode(segment, version, batch.iter(), record_bytes(batch.iter())).unwrap()
    }

    /// A log with the versions 1 to 4 in one segment, and 5 in the next.
    fn log() -> (tempfile::TempDir, Vec<u64>) {
        let folder = tempfile::tempdir().unwrap();
        let mut segment = Segment::create(folder.path(), 1, None).unwrap();
        let mut ends = Vec::new();
        for version in 1..=4 {
            segment.append(&record(1, version), true).unwrap();
            ends.push(segment.position);
        }
        let mut segment = Segment::create(folder.path(), 2, None).unwrap();
        segment.append(&record(2, 5), false).unwrap();
        (folder, ends)
    }

    fn versions(folder: &Path, version: u64) -> Result<Vec<u64>> {
        Ok(read(folder, version)?.records.into_iter().map(|(version, _)| version).collect())
    }

    fn change(folder: &Path, number: u64, change: impl FnOnce(&mut Vec<u8>)) {
        let path = path_of(folder, number);
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(&path, bytes).unwrap();
    }

    #[test]
    fn a_record_has_its_rows() {
        let batch = batch(7);
        let bytes = record_bytes(batch.iter());
        let record = encode(3, 9, batch.iter(), bytes).unwrap();
        assert_eq!(record.len(), bytes);
        assert_eq!(rows(&record).collect::<BTreeMap<_, _>>(), batch);
        assert_eq!(whole_record(&record, 3), Some((9, record.clone())));
        assert_eq!(whole_record(&record, 4), None);
    }

    #[test]
    fn a_log_is_read_after_a_version() {
        let (folder, _) = log();
        assert_eq!(versions(folder.path(), 0).unwrap(), [1, 2, 3, 4, 5]);
        assert_eq!(versions(folder.path(), 3).unwrap(), [4, 5]);
        assert_eq!(versions(folder.path(), 5).unwrap(), [0; 0]);
        let found = read(folder.path(), 0).unwrap();
        assert_eq!((found.last_number, found.files.len()), (2, 2));
    }

    #[test]
    fn an_incomplete_last_record_is_left_out() {
        for cut in [8, 9, 30, 100] {
            let (folder, ends) = log();
            fs::remove_file(path_of(folder.path(), 2)).unwrap();
            let torn = usize::try_from(ends[3]).unwrap() - cut;
            change(folder.path(), 1, |bytes| bytes[torn..].fill(0));
            assert_eq!(versions(folder.path(), 0).unwrap(), [1, 2, 3], "without the last {cut} bytes");
            change(folder.path(), 1, |bytes| bytes.truncate(torn));
            assert_eq!(versions(folder.path(), 0).unwrap(), [1, 2, 3], "without the last {cut} bytes");
        }
    }

    #[test]
    fn damage_before_the_last_record_is_noticed() {
        let (folder, ends) = log();
        fs::remove_file(path_of(folder.path(), 2)).unwrap();
        for n in 0..ends[2] {
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
        let last = read(folder.path(), 0).unwrap().records.pop().unwrap().1;
        let mut segment = Segment::create(folder.path(), 3, None).unwrap();
        segment.append(&again(&last, 3), true).unwrap();
        segment.append(&record(3, 6), true).unwrap();
        let found = read(folder.path(), 3).unwrap();
        assert_eq!(found.records.iter().map(|(version, _)| *version).collect::<Vec<_>>(), [4, 5, 6]);
        fs::remove_file(path_of(folder.path(), 2)).unwrap();
        let found = read(folder.path(), 3).unwrap();
        assert_eq!(found.records[1], (5, again(&last, 3)));
    }

    #[test]
    fn a_missing_segment_is_noticed() {
        let (folder, _) = log();
        fs::remove_file(path_of(folder.path(), 1)).unwrap();
        assert!(matches!(versions(folder.path(), 0), Err(Error::Corrupt(_))));
        assert_eq!(versions(folder.path(), 4).unwrap(), [5]);
        fs::write(folder.path().join("stranger"), "").unwrap();
        assert!(matches!(versions(folder.path(), 4), Err(Error::Corrupt(_))));
    }

    #[test]
    fn a_file_that_is_used_again_forgets_its_old_records() {
        let (folder, _) = log();
        let old = path_of(folder.path(), 1);
        let mut segment = Segment::create(folder.path(), 3, Some(&old)).unwrap();
        assert!(segment.allocated > 0);
        assert_eq!(versions(folder.path(), 4).unwrap(), [5]);
        segment.append(&record(3, 6), true).unwrap();
        assert_eq!(versions(folder.path(), 4).unwrap(), [5, 6]);
    }

    #[test]
    fn a_new_file_grows_ahead_of_its_records() {
        let (folder, ends) = log();
        let bytes = fs::metadata(path_of(folder.path(), 1)).unwrap().len();
        assert_eq!(bytes, GROWTH_BYTES);
        assert!(ends[3] < bytes);
    }
}
