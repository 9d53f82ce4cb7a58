//! A request to this API, and whether its sender may send it.

use axum::http::{HeaderMap, Method, header};
use turnwise_web::access::rights::Right;
use turnwise_web::access::{Caller, Peer};
use turnwise_web::error::ApiError;
use turnwise_web::request::{Params, Sender};

use super::route::{Part, Target};

/// A request without its body.
pub struct Call {
    /// `GET` also for `HEAD`.
    pub method: Method,
    /// The parameters of its query.
    pub params: Params,
    /// Its headers.
    pub headers: HeaderMap,
    /// Who sends it.
    pub caller: Caller,
    /// The other end of its connection.
    pub peer: Peer,
}

impl Call {
    /// Who sends its body.
    pub fn sender(&self) -> Sender<'_> {
        (&self.caller, &self.headers)
    }

    /// Refuses it, if its sender may not do this with a document, or, without an id, with the database.
    pub fn check(&self, db: &str, id: Option<&str>) -> Result<(), ApiError> {
        check_use(self, db, &id.map_or(Part::Itself, |id| Part::Doc(id.to_owned())))
    }

    /// The absolute URL of a database or document, under the server's name in the request.
    pub fn location(&self, db: &str, doc: Option<&str>) -> String {
        /// Characters that a path segment may contain unencoded.
        const SEGMENT: &percent_encoding::AsciiSet =
            &percent_encoding::NON_ALPHANUMERIC.remove(b'_').remove(b'-').remove(b'.').remove(b'~');
        let encode = |name: &str| percent_encoding::utf8_percent_encode(name, SEGMENT).to_string();
        let host = self.headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let doc = doc.map(|doc| format!("/{}", encode(doc))).unwrap_or_default();
        format!("{}://{host}/{}{doc}", self.peer.scheme(), encode(db))
    }
}

/// A database that the caller may not read does not exist.
pub(super) fn check_database(call: &Call, db: &str) -> Result<(), ApiError> {
    match call.caller.reads(db) {
        true => Ok(()),
        false => Err(turnwise_replicator::documents::Error::NoDatabase.into()),
    }
}

/// Whether the caller may do this with the database, beside what [`Target::needed`] checks.
pub(super) fn check_use(call: &Call, db: &str, part: &Part) -> Result<(), ApiError> {
    let target = Target::Db(db.to_owned(), part.clone());
    let writes = target.needed(&call.method) == Right::Write;
    if writes && !call.caller.writes(db) && (call.caller.reads(db) || *part == Part::Itself) {
        let reason = format!(
            "this identity may not change the database `{db}`: it needs a scope client:TENANTS that names it"
        );
        return Err(ApiError::forbidden(reason));
    }
    check_database(call, db)
}
