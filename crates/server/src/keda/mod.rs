//! An external scaler of KEDA: the demand over gRPC, on a port of its own.
//!
//! KEDA asks for the number of slots that are wanted (`GetMetrics`), and for the slots of one worker (`GetMetricSpec`), and lets Kubernetes divide
//! them. `StreamIsActive` tells within a second that the first job could run, instead of at KEDA's next poll.
//!
//! KEDA cannot send headers. So the credentials are a client certificate, as on the main port, or a token in the metadata of the trigger. A client
//! other than KEDA may send the header `authorization`. The caller needs the right to read the metrics, which have the same number, so that the token
//! in the workers' environment permits nothing else.

mod api;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use futures::stream::{self, Stream};
use hyper::body::Incoming;
use tonic::body::Body;
use tonic::server::{Grpc, ServerStreamingService, UnaryService};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;
use turnwise_protocol::names;

use self::api::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec, MetricValue,
    ScaledObjectRef, path,
};
use crate::access::rights::Right;
use crate::access::{Peer, admit};
use crate::http::{App, Refusal, facts};

/// The name of the metric. KEDA puts the trigger's number before it.
const METRIC: &str = "turnwise-wanted-slots";
/// The largest request: the metadata of a trigger.
const MAX_REQUEST_BYTES: usize = 64 << 10;
/// The longest time between two readings for a stream.
const PAUSE: Duration = Duration::from_secs(5);
/// The shortest one.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
/// The bounds of `drainTarget`, in s.
const TARGETS_S: std::ops::RangeInclusive<u64> = 1..=86_400;
/// The bounds of `slots`.
const SLOTS: std::ops::RangeInclusive<u32> = 1..=100_000;

/// Answers one request.
pub(crate) async fn answer(
    app: App,
    peer: Peer,
    request: hyper::Request<Incoming>,
) -> Result<hyper::Response<Body>, Infallible> {
    let scaler = Scaler { app, peer };
    let path = request.uri().path().to_owned();
    Ok(match path.as_str() {
        path::IS_ACTIVE => {
            let call = |scaler: Scaler, headers: HeaderMap, of: ScaledObjectRef| async move {
                let wanted = scaler.wanted(&headers, &of).await?;
                Ok(IsActiveResponse { result: wanted.slots > 0 })
            };
            grpc().unary(Call { scaler, call }, request).await
        }
        path::GET_METRIC_SPEC => {
            let call = |scaler: Scaler, headers: HeaderMap, of: ScaledObjectRef| async move {
                scaler.admit(&headers, &of).await?;
                let slots = Trigger::parse(&scaler.app, &of)?.slots;
                let target_size_float = f64::from(slots);
                Ok(GetMetricSpecResponse {
                    metric_specs: vec![MetricSpec {
                        metric_name: METRIC.to_owned(),
                        target_size: i64::from(slots),
                        target_size_float,
                    }],
                })
            };
            grpc().unary(Call { scaler, call }, request).await
        }
        path::GET_METRICS => {
            let call = |scaler: Scaler, headers: HeaderMap, request: GetMetricsRequest| async move {
                let of = request.scaled_object_ref.unwrap_or_default();
                let slots = scaler.wanted(&headers, &of).await?.slots;
                #[allow(clippy::cast_precision_loss, reason = "far fewer than 2^52 slots")]
                let metric_value_float = slots as f64;
                Ok(GetMetricsResponse {
                    metric_values: vec![MetricValue {
                        metric_name: request.metric_name,
                        metric_value: i64::try_from(slots).unwrap_or(i64::MAX),
                        metric_value_float,
                    }],
                })
            };
            grpc().unary(Call { scaler, call }, request).await
        }
        path::STREAM_IS_ACTIVE => grpc().server_streaming(Follow(scaler), request).await,
        _ => Status::unimplemented("this scaler has no such call").into_http(),
    })
}

fn grpc<Answer, Question>() -> Grpc<ProstCodec<Answer, Question>>
where
    Answer: prost::Message + Send + 'static,
    Question: prost::Message + Default + Send + 'static,
{
    Grpc::new(ProstCodec::default()).max_decoding_message_size(MAX_REQUEST_BYTES)
}

/// A call with one response.
struct Call<F> {
    scaler: Scaler,
    call: F,
}

impl<F, Answering, Answer, Question> UnaryService<Question> for Call<F>
where
    F: Fn(Scaler, HeaderMap, Question) -> Answering,
    Answering: Future<Output = Result<Answer, Status>> + Send + 'static,
{
    type Response = Answer;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Answer>, Status>> + Send>>;

    fn call(&mut self, request: Request<Question>) -> Self::Future {
        let (metadata, _, question) = request.into_parts();
        let answering = (self.call)(self.scaler.clone(), metadata.into_headers(), question);
        Box::pin(async move { answering.await.map(Response::new) })
    }
}

/// `StreamIsActive`.
struct Follow(Scaler);

impl ServerStreamingService<ScaledObjectRef> for Follow {
    type Response = IsActiveResponse;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<IsActiveResponse, Status>> + Send>>;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Self::ResponseStream>, Status>> + Send>>;

    fn call(&mut self, request: Request<ScaledObjectRef>) -> Self::Future {
        let scaler = self.0.clone();
        let (metadata, _, of) = request.into_parts();
        Box::pin(async move {
            let headers = metadata.into_headers();
            scaler.admit(&headers, &of).await?;
            let stream: Self::ResponseStream = Box::pin(scaler.follow(headers, of));
            Ok(Response::new(stream))
        })
    }
}

/// The sender of a request.
#[derive(Clone)]
struct Scaler {
    app: App,
    peer: Peer,
}

/// The slots for a trigger.
struct WantedSlots {
    slots: u64,
    job_type: String,
    wake: Option<bytes::Bytes>,
}

