//! The normal form of a Mango selector that CouchDB computes before a replication id.
//!
//! Fields without an operator mean `$eq`, several conditions mean `$and`, nested objects in fields become dotted names,
//! and members are sorted. The normal form is only for the id; the source gets the selector as the user wrote it.

use serde_json::{Map, Value, json};

/// The normal form, with members in sorted order.
pub(crate) fn normal_form(selector: &Map<String, Value>) -> Value {
    let steps = norm_ops(&Value::Object(selector.clone()));
    let fields = norm_fields(&steps, "");
    sorted(&norm_negations(&fields))
}

fn single(name: &str, value: Value) -> Value {
    let mut object = Map::new();
    object.insert(name.to_owned(), value);
    Value::Object(object)
}

fn is_operator(name: &str) -> bool {
    name.starts_with('$')
}

/// Makes every operator explicit: `{a: 1, b: 2}` becomes `{$and: [{a: {$eq: 1}}, {b: {$eq: 2}}]}`.
fn norm_ops(value: &Value) -> Value {
    let Value::Object(object) = value else {
        return value.clone();
    };
    let mut members = object.iter();
    match (members.next(), members.next()) {
        (None, _) => value.clone(),
        (Some((name, inner)), None) => single(name, norm_member(name, inner)),
        _ => {
            let parts = object.iter().map(|(name, inner)| single(name, norm_member(name, inner))).collect();
            single("$and", Value::Array(parts))
        }
    }
}

fn norm_member(name: &str, inner: &Value) -> Value {
    match (name, inner) {
        ("$and" | "$or" | "$nor", Value::Array(parts)) => Value::Array(parts.iter().map(norm_ops).collect()),
        ("$not" | "$elemMatch" | "$allMatch" | "$keyMapMatch", inner) => norm_ops(inner),
        (name, inner) if is_operator(name) => inner.clone(),
        (_, Value::Object(object)) if object.is_empty() => single("$eq", inner.clone()),
        (_, Value::Object(_)) => norm_ops(inner),
        _ => single("$eq", inner.clone()),
    }
}

/// The only member of a condition in which every operator is explicit; `None` without one.
fn only(value: &Value) -> Option<(&str, &Value)> {
    value.as_object()?.iter().next().map(|(name, inner)| (name.as_str(), inner))
}

/// Moves field names down to their operators: `{a: {b: {$eq: 1}}}` becomes `{"a.b": {$eq: 1}}`.
fn norm_fields(value: &Value, path: &str) -> Value {
    let below = |condition: Value| if path.is_empty() { condition } else { single(path, condition) };
    if !value.is_object() {
        return value.clone();
    }
    match only(value) {
        None => below(value.clone()),
        Some((name @ ("$and" | "$or" | "$nor"), Value::Array(parts))) => {
            single(name, parts.iter().map(|part| norm_fields(part, path)).collect())
        }
        Some((name @ "$not", inner)) => single(name, norm_fields(inner, path)),
        Some((name @ ("$elemMatch" | "$allMatch" | "$keyMapMatch"), inner)) => {
            below(single(name, norm_fields(inner, "")))
        }
        Some((operator, _)) if is_operator(operator) => below(value.clone()),
        Some((field, inner)) if path.is_empty() => norm_fields(inner, field),
        Some((field, inner)) => norm_fields(inner, &format!("{path}.{field}")),
    }
}

/// Resolves negations by De Morgan's laws, until only those of fields are left.
fn norm_negations(value: &Value) -> Value {
    match only(value) {
        Some((name @ ("$and" | "$or"), Value::Array(parts))) => {
            single(name, parts.iter().map(norm_negations).collect())
        }
        Some(("$nor", Value::Array(parts))) => single("$and", parts.iter().map(negate).collect()),
        Some(("$not", inner)) => negate(inner),
        Some((field, condition @ Value::Object(_))) if !is_operator(field) => match only(condition) {
            Some((operator @ ("$elemMatch" | "$allMatch" | "$keyMapMatch"), inner)) => {
                single(field, single(operator, norm_negations(inner)))
            }
            _ => value.clone(),
        },
        _ => value.clone(),
    }
}

fn negate(value: &Value) -> Value {
    let Some((name, inner)) = only(value) else {
        return json!({ "$not": value });
    };
    match (name, inner) {
        ("$and", Value::Array(parts)) => single("$or", parts.iter().map(negate).collect()),
        ("$or", Value::Array(parts)) => single("$and", parts.iter().map(negate).collect()),
        ("$nor", Value::Array(parts)) => single("$or", parts.iter().map(norm_negations).collect()),
        ("$not", inner) => norm_negations(inner),
        (operator, inner) if is_operator(operator) => match opposite(operator) {
            Some(opposite) => single(opposite, inner.clone()),
            None => json!({ "$not": value }),
        },
        (field, inner) => {
            let negated = only(inner).and_then(|(operator, operand)| match operator {
                "$exists" => Some(single("$exists", Value::Bool(!operand.as_bool().unwrap_or(true)))),
                operator => opposite(operator).map(|opposite| single(opposite, operand.clone())),
            });
            single(field, negated.unwrap_or_else(|| json!({ "$not": inner })))
        }
    }
}

fn opposite(operator: &str) -> Option<&'static str> {
    Some(match operator {
        "$lt" => "$gte",
        "$lte" => "$gt",
        "$eq" => "$ne",
        "$ne" => "$eq",
        "$gte" => "$lt",
        "$gt" => "$lte",
        "$in" => "$nin",
        "$nin" => "$in",
        _ => return None,
    })
}

/// Sorts the members of objects by name, and leaves arrays unchanged: the order that enters the id.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(object) => {
            let mut members: Vec<_> = object.iter().collect();
            members.sort_by_key(|(name, _)| *name);
            Value::Object(members.into_iter().map(|(name, inner)| (name.clone(), sorted(inner))).collect())
        }
        Value::Array(parts) => Value::Array(parts.iter().map(sorted).collect()),
        other => other.clone(),
    }
}
