//! Tests of the rules of a session, with a server that is a closure.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn credentials() -> Credentials {
    Credentials { user: "u&v".to_owned(), password: Secret::new("p=w") }
}

fn session() -> Session {
    Session::new(&credentials(), 550 * SECOND, false)
}

fn set_cookie(text: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.append(SET_COOKIE, HeaderValue::from_static("other=1"));
    headers.append(SET_COOKIE, HeaderValue::from_str(text).unwrap());
    headers
}

fn answer(status: u16, of_couchdb: bool, headers: HeaderMap) -> LoginAnswer {
    let status = StatusCode::from_u16(status).unwrap();
    let fault = (!status.is_success()).then(|| Fault::Status {
        status: status.as_u16(),
        error: "unauthorized".to_owned(),
        reason: String::new(),
        of_couchdb,
        retry_after: None,
    });
    LoginAnswer { status, headers, fault }
}

/// A server with given responses to logins, of which it repeats the last one; counts the logins.
struct Server {
    answers: Vec<(u16, HeaderMap)>,
    /// Whether its errors have CouchDB's form.
    is_couchdb: bool,
    falls_back: bool,
    logins: AtomicUsize,
}

impl Server {
    fn new(answers: impl IntoIterator<Item = (u16, HeaderMap)>) -> Self {
        let answers = answers.into_iter().collect();
        Self { answers, is_couchdb: true, falls_back: true, logins: AtomicUsize::new(0) }
    }

    /// Another application, which returns this status.
    fn another(status: u16) -> Self {
        Self { is_couchdb: false, ..Self::new([(status, HeaderMap::new())]) }
    }

    /// A server that returns a new cookie for every login.
    fn well() -> Self {
        Self::new((1..100).map(|nth| (200, set_cookie(&format!("AuthSession=cookie-{nth}; Max-Age=600")))))
    }

    async fn pass(&self, session: &Session) -> Result<Pass, Fault> {
        session
            .pass(self.falls_back, |login| async move {
                assert_eq!(login.body, "name=u%26v&password=p%3Dw");
                let nth = self.logins.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                let (status, headers) = &self.answers[nth.min(self.answers.len() - 1)];
                let wants_basic = headers.contains_key(WWW_AUTHENTICATE) && login.authorization.is_none();
                Ok(answer(if wants_basic { 401 } else { *status }, self.is_couchdb, headers.clone()))
            })
            .await
    }

    fn logins(&self) -> usize {
        self.logins.load(Ordering::Relaxed)
    }
}

fn cookie_of(pass: Pass) -> (String, u64) {
    match pass {
        Some((header, number)) => (header.to_str().unwrap().to_owned(), number),
        None => panic!("no cookie"),
    }
}

fn age(session: &Session, by: Duration) {
    session.age(by);
}

const UNAUTHORIZED: StatusCode = StatusCode::UNAUTHORIZED;

#[tokio::test]
async fn one_login_serves_all_requests() {
    let (session, server) = (session(), Server::well());
    let passes = (0..100).map(|_| server.pass(&session));
    for pass in futures::future::join_all(passes).await {
        assert_eq!(cookie_of(pass.unwrap()), ("AuthSession=cookie-1".to_owned(), 1));
    }
    assert_eq!(server.logins(), 1);
}

#[tokio::test]
async fn a_cookie_is_renewed_before_it_ends_and_by_one_request() {
    let (session, server) = (session(), Server::well());
    server.pass(&session).await.unwrap();
    age(&session, 539 * SECOND);
    assert_eq!(cookie_of(server.pass(&session).await.unwrap()).1, 1);
    age(&session, SECOND);
    let passes = futures::future::join_all((0..10).map(|_| server.pass(&session))).await;
    let numbers: Vec<u64> = passes.into_iter().map(|pass| cookie_of(pass.unwrap()).1).collect();
    assert_eq!(numbers, [2, 1, 1, 1, 1, 1, 1, 1, 1, 1], "the others go on with the old one");
    assert_eq!(server.logins(), 2);
    // No request carries an expired cookie.
    age(&session, 601 * SECOND);
    let passes = futures::future::join_all((0..10).map(|_| server.pass(&session))).await;
    assert!(passes.into_iter().all(|pass| cookie_of(pass.unwrap()).1 == 3));
}

