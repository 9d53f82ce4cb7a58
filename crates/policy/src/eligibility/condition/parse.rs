//! The parser of conditions: recursive descent over one bounded text.

use std::iter::Peekable;
use std::str::CharIndices;

use regex_lite::{Regex, RegexBuilder};

use super::{
    Condition, Count, Field, Fields, GROUP_TAG, Indexed, Literal, MAX_CONDITION_BYTES, MAX_PATTERNS_BYTES,
    Mistake, Moment, Node, Number, Operator, Value,
};
use crate::timestamp::parse_timestamp;

/// How deep parentheses and `not` may be nested.
const MAX_DEPTH: usize = 20;
/// The most comparisons in one condition. Each value of an `in` is one.
const MAX_COMPARISONS: usize = 100;
/// The size from which a compiled pattern is measured, in bytes.
const SMALLEST_PATTERN_BYTES: usize = 256;
/// The most memory that compiling a pattern takes, to tell one that is too large from one that is wrong.
const MAX_COMPILED_BYTES: usize = 1 << 20;
/// The longest age: 1,000 years, in µs.
const MAX_AGE_US: u64 = 1_000 * 365 * DAY_US;

const SECOND_US: u64 = 1_000_000;
const DAY_US: u64 = 24 * 60 * 60 * SECOND_US;

/// The states of jobs.
const STATES: [&str; 12] = [
    "pending",
    "delayed",
    "parked",
    "blocked",
    "paused",
    "limited",
    "running",
    "waiting",
    "crashing",
    "completed",
    "failed",
    "cancelled",
];

pub(super) struct Parser<'a> {
    text: &'a str,
    chars: Peekable<CharIndices<'a>>,
    comparisons: usize,
    /// What the compiled patterns take, in bytes.
    patterns: usize,
    fields: Fields,
    /// The last field was `group`, which compares the tag of a group.
    of_group: bool,
}

