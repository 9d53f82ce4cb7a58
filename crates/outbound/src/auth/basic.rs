//! The password in every request.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::HeaderValue;

use crate::endpoint::Credentials;

/// The value of `Authorization`.
pub(crate) fn authorization(credentials: &Credentials) -> HeaderValue {
    let login = format!("{}:{}", credentials.user, credentials.password.reveal());
    let value = format!("Basic {}", BASE64_STANDARD.encode(login));
    let mut value = HeaderValue::from_str(&value).expect("base64 is fit for a header");
    value.set_sensitive(true);
    value
}
