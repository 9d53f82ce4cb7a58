//! The list of mutants matches the sources.

use std::collections::BTreeSet;

use turnwise_sim::mutants::all;
use turnwise_sim::mutate::{apply, source};

#[test]
fn every_mutation_has_its_place_once() {
    let mut wrong = Vec::new();
    for mutant in all() {
        match apply(mutant, &source(mutant.file).unwrap()) {
            Ok(mutated) => {
                assert_ne!(mutated, source(mutant.file).unwrap(), "{} changes nothing", mutant.name)
            }
            Err(problem) => wrong.push(problem),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let names: BTreeSet<_> = all().map(|mutant| mutant.name).collect();
    assert_eq!(names.len(), all().count(), "two mutants have the same name");
}
