//! Webhooks: `PUT /v1/webhooks/{id}` makes the server send events to a URL.
//!
//! A delivery is a `POST` with a [`Delivery`] as JSON, and these headers:
//!
//! | header | value |
//! | --- | --- |
//! | `X-Turnwise-Delivery` | the `delivery` of the body: one that was received before can be dropped |
//! | `X-Turnwise-Timestamp` | when it was signed, in s since the Unix epoch |
//! | `X-Turnwise-Signature` | `sha256=` and HMAC-SHA256(secret, timestamp + "." + body) in hexadecimal |

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::answer::answers;
use crate::names::{Problem, is_plain};
use crate::stream::StreamEvent;

/// Longest id of a webhook, in bytes.
pub const MAX_WEBHOOK_ID_BYTES: usize = 64;
/// Longest URL of a webhook, in bytes.
pub const MAX_WEBHOOK_URL_BYTES: usize = 2_000;
/// Shortest secret of a webhook, in bytes.
pub const MIN_WEBHOOK_SECRET_BYTES: usize = 16;
/// Longest secret of a webhook, in bytes.
pub const MAX_WEBHOOK_SECRET_BYTES: usize = 256;
/// Most events in a delivery.
pub const MAX_DELIVERY_EVENTS: usize = 100;

/// The header with the delivery's name.
pub const DELIVERY_HEADER: &str = "x-turnwise-delivery";
/// The header with the time of the signature.
pub const TIMESTAMP_HEADER: &str = "x-turnwise-timestamp";
/// The header with the signature.
pub const SIGNATURE_HEADER: &str = "x-turnwise-signature";

/// A webhook to be written.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "url": "https://example.com/hooks/turnwise", "secret": "a long random text", "types": ["mail"], "events": ["failed"]
}))]
pub struct PutWebhook {
    /// Where events are sent: an `http` or `https` URL of at most 2,000 bytes, without a user and a password.
    #[schema(max_length = 2000)]
    pub url: String,
    /// Signs the deliveries: 16 to 256 bytes. It is never shown. Left out, an existing webhook keeps its secret, and its identity; another
    /// identity can then only change `enabled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 16, max_length = 256)]
    pub secret: Option<String>,
    /// Whether it delivers. One that does not keeps its position.
    #[serde(default = "crate::workers::yes")]
    #[schema(default = true)]
    pub enabled: bool,
    /// Only events of jobs of these types. Empty means all.
    #[serde(default)]
    #[schema(max_items = 100)]
    pub types: Vec<String>,
    /// Only events of jobs of this tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<crate::names::Name>)]
    pub tenant: Option<String>,
    /// Only events after which the job is in one of these states. Empty means all.
    #[serde(default)]
    #[schema(max_items = 100)]
    pub states: Vec<String>,
    /// Only these events: `added`, `started`, `stopped`, `crashed`, `snoozed`, `completed`, `failed`, `expired`, `cancelled`, `edited`, `held`, `released`, `removed`, `group_ended`. Empty means all.
    #[serde(default)]
    #[schema(max_items = 100)]
    pub events: Vec<String>,
    /// The tenant of the job that delivers. By default `tenant`, or the tenant of the identity if it has one, or `default`. For an operator it is
    /// `_operators`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<crate::names::Name>)]
    pub job_tenant: Option<String>,
}

// Its URL may have a secret in its path.
debug_without_secret!(PutWebhook { enabled });

answers! {
    /// A webhook, without its secret.
    #[derive(PartialEq, Eq)]
    pub struct Webhook {
        /// Its id, which is also that of its job of type `webhook`.
        pub id: String,
        /// Where events are sent.
        pub url: String,
        /// Whether it delivers.
        pub enabled: bool,
        /// Why the server has disabled it.
        pub disabled_because: Option<String>,
        /// Only events of jobs of these types. Empty means all.
        pub types: Vec<String>,
        /// Only events of jobs of this tenant.
        pub tenant: Option<String>,
        /// Only events after which the job is in one of these states. Empty means all.
        pub states: Vec<String>,
        /// Only these events. Empty means all.
        pub events: Vec<String>,
        /// The tenant of the job that delivers.
        pub job_tenant: String,
        /// The identity whose events it gets.
        pub by: Option<String>,
        /// When it was created, in µs since the Unix epoch.
        pub created_us: i64,
        /// When a client has changed it last.
        pub changed_us: i64,
        /// How many events were delivered.
        pub delivered: u64,
        /// When a delivery succeeded last.
        pub last_success_us: Option<i64>,
        /// The last attempt that failed. It may be from before the last success.
        pub last_error: Option<WebhookError>,
        /// How often events were removed before they were delivered (`[events] keep`).
        pub gaps: u64,
        /// When that happened last.
        pub last_gap_us: Option<i64>,
        /// How far it is behind. Lists leave it out.
        pub behind: Option<Behind>,
    }
}

/// An attempt to deliver that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WebhookError {
    /// When, in µs since the Unix epoch.
    pub at_us: i64,
    /// Why: at most 500 bytes.
    pub reason: String,
}

answers! {
    /// Events that a webhook must still deliver.
    #[derive(Copy, PartialEq, Eq)]
    pub struct Behind {
        /// How many.
        pub events: u64,
        /// Whether there may be more: they are not counted to the end.
        pub more: bool,
        /// When the first of them happened, in µs since the Unix epoch.
        pub since_us: Option<i64>,
    }
}

/// All webhooks that an identity may change, by id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Webhooks {
    /// The webhooks.
    pub webhooks: Vec<Webhook>,
}

/// The result of removing a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemovedWebhook {
    /// It does not exist any more.
    pub removed: bool,
}

/// What a target receives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Delivery {
    /// The webhook's id.
    pub webhook: String,
    /// The delivery's name, the same when it is repeated.
    pub delivery: String,
    /// The events, in order.
    pub events: Vec<StreamEvent>,
}

/// Checks the id of a webhook, which is part of a header.
///
/// # Errors
/// What is wrong with it.
pub fn check_webhook_id(id: &str) -> Result<(), Problem> {
    match (1..=MAX_WEBHOOK_ID_BYTES).contains(&id.len()) && is_plain(id) {
        true => Ok(()),
        false => Err(Problem {
            field: "webhook",
            problem: format!(
                "1 to {MAX_WEBHOOK_ID_BYTES} letters, digits, `_`, `-` and `.` are allowed, and not `.` or `..`"
            ),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_fit_into_headers() {
        for right in ["a", "Alerts-2.x_y", &"a".repeat(MAX_WEBHOOK_ID_BYTES)] {
            assert_eq!(check_webhook_id(right), Ok(()));
        }
        for wrong in ["", ".", "..", "a b", "a/b", "ä", "a\n", &"a".repeat(MAX_WEBHOOK_ID_BYTES + 1)] {
            assert!(check_webhook_id(wrong).is_err(), "{wrong:?}");
        }
    }
}
