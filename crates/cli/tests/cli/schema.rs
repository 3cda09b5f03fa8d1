// SPDX-License-Identifier: Apache-2.0
//! JSON outputs follow their schemas in docs/schemas.

use serde_json::Value;
use std::path::Path;

/// Asserts that a value follows the schema `docs/schemas/NAME.schema.json`, with the features that
/// our schemas use; each key must be declared.
pub(crate) fn follows(value: &Value, name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schemas");
    let text = std::fs::read_to_string(folder.join(format!("{name}.schema.json"))).unwrap();
    let schema: Value = serde_json::from_str(&text).unwrap();
    fits(value, &schema, &schema, "");
}

fn fits(value: &Value, schema: &Value, root: &Value, place: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        return fits(value, root.pointer(&name[1..]).unwrap(), root, place);
    }
    if !schema["const"].is_null() {
        assert_eq!(*value, schema["const"], "{place}");
    }
    if let Some(values) = schema["enum"].as_array() {
        assert!(values.contains(value), "{place}: {value}");
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
        one => one.as_str().into_iter().collect(),
    };
    let is = |name: &&str| match *name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        other => panic!("{place}: type {other}"),
    };
    assert!(types.is_empty() || types.iter().any(is), "{place}: {value} is not {types:?}");
    for (key, inner) in value.as_object().into_iter().flatten() {
        let any = &schema["additionalProperties"];
        let declared = Some(&schema["properties"][key]).filter(|it| it.is_object()).unwrap_or(any);
        assert!(declared.is_object(), "{place}/{key} is not declared");
        fits(inner, declared, root, &format!("{place}/{key}"));
    }
    if value.is_object() {
        for key in schema["required"].as_array().into_iter().flatten() {
            assert!(value.get(key.as_str().unwrap()).is_some(), "{place}: no {key}");
        }
    }
    for inner in value.as_array().into_iter().flatten() {
        fits(inner, &schema["items"], root, &format!("{place}[]"));
    }
}