#[tokio::test]
async fn without_a_max_age_the_interval_of_the_settings_counts() {
    let session = session();
    let server = Server::new(["a", "b"].map(|value| (200, set_cookie(&format!("authsession={value}")))));
    server.pass(&session).await.unwrap();
    age(&session, 549 * SECOND);
    assert_eq!(cookie_of(server.pass(&session).await.unwrap()), ("AuthSession=a".to_owned(), 1));
    age(&session, SECOND);
    assert_eq!(cookie_of(server.pass(&session).await.unwrap()), ("AuthSession=b".to_owned(), 2));
}

#[tokio::test]
async fn a_renewal_that_fails_leaves_the_old_cookie_and_is_tried_again_later() {
    let session = session();
    let cookie = set_cookie("AuthSession=a; Max-Age=600");
    let server = Server::new([(200, cookie), (500, HeaderMap::new())]);
    server.pass(&session).await.unwrap();
    age(&session, 550 * SECOND);
    for _ in 0..5 {
        assert_eq!(cookie_of(server.pass(&session).await.unwrap()).1, 1);
    }
    assert_eq!(server.logins(), 2);
    age(&session, 5 * SECOND);
    server.pass(&session).await.unwrap();
    assert_eq!(server.logins(), 3);
    age(&session, 50 * SECOND);
    assert!(matches!(server.pass(&session).await, Err(Fault::Status { status: 500, .. })));
}

#[tokio::test]
async fn a_cookie_in_any_answer_is_the_new_one() {
    let (session, server) = (session(), Server::well());
    server.pass(&session).await.unwrap();
    let renewed = set_cookie("AuthSession=\"fresh\"; Version=1; Path=/; HttpOnly; max-age=600");
    assert!(!session.answered(1, true, StatusCode::NOT_FOUND, &renewed));
    assert!(!session.answered(1, true, StatusCode::OK, &renewed), "it is the same one");
    // A response to a request with the old cookie may have been on its way for long.
    session.answered(1, true, StatusCode::OK, &set_cookie("AuthSession=late"));
    session.answered(2, true, StatusCode::OK, &set_cookie("AuthSession=; Max-Age=0"));
    assert_eq!(cookie_of(server.pass(&session).await.unwrap()), ("AuthSession=fresh".to_owned(), 2));
    assert_eq!(server.logins(), 1);
}

#[tokio::test]
async fn a_cookie_with_the_longest_max_age_is_accepted() {
    for age in [u64::MAX, u64::MAX / 2, LONGEST_AGE_SECONDS + 1] {
        let session = session();
        let server = Server::new([(200, set_cookie(&format!("AuthSession=a; Max-Age={age}")))]);
        assert_eq!(cookie_of(server.pass(&session).await.unwrap()), ("AuthSession=a".to_owned(), 1));
    }
}

#[tokio::test]
async fn a_refused_request_is_worth_repeating_once() {
    let (session, server) = (session(), Server::well());
    server.pass(&session).await.unwrap();
    let none = HeaderMap::new();
    assert!(!session.answered(1, true, UNAUTHORIZED, &none), "the login was only just made");
    age(&session, 6 * SECOND);
    // A hundred requests in flight: one login for all of them.
    assert!((0..50).all(|_| session.answered(1, true, UNAUTHORIZED, &none)));
    let passes = futures::future::join_all((0..50).map(|_| server.pass(&session))).await;
    assert!(passes.into_iter().all(|pass| cookie_of(pass.unwrap()).1 == 2));
    assert!(
        (0..50).all(|_| session.answered(1, true, StatusCode::FORBIDDEN, &none)),
        "its cookie is an old one"
    );
    assert_eq!(cookie_of(server.pass(&session).await.unwrap()).1, 2);
    assert!(!session.answered(2, true, StatusCode::FORBIDDEN, &none));
    assert_eq!(server.logins(), 2);
}

