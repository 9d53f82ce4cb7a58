//! The condition of a job filter, as people write it.
//!
//! ```text
//! type = mail and (tenant ~ "^test-" or options.to.domain = "example.org") and not id = mail-17
//! ```
//!
//! *Fields*: `id`, `type`, `tenant`, `user`, `reason` (any of the job's reasons), and `options.` with the path of a
//! member, names between dots. *Operators*: `=`, `!=`, `<`, `<=`, `>`, `>=`, `~` (the text contains a match of a
//! regular expression), `!~`. Numbers are compared with numbers, and text with text. Text that looks like a number
//! can also be compared with a number. A missing value, or one of another kind, equals nothing and is neither below
//! nor above. *Values*: numbers, `true`, `false`, `null`, text between quotes, or a word.

use std::fmt;
use std::iter::Peekable;
use std::str::CharIndices;

use regex_lite::Regex;

/// The longest condition, in bytes.
pub const MAX_CONDITION_BYTES: usize = 4_000;
/// How deep parentheses and `not` may be nested.
const MAX_DEPTH: usize = 20;
/// The most comparisons in one condition.
const MAX_COMPARISONS: usize = 100;
/// The longest text in which a pattern is searched, in bytes. No pattern matches a longer one; it can still be
/// compared.
const MAX_SEARCHED_BYTES: usize = 16 << 10;
/// The most memory that a compiled pattern takes, in bytes.
const MAX_PATTERN_BYTES: usize = 1 << 20;

/// What is wrong with a condition, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// In characters, from 1.
    pub column: usize,
    /// What is wrong, and what would be right.
    pub problem: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}: {}", self.column, self.problem)
    }
}

impl std::error::Error for Mistake {}

/// A member of a job's options, as conditions see it.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Text.
    Text(String),
    /// A number.
    Number(f64),
    /// True or false.
    Bool(bool),
    /// `null`.
    Null,
}

/// A job, as conditions see it.
pub struct Subject<'a> {
    /// Its id.
    pub id: &'a str,
    /// Its type.
    pub job_type: &'a str,
    /// The tenant that it is charged to.
    pub tenant: &'a str,
    /// The user on whose behalf it runs.
    pub user: Option<&'a str>,
    /// Why it was added, as its client states.
    pub reasons: &'a [String],
    /// When it was added, in µs.
    pub added_us: i64,
    /// Looks up a member of its options: `None` if it is missing, or is an object or an array.
    pub option: &'a dyn Fn(&[String]) -> Option<Value>,
}

/// A parsed condition.
#[derive(Debug, Clone)]
pub struct Condition(Option<Node>);

#[derive(Debug, Clone)]
enum Node {
    Compare { field: Field, operator: Operator, value: Value, pattern: Option<Regex> },
    Not(Box<Node>),
    All(Vec<Node>),
    Any(Vec<Node>),
}

#[derive(Debug, Clone)]
enum Field {
    Id,
    Type,
    Tenant,
    User,
    Reason,
    Option(Vec<String>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Below,
    AtMost,
    Above,
    AtLeast,
    Matches,
    MatchesNot,
}

impl Condition {
    /// Parses a condition. An empty one holds for every job.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn parse(text: &str) -> Result<Condition, Mistake> {
        if text.len() > MAX_CONDITION_BYTES {
            let problem = format!(
                "the condition has {} bytes; at most {MAX_CONDITION_BYTES} are allowed: make several filters of it",
                text.len()
            );
            return Err(Mistake { column: 1, problem });
        }
        let mut parser = Parser { text, chars: text.char_indices().peekable(), comparisons: 0 };
        parser.skip_space();
        if parser.chars.peek().is_none() {
            return Ok(Condition(None));
        }
        let node = parser.any(0)?;
        match parser.chars.peek() {
            None => Ok(Condition(Some(node))),
            Some(_) => Err(parser.mistake("expected `and`, `or` or the end")),
        }
    }

    /// Whether it holds for every job.
    pub fn is_always(&self) -> bool {
        self.0.is_none()
    }

    /// Whether it needs a member of the options.
    pub fn asks_for_options(&self) -> bool {
        fn asks(node: &Node) -> bool {
            match node {
                Node::Compare { field, .. } => matches!(field, Field::Option(_)),
                Node::Not(node) => asks(node),
                Node::All(nodes) | Node::Any(nodes) => nodes.iter().any(asks),
            }
        }
        self.0.as_ref().is_some_and(asks)
    }

    /// Whether it holds for a job.
    pub fn holds(&self, job: &Subject<'_>) -> bool {
        self.0.as_ref().is_none_or(|node| holds(node, job))
    }
}

