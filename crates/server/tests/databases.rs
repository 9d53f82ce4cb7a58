//! Replicator databases through HTTP.

use crate::common::{TestServer, failed, until};
use serde_json::{Value, json};

#[tokio::test]
async fn databases_are_created_listed_and_deleted_under_both_spellings() {
    let server = TestServer::start().await;
    let created = server.put("/a%2Fb%2F_replicator", &json!({})).await;
    assert_eq!((created.status, &created.body), (201, &json!({"ok": true})));
    assert_eq!(created.header("location"), format!("{}/a%2Fb%2F_replicator", server.url));
    assert_eq!(server.put("/a/b/_replicator", &json!({})).await.error(), (412, "file_exists"));
    assert_eq!(server.get("/_all_dbs").await.body, json!(["_replicator", "a/b/_replicator"]));
    assert_eq!(server.get("/_all_dbs?skip=1&limit=5").await.body, json!(["a/b/_replicator"]));
    server.put_ok("/a/b/_replicator/x", &failed(1)).await;
    let info = server.get("/a%2Fb%2F_replicator").await.body;
    assert_eq!(
        (&info["db_name"], &info["doc_count"], &info["update_seq"]),
        (&json!("a/b/_replicator"), &json!(1), &json!("1"))
    );
    assert_eq!(server.delete("/a/b/_replicator").await.body, json!({"ok": true}));
    assert_eq!(server.get("/a/b/_replicator").await.error(), (404, "not_found"));
    assert_eq!(server.delete("/a/b/_replicator").await.error(), (404, "not_found"));
}

#[tokio::test]
async fn other_databases_are_refused_with_an_explanation() {
    let server = TestServer::start().await;
    for path in ["/db", "/db/doc", "/db/_all_docs"] {
        let answer = server.get(path).await;
        assert_eq!(answer.error(), (404, "not_found"));
        assert!(answer.body["reason"].as_str().unwrap().contains("replicator databases only"), "{answer:?}");
    }
    assert_eq!(server.put("/db", &json!({})).await.error(), (403, "forbidden"));
    assert_eq!(server.put("/Bad", &json!({})).await.error(), (400, "illegal_database_name"));
    assert_eq!(server.get("/Bad").await.error(), (404, "not_found"));
    assert_eq!(server.get("/_nothing").await.error(), (404, "not_found"));
}

#[tokio::test]
async fn replicator_databases_answer_no_queries() {
    let server = TestServer::start().await;
    for path in ["/_replicator/_design_docs", "/_replicator/_index"] {
        assert_eq!(server.get(path).await.error(), (404, "not_found"), "{path}");
    }
    let query = json!({ "selector": {} });
    for path in ["/_replicator/_find", "/_replicator/_index"] {
        assert_eq!(server.post(path, &query).await.error(), (404, "not_found"), "{path}");
    }
    assert_eq!(server.post("/_replicator/_changes?filter=_selector", &query).await.error().0, 400);
}

