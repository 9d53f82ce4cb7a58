//! Tests of the multipart parser: examples, and every way of cutting a body into pieces.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

/// All parts of a body that comes in pieces of `cut` bytes.
fn parse(boundary: &str, body: &[u8], cut: usize) -> Result<Vec<(Headers, Vec<u8>)>, Error> {
    let mut parser = Parser::new(boundary);
    let mut parts: Vec<(Headers, Vec<u8>)> = Vec::new();
    for piece in body.chunks(cut) {
        parser.push(piece);
        loop {
            match parser.next()? {
                Event::NeedMore | Event::End => break,
                Event::Part(headers) => parts.push((headers, Vec::new())),
                Event::Data(data) => parts.last_mut().unwrap().1.extend_from_slice(&data),
                Event::PartEnd => {}
            }
        }
    }
    parser.finish().map(|()| parts)
}

const BODY: &[u8] =
    b"--outer\r\nContent-Type: multipart/related; boundary=\"inner\"\r\n\r\n--inner\r\n\r\n\r\n--inner--\r\n\
    --outer\r\ncontent-type: application/json; error=\"true\"\r\n\r\n{\"missing\":\"3-x\"}\r\n--outer--";

#[test]
fn a_related_part_of_a_mixed_body_passes_as_it_is() {
    for cut in 1..BODY.len() {
        let parts = parse("outer", BODY, cut).unwrap();
        assert_eq!(parts.len(), 2);
        assert_eq!(parts[0].0.get("content-type"), Some("multipart/related; boundary=\"inner\""));
        assert_eq!(parts[0].1, b"--inner\r\n\r\n\r\n--inner--");
        assert_eq!(parts[1].1, b"{\"missing\":\"3-x\"}");
    }
}

#[test]
fn a_body_that_ends_early_is_truncated_wherever_it_ends() {
    for end in 0..BODY.len() - 1 {
        assert_eq!(parse("outer", &BODY[..end], 7).unwrap_err(), Error::Truncated, "{end}");
    }
}

#[test]
fn a_preamble_and_an_epilogue_are_ignored() {
    let body = b"hello\r\n--b\r\n\r\nx\r\n--b--\r\nbye";
    assert_eq!(parse("b", body, 3).unwrap(), [(Headers::default(), b"x".to_vec())]);
    assert_eq!(parse("b", b"--b--", 1).unwrap(), []);
}

#[test]
fn a_line_that_only_begins_like_a_delimiter_is_an_error() {
    assert_eq!(parse("b", b"--bc\r\n\r\nx\r\n--b--", 99).unwrap_err(), Error::Delimiter);
    assert_eq!(parse("b", b"--b\r\nno colon\r\n\r\nx\r\n--b--", 99).unwrap_err(), Error::Headers);
}

#[test]
fn the_boundary_is_found_with_and_without_quotes() {
    assert_eq!(boundary("multipart/mixed; boundary=\"a-b\""), Some("a-b"));
    assert_eq!(boundary("Multipart/Related; type=x; Boundary=ab"), Some("ab"));
    assert_eq!(boundary("application/json; boundary=x"), None);
    assert_eq!(boundary("multipart/mixed"), None);
}

proptest! {
    #[test]
    fn prop_any_parts_cut_anywhere_come_out_whole(
        // Contents made of the characters of delimiters.
        parts in proptest::collection::vec("[\r\n\\-bx]{0,40}", 0..5),
        cut in 1usize..30,
    ) {
        let boundary = "bxb";
        prop_assume!(parts.iter().all(|part| !format!("\r\n{part}").contains("\r\n--bxb")));
        let mut body = Vec::new();
        for (nth, part) in parts.iter().enumerate() {
            body.extend_from_slice(format!("--{boundary}\r\nX-Nth: {nth}\r\n\r\n{part}\r\n").as_bytes());
        }
        body.extend_from_slice(format!("--{boundary}--").as_bytes());
        let got = parse(boundary, &body, cut).unwrap();
        let contents: Vec<String> = got.iter().map(|(_, part)| String::from_utf8(part.clone()).unwrap()).collect();
        prop_assert_eq!(contents, parts);
        for (nth, (headers, _)) in got.iter().enumerate() {
            let expected = nth.to_string();
            prop_assert_eq!(headers.get("x-nth"), Some(expected.as_str()));
        }
    }

    #[test]
    fn prop_nonsense_never_panics(body in proptest::collection::vec(any::<u8>(), 0..300), cut in 1usize..40) {
        let _ = parse("b", &body, cut);
    }
}
