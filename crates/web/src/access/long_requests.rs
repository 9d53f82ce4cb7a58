//! Requests that last and change nothing: feeds of events and of changes, and workers that wait for jobs.
//!
//! Their sender is identified again while they last. If its token was revoked, or it has other scopes now, they end.

use std::time::{Duration, Instant};

use axum::body::{Body, HttpBody as _};
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use futures::StreamExt as _;

use super::authenticate::{identify, now_s};
use super::{Caller, Peer};
use crate::Web;
use crate::names::is_v1;
use crate::v1_error::V1Error;

/// How often it is checked whether identities have changed.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Sessions and JSON Web Tokens end without a change, so the sender is also identified again after this time.
const IDENTIFY_EVERY: Duration = Duration::from_secs(60);

/// A request that may last.
pub(super) struct LongRequest {
    web: Web,
    /// The credentials.
    headers: HeaderMap,
    peer: Peer,
    caller: Caller,
    is_v1: bool,
}

impl LongRequest {
    pub fn new(web: &Web, request: &Request, peer: &Peer, caller: &Caller) -> LongRequest {
        let mut headers = HeaderMap::new();
        for name in [header::AUTHORIZATION, header::COOKIE] {
            for value in request.headers().get_all(&name) {
                headers.append(&name, value.clone());
            }
        }
        let (web, peer, caller) = (web.clone(), peer.clone(), caller.clone());
        LongRequest { web, headers, peer, caller, is_v1: is_v1(request) }
    }

    /// The response of a handler, which ends once its sender may not send the request any more.
    pub async fn run(self, handler: impl Future<Output = Response>) -> Response {
        let response = tokio::select! {
            biased;
            response = handler => response,
            () = self.is_over() => {
                let reason = "the credentials of this request are not valid any more";
                return V1Error::unauthorized(reason, "identify anew").respond(self.is_v1);
            }
        };
        if response.body().size_hint().exact().is_some() {
            return response;
        }
        let over = async move { self.is_over().await };
        response.map(|body| Body::from_stream(body.into_data_stream().take_until(Box::pin(over))))
    }

    /// Returns once the credentials are those of another sender, or of none, or permit something else.
    async fn is_over(&self) {
        let identities = &self.web.identities;
        let (mut seen, mut identified) = (identities.generation(), Instant::now());
        loop {
            tokio::time::sleep(CHECK_EVERY).await;
            // While the store cannot be read, nothing is known, and nothing is served.
            let Some(now) = identities.generation() else { continue };
            if seen == Some(now) && identified.elapsed() < IDENTIFY_EVERY {
                continue;
            }
            let is_same = match identify(&self.web, &self.headers, &self.peer, now_s(&self.web)).await {
                Ok(again) => again.caller.is_same(&self.caller),
                Err(error) => error.status != StatusCode::UNAUTHORIZED,
            };
            if !is_same {
                return;
            }
            (seen, identified) = (Some(now), Instant::now());
        }
    }
}