#[tokio::test]
async fn a_document_lives_from_put_to_delete() {
    let server = TestServer::start().await;
    let put = server.put("/_replicator/a%2Fb", &failed(1)).await;
    assert_eq!(put.status, 201);
    let first = put.body["rev"].as_str().unwrap().to_owned();
    assert_eq!(put.body, json!({"ok": true, "id": "a/b", "rev": first}));
    assert_eq!(put.header("etag"), format!("\"{first}\""));
    assert_eq!(put.header("location"), format!("{}/_replicator/a%2Fb", server.url));
    assert_eq!(server.put("/_replicator/a%2Fb", &failed(1)).await.error(), (409, "conflict"));
    // The known revision may be in the body, in the query, or in a header.
    let mut body = failed(2);
    body["_rev"] = json!(first);
    let second = server.put_ok("/_replicator/a%2Fb", &body).await;
    let third = server.put_ok(&format!("/_replicator/a%2Fb?rev={second}"), &failed(3)).await;
    let request = server.request("PUT", "/_replicator/a%2Fb").header("if-match", format!("\"{third}\""));
    let fourth = server.send(request.body(failed(4).to_string())).await;
    assert_eq!(fourth.status, 201);
    let fourth = fourth.body["rev"].as_str().unwrap().to_owned();
    let differing = server.put(&format!("/_replicator/a%2Fb?rev={fourth}"), &body).await;
    assert_eq!(differing.error(), (400, "bad_request"));

    let got = server.get("/_replicator/a%2Fb?revs=true").await;
    assert_eq!(got.header("etag"), format!("\"{fourth}\""));
    let hash = |rev: &str| rev.split_once('-').unwrap().1.to_owned();
    let mut expected = failed(4);
    expected["_id"] = json!("a/b");
    expected["_rev"] = json!(fourth);
    expected["_revisions"] =
        json!({"start": 4, "ids": [hash(&fourth), hash(&third), hash(&second), hash(&first)]});
    assert_eq!(got.body, expected);
    let unchanged =
        server.request("GET", "/_replicator/a%2Fb").header("if-none-match", format!("\"{fourth}\""));
    assert_eq!(server.send(unchanged).await.status, 304);
    // As CouchDB 3.5.0 answers: a tag may be weak, as a proxy that compresses makes it, and one of a list.
    let weak = format!("W/\"{fourth}\"");
    let [listed, weakly] = [format!("\"x\", \"{fourth}\""), format!("W/\"x\",{weak}")];
    let others = [(fourth.as_str(), 200), ("*", 200), ("\"x\"", 200)];
    for (tags, status) in
        [weak.as_str(), listed.as_str(), weakly.as_str()].map(|tags| (tags, 304)).into_iter().chain(others)
    {
        let asked = server.request("GET", "/_replicator/a%2Fb").header("if-none-match", tags);
        assert_eq!(server.send(asked).await.status, status, "{tags}");
    }
    // A revision beside another one in `If-Match` is refused, in every request that changes the document.
    for (method, path, body) in [
        ("PUT", format!("/_replicator/a%2Fb?rev={fourth}"), failed(5)),
        ("PUT", format!("/_replicator/a%2Fb?rev={third}"), failed(5)),
        ("DELETE", format!("/_replicator/a%2Fb?rev={fourth}"), json!({})),
        ("PUT", "/_replicator/_local/x?rev=0-1".to_owned(), json!({})),
    ] {
        let other = if path.contains(&third) { &fourth } else { &third };
        let request = server.request(method, &path).header("if-match", format!("\"{other}\""));
        let answer = server.send(request.body(body.to_string())).await;
        assert_eq!(answer.error(), (400, "bad_request"), "{method} {path}");
        assert_eq!(answer.body["reason"], "Document rev and etag have different values");
    }
    let mut with_rev = failed(5);
    with_rev["_rev"] = json!(fourth);
    let request = server.request("PUT", "/_replicator/a%2Fb").header("if-match", format!("\"{third}\""));
    let answer = server.send(request.body(with_rev.to_string())).await;
    assert_eq!(answer.body["reason"], "Document rev and etag have different values");
    let head = server.send(server.request("HEAD", "/_replicator/a%2Fb")).await;
    assert_eq!(
        (head.status, head.header("etag"), &head.body),
        (200, format!("\"{fourth}\"").as_str(), &Value::Null)
    );
    assert_eq!(server.get(&format!("/_replicator/a%2Fb?rev={third}")).await.error(), (404, "not_found"));
    let info = server.get("/_replicator/a%2Fb?meta=true").await.body["_revs_info"].clone();
    assert_eq!(info[0], json!({"rev": fourth, "status": "available"}));
    assert_eq!(info[3], json!({"rev": first, "status": "missing"}));

    assert_eq!(server.delete(&format!("/_replicator/a%2Fb?rev={first}")).await.error(), (409, "conflict"));
    let deleted = server.delete(&format!("/_replicator/a%2Fb?rev={fourth}")).await;
    assert_eq!(deleted.status, 200);
    let rev = deleted.body["rev"].as_str().unwrap();
    assert!(rev.starts_with("5-"));
    let gone = server.get("/_replicator/a%2Fb").await;
    assert_eq!((gone.status, &gone.body), (404, &json!({"error": "not_found", "reason": "deleted"})));
    let tombstone = server.get(&format!("/_replicator/a%2Fb?rev={rev}")).await.body;
    assert_eq!(tombstone, json!({"_id": "a/b", "_rev": rev, "_deleted": true}));
    let open = server.get("/_replicator/a%2Fb?open_revs=all").await.body;
    assert_eq!(open, json!([{"ok": {"_id": "a/b", "_rev": rev, "_deleted": true}}]));
}