fn holds(node: &Node, job: &Subject<'_>) -> bool {
    match node {
        Node::Not(node) => !holds(node, job),
        Node::All(nodes) => nodes.iter().all(|node| holds(node, job)),
        Node::Any(nodes) => nodes.iter().any(|node| holds(node, job)),
        Node::Compare { field, operator, value, pattern } => {
            let text =
                |text: &str| compare(&Value::Text(text.to_owned()), *operator, value, pattern.as_ref());
            let is_not = matches!(operator, Operator::NotEqual | Operator::MatchesNot);
            match field {
                Field::Id => text(job.id),
                Field::Type => text(job.job_type),
                Field::Tenant => text(job.tenant),
                Field::User => job.user.map_or(is_not, text),
                Field::Reason if is_not => job.reasons.iter().all(|reason| text(reason)),
                Field::Reason => job.reasons.iter().any(|reason| text(reason)),
                Field::Option(path) => (job.option)(path)
                    .map_or(is_not, |found| compare(&found, *operator, value, pattern.as_ref())),
            }
        }
    }
}

fn compare(found: &Value, operator: Operator, value: &Value, pattern: Option<&Regex>) -> bool {
    let order = || match (found, value) {
        (Value::Text(found), Value::Text(value)) => Some(found.cmp(value)),
        (Value::Number(found), Value::Number(value)) => found.partial_cmp(value),
        // Ids and names are text, even if they look like numbers.
        (Value::Text(found), Value::Number(value)) => found.parse::<f64>().ok()?.partial_cmp(value),
        _ => None,
    };
    let equal = || found == value || order().is_some_and(std::cmp::Ordering::is_eq);
    let matches = || match (found, pattern) {
        (Value::Text(found), Some(pattern)) => found.len() <= MAX_SEARCHED_BYTES && pattern.is_match(found),
        _ => false,
    };
    match operator {
        Operator::Equal => equal(),
        Operator::NotEqual => !equal(),
        Operator::Below => order().is_some_and(std::cmp::Ordering::is_lt),
        Operator::AtMost => order().is_some_and(std::cmp::Ordering::is_le),
        Operator::Above => order().is_some_and(std::cmp::Ordering::is_gt),
        Operator::AtLeast => order().is_some_and(std::cmp::Ordering::is_ge),
        Operator::Matches => matches(),
        Operator::MatchesNot => !matches(),
    }
}

struct Parser<'a> {
    text: &'a str,
    chars: Peekable<CharIndices<'a>>,
    comparisons: usize,
}

