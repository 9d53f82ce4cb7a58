//! Tests of the splitter: examples, and every way of cutting a response into pieces.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// Splits `text`, in pieces of the given lengths (the last one repeatedly).
fn split(shape: Shape, text: &[u8], cuts: &[usize]) -> Result<(Vec<String>, String), Error> {
    let mut splitter = Splitter::new(shape, 1 << 20);
    let mut rows = Vec::new();
    let (mut rest, mut cuts) = (text, cuts.iter().copied().cycle());
    while !rest.is_empty() {
        let (piece, next) = rest.split_at(cuts.next().unwrap_or(usize::MAX).clamp(1, rest.len()));
        splitter.push(piece, |row| {
            rows.push(String::from_utf8(row.to_vec()).unwrap());
            Ok::<_, Error>(())
        })?;
        rest = next;
    }
    Ok((rows, String::from_utf8(splitter.finish()?).unwrap()))
}

#[test]
fn an_object_with_an_array_gives_its_elements_and_the_rest() {
    let text = br#"{"results":[
{"id":"a]}\"","x":[1,[2]]},
{"id":"b"} , 5,"s",null
],"last_seq":"7-x","pending":{"n":[1]}}
"#;
    let (rows, envelope) = split(Shape::Array, text, &[]).unwrap();
    assert_eq!(rows, [r#"{"id":"a]}\"","x":[1,[2]]}"#, r#"{"id":"b"}"#, "5", r#""s""#, "null"]);
    let envelope: Value = serde_json::from_str(&envelope).unwrap();
    assert_eq!(envelope, json!({"results": [], "last_seq": "7-x", "pending": {"n": [1]}}));
}

#[test]
fn an_array_gives_its_elements() {
    assert_eq!(split(Shape::Array, b" [ ] ", &[]).unwrap().0, Vec::<String>::new());
    assert_eq!(split(Shape::Array, br#"[{"ok":[{}]},1]"#, &[]).unwrap().0, [r#"{"ok":[{}]}"#, "1"]);
}

#[test]
fn lines_give_their_values_and_heartbeats_give_nothing() {
    let text = b"\n{\"id\":\"a\"}\n\n\n{\"last_seq\":5}\n";
    assert_eq!(split(Shape::Lines, text, &[]).unwrap().0, [r#"{"id":"a"}"#, r#"{"last_seq":5}"#]);
}

#[test]
fn an_error_object_is_all_envelope() {
    let text = br#"{"error":"not_found","reason":"missing"}"#;
    assert_eq!(split(Shape::Array, text, &[]).unwrap().1.as_bytes(), text);
}

#[test]
fn a_response_that_ends_early_is_truncated() {
    for text in ["", "{", r#"{"results":["#, r#"{"results":[{"a":1}"#, r#"{"results":[{"a":1}]"#, r#"["abc"#]
    {
        assert_eq!(split(Shape::Array, text.as_bytes(), &[]).unwrap_err(), Error::Truncated, "{text}");
    }
    assert_eq!(split(Shape::Lines, br#"{"id":"#, &[]).unwrap_err(), Error::Truncated);
}

#[test]
fn invalid_json_is_refused() {
    assert_eq!(split(Shape::Array, b"<html>", &[]).unwrap_err(), Error::NotJson);
    assert_eq!(split(Shape::Array, b"[]]", &[]).unwrap_err(), Error::Unbalanced);
    assert_eq!(split(Shape::Array, b"[] []", &[]).unwrap_err(), Error::Unbalanced);
}

#[test]
fn a_row_beyond_the_limit_is_refused_before_it_is_held() {
    let mut splitter = Splitter::new(Shape::Array, 10);
    let ignore = |_: &[u8]| Ok::<_, Error>(());
    splitter.push(br#"["12345"#, ignore).unwrap();
    assert_eq!(splitter.push(br"67890", ignore).unwrap_err(), Error::ElementTooLarge(10));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-z\"\\\\{}\\[\\],:é\u{1F600}\n]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::vec(("[a-z\"\\\\\\]]{0,4}", inner), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn prop_any_rows_cut_anywhere_come_out_whole(
        rows in proptest::collection::vec(any_json(), 0..12),
        pretty: bool,
        cuts in proptest::collection::vec(1usize..20, 1..8),
    ) {
        let whole = json!({"before": {"x": ["]"]}, "results": rows, "last_seq": "5-\"]"});
        let text = if pretty { serde_json::to_vec_pretty(&whole) } else { serde_json::to_vec(&whole) }.unwrap();
        let (got, envelope) = split(Shape::Array, &text, &cuts).unwrap();
        let got: Vec<Value> = got.iter().map(|row| serde_json::from_str(row).unwrap()).collect();
        prop_assert_eq!(&got, &rows);
        let expected = json!({"before": {"x": ["]"]}, "results": [], "last_seq": "5-\"]"});
        prop_assert_eq!(serde_json::from_str::<Value>(&envelope).unwrap(), expected);
    }

    #[test]
    fn prop_any_lines_cut_anywhere_come_out_whole(
        rows in proptest::collection::vec(any_json(), 0..12),
        cuts in proptest::collection::vec(1usize..20, 1..8),
    ) {
        let text: String = rows.iter().map(|row| format!("{row}\n\n")).collect();
        let (got, _) = split(Shape::Lines, text.as_bytes(), &cuts).unwrap();
        let got: Vec<Value> = got.iter().map(|row| serde_json::from_str(row).unwrap()).collect();
        prop_assert_eq!(&got, &rows);
    }

    #[test]
    fn prop_nonsense_never_panics(text in proptest::collection::vec(any::<u8>(), 0..200), cut in 1usize..9) {
        let mut splitter = Splitter::new(Shape::Array, 50);
        for piece in text.chunks(cut) {
            if splitter.push(piece, |_| Ok::<_, Error>(())).is_err() {
                return Ok(());
            }
        }
        let _ = splitter.finish();
    }
}