#[tokio::test]
async fn no_revision_makes_a_database_unreadable() {
    let server = TestServer::start().await;
    assert_eq!(server.put("/x%2f_replicator", &json!({})).await.status, 201);
    let mut body = failed(1);
    body["_rev"] = json!("4503599627370496-abc");
    let rev = server.put_ok("/x%2f_replicator/a", &body).await;
    body["_rev"] = json!("4503599627370497-abc");
    assert_eq!(server.put("/x%2f_replicator/b", &body).await.error(), (400, "bad_request"));
    assert_eq!(server.get("/x%2f_replicator/a").await.body["_rev"], rev);
    for path in ["_replicator/_all_docs?include_docs=true", "_replicator/_changes"] {
        assert_eq!(server.get(&format!("/x%2f{path}")).await.status, 200, "{path}");
    }
    assert_eq!(server.get("/_scheduler/docs/x%2f_replicator").await.body["docs"][0]["doc_id"], "a");
    assert_eq!(server.delete("/x%2f_replicator").await.status, 200);
    assert_eq!(server.put("/x%2f_replicator", &json!({})).await.status, 201);
}

#[tokio::test]
async fn a_posted_document_gets_an_id() {
    let server = TestServer::start().await;
    let posted = server.post("/_replicator", &failed(1)).await;
    assert_eq!(posted.status, 201);
    assert_eq!(posted.body["id"].as_str().unwrap().len(), 32);
    let named = server.post("/_replicator", &json!({"_id": "n", "_replication_state": "failed"})).await;
    assert_eq!(named.body["id"], "n");
}

#[tokio::test]
async fn requests_out_of_bounds_are_refused() {
    let server = TestServer::start().await;
    let big = |bytes: usize| json!({"x": "y".repeat(bytes), "_replication_state": "failed"});
    let too_large = server.put("/_replicator/a", &big(1 << 20)).await;
    assert_eq!(too_large.error(), (413, "document_too_large"));
    assert_eq!(server.put("/_replicator/a", &big(2 << 20)).await.error(), (413, "too_large"));
    let many = server.post("/_replicator/_bulk_docs", &json!({"docs": [big(17 << 20)]})).await;
    assert_eq!(many.error(), (413, "too_large"));
    assert_eq!(server.get("/_replicator").await.body["doc_count"], 0);
    let long = format!("/_replicator/{}", "x".repeat(2_000));
    assert_eq!(server.put(&long, &failed(1)).await.error(), (400, "illegal_docid"));
    let deep = format!("{}1{}", "[".repeat(1_000), "]".repeat(1_000));
    let request = server.request("PUT", "/_replicator/a").body(format!("{{\"x\":{deep}}}"));
    assert_eq!(server.send(request).await.error(), (400, "bad_request"));
    // The server counts the bytes of a body without a declared length as they arrive.
    let pieces = futures::stream::iter((0..40).map(|_| Ok::<_, std::io::Error>("x".repeat(64 << 10))));
    let request = server.request("PUT", "/_replicator/a").body(reqwest::Body::wrap_stream(pieces));
    assert_eq!(server.send(request).await.error(), (413, "too_large"));
}

#[tokio::test]
async fn errors_of_wrong_requests_state_the_problem() {
    let server = TestServer::start().await;
    let said = |answer: &crate::common::Answer| answer.body["reason"].as_str().unwrap().to_owned();
    let text =
        server.send(server.request("PUT", "/_replicator/a").body("{\"password\": \"hunter2\" x")).await;
    assert_eq!(text.error(), (400, "bad_request"));
    assert_eq!(said(&text), "invalid UTF-8 JSON: a mistake at line 1 column 24");
    let array = server.put("/_replicator/a", &json!([])).await;
    assert_eq!(
        (array.error(), said(&array).as_str()),
        ((400, "bad_request"), "Document must be a JSON object")
    );
    let kind = server.send(server.request("POST", "/_replicator/_bulk_docs").body("{}")).await;
    assert_eq!(kind.error(), (415, "bad_content_type"));
    let attachment = server.put("/_replicator/a/file", &json!({})).await;
    assert_eq!(attachment.error(), (400, "bad_request"));
    for (method, path, allowed) in [
        ("PATCH", "/_replicator", "DELETE,GET,HEAD,POST,PUT"),
        ("POST", "/_replicator/a", "DELETE,GET,HEAD,PUT"),
        ("DELETE", "/_replicator/_changes", "GET,HEAD,POST"),
        ("GET", "/_replicator/_bulk_docs", "POST"),
        ("GET", "/_replicate", "POST"),
        ("DELETE", "/_active_tasks", "GET,HEAD"),
    ] {
        let answer = server.bare(method, path).await;
        assert_eq!(
            (answer.error(), answer.header("allow")),
            ((405, "method_not_allowed"), allowed),
            "{method} {path}"
        );
        assert_eq!(said(&answer), format!("Only {allowed} allowed"));
    }
    let branches = server.post("/_replicator/_bulk_docs", &json!({"new_edits": false, "docs": []})).await;
    assert_eq!(branches.error(), (501, "not_implemented"));
}

