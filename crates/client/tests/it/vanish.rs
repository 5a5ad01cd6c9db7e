//! Nothing of a request vanishes in silence: random requests, with fields that nobody knows at random places.

use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Value, json};
use steadfast_client::dialect::translation::check;
use steadfast_core::Dialect;

use crate::{
    fixtures::{decode, try_encode},
    table::{Row, marked, model, request_of, rows},
};

/// What a request is made of: rows of the table laid over each other, and a field that is in no row.
#[derive(Clone, Debug)]
struct Made {
    dialect: Dialect,
    rows: Vec<&'static Row>,
    /// Where the unknown field goes: the number of the object in the body, if any.
    unknown: Option<usize>,
}

fn made() -> impl Strategy<Value = Made> {
    let unknown = prop_oneof![4 => Just(None), 1 => (0..40usize).prop_map(Some)];
    let picked = vec(any::<prop::sample::Index>(), 1..6);
    // Most of them of rows that no dialect refuses, or most requests would be refused.
    let sayable = prop_oneof![4 => Just(true), 1 => Just(false)];
    (select(&Dialect::ALL[..]), sayable, picked, unknown).prop_map(
        |(dialect, sayable, picked, unknown)| {
            let is_refused = |row: &Row| Dialect::ALL.iter().any(|to| row.is_refused(*to));
            let fits = |row: &&Row| row.is_request_of(dialect) && !(sayable && is_refused(row));
            let rows: Vec<&Row> = rows().iter().filter(fits).collect();
            let rows = picked.iter().map(|index| *index.get(&rows)).collect();
            Made { dialect, rows, unknown }
        },
    )
}

/// The objects of a body that have fields of the dialect's own, in order.
fn objects<'v>(value: &'v mut Value, at: &mut usize, wanted: usize) -> Option<&'v mut Value> {
    // What is somebody's own JSON is passed on as it is.
    const OWN: [&str; 9] = [
        "parameters",
        "input_schema",
        "input",
        "args",
        "response",
        "schema",
        "parametersJsonSchema",
        "responseJsonSchema",
        "responseSchema",
    ];
    match value {
        Value::Object(_) if *at == wanted => Some(value),
        Value::Object(fields) => {
            *at += 1;
            let inner = fields.iter_mut().filter(|(name, _)| !OWN.contains(&name.as_str()));
            inner.map(|(_, value)| value).find_map(|value| objects(value, at, wanted))
        }
        Value::Array(items) => items.iter_mut().find_map(|item| objects(item, at, wanted)),
        _ => None,
    }
}

/// All of them have the conversation of the first, and the parts of the others' first messages too.
fn merged(first: &mut Value, second: &Value) {
    for (name, value) in second.as_object().unwrap() {
        match (first.get_mut(name), value) {
            (Some(Value::Array(before)), Value::Array(more)) => before.extend(more.iter().cloned()),
            (Some(Value::Object(_)), Value::Object(_)) => merged(&mut first[name], value),
            _ => first[name] = value.clone(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn each_leaf_is_in_the_output_or_named_or_the_target_is_refused(made in made()) {
        let mut body: Value = serde_json::from_str(&request_of(made.rows[0])).unwrap();
        for row in &made.rows[1..] {
            merged(&mut body, &serde_json::from_str(&request_of(row)).unwrap());
        }
        if let Some(wanted) = made.unknown
            && let Some(object) = objects(&mut body, &mut 0, wanted)
        {
            object["x_unknown_field"] = json!("MARK-unknown");
        }
        let text = body.to_string();
        let Ok(_) = std::panic::catch_unwind(|| decode(made.dialect, &text)) else { return Ok(()) };
        let read = decode(made.dialect, &text);
        for to in Dialect::ALL.into_iter().filter(|to| *to != made.dialect) {
            let mut request = read.clone();
            request.model = model(to).into();
            let Ok(left_out) = check(&request, to) else { continue };
            let Ok(written) = try_encode(to, &request) else { continue };
            let named = left_out.to_string();
            // Tools that may not be called are not declared where there is no other way to say so.
            let narrowed = to == Dialect::Anthropic
                && (text.contains("allowed_tools") || text.contains("allowedFunctionNames"));
            let is_tool = |path: &str| path.contains(".tools.") || path.contains(".functions.");
            for (path, mark) in marked(&body) {
                if narrowed && is_tool(&path) {
                    continue;
                }
                let last = path.rsplit('.').next().unwrap();
                let by_name = path.split('.').any(|step| {
                    left_out.names().any(|name| name.split(['.', '[', ']']).any(|it| it == step))
                });
                prop_assert!(
                    written.contains(&mark) || by_name,
                    "{} to {to}: {path} ({last}) with {mark} is gone: {text} is {written}; named: {named}",
                    made.dialect
                );
            }
        }
    }
}
