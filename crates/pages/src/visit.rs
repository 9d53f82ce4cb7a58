//! A request for a page: its sender, its query, its form.

use std::str::FromStr;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use serde::de::{DeserializeOwned, IntoDeserializer};
use turnwise_web::access::{Caller, Peer};
use turnwise_web::request;
use turnwise_web::room::Cost;

use super::app::App;
use super::layout::Shell;
use super::problem::{Problem, Result};

/// Largest form, in bytes: that of a page of selected jobs with the longest ids.
const MAX_FORM_BYTES: usize = 1 << 20;
/// Maximum number of fields of a query or a form.
const MAX_FIELDS: usize = 1_000;
/// The content type of forms.
const FORM: &str = "application/x-www-form-urlencoded";

/// A request for a page.
#[derive(Clone)]
pub(super) struct Visit {
    pub app: App,
    pub peer: Peer,
    /// What surrounds the page: who sees it, and how.
    pub shell: Shell,
    /// The path and the query, without `did`.
    pub here: String,
    pub query: Fields,
    pub form: Fields,
}

/// The fields of a query or a form, in their order. Empty values count as missing: forms send them for what is not filled in.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields(Vec<(String, String)>);

impl Fields {
    fn parse(text: &[u8]) -> Fields {
        let fields = url::form_urlencoded::parse(text).into_owned();
        Fields(fields.filter(|(_, value)| !value.is_empty()).take(MAX_FIELDS).collect())
    }

    /// These fields, without empty ones.
    pub fn of<const N: usize>(fields: [(&str, Option<String>); N]) -> Fields {
        let stated = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Fields(stated.filter(|(_, value)| !value.is_empty()).collect())
    }

    /// The first value with this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(of, _)| of == name).map(|(_, value)| value.as_str())
    }

    /// Every value with this name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(of, _)| of == name).map(|(_, value)| value.as_str())
    }

    /// The fields whose names begin with this: the rest of each name, and its value.
    pub fn named<'a>(&'a self, begin: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.0.iter().filter_map(move |(name, value)| Some((name.strip_prefix(begin)?, value.as_str())))
    }

    /// A value that must be a whole number.
    pub fn number<T: FromStr>(&self, name: &str) -> Result<Option<T>> {
        let wrong = |_: T::Err| {
            let problem = format!("{name}: must be a whole number within the bounds of the field");
            Problem::bad(problem, "correct the field")
        };
        self.get(name).map(|text| text.trim().parse().map_err(wrong)).transpose()
    }

    /// The action of the button that was used, in the field of this name.
    pub fn action<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        self.word(name)?.ok_or_else(|| Problem::bad("no action is chosen", "use a button of a page"))
    }

    /// A value that must be one of some words.
    pub fn word<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let Some(word) = self.get(name) else { return Ok(None) };
        let read = T::deserialize(IntoDeserializer::<serde::de::value::Error>::into_deserializer(word));
        read.map(Some)
            .map_err(|_| Problem::bad(format!("{name}: this value is unknown"), "choose one of the list"))
    }
}

impl Visit {
    pub fn new(app: App, parts: &Parts) -> Result<Visit> {
        let caller = Caller::of(&parts.extensions)?;
        let unknown = || Peer { address: std::net::Ipv4Addr::UNSPECIFIED.into(), tls: false, names: None };
        let peer = parts.extensions.get::<Peer>().cloned().unwrap_or_else(unknown);
        let (path, query) = (parts.uri.path(), parts.uri.query().unwrap_or_default());
        // What was done is shown once.
        let lasting: Vec<&str> = query.split('&').filter(|field| !field.starts_with("did=")).collect();
        let lasting = lasting.join("&");
        let here = if lasting.is_empty() { path.to_owned() } else { format!("{path}?{lasting}") };
        let shell = Shell::new(caller, path, &parts.headers);
        let query = Fields::parse(query.as_bytes());
        Ok(Visit { app, peer, shell, here, query, form: Fields::default() })
    }

    /// Reads the form of a `POST`.
    pub async fn read_form(&mut self, parts: &Parts, body: Body) -> Result<()> {
        if parts.method != Method::POST {
            return Ok(());
        }
        if !is_form(&parts.headers) {
            return Err(Problem::bad("the body is not a form", "send the form of a page"));
        }
        let who = (self.caller(), &parts.headers);
        let sent = request::bytes(&self.app.web.body_room, body, who, MAX_FORM_BYTES, Cost::TEXT).await?;
        self.form = Fields::parse(&sent.text);
        Ok(())
    }

    pub fn caller(&self) -> &Caller {
        &self.shell.caller
    }
}

/// Whether a request has the content type of forms.
fn is_form(headers: &HeaderMap) -> bool {
    let given = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    given.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(FORM)
}

/// The path of a page, and a query of these fields. Fields without a value are left out.
pub(super) fn link(path: &str, fields: &[(&str, Option<&str>)]) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    for (name, value) in fields {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            query.append_pair(name, value);
        }
    }
    match query.finish() {
        query if query.is_empty() => path.to_owned(),
        query => format!("{path}?{query}"),
    }
}

/// The page of a job.
pub(super) fn job_link(job_type: &str, id: &str) -> String {
    link("/ui/job", &[("type", Some(job_type)), ("id", Some(id))])
}

/// The path of a job in the API, or of one of its parts.
pub(super) fn api_link(job_type: &str, id: &str, part: &str) -> String {
    // No id is `.` or `..`, which browsers would resolve.
    const SEGMENT: &percent_encoding::AsciiSet =
        &percent_encoding::NON_ALPHANUMERIC.remove(b'_').remove(b'-').remove(b'.').remove(b'~');
    let encode = |name| percent_encoding::utf8_percent_encode(name, SEGMENT);
    format!("/v1/jobs/{}/{}/{part}", encode(job_type), encode(id))
}

/// The page of the jobs of a tenant, of this type.
pub(super) fn tenant_link(job_type: &str, tenant: &str) -> String {
    link("/ui/jobs", &[("type", Some(job_type)), ("tenant", Some(tenant))])
}

/// A path to return to, if it is one of these pages.
pub(super) fn back(path: Option<&str>) -> Option<&str> {
    path.filter(|path| {
        path.starts_with(super::redirect::HOME) && !path.contains(|c: char| c.is_control() || c == '\\')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_encode_what_jobs_contain() {
        let fields =
            [("type", Some("mail")), ("id", Some("a/../<b>&c=d ü")), ("tenant", None), ("q", Some(""))];
        assert_eq!(link("/ui/job", &fields), "/ui/job?type=mail&id=a%2F..%2F%3Cb%3E%26c%3Dd+%C3%BC");
        assert_eq!(link("/ui/jobs", &[]), "/ui/jobs");
        assert_eq!(api_link("mail", "a/../<b>?", "logs"), "/v1/jobs/mail/a%2F..%2F%3Cb%3E%3F/logs");
    }

    #[test]
    fn one_returns_to_own_pages_only() {
        for path in ["/ui/", "/ui/jobs?type=a&state=failed"] {
            assert_eq!(back(Some(path)), Some(path));
        }
        for path in
            ["", "/", "//evil.example/ui/", "https://evil.example/ui/", "/ui/\\evil.example", "/ui/\n"]
        {
            assert_eq!(back(Some(path)), None, "{path:?}");
        }
        assert_eq!(back(None), None);
    }
}