#[tokio::test]
async fn bulk_writes_are_one_by_one_but_a_wrong_document_stops_them_all() {
    let server = TestServer::start().await;
    let doc = |id: &str, n: usize| {
        let mut doc = failed(n);
        doc["_id"] = json!(id);
        doc
    };
    let docs: Vec<Value> = (0..250).map(|n| doc(&format!("d{n:03}"), n)).collect();
    let written = server.post("/_replicator/_bulk_docs", &json!({ "docs": docs })).await;
    assert_eq!(written.status, 201);
    let rows = written.body.as_array().unwrap();
    assert!(rows.iter().enumerate().all(|(n, row)| row["id"] == format!("d{n:03}") && row["ok"] == true));
    let gone = json!({"_id": "d001", "_rev": rows[1]["rev"], "_deleted": true});
    let twice = json!({ "docs": [doc("d000", 1), gone, doc("new", 1), doc("new", 2)] });
    let answer = server.post("/_replicator/_bulk_docs", &twice).await.body;
    let conflict = |id: &str| json!({"id": id, "error": "conflict", "reason": "Document update conflict."});
    assert_eq!(
        (&answer[0], &answer[1]["ok"], &answer[2]["ok"]),
        (&conflict("d000"), &json!(true), &json!(true))
    );
    assert_eq!(answer[3], conflict("new"));
    assert_eq!(server.get("/_replicator").await.body["doc_count"], 250);
    let wrong = json!({ "docs": [doc("other", 1), {"_id": "w", "source": "http://s/db", "target": 5}] });
    let refused = server.post("/_replicator/_bulk_docs", &wrong).await;
    assert_eq!(refused.error(), (403, "forbidden"));
    assert!(refused.body["reason"].as_str().unwrap().starts_with("target: "), "{}", refused.body);
    assert_eq!(server.get("/_replicator/other").await.status, 404);
    // The server detects this only while writing, and still writes the other documents.
    let hidden = json!({ "docs": [{"_id": "h", "source": "http://u:*****@s/db", "target": "http://t/db"}, doc("after", 1)] });
    let answer = server.post("/_replicator/_bulk_docs", &hidden).await.body;
    assert_eq!((&answer[0]["error"], &answer[1]["ok"]), (&json!("bad_request"), &json!(true)));
}

