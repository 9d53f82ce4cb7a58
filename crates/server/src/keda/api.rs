//! The messages of KEDA's external scalers: the package `externalscaler`, service `ExternalScaler`.
//!
//! They are declared by hand, as those of etcd are (`store::etcd`): KEDA's own definitions would need the protocol compiler on every machine that
//! builds turnwise.

use std::collections::HashMap;
use std::fmt;

/// The paths of the calls. `StreamMetricSpec` is optional, and not implemented: targets change with the ScaledObject only.
pub(super) mod path {
    pub(in super::super) const IS_ACTIVE: &str = "/externalscaler.ExternalScaler/IsActive";
    pub(in super::super) const STREAM_IS_ACTIVE: &str = "/externalscaler.ExternalScaler/StreamIsActive";
    pub(in super::super) const GET_METRIC_SPEC: &str = "/externalscaler.ExternalScaler/GetMetricSpec";
    pub(in super::super) const GET_METRICS: &str = "/externalscaler.ExternalScaler/GetMetrics";
}

/// What KEDA scales, with the `metadata` of its trigger, which may have a token in it.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub(super) struct ScaledObjectRef {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub namespace: String,
    #[prost(map = "string, string", tag = "3")]
    pub scaler_metadata: HashMap<String, String>,
}

impl fmt::Debug for ScaledObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ScaledObjectRef { name, namespace, .. } = self;
        f.debug_struct("ScaledObjectRef")
            .field("name", name)
            .field("namespace", namespace)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct IsActiveResponse {
    #[prost(bool, tag = "1")]
    pub result: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GetMetricSpecResponse {
    #[prost(message, repeated, tag = "1")]
    pub metric_specs: Vec<MetricSpec>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct MetricSpec {
    #[prost(string, tag = "1")]
    pub metric_name: String,
    /// For releases of KEDA that do not know the other one.
    #[prost(int64, tag = "2")]
    pub target_size: i64,
    #[prost(double, tag = "3")]
    pub target_size_float: f64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GetMetricsRequest {
    #[prost(message, optional, tag = "1")]
    pub scaled_object_ref: Option<ScaledObjectRef>,
    #[prost(string, tag = "2")]
    pub metric_name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GetMetricsResponse {
    #[prost(message, repeated, tag = "1")]
    pub metric_values: Vec<MetricValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct MetricValue {
    #[prost(string, tag = "1")]
    pub metric_name: String,
    /// For releases of KEDA that do not know the other one.
    #[prost(int64, tag = "2")]
    pub metric_value: i64,
    #[prost(double, tag = "3")]
    pub metric_value_float: f64,
}
