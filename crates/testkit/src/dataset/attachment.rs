//! The attachments of a data set.

use crate::Random;

/// How many times an attachment's size is halved before sizes start over.
const SIZES: usize = 16;

/// Names for attachments that are small enough to be inline. Large attachments have plain names, because servers differ in
/// the quoting rules of `multipart/related` bodies.
const UNUSUAL_NAMES: [&str; 4] = ["ümläut ☃.txt", "folder/file.txt", "plus+and space.bin", "100%.bin"];

/// One attachment.
#[derive(Clone, Debug)]
pub struct Attachment {
    /// The name, unencoded.
    pub name: String,
    /// Its MIME type.
    pub content_type: &'static str,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl Attachment {
    /// The attachment of a data set at `index`. Even ones are binary, and odd ones are text, which CouchDB compresses.
    pub(super) fn make(index: usize, max_bytes: usize, random: &mut Random) -> Self {
        let step = index % SIZES;
        let size = if step == SIZES - 1 { 0 } else { max_bytes >> step };
        let is_text = index % 2 == 1;
        let name = match UNUSUAL_NAMES.get(index % 8) {
            Some(name) if size <= super::load::INLINE_MAX_BYTES / 4 => (*name).to_owned(),
            _ => format!("attachment-{index}.{}", if is_text { "txt" } else { "bin" }),
        };
        let (content_type, bytes) = match is_text {
            true => ("text/plain", random.text(size).into_bytes()),
            false => ("application/octet-stream", random.bytes(size)),
        };
        Self { name, content_type, bytes }
    }
}