#[tokio::test]
async fn all_docs_pages_through_the_ids() {
    let server = TestServer::start().await;
    let docs: Vec<Value> =
        (0..450).map(|n| json!({"_id": format!("d{n:03}"), "_replication_state": "failed"})).collect();
    server.post("/_replicator/_bulk_docs", &json!({ "docs": docs })).await;
    let ids = |answer: &Value| -> Vec<String> {
        answer["rows"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
    };
    let all = server.get("/_replicator/_all_docs").await.body;
    assert_eq!(
        (all["total_rows"].as_u64(), all["offset"].as_u64(), ids(&all).len()),
        (Some(450), Some(0), 450)
    );
    let page = server.get("/_replicator/_all_docs?startkey=%22d200%22&limit=2&skip=1").await.body;
    assert_eq!(
        (page["offset"].as_u64(), ids(&page)),
        (Some(201), vec!["d201".to_owned(), "d202".to_owned()])
    );
    let down = server.get(
        "/_replicator/_all_docs?descending=true&start_key=%22d003%22&end_key=%22d001%22&inclusive_end=false",
    );
    let down = down.await.body;
    assert_eq!(
        (down["offset"].as_u64(), ids(&down)),
        (Some(446), vec!["d003".to_owned(), "d002".to_owned()])
    );
    assert_eq!(ids(&server.get("/_replicator/_all_docs?key=%22d449%22").await.body), ["d449"]);
    let keys = server
        .post("/_replicator/_all_docs?include_docs=true", &json!({"keys": ["d001", "nope", 5]}))
        .await
        .body;
    assert_eq!(keys["offset"], Value::Null);
    assert_eq!(keys["rows"][0]["doc"]["_replication_state"], "failed");
    assert_eq!(keys["rows"][1], json!({"key": "nope", "error": "not_found"}));
    assert_eq!(keys["rows"][2], json!({"key": 5, "error": "not_found"}));
    assert_eq!(server.get("/_replicator/_all_docs?limit=x").await.error(), (400, "query_parse_error"));
    assert_eq!(server.get("/_replicator/_all_docs?startkey=b").await.error(), (400, "bad_request"));
}

#[tokio::test]
async fn bulk_get_and_revs_diff_serve_replicators() {
    let server = TestServer::start().await;
    let rev = server.put_ok("/_replicator/a", &failed(1)).await;
    let wanted =
        json!({"docs": [{"id": "a"}, {"id": "a", "rev": rev}, {"id": "a", "rev": "9-x"}, {"id": "b"}]});
    let got = server.post("/_replicator/_bulk_get?revs=true", &wanted).await.body;
    assert_eq!(got["results"][0]["docs"][0]["ok"]["_revisions"]["start"], 1);
    assert_eq!(got["results"][1]["docs"][0]["ok"]["_rev"], rev);
    let missing = |id: &str, rev: &str| json!({"id": id, "docs": [{"error": {"id": id, "rev": rev, "error": "not_found", "reason": "missing"}}]});
    assert_eq!(got["results"][2], missing("a", "9-x"));
    assert_eq!(got["results"][3], missing("b", "undefined"));
    let diff = json!({"a": [rev, "2-x"], "b": ["1-y"]});
    let diff = server.post("/_replicator/_revs_diff", &diff).await.body;
    assert_eq!(diff, json!({"a": {"missing": ["2-x"]}, "b": {"missing": ["1-y"]}}));
    assert_eq!(server.put("/_replicator/_local/x", &json!({"n": 1})).await.body["rev"], "0-1");
    assert_eq!(
        server.get("/_replicator/_local/x").await.body,
        json!({"_id": "_local/x", "_rev": "0-1", "n": 1})
    );
    let second = server.put("/_replicator/_local%2Fx", &json!({"_rev": "0-1", "n": 2})).await;
    assert_eq!(second.body["rev"], "0-2");
    assert_eq!(server.delete("/_replicator/_local/x?rev=0-2").await.body["rev"], "0-0");
    assert_eq!(server.get("/_replicator/_local/x").await.status, 404);
}

#[tokio::test]
async fn documents_survive_a_restart() {
    let server = TestServer::start().await;
    let uuid = server.get("/").await.body["uuid"].clone();
    let rev = server.put_ok("/_replicator/a", &failed(1)).await;
    let server = server.restart("").await;
    assert_eq!(server.get("/_replicator/a").await.body["_rev"], rev);
    assert_eq!(server.get("/").await.body["uuid"], uuid);
}

#[tokio::test]
async fn a_client_that_goes_away_does_not_stop_the_deletion_that_it_asked_for() {
    use tokio::io::AsyncWriteExt;

    let server = TestServer::start().await;
    server.put("/x%2f_replicator", &json!({})).await;
    for batch in 0..8 {
        let doc = |n| json!({"_id": format!("{batch}-{n}"), "_replication_state": "failed"});
        let docs: Vec<Value> = (0..500).map(doc).collect();
        let written = server.post("/x%2f_replicator/_bulk_docs", &json!({ "docs": docs })).await;
        assert_eq!(written.status, 201);
    }
    let mut client = tokio::net::TcpStream::connect(server.server.listen()).await.unwrap();
    client.write_all(b"DELETE /x%2f_replicator HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    server.poll("/x%2f_replicator", |info| info["error"] == "not_found").await;
    drop(client);
    // The name is free again when all data of the database has been deleted.
    let put = async || server.put("/x%2f_replicator", &json!({})).await.status;
    until("the database is no longer half deleted", put, |status| *status == 201).await;
}
