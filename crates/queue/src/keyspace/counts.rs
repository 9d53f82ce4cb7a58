//! The keys of [`crate::counts`]: a part of [`Keyspace`].

use bytes::Bytes;
use turnwise_store::key::{children, pack};
use turnwise_store::tuple::Element;

use super::{KeyRange, Keyspace};

impl Keyspace {
    /// The counts of a tenant's jobs of one type. Some engines add rows behind this key.
    pub fn counts_of(&self, job_type: &str, tenant: &str) -> Bytes {
        pack(&self.space, &("counts", job_type, tenant))
    }

    /// The end of these rows, exclusive.
    pub fn end_of_counts(&self, job_type: &str, tenant: &str) -> Bytes {
        children(&self.space, &("counts", job_type, tenant)).1
    }

    /// The counts of all tenants of a type.
    pub fn counts(&self, job_type: &str) -> KeyRange {
        children(&self.space, &("counts", job_type))
    }

    /// The counts of all types and tenants after these.
    pub fn counts_after(&self, after: Option<(&str, &str)>) -> KeyRange {
        let (begin, end) = children(&self.space, &("counts",));
        let after = after.map(|(job_type, tenant)| self.end_of_counts(job_type, tenant));
        (after.unwrap_or(begin), end)
    }

    /// Type and tenant of a key of [`Keyspace::counts`].
    pub fn parse_counts(&self, key: &[u8]) -> Option<(String, String)> {
        let mut elements = self.unpack(key)?.into_iter().skip(1);
        match (elements.next()?, elements.next()?) {
            (Element::String(job_type), Element::String(tenant)) => {
                Some((job_type.into_owned(), tenant.into_owned()))
            }
            _ => None,
        }
    }

    /// The row on which transactions that fold counts conflict.
    pub fn counts_guard(&self) -> Bytes {
        pack(&self.space, &("counts_guard",))
    }
}
