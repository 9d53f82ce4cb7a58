//! Which origins may use a server: `[chttpd] enable_cors` and `[cors]`. What follows from that is in `web::cors`.

/// Every origin.
pub const ANY: &str = "*";

/// The origins that may use a server, and what a preflight permits them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cors {
    /// `[chttpd] enable_cors`: whether origins have an effect.
    pub enabled: bool,
    /// `[cors] origins`: in lower case, as browsers send them; or `*`.
    pub origins: Vec<String>,
    /// `[cors] credentials`: whether browsers send cookies, and show responses to such requests.
    pub credentials: bool,
    /// `[cors] methods`
    pub methods: Vec<String>,
    /// `[cors] headers`: in lower case.
    pub headers: Vec<String>,
    /// `[cors] max_age`: how long a browser may remember a preflight, in s.
    pub max_age_s: u32,
}

/// The methods and headers of preflights by default, as in CouchDB.
const METHODS: &str = "CONNECT,COPY,DELETE,GET,HEAD,OPTIONS,POST,PUT,TRACE";
const HEADERS: &str = "accept,accept-language,authorization,content-length,content-range,content-type,destination,expires,if-match,\
    last-modified,origin,pragma,x-couch-full-commit,x-couch-id,x-couch-persist,x-couchdb-www-authenticate,\
    x-http-method-override,x-requested-with,x-couchdb-vhost-path";

impl Default for Cors {
    fn default() -> Self {
        let list = |list: &str| list.split(',').map(str::to_owned).collect();
        Cors {
            enabled: false,
            origins: Vec::new(),
            credentials: false,
            methods: list(METHODS),
            headers: list(HEADERS),
            max_age_s: 600,
        }
    }
}