impl Parser<'_> {
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

    /// Consumes `word` and the space after it, if it comes next.
    fn keyword(&mut self, word: &str) -> bool {
        let at = self.position();
        let rest = &self.text[at..];
        let is_next = rest
            .strip_prefix(word)
            .is_some_and(|rest| rest.chars().next().is_none_or(|c| c.is_whitespace() || c == '('));
        if is_next {
            for _ in word.chars() {
                self.chars.next();
            }
            self.skip_space();
        }
        is_next
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
            return Err(self.mistake(format!("nested deeper than {MAX_DEPTH}: make several filters of it")));
        }
        if self.keyword("not") {
            return Ok(Node::Not(Box::new(self.one(depth + 1)?)));
        }
        if self.chars.next_if(|(_, c)| *c == '(').is_some() {
            self.skip_space();
            let node = self.any(depth + 1)?;
            if self.chars.next_if(|(_, c)| *c == ')').is_none() {
                return Err(self.mistake("expected `)`, `and` or `or`"));
            }
            self.skip_space();
            return Ok(node);
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Result<Node, Mistake> {
        self.comparisons += 1;
        if self.comparisons > MAX_COMPARISONS {
            return Err(
                self.mistake(format!("more than {MAX_COMPARISONS} comparisons: make several filters of it"))
            );
        }
        let field = self.field()?;
        let operator = self.operator()?;
        let at = self.position();
        let value = self.value()?;
        let is_pattern = matches!(operator, Operator::Matches | Operator::MatchesNot);
        let pattern = match &value {
            Value::Text(text) if is_pattern => {
                let mut pattern = regex_lite::RegexBuilder::new(text);
                let pattern = pattern.size_limit(MAX_PATTERN_BYTES).build();
                Some(pattern.map_err(|error| {
                    let problem = format!("not a regular expression: {error}");
                    self.mistake_at(at, problem.replace(char::is_control, " "))
                })?)
            }
            _ if is_pattern => {
                return Err(self.mistake_at(at, "`~` takes a regular expression: put it between quotes"));
            }
            _ => None,
        };
        Ok(Node::Compare { field, operator, value, pattern })
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
        const FIELDS: &str = "expected id, type, tenant, user, reason or options.NAME";
        let at = self.position();
        let word = self.word();
        self.skip_space();
        Ok(match word.as_str() {
            "id" => Field::Id,
            "type" => Field::Type,
            "tenant" => Field::Tenant,
            "user" => Field::User,
            "reason" => Field::Reason,
            other => match other.strip_prefix("options.") {
                Some(path) if path.split('.').all(|name| !name.is_empty()) => {
                    Field::Option(path.split('.').map(str::to_owned).collect())
                }
                _ => return Err(self.mistake_at(at, FIELDS)),
            },
        })
    }

    fn operator(&mut self) -> Result<Operator, Mistake> {
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
        let rest = &self.text[self.position()..];
        let Some((text, operator)) = OPERATORS.into_iter().find(|(text, _)| rest.starts_with(text)) else {
            return Err(self.mistake("expected one of = != < <= > >= ~ !~"));
        };
        for _ in text.chars() {
            self.chars.next();
        }
        self.skip_space();
        Ok(operator)
    }

    fn value(&mut self) -> Result<Value, Mistake> {
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
                Value::Text(text)
            }
            None => match self.word().as_str() {
                "" => return Err(self.mistake("expected a number, a word, or text between quotes")),
                "true" => Value::Bool(true),
                "false" => Value::Bool(false),
                "null" => Value::Null,
                word => match word.parse::<f64>() {
                    Ok(number) if number.is_finite() => Value::Number(number),
                    _ => Value::Text(word.to_owned()),
                },
            },
        };
        self.skip_space();
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn option(path: &[String]) -> Option<Value> {
        Some(match path.join(".").as_str() {
            "to" => Value::Text("jan@example.org".into()),
            "retries.most" => Value::Number(3.0),
            "dry" => Value::Bool(true),
            "parent" => Value::Null,
            _ => return None,
        })
    }

    fn is_true(text: &str) -> bool {
        let reasons = ["maintenance".to_owned(), "by jan".to_owned()];
        let job = Subject {
            id: "17",
            job_type: "mail",
            tenant: "acme",
            user: None,
            reasons: &reasons,
            added_us: 0,
            option: &option,
        };
        Condition::parse(text).unwrap_or_else(|mistake| panic!("{text}: {mistake}")).holds(&job)
    }

    #[test]
    fn conditions_hold_as_they_are_written() {
        for text in [
            "",
            " ",
            "type = mail",
            "type='mail'",
            "id = 17",
            "id < 18",
            "id ~ '^1'",
            "not type = news",
            "type = news or tenant = acme",
            "(type = news or type = mail) and tenant != beta",
            "type = news and tenant = beta or id = 17",
            "options.to ~ \"@example\\.org$\"",
            "options.retries.most >= 3",
            "options.dry = true",
            "options.parent = null",
            "options.none != 1",
            "reason = maintenance",
            "reason ~ jan",
            "reason != other",
            "user != jan",
            "not (user = jan)",
        ] {
            assert!(is_true(text), "{text}");
        }
        for text in [
            "type = news",
            "not type = mail",
            "options.none = 1",
            "options.none < 1",
            "options.to < 5",
            "reason != maintenance",
            "user = jan",
            "options.dry ~ 't'",
            "type != mail or not id = 17",
        ] {
            assert!(!is_true(text), "{text}");
        }
    }

    #[test]
    fn mistakes_are_reported_with_their_column() {
        for (text, column, problem) in [
            ("typ = mail", 1, "expected id, type"),
            ("type mail", 6, "expected one of ="),
            ("type = ", 8, "expected a number"),
            ("type = 'mail", 8, "no closing quote"),
            ("ä", 1, "expected id"),
            ("type = mail tenant = x", 13, "expected `and`"),
            ("(type = mail", 13, "expected `)`"),
            ("type ~ '('", 8, "not a regular expression"),
            ("type ~ 5", 8, "between quotes"),
            ("options. = 1", 1, "expected id"),
        ] {
            let mistake = Condition::parse(text).unwrap_err();
            assert_eq!(mistake.column, column, "{text}: {mistake}");
            assert!(mistake.problem.contains(problem), "{text}: {mistake}");
        }
        assert!(Condition::parse(&"(".repeat(100)).unwrap_err().problem.contains("nested deeper"));
        assert!(Condition::parse(&"not ".repeat(100)).unwrap_err().problem.contains("nested deeper"));
        assert!(Condition::parse(&"x".repeat(5_000)).unwrap_err().problem.contains("at most 4000"));
        let many = vec!["id = 1"; 101].join(" or ");
        assert!(Condition::parse(&many).unwrap_err().problem.contains("comparisons"));
    }
}
