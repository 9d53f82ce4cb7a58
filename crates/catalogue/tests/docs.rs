//! The catalogues in the documentation are valid.

use serde_json::json;
use turnwise_catalogue::Catalogue;

const DOCS: &str = include_str!("../../../docs/locks.md");

/// The code blocks of a page in this language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let begin = format!("```{language}\n");
    page.split(begin.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

#[test]
fn every_catalogue_of_the_documentation_is_valid() {
    let blocks = blocks(DOCS, "toml");
    assert_eq!(blocks.len(), 6);
    for block in blocks {
        Catalogue::parse(block, "docs/locks.md").unwrap_or_else(|wrong| panic!("{wrong}\n{block}"));
    }
}

#[test]
fn the_error_of_the_documentation_is_current() {
    let text = "\n".repeat(9) + "[jobs.cluster]\nlocks = {}\ntasks.instance-start.nod.shared = 'all'\n";
    let error = Catalogue::parse(&text, "catalogue.toml").unwrap_err().to_string();
    assert_eq!(blocks(DOCS, "text")[0].trim_end(), error);
}

#[test]
fn the_examples_of_the_documentation_are_correct() {
    let first = Catalogue::parse(blocks(DOCS, "toml")[0], "docs/locks.md").unwrap();
    let wants = |catalogue: &Catalogue, job_type, task, options| {
        serde_json::to_value(catalogue.requests(job_type, task, &options).unwrap().requests).unwrap()
    };
    assert_eq!(wants(&first, "backup", None, json!({"host": "n1"})), json!({"node": {"shared": ["n1"]}}));
    assert_eq!(
        wants(
            &first,
            "cluster",
            Some("instance-migrate"),
            json!({"instance": "web1", "nodes": ["n1", "n2"]})
        ),
        json!({"instance": {"exclusive": ["web1"]}, "node": {"exclusive": ["n1", "n2"]}})
    );
    let commands = Catalogue::parse(blocks(DOCS, "toml")[1], "docs/locks.md").unwrap();
    let fsck = json!({"argv": ["fsck", "/dev/sdb1"]});
    assert_eq!(
        wants(&commands, "command", None, fsck),
        json!({"node_resource": {"exclusive": ["/dev/sdb1"]}})
    );
    assert_eq!(wants(&commands, "command", None, json!({"argv": ["ls"]})), json!({}));
}
