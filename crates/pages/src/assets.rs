//! The files of the pages. Their names have a hash of their contents, so that browsers may keep them for ever.

use std::sync::LazyLock;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;

use super::problem::{Problem, Result};
use super::visit::Visit;

/// The files, with their content types.
const FILES: [(&str, &str, &str); 3] = [
    ("app.css", "text/css; charset=utf-8", include_str!("static/app.css")),
    ("app.js", "text/javascript; charset=utf-8", include_str!("static/app.js")),
    ("icon.svg", "image/svg+xml", include_str!("static/icon.svg")),
];

/// The paths of [`FILES`], in their order.
static PATHS: LazyLock<[String; FILES.len()]> = LazyLock::new(|| {
    FILES.map(|(name, _, text)| {
        let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        let hash: String = digest.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let (stem, extension) = name.split_once('.').expect("the names are constant");
        format!("/ui/static/{stem}-{hash}.{extension}")
    })
});

/// The path of the file with this name.
pub(super) fn path(name: &str) -> &'static str {
    let nth = FILES.iter().position(|(of, ..)| *of == name);
    &PATHS[nth.expect("the names are constant")]
}

/// A file. Under another hash it does not exist: it could be kept for ever under the wrong name.
pub(super) fn file(visit: &Visit) -> Result<Response> {
    let nth = PATHS.iter().position(|path| *path == visit.here);
    let (_, kind, text) = nth.map(|nth| FILES[nth]).ok_or_else(|| Problem::nothing_here(visit))?;
    let mut response = Response::new(Body::from(text));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    let for_ever = HeaderValue::from_static("public, max-age=31536000, immutable");
    headers.insert(header::CACHE_CONTROL, for_ever);
    Ok(response)
}