impl Parser<'_> {
    pub(super) fn parse(text: &str, fields: Fields) -> Result<Condition, Mistake> {
        if text.len() > MAX_CONDITION_BYTES {
            let problem = format!(
                "the condition has {} bytes; at most {MAX_CONDITION_BYTES} are allowed: split it",
                text.len()
            );
            return Err(Mistake { column: 1, problem });
        }
        let chars = text.char_indices().peekable();
        let mut parser = Parser { text, chars, comparisons: 0, patterns: 0, fields, of_group: false };
        parser.skip_space();
        if parser.chars.peek().is_none() {
            return Ok(Condition::always());
        }
        let node = parser.any(0)?;
        match parser.chars.peek() {
            None => Ok(Condition { node: Some(node), pattern_bytes: parser.patterns }),
            Some(_) => Err(parser.mistake("expected `and`, `or` or the end")),
        }
    }

    fn position(&mut self) -> usize {
        self.chars.peek().map_or(self.text.len(), |(at, _)| *at)
    }

    fn mistake(&mut self, problem: impl Into<String>) -> Mistake {
        let at = self.position();
        self.mistake_at(at, problem)
    }

    fn mistake_at(&self, at: usize, problem: impl Into<String>) -> Mistake {
        Mistake { column: self.text[..at].chars().count() + 1, problem: problem.into() }
    }

    fn skip_space(&mut self) {
        while self.chars.next_if(|(_, c)| c.is_whitespace()).is_some() {}
    }

    /// Consumes `c` and the space after it, if it comes next.
    fn sign(&mut self, c: char) -> bool {
        let is_next = self.chars.next_if(|(_, next)| *next == c).is_some();
        if is_next {
            self.skip_space();
        }
        is_next
    }

    /// Consumes `word` and the space after it, if it comes next.
    fn keyword(&mut self, word: &str) -> bool {
        let at = self.position();
        let rest = &self.text[at..];
        let is_next = rest
            .strip_prefix(word)
            .is_some_and(|rest| rest.chars().next().is_none_or(|c| c.is_whitespace() || c == '('));
        if is_next {
            self.consume(word);
        }
        is_next
    }

    /// Consumes a text that comes next, and the space after it.
    fn consume(&mut self, text: &str) {
        for _ in text.chars() {
            self.chars.next();
        }
        self.skip_space();
    }

    fn any(&mut self, depth: usize) -> Result<Node, Mistake> {
        let mut nodes = vec![self.all(depth)?];
        while self.keyword("or") {
            nodes.push(self.all(depth)?);
        }
        Ok(if nodes.len() == 1 { nodes.remove(0) } else { Node::Any(nodes) })
    }

    fn all(&mut self, depth: usize) -> Result<Node, Mistake> {
        let mut nodes = vec![self.one(depth)?];
        while self.keyword("and") {
            nodes.push(self.one(depth)?);
        }
        Ok(if nodes.len() == 1 { nodes.remove(0) } else { Node::All(nodes) })
    }

    fn one(&mut self, depth: usize) -> Result<Node, Mistake> {
        if depth == MAX_DEPTH {
            return Err(self.mistake(format!("nested deeper than {MAX_DEPTH}: split it")));
        }
        if self.keyword("not") {
            return Ok(Node::Not(Box::new(self.one(depth + 1)?)));
        }
        if self.sign('(') {
            let node = self.any(depth + 1)?;
            if !self.sign(')') {
                return Err(self.mistake("expected `)`, `and` or `or`"));
            }
            return Ok(node);
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Result<Node, Mistake> {
        self.count()?;
        let field = self.field()?;
        if self.keyword("in") {
            return self.one_of(field);
        }
        let operator = self.operator(&field)?;
        let at = self.position();
        let value = self.value(&field)?;
        let is_pattern = matches!(operator, Operator::Matches | Operator::MatchesNot);
        if is_pattern && value.other.is_some() {
            return Err(self.mistake_at(at, "`~` takes a regular expression: put it between quotes"));
        }
        let pattern = match is_pattern {
            true => Some(self.pattern(at, value.text.as_deref().unwrap_or_default())?),
            false => None,
        };
        Ok(Node::Compare { field, operator, value, pattern })
    }

    /// Compiles a pattern, and takes what it costs to search for it into account.
    fn pattern(&mut self, at: usize, text: &str) -> Result<Regex, Mistake> {
        let compiled = |most: usize| RegexBuilder::new(text).size_limit(most).build();
        let mut size = SMALLEST_PATTERN_BYTES;
        loop {
            if self.patterns + size > MAX_PATTERNS_BYTES {
                let problem = match compiled(MAX_COMPILED_BYTES) {
                    Ok(_) => {
                        "the patterns are too large together: shorten them, or repeat less in them".to_owned()
                    }
                    Err(error) => format!("not a regular expression: {error}").replace(char::is_control, " "),
                };
                return Err(self.mistake_at(at, problem));
            }
            if let Ok(pattern) = compiled(size) {
                self.patterns += size;
                return Ok(pattern);
            }
            size *= 2;
        }
    }

    /// The values after `in`.
    fn one_of(&mut self, field: Field) -> Result<Node, Mistake> {
        if !self.sign('(') {
            return Err(self.mistake("expected `(` after `in`, and values with commas between them"));
        }
        let mut nodes = Vec::new();
        loop {
            let value = self.value(&field)?;
            nodes.push(Node::Compare {
                field: field.clone(),
                operator: Operator::Equal,
                value,
                pattern: None,
            });
            if self.sign(')') {
                return Ok(Node::Any(nodes));
            }
            if !self.sign(',') {
                return Err(self.mistake("expected `,` or `)`"));
            }
            self.count()?;
        }
    }

    fn count(&mut self) -> Result<(), Mistake> {
        self.comparisons += 1;
        match self.comparisons > MAX_COMPARISONS {
            true => Err(self.mistake(format!("more than {MAX_COMPARISONS} comparisons: split it"))),
            false => Ok(()),
        }
    }

    fn word(&mut self) -> String {
        let mut word = String::new();
        while let Some((_, c)) = self
            .chars
            .next_if(|(_, c)| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '@' | '/' | ':' | '+'))
        {
            word.push(c);
        }
        word
    }

    fn field(&mut self) -> Result<Field, Mistake> {
        const OF_FILTERS: &str = "expected id, type, task, tenant, user, tag, group, reason or options.NAME";
        const OF_SELECTIONS: &str = "expected id, type, task, tenant, user, tag, group, state, reason, reason_class, priority, attempts, crashes, added, \
                                     changed, ended, age, changed_age, ended_age or options.NAME";
        let at = self.position();
        let word = self.word();
        self.skip_space();
        self.of_group = word == "group";
        let common = match word.as_str() {
            "id" => Some(Field::Indexed(Indexed::Id)),
            "type" => Some(Field::Indexed(Indexed::Type)),
            "tenant" => Some(Field::Indexed(Indexed::Tenant)),
            "tag" | "group" => Some(Field::Indexed(Indexed::Tag)),
            "user" => Some(Field::User),
            "task" => Some(Field::Task),
            "reason" => Some(Field::Reason),
            other => match other.strip_prefix("options.") {
                Some(path) if path.split('.').all(|name| !name.is_empty()) => {
                    Some(Field::Option(path.split('.').map(str::to_owned).collect()))
                }
                _ => None,
            },
        };
        let of_selections = || {
            Some(match word.as_str() {
                "state" => Field::Indexed(Indexed::State),
                "reason_class" => Field::Indexed(Indexed::ReasonClass),
                "priority" => Field::Count(Count::Priority),
                "attempts" => Field::Count(Count::Attempts),
                "crashes" => Field::Count(Count::Crashes),
                "added" => Field::Time(Moment::Added),
                "changed" => Field::Time(Moment::Changed),
                "ended" => Field::Time(Moment::Ended),
                "age" => Field::Age(Moment::Added),
                "changed_age" => Field::Age(Moment::Changed),
                "ended_age" => Field::Age(Moment::Ended),
                _ => return None,
            })
        };
        match self.fields {
            Fields::OfFilters => common.ok_or_else(|| self.mistake_at(at, OF_FILTERS)),
            Fields::OfSelections => {
                common.or_else(of_selections).ok_or_else(|| self.mistake_at(at, OF_SELECTIONS))
            }
        }
    }

    fn operator(&mut self, field: &Field) -> Result<Operator, Mistake> {
        const OPERATORS: [(&str, Operator); 8] = [
            ("!=", Operator::NotEqual),
            ("!~", Operator::MatchesNot),
            ("<=", Operator::AtMost),
            (">=", Operator::AtLeast),
            ("=", Operator::Equal),
            ("<", Operator::Below),
            (">", Operator::Above),
            ("~", Operator::Matches),
        ];
        let at = self.position();
        let rest = &self.text[at..];
        let Some((text, operator)) = OPERATORS.into_iter().find(|(text, _)| rest.starts_with(text)) else {
            return Err(self.mistake("expected one of = != < <= > >= ~ !~ in"));
        };
        let is_equality = matches!(operator, Operator::Equal | Operator::NotEqual);
        let is_pattern = matches!(operator, Operator::Matches | Operator::MatchesNot);
        match field {
            _ if self.of_group && !is_equality => Err(self.mistake_at(at, "expected one of = != in")),
            Field::Indexed(Indexed::State) if !is_equality => {
                Err(self.mistake_at(at, "expected one of = != in"))
            }
            Field::Count(_) | Field::Time(_) | Field::Age(_) if is_pattern => {
                Err(self.mistake_at(at, "expected one of = != < <= > >= in"))
            }
            _ => {
                self.consume(text);
                Ok(operator)
            }
        }
    }

    /// A value that can be compared with the field.
    fn value(&mut self, field: &Field) -> Result<Literal, Mistake> {
        let at = self.position();
        let (text, is_quoted) = self.any_value()?;
        let number = match field {
            Field::Count(_) => Number::parse(&text).filter(|_| !is_quoted).ok_or("expected a number"),
            Field::Time(_) => parse_timestamp(&text)
                .map(Number::from)
                .ok_or("expected a time such as 2026-01-31T12:00:00Z; `age > 2d` compares an age"),
            Field::Age(_) => {
                age_us(&text).ok_or("expected a duration: a number of s, m, h, d or w, such as 90s or 2d")
            }
            Field::Indexed(Indexed::State) if !STATES.contains(&text.as_str()) => {
                return Err(self.mistake_at(at, format!("expected a state: {}", STATES.join(", "))));
            }
            Field::Option(_) if !is_quoted => {
                let other = match text.as_str() {
                    "true" => Some(Value::Bool(true)),
                    "false" => Some(Value::Bool(false)),
                    "null" => Some(Value::Null),
                    text => Number::parse(text).map(Value::Number),
                };
                return Ok(Literal { text: Some(text), other });
            }
            _ if self.of_group => {
                return Ok(Literal { text: Some(format!("{GROUP_TAG}{text}")), other: None });
            }
            _ => return Ok(Literal { text: Some(text), other: None }),
        };
        let number = number.map_err(|problem| self.mistake_at(at, problem))?;
        Ok(Literal { text: None, other: Some(Value::Number(number)) })
    }

    /// A value, and whether it was between quotes.
    fn any_value(&mut self) -> Result<(String, bool), Mistake> {
        let at = self.position();
        let quote = self.chars.next_if(|(_, c)| matches!(c, '"' | '\''));
        let value = match quote {
            Some((_, quote)) => {
                let mut text = String::new();
                loop {
                    match self.chars.next() {
                        None => {
                            return Err(self.mistake_at(at, "the text that begins here has no closing quote"));
                        }
                        Some((_, c)) if c == quote => break,
                        // Before a quote, it escapes the quote. Before anything else, it is part of the text, for
                        // patterns.
                        Some((_, '\\')) => match self.chars.peek() {
                            Some((_, c)) if *c == quote => {
                                text.push(quote);
                                self.chars.next();
                            }
                            _ => text.push('\\'),
                        },
                        Some((_, c)) => text.push(c),
                    }
                }
                (text, true)
            }
            None => match self.word() {
                word if word.is_empty() => {
                    return Err(self.mistake("expected a number, a word, or text between quotes"));
                }
                word => (word, false),
            },
        };
        self.skip_space();
        Ok(value)
    }
}

/// A duration with its unit, in µs.
fn age_us(text: &str) -> Option<Number> {
    let unit_us = match text.chars().last()? {
        's' => SECOND_US,
        'm' => 60 * SECOND_US,
        'h' => 60 * 60 * SECOND_US,
        'd' => DAY_US,
        'w' => 7 * DAY_US,
        _ => return None,
    };
    let number = &text[..text.len() - 1];
    if !number.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let age_us = number.parse::<u64>().ok()?.checked_mul(unit_us).filter(|age_us| *age_us <= MAX_AGE_US)?;
    Some(Number::Whole(age_us.into()))
}