impl Scaler {
    /// Refuses a sender that may not read the metrics.
    async fn admit(&self, headers: &HeaderMap, of: &ScaledObjectRef) -> Result<(), Status> {
        let mut headers = headers.clone();
        let given = &of.scaler_metadata;
        // The value of a `…FromEnv` is that of the variable, when it arrives here.
        if let Some(token) = given.get("token").or_else(|| given.get("tokenFromEnv"))
            && !headers.contains_key(header::AUTHORIZATION)
        {
            let mut value = HeaderValue::try_from(format!("Bearer {token}"))
                .map_err(|_| Status::unauthenticated("the token has characters that no token has"))?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        admit(&self.app, &headers, &self.peer, Right::Metrics).await.map_err(refused)
    }

    /// The slots that are wanted now.
    async fn wanted(&self, headers: &HeaderMap, of: &ScaledObjectRef) -> Result<WantedSlots, Status> {
        self.admit(headers, of).await?;
        let Trigger { job_type, target, .. } = Trigger::parse(&self.app, of)?;
        match facts::wanted(&self.app, &job_type, target).await {
            Ok(wanted) => Ok(WantedSlots { slots: wanted.wanted_slots, job_type, wake: wanted.wake }),
            Err(error) => {
                tracing::warn!(error, job_type, "cannot read the demand for KEDA");
                Err(Status::unavailable("the store cannot be read: the server's log has the reason"))
            }
        }
    }

    /// Whether slots are wanted: now, and whenever that changes.
    fn follow(
        self,
        headers: HeaderMap,
        of: ScaledObjectRef,
    ) -> impl Stream<Item = Result<IsActiveResponse, Status>> {
        let first = Following { scaler: self, headers, of, before: None, seen: None };
        stream::unfold(Some(first), |following| async move {
            let mut following = following?;
            match following.next().await {
                Ok(Some(result)) => Some((Ok(IsActiveResponse { result }), Some(following))),
                Ok(None) => None,
                Err(status) => Some((Err(status), None)),
            }
        })
    }
}

/// A stream's state.
struct Following {
    scaler: Scaler,
    headers: HeaderMap,
    of: ScaledObjectRef,
    /// What was sent last.
    before: Option<bool>,
    /// What was read last.
    seen: Option<WantedSlots>,
}

impl Following {
    /// Waits for a change. `None` when the server stops.
    async fn next(&mut self) -> Result<Option<bool>, Status> {
        loop {
            if let Some(seen) = self.seen.take()
                && !self.waited(seen).await?
            {
                return Ok(None);
            }
            // The credentials are checked each time: they may be revoked.
            let wanted = self.scaler.wanted(&self.headers, &self.of).await?;
            let active = wanted.slots > 0;
            self.seen = Some(wanted);
            if self.before.replace(active) != Some(active) {
                return Ok(Some(active));
            }
        }
    }

    /// Waits until another reading is useful. Returns whether the server goes on.
    async fn waited(&self, seen: WantedSlots) -> Result<bool, Status> {
        let app = &self.scaler.app;
        let changed = app.store.watch(app.keys.wake(&seen.job_type), seen.wake);
        let changed = changed.await.map_err(|_| Status::unavailable("the store cannot be read"))?;
        // While slots are wanted, new jobs change nothing.
        let is_idle = seen.slots == 0;
        let due = async {
            tokio::time::sleep(SHORTEST_PAUSE).await;
            tokio::select! {
                () = tokio::time::sleep(PAUSE - SHORTEST_PAUSE) => {}
                () = changed, if is_idle => {}
            }
        };
        tokio::select! {
            () = app.stop.cancelled() => Ok(false),
            () = due => Ok(true),
        }
    }
}

/// The metadata of a trigger.
struct Trigger {
    job_type: String,
    /// The slots of one worker.
    slots: u32,
    target: Duration,
}

impl Trigger {
    fn parse(app: &App, of: &ScaledObjectRef) -> Result<Trigger, Status> {
        let given = |key: &str| of.scaler_metadata.get(key).map(|value| value.trim());
        let wrong =
            |problem: String| Status::invalid_argument(format!("the metadata of the trigger: {problem}"));
        let job_type =
            given("type").ok_or_else(|| wrong("`type` is missing: the type of jobs".to_owned()))?;
        names::check_type(job_type).map_err(|_| wrong("`type` is no name of a type".to_owned()))?;
        let slots = match given("slots") {
            None => 1,
            Some(text) => text.parse().ok().filter(|slots| SLOTS.contains(slots)).ok_or_else(|| {
                wrong(format!(
                    "`slots` must be a whole number from {} to {}: the slots of one worker",
                    SLOTS.start(),
                    SLOTS.end()
                ))
            })?,
        };
        let target = match given("drainTarget") {
            None => app.config.get().workers.drain_target,
            Some(text) => {
                let seconds = text.parse().ok().filter(|seconds| TARGETS_S.contains(seconds));
                Duration::from_secs(seconds.ok_or_else(|| {
                    wrong(format!(
                        "`drainTarget` must be whole seconds from {} to {}",
                        TARGETS_S.start(),
                        TARGETS_S.end()
                    ))
                })?)
            }
        };
        Ok(Trigger { job_type: job_type.to_owned(), slots, target })
    }
}

/// A refusal as a status of gRPC.
fn refused(refusal: Refusal) -> Status {
    let code = match refusal.status {
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::TOO_MANY_REQUESTS => Code::ResourceExhausted,
        StatusCode::SERVICE_UNAVAILABLE => Code::Unavailable,
        _ => Code::Internal,
    };
    Status::new(code, format!("{}: {}", refusal.reason, refusal.hint))
}
