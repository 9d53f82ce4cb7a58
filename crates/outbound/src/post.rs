//! One request that belongs to no replication, such as the delivery of a webhook: over the same connections, under the same egress
//! rules, and with errors of the same form.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT};
use http::{Method, Request, StatusCode};
use http_body::Body as _;
use hyper::body::Incoming;

use crate::answer::transport_fault;
use crate::connector::Route;
use crate::peer::OWN_NAME;
use crate::pool::Client;
use crate::secret::{Scrubber, Secret};
use crate::text::{beginning, shorten};
use crate::upload::Upload;

/// The most bytes that are read of a response.
const MAX_ANSWER_BYTES: usize = 16 << 10;

/// A request with a JSON body.
pub struct Post<'a> {
    /// The tenant who has chosen the URL. Without one, it may be internal.
    pub tenant: Option<&'a str>,
    /// The absolute URL.
    pub url: &'a str,
    /// Headers beside those of every request.
    pub headers: Vec<(&'static str, String)>,
    /// The JSON.
    pub body: Bytes,
    /// What must not be in the texts that are returned.
    pub secrets: Vec<Secret>,
    /// The time limit from the first attempt to connect to the end of the response.
    pub timeout: Duration,
}

/// The response to a [`Post`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Posted {
    /// Its status.
    pub status: StatusCode,
    /// The status, and the beginning of the body: at most 500 bytes on one line, without the secrets.
    pub words: String,
}

impl Client {
    /// Sends a request once, and reads the beginning of the response. Redirects are not followed: they are responses.
    ///
    /// # Errors
    /// Why there was no response, without the secrets.
    pub async fn post(&self, post: Post<'_>) -> Result<Posted, String> {
        let mut scrubber = Scrubber::default();
        post.secrets.iter().for_each(|secret| scrubber.add(None, secret));
        let timeout = post.timeout;
        let posted = match tokio::time::timeout(timeout, self.exchange(post)).await {
            Ok(posted) => posted,
            Err(_) => Err(format!("timed out: no response within {} ms", timeout.as_millis())),
        };
        let clean = |text: &str| shorten(&scrubber.scrub(text));
        match posted {
            Ok((status, body)) => {
                let name = status.canonical_reason().unwrap_or("no known status");
                let words = match beginning(&body).trim() {
                    "" => format!("{} {name}", status.as_u16()),
                    beginning => format!("{} {name}: {beginning}", status.as_u16()),
                };
                Ok(Posted { status, words: clean(&words) })
            }
            Err(problem) => Err(clean(&problem)),
        }
    }

    async fn exchange(&self, post: Post<'_>) -> Result<(StatusCode, Vec<u8>), String> {
        let Post { tenant, url, headers, body, .. } = post;
        let wrong = |cause: http::Error| format!("the request is invalid: {cause}");
        let upload = Upload::from_bytes(body, "application/json");
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(url)
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .header(USER_AGENT, HeaderValue::from_static(OWN_NAME))
            .body(upload)
            .map_err(wrong)?;
        for (name, value) in headers {
            let value = HeaderValue::from_str(&value).map_err(|cause| wrong(cause.into()))?;
            request.headers_mut().insert(HeaderName::from_static(name), value);
        }
        let route = Route { external: self.is_external(tenant), ..Route::default() };
        let transport = self.transport(&route);
        let response =
            transport.0.send(request).await.map_err(|error| transport_fault(&error).to_string())?;
        let status = response.status();
        Ok((status, read(response.into_body()).await))
    }
}

/// The beginning of a body. The status is enough, so what breaks off is no error.
async fn read(mut body: Incoming) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() <= MAX_ANSWER_BYTES {
        let frame = std::future::poll_fn(|context| std::pin::Pin::new(&mut body).poll_frame(context)).await;
        match frame {
            Some(Ok(frame)) => bytes.extend_from_slice(frame.data_ref().map_or(&[][..], |piece| &piece[..])),
            // The mark shows that it may end within a secret.
            Some(Err(_)) => {
                bytes.extend_from_slice(crate::secret::CUT.encode_utf8(&mut [0; 4]).as_bytes());
                break;
            }
            None => break,
        }
    }
    bytes
}
