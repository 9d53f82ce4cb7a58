//! Reading the design documents of a database.

use serde::Deserialize;
use serde_json::{Map, Value};
use turnwise_outbound::Error;
use turnwise_replicator::{Remote, encode};

/// The most design documents of a database.
pub(super) const MAX_DESIGNS: usize = 1_000;
/// Design documents that one request reads.
const AT_ONCE: usize = 20;
/// The largest answer that is read, in bytes. More are read in several requests.
const ANSWER_BYTES: usize = 64 << 20;

/// A design document: its name without `_design/`, and its revision.
pub(super) type Design = (String, String);

#[derive(Deserialize)]
struct Rows {
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    id: String,
    #[serde(default)]
    value: Map<String, Value>,
    doc: Option<Map<String, Value>>,
}

impl Row {
    fn rev(&self) -> &str {
        self.value.get("rev").and_then(Value::as_str).unwrap_or_default()
    }
}

/// The design documents of one database.
pub(super) struct Designs<'a> {
    remote: &'a Remote,
    database: &'a str,
    answer_bytes: usize,
}

impl<'a> Designs<'a> {
    pub fn of(remote: &'a Remote, database: &'a str) -> Self {
        Designs { remote, database, answer_bytes: ANSWER_BYTES }
    }

    /// The first [`MAX_DESIGNS`] by name, and whether there are more.
    pub async fn list(&self) -> Result<(Vec<Design>, bool), Error> {
        let path = format!(
            "{}/_all_docs?startkey=%22_design%2F%22&endkey=%22_design0%22&limit={}",
            encode(self.database),
            MAX_DESIGNS + 1
        );
        let Rows { mut rows } = self.remote.get(&path).await?;
        let more = rows.len() > MAX_DESIGNS;
        rows.truncate(MAX_DESIGNS);
        let design = |row: &Row| Some((row.id.strip_prefix("_design/")?.to_owned(), row.rev().to_owned()));
        Ok((rows.iter().filter_map(design).collect(), more))
    }

    /// Reads some of them, which are in order, and passes each on with its name and its revision. One that is too large is left out.
    pub async fn read(
        &self,
        designs: &[Design],
        mut each: impl FnMut(&str, &str, &Map<String, Value>),
    ) -> Result<(), Error> {
        let mut parts: Vec<&[Design]> = designs.chunks(AT_ONCE).rev().collect();
        while let Some(part) = parts.pop() {
            let (Some((first, _)), Some((last, _))) = (part.first(), part.last()) else { continue };
            let key = |name: &str| encode(&Value::from(format!("_design/{name}")).to_string());
            let path = format!(
                "{}/_all_docs?include_docs=true&startkey={}&endkey={}",
                encode(self.database),
                key(first),
                key(last)
            );
            match self.remote.get_up_to::<Rows>(&path, self.answer_bytes).await? {
                Some(Rows { rows }) => {
                    for row in rows {
                        let (Some(name), Some(doc)) = (row.id.strip_prefix("_design/"), &row.doc) else {
                            continue;
                        };
                        each(name, row.rev(), doc);
                    }
                }
                None if part.len() > 1 => {
                    let (one, other) = part.split_at(part.len() / 2);
                    parts.extend([other, one]);
                }
                None => tracing::warn!(
                    database = self.database,
                    design = first,
                    "is not indexed: it is larger than {} bytes",
                    self.answer_bytes
                ),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;
    use turnwise_outbound::{Client, PeerSettings};
    use turnwise_replicator::upstream::Address;
    use turnwise_testkit::{Fake, Reply};

    use super::*;

    fn remote(fake: &Fake) -> Remote {
        let root = fake.url().rsplit_once('/').unwrap().0.to_owned();
        let address = Address::parse(&root).unwrap();
        Remote::new(&address, &PeerSettings::default(), &Client::new().unwrap())
    }

    /// A server with these design documents: their names, and how large they are.
    async fn server(designs: Vec<(String, usize)>) -> Fake {
        let fake = Fake::start().await;
        fake.rule(move |asked| {
            let key = |name| asked.parameter(name).and_then(|key| serde_json::from_str::<String>(key).ok());
            let (first, last) = (key("startkey")?, key("endkey")?);
            let limit = asked.parameter("limit").map_or(usize::MAX, |limit| limit.parse().unwrap());
            let row = |(name, bytes): &(String, usize)| {
                let id = format!("_design/{name}");
                let is_asked = first <= id && id <= last;
                let doc =
                    asked.parameter("include_docs").map(|_| json!({ "_id": id, "x": "x".repeat(*bytes) }));
                is_asked.then(|| json!({ "id": id, "value": { "rev": format!("1-{name}") }, "doc": doc }))
            };
            let rows: Vec<Value> = designs.iter().filter_map(row).take(limit).collect();
            Some(Reply::json(200, &json!({ "rows": rows })))
        });
        fake
    }

    async fn read(designs: &Designs<'_>, list: &[Design]) -> Result<Vec<Design>, Error> {
        let mut read = Vec::new();
        designs.read(list, |name, rev, _| read.push((name.to_owned(), rev.to_owned()))).await.map(|()| read)
    }

    #[tokio::test]
    async fn large_design_documents_are_read_in_several_answers_and_only_one_that_is_too_large_is_left_out() {
        let large = |n: usize| match n {
            5 => 20_000,
            _ => 4_000,
        };
        let fake = server((0..45).map(|n| (format!("d{n:02}"), large(n))).collect()).await;
        let remote = remote(&fake);
        let designs = Designs { answer_bytes: 10_000, ..Designs::of(&remote, "db") };
        let (mut list, more) = designs.list().await.unwrap();
        assert_eq!((list.len(), more), (45, false));
        let found = read(&designs, &list).await.unwrap();
        list.remove(5);
        assert_eq!(found, list);
        // Where they fit, they come together.
        fake.clear();
        assert_eq!(read(&Designs::of(&remote, "db"), &list).await.unwrap().len(), 45);
        assert_eq!(fake.count(|asked| asked.parameter("include_docs").is_some()), 3);
    }

    #[tokio::test]
    async fn more_design_documents_than_are_indexed_are_noticed() {
        for (count, more) in [(MAX_DESIGNS, false), (MAX_DESIGNS + 1, true)] {
            let fake = server((0..count).map(|n| (format!("d{n:04}"), 1)).collect()).await;
            let remote = remote(&fake);
            let (list, cut) = Designs::of(&remote, "db").list().await.unwrap();
            assert_eq!((list.len(), cut), (MAX_DESIGNS, more));
        }
    }

    #[tokio::test]
    async fn an_answer_that_cannot_be_read_concerns_one_database_and_no_answer_the_server() {
        let fake = Fake::start().await;
        let remote = remote(&fake);
        let list = [("a".to_owned(), "1-a".to_owned())];
        for answer in [json!({ "rows": 1 }), json!([])] {
            fake.rule(move |_| Some(Reply::json(200, &answer)));
            let error = read(&Designs::of(&remote, "db"), &list).await.unwrap_err();
            assert!(error.concerns_one_request(), "{error}");
            fake.well();
        }
        fake.rule(|_| Some(Reply::error(500, "no")));
        let error = Designs::of(&remote, "db").list().await.unwrap_err();
        assert!(error.concerns_one_request(), "{error}");
        drop(fake);
        let error = Designs::of(&remote, "db").list().await.unwrap_err();
        assert!(!error.concerns_one_request(), "{error}");
    }
}