#[tokio::test]
async fn a_cookie_that_came_with_an_answer_is_no_new_login() {
    let (session, server) = (session(), Server::well());
    server.pass(&session).await.unwrap();
    age(&session, 6 * SECOND);
    session.answered(1, true, StatusCode::OK, &set_cookie("AuthSession=renewed; Max-Age=600"));
    assert_eq!(cookie_of(server.pass(&session).await.unwrap()), ("AuthSession=renewed".to_owned(), 2));
    // The server has a new secret: a cookie that it renewed a moment ago is invalid.
    assert!(session.answered(2, true, UNAUTHORIZED, &HeaderMap::new()));
    assert_eq!(cookie_of(server.pass(&session).await.unwrap()).1, 3);
    assert!(!session.answered(3, true, UNAUTHORIZED, &HeaderMap::new()));
    assert_eq!(server.logins(), 2);
}

#[tokio::test]
async fn a_connection_that_breaks_off_lets_the_cookie_be_renewed() {
    let (session, server) = (session(), Server::well());
    server.pass(&session).await.unwrap();
    session.broke_off(1);
    assert_eq!(cookie_of(server.pass(&session).await.unwrap()).1, 1, "it is too young to have ended");
    age(&session, 6 * SECOND);
    session.broke_off(1);
    assert_eq!(cookie_of(server.pass(&session).await.unwrap()).1, 2);
    session.broke_off(1);
    assert_eq!(cookie_of(server.pass(&session).await.unwrap()).1, 2);
}

#[tokio::test]
async fn a_server_without_sessions_is_not_asked_again_for_a_while() {
    let without = [(404, HeaderMap::new()), (405, HeaderMap::new()), (501, HeaderMap::new())];
    let of_a_proxy = [(302, HeaderMap::new()), (200, HeaderMap::new()), (200, set_cookie("JSESSIONID=1"))];
    for answer in without.into_iter().chain(of_a_proxy) {
        let (session, server) = (session(), Server::new([answer]));
        for _ in 0..3 {
            assert!(matches!(server.pass(&session).await, Ok(None)));
        }
        assert_eq!(server.logins(), 1);
        session.state().standing = Standing::NoSessions(Instant::now() - SECOND);
        assert!(matches!(server.pass(&session).await, Ok(None)));
        assert_eq!(server.logins(), 2);
    }
}

/// The responses of another application at `/_session`.
const OF_ANOTHER: [u16; 8] = [401, 403, 408, 429, 500, 502, 503, 504];

#[tokio::test]
async fn a_failure_of_another_application_is_not_the_logins() {
    for status in OF_ANOTHER {
        let (session, server) = (session(), Server::another(status));
        for _ in 0..3 {
            assert!(matches!(server.pass(&session).await, Ok(None)), "{status}");
        }
        assert_eq!(server.logins(), 1);
        // It may have been the server itself, before it was ready.
        {
            let mut state = session.state();
            let Standing::InDoubt(until) = &mut state.standing else { panic!("{status}") };
            assert!(*until <= Instant::now() + REMEMBERED_IN_DOUBT);
            *until = Instant::now();
        }
        let server = Server::well();
        assert_eq!(cookie_of(server.pass(&session).await.unwrap()).1, 1);
    }
}

#[tokio::test]
async fn without_a_fallback_the_failure_of_another_application_is_told() {
    for status in OF_ANOTHER {
        let (session, server) = (session(), Server { falls_back: false, ..Server::another(status) });
        let failed = server.pass(&session).await;
        assert!(matches!(failed, Err(Fault::Status { status: told, .. }) if told == status), "{failed:?}");
    }
    // A request that falls back does not make another one do without a login.
    let (session, another) = (session(), Server::another(502));
    another.pass(&session).await.unwrap();
    let server = Server { falls_back: false, ..Server::well() };
    assert_eq!(cookie_of(server.pass(&session).await.unwrap()).1, 1);
}

