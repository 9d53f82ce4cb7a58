//! What KEDA does with an external scaler, over gRPC.

use std::collections::HashMap;
use std::time::Duration;

use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Error};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

/// The name that a scaler gives its metric.
const METRIC: &str = "turnwise-wanted-slots";
/// Far longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, PartialEq, prost::Message)]
struct ScaledObjectRef {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(map = "string, string", tag = "3")]
    scaler_metadata: HashMap<String, String>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct IsActiveResponse {
    #[prost(bool, tag = "1")]
    result: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct GetMetricSpecResponse {
    #[prost(message, repeated, tag = "1")]
    metric_specs: Vec<MetricSpec>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct MetricSpec {
    #[prost(string, tag = "1")]
    metric_name: String,
    #[prost(int64, tag = "2")]
    target_size: i64,
    #[prost(double, tag = "3")]
    target_size_float: f64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct GetMetricsRequest {
    #[prost(message, optional, tag = "1")]
    scaled_object_ref: Option<ScaledObjectRef>,
    #[prost(string, tag = "2")]
    metric_name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct GetMetricsResponse {
    #[prost(message, repeated, tag = "1")]
    metric_values: Vec<MetricValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct MetricValue {
    #[prost(string, tag = "1")]
    metric_name: String,
    #[prost(int64, tag = "2")]
    metric_value: i64,
    #[prost(double, tag = "3")]
    metric_value_float: f64,
}

/// A trigger of KEDA.
pub struct KedaClient {
    grpc: Grpc<Channel>,
    /// The metadata of the trigger.
    pub metadata: HashMap<String, String>,
    /// The header `authorization`, which KEDA itself never sends.
    pub authorization: Option<String>,
}

/// A response of `StreamIsActive`.
pub struct KedaStream(Streaming<IsActiveResponse>);

impl KedaStream {
    /// The next message; `None` at the end.
    ///
    /// # Errors
    /// The status with which the stream ends.
    pub async fn next(&mut self) -> Result<Option<bool>, Status> {
        let message =
            tokio::time::timeout(PATIENCE, self.0.message()).await.expect("the scaler sends nothing");
        Ok(message?.map(|message| message.result))
    }
}

impl KedaClient {
    /// A trigger for a scaler on this port of this machine.
    pub async fn connect(port: u16, metadata: &[(&str, &str)]) -> KedaClient {
        Self::try_connect(port, metadata).await.expect("the scaler does not listen")
    }

    /// The same, with a result.
    ///
    /// # Errors
    /// The connection fails.
    pub async fn try_connect(port: u16, metadata: &[(&str, &str)]) -> Result<KedaClient, Error> {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}"))?;
        Ok(Self::on(endpoint.connect().await?, metadata))
    }

    /// The same over TLS, with the certificate of `localhost` from this authority.
    ///
    /// # Errors
    /// The connection fails.
    pub async fn connect_tls(port: u16, ca: &str, metadata: &[(&str, &str)]) -> Result<KedaClient, Error> {
        let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)).domain_name("localhost");
        let endpoint = Endpoint::from_shared(format!("https://127.0.0.1:{port}"))?.tls_config(tls)?;
        Ok(Self::on(endpoint.connect().await?, metadata))
    }

    fn on(channel: Channel, metadata: &[(&str, &str)]) -> KedaClient {
        let metadata = metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        KedaClient { grpc: Grpc::new(channel), metadata, authorization: None }
    }

    fn of(&self) -> ScaledObjectRef {
        ScaledObjectRef {
            name: "workers".to_owned(),
            namespace: "default".to_owned(),
            scaler_metadata: self.metadata.clone(),
        }
    }

    async fn request<T>(&mut self, question: T) -> Request<T> {
        self.grpc.ready().await.expect("the connection has ended");
        let mut request = Request::new(question);
        if let Some(authorization) = &self.authorization {
            let value = authorization.parse().expect("a header");
            request.metadata_mut().insert("authorization", value);
        }
        request
    }

    async fn ask<Q, A>(&mut self, path: &'static str, question: Q) -> Result<A, Status>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let request = self.request(question).await;
        let codec: ProstCodec<Q, A> = ProstCodec::default();
        Ok(self.grpc.unary(request, PathAndQuery::from_static(path), codec).await?.into_inner())
    }

    /// Another call, with the scaled object as its message.
    ///
    /// # Errors
    /// The scaler's.
    pub async fn call(&mut self, path: &'static str) -> Result<(), Status> {
        let of = self.of();
        self.ask::<_, ()>(path, of).await
    }

    /// `IsActive`.
    ///
    /// # Errors
    /// The scaler's.
    pub async fn active(&mut self) -> Result<bool, Status> {
        let of = self.of();
        let answer: IsActiveResponse = self.ask("/externalscaler.ExternalScaler/IsActive", of).await?;
        Ok(answer.result)
    }

    /// The value of the metric: `GetMetrics`.
    ///
    /// # Errors
    /// The scaler's.
    ///
    /// # Panics
    /// If it is not one value, the same in both forms.
    pub async fn wanted(&mut self) -> Result<u64, Status> {
        let request =
            GetMetricsRequest { scaled_object_ref: Some(self.of()), metric_name: METRIC.to_owned() };
        let answer: GetMetricsResponse =
            self.ask("/externalscaler.ExternalScaler/GetMetrics", request).await?;
        let [MetricValue { metric_name, metric_value, metric_value_float }] = &*answer.metric_values else {
            panic!("{} values", answer.metric_values.len());
        };
        assert_eq!(metric_name, METRIC);
        assert_eq!(format!("{metric_value}"), format!("{metric_value_float}"));
        Ok(u64::try_from(*metric_value).expect("a negative number of slots"))
    }

    /// The value for one replica: `GetMetricSpec`.
    ///
    /// # Errors
    /// The scaler's.
    ///
    /// # Panics
    /// If it is not one specification, the same in both forms.
    pub async fn target(&mut self) -> Result<u64, Status> {
        let of = self.of();
        let answer: GetMetricSpecResponse =
            self.ask("/externalscaler.ExternalScaler/GetMetricSpec", of).await?;
        let [MetricSpec { metric_name, target_size, target_size_float }] = &*answer.metric_specs else {
            panic!("{} specifications", answer.metric_specs.len());
        };
        assert_eq!(metric_name, METRIC);
        assert_eq!(format!("{target_size}"), format!("{target_size_float}"));
        Ok(u64::try_from(*target_size).expect("a negative target"))
    }

    /// `StreamIsActive`.
    ///
    /// # Errors
    /// The scaler's.
    pub async fn stream(&mut self) -> Result<KedaStream, Status> {
        let of = self.of();
        let request = self.request(of).await;
        let path = PathAndQuery::from_static("/externalscaler.ExternalScaler/StreamIsActive");
        let codec: ProstCodec<ScaledObjectRef, IsActiveResponse> = ProstCodec::default();
        Ok(KedaStream(self.grpc.server_streaming(request, path, codec).await?.into_inner()))
    }
}