#[tokio::test]
async fn a_rejection_by_the_couchdb_at_the_root_is_not_that_of_a_database_under_a_path() {
    let under_path = || Session::new(&credentials(), 550 * SECOND, true);
    for status in [401, 403] {
        let (session, server) = (under_path(), Server::new([(status, HeaderMap::new())]));
        assert!(matches!(server.pass(&session).await, Ok(None)), "{status}");
    }
    // Nor need its session be valid there.
    let (session, server) = (under_path(), Server::well());
    server.pass(&session).await.unwrap();
    assert!(session.answered(1, true, UNAUTHORIZED, &HeaderMap::new()), "the password is tried");
    assert!(matches!(server.pass(&session).await, Ok(None)));
    assert_eq!(server.logins(), 1);
    // A database that forbids something knows its user.
    let (session, server) = (under_path(), Server::well());
    server.pass(&session).await.unwrap();
    assert!(!session.answered(1, true, StatusCode::FORBIDDEN, &HeaderMap::new()));
    assert!(!session.answered(1, false, UNAUTHORIZED, &HeaderMap::new()), "there is no password to try");
}

#[tokio::test]
async fn a_login_that_wants_basic_authentication_gets_it() {
    let session = session();
    let mut headers = set_cookie("AuthSession=a");
    headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"server\""));
    let server = Server::new([(200, headers)]);
    assert_eq!(cookie_of(server.pass(&session).await.unwrap()).1, 1);
    assert_eq!(server.logins(), 2);
    age(&session, 601 * SECOND);
    server.pass(&session).await.unwrap();
    assert_eq!(server.logins(), 3, "it is remembered");
}

#[tokio::test]
async fn a_wrong_password_is_one_request_for_a_thousand_jobs() {
    for status in [401, 403] {
        let (session, server) = (session(), Server::new([(status, HeaderMap::new())]));
        let passes = futures::future::join_all((0..1_000).map(|_| server.pass(&session))).await;
        assert!(passes.iter().all(|pass| matches!(pass, Err(Fault::Status { .. }))));
        assert!(server.pass(&session).await.is_err());
        assert_eq!(server.logins(), 1);
        session.state().failed.as_mut().unwrap().1 = Instant::now();
        assert!(server.pass(&session).await.is_err());
        assert_eq!(server.logins(), 2);
    }
}

#[tokio::test]
async fn a_temporary_failure_is_reported_only_to_waiting_requests() {
    let answers = [(503, HeaderMap::new()), (200, set_cookie("AuthSession=a"))];
    let (session, server) = (session(), Server::new(answers));
    let passes = futures::future::join_all((0..10).map(|_| server.pass(&session))).await;
    assert!(passes.iter().all(Result::is_err));
    assert_eq!(server.logins(), 1);
    assert_eq!(cookie_of(server.pass(&session).await.unwrap()).1, 1);
}

#[tokio::test]
async fn a_dropped_login_leaves_no_request_waiting() {
    let (session, server) = (session(), Server::well());
    {
        let mut dropped = std::pin::pin!(session.pass(true, |_| std::future::pending()));
        assert!(futures::poll!(&mut dropped).is_pending());
    }
    assert_eq!(cookie_of(server.pass(&session).await.unwrap()).1, 1);
}

#[tokio::test]
async fn cookies_are_not_shown() {
    let (session, server) = (session(), Server::well());
    let pass = server.pass(&session).await.unwrap();
    session.answered(1, true, StatusCode::OK, &set_cookie("AuthSession=cookie-9; Max-Age=600"));
    let shown = format!("{session:?} {pass:?}");
    assert!(!shown.contains("cookie-") && !shown.contains("p=w"), "{shown}");
    assert_eq!(session.hide("was cookie-1, is cookie-9".to_owned()), "was *****, is *****");
}

#[test]
fn equal_logins_share_a_session() {
    let endpoint =
        |url: &str| Endpoint::parse("source", &serde_json::json!(url), &["http".to_owned()]).unwrap();
    let sessions = Sessions::default();
    let of = |url: &str| {
        let endpoint = endpoint(url);
        sessions.of(&endpoint, endpoint.credentials().unwrap(), SECOND)
    };
    let one = of("http://u:p@h/a");
    assert!(Arc::ptr_eq(&one, &of("http://u:p@h:80/b")));
    assert!(Arc::ptr_eq(&of("http://u:p@h/x/a"), &of("http://u:p@h/y/b")));
    for other in
        ["http://u:p@h/x/a", "http://u:x@h/a", "http://v:p@h/a", "http://u:p@h:81/a", "http://u:p@g/a"]
    {
        assert!(!Arc::ptr_eq(&one, &of(other)), "{other}");
    }
}
